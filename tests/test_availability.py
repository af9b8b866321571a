"""What may be done with a session in each of its states: every rule, against a table written by hand."""

from datetime import UTC, datetime, timedelta

import pytest

from sessions_app.action_list import ACTIONS
from sessions_app.models import Approval, Checkpoint, RegisteredAgent, Session, ToolCall
from tests import builders
from tests.refusals import NEEDS_AGENT, PERMISSIONS, REFUSALS, refusal

pytestmark = pytest.mark.django_db

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_the_table_covers_every_action_and_every_state() -> None:
    assert REFUSALS.keys() == PERMISSIONS.keys() == ACTIONS.keys()
    assert {state for states in REFUSALS.values() for state in states} == builders.STATES.keys()


@pytest.mark.parametrize("state", builders.STATES)
def test_each_action_is_possible_exactly_in_the_states_of_the_table(state: str) -> None:
    session = builders.STATES[state]()
    answers = {key: action.impossible(session) for key, action in ACTIONS.items()}
    assert answers == {key: refusal(key, state) for key in ACTIONS}


@pytest.mark.parametrize("state", builders.STATES)
def test_what_lets_an_agent_continue_is_refused_where_the_agent_cannot_be_built(state: str) -> None:
    session = builders.STATES[state]()
    RegisteredAgent.objects.update(problem="SyntaxError: invalid syntax (claims.py, line 3)")
    problem = "Its agent cannot be built: SyntaxError: invalid syntax (claims.py, line 3)."
    session = Session.objects.select_related("branch").get(pk=session.pk)
    answers = {key: action.impossible(session) for key, action in ACTIONS.items()}
    assert answers == {
        key: problem if state in NEEDS_AGENT.get(key, ()) else refusal(key, state) for key in ACTIONS
    }


def test_the_problem_of_an_agent_is_one_sentence_whether_it_ends_with_a_full_stop_or_not() -> None:
    session = builders.paused()
    RegisteredAgent.objects.update(problem="OPENAI_API_KEY is not set.")
    session = Session.objects.select_related("branch").get(pk=session.pk)
    assert ACTIONS["resume"].impossible(session) == "Its agent cannot be built: OPENAI_API_KEY is not set."


def test_an_agent_that_no_worker_has_cannot_run() -> None:
    session = builders.paused()
    RegisteredAgent.objects.all().delete()
    session = Session.objects.select_related("branch").get(pk=session.pk)
    assert ACTIONS["resume"].impossible(session) == "Its agent cannot run: no worker has an agent “claims”."


@pytest.mark.parametrize("key", PERMISSIONS)
def test_each_action_needs_the_permission_of_the_table(key: str) -> None:
    session = builders.paused()
    assert ACTIONS[key].permission == PERMISSIONS[key]
    assert ACTIONS[key].why_not(session, builders.actor(None)).endswith("supervisor role.")


def test_a_delayed_session_can_be_resumed_until_it_is_due() -> None:
    session = builders.retrying()
    assert session.next_run_at is not None
    before, at = session.next_run_at - timedelta(seconds=1), session.next_run_at
    assert ACTIONS["resume"].impossible(session, now=before) == ""
    assert (
        ACTIONS["resume"].impossible(session, now=at)
        == "It is already queued and starts as soon as a worker is free."
    )


@pytest.mark.parametrize("key", ["rewind", "fork"])
def test_a_checkpoint_inside_a_step_is_no_place_to_leave_from(key: str) -> None:
    session = builders.paused()
    checkpoint = Checkpoint.objects.filter(branch=session.branch).first()
    assert checkpoint is not None
    for kind in ("start", "step", "end"):
        checkpoint.kind = kind
        assert ACTIONS[key].impossible(session, checkpoint=checkpoint) == ""
    checkpoint.kind = "prepared"
    sentence = "This checkpoint is mid-step. Choose the start of a step."
    assert ACTIONS[key].impossible(session, checkpoint=checkpoint) == sentence


@pytest.mark.parametrize(
    "status, label",
    [
        ("planned", "asked for"),
        ("started", "running"),
        ("done", "done"),
        ("failed", "failed"),
        ("rejected", "rejected"),
        ("skipped", "skipped"),
    ],
)
def test_only_a_call_in_doubt_is_decided(status: str, label: str) -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(branch=session.branch, status="doubt")
    assert ACTIONS["decide"].impossible(session, call=call) == ""
    call.status = status
    assert ACTIONS["decide"].impossible(session, call=call) == f"This call is not in doubt: it is {label}."


def test_a_call_of_a_discarded_branch_is_not_decided() -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(branch=session.branch, status="doubt")
    call.branch_id = 0
    sentence = "This call is in discarded history: the session continues without it."
    assert ACTIONS["decide"].impossible(session, call=call) == sentence


@pytest.mark.parametrize("state", ["running", "cancelled", "done"])
def test_a_call_in_doubt_is_decided_while_no_worker_can_run_it(state: str) -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(branch=session.branch, status="doubt")
    session.status = {"running": "running", "cancelled": "cancelled", "done": "idle"}[state]
    assert ACTIONS["decide"].impossible(session, call=call) == refusal("decide", state)


def open_approval(session: Session) -> Approval:
    return Approval.objects.select_related("call").get(session=session)


@pytest.mark.parametrize("key", ["approve", "reject", "reuse"])
def test_an_approval_is_answered_once_in_time_and_on_the_current_branch(key: str) -> None:
    session = builders.waiting_for_approval()
    action = ACTIONS[key]
    assert action.impossible(session, approval=open_approval(session)) == ""

    late = open_approval(session)
    late.expires_at = NOW
    assert action.impossible(session, approval=late, now=NOW - timedelta(seconds=1)) == ""
    assert action.impossible(session, approval=late, now=NOW) == "The approval has expired."

    decided = open_approval(session)
    decided.decision, decided.decided_by = "rejected", "olga"
    assert action.impossible(session, approval=decided) == "It was already rejected by olga."
    decided.decided_by = ""
    assert action.impossible(session, approval=decided) == "It was already rejected."
    decided.expires_at = NOW
    assert action.impossible(session, approval=decided, now=NOW) == "It was already rejected."
    decided.decided_at = datetime(2020, 2, 3, 4, 1, tzinfo=UTC)
    assert action.impossible(session, approval=decided, now=NOW) == (
        "It was already rejected on 03 Feb 2020 at 04:01."
    )

    discarded = open_approval(session)
    discarded.call.branch_id = 0
    sentence = "This call is in discarded history: the session continues without it."
    assert action.impossible(session, approval=discarded) == sentence


@pytest.mark.parametrize("key", ["approve", "reject", "reuse"])
@pytest.mark.parametrize("state", ["running", "cancelled", "done"])
def test_an_approval_is_answered_while_no_worker_can_run_the_call(state: str, key: str) -> None:
    session = builders.waiting_for_approval()
    approval = open_approval(session)
    session.status = {"running": "running", "cancelled": "cancelled", "done": "idle"}[state]
    assert ACTIONS[key].impossible(session, approval=approval) == refusal(key, state)
