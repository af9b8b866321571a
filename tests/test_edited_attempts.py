"""Arguments that a person has set for a call are those of each new attempt of it, whoever has to approve that."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall as Call
from haystack.tools import Tool

import agentstate
from agentstate import Breakpoint, DurableAgent, ToolPolicy
from agentstate.journals import MemoryJournal
from agentstate.journals.show import show
from sessions_app import actions
from sessions_app.access.roles import Actor
from sessions_app.models import Approval, CallStatus, Event, EventKind, Session, Status, ToolCall, WaitingFor
from tests import builders
from tests.adapters import FileAdapter, MemoryAdapter
from tests.driving import Desk
from tests.sample_agents import effect, effects, scripted

pytestmark = pytest.mark.usefixtures("no_effects")

# What may ask a person before an attempt.
POLICIES = {
    "idempotent": ToolPolicy(idempotent=True),
    "not idempotent": ToolPolicy(),
    "with approval": ToolPolicy(approval=True),
    "idempotent with approval": ToolPolicy(idempotent=True, approval=True),
}
ASKED = [name for name in POLICIES if name != "idempotent"]


def paying(failures: int = 1) -> Callable[[], Agent]:
    """An agent that asks for a payment of 100, which fails so many times and then ends the turn."""
    remaining = [failures]

    def pay(amount: int) -> str:
        effect(f"pay({amount}) with {agentstate.idempotency_key()}")
        if remaining[0]:
            remaining[0] -= 1
            raise ConnectionError("the bank is away")
        return f"paid {amount}"

    parameters = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
    tool = Tool(name="pay", description="Pays.", parameters=parameters, function=pay)
    model = scripted([Call("pay", {"amount": 100}, id="c1")], "Over.")
    return lambda: Agent(chat_generator=model, tools=[tool], raise_on_tool_invocation_failure=True)


def paid() -> list[str]:
    return [what.partition(" ")[0] for what in effects if what.startswith("pay")]


def keys() -> set[str]:
    return {what.partition(" with ")[2] for what in effects if what.startswith("pay")}


def failed_with_ten(desk: Desk, policy: ToolPolicy, failures: int = 1) -> Session:
    """A session whose payment a person has changed from 100 to 10, and which has then failed."""
    desk.agent(paying(failures), policies={"pay": policy}, breakpoints=[Breakpoint("pay")])
    session = desk.run(desk.start())
    anna = builders.user("supervisor", "anna")
    call: dict[str, Any] = {"actor": Actor.of(anna), "session_id": session.pk, "call_id": "c1"}
    if policy.approval:
        actions.approve(**call, edited={"amount": 10})
        session = desk.run(session)
    else:
        actions.change_arguments(**call, arguments={"amount": 10})
    session = desk.run(desk.resume(session))
    assert paid() == ["pay(10)"]
    assert session.is_failed
    return session


def attempt_of(session: Session) -> ToolCall:
    return ToolCall.objects.select_related("approval").filter(branch=session.branch).latest("position")


def test_an_attempt_that_nobody_is_asked_about_runs_with_the_arguments_that_a_person_set(desk: Desk) -> None:
    session = failed_with_ten(desk, POLICIES["idempotent"], failures=2)
    session = desk.run(desk.resume(session))
    assert session.is_failed
    session = desk.run(desk.resume(session))
    assert (session.status, session.final_answer) == (Status.IDLE, "Over.")
    assert paid() == ["pay(10)"] * 3
    assert len(keys()) == 1
    assert Approval.objects.filter(session=session, decision="").count() == 0


@pytest.mark.parametrize("policy", ASKED)
def test_an_attempt_that_has_to_be_approved_is_asked_about_with_the_arguments_that_a_person_set(
    desk: Desk, client: Client, policy: str
) -> None:
    session = desk.run(desk.resume(failed_with_ten(desk, POLICIES[policy])))
    assert (session.status, session.waiting_for) == (Status.WAITING, WaitingFor.APPROVAL)
    assert paid() == ["pay(10)"]
    attempt = attempt_of(session)
    assert (attempt.arguments, attempt.ran_with) == ({"amount": 100}, {"amount": 10})
    client.force_login(builders.user("supervisor", "ben"))
    page = client.get(f"/sessions/{session.pk}/").content.decode()
    assert 'value="10"' in page

    actions.approve(actor=builders.SYSTEM, session_id=session.pk, call_id="c1")
    session = desk.run(session)

    assert (session.status, session.final_answer) == (Status.IDLE, "Over.")
    assert paid() == ["pay(10)", "pay(10)"]


def test_whoever_approves_an_attempt_may_change_its_arguments_again(desk: Desk) -> None:
    session = desk.run(desk.resume(failed_with_ten(desk, POLICIES["not idempotent"])))
    actions.approve(actor=builders.SYSTEM, session_id=session.pk, call_id="c1", edited={"amount": 7})
    assert desk.run(session).final_answer == "Over."
    assert paid() == ["pay(10)", "pay(7)"]


def test_an_attempt_that_waits_at_a_breakpoint_is_found_by_the_name_of_its_call(desk: Desk) -> None:
    desk.agent(paying(), policies={"pay": POLICIES["idempotent"]})
    session = desk.run(desk.start())
    assert session.is_failed
    actions.set_breakpoint(actor=builders.SYSTEM, session_id=session.pk, tool="pay")
    session = desk.run(desk.resume(session))
    assert session.at_breakpoint is not None
    actions.change_arguments(
        actor=builders.SYSTEM, session_id=session.pk, call_id="c1", arguments={"amount": 7}
    )
    assert desk.run(desk.resume(session)).final_answer == "Over."
    assert paid() == ["pay(100)", "pay(7)"]


def test_the_call_and_the_audit_trail_say_who_set_the_arguments_of_an_attempt(
    desk: Desk, client: Client
) -> None:
    session = desk.run(desk.resume(failed_with_ten(desk, POLICIES["idempotent"])))
    attempt = attempt_of(session)
    assert attempt.status == CallStatus.DONE
    assert (attempt.sent, attempt.approval.decided_by) == ({"amount": 10}, "anna")
    client.force_login(builders.user("supervisor", "ben"))
    call_page = client.get(f"/sessions/{session.pk}/calls/{attempt.pk}/").content.decode()
    assert "amount 100 -&gt; 10" in call_page
    timeline = client.get(f"/sessions/{session.pk}/").content.decode()
    assert timeline.count("changed by <b>anna</b>") == 2  # of the call that failed, and of the attempt
    [*_, resumed] = Event.objects.filter(session=session, kind=EventKind.RESUMED).order_by("position")
    audit = client.get(f"/sessions/{session.pk}/audit/").content.decode()
    row = audit.partition(f'<tr id="e{resumed.position}">')[2].partition("</tr>")[0]
    assert "changed from the request: amount 100 -&gt; 10" in row


# In scripts


@pytest.fixture(params=["memory", "file"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], MemoryJournal]]:
    """Opens the session's journal at its next epoch, as a new process does."""
    adapter = MemoryAdapter() if request.param == "memory" else FileAdapter(tmp_path / "session.jsonl")

    def reopen() -> MemoryJournal:
        adapter.open("")
        return adapter.journal

    yield reopen
    adapter.close()


