"""A request for approval shows what the tool takes from the State, and the approved call runs with nothing else."""

import html
import json
import re
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from haystack import Document
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ByteStream, ChatMessage, ToolCall
from haystack.hooks import hook
from haystack.tools import AgentTool, Tool, tool

from agentstate import DurableAgent, ToolPolicy, Waiting
from agentstate.durable import state_arguments
from agentstate.durable.policy import fingerprint
from agentstate.durable.records import ApprovalRecord
from agentstate.durable.shown_state import StateArgument, digest
from agentstate.durable.state.encoding import decode, encode_marked
from agentstate.durable.state.tags import with_order, without_order
from agentstate.durable.state_excerpts import MOST_SHOWN
from agentstate.journals import FileJournal
from agentstate.journals.show import show
from sessions_app import actions
from sessions_app.access.masking import HIDDEN
from sessions_app.desk.pages.approvals import shown_fingerprint
from sessions_app.history import from_state
from sessions_app.models import Approval, CallStatus, Checkpoint, Session, StateValue, Status
from sessions_app.models import ToolCall as Call
from tests.builders import SYSTEM
from tests.driving import Desk
from tests.dying import Died
from tests.sample_agents import effect, effects, scripted
from tests.test_tool_policies import lost

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_effects")]

POLICIES = {"pay": ToolPolicy(approval=True)}
CHANGED = "pay was not run: what it takes from the State (iban) changed after the request was approved."
GIVEN = {"amount": 5.0, "iban": "DE1"}
Asking = list[ToolCall]
PAY = ToolCall("pay", {"order": "A1"}, id="p1")
EVIL = ToolCall("set_target", {"iban": "EVIL"}, id="s1")


@tool
def set_target(iban: Annotated[str, "account"], state: State) -> str:
    """Sets to whom is paid."""
    state.set("iban", iban)
    return "set"


@tool(outputs_to_state={"iban": {"source": "iban"}})
def find_target(iban: Annotated[str, "account"]) -> dict[str, str]:
    """Finds to whom is paid."""
    return {"iban": iban}


def paid() -> list[str]:
    return [each for each in effects if " to " in each]


def payment(awaited: bool = False, takes: dict[str, str] | None = None) -> Tool:
    """The tool `pay`, which takes the amount, the account and a limit from the State; the model may give the amount."""

    def pay(order: str, amount: float = 1.0, iban: str = "nobody", limit: int = 9) -> str:
        effect(f"{amount:g} to {iban} for {order}, at most {limit}")
        return "paid"

    async def pay_async(order: str, amount: float = 1.0, iban: str = "nobody", limit: int = 9) -> str:
        return pay(order, amount, iban, limit)

    numbers = {"amount": {"type": "number"}, "iban": {"type": "string"}, "limit": {"type": "integer"}}
    return Tool(
        name="pay",
        description="Pays.",
        parameters={
            "type": "object",
            "properties": {"order": {"type": "string"}, **numbers},
            "required": ["order"],
        },
        function=None if awaited else pay,
        async_function=pay_async if awaited else None,
        inputs_from_state=takes or {"amount": "amount", "iban": "iban", "limit": "limit"},
    )


def paying(*replies: Asking | str, awaited: bool = False, **options: Any) -> Agent:
    return Agent(
        chat_generator=scripted(*replies, "Over."),
        tools=[payment(awaited), set_target, find_target],
        state_schema={"amount": {"type": float}, "iban": {"type": str}, "limit": {"type": int}},
        **options,
    )


def asked(
    desk: Desk,
    *replies: Asking | str,
    state: dict[str, Any] | None = None,
    policies: dict[str, ToolPolicy] = POLICIES,
    run_async: bool | None = None,
    **options: Any,
) -> tuple[Session, Approval]:
    """A session that waits for the approval of a payment."""
    desk.agent(lambda: paying(*replies, **options), policies=policies, run_async=run_async)
    session = desk.run(desk.start(state=GIVEN if state is None else state))
    return session, Approval.objects.get(session=session, decision="")


def approve(desk: Desk, session: Session, approval: Approval, **how: Any) -> Session:
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, **how)
    return desk.run(session)


def told(desk: Desk, session: Session) -> list[str]:
    return [text for role, text in desk.texts(session) if role == "tool"]


# What the request carries


def test_a_request_carries_what_the_tool_would_be_given_from_the_state_beside_the_arguments(
    desk: Desk,
) -> None:
    _, approval = asked(desk, [PAY])
    assert approval.arguments == {"order": "A1"}
    assert approval.from_state == {"amount": {"amount": 5.0}, "iban": {"iban": "DE1"}}
    digests = approval.from_state_digests
    assert digests is not None
    assert {name: (row["key"], bool(row["digest"])) for name, row in digests.items()} == {
        "amount": ("amount", True),
        "iban": ("iban", True),
        "limit": ("limit", False),
    }
    assert approval.fingerprint != fingerprint("pay", approval.arguments)


