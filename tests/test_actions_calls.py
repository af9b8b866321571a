"""Deciding calls in doubt, and answering requests for approval."""

from datetime import timedelta
from typing import Any

import pytest
from django.forms.models import model_to_dict
from django.utils import timezone

from agentstate.durable.run_end import were_started
from sessions_app import actions
from sessions_app.access.errors import Forbidden, Invalid, Moved, NotFound, Refused
from sessions_app.access.roles import Actor
from sessions_app.models import (
    Allowance,
    Approval,
    CallStatus,
    Checkpoint,
    RegisteredAgent,
    Session,
    Status,
    ToolCall,
    WaitingFor,
)
from tests import builders
from tests.builders import fresh

pytestmark = pytest.mark.django_db


def two_in_doubt() -> tuple[Session, list[ToolCall]]:
    history = builders.looked_up()
    history.reply(calls=[("send_letter", {"text": "Dear Ada"}), ("send_letter", {"text": "Dear Bob"})])
    calls = [history.doubt(call) for call in history.calls]
    return history.rest("waiting", waiting_for=WaitingFor.DOUBT, why="Two letters may have been sent."), calls


def two_to_approve() -> tuple[Session, list[Approval]]:
    history = builders.looked_up()
    history.reply(
        calls=[
            ("issue_refund", {"claim": "CLM-1042", "amount": 120}),
            ("issue_refund", {"claim": "CLM-1043", "amount": 80}),
        ]
    )
    approvals = [history.ask(call) for call in history.calls]
    return history.rest("waiting", waiting_for=WaitingFor.APPROVAL, why="Two refunds."), approvals


def decide(session: Session, call: ToolCall, **how: Any) -> Session:
    return actions.decide(
        actor=builders.SYSTEM, session_id=session.pk, call_id=call.pk, reason="I asked the bank", **how
    )


def approve(session: Session, approval: Approval, **how: Any) -> Session:
    return actions.approve(
        **{"actor": builders.SYSTEM, "session_id": session.pk, "call_id": approval.call.pk, **how}
    )


@pytest.mark.parametrize(
    "how, status, result, error",
    [
        ({"result": "paid on Monday"}, CallStatus.DONE, "paid on Monday", ""),
        ({"nothing": True}, CallStatus.DONE, None, ""),
        (
            {"skip": "It was not paid; go on without."},
            CallStatus.SKIPPED,
            None,
            "It was not paid; go on without.",
        ),
    ],
)
def test_a_call_in_doubt_ends_as_the_person_says(
    how: dict[str, Any], status: str, result: str | None, error: str, woken: list[str]
) -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(status=CallStatus.DOUBT)
    decide(session, call, **how)
    call.refresh_from_db()
    session = fresh(session)
    assert (call.status, call.result, call.error) == (status, result, error)
    assert call.ended_at is not None
    assert call.decided_by == builders.SYSTEM.name
    assert (session.status, session.waiting_for, session.why, session.attempt) == (Status.QUEUED, "", "", 0)
    assert woken == [str(session.pk)]


def test_a_call_in_doubt_runs_again_if_the_person_says_so(woken: list[str]) -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(status=CallStatus.DOUBT)
    key, attempt = call.idempotency_key, call.attempt
    decide(session, call, again=True)
    call.refresh_from_db()
    assert (call.status, call.started_at, call.ended_at) == (CallStatus.PLANNED, None, None)
    assert (call.idempotency_key, call.attempt) == (key, attempt)
    assert fresh(session).status == Status.QUEUED


def test_the_decision_is_in_the_audit_trail() -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(status=CallStatus.DOUBT)
    decide(session, call, again=True)
    event = session.events.last()
    assert event is not None
    assert (event.kind, event.reason) == ("decided", "I asked the bank")
    assert event.data == {
        "call": call.pk,
        "call_id": call.call_id,
        "tool": "issue_refund",
        "position": call.position,
        "decision": "again",
    }


def test_a_session_goes_on_when_no_call_is_in_doubt_any_more(woken: list[str]) -> None:
    session, calls = two_in_doubt()
    decide(session, calls[0], result="sent")
    after = fresh(session)
    assert (after.status, after.waiting_for, after.why) == (Status.WAITING, WaitingFor.DOUBT, session.why)
    assert woken == []
    decide(session, calls[1], skip="not sent")
    assert fresh(session).status == Status.QUEUED
    assert woken == [str(session.pk)]


