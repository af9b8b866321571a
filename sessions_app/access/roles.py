"""Who may do what: the three groups, and the actor in whose name an action is done.

A user's rights are Django permissions; the groups are only a handy way to give them. The command line and the
machinery act without an account and may do everything: whoever reaches them can change the database anyway.
"""

from dataclasses import dataclass
from typing import Self

from django.apps import apps
from django.contrib.auth.management import create_permissions
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group, Permission, User

PERMISSION = {
    "view": "view_session",
    "start": "start_session",
    "message": "message_session",
    "pause": "pause_session",
    "resume": "resume_session",
    "cancel": "cancel_session",
    "rewind": "rewind_session",
    "undo": "rewind_session",
    "fork": "fork_session",
    "approve": "approve_call",
    "reject": "approve_call",
    "withdraw": "approve_call",
    "decide": "decide_call",
    "assign": "assign_session",
    "note": "message_session",
    "repair": "repair_session",
    "release": "repair_session",
    "reveal": "reveal_values",
}

_OPERATES = set(PERMISSION.values()) - {"repair_session", "reveal_values"}
ROLES = {
    "viewer": {"view_session"},
    "operator": _OPERATES,
    "supervisor": set(PERMISSION.values()),
}


@dataclass(frozen=True, slots=True)
class Actor:
    """In whose name something is done: a user, or by name the command line or a part of the machinery.

    ``bulk`` is the `BulkAct` in the course of which it is done, if so.
    """

    name: str
    user: User | None = None
    bulk: int | None = None

    @classmethod
    def of(cls, user: AbstractBaseUser | AnonymousUser, *, bulk: int | None = None) -> Self:
        """:raises ValueError: for somebody who is not logged in."""
        if not isinstance(user, User):
            raise ValueError("Only a logged-in user can act.")
        return cls(name=user.get_username(), user=user, bulk=bulk)

    @classmethod
    def command_line(cls, name: str) -> Self:
        return cls(name=f"command line: {name}"[:150])

    @classmethod
    def system(cls, name: str) -> Self:
        return cls(name=name[:150])

    def may(self, act: str) -> bool:
        """Whether this actor may do `act` (a key of `PERMISSION`) at all, whatever the session's state."""
        return self.user is None or self.user.has_perm(f"sessions_app.{PERMISSION[act]}")


def ensure_roles() -> None:
    """Make the groups and bring their permissions up to date. Safe to run at any time, as often as one likes.

    What an administrator added to a group by hand stays.
    """
    create_permissions(apps.get_app_config("sessions_app"), verbosity=0)
    ours = Permission.objects.filter(content_type__app_label="sessions_app")
    for role, codenames in ROLES.items():
        group, _ = Group.objects.get_or_create(name=role)
        allowed = set(codenames)
        if role == "supervisor":
            # Supervisors see every table in the admin; nothing is edited there. They may tidy up shared views.
            allowed |= set(ours.filter(codename__startswith="view_").values_list("codename", flat=True))
            allowed.add("delete_savedview")
        group.permissions.add(*ours.filter(codename__in=allowed))


def give_role(user: User, role: str) -> None:
    """Put the user into the role's group, and out of the other two. Supervisors may enter the admin.

    :raises ValueError: for a role that there is not.
    """
    if role not in ROLES:
        raise ValueError(f"There is no role {role!r}; roles are {', '.join(ROLES)}.")
    ensure_roles()
    user.groups.remove(*Group.objects.filter(name__in=ROLES))
    user.groups.add(Group.objects.get(name=role))
    user.is_staff = user.is_superuser or role == "supervisor"
    user.save(update_fields=["is_staff"])