def test_what_the_model_gives_itself_is_not_taken_from_the_state(desk: Desk) -> None:
    call = ToolCall("pay", {"order": "A1", "amount": 7.0}, id="p1")
    session, approval = asked(desk, [call])
    assert approval.from_state == {"iban": {"iban": "DE1"}}
    assert approve(desk, session, approval).final_answer == "Over."
    assert paid() == ["7 to DE1 for A1, at most 9"]


def test_a_tool_that_takes_nothing_from_the_state_is_asked_about_as_before(desk: Desk) -> None:
    session, approval = asked(
        desk, [ToolCall("find_target", {"iban": "X"}, id="f1")], policies={"find_target": POLICIES["pay"]}
    )
    assert (approval.from_state, approval.from_state_digests) == (None, None)
    assert approval.fingerprint == fingerprint("find_target", {"iban": "X"})
    assert approve(desk, session, approval).final_answer == "Over."


def test_of_a_large_value_the_beginning_is_stored_and_the_whole_is_compared(desk: Desk) -> None:
    account = "DE" + "1" * 40_000
    session, approval = asked(desk, [PAY], state={"iban": account})
    assert approval.from_state is not None
    shown = approval.from_state["iban"]["iban"]
    assert shown == f"{account[:MOST_SHOWN]}… (40,002 characters in all)"
    StateValue.objects.filter(branch__session=session, key="iban").update(value=f"{account[:-1]}2")
    assert approve(desk, session, approval).final_answer == "Over."
    assert paid() == []


def test_a_large_value_is_masked_before_it_is_cut_off(desk: Desk, settings: Any) -> None:
    settings.AGENTSTATE_MASK_PATTERNS = [r"\bDE44\d{12}\b"]
    account = "x" * (MOST_SHOWN - 8) + " DE44123456789012 and " + "y" * MOST_SHOWN
    _, approval = asked(desk, [PAY], state={"iban": account})
    assert "DE44" not in str(approval.from_state)
    assert HIDDEN in str(approval.from_state)


def test_of_a_huge_value_the_size_is_stored(desk: Desk) -> None:
    _, approval = asked(desk, [PAY], state={"iban": "1" * 210_000})
    assert approval.from_state == {"iban": {"iban": "(210,002 characters)"}}


# What the approved call runs with


@pytest.mark.parametrize("awaited", [False, True], ids=["a function", "async"])
def test_an_approved_call_runs_with_what_was_shown(desk: Desk, awaited: bool) -> None:
    session, approval = asked(desk, [PAY], awaited=awaited)
    assert approve(desk, session, approval).final_answer == "Over."
    assert paid() == ["5 to DE1 for A1, at most 9"]


@pytest.mark.parametrize("awaited", [False, True], ids=["a function", "async"])
@pytest.mark.parametrize("run_async", [None, True], ids=["sync", "async run"])
@pytest.mark.parametrize("change", ["set_target", "find_target"])
def test_a_call_that_an_earlier_call_of_its_step_gives_something_else_is_not_run(
    desk: Desk, awaited: bool, run_async: bool | None, change: str
) -> None:
    evil = ToolCall(change, {"iban": "EVIL"}, id="s1")
    session, approval = asked(desk, [evil, PAY], awaited=awaited, run_async=run_async)
    session = approve(desk, session, approval)
    assert (session.status, session.final_answer) == (Status.IDLE, "Over.")
    assert paid() == []
    call = Call.objects.get(pk=approval.call_id)
    assert (call.status, call.started_at) == (CallStatus.FAILED, None)
    assert call.error.startswith(CHANGED)
    assert any(CHANGED in text for text in told(desk, session))


def test_the_model_that_asks_again_is_approved_with_what_the_state_holds_then(desk: Desk) -> None:
    again = ToolCall("pay", {"order": "A1"}, id="p2")
    session, approval = asked(desk, [EVIL, PAY], [again])
    approve(desk, session, approval)
    [second] = Approval.objects.filter(session=session, decision="")
    assert second.from_state is not None
    assert second.from_state["iban"] == {"iban": "EVIL"}
    assert approve(desk, session, second).final_answer == "Over."
    assert paid() == ["5 to EVIL for A1, at most 9"]


def test_of_two_calls_of_one_step_only_the_one_that_is_given_something_else_is_not_run(desk: Desk) -> None:
    own = ToolCall("pay", {"order": "B2", "iban": "OWN"}, id="p2")
    desk.agent(lambda: paying([EVIL, PAY, own]), policies=POLICIES)
    session = desk.run(desk.start(state=GIVEN))
    for approval in Approval.objects.filter(session=session):
        actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id)
    assert desk.run(session).final_answer == "Over."
    assert paid() == ["5 to OWN for B2, at most 9"]


