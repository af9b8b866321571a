"""Every action is refused exactly in the states of `tests.refusals`, and a refusal changes nothing."""

import inspect
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import connection, transaction

from sessions_app import actions
from sessions_app.access.errors import Forbidden, Invalid, Moved, NotFound, Refused
from sessions_app.access.roles import Actor
from sessions_app.action_list import ACTIONS
from sessions_app.models import Approval, BulkAction, Checkpoint, Session, ToolCall
from tests import builders
from tests.databases import everything
from tests.refusals import PERMISSIONS, refusal

pytestmark = pytest.mark.django_db

# Every action that asks for nothing but a reason, and those that ask for more and are not repairs.
VERBS: dict[str, Callable[..., Session]] = {
    **{action.key: function for action, function in actions.BY_REASON.items()},
    "message": actions.send_message,
    "breakpoint": actions.set_breakpoint,
    "rewind": actions.rewind,
    "fork": actions.fork,
    "decide": actions.decide,
    "approve": actions.approve,
    "reject": actions.reject,
    "assign": actions.assign,
}
REPAIRS: dict[str, tuple[Callable[..., Session], dict[str, Any]]] = {
    "memory": (actions.edit_memory, {"goal": "", "plan": [], "completed": [], "notes": []}),
    "state-value": (actions.edit_state, {"values": {}}),
    "message-text": (actions.replace_message, {"position": 1, "text": "No."}),
    "answer": (actions.answer_call, {"call_id": 0, "result": "No."}),
    "step": (actions.answer_step, {"results": {}}),
}
# A note is possible in every state. The others need rows that no state of the table has; tests/test_actions_calls.py
# has their refusals, tests/test_desk_breakpoints.py those of breakpoints, tests/test_memory_entries.py those of the
# long-term memory.
ELSEWHERE = {"note", "reuse", "withdraw", "remove-breakpoint", "arguments", "edit-entry", "erase-entry"}
WITHOUT_REASON = {"message", "approve", "reject", "assign", "breakpoint"}


def has_row(session: Session, action: str) -> bool:
    """Whether the session has the checkpoint, call or approval that the action is about."""
    calls = ToolCall.objects.filter(branch=session.branch)
    if action in ("rewind", "fork"):
        return Checkpoint.objects.visible_on(session.current_branch).exists()
    if action == "decide":
        return calls.exists()
    if action in ("approve", "reject"):
        return Approval.objects.filter(call__in=calls).exists()
    return True


def arguments(session: Session, action: str) -> dict[str, Any]:
    call = ToolCall.objects.filter(branch=session.branch).last()
    checkpoint = Checkpoint.objects.visible_on(builders.branch_of(session)).first()
    given: dict[str, dict[str, Any]] = {
        "message": {"text": "And my wing mirror?"},
        "rewind": {"checkpoint_id": checkpoint.pk if checkpoint else 0},
        "fork": {"checkpoint_id": checkpoint.pk if checkpoint else 0},
        "decide": {"call_id": call.pk if call else 0, "again": True},
        "approve": {"call_id": call.pk if call else 0},
        "reject": {"call_id": call.pk if call else 0, "message": "Ask the branch office."},
        "assign": {"assignee": None},
    }
    return given.get(action, {})


def sentence(session: Session, action: str, state: str) -> str:
    """The refusal of the table; of a call that is not in doubt, what it is comes before what the session is."""
    call = ToolCall.objects.filter(branch=session.branch).last()
    if action == "decide" and state == "waiting_for_approval":
        return "This call is not in doubt: it waits for approval."
    if action == "decide" and call is not None and call.status != "doubt":
        label = {"planned": "asked for", "started": "running", "done": "done"}[call.status]
        return f"This call is not in doubt: it is {label}."
    return refusal(action, state)


def possible(state: str, action: str) -> bool:
    return state in POSSIBLE[action] if action in POSSIBLE else refusal(action, state) == ""


# For the actions that are about a row that only these states have.
POSSIBLE = {
    "decide": {"in_doubt"},
    "approve": {"waiting_for_approval"},
    "reject": {"waiting_for_approval"},
    "rewind": builders.STATES.keys() - {"queued"},
    "fork": builders.STATES.keys() - {"queued"},
}


def in_a_possible_state(action: str) -> Session:
    return builders.STATES[next(state for state in builders.STATES if possible(state, action))]()


@pytest.mark.slow
@pytest.mark.parametrize("action", VERBS)
@pytest.mark.parametrize("state", builders.STATES)
def test_an_action_is_refused_exactly_in_the_states_of_the_table(state: str, action: str) -> None:
    session = builders.STATES[state]()
    request = {
        "actor": builders.SYSTEM,
        "session_id": session.pk,
        "reason": "why not",
        **arguments(session, action),
    }
    before = everything()
    if possible(state, action):
        VERBS[action](**request)
        assert everything() != before
    elif not has_row(session, action):
        with pytest.raises(NotFound):
            VERBS[action](**request)
    else:
        with pytest.raises(Refused) as refused:
            VERBS[action](**request)
        assert str(refused.value) == sentence(session, action, state)
        assert refused.value.status == 409
        assert everything() == before


@pytest.mark.parametrize("actor", ["me", None, AnonymousUser()], ids=["a name", "None", "a user"])
def test_what_is_no_actor_is_refused_by_every_action_with_what_to_give(actor: Any) -> None:
    bulk = BulkAction.objects.create(kind="pause", actor=builders.user("supervisor", "sue"), reason="why not")
    given = {"kind": "pause", "bulk_id": bulk.pk}
    before, asked = everything(), set()
    for name, function in vars(actions).items():
        parameters = inspect.signature(function).parameters if inspect.isfunction(function) else {}
        if "actor" not in parameters:
            continue
        required = [each for each, parameter in parameters.items() if parameter.default is parameter.empty]
        if function in actions.BY_REASON.values():  # wrapped, with the signature of what it wraps
            required = ["session_id", "reason"]
        with pytest.raises(TypeError, match=r"is an Actor of .*, not .*Actor\.of\(user\).*Actor\.system"):
            function(**{each: given.get(each) for each in required} | {"actor": actor})
        asked.add(name)
    assert everything() == before
    assert asked >= {
        "start",
        "pause",
        "decide_all",
        "write_state",
        "bulk_fitting",
        "bulk_stop",
        "save_view",
        "reveal",
    }


