"""What the web server answers if another process has locked the database for too long: 503, and when to try again.

No write of a request waits longer than a person's action does. Actions answer by themselves, with what was typed
(`Locked`). This middleware answers for all other writes, such as a sign-in. It adds the header ``Retry-After`` to
both.
"""

from collections.abc import Callable
from contextlib import nullcontext

from django.http import HttpRequest, HttpResponse

from sessions_app import locks
from sessions_app.access.errors import Locked
from sessions_app.desk.context import render_page


class LockedDatabaseMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with locks.writes_of_a_request() if request.method == "POST" else nullcontext():
            response = self._get_response(request)
        if response.status_code == Locked.status:
            response.headers.setdefault("Retry-After", str(locks.retry_seconds()))
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not locks.is_timeout(exception):
            return None
        text = (
            "The database is locked by another process, which has not finished writing. Nothing has changed; "
            f"try again in {locks.retry_seconds()} s."
        )
        context = {"title": "Nothing was changed", "text": text}
        return render_page(request, "desk/problem.html", context, status=Locked.status)
