"""The demo users of `manage.py up`: one for each role, named after it.

Only accounts that were made here are changed, and only while their password is the one that was set here: an account
that a person made, or whose password a person changed, is that person's. (A stored password that Django hashed again
with more iterations, at a login after an upgrade, counts as changed.)
"""

import secrets
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from sessions_app.access.roles import ROLES, give_role
from sessions_app.models import DemoUser


@dataclass
class DemoUsers:
    """The names of the users after `open_demo_users`, by what became of them."""

    password: str = ""
    new_password: list[str] = field(default_factory=list)  # it is `password` from now on
    unchanged: list[str] = field(default_factory=list)
    not_ours: list[str] = field(default_factory=list)


def why_refused(password: str) -> str:
    """What AUTH_PASSWORD_VALIDATORS say against the password for any of the users, "" for nothing."""
    for role in ROLES:
        try:
            validate_password(password, User(username=role))
        except ValidationError as error:
            return " ".join(error.messages)
    return ""


@transaction.atomic
def open_demo_users(password: str = "") -> DemoUsers:
    """See that the demo users exist. New ones get the password, or a random one if it is "".

    With a password, those that exist get it too.
    """
    result = DemoUsers(password=password or secrets.token_urlsafe(12))
    # Takes a quarter of a second, and they share the password.
    hashed = cache(lambda: make_password(result.password))
    for role in ROLES:
        user = User.objects.filter(username=role).first()
        if user is None:
            user = User.objects.create(username=role, password=hashed())
            give_role(user, role)
            result.new_password.append(role)
        elif not _is_ours(user):
            result.not_ours.append(role)
            continue
        elif user.check_password(password) if password else user.has_usable_password():
            result.unchanged.append(role)
        else:
            user.password = hashed()
            user.save(update_fields=["password"])
            result.new_password.append(role)
        _mark(user)
    return result


@transaction.atomic
def close_demo_users() -> list[str]:
    """Take the passwords of the demo users away, which ends their logins too; whose were taken.

    `open_demo_users` gives them new ones.
    """
    closed = []
    for user in User.objects.filter(pk__in=DemoUser.objects.values("pk")).order_by("pk"):
        if _is_ours(user) and user.has_usable_password():
            user.set_unusable_password()
            user.save(update_fields=["password"])
            _mark(user)
            closed.append(user.username)
    return closed


def _is_ours(user: User) -> bool:
    return DemoUser.objects.filter(pk=user.pk, password_digest=_digest(user)).exists()


def _mark(user: User) -> None:
    DemoUser.objects.update_or_create(pk=user.pk, defaults={"password_digest": _digest(user)})


def _digest(user: User) -> str:
    return sha256(user.password.encode()).hexdigest()
