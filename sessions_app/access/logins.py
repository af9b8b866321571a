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
from django.db.models import Model, Q, QuerySet
from django.utils import timezone

from sessions_app.models.compiled import compiled


class SessionStore(db.SessionStore):
    """Login sessions in the database. One query."""

    def load(self) -> dict[str, Any]:
        login = _logins.first(self.session_key, timezone.now())
        if login is None:
            self._session_key = None
            return {}
        return self.decode(login.session_data)


class Backend(ModelBackend):
    """Accounts and permissions as Django keeps them. One query for the account, and one for all its permissions."""

    def get_user(self, user_id: int) -> User | None:
        user = _users.first(user_id)
        return user if user is not None and self.user_can_authenticate(user) else None

    def get_all_permissions(self, user_obj: User | AnonymousUser, obj: Model | None = None) -> set[str]:
        if (
            obj is not None
            or not user_obj.is_active
            or user_obj.is_superuser
            or not isinstance(user_obj, User)
        ):
            return super().get_all_permissions(user_obj, obj)
        known: dict[str, set[str]] = user_obj.__dict__
        if "_perm_cache" not in known:  # where Django keeps them
            known["_perm_cache"] = {f"{app}.{name}" for app, name in _permissions(user_obj.pk)}
        return known["_perm_cache"]


@compiled
def _logins(key: str | None, now: datetime) -> QuerySet[LoginSession]:
    return LoginSession.objects.filter(session_key=key, expire_date__gt=now)


@compiled
def _users(pk: int) -> QuerySet[User]:
    return User.objects.filter(pk=pk)


@compiled
def _permissions(user: int) -> QuerySet[Permission, tuple[str, str]]:
    own = User.user_permissions.through.objects.filter(user=user).values("permission")
    of_groups = Group.permissions.through.objects.filter(group__user=user).values("permission")
    rows = Permission.objects.filter(Q(pk__in=own) | Q(pk__in=of_groups)).order_by()
    return rows.values_list("content_type__app_label", "codename", named=False)
