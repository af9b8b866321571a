"""Who may do what: the three roles, and the actor in whose name an action is done.

A user's rights are Django permissions, listed in `StaffPermission`; a role is a group that has some of them. The
command line and the system act without an account and may do everything: whoever can start them can change the
database anyway.
"""

from dataclasses import dataclass
from typing import Self

from django.apps import apps
from django.contrib.auth.management import create_permissions
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group, Permission, User
from django.db.models import QuerySet

from agentstate.articles import an
from sessions_app.models import Role, StaffPermission

ROLES = tuple(Role)


def people_who_may(permission: StaffPermission) -> QuerySet[User]:
    """The accounts that are open and have the permission."""
    return User.objects.with_perm(
        f"sessions_app.{permission.value}", backend="django.contrib.auth.backends.ModelBackend"
    )


@dataclass(frozen=True, slots=True)
class Actor:
    """In whose name something is done: a user, or by name the command line or a part of the system.

    ``bulk`` is the primary key of the `BulkAction` of which it is a part, if it is part of one.
    """

    name: str
    user: User | None = None
    bulk: int | None = None

    @classmethod
    def of(cls, user: AbstractBaseUser | AnonymousUser, *, bulk: int | None = None) -> Self:
        """:raises ValueError: for a user who is not logged in."""
        if not isinstance(user, User):
            raise ValueError("Only a logged-in user can act.")
        return cls(name=user.get_username(), user=user, bulk=bulk)

    @classmethod
    def command_line(cls, name: str) -> Self:
        return cls(name=f"command line: {name}"[:150])

    @classmethod
    def system(cls, name: str) -> Self:
        return cls(name=name[:150])

    def may(self, permission: StaffPermission) -> bool:
        """Whether this actor has the permission at all, whatever the session's state."""
        return self.user is None or self.user.has_perm(f"sessions_app.{permission.value}")

    def lacks(self, permission: StaffPermission, doing: str = "") -> str:
        """A sentence that names the roles which have the permission; "" if this actor has it.

        An actor whose permissions are not those of a role works where roles are customised: the sentence then names the
        permission. No query but the one for the user's permissions.

        :param doing: What is refused, if it is not what `StaffPermission.doing` says.
        """
        if self.may(permission):
            return ""
        granted = {each for each in StaffPermission if self.may(each)}
        if granted and granted not in map(permissions_of, ROLES):
            return f"{doing or permission.doing} needs the permission “{permission.text}”."
        *others, last = [role.value for role in ROLES if permission in permissions_of(role)]
        roles = f"{', '.join(others)} or {last}" if others else last
        return f"{doing or permission.doing} needs the {roles} role."


def check_actor(actor: object) -> None:
    """:raises TypeError: for what is no `Actor`, with what to give instead."""
    if not isinstance(actor, Actor):
        raise TypeError(
            f"The actor of an action is an Actor of sessions_app.access.roles, not {an(actor)}: Actor.of(user) for "
            'a user who is logged in, Actor.system("mailbox") for a program.'
        )


def permissions_of(role: str) -> set[StaffPermission]:
    """:raises ValueError: for an unknown role."""
    rank = ROLES.index(Role(role))
    return {permission for permission in StaffPermission if ROLES.index(permission.role) <= rank}


def ensure_roles() -> None:
    """Make the groups and bring their permissions up to date. Safe to run at any time, any number of times.

    Permissions that an administrator added to a group stay.
    """
    create_permissions(apps.get_app_config("sessions_app"), verbosity=0)
    app_permissions = Permission.objects.filter(content_type__app_label="sessions_app")
    for role in ROLES:
        group, _ = Group.objects.get_or_create(name=role)
        allowed = {permission.value for permission in permissions_of(role)}
        if role == Role.SUPERVISOR:
            # Supervisors see every table in the admin; nothing is edited there. They may tidy up shared views.
            allowed |= set(
                app_permissions.filter(codename__startswith="view_").values_list("codename", flat=True)
            )
            allowed.add("delete_savedview")
        group.permissions.add(*app_permissions.filter(codename__in=allowed))


def give_role(user: User, role: str) -> None:
    """Put the user into the role's group, and out of the other two. Supervisors may enter the admin.

    The groups are there: `ensure_roles` runs with each ``migrate``.

    :raises ValueError: for an unknown role.
    """
    if role not in ROLES:
        raise ValueError(f"There is no role {role!r}; roles are {', '.join(ROLES)}.")
    user.groups.remove(*Group.objects.filter(name__in=ROLES))
    user.groups.add(Group.objects.get(name=role))
    user.is_staff = user.is_superuser or role == Role.SUPERVISOR
    user.save(update_fields=["is_staff"])
