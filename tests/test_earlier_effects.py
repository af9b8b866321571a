"""What a tool did where the history does not show it is shown to a person before the tool does more of it."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Annotated, Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.dataclasses import ToolCall as Call
from haystack.tools import tool

from agentstate import ToolPolicy
from agentstate.durable.policy import EffectScope, Policies
from agentstate.durable.port import EffectElsewhere
from agentstate.durable.records import EarlierEffects, NewCall
from sessions_app import actions
from sessions_app.access.errors import ActionError
from sessions_app.history import effects as history_effects
from sessions_app.models import (
    Approval,
    Branch,
    CallStatus,
    Checkpoint,
    Message,
    Session,
    ToolCall,
    WaitingFor,
)
from sessions_app.runtime import leases
from sessions_app.runtime.journal import OrmJournal
from tests import driving
from tests.builders import SYSTEM, branch_of
from tests.driving import Desk
from tests.dying import Died
from tests.sample_agents import effect, effects

pytestmark = pytest.mark.django_db

MONEY = ToolPolicy(effect="moves money")
MONEY_PER_CLAIM = ToolPolicy(effect="moves money", identity=("claim",))


# The agent does in each turn what the user says: the calls of one step, as JSON. Then it says "Done.".


@tool
def pay(claim: Annotated[str, "claim"], amount: Annotated[float, "amount"], note: str = "") -> str:
    """Pays."""
    if note == "fail":
        raise ValueError("no money")
    effect(f"{claim} {amount:g}")
    if note == "die":
        raise Died
    return f"paid {amount:g} for {claim}"


@tool
def look(claim: Annotated[str, "claim"]) -> str:
    """Looks a claim up."""
    effect(f"look {claim}")
    if claim == "slowly":
        happen()
    return f"claim {claim}"


# What happens while the model is asked, or while a claim is looked up slowly.
meanwhile: list[Callable[[], object]] = []


def happen() -> None:
    while meanwhile:
        meanwhile.pop()()


def obey(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
    last = max(number for number, message in enumerate(messages) if message.is_from("user"))
    text = messages[last].text or ""
    if "slowly" not in text:
        happen()
    if not text.startswith("[") or len(messages) > last + 1:
        return ChatMessage.from_assistant("Done.")
    calls = [
        Call(name, arguments, id=f"c{number}") for number, (name, arguments) in enumerate(json.loads(text))
    ]
    return ChatMessage.from_assistant("I do it.", tool_calls=calls)


def build() -> Agent:
    return Agent(
        chat_generator=MockChatGenerator(response_fn=obey), tools=[pay, look], tool_concurrency_limit=1
    )


@pytest.fixture
def desk(db: None) -> Iterator[Desk]:
    meanwhile.clear()
    with driving.desk() as desk:
        yield desk


def begun(desk: Desk, **policies: ToolPolicy) -> Session:
    """A session of the agent after a first turn without calls."""
    desk.agent(build, policies=policies)
    return desk.run(desk.start("Hello"))


def paying(claim: str, amount: float, note: str = "") -> tuple[str, dict[str, Any]]:
    return ("pay", {"claim": claim, "amount": amount, **({"note": note} if note else {})})


def told(desk: Desk, session: Session, *calls: tuple[str, dict[str, Any]]) -> Session:
    """The user asks for the calls, and the agent makes them until it rests."""
    desk.say(session, json.dumps(calls))
    return desk.run(session)


def back(session: Session, **how: Any) -> Session:
    """Rewound to the end of its first turn."""
    first = Checkpoint.objects.visible_on(branch_of(session)).filter(kind="end").earliest("position")
    return actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=first.pk, reason="again", **how)


def forked(session: Session) -> Session:
    """A fork from the end of the first turn."""
    first = Checkpoint.objects.visible_on(branch_of(session)).filter(kind="end").earliest("position")
    return actions.fork(actor=SYSTEM, session_id=session.pk, checkpoint_id=first.pk, reason="try it")


def requests(session: Session) -> list[Approval]:
    """The open ones of the current branch."""
    branch = Session.objects.get(pk=session.pk).branch_id
    rows = Approval.objects.filter(call__branch=branch, decision="")
    return list(rows.select_related("call", "repeats").order_by("call__position"))


def shown(approval: Approval) -> list[tuple[str, float]]:
    """Claim and amount of the effects that the request shows, as they ran."""
    calls = ToolCall.objects.in_bulk(approval.earlier or [])
    ran: list[Any] = [calls[pk].ran_with for pk in approval.earlier or []]
    return [(arguments["claim"], arguments.get("amount", 0)) for arguments in ran]


def held(session: Session) -> list[tuple[str, float]]:
    """What the one open request of a waiting session shows."""
    assert session.waiting_for == WaitingFor.APPROVAL, (session.status, session.why)
    [approval] = requests(session)
    return shown(approval)


def approve(desk: Desk, session: Session, **how: Any) -> Session:
    for approval in requests(session):
        actions.approve(
            actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, effects_seen=True, **how
        )
    return desk.run(session)


def paid() -> list[str]:
    return [each for each in effects if not each.startswith("look")]


# The story


def read_the_claim(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
    """It looks the claim up that the user names, and refunds what the look-up says is due."""
    last = max(number for number, message in enumerate(messages) if message.is_from("user"))
    results = [result for message in messages[last:] for result in message.tool_call_results]
    claim = (messages[last].text or "").removeprefix("Refund ")
    if not results:
        call = Call("look_up", {"claim_number": claim}, id="look")
    elif results[-1].origin.tool_name == "look_up":
        due = float(str(results[-1].result).removeprefix("due: "))
        call = Call("refund", {"claim_number": claim, "amount": due}, id="refund")
    else:
        return ChatMessage.from_assistant("Refunded.")
    return ChatMessage.from_assistant("One moment.", tool_calls=[call])


@tool
def look_up(claim_number: Annotated[str, "claim"]) -> str:
    """Says what is due."""
    return "due: 100"


@tool
def refund(claim_number: Annotated[str, "claim"], amount: Annotated[float, "amount"]) -> str:
    """Pays money back."""
    effect(f"{claim_number} {amount:g}")
    return f"refunded {amount:g}"


def refunding() -> Agent:
    return Agent(chat_generator=MockChatGenerator(response_fn=read_the_claim), tools=[look_up, refund])


@pytest.mark.slow
def test_a_second_refund_names_the_one_that_was_paid_before_the_rewind(desk: Desk) -> None:
    policy = ToolPolicy(approval=True, effect="moves money", identity=("claim_number",))
    desk.agent(refunding, policies={"look_up": ToolPolicy(idempotent=True), "refund": policy})
    session = desk.run(desk.start("Refund CLM-1"))
    [approval] = requests(session)
    assert approval.earlier is None
    session = approve(desk, session, edited={"claim_number": "CLM-1", "amount": 120})
    assert effects == ["CLM-1 120"]
    refunded = desk.calls(session)[-1]

    looked = Checkpoint.objects.get(branch=branch_of(session), kind="step", step=1)
    session = actions.rewind(
        actor=SYSTEM, session_id=session.pk, checkpoint_id=looked.pk, reason="Wrong amount"
    )
    result = Message.objects.visible_on(branch_of(session)).get(role="tool")
    session = actions.replace_message(
        actor=SYSTEM, session_id=session.pk, position=result.position, text="due: 80", reason="Corrected"
    )
    session = desk.run(desk.resume(session))
    assert (session.waiting_for, effects) == (WaitingFor.APPROVAL, ["CLM-1 120"])
    assert session.why == (
        "refund needs approval. "
        "It has already taken effect outside the current history, or may have, and that was not undone."
    )
    [approval] = requests(session)
    assert approval.arguments == {"claim_number": "CLM-1", "amount": 80}
    assert (approval.earlier, approval.repeats) == ([refunded.pk], None)
    assert refunded.arguments == {"claim_number": "CLM-1", "amount": 100}
    assert refunded.ran_with == {"claim_number": "CLM-1", "amount": 120}

    session = approve(desk, session)
    assert effects == ["CLM-1 120", "CLM-1 80"]
    done = ToolCall.objects.filter(branch__session=session, tool="refund", status=CallStatus.DONE)
    assert [call.ran_with["amount"] for call in done.order_by("pk")] == [120, 80]

    desk.say(session, "Refund CLM-2")
    session = desk.run(session)
    [approval] = requests(session)
    assert (approval.arguments["claim_number"], approval.earlier) == ("CLM-2", None)
    assert session.why == "refund needs approval."


# Which calls need approval


@pytest.mark.slow
def test_a_call_of_a_tool_with_an_effect_is_held_whatever_its_arguments(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    assert paid() == ["A 100"]
    session = told(desk, back(session), paying("B", 80))
    assert (held(session), paid()) == ([("A", 100)], ["A 100"])
    assert approve(desk, session).status == "idle"
    assert paid() == ["A 100", "B 80"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        ToolPolicy(effect="moves money"),
        ToolPolicy(approval=True),
        ToolPolicy(identity=("claim",)),
        ToolPolicy(idempotent=True, effect="moves money"),
    ],
    ids=["effect", "approval", "identity", "idempotent"],
)
def test_any_of_these_policies_holds_it(desk: Desk, policy: ToolPolicy) -> None:
    session = told(desk, begun(desk, pay=policy), paying("A", 100))
    if policy.approval:
        session = approve(desk, session)
    assert held(told(desk, back(session), paying("A", 80))) == [("A", 100)]


@pytest.mark.slow
def test_a_tool_without_a_policy_is_held_for_the_arguments_that_ran_only(desk: Desk) -> None:
    session = told(desk, begun(desk), paying("A", 100), ("look", {"claim": "A"}))
    session = told(desk, back(session), paying("A", 80), ("look", {"claim": "B"}))
    assert (session.status, paid()) == ("idle", ["A 100", "A 80"])
    session = told(desk, back(session), paying("A", 80))
    assert held(session) == [("A", 80)]
    assert "with the same arguments" in session.why
    [approval] = requests(session)
    assert approval.repeats is not None
    assert [approval.repeats_id] == approval.earlier


@pytest.mark.slow
def test_an_idempotent_tool_without_an_effect_is_never_held(desk: Desk) -> None:
    session = told(desk, begun(desk, look=ToolPolicy(idempotent=True)), ("look", {"claim": "A"}))
    assert told(desk, back(session), ("look", {"claim": "A"})).status == "idle"


@pytest.mark.slow
def test_calls_that_differ_in_their_identity_are_not_held(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY_PER_CLAIM), paying("A", 100), paying("B", 7))
    session = told(desk, back(session), paying("C", 100))
    assert (session.status, paid()) == ("idle", ["A 100", "B 7", "C 100"])
    assert held(told(desk, session, paying("B", 100))) == [("B", 7)]


@pytest.mark.slow
def test_an_argument_that_a_call_leaves_out_does_not_tell_it_apart(desk: Desk) -> None:
    policy = ToolPolicy(effect="moves money", identity=("claim", "note"))
    session = told(desk, begun(desk, pay=policy), paying("A", 100))
    session = told(desk, back(session), paying("A", 80, "gift"))
    assert held(session) == [("A", 100)]
    session = approve(desk, session)
    assert told(desk, session, paying("B", 80, "gift")).status == "idle"


def test_what_the_history_shows_holds_nothing(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    session = told(desk, session, paying("A", 100))
    assert (session.status, paid()) == ("idle", ["A 100", "A 100"])
    # Rewound to the end of that: it is still shown.
    last = Checkpoint.objects.visible_on(branch_of(session)).filter(kind="end").latest("position")
    session = actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=last.pk, reason="x")
    assert told(desk, session, paying("A", 1)).status == "idle"


# What is an effect


@pytest.mark.slow
def test_calls_that_failed_were_rejected_or_skipped_hold_nothing(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100, "fail"))
    session = told(desk, back(session), paying("B", 1))
    assert session.status == "idle"
    session = told(desk, back(session), paying("C", 1))
    [approval] = requests(session)
    actions.reject(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, message="No.")
    session = told(desk, back(desk.run(session)), paying("D", 1))
    assert held(session) == [("B", 1)]
    actions.answer_call(
        actor=SYSTEM, session_id=session.pk, call_id=requests(session)[0].call_id, skip="No.", reason="x"
    )
    session = desk.run(desk.resume(session))
    assert session.status == "idle"
    assert held(told(desk, back(session), paying("E", 1))) == [("B", 1)]


@pytest.mark.slow
def test_a_call_in_doubt_holds_the_next_one(desk: Desk) -> None:
    session = begun(desk, pay=MONEY)
    lose(desk, session, paying("A", 100, "die"))
    session = desk.run(session)
    assert session.waiting_for == WaitingFor.DOUBT
    assert held(told(desk, back(session), paying("A", 80))) == [("A", 100)]


@pytest.mark.slow
def test_a_call_that_was_to_run_again_holds_the_next_one(desk: Desk) -> None:
    """It was in doubt, and was discarded before it ran again."""
    session = begun(desk, pay=MONEY)
    lose(desk, session, paying("A", 100, "die"))
    session = desk.run(session)
    actions.decide(actor=SYSTEM, session_id=session.pk, call_id="c0", reason="not there", again=True)
    assert held(told(desk, back(desk.fresh(session)), paying("A", 80))) == [("A", 100)]


def test_a_call_that_its_worker_left_holds_the_next_one(desk: Desk) -> None:
    session = begun(desk, pay=MONEY)
    lose(desk, session, paying("A", 100, "die"))
    assert desk.calls(session)[-1].status == CallStatus.STARTED
    assert held(told(desk, back(desk.fresh(session)), paying("A", 80))) == [("A", 100)]


def lose(desk: Desk, session: Session, *calls: tuple[str, dict[str, Any]]) -> None:
    """The worker dies in one of the calls, and another finds the session."""
    desk.say(session, json.dumps(calls))
    with pytest.raises(Died):
        desk.drive(session)
    actions.release(actor=SYSTEM, session_id=session.pk, reason="its worker died")


@pytest.mark.slow
def test_a_result_from_the_cache_is_no_effect(desk: Desk) -> None:
    session = told(desk, begun(desk, look=ToolPolicy(cache_ttl=60)), ("look", {"claim": "A"}))
    other = told(desk, desk.run(desk.start("Hello")), ("look", {"claim": "A"}))
    assert desk.calls(other)[-1].cached
    assert told(desk, back(other), ("look", {"claim": "A"})).status == "idle"
    assert held(told(desk, back(session), ("look", {"claim": "A"}))) == [("A", 0)]


@pytest.mark.slow
def test_a_reused_result_is_no_effect_of_its_own(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    session = told(desk, back(session), paying("A", 100))
    [approval] = requests(session)
    actions.reuse(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id)
    session = desk.run(session)
    assert (session.status, paid()) == ("idle", ["A 100"])
    session = told(desk, back(session), paying("A", 100))
    assert held(session) == [("A", 100)]
    # Undone twice, the first payment is in the history, and the reused one elsewhere: nothing is to be asked.
    for _ in range(2):
        actions.undo(actor=SYSTEM, session_id=session.pk, reason="x")
    assert told(desk, desk.fresh(session), paying("A", 100)).status == "idle"


def test_what_was_entered_by_hand_is_an_effect(desk: Desk) -> None:
    """A person said that it is paid."""
    session = told(desk, begun(desk, pay=ToolPolicy(approval=True)), paying("A", 100))
    [approval] = requests(session)
    actions.answer_call(
        actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, result="paid by hand", reason="x"
    )
    session = desk.run(desk.resume(session))
    assert session.status == "idle"
    assert held(told(desk, back(session), paying("A", 80))) == [("A", 100)]


# What a person has seen


@pytest.mark.slow
def test_what_a_person_has_seen_holds_no_later_call_with_other_arguments(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    session = approve(desk, told(desk, back(session), paying("B", 80)))
    session = told(desk, session, paying("C", 5))
    assert (session.status, paid()) == ("idle", ["A 100", "B 80", "C 5"])
    session = told(desk, session, paying("A", 100))
    assert held(session) == [("A", 100)]
    assert requests(session)[0].repeats is not None


@pytest.mark.slow
def test_what_is_discarded_later_has_not_been_seen(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    session = approve(desk, told(desk, back(session), paying("B", 80)))
    session = told(desk, back(session), paying("C", 5))
    assert held(session) == [("B", 80), ("A", 100)]
    session = approve(desk, session)
    assert told(desk, session, paying("D", 1)).status == "idle"


@pytest.mark.slow
def test_what_was_rejected_has_not_been_seen(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    session = told(desk, back(session), paying("B", 80))
    [approval] = requests(session)
    actions.reject(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, message="No.")
    session = told(desk, desk.run(session), paying("B", 80))
    assert (held(session), paid()) == ([("A", 100)], ["A 100"])


@pytest.mark.slow
def test_an_equal_identity_holds_a_call_also_when_it_has_been_seen(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY_PER_CLAIM), paying("A", 100))
    session = approve(desk, told(desk, back(session), paying("A", 80)))
    assert held(told(desk, session, paying("A", 5))) == [("A", 100)]


@pytest.mark.slow
def test_what_was_seen_in_one_session_counts_for_its_line(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    fork, other = forked(session), forked(session)
    fork = approve(desk, told(desk, fork, paying("B", 1)))
    assert held(told(desk, other, paying("C", 1))) == [("B", 1), ("A", 100)]
    # The source shows its own payment; the fork's is new to it.
    assert held(told(desk, session, paying("D", 1))) == [("B", 1)]
    session = approve(desk, desk.fresh(session))
    assert told(desk, session, paying("E", 1)).status == "idle"
    assert paid() == ["A 100", "B 1", "D 1", "E 1"]


@pytest.mark.slow
def test_a_request_that_need_not_hold_shows_what_has_been_seen_too(desk: Desk) -> None:
    session = approve(desk, told(desk, begun(desk, pay=ToolPolicy(approval=True)), paying("A", 100)))
    session = approve(desk, told(desk, back(session), paying("B", 80)))
    session = told(desk, session, paying("C", 5))
    assert (held(session), session.why) == ([("A", 100)], "pay needs approval.")


# Forks


def test_a_fork_is_held_for_what_its_source_did_also_after_the_fork(desk: Desk) -> None:
    session = begun(desk, pay=MONEY)
    fork = forked(session)
    told(desk, session, paying("A", 100))
    assert held(told(desk, fork, paying("B", 1))) == [("A", 100)]


@pytest.mark.slow
def test_a_source_is_held_for_what_its_fork_did(desk: Desk) -> None:
    session = begun(desk, pay=MONEY)
    told(desk, forked(session), paying("A", 100))
    assert held(told(desk, session, paying("B", 1))) == [("A", 100)]


@pytest.mark.slow
def test_the_line_goes_on_to_forks_of_forks_and_to_siblings(desk: Desk) -> None:
    session = begun(desk, pay=MONEY)
    fork = forked(session)
    sibling, grandchild = forked(session), forked(fork)
    told(desk, grandchild, paying("A", 100))
    for other in (session, fork, sibling):
        assert held(told(desk, other, paying("B", 1))) == [("A", 100)]


@pytest.mark.slow
def test_what_was_paid_before_the_fork_is_shown_by_both(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    last = Checkpoint.objects.visible_on(branch_of(session)).filter(kind="end").latest("position")
    fork = actions.fork(actor=SYSTEM, session_id=session.pk, checkpoint_id=last.pk, reason="x")
    assert told(desk, fork, paying("B", 1)).status == "idle"


@pytest.mark.slow
def test_another_session_of_the_agent_is_no_matter(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    forked(session)
    other = told(desk, desk.run(desk.start("Hello")), paying("A", 100))
    assert other.status == "idle"
    assert told(desk, back(other), paying("B", 1)).waiting_for == WaitingFor.APPROVAL
    assert held(desk.fresh(other)) == [("A", 100)]


def test_a_fork_that_is_made_while_the_session_runs_is_seen(desk: Desk) -> None:
    session = begun(desk, pay=MONEY)

    def fork_and_pay() -> None:
        fork = forked(desk.fresh(session))
        actions.send_message(actor=SYSTEM, session_id=fork.pk, text=json.dumps([paying("A", 100)]))
        assert desk.drive(fork) == "idle"

    meanwhile.append(fork_and_pay)
    assert held(told(desk, session, paying("B", 1))) == [("A", 100)]
    assert paid() == ["A 100"]


SLOWLY = ("look", {"claim": "slowly"})


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", [MONEY, ToolPolicy(), MONEY_PER_CLAIM], ids=["tool", "none", "id"])
def test_a_fork_that_pays_while_an_earlier_call_of_the_step_runs_is_seen(
    desk: Desk, policy: ToolPolicy
) -> None:
    """The journal looks again when it records the start of the call."""
    session = begun(desk, pay=policy)
    fork = forked(session)

    def pay_in_the_fork() -> None:
        actions.send_message(actor=SYSTEM, session_id=fork.pk, text=json.dumps([paying("A", 100)]))
        assert desk.drive(fork) == "idle"

    meanwhile.append(pay_in_the_fork)
    session = told(desk, session, SLOWLY, paying("A", 100), ("look", {"claim": "A"}))
    assert (held(session), paid()) == ([("A", 100)], ["A 100"])
    assert [call.status for call in desk.calls(session)] == ["done", "planned", "done"]
    session = approve(desk, session)
    assert (session.status, effects) == ("idle", ["look slowly", "A 100", "look A", "A 100"])


@pytest.mark.slow
def test_an_interrupted_idempotent_call_runs_again_whatever_other_sessions_did(desk: Desk) -> None:
    """It is the same call, with the same key."""
    session = begun(desk, pay=ToolPolicy(idempotent=True, effect="moves money"))
    fork = forked(session)
    lose(desk, session, paying("A", 100, "die"))
    assert held(told(desk, fork, paying("B", 1))) == [("A", 100)]
    approve(desk, fork)
    with pytest.raises(Died):
        desk.run(session)
    assert paid() == ["A 100", "B 1", "A 100"]


# What changes between the request and the call


@pytest.mark.slow
def test_a_call_that_was_approved_before_another_branch_paid_is_asked_about_again(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=ToolPolicy(approval=True)), paying("A", 100))
    [approval] = requests(session)
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id)
    session = approve(desk, told(desk, back(desk.fresh(session)), paying("B", 80)))
    assert paid() == ["B 80"]
    session = actions.undo(actor=SYSTEM, session_id=session.pk, reason="x")
    session = desk.run(desk.resume(session))
    assert (held(session), paid()) == ([("B", 80)], ["B 80"])
    [again] = requests(session)
    assert (again.pk, again.decided_by, again.decided_at) == (approval.pk, "", None)
    assert desk.last_event(session).kind == "asked"
    assert approve(desk, session).status == "idle"
    assert paid() == ["B 80", "A 100"]


@pytest.mark.slow
def test_a_payment_of_the_line_after_the_request_is_shown_before_the_approved_call_runs(desk: Desk) -> None:
    session = begun(desk, pay=ToolPolicy(approval=True))
    fork = forked(session)
    session = told(desk, session, paying("A", 100))
    assert held(session) == []
    approve(desk, told(desk, fork, paying("B", 80)))
    session = approve(desk, session)
    assert (held(session), paid()) == ([("B", 80)], ["B 80"])
    approve(desk, session)
    assert paid() == ["B 80", "A 100"]


@pytest.mark.slow
def test_arguments_that_a_person_changed_to_those_of_another_effect_are_asked_about_again(desk: Desk) -> None:
    policy = ToolPolicy(approval=True, identity=("claim",))
    session = approve(desk, told(desk, begun(desk, pay=policy), paying("A", 100)))
    session = told(desk, back(session), paying("B", 80))
    assert held(session) == []
    edited = {"claim": "A", "amount": 80}
    session = approve(desk, session, edited=edited)
    assert (held(session), paid()) == ([("A", 100)], ["A 100"])
    [approval] = requests(session)
    assert (approval.arguments, approval.edited) == ({"claim": "B", "amount": 80}, edited)
    # Approved as shown, the arguments of the first decision run.
    session = approve(desk, session, fingerprint=approval.fingerprint)
    assert paid() == ["A 100", "A 80"]
    assert desk.calls(session)[-1].ran_with == edited


@pytest.mark.slow
def test_arguments_that_are_asked_about_again_can_be_changed_back(desk: Desk) -> None:
    policy = ToolPolicy(approval=True, identity=("claim",))
    session = approve(desk, told(desk, begun(desk, pay=policy), paying("A", 100)))
    session = told(desk, back(session), paying("B", 80))
    session = approve(desk, session, edited={"claim": "A", "amount": 80})
    session = approve(desk, session, edited={"claim": "B", "amount": 80})
    assert (session.status, paid()) == ("idle", ["A 100", "B 80"])


@pytest.mark.slow
def test_a_call_in_doubt_that_runs_again_is_asked_about_if_another_branch_paid_meanwhile(desk: Desk) -> None:
    session = begun(desk, pay=MONEY)
    lose(desk, session, paying("A", 100, "die"))
    session = desk.run(session)
    session = approve(desk, told(desk, back(session), paying("B", 80)))
    session = actions.undo(actor=SYSTEM, session_id=session.pk, reason="x")
    assert session.waiting_for == WaitingFor.DOUBT
    actions.decide(actor=SYSTEM, session_id=session.pk, call_id="c0", reason="not there", again=True)
    assert held(desk.run(session)) == [("B", 80)]


@pytest.mark.slow
def test_a_request_that_is_open_when_the_session_returns_shows_what_happened_since(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=ToolPolicy(approval=True)), paying("A", 100), paying("B", 1))
    first, _ = requests(session)
    session = approve(desk, told(desk, back(session), paying("C", 80)))
    session = actions.undo(actor=SYSTEM, session_id=session.pk, reason="x")
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=first.call_id, effects_seen=True)
    Session.objects.filter(pk=session.pk).update(status="paused", waiting_for="")
    session = desk.run(desk.resume(session))
    assert [shown(approval) for approval in requests(session)] == [[("C", 80)], [("C", 80)]]
    assert paid() == ["C 80"]


# Repairs: a copied call and its original are one effect


def repaired(desk: Desk, **policies: ToolPolicy) -> Session:
    """A session whose first call of a step paid and whose second was in doubt, until a person answered it."""
    session = begun(desk, **policies)
    lose(desk, session, paying("A", 100), paying("B", 7, "die"))
    session = desk.run(session)
    [doubt] = desk.doubts(session)
    session = actions.answer_call(
        actor=SYSTEM, session_id=session.pk, call_id=doubt.pk, result="paid", reason="It is in the books"
    )
    copies = ToolCall.objects.filter(branch=branch_of(session)).order_by("position")
    assert [copy.copy_of and copy.copy_of.call_id for copy in copies] == ["c0", "c1"]
    return desk.run(desk.resume(session))


@pytest.mark.slow
@pytest.mark.parametrize(
    "policies", [{}, {"pay": MONEY}, {"pay": MONEY_PER_CLAIM}], ids=["none", "tool", "id"]
)
def test_a_call_that_a_repair_carried_over_does_not_hold_the_same_call(
    desk: Desk, policies: Policies
) -> None:
    session = repaired(desk, **policies)
    assert session.status == "idle"
    session = told(desk, session, paying("A", 100), paying("B", 7))
    assert (session.status, paid()) == ("idle", ["A 100", "B 7", "A 100", "B 7"])
    # Nor does it where the repair is undone: then the original is shown.
    actions.undo(actor=SYSTEM, session_id=session.pk, reason="x")


@pytest.mark.slow
def test_a_call_and_its_copy_are_shown_as_one_effect(desk: Desk) -> None:
    session = repaired(desk, pay=MONEY)
    assert held(told(desk, back(session), paying("C", 1))) == [("B", 7), ("A", 100)]


@pytest.mark.slow
def test_after_a_repair_is_undone_its_copies_hold_nothing(desk: Desk) -> None:
    session = begun(desk, pay=MONEY)
    lose(desk, session, paying("A", 100), paying("B", 7, "die"))
    session = desk.run(session)
    [doubt] = desk.doubts(session)
    actions.answer_call(actor=SYSTEM, session_id=session.pk, call_id=doubt.pk, result="paid", reason="x")
    actions.undo(actor=SYSTEM, session_id=session.pk, reason="x")
    actions.decide(actor=SYSTEM, session_id=session.pk, call_id=doubt.pk, result="paid", reason="x")
    session = desk.run(session)
    session = told(desk, session, paying("A", 100), paying("C", 1))
    assert session.status == "idle"


@pytest.mark.slow
def test_a_copy_that_a_person_skipped_does_not_show_that_the_original_ran(desk: Desk) -> None:
    session = begun(desk, pay=MONEY)
    lose(desk, session, paying("A", 100), paying("B", 7, "die"))
    session = desk.run(session)
    done, _ = desk.calls(session)
    session = actions.answer_call(
        actor=SYSTEM, session_id=session.pk, call_id=done.pk, skip="Not paid.", reason="x"
    )
    [doubt] = desk.doubts(session)
    actions.decide(actor=SYSTEM, session_id=session.pk, call_id=doubt.pk, result="paid", reason="x")
    session = desk.run(session)
    assert held(told(desk, session, paying("C", 1))) == [("A", 100)]


@pytest.mark.slow
def test_a_repair_keeps_what_an_approved_request_has_shown(desk: Desk) -> None:
    session = approve(desk, told(desk, begun(desk, pay=ToolPolicy(approval=True)), paying("A", 100)))
    session = told(desk, back(session), paying("A", 80), paying("B", 1))
    first, second = requests(session)
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=first.call_id, effects_seen=True)
    session = actions.answer_call(
        actor=SYSTEM, session_id=session.pk, call_id=second.call_id, result="paid", reason="x"
    )
    session = desk.run(desk.resume(session))
    assert (session.status, paid()) == ("idle", ["A 100", "A 80"])


@pytest.mark.slow
def test_a_call_whose_copy_ran_is_held_when_the_repair_is_undone(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=ToolPolicy(approval=True)), paying("A", 100), paying("B", 7))
    first, second = requests(session)
    session = actions.answer_call(
        actor=SYSTEM, session_id=session.pk, call_id=second.call_id, skip="No.", reason="x"
    )
    session = approve(desk, session)
    assert paid() == ["A 100"]
    session = actions.undo(actor=SYSTEM, session_id=session.pk, reason="x")
    for approval in (first, second):
        actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id)
    session = desk.run(session)
    assert [shown(approval) for approval in requests(session)] == [[("A", 100)]] * 2
    [same, _] = requests(session)
    assert same.repeats is not None
    assert same.repeats.idempotency_key == same.call.idempotency_key
    assert paid() == ["A 100"]


# Interplay


@pytest.mark.slow
def test_an_allowance_does_not_let_a_call_follow_an_effect_unseen(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=ToolPolicy(approval=True)), paying("A", 100))
    session = approve(desk, session, for_session=True)
    assert told(desk, session, paying("B", 1)).status == "idle"
    session = told(desk, back(desk.fresh(session)), paying("C", 1))
    assert (held(session), paid()) == ([("B", 1), ("A", 100)], ["A 100", "B 1"])


@pytest.mark.slow
def test_undo_shows_the_payment_again_and_holds_for_the_other_branch_only(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    session = approve(desk, told(desk, back(session), paying("B", 80)))
    session = actions.undo(actor=SYSTEM, session_id=session.pk, reason="x")
    assert held(told(desk, session, paying("C", 1))) == [("B", 80)]


@pytest.mark.slow
def test_of_several_calls_of_a_step_each_is_held(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY, look=ToolPolicy(idempotent=True)), paying("A", 100))
    session = told(desk, back(session), paying("B", 1), ("look", {"claim": "B"}), paying("C", 2))
    assert [shown(approval) for approval in requests(session)] == [[("A", 100)], [("A", 100)]]
    assert effects == ["A 100"]
    first, _ = requests(session)
    with pytest.raises(ActionError, match="no result on record"):
        actions.reuse(actor=SYSTEM, session_id=session.pk, call_id=first.call_id)
    assert approve(desk, session).status == "idle"
    assert sorted(paid()) == ["A 100", "B 1", "C 2"]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_two_sessions_of_a_line_never_start_at_the_same_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begun(desk)
    sessions = [session, forked(session)]
    for each in sessions:
        desk.say(each, "Hello")
    inner: Callable[..., EarlierEffects | None] = history_effects.earlier_effects
    both_looked = threading.Barrier(2)

    def slow(*arguments: Any, **how: Any) -> EarlierEffects | None:
        earlier = inner(*arguments, **how)
        # Both look before either starts, unless one waits for the other.
        with suppress(threading.BrokenBarrierError):
            both_looked.wait(0.3)
        return earlier

    monkeypatch.setattr(history_effects, "earlier_effects", slow)
    together = threading.Barrier(2, timeout=30)

    def start(session: Session) -> str:
        try:
            journal = journal_of(session)
            [call] = journal.plan([NewCall("c1", "pay", {"claim": "A", "amount": 1})])
            together.wait()
            journal.start_call(
                call.position, sent=None, at=timezone.now(), scope=EffectScope(whole_tool=True)
            )
        except EffectElsewhere:
            return "held"
        finally:
            connections.close_all()
        return "started"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(start, sessions)) == ["held", "started"]


# What it costs


def journal_of(session: Session) -> OrmJournal:
    """A journal of the run of a queued session, loaded."""
    claim = leases.claim(session.pk, "w1")
    assert claim is not None
    journal = OrmJournal(claim)
    journal.load()
    return journal


def asked_of(desk: Desk, session: Session) -> OrmJournal:
    """A journal of the session's next run."""
    desk.say(session, "Hello")
    return journal_of(session)


