"""A person approves what a call is given from the State, and the call runs with that."""

from typing import Annotated, Any

import pytest
from haystack import Document
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ToolCall
from haystack.tools import tool

from agentstate import ToolPolicy
from sessions_app import actions
from sessions_app.models import Approval, Session
from tests.builders import SYSTEM
from tests.driving import Desk
from tests.sample_agents import effect, effects, scripted

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_effects")]

SHOWN = {"order": "A1", "amount": 5.0, "iban": "DE1"}


@tool
def set_target(iban: Annotated[str, "account"], amount: Annotated[float, "amount"], state: State) -> str:
    """Sets what is paid to whom."""
    state.set("iban", iban)
    state.set("amount", amount)
    return "set"


def paying(*calls: ToolCall) -> Agent:
    """An agent whose tool `pay` takes the amount and the account from the State."""

    @tool(inputs_from_state={"amount": "amount", "iban": "iban"})
    def pay(order: Annotated[str, "order"], amount: float, iban: str) -> str:
        """Pays."""
        effect(f"{amount:g} to {iban} for {order}")
        return "paid"

    return Agent(
        chat_generator=scripted(list(calls), "Over."),
        tools=[pay, set_target],
        state_schema={"amount": {"type": float}, "iban": {"type": str}},
    )


def asked(desk: Desk, *calls: ToolCall) -> tuple[Session, Approval]:
    desk.agent(lambda: paying(*calls), policies={"pay": ToolPolicy(approval=True)})
    session = desk.run(desk.start(state={"amount": 5.0, "iban": "DE1"}))
    return session, Approval.objects.get(session=session)


def approve(desk: Desk, session: Session, approval: Approval, **how: Any) -> Session:
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, **how)
    return desk.run(session)


def test_an_approved_call_runs_with_what_was_shown_whatever_another_call_of_its_step_sets(desk: Desk) -> None:
    change = ToolCall("set_target", {"iban": "EVIL", "amount": 9999.0}, id="s1")
    session, approval = asked(desk, change, ToolCall("pay", {"order": "A1"}, id="p1"))
    assert approval.arguments == SHOWN
    assert approve(desk, session, approval).final_answer == "Over."
    assert [each for each in effects if " to " in each] == ["5 to DE1 for A1"]


@pytest.mark.parametrize(
    "edited, paid",
    [
        ({**SHOWN, "order": "B2"}, "5 to DE1 for B2"),
        ({**SHOWN, "amount": 4.0}, "4 to DE1 for A1"),
    ],
    ids=["the model's", "the State's"],
)
def test_a_person_may_change_what_the_model_asked_for_and_what_the_state_holds(
    desk: Desk, edited: dict[str, Any], paid: str
) -> None:
    session, approval = asked(desk, ToolCall("pay", {"order": "A1"}, id="p1"))
    assert approve(desk, session, approval, edited=edited).final_answer == "Over."
    assert [each for each in effects if " to " in each] == [paid]


def test_a_value_that_is_no_plain_json_reaches_the_tool_as_it_is(desk: Desk) -> None:
    @tool(outputs_to_state={"found": {"source": "documents"}})
    def find() -> dict[str, Any]:
        """Finds."""
        return {"documents": [Document(content="a letter")]}

    @tool(inputs_from_state={"found": "documents"})
    def send(to: Annotated[str, "whom"], documents: list[Document]) -> str:
        """Sends."""
        effect(f"{documents[0].content} to {to}")
        return "sent"

    def build() -> Agent:
        return Agent(
            chat_generator=scripted(
                [ToolCall("find", {}, id="f1")], [ToolCall("send", {"to": "Ann"}, id="s1")], "Over."
            ),
            tools=[find, send],
            state_schema={"found": {"type": list[Document]}},
        )

    desk.agent(build, policies={"send": ToolPolicy(approval=True)})
    session = desk.run(desk.start())
    approval = Approval.objects.get(session=session)
    assert "a letter" in str(approval.arguments)
    approve(desk, session, approval, edited={**approval.arguments, "to": "Bob"})
    assert [each for each in effects if " to " in each] == ["a letter to Bob"]
