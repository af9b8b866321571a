"""Who is logged in and what they may do: Django's own tables, read by compiled queries, since every request reads them.

`SESSION_ENGINE` and `AUTHENTICATION_BACKENDS` name this module. Nothing is kept between requests: a login that has
ended, and a permission that was withdrawn, count at once.
"""

from datetime import datetime
from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.contrib.sessions.backends import db
from django.contrib.sessions.models import Session as LoginSession
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Aggregate, JSONField, Model, Q, QuerySet, Subquery, Value
from django.db.models.functions import Concat
from django.db.models.sql.compiler import SQLCompiler
from django.http import HttpRequest
from django.utils import timezone

from sessions_app import pooling
from sessions_app.models.compiled import compiled

# Where Django keeps the permissions of a user that was loaded.
_KEPT = "_perm_cache"


class SessionStore(db.SessionStore):
    """Login sessions in the database. One query."""

    def load(self) -> dict[str, Any]:
        login = _logins.first(self.session_key, timezone.now())
        if login is None:
            self._session_key = None
            return {}
        return self.decode(login.session_data)


class Backend(ModelBackend):
    """Accounts and permissions as Django keeps them. One query for an account with its permissions."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **others: Any,
    ) -> User | None:
        """The account with this name and password, if it may log in.

        As in Django, a password is hashed also where there is no such account: the time does not tell. Meanwhile others
        have the connection: hashing takes longer than most pages, and anyone can ask for it.
        """
        if username is None or password is None:
            return None
        user = User.objects.filter(username=username).first()
        pooling.give_back(connection)
        if user is None:
            User().set_password(password)
            return None
        return user if user.check_password(password) and self.user_can_authenticate(user) else None

    def get_user(self, user_id: int) -> User | None:
        """The account, if it may log in. Its permissions are those that it has now."""
        user = _users.first(user_id)
        if user is None or not self.user_can_authenticate(user):
            return None
        keep_permissions(user)
        return user

    def get_all_permissions(self, user_obj: User | AnonymousUser, obj: Model | None = None) -> set[str]:
        if (
            obj is not None
            or not user_obj.is_active
            or user_obj.is_superuser
            or not isinstance(user_obj, User)
        ):
            return super().get_all_permissions(user_obj, obj)
        known: dict[str, set[str]] = user_obj.__dict__
        if _KEPT not in known:
            known[_KEPT] = set(_names.first(user_obj.pk) or ())
        return known[_KEPT]


def keep_permissions(user: User) -> None:
    """As those of the account, the permissions that were read with it: annotated as ``names``, by `names_of`."""
    names = user.__dict__.pop("names")
    if not user.is_superuser:
        user.__dict__[_KEPT] = set(names or ())


@compiled
def _logins(key: str | None, now: datetime) -> QuerySet[LoginSession]:
    return LoginSession.objects.filter(session_key=key, expire_date__gt=now)


@compiled
def _users(pk: int) -> QuerySet[User]:
    return User.objects.filter(pk=pk).annotate(names=Subquery(names_of(pk)))


@compiled
def _names(user: int) -> QuerySet[Permission, list[str] | None]:
    return names_of(user)


def names_of(user: int) -> QuerySet[Permission, list[str] | None]:
    """The permissions of a user in one list, ``["app.name"]``; no row, or None, where there are none.

    The key stands in each of the inner queries: SQLite would make these anew for each permission if they named the
    account of an outer one.
    """
    own = User.user_permissions.through.objects.filter(user=user).values("permission")
    of_groups = Group.permissions.through.objects.filter(group__user=user).values("permission")
    rows = Permission.objects.filter(Q(pk__in=own) | Q(pk__in=of_groups)).order_by()
    name = Concat("content_type__app_label", Value("."), "codename")
    return (
        rows.annotate(one=Value(1))
        .values("one")
        .annotate(names=_Listed(name))
        .values_list("names", flat=True)
    )


class _Listed(Aggregate):
    """The values as a list of JSON."""

    function = "json_group_array"
    output_field = JSONField()

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, function="jsonb_agg")
