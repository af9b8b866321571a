"""What a person decides about a call in a script is stored as a run would store it, or refused before it is stored."""

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall
from haystack.tools import Tool

from agentstate import DurableAgent, ToolPolicy
from agentstate.durable.state.encoding import NotStorable
from agentstate.journals import MemoryJournal
from tests import sample_agents
from tests.dying import Died
from tests.sample_agents import scripted

pytestmark = pytest.mark.usefixtures("no_effects")

APPROVED = {"it": ToolPolicy(approval=True)}


@pytest.fixture(params=["memory", "file"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return tmp_path / "anna.jsonl" if request.param == "file" else MemoryJournal.open(session_id="anna")


def returning(result: Any) -> Agent:
    return sample_agents.one_tool(lambda: result)


def in_doubt(journal: Any) -> DurableAgent:
    """A session with the call `x1` in doubt."""

    def pay() -> str:
        raise Died

    durable = DurableAgent(sample_agents.one_tool(pay), journal)
    with pytest.raises(Died):
        durable.run("hi")
    assert durable.run("hi").finished is False
    return durable


def results(durable: DurableAgent) -> list[Any]:
    return [message.tool_call_result.result for message in durable.history() if message.tool_call_result]


@pytest.mark.parametrize(
    "result",
    [
        {"$type": "Receipt", "id": 7},
        [{"$type": "decimal", "value": "not a number"}],
        {"b": 1, "a": [None, True, 2.5]},
        Decimal("5.10"),
        {"on": date(2026, 7, 1)},
        "paid\x00 \ud800",
    ],
    ids=["a key $type", "a key $type inside", "a dict", "a Decimal", "a date", "a text that is replaced"],
)
def test_the_model_sees_a_decided_result_as_if_the_tool_had_returned_it(journal: Any, result: Any) -> None:
    durable = in_doubt(journal)
    durable.decide("x1", result=result)
    assert durable.resume().text == "Over."
    returned = DurableAgent(returning(result), MemoryJournal.open())
    assert returned.run("hi").text == "Over."
    assert results(durable) == results(returned)


def test_a_result_that_cannot_be_stored_is_refused_and_the_call_can_still_be_decided(journal: Any) -> None:
    durable = in_doubt(journal)
    with pytest.raises(
        NotStorable, match=r"the result\['paid'\] holds a builtins.object, which cannot be stored"
    ):
        durable.decide("x1", result={"paid": object()})
    assert [call.waits_for for call in durable.pending()] == ["doubt"]
    durable.decide("x1", result="paid")
    assert durable.resume().text == "Over."


def asking(seen: list[Any]) -> Agent:
    """An agent that calls a tool once with `what`, of which any value is allowed."""

    def function(what: Any) -> str:
        seen.append(what)
        return "done"

    made = Tool(
        name="it",
        description="it",
        parameters={"type": "object", "properties": {"what": {}}},
        function=function,
    )
    return Agent(chat_generator=scripted([ToolCall("it", {"what": 1}, id="x1")], "Over."), tools=[made])


@pytest.mark.parametrize("wrong", [Decimal("5"), {"in": {1, 2}}, {1: "one"}], ids=["Decimal", "set", "key"])
def test_arguments_that_are_not_json_are_refused_and_the_call_can_still_be_decided(
    journal: Any, wrong: Any
) -> None:
    seen: list[Any] = []
    durable = DurableAgent(asking(seen), journal, policies=APPROVED)
    durable.run("hi")
    with pytest.raises(NotStorable, match=r"arguments\['what'\].*Arguments are plain JSON"):
        durable.decide("x1", approve=True, arguments={"what": wrong})
    assert [call.waits_for for call in durable.pending()] == ["approval"]
    durable.decide("x1", approve=True, arguments={"what": 2})
    assert durable.resume().text == "Over."
    assert seen == [2]


def test_a_tool_gets_the_arguments_that_a_person_gave_with_what_cannot_be_stored_replaced(
    journal: Any,
) -> None:
    seen: list[Any] = []
    durable = DurableAgent(asking(seen), journal, policies=APPROVED)
    durable.run("hi")
    durable.decide(
        "x1", approve=True, arguments={"what": {"$type": "x", "of": ["a\ud800"]}}, message="b\ud800"
    )
    assert durable.resume().text == "Over."
    assert seen == [{"$type": "x", "of": ["a\ufffd"]}]


@pytest.mark.parametrize("how", [{"approve": False, "message": "No\ud800."}, {"skip": "No\ud800."}])
def test_a_text_for_the_model_has_what_cannot_be_stored_replaced(journal: Any, how: dict[str, Any]) -> None:
    if "skip" in how:
        durable = in_doubt(journal)
    else:
        durable = DurableAgent(asking([]), journal, policies=APPROVED)
        durable.run("hi")
    durable.decide("x1", **how)
    assert durable.resume().text == "Over."
    [told] = results(durable)
    assert "No\ufffd." in told
