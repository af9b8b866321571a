"""Repairs: what the agent goes on with is another, what was is kept, and nothing is asked or run twice."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.forms.models import model_to_dict
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentstate.domain import AgentState
from sessions_app import actions
from sessions_app.access.errors import Forbidden, Invalid, Moved, NotFound, Refused
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.action_list import REPLACE_MESSAGE
from sessions_app.desk.pages.session import state
from sessions_app.history import restore
from sessions_app.models import (
    Approval,
    Branch,
    CallStatus,
    Checkpoint,
    InboxMessage,
    Message,
    ModelCall,
    Phase,
    Session,
    StateValue,
    Status,
    ToolCall,
    WaitingFor,
)
from tests import builders
from tests.builders import SYSTEM, History, branch_of, fresh
from tests.databases import everything

pytestmark = pytest.mark.django_db

STATE: dict[str, Any] = {
    "customer": "Ada",
    "limit": 500,
    "vip": False,
    "offers": ["A"],
    "account": {"id": 7},
    "nothing": None,
    "due": {"$type": "date", "value": "2026-03-01"},
}
MEMORY = {
    "goal": "Refund it",
    "plan": ["Look up", "Refund"],
    "notes": ["POL-7 is glass"],
    "completed": ["Look up"],
}


def keep(history: History, **values: Any) -> None:
    """The state keys have these values at the last checkpoint."""
    checkpoint = history.last_checkpoint
    for key, value in values.items():
        StateValue.objects.create(
            branch=checkpoint.branch, position=checkpoint.position, key=key, value=value
        )
    checkpoint.keys = {**checkpoint.keys, **dict.fromkeys(values, checkpoint.position)}
    checkpoint.save()


def with_state(status: str = "paused") -> Session:
    history = builders.looked_up()
    keep(history, **STATE, working_memory=MEMORY)
    return history.rest(status)


def refunding(status: str = "paused", **fields: Any) -> tuple[Session, ToolCall]:
    """In the middle of a step: a call has been asked for, and another of the same reply has been done."""
    history = builders.looked_up()
    keep(history, **STATE, working_memory=MEMORY)
    history.reply(
        calls=[
            ("lookup_policy", {"policy": "POL-9"}),
            ("issue_refund", {"claim": "CLM-1042", "amount": 120}),
        ]
    )
    history.finish(history.calls[0], "active")
    return history.rest(status, **fields), history.calls[1]


def present(session: Session) -> tuple[Branch, Checkpoint]:
    """The branch that the session is on, and its newest checkpoint."""
    branch = branch_of(fresh(session))
    checkpoint = restore.last_visible(Checkpoint, branch)
    assert checkpoint is not None
    return branch, checkpoint


def values(session: Session) -> dict[str, Any]:
    return restore.state_of(*present(session))


def seen(session: Session) -> list[str]:
    """What the model sees, message by message."""
    base = restore.read(branch_of(fresh(session))).checkpoint
    assert base is not None
    return [_words(message.body) for message in base.context]


def _words(body: dict[str, Any]) -> str:
    for part in body["content"]:
        if "text" in part:
            return str(part["text"])
        if "tool_call_result" in part:
            return str(part["tool_call_result"]["result"])
    return ""


def calls(session: Session) -> list[ToolCall]:
    """The calls of the unfinished step."""
    branch, checkpoint = present(session)
    return list(ToolCall.objects.visible_on(branch, after=checkpoint.position).order_by("position"))


def edit_state(session: Session, **how: Any) -> Session:
    return actions.edit_state(
        **{
            "actor": SYSTEM,
            "session_id": session.pk,
            "values": {"customer": "Bob"},
            "reason": "He is Bob",
            **how,
        }
    )


def edit_memory(session: Session, **how: Any) -> Session:
    return actions.edit_memory(
        **{"actor": SYSTEM, "session_id": session.pk, "reason": "A better plan", **MEMORY, "notes": [], **how}
    )


def replace_message(session: Session, **how: Any) -> Session:
    if "position" not in how:
        said = Message.objects.filter(branch__session=session, role="user")
        how["position"] = said.latest("position").position
    given = {"text": "Is it covered by POL-8?", "reason": "Wrong policy"}
    return actions.replace_message(**{"actor": SYSTEM, "session_id": session.pk, **given, **how})


def answer_call(session: Session, **how: Any) -> Session:
    if "call_id" not in how:
        how["call_id"] = ToolCall.objects.filter(branch=session.branch).latest("position").pk
    if not how.keys() & {"result", "skip"}:
        how["result"] = "refunded"
    return actions.answer_call(
        **{"actor": SYSTEM, "session_id": session.pk, "reason": "I paid it by hand", **how}
    )


def answer_step(session: Session, **how: Any) -> Session:
    if "results" not in how:
        open_calls = ToolCall.objects.filter(branch=session.branch, ended_at=None)
        how["results"] = {call.pk: f"{call.tool} by hand" for call in open_calls}
    return actions.answer_step(
        **{"actor": SYSTEM, "session_id": session.pk, "reason": "I did it by hand", **how}
    )


REPAIRS: dict[str, Callable[..., Session]] = {
    repair.__name__: repair for repair in (edit_state, edit_memory, replace_message, answer_call, answer_step)
}
every_repair = pytest.mark.parametrize("repair", REPAIRS.values(), ids=list(REPAIRS))


# What all have in common


@every_repair
def test_a_repair_changes_no_row_that_was_there(repair):
    session, _ = refunding()
    before = everything()
    repair(session)
    after = everything()
    for name in before.keys() - {"Session", "Branch"}:
        assert after[name][: len(before[name])] == before[name], name
    # Of the branch that was left only what `undo` needs is noted.
    left = [{**row, "left_state": None} for row in after["Branch"][: len(before["Branch"])]]
    assert left == before["Branch"]


@every_repair
def test_a_repair_makes_a_branch_of_its_own_and_says_who_and_why(repair):
    session, _ = refunding()
    actor = builders.actor("supervisor")
    old, base = present(session)
    repair(session, actor=actor, reason="  because it was wrong ")
    after, (new, checkpoint) = fresh(session), present(session)
    assert (new.number, new.parent, new.undo_to, new.left_at) == (2, old, old, base.position)
    assert (new.created_by, new.reason) == (actor.user, "because it was wrong")
    assert (checkpoint.kind, checkpoint.step, checkpoint.phase) == (base.kind, base.step, base.phase)
    assert (checkpoint.totals, checkpoint.counters) == (base.totals, base.counters)
    assert (after.status, after.why) == (Status.PAUSED, "because it was wrong")
    assert after.version == session.version + 1
    event = after.events.last()
    assert event is not None
    assert (event.kind, event.actor, event.reason) == ("repaired", actor.user, "because it was wrong")
    assert event.data["what"] == {
        "edit_state": "state",
        "edit_memory": "state",
        "replace_message": "message",
        "answer_call": "call",
        "answer_step": "step",
    }.get(repair.__name__)
    assert (event.data["from_branch"], event.data["to_branch"]) == (1, 2)
    assert event.data["checkpoint"] == checkpoint.pk


@every_repair
def test_what_the_step_had_done_is_carried_over_and_nothing_is_asked_or_run_again(repair):
    session, _ = refunding()
    before = restore.read(branch_of(session))
    repair(session)
    after = restore.read(branch_of(fresh(session)))
    assert [(reply.name, reply.seq) for reply in after.replies] == [
        (reply.name, reply.seq) for reply in before.replies
    ]
    assert [[m.body for m in reply.messages] for reply in after.replies] == [
        [m.body for m in reply.messages] for reply in before.replies
    ]
    assert [(call.call_id, call.tool, call.idempotency_key, call.attempt) for call in after.calls] == [
        (call.call_id, call.tool, call.idempotency_key, call.attempt) for call in before.calls
    ]
    assert (after.calls[0].status, after.calls[0].result) == ("done", "active")


@pytest.mark.slow
@every_repair
def test_a_repair_is_undone_like_a_rewind(repair):
    session, _ = refunding()
    before = values(session), seen(session), [call.status for call in calls(session)]
    repair(session)
    actions.undo(actor=SYSTEM, session_id=session.pk, reason="it was right")
    assert (values(session), seen(session), [call.status for call in calls(session)]) == before
    assert branch_of(fresh(session)).number == 1


@every_repair
def test_repairs_follow_one_another(repair):
    session, _ = refunding()
    edit_state(session, values={"limit": 100})
    repair(fresh(session))
    assert values(session)["limit"] == 100
    assert branch_of(fresh(session)).number == 3


@every_repair
@pytest.mark.parametrize("status", ["running", "cancelled"])
def test_what_runs_or_is_over_is_not_repaired(repair, status):
    session, _ = refunding(status)
    before = everything()
    with pytest.raises(Refused, match="pause it first" if status == "running" else "cancelled"):
        repair(session)
    assert everything() == before


@pytest.mark.parametrize(
    "repair, given",
    [
        (edit_state, {}),
        (edit_memory, {}),
        (replace_message, {"position": 1}),
        (answer_call, {"call_id": 1}),
        (answer_step, {}),
    ],
)
def test_nothing_can_be_repaired_before_it_has_begun(repair, given):
    session = builders.queued()
    before = everything()
    with pytest.raises(Invalid, match="has not started yet"):
        repair(session, **given)
    assert everything() == before


@every_repair
@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_only_supervisors_repair(repair, role):
    session, _ = refunding()
    before = everything()
    with pytest.raises(Forbidden, match="needs the supervisor role"):
        repair(session, actor=builders.actor(role))
    after = everything()
    assert after == before


@every_repair
@pytest.mark.parametrize("reason", ["", " \n", "\x00"])
def test_a_repair_needs_a_reason(repair, reason):
    session, _ = refunding()
    before = everything()
    with pytest.raises(Invalid, match="The reason"):
        repair(session, reason=reason)
    assert everything() == before


@every_repair
def test_a_session_that_moved_since_it_was_seen_is_left_alone(repair):
    session, _ = refunding()
    before = everything()
    with pytest.raises(Moved):
        repair(session, expected_version=session.version - 1)
    assert everything() == before
    repair(session, expected_version=session.version)


@every_repair
def test_a_worker_that_still_believes_to_hold_it_is_fenced_off(repair):
    session, _ = refunding("queued")
    repair(session)
    after = fresh(session)
    assert after.epoch == session.epoch + 1
    assert (after.status, after.next_run_at) == (Status.PAUSED, None)


@pytest.mark.slow
@every_repair
def test_the_cost_does_not_depend_on_how_long_the_history_is(repair):
    counts = []
    for steps in (1, 30):
        history = builders.looked_up()
        for _ in range(steps):
            history.lookup()
        keep(history, **STATE, working_memory=MEMORY)
        history.reply(calls=[("issue_refund", {"claim": "CLM-1042", "amount": 120})])
        session = history.rest("paused")
        position = Message.objects.filter(branch=session.branch, role="user").latest("position").position
        given = {"position": position} if repair is replace_message else {}
        with CaptureQueriesContext(connection) as queries:
            repair(session, **given)
        counts.append(len(queries))
    assert counts[0] == counts[1] < 35


# The state of the system afterwards


def test_a_call_in_doubt_still_waits_for_its_decision_after_a_repair():
    history = builders.refunding()
    keep(history, **STATE)
    history.doubt(history.calls[-1])
    session = history.rest("waiting", waiting_for=WaitingFor.DOUBT, why="Nobody knows.")
    edit_state(session)
    after = fresh(session)
    assert (after.status, after.waiting_for, after.why) == (Status.WAITING, WaitingFor.DOUBT, "Nobody knows.")
    [call] = calls(session)
    actions.decide(actor=SYSTEM, session_id=session.pk, call_id=call.pk, reason="I asked", result="paid")
    assert fresh(session).status == Status.QUEUED


def test_a_call_that_had_begun_when_its_worker_was_lost_is_in_doubt_on_the_new_branch():
    history = builders.refunding()
    keep(history, **STATE)
    history.begin(history.calls[-1])
    session = history.rest("paused")
    edit_state(session)
    assert [call.status for call in calls(session)] == [CallStatus.DOUBT]
    assert fresh(session).waiting_for == WaitingFor.DOUBT


def waiting_for_approval() -> tuple[Session, Approval]:
    history = builders.refunding()
    keep(history, **STATE)
    approval = history.ask(history.calls[-1], expires_at=timezone.now())
    return history.rest(
        "waiting", waiting_for=WaitingFor.APPROVAL, why="issue_refund needs approval."
    ), approval


def test_an_open_approval_is_asked_on_the_new_branch_as_it_was():
    session, asked = waiting_for_approval()
    edit_state(session)
    after = fresh(session)
    assert (after.status, after.waiting_for, after.why) == (Status.WAITING, "approval", session.why)
    copied = Approval.objects.get(call__branch=after.branch)
    same = {"arguments", "fingerprint", "decision", "edited", "message", "decided_by", "expires_at"}
    assert model_to_dict(copied, same) == model_to_dict(asked, same)
    assert copied.asked_at == asked.asked_at


def test_a_decided_approval_stays_decided():
    session, _ = waiting_for_approval()
    Approval.objects.update(
        expires_at=None,
        decision="approved",
        edited={"claim": "CLM-1042", "amount": 7},
        decided_at=timezone.now(),
        decided_by="berta",
    )
    session = Session.objects.get(pk=session.pk)
    edit_state(session)
    copied = Approval.objects.get(call__branch=fresh(session).branch)
    assert (copied.decision, copied.edited, copied.decided_by) == (
        "approved",
        {"claim": "CLM-1042", "amount": 7},
        "berta",
    )
    assert copied.decided_at is not None
    assert fresh(session).status == Status.PAUSED


def test_a_call_that_is_answered_needs_no_approval_any_more():
    session, _ = waiting_for_approval()
    answer_call(session)
    after = fresh(session)
    assert (after.status, after.waiting_for) == (Status.PAUSED, "")
    assert not Approval.objects.filter(call__branch=after.branch).exists()


def test_a_failed_session_can_go_on_after_a_repair():
    history = builders.looked_up()
    keep(history, **STATE)
    history.model_fails()
    history.enter("error")
    session = history.rest("idle", error="BadRequestError: the customer's name is not allowed")
    edit_state(session)
    after = fresh(session)
    assert (after.status, after.phase, after.error) == (Status.PAUSED, Phase.REFLECTING, "")


def left_and_entered(session: Session) -> dict[str, int]:
    """By phase, how many times more it was entered than left, where that is not what the session's phase says."""
    edges = [edge.split(">") for edge, n in session.totals["edges"].items() for _ in range(n)]
    more = Counter(target for _, target in edges)
    more.subtract(source for source, _ in edges)
    more.subtract({session.phase: 1, "idle": -1})
    return {phase: n for phase, n in more.items() if n}