def test_the_reason_names_the_calls_that_are_still_in_doubt() -> None:
    history = builders.looked_up()
    history.reply(calls=[("pay", {}), ("later", {}), ("wait", {}), ("pay", {"amount": 2})])
    calls = [history.doubt(call) for call in history.calls]
    rest = "or may not have taken effect. The agent has changed since."
    why = f"{were_started(call.tool for call in calls)} {rest}"
    session = history.rest("waiting", waiting_for=WaitingFor.DOUBT, why=why)
    seen = []
    for call in calls[:2]:
        decide(session, call, result="done")
        seen.append(fresh(session).why)
    actions.answer_call(
        actor=builders.SYSTEM, session_id=session.pk, call_id=calls[2].pk, result="done", reason="I asked"
    )
    assert [*seen, fresh(session).why] == [
        f"later, pay and wait were started and did not report back. They may {rest}",
        f"pay and wait were started and did not report back. They may {rest}",
        f"pay was started and did not report back. It may {rest}",
    ]


def test_a_decision_while_paused_does_not_make_it_run(woken: list[str]) -> None:
    history = builders.refunding()
    call = history.doubt(history.calls[-1])
    session = history.rest("paused")
    decide(session, call, result="paid")
    assert fresh(session).status == Status.PAUSED
    assert woken == []


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"result": "a", "again": True},
        {"result": "a", "skip": "b"},
        {"result": "a", "nothing": True},
        {"again": True, "nothing": True},
    ],
)
def test_exactly_one_decision_is_wanted(how: dict[str, Any]) -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(status=CallStatus.DOUBT)
    with pytest.raises(Invalid, match="Choose one"):
        decide(session, call, **how)
    call.refresh_from_db()
    assert call.status == CallStatus.DOUBT


@pytest.mark.parametrize("result", ["", " ", "\n"])
def test_an_empty_result_is_refused(result: str) -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(status=CallStatus.DOUBT)
    with pytest.raises(Invalid, match="or choose that it returns nothing"):
        decide(session, call, result=result)
    with pytest.raises(Invalid, match="or choose that it returns nothing"):
        actions.decide_all(
            actor=builders.SYSTEM, session_id=session.pk, decisions={call.pk: {"result": result}}, reason="x"
        )
    call.refresh_from_db()
    assert call.status == CallStatus.DOUBT


OUTPUT = {"type": "object", "properties": {"paid": {"type": "number", "maximum": 500}}, "required": ["paid"]}


@pytest.mark.parametrize(
    "output, how, stored, refusal",
    [
        (OUTPUT, {"result": '{"paid": 120}'}, {"paid": 120}, ""),
        (
            OUTPUT,
            {"result": "paid on Monday"},
            None,
            'an object, not text: enter its result as JSON, such as {"paid": "value"}.',
        ),
        (OUTPUT, {"result": '{"paid": 777}'}, None, "paid must be at most 500"),
        (OUTPUT, {"result": '{"amount": 1}'}, None, "it lacks paid"),
        (OUTPUT, {"result": '{"paid": 1, "x": {"$type": "date"}}'}, None, "cannot contain the key"),
        (OUTPUT, {"result": "[" * 100_000}, None, "enter its result as JSON"),
        (OUTPUT, {"result": '{"paid": NaN}'}, None, "NaN is not a number"),
        (OUTPUT, {"nothing": True}, None, "returns a result"),
        ({"type": "null"}, {"nothing": True}, None, ""),
        ({"type": "string"}, {"result": '{"paid": 120}'}, '{"paid": 120}', ""),
    ],
)
def test_a_result_is_one_that_the_tool_can_have_returned(
    output: dict[str, Any], how: dict[str, Any], stored: Any, refusal: str
) -> None:
    session = builders.in_doubt()
    agent = RegisteredAgent.objects.get()
    agent.tools = [{**tool, "output": output} for tool in agent.tools]
    agent.save()
    call = ToolCall.objects.get(status=CallStatus.DOUBT)
    if refusal:
        with pytest.raises(Invalid, match=refusal) as refused:
            decide(session, call, **how)
        assert "777" not in str(refused.value)  # the rule, not what may be hidden
    else:
        decide(session, call, **how)
    call.refresh_from_db()
    assert (call.status, call.result) == (CallStatus.DOUBT if refusal else CallStatus.DONE, stored)


