"""Signing in to the desk and to the admin: wrong passwords are counted, and after too many an attempt must wait.

django-axes records each wrong password, refuses an attempt that must wait before its password is looked at, and logs
both. The settings name what it takes from here: how failures are counted, whose address a request has, how the log
names an attempt, and the page that answers one that must wait.
"""

import logging
from datetime import datetime
from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import Any

from axes.handlers.database import AxesDatabaseHandler
from axes.handlers.proxy import AxesProxyHandler
from django.conf import settings
from django.contrib import admin
from django.db.models import Max, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from sessions_app.desk.context import render_page
from sessions_app.invisible import shown_in_a_line

logger = logging.getLogger(__name__)

# In the order of AXES_LOCKOUT_PARAMETERS: how many times AXES_FAILURE_LIMIT closes a name at one address, all names at
# one address (an office has many people behind one), and one name at all addresses. Only the first is what a person
# who forgot the password meets; the others stop those who try many names, or from many addresses.
LIMITS = (1, 10, 10)

# As many as the tables of django-axes hold; no user has a name as long as that.
NAME_CHARACTERS = 255


class Throttle(AxesDatabaseHandler):  # type: ignore[misc]
    """Counts failures by name and address together, and with wider limits by each of them."""

    def get_failures(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> int:
        """Failures within AXES_COOLOFF_TIME, on the scale on which AXES_FAILURE_LIMIT is too many."""
        return max(failures for failures, _ in self._counts(request, credentials))

    def reset_user_attempts(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> int:
        """Forget the failures of this name at this address only.

        Otherwise an attacker could clear the address's failures by signing in to an account of their own.
        """
        deleted: int = self.filter_user_attempts(request, credentials)[0].delete()[0]
        return deleted

    def open_again_at(self, request: HttpRequest, credentials: dict[str, Any] | None) -> datetime:
        """When a refused attempt is possible again. Until then no failure is recorded, so the time stays as it is."""
        newest = [
            newest
            for failures, newest in self._counts(request, credentials)
            if failures >= settings.AXES_FAILURE_LIMIT and newest is not None
        ]
        return max(newest) + settings.AXES_COOLOFF_TIME if newest else timezone.now()

    def _counts(
        self, request: HttpRequest, credentials: dict[str, Any] | None
    ) -> list[tuple[int, datetime | None]]:
        """For each of the lockout parameters, the failures divided by its limit, and the time of the newest."""
        rows = [
            attempts.aggregate(failures=Sum("failures_since_start"), newest=Max("attempt_time"))
            for attempts in self.get_user_attempts(request, credentials)
        ]
        return [
            ((row["failures"] or 0) // limit, row["newest"]) for row, limit in zip(rows, LIMITS, strict=True)
        ]


def password_change(request: HttpRequest) -> HttpResponse:
    """The admin's own page, with a wrong old password counted as a sign-in that failed.

    Otherwise it could be guessed there, at a computer that its user has left signed in.
    """
    credentials = {"username": request.user.get_username()}
    if request.method == "POST" and not AxesProxyHandler.is_allowed(request, credentials):
        request.axes_credentials = credentials  # type: ignore[attr-defined]
        return locked_out(request)
    response: HttpResponse = admin.site.password_change(request)
    form = (getattr(response, "context_data", None) or {}).get("form")
    if form is not None and form.has_error("old_password", "password_incorrect"):
        AxesProxyHandler.user_login_failed(password_change, credentials, request)
    return response


def client_address(request: HttpRequest) -> str | None:
    """The address from which the request comes; None where it is not known, as on a Unix socket.

    X-Forwarded-For is read only behind TRUSTED_PROXIES, and only what the outermost of them wrote: what stands before
    that, the client may have written. IPv6 addresses are cut to the network that one client has for itself.
    """
    text: str = request.META.get("REMOTE_ADDR", "")
    if settings.TRUSTED_PROXIES:
        hops = [hop for hop in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if hop.strip()]
        text = next(iter(hops[-settings.TRUSTED_PROXIES :]), text)
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64)
    return str(address)


def client_name(request: HttpRequest, credentials: dict[str, Any] | None) -> str | None:
    """The name by which an attempt is counted: the beginning of a name that is too long to be stored.

    Anyone can write one, and a command prints it to a terminal. So what a terminal would obey, or a person would not
    see, is stored by its name. Names of accounts hold no character with which that is written.
    """
    name: str | None = (request.POST if credentials is None else credentials).get("username")
    return name and shown_in_a_line(name)[:NAME_CHARACTERS]


def client_text(
    username: str | None, address: str | None, agent: str, path: str, request: HttpRequest
) -> str:
    """How the log names an attempt. What a client can choose is quoted, so that it cannot forge a line."""
    return f"{username!r} from {address or 'an unknown address'} at {path!r}"


def locked_out(request: HttpRequest, *args: Any) -> HttpResponse:
    """The answer to an attempt that must wait: 429, with the time at which it may be tried again."""
    credentials: dict[str, Any] = getattr(request, "axes_credentials", None) or {}
    address: str | None = getattr(request, "axes_ip_address", None)
    opens_at = AxesProxyHandler.get_implementation().open_again_at(request, credentials)
    seconds = max(1, ceil((opens_at - timezone.now()).total_seconds()))
    username = client_name(request, credentials)
    logger.warning(
        "Sign-in refused for %d s: %s", seconds, client_text(username, address, "", request.path, request)
    )
    context = {"opens_at": opens_at, "minutes": ceil(seconds / 60), "path": request.get_full_path()}
    response = render_page(request, "registration/locked_out.html", context, status=429)
    response["Retry-After"] = str(seconds)
    return response