@pytest.mark.parametrize("phase", [Phase.REFLECTING, Phase.EXECUTING])
def test_a_failed_session_that_is_repaired_is_in_the_phase_before_and_no_error_is_counted(phase):
    history = builders.looked_up()
    keep(history, **STATE)
    if phase == Phase.EXECUTING:
        history.reply(calls=[("issue_refund", {"claim": "CLM-1042", "amount": 120})])
    history.enter("error")
    session = history.rest("idle", error="It broke")
    assert left_and_entered(session) == {}
    edit_state(session)
    after = fresh(session)
    assert (after.phase, after.error) == (phase, "")
    assert left_and_entered(after) == {}
    assert "error" not in after.totals["visits"]
    actions.undo(actor=SYSTEM, session_id=session.pk, reason="Not so")
    assert (fresh(session).phase, fresh(session).totals) == (Phase.ERROR, session.totals)


def test_a_conversation_written_into_a_step_has_the_totals_and_the_phase_of_its_start():
    session, _ = refunding()
    state = AgentState.of(session)
    _, checkpoint = present(session)
    written = replace(state, history=(replace(state.history[0], content="Hello"), *state.history[1:]))
    actions.write_state(actor=SYSTEM, session_id=session.pk, state=written, reason="Polite")
    after = fresh(session)
    assert session.phase == Phase.EXECUTING
    assert (after.status, after.phase, after.totals) == (
        Status.PAUSED,
        checkpoint.phase,
        checkpoint.totals,
    )
    assert left_and_entered(after) == {}