@pytest.mark.parametrize("how", [{"skip": " "}, {"result": "\x00"}, {"skip": "\x00"}])
def test_a_decision_that_cannot_be_stored_or_told_is_refused(how: dict[str, Any]) -> None:
    session = builders.in_doubt()
    with pytest.raises(Invalid):
        decide(session, ToolCall.objects.get(status=CallStatus.DOUBT), **how)


@pytest.mark.parametrize(
    "how, counted", [({"result": "sent"}, 1), ({"skip": "Leave it."}, 1), ({"again": True}, 0)]
)
def test_a_call_that_a_person_ends_is_counted_like_those_that_a_run_ends(
    how: dict[str, Any], counted: int
) -> None:
    session, [call, _] = two_in_doubt()
    before = session.totals.get("tool_calls", 0)
    decide(session, call, **how)
    assert builders.fresh(session).totals.get("tool_calls", 0) == before + counted


def test_a_call_that_a_person_answers_for_is_counted_once_though_it_had_ended_before() -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(branch=session.branch, status="doubt")
    before = session.totals.get("tool_calls", 0)
    how: dict[str, Any] = {"actor": builders.SYSTEM, "session_id": session.pk, "reason": "Asked the bank"}
    actions.answer_call(**how, call_id=call.pk, result="paid")
    assert builders.fresh(session).totals["tool_calls"] == before + 1
    copy = ToolCall.objects.get(copy_of=call)
    actions.answer_call(**how, call_id=copy.pk, result="paid twice")
    assert builders.fresh(session).totals["tool_calls"] == before + 1


def test_a_decided_call_is_decided_once() -> None:
    session, calls = two_in_doubt()
    decide(session, calls[0], result="sent")
    with pytest.raises(Refused, match="not in doubt: it is done"):
        decide(session, calls[0], again=True)
    calls[0].refresh_from_db()
    assert calls[0].result == "sent"


def test_a_call_may_be_named_as_the_model_named_it() -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(status=CallStatus.DOUBT)
    actions.decide(
        actor=builders.SYSTEM, session_id=session.pk, call_id=call.call_id, reason="I asked", result="paid"
    )
    call.refresh_from_db()
    assert call.status == CallStatus.DONE


def test_of_calls_that_the_model_named_alike_the_open_one_is_meant() -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(status=CallStatus.DOUBT)
    ToolCall.objects.update(call_id="0")
    actions.decide(actor=builders.SYSTEM, session_id=session.pk, call_id="0", reason="I asked", result="paid")
    call.refresh_from_db()
    assert call.status == CallStatus.DONE


def test_a_name_that_two_open_calls_share_is_not_guessed_at() -> None:
    session, _ = two_in_doubt()
    ToolCall.objects.update(call_id="0")
    with pytest.raises(Invalid, match="2 open calls are named 0"):
        actions.decide(
            actor=builders.SYSTEM, session_id=session.pk, call_id="0", reason="I asked", again=True
        )


@pytest.mark.parametrize(
    "call_id, why",
    [
        (0, r"^This session has no such call, on any branch\.$"),
        ("c9", r"^This session has no call c9 in its current history\.$"),
    ],
)
def test_an_unknown_call_is_not_found_where_it_is_looked_for(call_id: int | str, why: str) -> None:
    with pytest.raises(NotFound, match=why):
        actions.decide(
            actor=builders.SYSTEM, session_id=builders.in_doubt().pk, call_id=call_id, reason="x", again=True
        )


def test_the_call_of_another_session_is_not_found() -> None:
    mine, other = builders.in_doubt(), builders.in_doubt()
    call = ToolCall.objects.get(branch=other.branch, status=CallStatus.DOUBT)
    with pytest.raises(NotFound):
        decide(mine, call, again=True)


@pytest.mark.parametrize("action", ["decide", "approve", "reject"])
def test_a_call_that_a_rewind_left_behind_cannot_be_decided(action: str) -> None:
    history = builders.refunding()
    call = history.calls[-1]
    if action == "decide":
        history.doubt(call)
    else:
        history.ask(call)
    session = history.rest("waiting", waiting_for="doubt" if action == "decide" else "approval")
    actions.rewind(
        actor=builders.SYSTEM,
        session_id=session.pk,
        checkpoint_id=history.last_checkpoint.pk,
        reason="another way",
    )
    hows: dict[str, dict[str, Any]] = {"decide": {"again": True}, "approve": {}, "reject": {"message": "no"}}
    with pytest.raises(Refused, match="in discarded history"):
        getattr(actions, action)(
            actor=builders.SYSTEM, session_id=session.pk, call_id=call.pk, reason="late", **hows[action]
        )


