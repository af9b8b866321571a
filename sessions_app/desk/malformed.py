"""Requests that cannot be read are refused before a view sees them, with a page that says what is wrong.

Views, forms and the database then never meet a NUL character in an address, an encoding other than UTF-8, or a header
that is not a URL. What is typed into a form is left to the form, which keeps it and says what is wrong with it.
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from sessions_app.access.errors import Invalid
from sessions_app.access.typed import check_text, cut

Handler = Callable[[HttpRequest], HttpResponse]


def refuse_malformed_requests(get_response: Handler) -> Handler:
    """Answer 400 to a request that cannot be read; must stand behind the middleware that sets ``request.user``."""

    def middleware(request: HttpRequest) -> HttpResponse:
        try:
            _check(request)
        except Invalid as error:
            values = {"title": "This request cannot be read", "text": f"{error} Nothing was changed."}
            return render(request, "desk/problem.html", values, status=400)
        return get_response(request)

    return middleware


def _check(request: HttpRequest) -> None:
    """:raises Invalid: for a request that cannot be read."""
    encoding = request.encoding or "utf-8"
    if encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise Invalid(f"It is encoded as “{cut(encoding)}”; send UTF-8.")
    check_text("The address", request.path_info)
    for name, values in request.GET.lists():
        check_text("A name in the address", name)
        for value in values:
            check_text(f"“{cut(name)}” in the address", value)
    try:
        urlsplit(request.headers.get("HX-Current-URL", ""))
    except ValueError:
        raise Invalid("Its header HX-Current-URL is not a URL.") from None