def test_a_value_that_appears_in_the_state_after_the_request_is_a_change(desk: Desk) -> None:
    session, approval = asked(desk, [EVIL, PAY], state={"amount": 5.0})
    assert approve(desk, session, approval).final_answer == "Over."
    assert paid() == []


def test_a_call_that_is_tried_again_after_a_kill_is_compared_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies between the call that changes the State and the approved one."""
    session, approval = asked(desk, [EVIL, PAY])
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id)
    monkeypatch.setattr(state_arguments, "why_changed", dies_at_pay)
    lost(desk, session)
    monkeypatch.undo()
    assert desk.calls(session)[0].status == CallStatus.DONE
    assert desk.run(session).final_answer == "Over."
    assert paid() == []


def dies_at_pay(tool: Tool, record: Any, kwargs: Any) -> str:
    if tool.name == "pay":
        raise Died
    return ""


def test_a_call_that_was_interrupted_and_is_given_something_else_fails_with_the_warning(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, approval = asked(desk, [PAY], policies={"pay": ToolPolicy(approval=True, idempotent=True)})
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id)
    monkeypatch.setattr(sys.modules[__name__], "effect", dies)
    lost(desk, session)
    monkeypatch.undo()
    StateValue.objects.filter(branch__session=session, key="iban").update(value="DE2")
    assert desk.run(session).final_answer == "Over."
    assert paid() == []
    assert "An earlier attempt may have taken effect." in Call.objects.get(pk=approval.call_id).error


def test_a_call_that_was_interrupted_runs_again_with_what_was_approved(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, approval = asked(desk, [PAY])
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id)
    monkeypatch.setattr(sys.modules[__name__], "effect", dies)
    lost(desk, session)
    monkeypatch.undo()
    assert desk.run(session).waiting_for == "doubt"
    actions.decide(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, again=True, reason="no")
    assert desk.run(session).final_answer == "Over."
    assert paid() == ["5 to DE1 for A1, at most 9"]


def dies(what: str) -> None:
    raise Died


def test_a_refused_call_ends_the_turn_of_an_agent_that_raises_what_its_tools_raise(desk: Desk) -> None:
    session, approval = asked(desk, [EVIL, PAY], raise_on_tool_invocation_failure=True)
    session = approve(desk, session, approval)
    assert (session.status, session.phase) == (Status.IDLE, "error")
    assert CHANGED in session.error
    assert desk.run(desk.resume(session)).waiting_for == "approval"
    [second] = Approval.objects.filter(session=session, decision="")
    assert second.from_state is not None
    assert second.from_state["iban"] == {"iban": "EVIL"}
    assert paid() == []


def test_a_call_whose_result_is_cached_is_compared_too(desk: Desk) -> None:
    policies = {"pay": ToolPolicy(approval=True, cache_ttl=60)}
    session, approval = asked(desk, [EVIL, PAY], policies=policies)
    approve(desk, session, approval)
    assert Call.objects.get(pk=approval.call_id).status == CallStatus.FAILED


def test_the_text_of_a_refused_call_is_stored_also_if_its_results_are_redacted(desk: Desk) -> None:
    session, approval = asked(desk, [EVIL, PAY], policies={"pay": ToolPolicy(approval=True, redacted=True)})
    assert approve(desk, session, approval).final_answer == "Over."
    assert Call.objects.get(pk=approval.call_id).error.startswith(CHANGED)


# What people change


def test_an_edited_argument_takes_the_place_of_what_the_state_holds(desk: Desk) -> None:
    session, approval = asked(desk, [EVIL, PAY])
    session = approve(desk, session, approval, edited={"order": "A1", "iban": "MINE"})
    assert session.final_answer == "Over."
    assert paid() == ["5 to MINE for A1, at most 9"]


def test_an_edited_call_is_compared_with_what_was_shown(desk: Desk) -> None:
    session, approval = asked(desk, [EVIL, PAY])
    assert approve(desk, session, approval, edited={"order": "B2"}).final_answer == "Over."
    assert paid() == []


def test_an_argument_that_a_person_removes_is_not_taken_from_the_state_unseen(desk: Desk) -> None:
    session, approval = asked(desk, [ToolCall("pay", {"order": "A1", "iban": "OWN"}, id="p1")])
    assert approve(desk, session, approval, edited={"order": "A1"}).final_answer == "Over."
    assert paid() == []


def repaired(session: Session, approval: Approval, **values: Any) -> Approval:
    """The copy of the request on the branch of the repair."""
    actions.edit_state(actor=SYSTEM, session_id=session.pk, values=values, reason="another account")
    return Approval.objects.exclude(pk=approval.pk).get(session=session)


def test_a_state_that_is_repaired_after_the_approval_is_not_what_was_approved(desk: Desk) -> None:
    session, approval = asked(desk, [PAY])
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id)
    approved = Approval.objects.get(pk=approval.pk)
    copy = repaired(session, approval, iban="EVIL")
    assert (copy.from_state, copy.from_state_digests) == (approved.from_state, approved.from_state_digests)
    assert copy.fingerprint == approved.fingerprint
    actions.resume(actor=SYSTEM, session_id=session.pk, reason="go on")
    assert desk.run(session).final_answer == "Over."
    assert paid() == []


def test_an_open_request_shows_the_repaired_state_and_is_approved_with_it(desk: Desk) -> None:
    session, approval = asked(desk, [PAY])
    copy = repaired(session, approval, iban="DE2")
    assert from_state.of_request(copy) == {"amount": 5.0, "iban": "DE2", "limit": None}
    assert copy.fingerprint != approval.fingerprint
    run_again(desk, session)
    as_a_worker_asks = Approval.objects.get(pk=copy.pk)
    assert as_a_worker_asks.from_state == copy.from_state
    assert as_a_worker_asks.from_state_digests == copy.from_state_digests
    assert as_a_worker_asks.fingerprint == copy.fingerprint
    assert approve(desk, session, copy).final_answer == "Over."
    assert paid() == ["5 to DE2 for A1, at most 9"]


def test_an_open_request_shows_a_value_that_the_repair_gives_where_the_state_had_none(desk: Desk) -> None:
    session, approval = asked(desk, [PAY])
    StateValue.objects.filter(branch__session=session, key="iban").update(value=None)
    run_again(desk, session)
    assert from_state.of_request(Approval.objects.get(pk=approval.pk))["iban"] is None
    copy = repaired(session, approval, iban="DE2")
    assert from_state.of_request(copy)["iban"] == "DE2"
    assert approve(desk, session, copy).final_answer == "Over."
    assert paid() == ["5 to DE2 for A1, at most 9"]


def test_the_only_value_of_a_request_is_shown_that_the_repair_gives(desk: Desk) -> None:
    desk.agent(
        lambda: Agent(
            chat_generator=scripted([PAY], "Over."),
            tools=[payment(takes={"iban": "iban"})],
            state_schema={"iban": {"type": str}},
        ),
        policies=POLICIES,
    )
    session = desk.run(desk.start(state={"iban": "DE1"}))
    StateValue.objects.filter(branch__session=session, key="iban").update(value=None)
    run_again(desk, session)
    approval = Approval.objects.get(session=session)
    assert approval.from_state == {}
    copy = repaired(session, approval, iban="DE2")
    assert from_state.of_request(copy) == {"iban": "DE2"}
    assert approve(desk, session, copy).final_answer == "Over."
    assert paid() == ["1 to DE2 for A1, at most 9"]


@pytest.mark.parametrize("amount", [1e16, 1e300, -0.0, 0.1 + 0.2])
def test_a_number_that_databases_change_is_repaired_as_it_is(desk: Desk, amount: float) -> None:
    session, approval = asked(desk, [PAY])
    copy = repaired(session, approval, amount=amount)
    assert repr(from_state.of_request(copy)["amount"]) == repr(amount)
    assert approve(desk, session, copy).final_answer == "Over."
    assert paid() == [f"{amount:g} to DE1 for A1, at most 9"]
    actions.edit_state(actor=SYSTEM, session_id=session.pk, values={"amount": 7.5}, reason="back to normal")
    branch = desk.fresh(session).branch_id
    assert StateValue.objects.get(branch=branch, key="amount").value == 7.5


def test_of_a_step_with_an_ended_call_a_repaired_state_is_shown_once_a_worker_asks_again(desk: Desk) -> None:
    """What the ended call left in the State is there for the call behind it: only a worker can tell what that is."""
    session, approval = asked(desk, [EVIL, PAY])
    [other, _] = desk.calls(session)
    actions.answer_call(actor=SYSTEM, session_id=session.pk, call_id=other.pk, result="set", reason="by hand")
    answered = Approval.objects.exclude(pk=approval.pk).get(session=session)
    actions.edit_state(actor=SYSTEM, session_id=session.pk, values={"iban": "DE2"}, reason="another account")
    copy = Approval.objects.exclude(pk__in=[approval.pk, answered.pk]).get(session=session)
    assert copy.from_state_digests == approval.from_state_digests
    run_again(desk, session)
    assert from_state.of_request(Approval.objects.get(pk=copy.pk))["iban"] == "DE2"


def test_a_rewound_session_asks_with_what_the_state_holds_there(desk: Desk) -> None:
    session, approval = asked(desk, [ToolCall("find_target", {"iban": "DE2"}, id="f1")], [PAY])
    assert approval.from_state is not None
    assert approval.from_state["iban"] == {"iban": "DE2"}
    start = Checkpoint.objects.filter(branch__session=session, kind="step").latest("position")
    actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="again", run=True)
    session = desk.run(session)
    [second] = Approval.objects.filter(session=session).exclude(pk=approval.pk)
    assert second.from_state_digests == approval.from_state_digests
    assert approve(desk, session, second).final_answer == "Over."
    assert paid() == ["5 to DE2 for A1, at most 9"]


def test_a_fork_asks_and_runs_with_its_own_state(desk: Desk) -> None:
    session, approval = asked(desk, [PAY])
    start = Checkpoint.objects.filter(branch__session=session).latest("position")
    fork = actions.fork(
        actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="what if", run=True
    )
    fork = desk.run(fork)
    [own] = Approval.objects.filter(session=fork)
    assert own.from_state_digests == approval.from_state_digests
    assert approve(desk, fork, own).final_answer == "Over."
    assert paid() == ["5 to DE1 for A1, at most 9"]


def test_a_call_that_is_answered_with_the_result_on_record_is_not_compared(desk: Desk) -> None:
    session, approval = asked(desk, [PAY])
    session = approve(desk, session, approval)
    start = Checkpoint.objects.filter(branch__session=session, kind="start").latest("position")
    actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="again", run=True)
    session = desk.run(session)
    [second] = Approval.objects.filter(session=session, decision="")
    Approval.objects.filter(pk=second.pk).update(from_state_digests={"iban": {"key": "iban", "digest": "x"}})
    actions.reuse(actor=SYSTEM, session_id=session.pk, call_id=second.call_id)
    assert desk.run(session).final_answer == "Over."
    assert len(paid()) == 1
    assert Call.objects.get(pk=second.call_id).status == CallStatus.DONE


def test_a_request_of_an_earlier_version_runs_as_before(desk: Desk) -> None:
    session, approval = asked(desk, [EVIL, PAY])
    Approval.objects.update(from_state=None, from_state_digests=None)
    assert approve(desk, session, approval).final_answer == "Over."
    assert paid() == ["5 to EVIL for A1, at most 9"]


def run_again(desk: Desk, session: Session) -> None:
    """Let the session that waits be run, as after a crash of the database that lost its last commit."""
    due = {"status": Status.QUEUED, "next_run_at": timezone.now(), "waiting_for": ""}
    Session.objects.filter(pk=session.pk).update(**due)
    desk.run(session)


def test_a_request_that_is_open_while_the_state_changes_shows_the_new_value_and_has_another_fingerprint(
    desk: Desk,
) -> None:
    session, approval = asked(desk, [PAY])
    StateValue.objects.filter(branch__session=session, key="iban").update(value="DE2")
    run_again(desk, session)
    renewed = Approval.objects.get(pk=approval.pk)
    assert renewed.from_state is not None
    assert renewed.from_state["iban"] == {"iban": "DE2"}
    assert renewed.arguments == approval.arguments
    assert renewed.fingerprint != approval.fingerprint
    assert shown_fingerprint(renewed) != shown_fingerprint(approval)


def test_a_request_that_is_made_again_unchanged_keeps_its_fingerprint(desk: Desk) -> None:
    session, approval = asked(desk, [PAY])
    run_again(desk, session)
    assert Approval.objects.get(pk=approval.pk).fingerprint == approval.fingerprint


# Values of every kind


@dataclass
class Order:
    """Of a class that cannot be stored."""

    number: int
    parts: tuple[str, ...] = ("a", "b")


class Client_:
    """An object whose text is its address."""


class Currency(StrEnum):
    EUR = "eur"


class Amounts(dict[str, int]):
    """A subclass of a plain type."""


def in_itself() -> list[Any]:
    values: list[Any] = [1]
    values.append(values)
    return values


VALUES: dict[str, Callable[[], Any]] = {
    "a text": lambda: "DE1 \x00 ü \ud800",
    "numbers": lambda: [1, 1.0, True, -0.0, 1e23, float("nan"), float("inf"), 2**70, 1 << 14_000],
    "bytes": lambda: b"\x00\xff",
    "times": lambda: {"at": datetime(2026, 1, 2, tzinfo=UTC), "of": Decimal("1.20"), "path": Path("/x")},
    "collections": lambda: [(1, 2), {3, "b"}, frozenset({"x"}), deque([1]), deque([1], maxlen=2)],
    "keys in an order": lambda: {"zz": 1, "a": {"b": 2, "aa": 3}},
    "keys that are no text": lambda: {1: "a", (2, 3): "b", None: "c"},
    "a key of ours": lambda: {"$type": "set", "value": [1]},
    "messages": lambda: [
        ChatMessage.from_user("hi", meta={"z": 1, "a": {"page": 2}}),
        ChatMessage.from_assistant("", tool_calls=[ToolCall("pay", {"b": 1, "a": 2}, id="x")]),
    ],
    "documents": lambda: [
        Document(content="letter", meta={"z": 1, "a": 2}, score=0.3, embedding=[0.1, -0.0]),
        ByteStream(b"x", mime_type="a/b", meta={"z": 1, "a": 2}),
    ],
    "an object": lambda: Order(7),
    "an object with its address": lambda: [Client_(), {"client": Client_()}],
    "an enumeration": lambda: {"currency": Currency.EUR},
    "a subclass": lambda: {"amounts": Amounts(b=1, a=2)},
    "itself": in_itself,
    "a function": lambda: len,
}


def shown_of(value: Any) -> StateArgument:
    [argument] = (
        state_arguments.taken(
            payment(takes={"iban": "iban"}), {}, State({"iban": {"type": object}}, {"iban": value})
        )
        or {}
    ).values()
    return argument


def as_postgresql_returns(data: Any) -> Any:
    if isinstance(data, list):
        return [as_postgresql_returns(item) for item in data]
    if not isinstance(data, dict):
        return data
    return {key: as_postgresql_returns(data[key]) for key in sorted(data, key=lambda key: (len(key), key))}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_the_digest_is_the_same_for_a_value_that_comes_from_a_checkpoint(value: Callable[[], Any]) -> None:
    live = value()
    stored, _ = encode_marked(live)
    argument = shown_of(live)
    from_checkpoint = decode(json.loads(json.dumps(stored)))
    from_postgresql = decode(as_postgresql_returns(stored))
    assert argument.digest
    assert shown_of(from_checkpoint) == argument
    assert shown_of(from_postgresql).digest == argument.digest
    assert shown_of(decode(encode_marked(from_checkpoint)[0])) == argument
    assert shown_of(value()).digest == argument.digest
    assert digest(with_order(without_order(stored))) == argument.digest
    json.dumps(argument.value, allow_nan=False)


def test_values_that_a_tool_tells_apart_have_other_digests() -> None:
    values: list[Any] = [
        1,
        1.0,
        True,
        "1",
        [1],
        (1,),
        {1},
        {"a": 1},
        {"a": 1.0},
        b"1",
        Decimal(1),
        Order(1),
        Order(2),
    ]
    assert len({shown_of(value).digest for value in values}) == len(values)
    assert shown_of(None).digest == ""


@pytest.mark.parametrize(
    "name", ["documents", "messages", "times", "an object", "an object with its address"]
)
def test_values_of_other_types_reach_the_approved_call(desk: Desk, name: str) -> None:
    @tool(outputs_to_state={"found": {"source": "found"}})
    def find() -> dict[str, Any]:
        """Finds."""
        return {"found": VALUES[name]()}

    @tool(inputs_from_state={"found": "what"})
    def send(to: Annotated[str, "whom"], what: Any) -> str:
        """Sends."""
        effect(f"{type(what).__name__} to {to}")
        return "sent"

    calls = [ToolCall("find", {}, id="f1")], [ToolCall("send", {"to": "Ann"}, id="s1")]
    desk.agent(
        lambda: Agent(
            chat_generator=scripted(*calls, "Over."),
            tools=[find, send],
            state_schema={"found": {"type": object}},
        ),
        policies={"send": POLICIES["pay"]},
    )
    session = desk.run(desk.start())
    approval = Approval.objects.get(session=session)
    assert list(approval.from_state_digests or {}) == ["what"]
    assert approve(desk, session, approval).final_answer == "Over."
    assert len(paid()) == 1


def test_what_haystack_itself_keeps_in_the_state_is_neither_shown_nor_compared(desk: Desk) -> None:
    """An edited argument changes the conversation."""

    @tool(inputs_from_state={"messages": "history", "step_count": "steps"})
    def send(to: Annotated[str, "whom"], history: list[ChatMessage], steps: int) -> str:
        """Sends."""
        effect(f"{len(history)} messages to {to}")
        return "sent"

    calls = [ToolCall("send", {"to": "Ann"}, id="s1")]
    desk.agent(
        lambda: Agent(chat_generator=scripted(calls, "Over."), tools=[send]),
        policies={"send": POLICIES["pay"]},
    )
    session = desk.run(desk.start())
    approval = Approval.objects.get(session=session)
    assert approval.from_state == {}
    assert approve(desk, session, approval, edited={"to": "Bob"}).final_answer == "Over."
    assert paid() == ["3 messages to Bob"]


def test_an_object_that_a_hook_makes_before_the_tools_of_each_run_is_the_same(desk: Desk) -> None:
    @hook
    def connect(state: State) -> None:
        state.set("iban", Client_())

    schema = {"amount": {"type": float}, "iban": {"type": object}, "limit": {"type": int}}
    desk.agent(
        lambda: Agent(
            chat_generator=scripted([PAY], "Over."),
            tools=[payment()],
            state_schema=schema,
            hooks={"before_tool": [connect]},
        ),
        policies=POLICIES,
    )
    session = desk.run(desk.start())
    assert approve(desk, session, Approval.objects.get(session=session)).final_answer == "Over."
    assert len(paid()) == 1


def test_a_tool_that_runs_an_agent_is_compared_as_any_other(desk: Desk) -> None:
    def build() -> Agent:
        inner = Agent(
            chat_generator=scripted([ToolCall("pay", {"order": "A1"}, id="i1")], "Inner over."),
            tools=[payment()],
            system_prompt="Pay {{ iban }}.",
            user_prompt="Pay.",
            required_variables=["iban"],
            state_schema={"amount": {"type": float}, "limit": {"type": int}},
        )
        helper = AgentTool(
            agent=inner, name="helper", description="Helps.", inputs_from_state={"iban": "iban"}
        )
        return Agent(
            chat_generator=scripted([EVIL, ToolCall("helper", {"messages": []}, id="h1")], "Over."),
            tools=[helper, set_target],
            state_schema={"iban": {"type": str}},
        )

    desk.agent(build, policies={"helper": POLICIES["pay"]})
    session = desk.run(desk.start(state={"iban": "DE1"}))
    approval = Approval.objects.get(session=session)
    assert approval.from_state == {"iban": {"iban": "DE1"}}
    assert approve(desk, session, approval).final_answer == "Over."
    assert paid() == []


# In scripts


def test_a_script_sees_it_and_its_call_is_compared_after_the_file_was_opened_again(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"

    def durable() -> DurableAgent:
        return DurableAgent(paying([EVIL, PAY]), file, policies=POLICIES)

    outcome = durable().run("hi", amount=5.0, iban="DE1")
    assert isinstance(outcome, Waiting)
    assert outcome.pending[0].arguments == {"order": "A1"}
    assert outcome.pending[0].from_state == {"amount": 5.0, "iban": "DE1"}
    durable().decide("p1", approve=True)
    assert durable().resume().text == "Over."
    assert paid() == []
    assert CHANGED in file.read_text()


def test_a_script_runs_the_approved_call_with_what_was_shown(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    DurableAgent(paying([PAY]), file, policies=POLICIES).run("hi", amount=5.0, iban="DE" + "1" * 9_000)
    [request] = [line for line in file.read_text().splitlines() if '"asks"' in line]
    assert len(request) < 2 * MOST_SHOWN
    script = DurableAgent(paying([PAY]), file, policies=POLICIES)
    script.decide("p1", approve=True)
    assert script.resume().text == "Over."
    assert len(paid()) == 1


def test_the_record_of_a_tool_that_takes_nothing_from_the_state_is_as_before(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    calls = [ToolCall("find_target", {"iban": "X"}, id="f1")]
    DurableAgent(paying(calls), file, policies={"find_target": POLICIES["pay"]}).run("hi")
    [request] = json.loads(file.read_text().splitlines()[-1])["stop"]["asks"]
    assert "from_state" not in request
    with FileJournal.open(file) as journal:
        assert journal.load().calls[0].approval == ApprovalRecord("")


def test_the_text_of_a_file_shows_what_is_taken_from_the_state(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    DurableAgent(paying([PAY]), file, policies=POLICIES).run("hi", amount=5.0, iban="DE1")
    with FileJournal.open(file) as journal:
        assert 'from the State: amount=5.0, iban="DE1"' in show(journal.store)


# On the pages


def pages_of(session: Session, approval: Approval) -> dict[str, str]:
    """Where a person decides about the call, and where it is shown otherwise."""
    here, call = f"/sessions/{session.pk}/", approval.call_id
    return {
        "session": here,
        "inbox": "/inbox/",
        "approve": f"{here}approve/?call={call}",
        "reject": f"{here}reject/?call={call}",
        "call": f"{here}calls/{call}/",
        "raw": f"{here}calls/{call}/?raw",
        "json": f"{here}json/",
    }


def text(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


LISTED = re.compile(r'<dl class="asked" aria-label="From the State">.*?</dl>', re.DOTALL)


def listed(page: str) -> str:
    """What the page's list says, without its elements."""
    [found] = LISTED.findall(page)
    return " ".join(re.sub(r"<[^>]+>", " ", found).split())


