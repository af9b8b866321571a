"""With `ToolPolicy(redacted=True)` of a result only what the agent's hooks left is stored, whatever happens."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.dataclasses import ChatMessage, TextContent, ToolCall
from haystack.hooks import hook
from haystack.tools import Tool

from agentstate import ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.durable.port import LeaseLost
from agentstate.durable.registry import AgentBuildFailed
from agentstate.durable.run import run, run_async
from agentstate.journals import FileJournal, MemoryJournal
from sessions_app.models import CallStatus, Phase, Status
from tests.driving import Desk
from tests.dying import Died
from tests.sample_agents import effect, effects, scripted
from tests.test_durable_run import DyingJournal, comparable

pytestmark = pytest.mark.usefixtures("no_effects")

SECRET = "4111-1111"
POLICIES = {"card": ToolPolicy(redacted=True, idempotent=True)}


def hide(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(SECRET, "****")
    return [TextContent(part.text.replace(SECRET, "****")) for part in value]


@hook
def redact(state: State) -> None:
    messages = [
        ChatMessage.from_tool(hide(result.result), origin=result.origin, error=result.error)
        if (result := message.tool_call_result)
        else message
        for message in state.data["messages"]
    ]
    state.set("messages", messages, handler_override=replace_values)


def show_card(name: str) -> str:
    effect(f"card({name})")
    return f"{name} has the card {SECRET}"


def fail(name: str) -> str:
    raise ValueError(f"{name} has no card like {SECRET}")


def list_cards(name: str) -> list[TextContent]:
    return [TextContent(f"{name} has {SECRET}")]


def with_handler(value: str) -> str:
    return f"<<{value}>>"


async def show_later(name: str) -> str:
    await asyncio.sleep(0)
    return show_card(name)


def carded(function: Callable[..., Any] = show_card, **options: Any) -> Agent:
    """An agent whose tool returns a secret, which a hook takes out of the conversation."""
    is_async = asyncio.iscoroutinefunction(function)
    tool = Tool(
        name="card",
        description="Shows a card.",
        parameters={"type": "object", "properties": {"name": {"type": "string"}}},
        function=None if is_async else function,
        async_function=function if is_async else None,
        **options,
    )
    calls = [ToolCall("card", {"name": "Ann"}, id="c1"), ToolCall("card", {"name": "Bob"}, id="c2")]
    return Agent(chat_generator=scripted(calls, "Over."), tools=[tool], hooks={"after_tool": [redact]})


def recording(journal: MemoryJournal) -> list[Any]:
    """All that is written from now on, as a file would hold it."""
    written: list[Any] = []
    write = journal.store.write

    def writing(record: dict[str, Any]) -> None:
        written.append(record)
        write(record)

    journal.store.write = writing  # type: ignore[method-assign]
    return written


TOOLS: dict[str, Callable[[], Agent]] = {
    "text": carded,
    "failure": lambda: carded(fail),
    "parts": lambda: carded(list_cards, outputs_to_string={"raw_result": True}),
    "handler": lambda: carded(outputs_to_string={"handler": with_handler}),
}


@pytest.mark.slow
@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("name", TOOLS)
def test_killed_at_any_write_it_gives_what_the_plain_agent_gives_and_stores_no_secret(
    name: str, committed: bool
) -> None:
    plain = comparable(TOOLS[name]().run([ChatMessage.from_user("hi")]))
    durable = make_durable(TOOLS[name](), policies=POLICIES)
    number, died = 0, True
    while died:
        number += 1
        journal = DyingJournal.open(say="hi")
        assert isinstance(journal, DyingJournal)
        journal.dies_at, journal.committed = number, committed
        written = recording(journal)
        died = False
        try:
            outcome = run(durable, journal)
        except (Died, LeaseLost):
            died = True
            outcome = run(durable, MemoryJournal.open(journal.store))
        if outcome.result is not None:  # else it died when all was done
            assert comparable(outcome.result) == plain, f"write {number}"
        assert journal.store.outcome["final_answer"] == "Over."
        assert SECRET not in json.dumps(written, default=str), f"write {number}"
        assert "****" in json.dumps(written, default=str)
    assert number > 6


def test_the_secret_is_in_no_byte_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    with FileJournal.open(path, say="hi") as journal:
        assert (
            asyncio.run(run_async(make_durable(carded(show_later), policies=POLICIES), journal)).status
            == "idle"
        )
        assert [call.result for call in journal.store.calls.values()] == [
            "Ann has the card ****",
            "Bob has the card ****",
        ]
    assert SECRET.encode() not in path.read_bytes()


def test_a_call_that_ended_before_the_hooks_ran_is_in_doubt_unless_it_is_idempotent(desk: Desk) -> None:
    fails = [True]

    @hook
    def careless(state: State) -> None:
        if fails.pop():
            raise RuntimeError("the hook has a mistake")

    def build() -> Agent:
        agent = carded()
        agent.hooks["after_tool"] = [careless, redact]
        return agent

    desk.agent(build, policies={"card": ToolPolicy(redacted=True)})
    session = desk.run(desk.start())
    assert (session.phase, session.error) == (Phase.ERROR, "RuntimeError: the hook has a mistake")
    session = desk.run(desk.resume(session))
    assert session.status == Status.WAITING
    assert [call.call_id for call in desk.doubts(session)] == ["c1", "c2"]
    assert effects == ["model(0)", "card(Ann)", "card(Bob)"]


@pytest.mark.slow
def test_the_text_of_a_failure_that_ends_the_turn_is_not_stored(desk: Desk) -> None:
    desk.agent(
        lambda: Agent(
            chat_generator=scripted([ToolCall("card", {"name": "Ann"}, id="c1")], "Over."),
            tools=carded(fail).tools,
            hooks={"after_tool": [redact]},
            raise_on_tool_invocation_failure=True,
        ),
        policies=POLICIES,
    )
    session = desk.run(desk.start())
    told = "Tool `card` failed. What it said is not stored, since the tool's results are redacted."
    assert (session.phase, session.error) == (Phase.ERROR, told)
    assert [(call.status, call.error) for call in desk.calls(session)] == [(CallStatus.FAILED, told)]
    session = desk.run(desk.resume(session))  # a new attempt, which fails like the first
    assert [call.status for call in desk.calls(session)] == [CallStatus.FAILED, CallStatus.FAILED]


def test_on_the_desk_the_call_and_the_conversation_hold_what_the_hook_left(desk: Desk) -> None:
    desk.agent(carded, policies=POLICIES)
    session = desk.run(desk.start())
    assert session.final_answer == "Over."
    assert [call.result for call in desk.calls(session)] == ["Ann has the card ****", "Bob has the card ****"]
    assert [text for role, text in desk.texts(session) if role == "tool"] == [
        "Ann has the card ****",
        "Bob has the card ****",
    ]


@pytest.mark.parametrize(
    "options, where",
    [
        ({"outputs_to_state": {"cards": {"source": "cards"}}}, "the State (outputs_to_state)"),
        (
            {"outputs_to_string": {"a": {"source": "a"}, "b": {"source": "b"}}},
            "several outputs (outputs_to_string)",
        ),
    ],
)
def test_a_tool_whose_result_goes_elsewhere_cannot_be_redacted(options: dict[str, Any], where: str) -> None:
    with pytest.raises(AgentBuildFailed) as refused:
        make_durable(carded(**options), policies=POLICIES)
    assert f"cannot be redacted, since they go to {where} too." in str(refused.value)


def test_redacted_results_are_not_cached() -> None:
    with pytest.raises(ValueError, match="redacted and cache_ttl exclude each other"):
        ToolPolicy(redacted=True, cache_ttl=60)