def script_failed_with_ten(
    reopen: Callable[[], MemoryJournal], policy: ToolPolicy
) -> Callable[[], DurableAgent]:
    agent = paying()()

    def script() -> DurableAgent:
        return DurableAgent(agent, reopen(), policies={"pay": policy})

    script().run("hi", break_point=Breakpoint("pay"))
    script().decide("c1", arguments={"amount": 10}, approve=True if policy.approval else None)
    script().resume()
    assert paid() == ["pay(10)"]
    return script


def test_an_attempt_in_a_script_runs_with_the_arguments_that_a_person_set(
    reopen: Callable[[], MemoryJournal],
) -> None:
    script = script_failed_with_ten(reopen, POLICIES["idempotent"])
    assert script().resume().text == "Over."
    assert paid() == ["pay(10)", "pay(10)"]
    assert len(keys()) == 1


@pytest.mark.parametrize("policy", ASKED)
def test_an_attempt_in_a_script_is_asked_about_with_the_arguments_that_a_person_set(
    reopen: Callable[[], MemoryJournal], policy: str
) -> None:
    script = script_failed_with_ten(reopen, POLICIES[policy])
    script().resume()
    [pending] = script().pending()
    assert (pending.waits_for, pending.arguments) == ("approval", {"amount": 10})
    assert "pay(amount=10)" in show(reopen().store)

    script().decide("c1", approve=True)
    assert script().resume().text == "Over."
    assert paid() == ["pay(10)", "pay(10)"]
