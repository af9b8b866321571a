"""A person who changes one argument of a call leaves the others as they are, also those whose stored form has a tag."""

from collections.abc import Callable
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall as Call
from haystack.tools import Tool

from agentstate import Breakpoint, DurableAgent, ToolPolicy
from agentstate.journals import MemoryJournal
from sessions_app import actions
from sessions_app.access.errors import Invalid
from sessions_app.models import Approval, ToolCall
from tests.builders import SYSTEM
from tests.driving import Desk
from tests.sample_agents import scripted

pytestmark = pytest.mark.usefixtures("no_effects")

PAYLOAD = {"$type": "Order", "n": 1}
ASKED = {"order": "A", "amount": 1e16, "payload": PAYLOAD}
APPROVAL = {"send": ToolPolicy(approval=True)}


def sending(asked: dict[str, Any] = ASKED) -> tuple[Callable[[], Agent], list[dict[str, Any]]]:
    """An agent that asks for one call, and what its tool is given."""
    given: list[dict[str, Any]] = []

    def send(order: str, amount: float, payload: dict[str, Any]) -> str:
        given.append({"order": order, "amount": amount, "payload": payload})
        return "sent"

    types = {"order": "string", "amount": "number", "payload": "object"}
    parameters = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in types.items()},
        "required": list(types),
    }
    tool = Tool(name="send", description="Sends.", parameters=parameters, function=send)
    model = scripted([Call("send", asked, id="c1")], "Over.")
    return lambda: Agent(chat_generator=model, tools=[tool]), given


def test_whoever_approves_a_call_with_one_other_argument_leaves_the_others_as_they_are(desk: Desk) -> None:
    build, given = sending()
    desk.agent(build, policies=APPROVAL)
    session = desk.run(desk.start())
    shown = Approval.objects.get(session=session).arguments
    call: dict[str, Any] = {"actor": SYSTEM, "session_id": session.pk, "call_id": "c1"}
    with pytest.raises(Invalid, match="amount must be a number"):
        actions.approve(**call, edited={**shown, "amount": "much"})
    actions.approve(**call, edited={**shown, "order": "B"})
    assert desk.run(session).final_answer == "Over."
    assert given == [{**ASKED, "order": "B"}]
    row = ToolCall.objects.get(branch=session.branch)
    assert row.changed_arguments == ("order",)


def test_whoever_changes_one_argument_at_a_breakpoint_leaves_the_others_as_they_are(desk: Desk) -> None:
    build, given = sending()
    desk.agent(build, breakpoints=[Breakpoint("send")])
    session = desk.run(desk.start())
    shown = ToolCall.objects.get(branch=session.branch).ran_with
    actions.change_arguments(
        actor=SYSTEM, session_id=session.pk, call_id="c1", arguments={**shown, "order": "B"}
    )
    assert desk.run(desk.resume(session)).final_answer == "Over."
    assert given == [{**ASKED, "order": "B"}]


@pytest.mark.parametrize("payload", ["as it is shown", "as the model wrote it"])
def test_a_script_that_changes_one_argument_leaves_the_others_as_they_are(payload: str) -> None:
    build, given = sending()
    script = DurableAgent(build(), MemoryJournal.open(), policies=APPROVAL)
    script.run("hi")
    [pending] = script.pending()
    other = {"payload": PAYLOAD} if payload == "as the model wrote it" else {}
    script.decide("c1", approve=True, arguments={**pending.arguments, **other, "order": "B"})
    assert script.resume().text == "Over."
    assert given == [{**ASKED, "order": "B"}]


@pytest.mark.parametrize("at_breakpoint", [True, False])
def test_a_script_that_approves_a_call_runs_it_with_the_arguments_that_it_shows(at_breakpoint: bool) -> None:
    """Those that were set before, at the breakpoint or with an earlier approval."""
    build, given = sending()
    script = DurableAgent(build(), MemoryJournal.open(), policies=None if at_breakpoint else APPROVAL)
    stop = Breakpoint("send")
    if at_breakpoint:
        script.run("hi", break_point=stop)
        script.decide("c1", arguments={**ASKED, "order": "B"})
    else:
        script.run("hi")
        script.decide("c1", approve=True, arguments={**ASKED, "order": "B"})
        script.resume(break_point=stop)
    [pending] = script.pending()
    assert pending.arguments["order"] == "B"
    script.decide("c1", approve=True)
    assert script.resume().text == "Over."
    assert [arguments["order"] for arguments in given] == ["B"]


@pytest.mark.parametrize("amount", [1e16, 1.5], ids=["beside a tagged argument", "beside plain arguments"])
def test_a_number_that_a_person_has_changed_to_another_type_reaches_the_tool(
    desk: Desk, amount: float
) -> None:
    build, given = sending({**ASKED, "amount": amount, "payload": {"n": 1}})
    desk.agent(build, policies=APPROVAL)
    session = desk.run(desk.start())
    shown = Approval.objects.get(session=session).arguments
    edited = {**shown, "payload": {"n": True}}
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id="c1", edited=edited)
    assert desk.run(session).final_answer == "Over."
    assert given[0]["payload"]["n"] is True