def test_a_call_whose_failure_a_person_answers_is_no_longer_counted_as_an_error():
    history = builders.looked_up()
    history.reply(calls=[("lookup_policy", {"policy": "POL-9"}), ("send_letter", {})])
    failed = history.finish(history.calls[0], error="No answer")
    session = history.rest("paused")
    assert session.totals["tool_errors"] == 1
    answer_call(session, call_id=failed.pk, result="active")
    totals = fresh(session).totals
    assert "tool_errors" not in totals
    assert totals["tool_calls"] == session.totals["tool_calls"]


def test_a_finished_session_is_finished_after_a_repair():
    session = builders.done()
    replace_message(session)
    after = fresh(session)
    assert (after.status, after.phase, after.final_answer) == (Status.IDLE, Phase.DONE, session.final_answer)


def test_a_corrected_answer_is_the_answer_of_the_session_until_an_undo():
    session = builders.done()
    given = Message.objects.get(branch=session.branch, text=session.final_answer)
    replace_message(session, position=given.position, text="No, it is not.")
    after, end = fresh(session), present(session)[1]
    assert (after.status, after.final_answer) == (Status.IDLE, "No, it is not.")
    assert end.outcome == {"final_answer": "No, it is not.", "exit_reason": session.exit_reason}
    assert AgentState.of(after).final_answer == after.final_answer
    source: dict[str, Any] = {
        "actor": SYSTEM,
        "session_id": session.pk,
        "checkpoint_id": end.pk,
        "reason": "Again",
    }
    assert actions.fork(**source).final_answer == "No, it is not."
    actions.undo(actor=SYSTEM, session_id=session.pk, reason="It is")
    assert fresh(session).final_answer == session.final_answer