def test_an_approved_call_goes_on(woken: list[str]) -> None:
    session = builders.waiting_for_approval()
    approval = Approval.objects.get()
    user = builders.user("operator")
    approve(session, approval, actor=Actor.of(user), fingerprint=approval.fingerprint)
    approval.refresh_from_db()
    session = fresh(session)
    assert (approval.decision, approval.decided_by, approval.edited) == ("approved", user.username, None)
    assert (session.status, session.waiting_for, session.why) == (Status.QUEUED, "", "")
    assert woken == [str(session.pk)]
    event = session.events.last()
    assert event is not None
    assert (event.kind, event.actor, event.data["tool"]) == ("approved", user, "issue_refund")


def test_a_rejected_call_tells_the_model_why(woken: list[str]) -> None:
    session = builders.waiting_for_approval()
    approval = Approval.objects.get()
    actions.reject(
        actor=builders.SYSTEM,
        session_id=session.pk,
        call_id=approval.call.pk,
        message="Ask for the invoice first.",
    )
    approval.refresh_from_db()
    session = fresh(session)
    assert (approval.decision, approval.message) == ("rejected", "Ask for the invoice first.")
    assert session.status == Status.QUEUED
    event = session.events.last()
    assert event is not None
    assert (event.kind, event.reason) == ("rejected", "Ask for the invoice first.")


def test_a_rejection_without_a_message_is_refused() -> None:
    session = builders.waiting_for_approval()
    with pytest.raises(Invalid, match="message to the model"):
        actions.reject(
            actor=builders.SYSTEM, session_id=session.pk, call_id=Approval.objects.get().call.pk, message=" "
        )
    assert Approval.objects.get().decision == ""


def test_a_session_goes_on_when_every_call_is_answered(woken: list[str]) -> None:
    session, (first, second) = two_to_approve()
    approve(session, first)
    assert fresh(session).status == Status.WAITING
    assert woken == []
    actions.reject(
        actor=builders.SYSTEM, session_id=session.pk, call_id=second.call.pk, message="Paid already."
    )
    assert fresh(session).status == Status.QUEUED
    assert woken == [str(session.pk)]


def test_the_first_answer_counts_and_the_second_person_is_told_whose_it_was() -> None:
    session, (first, _) = two_to_approve()
    ann = builders.actor("operator")
    approve(session, first, actor=ann)
    for late in (
        lambda: approve(session, first),
        lambda: actions.reject(
            actor=builders.SYSTEM, session_id=session.pk, call_id=first.call.pk, message="no"
        ),
    ):
        with pytest.raises(Moved, match=f"already approved by {ann.name}"):
            late()
    first.refresh_from_db()
    assert (first.decision, first.decided_by) == ("approved", ann.name)


def test_arguments_that_are_not_those_that_were_shown_are_not_approved() -> None:
    session = builders.waiting_for_approval()
    with pytest.raises(Moved, match="arguments have changed since you were shown them"):
        approve(session, Approval.objects.get(), fingerprint="0" * 64)
    assert Approval.objects.get().decision == ""
    assert fresh(session).status == Status.WAITING


def test_a_call_whose_time_is_over_is_not_approved() -> None:
    session = builders.waiting_for_approval()
    Approval.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(Refused, match="approval has expired"):
        approve(session, Approval.objects.get())
    assert Approval.objects.get().decision == ""


def test_edited_arguments_are_kept_beside_those_that_were_asked_for() -> None:
    session = builders.waiting_for_approval()
    approve(session, Approval.objects.get(), edited={"claim": "CLM-1042", "amount": 100})
    approval = Approval.objects.get()
    assert approval.arguments == {"claim": "CLM-1042", "amount": 120}
    assert approval.edited == {"claim": "CLM-1042", "amount": 100}
    event = session.events.last()
    assert event is not None
    assert event.data["edited"] is True


def test_arguments_that_were_opened_but_not_changed_are_no_edit() -> None:
    session = builders.waiting_for_approval()
    approve(session, Approval.objects.get(), edited={"amount": 120, "claim": "CLM-1042"})
    assert Approval.objects.get().edited is None


