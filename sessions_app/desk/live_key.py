"""The key by which a live page asks whether its session has changed: one small query instead of a whole login.

A key is made with the page, for the user and the login session that it was made for and one session of an agent. It is
refused with any other of them, after SECONDS, and once that login has ended: by logging out, by running out, by a new
password, or with the account. It says that the user may see the session; a permission that is withdrawn counts when
the key runs out.
"""

from datetime import datetime
from uuid import UUID

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as LoginSession
from django.core import signing
from django.db.models import Exists, Subquery
from django.http import HttpRequest
from django.utils.crypto import constant_time_compare, salted_hmac

from sessions_app.access.roles import Actor
from sessions_app.desk.context import Request
from sessions_app.models import Session, StaffPermission

SECONDS = 3600


def make(request: Request, session_id: UUID) -> str:
    return _signer(request, session_id).sign(f"{request.user.pk}:{_digest(request.user.password)}")


def change_of(request: HttpRequest, session_id: UUID, key: str, *, now: datetime) -> int | None:
    """The session's change number; None if the key is not valid for this request, or there is no such session."""
    signed = _signed(request, session_id, key)
    if signed is None:
        return None
    user_id, digest = signed
    login = LoginSession.objects.filter(session_key=request.session.session_key, expire_date__gt=now)
    password = User.objects.filter(pk=user_id, is_active=True).values("password")
    row = (
        Session.objects.filter(Exists(login), pk=session_id)
        .values_list("change", Subquery(password), named=False)
        .first()
    )
    if row is None or row[1] is None or not constant_time_compare(_digest(row[1]), digest):
        return None
    change: int = row[0]
    return change


def may_watch(request: HttpRequest, session_id: UUID, key: str, *, now: datetime) -> bool:
    """Whether the key is valid for this request, and its user still has the permission to see sessions."""
    signed = _signed(request, session_id, key)
    if signed is None or change_of(request, session_id, key, now=now) is None:
        return False
    user = User.objects.filter(pk=signed[0]).first()
    return user is not None and Actor.of(user).may(StaffPermission.VIEW)


def _signed(request: HttpRequest, session_id: UUID, key: str) -> tuple[int, str] | None:
    """The user of the key and the digest of their password; None if it was not made for this request, or long ago."""
    try:
        user_id, _, digest = _signer(request, session_id).unsign(key, max_age=SECONDS).partition(":")
    except signing.BadSignature:
        return None
    return int(user_id), digest


def _signer(request: HttpRequest, session_id: UUID) -> signing.TimestampSigner:
    return signing.TimestampSigner(salt=f"live {session_id} {request.session.session_key}")


def _digest(password: str) -> str:
    return salted_hmac("live", password, algorithm="sha256").hexdigest()
