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
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Aggregate, Model, OuterRef, Q, QuerySet, Subquery, TextField, Value
from django.db.models.functions import Concat
from django.db.models.sql.compiler import SQLCompiler
from django.utils import timezone

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

    def get_user(self, user_id: int) -> User | None:
        """The account, if it may log in. Its permissions are those that it has now."""
        user = _users.first(user_id)
        return keep_permissions(user) if user is not None and self.user_can_authenticate(user) else None

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
            known[_KEPT] = set((_names.first(user_obj.pk) or "").split())
        return known[_KEPT]


@compiled
def _logins(key: str | None, now: datetime) -> QuerySet[LoginSession]:
    return LoginSession.objects.filter(session_key=key, expire_date__gt=now)


def with_permissions(users: QuerySet[User]) -> QuerySet[User]:
    """The accounts with their permissions, for `keep_permissions`, in one query."""
    # The names are those of rows two queries below: `Permission`, and what gives them.
    return users.annotate(names=Subquery(_names_of(OuterRef(OuterRef("pk")))))


def keep_permissions(user: User) -> User:
    """The account, one of `with_permissions`, which may do what these say for as long as it is used."""
    names = user.__dict__.pop("names")
    if not user.is_superuser:
        user.__dict__[_KEPT] = set((names or "").split())
    return user


@compiled
def _users(pk: int) -> QuerySet[User]:
    return with_permissions(User.objects.filter(pk=pk))


@compiled
def _names(user: int) -> QuerySet[Permission, str | None]:
    return _names_of(user)


def _names_of(user: Any) -> QuerySet[Permission, str | None]:
    """The permissions of a user in one text: ``app.name app.name``."""
    own = User.user_permissions.through.objects.filter(user=user).values("permission")
    of_groups = Group.permissions.through.objects.filter(group__user=user).values("permission")
    rows = Permission.objects.filter(Q(pk__in=own) | Q(pk__in=of_groups)).order_by()
    name = Concat("content_type__app_label", Value("."), "codename")
    return (
        rows.annotate(one=Value(1))
        .values("one")
        .annotate(names=_Joined(name))
        .values_list("names", flat=True)
    )


class _Joined(Aggregate):
    """The texts, with a blank between two."""

    function = "group_concat"
    template = "%(function)s(%(expressions)s, ' ')"
    output_field = TextField()

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, function="string_agg")
