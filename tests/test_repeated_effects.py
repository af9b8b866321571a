"""What a tool has done to the world is not done twice without a person knowing, whichever way the session was moved."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import LazySettings

from sessions_app import actions
from sessions_app.history import restore
from sessions_app.models import (
    Allowance,
    Approval,
    CallStatus,
    Checkpoint,
    Message,
    Phase,
    RegisteredAgent,
    Session,
    Status,
    ToolCall,
    WaitingFor,
)
from sessions_app.runtime.worker import drive
from tests import sample_agents
from tests.builders import SYSTEM, branch_of, fresh

# A run opens and commits transactions of its own, also in threads.
pytestmark = pytest.mark.django_db(transaction=True)

REFUNDS = ["refund(A1,100)", "refund(B2,7)"]


@pytest.fixture(autouse=True)
def effects(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the tools did to the world, refunds only. Nothing runs by itself here."""
    settings.AGENTSTATE_AGENTS = ["tests.sample_registry"]
    monkeypatch.setattr("sessions_app.actions.base.wake", lambda pk: None)
    for key in ("sample-doubtful", "sample-refunds"):
        RegisteredAgent.objects.create(key=key, title=key)
    sample_agents.effects.clear()
    yield sample_agents.effects
    sample_agents.effects.clear()


def refunds() -> list[str]:
    """In the order of their names: calls of one step run in parallel."""
    return sorted(effect for effect in sample_agents.effects if effect.startswith("refund("))


def asked() -> int:
    return sum(effect.startswith("model(") for effect in sample_agents.effects)


def started(agent: str = "sample-doubtful") -> Session:
    return actions.start(actor=SYSTEM, agent=agent, message="Refund my orders")


def run(session: Session) -> Session:
    """Let the session go on until it rests."""
    while (became := drive(session.pk, worker="w1")) == "queued":
        pass
    assert became not in ("busy", "lost")
    return fresh(session)


def rewound(session: Session, **how: Any) -> Session:
    """Taken back to where the agent had done nothing yet, and running from there."""
    start = Checkpoint.objects.visible_on(branch_of(session)).earliest("position")
    how = {"actor": SYSTEM, "session_id": session.pk, "checkpoint_id": start.pk, "reason": "again", **how}
    return actions.rewind(**{"run": True, **how})


def open_approvals(session: Session) -> list[Approval]:
    found = Approval.objects.filter(call__branch=fresh(session).branch, decision="")
    return list(found.select_related("call", "repeats").order_by("call__position"))


def answered(session: Session) -> list[Any]:
    """What the model was told by the tools, in the current history."""
    messages = Message.objects.visible_on(branch_of(fresh(session))).filter(role="tool").order_by("position")
    calls = ToolCall.objects.visible_on(branch_of(fresh(session)))
    results = dict(calls.values_list("position", "result"))
    return [message.text or results[message.body["result_of"]] for message in messages]


@pytest.mark.slow
def test_a_refund_that_was_given_before_a_rewind_is_held_and_not_given_again() -> None:
    session = run(started())
    assert (session.status, refunds()) == (Status.IDLE, REFUNDS)
    after = run(rewound(session))
    assert (after.status, after.waiting_for) == (Status.WAITING, WaitingFor.APPROVAL)
    assert "It was already called with the same arguments" in after.why
    assert refunds() == REFUNDS
    # Each needs approval, with the call that it repeats; the call that may be repeated is not.
    assert [(a.call.tool, a.repeats and a.repeats.result) for a in open_approvals(after)] == [
        ("fast", "fast:look"),
        ("refund", "refunded 100 for A1"),
        ("refund", "refunded 7 for B2"),
    ]


@pytest.mark.slow
def test_the_recorded_results_are_used_and_the_agent_goes_on() -> None:
    after = run(rewound(run(started())))
    replies = asked()
    for approval in open_approvals(after):
        actions.reuse(actor=SYSTEM, session_id=after.pk, call_id=approval.call_id)
    after = run(after)
    assert (after.status, after.phase, after.final_answer) == (Status.IDLE, Phase.DONE, "Refund handled.")
    assert refunds() == REFUNDS
    assert answered(after) == ["fast:look", "refunded 100 for A1", "refunded 7 for B2"]
    assert asked() == replies + 1


@pytest.mark.slow
def test_a_person_may_have_one_run_again_and_another_rejected() -> None:
    after = run(rewound(run(started())))
    look, first, second = open_approvals(after)
    actions.reuse(actor=SYSTEM, session_id=after.pk, call_id=look.call_id)
    actions.approve(actor=SYSTEM, session_id=after.pk, call_id=first.call_id, effects_seen=True)
    actions.reject(actor=SYSTEM, session_id=after.pk, call_id=second.call_id, message="It is paid.")
    after = run(after)
    assert after.phase == Phase.DONE
    assert refunds() == ["refund(A1,100)", "refund(A1,100)", "refund(B2,7)"]
    statuses = (
        ToolCall.objects.visible_on(branch_of(after)).order_by("position").values_list("status", flat=True)
    )
    assert list(statuses) == [CallStatus.DONE, CallStatus.DONE, CallStatus.REJECTED]


@pytest.mark.slow
def test_a_fork_does_not_repeat_what_its_source_has_done() -> None:
    session = run(started())
    start = Checkpoint.objects.visible_on(branch_of(session)).earliest("position")
    fork = actions.fork(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="try", run=True)
    fork = run(fork)
    assert fork.waiting_for == WaitingFor.APPROVAL
    assert len(open_approvals(fork)) == 3
    assert refunds() == REFUNDS