@pytest.mark.parametrize(
    "edited, message",
    [
        ({"claim": "CLM-1042", "amount": 501}, "amount must be at most 500"),
        ({"claim": "CLM-1042", "amount": "all"}, "amount must be a number"),
        ({"claim": "CLM-1042"}, "it lacks amount"),
        ({"claim": "CLM-1042", "amount": 1, "to": "me"}, "issue_refund has no argument to"),
        ({"claim": "CLM\x00", "amount": 1}, "NUL"),
        ({"claim": "CLM-1042", "amount": float("nan")}, "NaN"),
        ([], "must be a JSON object"),
    ],
)
def test_an_edit_that_the_tool_does_not_allow_is_refused(edited: Any, message: str) -> None:
    session = builders.waiting_for_approval()
    with pytest.raises(Invalid, match=message):
        approve(session, Approval.objects.get(), edited=edited)
    assert Approval.objects.get().decision == ""
    assert fresh(session).status == Status.WAITING


def test_arguments_of_a_tool_whose_schema_is_unknown_cannot_be_edited() -> None:
    session = builders.waiting_for_approval()
    agent = builders.agent()
    agent.tools = []
    agent.save()
    with pytest.raises(Invalid, match="schema is not known"):
        approve(session, Approval.objects.get(), edited={"claim": "CLM-1", "amount": 1})


def test_a_call_that_nobody_was_asked_about_needs_no_approval() -> None:
    session = builders.in_doubt()
    with pytest.raises(NotFound, match="needs no approval"):
        actions.approve(
            actor=builders.SYSTEM, session_id=session.pk, call_id=ToolCall.objects.latest("position").pk
        )


# A call that has been run already, on a discarded branch


def repeated(status: str = CallStatus.DONE) -> tuple[Session, Approval, ToolCall]:
    """A refund was given, the session was rewound to before it, and the model asks for it again."""
    history = builders.refunding()
    before = history.calls[-1]
    if status == CallStatus.DONE:
        history.finish(before, {"refunded": 120})
        ToolCall.objects.filter(pk=before.pk).update(state={"paid": 120}, lossy=True)
    elif status == CallStatus.FAILED:
        history.finish(before, error="Timeout")
    else:
        history.doubt(before)
    first = Checkpoint.objects.visible_on(history.branch).earliest("position")
    history.rest("paused")
    actions.rewind(
        actor=builders.SYSTEM, session_id=history.session.pk, checkpoint_id=first.pk, reason="another way"
    )
    history.session = fresh(history.session)
    history.reply(calls=[("issue_refund", {"claim": "CLM-1042", "amount": 120})])
    approval = history.ask(history.calls[-1], repeats=before)
    before.refresh_from_db()
    return (
        history.rest("waiting", waiting_for=WaitingFor.APPROVAL, why="It was run before."),
        approval,
        before,
    )


def reuse(session: Session, approval: Approval, **how: Any) -> Session:
    return actions.reuse(
        **{"actor": builders.SYSTEM, "session_id": session.pk, "call_id": approval.call_id, **how}
    )


def test_the_result_on_record_answers_a_call_that_has_been_run_before(woken: list[str]) -> None:
    session, approval, before = repeated()
    old = model_to_dict(before)
    reuse(session, approval, reason="The money is there")
    approval.refresh_from_db()
    before.refresh_from_db()
    call, session = approval.call, fresh(session)
    assert (call.status, call.result, call.state, call.lossy) == (
        CallStatus.DONE,
        {"refunded": 120},
        {"paid": 120},
        True,
    )
    assert (call.decided_by, call.attempt) == (builders.SYSTEM.name, 0)
    assert call.ended_at is not None
    assert (approval.decision, approval.decided_by) == ("reused", builders.SYSTEM.name)
    assert session.status == Status.QUEUED
    assert woken == [str(session.pk)]
    assert model_to_dict(before) == old
    event = session.events.last()
    assert event is not None
    assert (event.kind, event.reason) == ("reused", "The money is there")
    assert (event.data["tool"], event.data["from"]) == ("issue_refund", before.position)


@pytest.mark.parametrize("status", [CallStatus.FAILED, CallStatus.DOUBT])
def test_without_a_result_on_record_there_is_nothing_to_reuse(status: str) -> None:
    session, approval, _ = repeated(status)
    with pytest.raises(Invalid, match="no result on record"):
        reuse(session, approval)
    approval.refresh_from_db()
    assert approval.decision == ""


