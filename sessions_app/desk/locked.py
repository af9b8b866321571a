"""What the web server answers if it has waited for the database for too long, or the database takes no writes: 503, and
when to try again.

No write of a request waits longer for a lock than a person's action does. Actions answer by themselves, with what was
typed (`Locked`). This middleware answers for all other writes, such as a sign-in, and where no connection to the
database was free. It adds the header ``Retry-After`` to all of these answers.
"""

from collections.abc import Callable
from contextlib import nullcontext

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from sessions_app import locks, pooling
from sessions_app.access.errors import Locked, TakesNoWrites
from sessions_app.desk.context import render_page
from sessions_app.unavailable import takes_no_writes


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
        if pooling.is_timeout(exception):
            text = (
                "No connection to the database was free in time: too many requests are waiting for one, or the "
                f"database cannot be reached. Nothing has changed; try again in {locks.retry_seconds()} s."
            )
            # A page that asks the database for nothing: the bar of the desk would wait in vain, too.
            return render(
                request, "400.html", {"title": "The database is busy", "text": text}, status=Locked.status
            )
        if takes_no_writes(exception):
            # It may be about to stop, so this page asks it for nothing, either.
            values = {"title": "Nothing was changed", "text": str(TakesNoWrites())}
            return render(request, "400.html", values, status=TakesNoWrites.status)
        if not locks.is_timeout(exception):
            return None
        text = (
            "The database is locked by another process, which has not finished writing. Nothing has changed; "
            f"try again in {locks.retry_seconds()} s."
        )
        context = {"title": "Nothing was changed", "text": text}
        return render_page(request, "desk/problem.html", context, status=Locked.status)