def test_a_corrected_result_that_ended_the_turn_is_the_answer_of_the_session():
    history = builders.asked()
    history.reply(calls=[("lookup_policy", {"policy": "POL-7"})])
    history.finish(history.calls[-1], "active")
    history.checkpoint("step")
    session = history.end("active")
    told = Message.objects.get(branch=session.branch, role="tool")
    replace_message(session, position=told.position, text="lapsed")
    assert fresh(session).final_answer == "lapsed"


def test_a_conversation_that_is_written_into_a_finished_session_gives_its_answer():
    session = builders.done()
    state = AgentState.of(session)
    for history, answer in (
        ((*state.history[:-1], replace(state.history[-1], content="No.")), "No."),
        (state.history[:-1], ""),
        (state.history, session.final_answer),
    ):
        written = replace(state, history=history)
        actions.write_state(actor=SYSTEM, session_id=session.pk, state=written, reason="Wrong")
        assert fresh(session).final_answer == answer


# In the others the model has said nothing yet.
@pytest.mark.parametrize("state", sorted(builders.STATES.keys() - {"queued", "forked"}))
def test_the_dialog_says_what_the_session_does_after_a_repair(state):
    session = builders.STATES[state]()
    said = REPLACE_MESSAGE.explain(session)
    try:
        replace_message(session)
    except Refused:
        assert state in ("running", "lost", "pausing", "cancelling", "cancelled")
        return
    after = fresh(session)
    assert ("paused, or waits" in said) is (after.status in (Status.PAUSED, Status.WAITING))
    assert "You can undo this." in said or "and you can undo this." in said
    actions.undo(actor=SYSTEM, session_id=session.pk, reason="Not so")