def test_a_call_that_repeats_none_cannot_be_answered_from_the_record() -> None:
    session = builders.waiting_for_approval()
    with pytest.raises(Invalid, match="no result on record"):
        reuse(session, Approval.objects.get())
    assert fresh(session).status == Status.WAITING


def test_a_call_that_has_been_run_before_may_run_again_or_be_rejected() -> None:
    session, approval, _ = repeated()
    with pytest.raises(Invalid, match="already took effect"):
        approve(session, approval)
    approve(session, approval, effects_seen=True)
    approval.refresh_from_db()
    assert (approval.decision, approval.call.status) == ("approved", CallStatus.PLANNED)
    session, approval, _ = repeated()
    actions.reject(
        actor=builders.SYSTEM, session_id=session.pk, call_id=approval.call_id, message="It is paid."
    )
    approval.refresh_from_db()
    assert (approval.decision, approval.call.status) == ("rejected", CallStatus.PLANNED)


def test_of_two_who_answer_it_the_second_is_told_who_was_first() -> None:
    session, approval, _ = repeated()
    ann = builders.actor("operator")
    reuse(session, approval, actor=ann)
    for late in (reuse, approve):
        with pytest.raises(Moved, match=f"answered with the result on record by {ann.name}"):
            late(session, approval)
    approval.call.refresh_from_db()
    assert approval.call.status == CallStatus.DONE


def test_reusing_a_result_needs_the_right_to_approve_and_the_session_as_it_was_seen() -> None:
    session, approval, _ = repeated()
    with pytest.raises(Forbidden):
        reuse(session, approval, actor=builders.actor("viewer"))
    with pytest.raises(Moved, match="changed since"):
        reuse(session, approval, expected_version=session.version - 1)
    approval.refresh_from_db()
    assert approval.decision == ""


# A tool that is allowed for the rest of the session


def test_a_tool_is_allowed_for_the_rest_of_the_session() -> None:
    session, (first, second) = two_to_approve()
    ann = builders.actor("operator")
    approve(session, first, actor=ann, for_session=True)
    allowance = Allowance.objects.get()
    assert (allowance.session, allowance.tool, allowance.granted_by) == (session, "issue_refund", ann.name)
    event = fresh(session).events.last()
    assert event is not None
    assert event.data["for_session"] is True
    # What had been asked for already is still answered one by one.
    second.refresh_from_db()
    assert second.decision == ""
    assert fresh(session).status == Status.WAITING


def test_a_tool_is_allowed_once_and_by_whoever_did_so_first() -> None:
    session, (first, second) = two_to_approve()
    ann = builders.actor("operator")
    approve(session, first, actor=ann, for_session=True)
    approve(session, second, for_session=True)
    assert Allowance.objects.get().granted_by == ann.name


def test_a_yes_to_one_call_allows_no_other() -> None:
    session = builders.waiting_for_approval()
    approve(session, Approval.objects.get())
    assert not Allowance.objects.exists()


def test_a_refused_yes_allows_nothing() -> None:
    session = builders.waiting_for_approval()
    with pytest.raises(Invalid):
        approve(session, Approval.objects.get(), edited={"amount": "all"}, for_session=True)
    assert not Allowance.objects.exists()


def test_an_allowance_is_withdrawn() -> None:
    session, (first, _) = two_to_approve()
    approve(session, first, for_session=True)
    ann = builders.actor("operator")
    actions.withdraw(actor=ann, session_id=session.pk, tool="issue_refund", reason="Too many of them")
    assert not Allowance.objects.exists()
    event = fresh(session).events.last()
    assert event is not None
    assert (event.kind, event.reason, event.data) == (
        "withdrawn",
        "Too many of them",
        {"tool": "issue_refund"},
    )
    with pytest.raises(NotFound, match="issue_refund is not pre-approved"):
        actions.withdraw(actor=ann, session_id=session.pk, tool="issue_refund")


def test_only_who_may_approve_withdraws_and_only_what_they_saw() -> None:
    session, (first, _) = two_to_approve()
    approve(session, first, for_session=True)
    with pytest.raises(Forbidden):
        actions.withdraw(actor=builders.actor("viewer"), session_id=session.pk, tool="issue_refund")
    with pytest.raises(Moved):
        actions.withdraw(
            actor=builders.SYSTEM,
            session_id=session.pk,
            tool="issue_refund",
            expected_version=session.version,
        )
    assert Allowance.objects.exists()
