"""The three groups, what a viewer is offered, and in whose name something is done."""

import re

import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.core.management import call_command
from django.test import Client

from sessions_app.access.roles import ROLES, Actor, ensure_roles, give_role
from sessions_app.models import Session, StaffPermission
from tests import builders
from tests.refusals import EVERYTHING, SUPERVISING

pytestmark = pytest.mark.django_db


def test_the_groups_are_there_after_migrating() -> None:
    assert set(Group.objects.values_list("name", flat=True)) >= set(ROLES)


def test_every_permission_that_an_action_asks_for_exists() -> None:
    declared = {codename for codename, _ in Session._meta.permissions} | {"view_session"}
    assert {permission.value for permission in StaffPermission} == declared == EVERYTHING


@pytest.mark.parametrize(
    "role, permissions",
    [
        ("viewer", {"view_session"}),
        ("operator", EVERYTHING - SUPERVISING),
        ("supervisor", EVERYTHING),
        (None, set()),
    ],
)
def test_what_each_role_may_do(role: str | None, permissions: set[str]) -> None:
    actor = builders.actor(role)
    assert {permission for permission in StaffPermission if actor.may(permission)} == permissions


def test_only_supervisors_enter_the_admin_and_change_nothing_there() -> None:
    people: dict[str, User] = {role: User.objects.create_user(role) for role in ROLES}
    for role, user in people.items():
        give_role(user, role)
    assert [user.username for user in User.objects.filter(is_staff=True)] == ["supervisor"]
    supervisor = people["supervisor"]
    assert supervisor.has_perm("sessions_app.view_event")
    for verb in ("add", "change", "delete"):
        assert not supervisor.has_perm(f"sessions_app.{verb}_session")


def test_a_new_role_replaces_the_old_one() -> None:
    user = builders.user("supervisor")
    give_role(user, "viewer")
    user = User.objects.get(pk=user.pk)
    assert [group.name for group in user.groups.all()] == ["viewer"]
    assert not user.is_staff
    assert not Actor.of(user).may(StaffPermission.PAUSE)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError, match="viewer, operator, supervisor"):
        give_role(builders.user(None), "boss")


def test_a_superuser_stays_staff_in_every_role() -> None:
    root = User.objects.create_superuser("root", password="correct horse")
    give_role(root, "viewer")
    assert User.objects.get(pk=root.pk).is_staff


def test_making_the_roles_again_changes_nothing() -> None:
    def now() -> list[tuple[str, str]]:
        return sorted(Group.objects.values_list("name", "permissions__codename"))

    before = now()
    ensure_roles()
    ensure_roles()
    assert now() == before


@pytest.mark.slow
def test_making_the_roles_again_heals_them_and_keeps_what_was_added_by_hand() -> None:
    operator = Group.objects.get(name="operator")
    extra = Permission.objects.get(codename="view_user")
    operator.permissions.set([extra])
    Group.objects.get(name="viewer").delete()
    call_command("migrate", verbosity=0)
    assert extra in operator.permissions.all()
    assert Actor.of(builders.user("operator")).may(StaffPermission.PAUSE)
    assert Actor.of(builders.user("viewer")).may(StaffPermission.VIEW)


@pytest.mark.parametrize(
    "role, permission, sentence",
    [
        ("viewer", StaffPermission.PAUSE, "Pausing needs the operator or supervisor role."),
        ("operator", StaffPermission.REPAIR, "Editing needs the supervisor role."),
        (None, StaffPermission.VIEW, "Seeing sessions needs the viewer, operator or supervisor role."),
        ("supervisor", StaffPermission.REPAIR, ""),
    ],
)
def test_a_refusal_names_the_roles_that_may(
    role: str | None, permission: StaffPermission, sentence: str
) -> None:
    assert builders.actor(role).lacks(permission) == sentence


def test_where_roles_are_customised_a_refusal_names_the_permission() -> None:
    user = builders.user("operator")
    user.user_permissions.add(Permission.objects.get(codename="reveal_values"))
    lacking = Actor.of(User.objects.get(pk=user.pk)).lacks(StaffPermission.REPAIR)
    assert lacking == "Editing needs the permission “Can repair a session's state”."


def test_a_deactivated_user_may_do_nothing() -> None:
    user = builders.user("supervisor")
    user.is_active = False
    user.save()
    assert not any(Actor.of(User.objects.get(pk=user.pk)).may(permission) for permission in StaffPermission)


def test_nobody_acts_without_logging_in() -> None:
    with pytest.raises(ValueError, match="logged-in"):
        Actor.of(AnonymousUser())


def test_the_command_line_acts_in_the_name_of_whoever_uses_it() -> None:
    actor = Actor.command_line("ann" * 100)
    assert actor.name.startswith("command line: ann")
    assert len(actor.name) == 150
    assert actor.user is None
    assert all(actor.may(permission) for permission in StaffPermission)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["failed", "in_doubt", "waiting_for_approval", "rewound", "done", "lost"])
def test_a_viewer_is_offered_no_dialog_that_their_role_refuses(client: Client, state: str) -> None:
    session = builders.STATES[state]()
    client.force_login(builders.user("viewer"))
    pages = [
        f"/sessions/{session.pk}/{tab}"
        for tab in ("", "conversation/", "state/", "checkpoints/", "memories/")
    ]
    pages += [f"/sessions/{session.pk}/branches/1/"] if state == "rewound" else []
    for page in ["/inbox/", "/?queue=all", *pages]:
        answer = client.get(page)
        assert answer.status_code == 200, page
        assert re.findall(r'hx-get="(/sessions/[^"]*)"[^>]*dialog-body', answer.content.decode()) == [], page


@pytest.mark.slow
def test_the_advice_of_a_failure_says_to_a_viewer_that_their_role_does_not_allow_it(client: Client) -> None:
    builders.failed()
    client.force_login(builders.user("viewer"))
    page = client.get("/inbox/").content.decode()
    assert "Resuming needs the operator or supervisor role." in page
    assert not re.search(r">(Try again|Rewind)…?<", page)
    client.force_login(builders.user("operator"))
    assert re.search(r"hx-get=[^>]*>(Try again|Rewind)…</a>", client.get("/inbox/").content.decode())


@pytest.mark.parametrize(
    "key, doing",
    [
        ("release", "Releasing a session"),
        ("undo", "Undoing"),
        ("note", "Adding a note"),
        ("cancel", "Ending a session"),
        ("pause", "Pausing"),
    ],
)
def test_a_refusal_names_the_action_that_was_asked_for(client: Client, key: str, doing: str) -> None:
    session = builders.running()
    client.force_login(builders.user("viewer"))
    fields = {"reason": "Rain", "text": "Rain", "version": session.version}
    answer = client.post(f"/sessions/{session.pk}/{key}/", fields)
    assert answer.status_code == 403
    assert f"{doing} needs the " in answer.content.decode()
