"""What applies to every request to the desk and the admin: caching, HTTP methods, input to refuse, and closed accounts.

Static files are answered before these are reached.
"""

from collections.abc import Callable

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.middleware import get_user
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_cache_control
from django.utils.functional import SimpleLazyObject

Handler = Callable[[HttpRequest], HttpResponse]


def keep_private(get_response: Handler) -> Handler:
    """No cache keeps a page: not a proxy's, and not the browser's, which the next user of the machine could read."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        patch_cache_control(response, private=True, no_store=True)
        return response

    return middleware


def answer_head_and_options(get_response: Handler) -> Handler:
    """HEAD is answered like GET, without the body, and OPTIONS with the methods that the address takes.

    Views declare GET and POST only. A server that does not know HEAD (waitress) would send what is left in the body.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        method = request.method
        if method == "HEAD":
            request.method = "GET"
        response = get_response(request)
        request.method = method
        if method == "HEAD":
            response = _without_body(response)
        if response.status_code == 405:
            allowed = [name.strip() for name in response["Allow"].split(",")]
            if "GET" in allowed and "HEAD" not in allowed:
                allowed.append("HEAD")
            if "OPTIONS" not in allowed:
                allowed.append("OPTIONS")
            if method == "OPTIONS":
                response = HttpResponse()
            response["Allow"] = ", ".join(allowed)
        return response

    return middleware


def _without_body(response: HttpResponse) -> HttpResponse:
    if response.streaming:
        response.close()  # a stream that is not read never begins
        return HttpResponse(status=response.status_code, headers=dict(response.items()))
    response.content = b""  # its Content-Length stays that of the body
    return response


def ignore_cookies_with_nul(get_response: Handler) -> Handler:
    """A cookie with a NUL character counts as none: nobody was given it, and PostgreSQL cannot look up such a login."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if any("\0" in value for value in request.COOKIES.values()):
            request.COOKIES = {name: value for name, value in request.COOKIES.items() if "\0" not in value}
        return get_response(request)

    return middleware


def refuse_large_bodies(get_response: Handler) -> Handler:
    """A body above DATA_UPLOAD_MAX_MEMORY_SIZE is refused unread. Django's own check leaves out multipart bodies.

    Under ASGI the length of a body that comes in chunks is what was read of it: see `agentstate.request_body`.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        try:
            length = int(request.META.get("CONTENT_LENGTH") or 0)
        except ValueError:
            length = 0  # as Django takes it
        if length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise RequestDataTooBig(f"The body has at least {length} bytes.")
        return get_response(request)

    return middleware


def end_logins_of_closed_accounts(get_response: Handler) -> Handler:
    """A login whose account is gone or inactive ends where a request asks who it is, which other requests do not.

    Django takes such a request for that of a visitor, and the same login again once the account is active again. Must
    stand behind the middleware that sets ``request.user``.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        def user() -> User | AnonymousUser:
            found = get_user(request)
            if not found.is_authenticated and SESSION_KEY in request.session:
                request.session.flush()
            return found

        request.user = SimpleLazyObject(user)  # type: ignore[assignment]
        return get_response(request)

    return middleware