def queries_of(journal: OrmJournal, scope: EffectScope = EffectScope(whole_tool=True)) -> list[str]:  # noqa: B008
    with CaptureQueriesContext(
        connection,
    ) as captured:
        journal.earlier_effects("pay", {"claim": "Z", "amount": 1}, position=10**6, scope=scope)
    return [query["sql"] for query in captured if not query["sql"].startswith(("SAVEPOINT", "RELEASE"))]


def test_a_session_that_discarded_nothing_and_has_no_forks_costs_no_query(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    assert queries_of(asked_of(desk, session)) == []


@pytest.mark.slow
def test_the_queries_do_not_grow_with_branches_and_forks(desk: Desk) -> None:
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    session = approve(desk, told(desk, back(session), paying("B", 1)))
    counts = [len(queries_of(asked_of(desk, session)))]
    desk.run(actions.release(actor=SYSTEM, session_id=session.pk, reason="x"))
    for number in range(3):
        session = approve(desk, told(desk, back(desk.fresh(session)), paying("B", number + 2)))
        approve(desk, told(desk, forked(session), paying("C", number)))
    counts.append(len(queries_of(asked_of(desk, session))))
    assert counts == [4, 4]


@pytest.mark.slow
def test_no_query_reads_what_the_history_shows_or_another_session(desk: Desk) -> None:
    """Each table is searched by an index: calls by their branch and position, sessions by their line."""
    session = told(desk, begun(desk, pay=MONEY), paying("A", 100))
    forked(back(session))
    statements = queries_of(asked_of(desk, desk.fresh(session)))
    assert len(statements) == 4
    is_sqlite = connection.vendor == "sqlite"
    with connection.cursor() as cursor:
        if not is_sqlite:
            cursor.execute("SET LOCAL enable_seqscan = off")  # small tables: what it would do with large ones
        for statement in statements:
            cursor.execute(f"EXPLAIN {'QUERY PLAN ' if is_sqlite else ''}{statement}")
            plan = "\n".join(str(row[-1]) for row in cursor.fetchall())
            assert not re.search("SCAN|Seq Scan", plan), f"{statement}\n{plan}"


def test_a_run_asks_once_for_each_call_that_may_be_held(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    inner = OrmJournal.earlier_effects

    def counted(self: OrmJournal, tool: str, *arguments: Any, **how: Any) -> Any:
        asked.append(tool)
        return inner(self, tool, *arguments, **how)

    monkeypatch.setattr(OrmJournal, "earlier_effects", counted)
    session = begun(desk, pay=MONEY, look=ToolPolicy(idempotent=True))
    told(desk, session, paying("A", 1), ("look", {"claim": "A"}), paying("B", 2))
    assert asked == ["pay", "pay"]


@pytest.mark.slow
def test_a_branch_is_not_read_for_each_effect(desk: Desk) -> None:
    """Many effects are one query, and the request keeps them all."""
    session = begun(desk, pay=MONEY)
    session = told(desk, session, *[paying("A", number) for number in range(30)])
    session = told(desk, back(session), paying("B", 1))
    [approval] = requests(session)
    assert [amount for _, amount in shown(approval)] == list(range(29, -1, -1))
    assert Branch.objects.filter(session=session).count() == 2