def test_every_action_is_called_in_every_state_where_it_may_be_refused() -> None:
    assert VERBS.keys() | REPAIRS.keys() | ELSEWHERE == ACTIONS.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "state, action",
    [(state, action) for action in REPAIRS for state in builders.STATES if refusal(action, state)],
)
def test_a_repair_is_refused_in_the_states_of_the_table(state: str, action: str) -> None:
    session = builders.STATES[state]()
    function, given = REPAIRS[action]
    before = everything()
    with pytest.raises(Refused) as refused:
        function(actor=builders.SYSTEM, session_id=session.pk, reason="why not", **given)
    assert str(refused.value) == refusal(action, state)
    assert everything() == before


@pytest.mark.parametrize("action", VERBS)
def test_every_action_is_possible_in_some_state(action: str) -> None:
    assert any(possible(state, action) for state in builders.STATES)


@pytest.mark.slow
@pytest.mark.parametrize("action", VERBS)
def test_a_session_that_moved_since_it_was_seen_is_left_alone(action: str) -> None:
    session = builders.waiting_for_approval()
    before = everything()
    with pytest.raises(Moved, match="changed since") as refusal:
        VERBS[action](
            actor=builders.SYSTEM,
            session_id=session.pk,
            reason="why not",
            expected_version=session.version - 1,
            **arguments(session, action),
        )
    assert refusal.value.status == 409
    assert everything() == before


@pytest.mark.parametrize("action", VERBS)
def test_the_version_that_was_seen_is_accepted_and_then_over(action: str) -> None:
    session = in_a_possible_state(action)
    seen = session.version
    VERBS[action](
        actor=builders.SYSTEM,
        session_id=session.pk,
        reason="why not",
        expected_version=seen,
        **arguments(session, action),
    )
    session.refresh_from_db()
    assert session.version == seen + 1


@pytest.mark.parametrize("reason", ["", "  \n"])
@pytest.mark.parametrize("action", sorted(set(VERBS) - WITHOUT_REASON))
def test_a_missing_reason_is_refused(action: str, reason: str) -> None:
    session = builders.paused()
    before = everything()
    with pytest.raises(Invalid, match="The reason is missing"):
        VERBS[action](
            actor=builders.SYSTEM, session_id=session.pk, reason=reason, **arguments(session, action)
        )
    assert everything() == before


@pytest.mark.parametrize("action", VERBS)
def test_a_viewer_may_do_nothing(action: str) -> None:
    session = builders.waiting_for_approval()
    viewer = builders.actor("viewer")
    before = everything()
    with pytest.raises(Forbidden, match=r" needs the .*role\.") as refusal:
        VERBS[action](actor=viewer, session_id=session.pk, reason="why not", **arguments(session, action))
    assert refusal.value.status == 403
    assert everything() == before


@pytest.mark.parametrize("action", sorted(VERBS.keys() - {"release"}))
def test_an_operator_may_do_every_action_but_release(action: str) -> None:
    session = in_a_possible_state(action)
    VERBS[action](
        actor=builders.actor("operator"),
        session_id=session.pk,
        reason="why not",
        **arguments(session, action),
    )
    assert Session.objects.get(pk=session.pk).version > session.version


@pytest.mark.parametrize("action", VERBS)
def test_what_a_permission_allows_nothing_else_does(action: str) -> None:
    """Each action asks for its own permission: all others together do not do."""
    from django.contrib.auth.models import Permission

    user = builders.user(role=None)
    user.user_permissions.set(Permission.objects.exclude(codename=PERMISSIONS[action]))
    session = builders.waiting_for_approval()
    with pytest.raises(Forbidden):
        VERBS[action](
            actor=Actor.of(user), session_id=session.pk, reason="why not", **arguments(session, action)
        )


@pytest.mark.slow
@pytest.mark.parametrize("session_id", [uuid4(), "no uuid", ""])
@pytest.mark.parametrize("action", VERBS)
def test_an_unknown_session_is_not_found(action: str, session_id: object) -> None:
    session = builders.paused()
    with pytest.raises(NotFound, match="There is no session") as refusal:
        VERBS[action](
            actor=builders.SYSTEM, session_id=session_id, reason="why not", **arguments(session, action)
        )
    assert refusal.value.status == 404


@pytest.mark.parametrize("action", VERBS)
def test_every_action_leaves_one_event_that_says_who_and_why(action: str) -> None:
    session = in_a_possible_state(action)
    actor = builders.actor("supervisor")
    events = session.events.count()
    VERBS[action](
        actor=actor, session_id=session.pk, reason="the customer asked", **arguments(session, action)
    )
    session.refresh_from_db()
    event = session.events.last()
    assert session.events.count() == events + 1
    assert event is not None
    assert (event.actor, event.actor_name, event.reason) == (actor.user, actor.name, "the customer asked")
    assert event.position == session.position
    assert event.branch_id == session.branch_id


def test_an_action_inside_another_transaction_is_a_mistake_of_the_programmer(transactional_db: None) -> None:

    session = builders.paused()
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        actions.resume(actor=builders.SYSTEM, session_id=session.pk, reason="go")
    assert not connection.in_atomic_block