def test_what_had_not_begun_when_the_session_was_taken_back_is_not_held() -> None:
    session = run(started("sample-refunds"))
    assert (session.waiting_for, refunds()) == (WaitingFor.APPROVAL, [])
    after = run(rewound(session))
    # The tool always needs a yes; that it was asked for before is no reason to say that it was run.
    assert [(a.call.tool, a.repeats) for a in open_approvals(after)] == [("refund", None), ("refund", None)]


def test_nothing_is_held_where_nothing_was_left_behind() -> None:
    assert run(started()).phase == Phase.DONE
    assert not Approval.objects.exists()


@pytest.mark.slow
def test_a_call_that_a_person_skips_after_a_rewind_leaves_the_first_ones_effect_alone() -> None:
    """A repair of a held session: the call is answered by hand, and does not run."""
    after = run(rewound(run(started())))
    for approval in open_approvals(after)[:2]:
        actions.reuse(actor=SYSTEM, session_id=after.pk, call_id=approval.call_id)
    [last] = open_approvals(after)
    after = actions.answer_call(
        actor=SYSTEM, session_id=after.pk, call_id=last.call_id, skip="It is paid.", reason="seen"
    )
    assert after.status == Status.PAUSED
    after = actions.resume(actor=SYSTEM, session_id=after.pk, reason="go")
    after = run(after)
    assert after.phase == Phase.DONE
    assert refunds() == REFUNDS
    assert answered(after)[-1] == "It is paid."


@pytest.mark.slow
def test_a_repair_in_the_middle_of_a_step_asks_and_runs_nothing_again() -> None:
    session = run(started("sample-refunds"))
    replies = asked()
    first, second = open_approvals(session)
    session = actions.answer_call(
        actor=SYSTEM, session_id=session.pk, call_id=first.call_id, result="paid by hand", reason="I paid it"
    )
    assert session.waiting_for == WaitingFor.APPROVAL
    [copied] = open_approvals(session)
    assert copied.call.position > second.call.position
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=copied.call_id, effects_seen=True)
    session = run(session)
    assert (session.phase, session.final_answer) == (Phase.DONE, "Refund handled.")
    assert refunds() == ["refund(B2,7)"]
    assert asked() == replies + 1
    assert sorted(answered(session)) == ["fast:look", "paid by hand", "refunded 7 for B2"]


@pytest.mark.slow
def test_a_call_that_was_rejected_and_then_answered_by_hand_is_answered() -> None:
    session = run(started("sample-refunds"))
    first, second = open_approvals(session)
    actions.reject(actor=SYSTEM, session_id=session.pk, call_id=first.call_id, message="No.")
    session = actions.answer_call(
        actor=SYSTEM, session_id=session.pk, call_id=first.call_id, result="paid by hand", reason="I paid it"
    )
    [copied] = open_approvals(session)
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=copied.call_id, effects_seen=True)
    assert run(session).phase == Phase.DONE
    assert answered(session)[1:] == ["paid by hand", "refunded 7 for B2"]
    assert second.call.branch_id != copied.call.branch_id


@pytest.mark.slow
def test_a_message_that_was_replaced_is_what_the_model_reads() -> None:
    session = run(started())
    told = Message.objects.filter(branch=session.branch, role="tool").latest("position")
    session = actions.replace_message(
        actor=SYSTEM, session_id=session.pk, position=told.position, text="It failed.", reason="It did not"
    )
    assert (session.status, session.phase) == (Status.IDLE, Phase.DONE)
    actions.send_message(actor=SYSTEM, session_id=session.pk, text="And now?")
    session = run(session)
    base = restore.read(branch_of(session)).checkpoint
    assert base is not None
    read = str([message.body for message in base.context])
    assert read.index("refunded 100 for A1") < read.index("It failed.") < read.index("And now?")
    assert "refunded 7 for B2" not in read[: read.index("And now?")]


@pytest.mark.slow
def test_an_allowed_tool_runs_without_being_asked_for_until_the_session_ends() -> None:
    session = run(started("sample-refunds"))
    first, second = open_approvals(session)
    actions.approve(
        actor=SYSTEM, session_id=session.pk, call_id=first.call_id, effects_seen=True, for_session=True
    )
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=second.call_id, effects_seen=True)
    assert run(session).phase == Phase.DONE
    assert refunds() == REFUNDS
    # The next turn asks for the same again, which nobody has to allow again.
    actions.send_message(actor=SYSTEM, session_id=session.pk, text="Once more")
    after = run(session)
    assert (after.status, after.phase) == (Status.IDLE, Phase.DONE)
    assert refunds() == sorted(REFUNDS * 2)
    assert Allowance.objects.filter(session=session).count() == 1


@pytest.mark.slow
def test_an_allowance_does_not_let_a_repetition_through() -> None:
    """It says that the tool may run; not that it may do again what a discarded branch has done."""
    session = run(started("sample-refunds"))
    for approval in open_approvals(session):
        actions.approve(
            actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, effects_seen=True, for_session=True
        )
    after = run(rewound(run(session)))
    assert after.waiting_for == WaitingFor.APPROVAL
    held = [(a.call.tool, a.repeats is not None) for a in open_approvals(after)]
    assert held == [("fast", True), ("refund", True), ("refund", True)]
    assert refunds() == REFUNDS


def test_an_allowance_is_of_one_session() -> None:
    session = run(started("sample-refunds"))
    for approval in open_approvals(session):
        actions.approve(
            actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, effects_seen=True, for_session=True
        )
    run(session)
    other = run(started("sample-refunds"))
    assert [a.call.tool for a in open_approvals(other)] == ["refund", "refund"]