@pytest.mark.parametrize("where", ["session", "inbox", "approve", "reject"])
def test_wherever_a_person_decides_it_is_shown_and_cannot_be_edited(
    desk: Desk, operator: Client, where: str
) -> None:
    session, approval = asked(desk, [PAY])
    page = text(operator, pages_of(session, approval)[where])
    assert listed(page) == "Amount 5.0 Iban DE1 Limit not in the State"
    assert not re.search(r"<(input|textarea|select)", "".join(LISTED.findall(page)))


def test_a_request_without_anything_from_the_state_has_no_such_list(desk: Desk, operator: Client) -> None:
    session, approval = asked(
        desk, [ToolCall("find_target", {"iban": "X"}, id="f1")], policies={"find_target": POLICIES["pay"]}
    )
    for page in pages_of(session, approval).values():
        assert "From the State" not in text(operator, page)
        assert "from_state" not in text(operator, page)


def test_it_is_shown_in_the_format_of_the_policy(desk: Desk, operator: Client) -> None:
    policies = {"pay": ToolPolicy(approval=True, formats={"amount": "money:EUR"})}
    session, approval = asked(desk, [PAY], policies=policies)
    assert "Amount €5.00" in listed(text(operator, pages_of(session, approval)["session"]))


def test_programs_and_the_command_line_are_told_it(desk: Desk, operator: Client, capsys: Any) -> None:
    session, approval = asked(desk, [PAY])
    expected = {"amount": 5.0, "iban": "DE1", "limit": None}
    pages = pages_of(session, approval)
    assert json.loads(text(operator, pages["raw"]))["from_state"] == expected
    call_command("agent", "show", str(session.pk), "--json")
    [call] = json.loads(capsys.readouterr().out)["tool_calls"]
    assert call["from_state"] == expected
    call_command("agent", "show", str(session.pk))
    assert f"p1 from the State: {json.dumps(expected)}" in capsys.readouterr().out