def test_a_follow_up_that_nobody_has_read_yet_is_not_lost_by_a_repair():
    session = builders.done()
    actions.send_message(actor=SYSTEM, session_id=session.pk, text="And the mirror?")
    replace_message(session)
    after = fresh(session)
    assert (after.status, after.phase) == (Status.PAUSED, Phase.PLANNING)
    assert InboxMessage.objects.get(session=session).text == "And the mirror?"
    actions.resume(actor=SYSTEM, session_id=session.pk, reason="go")
    assert fresh(session).status == Status.QUEUED


# State


@pytest.mark.parametrize(
    "key, value",
    [
        ("customer", "Bob"),
        ("limit", 499.5),
        ("vip", True),
        ("offers", []),
        ("account", {"id": 8, "name": "Ä"}),
        ("nothing", {"now": "something"}),
        ("due", {"$type": "date", "value": "2026-04-01"}),
    ],
)
def test_a_state_key_gets_another_value_of_its_type(key, value):
    session = with_state()
    edit_state(session, values={key: value})
    assert values(session) == {**STATE, "working_memory": MEMORY, key: value}
    event = fresh(session).events.last()
    assert event is not None
    assert event.data["keys"] == [key]


def test_several_keys_are_changed_at_once_and_those_given_as_they_were_are_not():
    session = with_state()
    edit_state(session, values={"limit": 1, "vip": True, "customer": "Ada"})
    assert values(session)["limit"] == 1
    assert set(StateValue.objects.filter(branch=fresh(session).branch).values_list("key", flat=True)) == {
        "limit",
        "vip",
    }


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("customer", 7, "customer must be text, not a number"),
        ("limit", "7", "limit must be a number, not text"),
        ("limit", True, "limit must be a number, not true or false"),
        ("vip", 1, "vip must be true or false, not a number"),
        ("offers", {"0": "A"}, "offers must be a list, not an object"),
        ("account", None, "account must be an object, not empty"),
        ("due", "2026-04-01", "due must be a date, not text"),
        ("account", {"$type": "document", "value": {}}, "account must be an object, not a document"),
        ("offers", [{"$type": "gun", "value": 1}], "contains no value of the type 'gun'"),
        (
            "due",
            {"$type": "date"},
            "due is not a valid date: use the format of the current value",
        ),
        ("due", {"$type": "date", "value": "soon"}, "not a valid date"),
        ("due", {"$type": "date", "value": "2026-04-01", "more": 1}, "not a valid date"),
        ("colour", "red", "There is no state key 'colour'. There are: account, customer"),
        ("customer", "A\x00da", "NUL"),
        ("limit", float("nan"), "NaN"),
        ("customer", "Ada", "Nothing was changed"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(key, value, message):
    session = with_state()
    before = everything()
    with pytest.raises(Invalid, match=message):
        edit_state(session, values={key: value})
    assert everything() == before


def test_a_list_that_grew_by_pieces_is_replaced_as_a_whole():
    history = builders.asked()
    keep(history, offers=["A"])
    first = history.last_checkpoint
    history.lookup()
    second = history.last_checkpoint
    StateValue.objects.create(
        branch=second.branch, position=second.position, key="offers", value=["B"], extends=True
    )
    second.keys = {"offers": first.position}
    second.save()
    session = history.rest("paused")
    assert values(session) == {"offers": ["A", "B"]}
    edit_state(session, values={"offers": ["C"]})
    assert values(session) == {"offers": ["C"]}


# Working memory


def test_the_working_memory_is_set():
    session = with_state()
    new = {
        "goal": "Refund all",
        "plan": ["Ask", "Refund"],
        "notes": ["VIP"],
        "completed": ["Ask"],
    }
    edit_memory(session, **new)
    assert values(session)["working_memory"] == new
    assert state.memory(branch_of(fresh(session)), mask=Mask.none()) == state.Memory(
        "Refund all", [("Ask", True), ("Refund", False)], ["VIP"]
    )


def test_an_agent_that_has_made_no_plan_yet_can_be_given_one():
    history = builders.looked_up()
    Checkpoint.objects.filter(pk=history.last_checkpoint.pk).update(tools=["lookup_policy", "make_plan"])
    session = history.rest("paused")
    edit_memory(session)
    assert values(session)["working_memory"]["goal"] == "Refund it"


def test_an_agent_that_keeps_no_memory_is_not_given_one_that_it_could_not_hold():
    with pytest.raises(Invalid, match="keeps no working memory"):
        edit_memory(builders.looked_up().rest("paused"))


def test_a_step_that_the_plan_does_not_have_cannot_be_completed():
    with pytest.raises(Invalid, match="The plan has no step 'Sleep'"):
        edit_memory(with_state(), completed=["Sleep"])


# Messages


def test_the_model_sees_other_words_in_the_same_place():
    session, _ = refunding()
    before = seen(session)
    replace_message(session)
    place = before.index("Is my windscreen covered by POL-7?")
    assert seen(session) == [*before[:place], "Is it covered by POL-8?", *before[place + 1 :]]
    row = Message.objects.get(branch=fresh(session).branch, text="Is it covered by POL-8?")
    assert (row.role, row.author) == ("user", SYSTEM.name)


def test_a_message_can_be_replaced_more_than_once():
    session, _ = refunding()
    replace_message(session)
    again = Message.objects.get(branch=fresh(session).branch, text="Is it covered by POL-8?")
    replace_message(fresh(session), position=again.position, text="And POL-9?")
    assert "And POL-9?" in seen(session)
    assert "Is it covered by POL-8?" not in seen(session)


def test_a_tools_result_is_replaced_and_still_answers_its_call():
    session, _ = refunding()
    told = Message.objects.get(branch=session.branch, role="tool")
    before = restore.read(branch_of(session)).checkpoint
    replace_message(session, position=told.position, text="The policy has lapsed.")
    after = restore.read(branch_of(fresh(session))).checkpoint
    assert before is not None
    assert after is not None
    [old] = [m.body for m in before.context if m.body["role"] == "tool"]
    [new] = [m.body for m in after.context if m.body["role"] == "tool"]
    assert new["content"][0]["tool_call_result"] == {
        **old["content"][0]["tool_call_result"],
        "result": "The policy has lapsed.",
    }


def test_a_result_that_lies_in_the_ledger_only_is_replaced_too():
    history = builders.asked()
    history.reply(calls=[("lookup_policy", {"policy": "POL-7"})])
    history.finish(history.calls[-1], "active")
    history.checkpoint("step")
    session = history.rest("paused")
    told = Message.objects.get(branch=session.branch, role="tool")
    assert told.text == ""
    assert seen(session)[-1] == "active"
    replace_message(session, position=told.position, text="lapsed")
    assert seen(session)[-1] == "lapsed"
    assert ToolCall.objects.get(branch=session.branch).result == "active"


def test_a_corrected_result_is_where_the_session_runs_on_from_and_one_undo_returns():
    history = builders.looked_up()
    first_checkpoint = history.last_checkpoint
    history.lookup("POL-9")
    history.reply("Both are covered.")
    session = history.end("Both are covered.")
    told = Message.objects.filter(branch=session.branch, role="tool").earliest("position")
    before = seen(session)
    replace_message(session, position=told.position, text="It has lapsed.", rewind=True)
    rewound = fresh(session)
    assert (rewound.status, rewound.final_answer) == ("queued", "")
    assert seen(session)[-1] == "It has lapsed."
    assert len(seen(session)) == len(before) - 3
    branch, checkpoint = present(session)
    assert (branch.left_at, checkpoint.kind, checkpoint.step) == (first_checkpoint.position, "step", 1)
    assert calls(session) == []
    event = rewound.events.last()
    assert event is not None
    assert event.description == "replaced the result of lookup_policy, rewound to there and resumed it"
    actions.undo(actor=SYSTEM, session_id=session.pk, reason="It was right")
    assert (fresh(session).status, fresh(session).final_answer) == ("idle", "Both are covered.")
    assert seen(session) == before
    last = fresh(session).events.last()
    assert last is not None
    assert last.description == "undid the repair"


def test_a_correction_that_rewinds_needs_the_permission_for_both_and_a_step_that_read_the_message():
    session = builders.done()
    told = Message.objects.get(branch=session.branch, role="tool")
    person = builders.user("supervisor")
    give = Permission.objects.filter(codename__in=["view_session", "repair_session"])
    person.groups.clear()
    person.user_permissions.set(give)
    repairer = Actor.of(User.objects.get(pk=person.pk))
    with pytest.raises(Forbidden, match="rewind"):
        replace_message(session, position=told.position, rewind=True, actor=repairer)
    said = Message.objects.filter(branch=session.branch, role="assistant").latest("position")
    with pytest.raises(Invalid, match="No step has started since then"):
        replace_message(session, position=said.position, rewind=True)


def test_a_reply_without_words_is_given_some_and_keeps_its_calls():
    session = builders.looked_up().rest("paused")
    reply = Message.objects.get(branch=session.branch, role="assistant")
    call = reply.body["content"][-1]
    Message.objects.filter(pk=reply.pk).update(text="", body={"content": [call]})
    replace_message(session, position=reply.position, text="I look it up.")
    base = restore.read(branch_of(fresh(session))).checkpoint
    assert base is not None
    [body] = [m.body for m in base.context if m.body["role"] == "assistant"]
    assert body["content"] == [{"text": "I look it up."}, call]


def test_a_result_of_several_parts_is_replaced_by_words():
    session = builders.looked_up().rest("paused")
    told = Message.objects.get(branch=session.branch, role="tool")
    told.body["content"][0]["tool_call_result"]["result"] = [{"text": "one"}, {"text": "two"}]
    Message.objects.filter(pk=told.pk).update(text="", body=told.body)
    replace_message(session, position=told.position, text="three")
    assert seen(session)[-1] == "three"


@pytest.mark.parametrize("place", [0, 10_000])
def test_only_what_the_model_sees_can_be_replaced(place):
    session, _ = refunding()
    with pytest.raises(NotFound, match="sees no message"):
        replace_message(session, position=place)


def test_the_reply_of_the_unfinished_step_is_not_replaced():
    session, call = refunding()
    reply = Message.objects.filter(branch=session.branch, role="assistant").latest("position")
    with pytest.raises(NotFound, match="at the last checkpoint"):
        replace_message(session, position=reply.position)
    assert call.branch_id == fresh(session).branch_id


@pytest.mark.parametrize("text", ["", "  ", "a\x00b"])
def test_words_that_cannot_be_stored_are_refused(text):
    with pytest.raises(Invalid, match="The text"):
        replace_message(refunding()[0], text=text)


def test_the_same_words_are_no_repair():
    with pytest.raises(Invalid, match="Nothing was changed"):
        replace_message(refunding()[0], text="Is my windscreen covered by POL-7?")


# Calls


def test_a_replaced_result_says_of_which_call_it_was():
    session, _ = refunding()
    told = Message.objects.get(branch=session.branch, role="tool")
    call = ToolCall.objects.filter(branch=session.branch).earliest("position")
    replace_message(session, position=told.position, text="lapsed")
    event = fresh(session).events.last()
    assert event is not None
    assert (event.data["call"], event.data["tool"], event.data["call_position"]) == (
        call.pk,
        "lookup_policy",
        call.position,
    )


@pytest.mark.parametrize(
    "how, expected",
    [
        ({"result": "refunded"}, (CallStatus.DONE, "refunded", "")),
        ({"skip": "Not today."}, (CallStatus.SKIPPED, None, "Not today.")),
    ],
)
def test_a_person_answers_for_the_tool(how, expected):
    session, _ = refunding()
    answer_call(session, **how)
    done, answered = calls(session)
    assert (answered.status, answered.result, answered.error) == expected
    assert answered.decided_by == SYSTEM.name
    assert answered.ended_at is not None
    assert done.decided_by == ""
    event = fresh(session).events.last()
    assert event is not None
    assert (event.data["tool"], event.data["call_id"]) == ("issue_refund", answered.call_id)


def test_a_call_that_has_ended_is_given_another_answer():
    session, _ = refunding()
    done = calls(session)[0]
    answer_call(session, call_id=done.pk, result="lapsed")
    done.refresh_from_db()
    assert done.result == "active"
    assert calls(session)[0].result == "lapsed"


@pytest.mark.parametrize("how", [{"result": "a", "skip": "b"}, {"result": None, "skip": None}])
def test_exactly_one_answer_is_wanted(how):
    with pytest.raises(Invalid, match="Choose one"):
        answer_call(refunding()[0], **how)


@pytest.mark.parametrize("how", [{"result": " "}, {"skip": ""}, {"result": "\x00"}])
def test_an_answer_that_says_nothing_is_refused(how):
    with pytest.raises(Invalid):
        answer_call(refunding()[0], **how)


def test_a_call_of_a_step_that_is_over_is_not_answered():
    session, _ = refunding()
    old = ToolCall.objects.filter(branch=session.branch).earliest("position")
    with pytest.raises(NotFound, match="Correct its result in the conversation"):
        answer_call(session, call_id=old.pk)


def test_the_call_of_another_session_is_not_answered():
    session, _ = refunding()
    _, theirs = refunding()
    with pytest.raises(NotFound):
        answer_call(session, call_id=theirs.pk)


def two_open() -> tuple[Session, list[ToolCall]]:
    """One call has ended, one is in doubt, one has not begun."""
    history = builders.looked_up()
    history.reply(calls=[("send_letter", {"text": name}) for name in ("Ada", "Bob", "Cid")])
    history.finish(history.calls[0], "sent")
    history.doubt(history.calls[1])
    return history.rest("waiting", waiting_for=WaitingFor.DOUBT, why="Nobody knows."), history.calls


def test_a_step_is_done_by_hand():
    session, before = two_open()
    answer_step(session)
    assert [(call.status, call.result, call.decided_by) for call in calls(session)] == [
        (CallStatus.DONE, "sent", ""),
        (CallStatus.DONE, "send_letter by hand", SYSTEM.name),
        (CallStatus.DONE, "send_letter by hand", SYSTEM.name),
    ]
    after = fresh(session)
    assert (after.status, after.waiting_for) == (Status.PAUSED, "")
    event = after.events.last()
    assert event is not None
    assert (event.data["what"], event.data["step"]) == ("step", 2)
    assert event.data["calls"] == [before[1].pk, before[2].pk]


@pytest.mark.parametrize(
    "which, message", [([1], "The result of send_letter is missing"), ([0, 1, 2], "not an open call")]
)
def test_a_step_is_done_as_a_whole(which, message):
    session, before = two_open()
    with pytest.raises(Invalid, match=message):
        answer_step(session, results={before[index].pk: "by hand" for index in which})
    assert fresh(session).version == session.version


def test_a_step_whose_calls_have_ended_is_not_done_by_hand():
    session = builders.looked_up().rest("paused")
    with pytest.raises(Invalid, match="nothing to complete manually"):
        answer_step(session)


def test_what_was_asked_of_the_model_beside_the_conversation_is_kept_too():
    """A summary, say, that a hook asked for in the unfinished step."""
    session, _ = refunding()
    reply = ModelCall.objects.filter(branch=session.branch).latest("position")
    ModelCall.objects.filter(pk=reply.pk).update(
        name="inner", side_replies=[{"role": "assistant", "content": []}]
    )
    edit_state(session)
    [kept] = restore.read(branch_of(fresh(session))).replies
    assert (kept.name, [m.body for m in kept.messages]) == ("inner", [{"role": "assistant", "content": []}])
