"""The key by which an open page asks whether anything has changed: one query instead of a whole login.

It asks whether its session has, and who else has that open.

A key is made with the page, for the user and the login session that it was made for and one session of an agent. It is
refused with any other of them, after SECONDS, and once that login has ended: by logging out, by running out, by a new
password, or with the account. It says that the user may see the session; for what it tells by itself a permission that
is withdrawn counts when the key runs out. Until then, but for VIEWER_SECONDS at most, the user counts as having the
session open. What is new is told by the permissions that the user has then (`log_in`).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as LoginSession
from django.core import signing
from django.db.models import Exists, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.crypto import constant_time_compare, salted_hmac

from sessions_app.access.logins import keep_permissions, names_of
from sessions_app.access.roles import Actor
from sessions_app.desk.context import Request
from sessions_app.models import Session, StaffPermission
from sessions_app.models.compiled import compiled

SECONDS = 3600
# The answer to who else has the session open brings a new key.
VIEWER_SECONDS = 300


def make(request: Request, session_id: UUID) -> str:
    return _signer(request, session_id).sign(f"{request.user.pk}:{_digest(request.user.password)}")


def watched(
    request: HttpRequest, session_id: UUID, key: str, *, now: datetime, with_permissions: bool = False
) -> "Watched | None":
    """The session as it is now; None if the key is not valid for this request, or there is no such session.

    :param with_permissions: What the user may do is read with it, which an answer with news needs.
    """
    return _watched(request, session_id, key, now, SECONDS, with_permissions=with_permissions)


def log_in(request: HttpRequest, found: "Watched") -> None:
    """The request is that of the user for whom the key was made: its login was read with the session."""
    request.user = found.user


def viewer(request: HttpRequest, session_id: UUID, key: str, *, now: datetime) -> int | None:
    """The id of the user for whom the key was made; None where `watched` is, and sooner: after VIEWER_SECONDS."""
    found = _watched(request, session_id, key, now, VIEWER_SECONDS)
    return None if found is None else found.user.pk


def listener(request: HttpRequest, session_id: UUID, key: str, *, now: datetime) -> int | None:
    """The id of the user for whom the key was made; None where `watched` is, and if they may see no sessions now."""
    found = _watched(request, session_id, key, now, SECONDS)
    return found.user.pk if found is not None and Actor.of(found.user).may(StaffPermission.VIEW) else None


@dataclass(frozen=True, slots=True)
class Watched:
    """A session, and the user for whom the key was made.

    is_lost: its lease has run out, and nobody has taken it since.
    """

    user: User
    change: int
    is_lost: bool


def _watched(
    request: HttpRequest,
    session_id: UUID,
    key: str,
    now: datetime,
    seconds: int,
    *,
    with_permissions: bool = False,
) -> Watched | None:
    signed = _signed(request, session_id, key, seconds)
    if signed is None:
        return None
    user_id, digest = signed
    login = request.session.session_key
    user: Any = _users.first(user_id, session_id, login, now, with_permissions=with_permissions)
    if user is None or user.change is None or not constant_time_compare(_digest(user.password), digest):
        return None
    if with_permissions:
        keep_permissions(user)
    is_lost = user.lease_expires_at is not None and user.lease_expires_at < now
    return Watched(user, user.change, is_lost)


@compiled
def _users(
    pk: int, session_id: UUID, login: str | None, now: datetime, *, with_permissions: bool
) -> QuerySet[User]:
    """The account, while this login of it has not ended, with what it sees of the session.

    Its permissions are otherwise read when they are asked for: most answers to polls bring no news, and need none.
    """
    logins = LoginSession.objects.filter(session_key=login, expire_date__gt=now)
    sessions = Session.objects.filter(pk=session_id).order_by()
    users = User.objects.filter(Exists(logins), pk=pk, is_active=True)
    if with_permissions:
        users = users.annotate(names=Subquery(names_of(pk)))
    return users.annotate(
        **{name: Subquery(sessions.values(name)) for name in ("change", "lease_expires_at")}
    )


def _signed(request: HttpRequest, session_id: UUID, key: str, seconds: int) -> tuple[int, str] | None:
    """The user of the key and the digest of their password; None if it was not made for this request, or long ago."""
    try:
        user_id, _, digest = _signer(request, session_id).unsign(key, max_age=seconds).partition(":")
    except signing.BadSignature:
        return None
    return int(user_id), digest


def _signer(request: HttpRequest, session_id: UUID) -> signing.TimestampSigner:
    return signing.TimestampSigner(salt=f"live {session_id} {request.session.session_key}")


def _digest(password: str) -> str:
    return salted_hmac("live", password, algorithm="sha256").hexdigest()