def test_a_call_in_doubt_is_shown_with_what_it_was_given(
    desk: Desk, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, approval = asked(desk, [PAY])
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id)
    monkeypatch.setattr(sys.modules[__name__], "effect", dies)
    lost(desk, session)
    monkeypatch.undo()
    assert desk.run(session).waiting_for == "doubt"
    for page in (
        "/inbox/",
        f"/sessions/{session.pk}/",
        f"/sessions/{session.pk}/decide/?call={approval.call_id}",
    ):
        assert listed(text(operator, page)) == "Amount 5.0 Iban DE1 Limit not in the State"


@pytest.mark.parametrize(
    "keys, patterns",
    [(["iban"], []), (["target"], []), ([], [r"DE\d{3}"])],
    ids=["key", "argument", "pattern"],
)
def test_a_value_is_hidden_by_the_name_of_its_state_key_or_of_its_argument_and_by_patterns(
    desk: Desk, operator: Client, settings: Any, keys: list[str], patterns: list[str]
) -> None:
    """The tool calls the State's `iban` its `target`."""
    settings.AGENTSTATE_MASK_KEYS, settings.AGENTSTATE_MASK_PATTERNS = keys, patterns

    @tool(inputs_from_state={"iban": "target"})
    def send(order: Annotated[str, "order"], target: str) -> str:
        """Sends."""
        return "sent"

    calls = [ToolCall("send", {"order": "A1"}, id="p1")]
    desk.agent(
        lambda: Agent(
            chat_generator=scripted(calls, "Over."), tools=[send], state_schema={"iban": {"type": str}}
        ),
        policies={"send": POLICIES["pay"]},
    )
    session = desk.run(desk.start(state={"iban": "DE777"}))
    approval = Approval.objects.get(session=session)
    assert approval.from_state == {"iban": {"target": "DE777"}}
    digest = (approval.from_state_digests or {})["target"]["digest"]
    for where, address in pages_of(session, approval).items():
        if (where, keys) == ("json", ["target"]):
            continue  # which has the inputs of the session, where this is no `target`
        page = text(operator, address)
        assert "DE777" not in page
        assert digest not in page
        assert approval.fingerprint not in page
        if where in ("session", "inbox", "approve", "reject"):
            assert listed(page) == f"Target {HIDDEN}"


def test_a_supervisor_reveals_it_and_the_audit_trail_says_so(
    desk: Desk, supervisor: Client, settings: Any
) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["iban"]
    session, approval = asked(desk, [PAY])
    position = approval.call.position
    page = text(supervisor, f"/sessions/{session.pk}/")
    assert f'value="from_state:{position}"' in page
    assert "DE1" not in page
    answer = supervisor.post(f"/sessions/{session.pk}/reveal/", {"value": f"from_state:{position}"})
    assert "DE1" in answer.content.decode()
    assert desk.last_event(session).data["what"].startswith("what was shown of the State of call")


def test_a_form_that_shows_another_value_than_there_is_now_is_refused(desk: Desk, operator: Client) -> None:
    """As those of several requests are, which compare nothing else."""
    session, approval = asked(desk, [PAY])
    ticked = f"{approval.pk}:{shown_fingerprint(approval)}"
    StateValue.objects.filter(branch__session=session, key="iban").update(value="DE2")
    run_again(desk, session)
    answer = operator.post("/approvals/batch/", {"decision": "approve", "call": ticked, "tool": "pay"})
    assert "have changed since you were shown them" in answer.content.decode()
    assert Approval.objects.get(pk=approval.pk).decision == ""
