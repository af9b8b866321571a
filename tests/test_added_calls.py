"""A tool call that a `before_tool` hook adds to the model's is held to the same policies as the model's own."""

from collections.abc import Callable
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ChatRole, ReasoningContent, TextContent, ToolCall
from haystack.hooks import hook
from haystack.hooks.human_in_the_loop import AlwaysAskPolicy, BlockingConfirmationStrategy, ConfirmationHook

from agentstate import ToolPolicy
from agentstate.durable.agent import WrappedAgent, make_durable
from agentstate.durable.run import run
from agentstate.journals import MemoryJournal
from tests.sample_agents import _NoConsole, effects, fast, refund, scripted

pytestmark = pytest.mark.usefixtures("no_effects")

REFUND = {"order": "A1", "amount": 5.0}
ids = iter(f"hook-{number}" for number in range(1000))


def adding(next_id: Callable[[], str | None]) -> Any:
    """A hook that adds a refund to what the model asks for."""

    @hook
    def add_refund(state: State) -> None:
        last = state.data["messages"][-1]
        added = ChatMessage.from_assistant(
            text=last.text, tool_calls=[*last.tool_calls, ToolCall("refund", REFUND, id=next_id())]
        )
        state.set("messages", [*state.data["messages"][:-1], added], handler_override=replace_values)

    return add_refund


def agent(*hooks: Any) -> Agent:
    return Agent(
        tool_concurrency_limit=1,
        chat_generator=scripted([ToolCall("fast", {"q": "a"}, id="m1")], "Over."),
        tools=[fast, refund],
        hooks={"before_tool": list(hooks)},
    )


def by_policy(next_id: Callable[[], str | None]) -> WrappedAgent:
    return make_durable(agent(adding(next_id)), policies={"refund": ToolPolicy(approval=True)})


def by_confirmation(next_id: Callable[[], str | None]) -> WrappedAgent:
    strategy = BlockingConfirmationStrategy(
        confirmation_policy=AlwaysAskPolicy(), confirmation_ui=_NoConsole()
    )
    return make_durable(agent(adding(next_id), ConfirmationHook({"refund": strategy})))


@pytest.mark.parametrize("build", [by_policy, by_confirmation])
@pytest.mark.parametrize(
    "next_id",
    [lambda: "h1", lambda: None, lambda: "m1", lambda: next(ids)],
    ids=["an id", "no id", "the id of another call", "another id each time"],
)
def test_an_added_call_waits_for_approval_and_runs_once_when_it_is_given(
    build: Callable[[Callable[[], str | None]], WrappedAgent], next_id: Callable[[], str | None]
) -> None:
    durable = build(next_id)
    journal = MemoryJournal.open(say="hi")

    outcome = run(durable, journal)

    assert (outcome.status, journal.store.last_end["waiting_for"]) == ("waiting", "approval")
    assert "refund(A1,5)" not in effects
    [added] = [call for call in journal.store.step_calls() if call.tool == "refund"]

    journal = MemoryJournal.open(journal.store)
    journal.decide(added.call_id, approve=True)
    outcome = run(durable, journal)

    assert (outcome.status, outcome.why) == ("idle", "")
    assert [effect for effect in effects if not effect.startswith("model")] == ["fast(a)", "refund(A1,5)"]


def test_a_rejected_call_of_a_hook_never_runs() -> None:
    durable = by_policy(lambda: None)
    journal = MemoryJournal.open(say="hi")
    run(durable, journal)
    [added] = [call for call in journal.store.step_calls() if call.tool == "refund"]

    journal = MemoryJournal.open(journal.store)
    journal.decide(added.call_id, approve=False, message="Not this one.")

    assert run(durable, journal).status == "idle"
    assert [effect for effect in effects if not effect.startswith("model")] == ["fast(a)"]


def of_many_parts(*ids: str | None) -> ChatMessage:
    """A reply of several texts and thoughts, with calls between them."""
    parts: list[Any] = []
    for number, call_id in enumerate(ids):
        parts += [ReasoningContent(f"think {number}"), TextContent(f"text {number}")]
        parts.append(ToolCall("fast", {"q": str(number)}, id=call_id))
    return ChatMessage(_role=ChatRole.ASSISTANT, _content=[*parts, TextContent("so")], _meta={"n": 1})


def replying(reply: ChatMessage, *hooks: Any) -> Agent:
    def answer(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        return ChatMessage.from_assistant("Over.") if messages[-1].tool_call_results else reply

    generator = MockChatGenerator(response_fn=answer)
    return Agent(chat_generator=generator, tools=[fast], hooks={"before_tool": list(hooks)})


def but_for_ids(message: ChatMessage) -> list[Any]:
    return [
        (part.tool_name, part.arguments) if isinstance(part, ToolCall) else part for part in message._content
    ]


@pytest.mark.parametrize("ids", [("a", "b"), ("a", "a"), (None, None), ("a", "x" * 201)], ids=str)
def test_a_reply_keeps_all_its_parts_in_their_order_whatever_the_ids_of_its_calls(
    ids: tuple[str | None, ...],
) -> None:
    reply = of_many_parts(*ids)
    outcome = run(make_durable(replying(reply)), MemoryJournal.open(say="hi"))
    assert outcome.result is not None, outcome.why
    kept = outcome.result["messages"][1]
    assert but_for_ids(kept) == but_for_ids(reply)
    assert kept.meta["n"] == 1
    assert len({call.id for call in kept.tool_calls}) == len(ids)


def test_a_message_to_which_a_hook_adds_a_call_without_an_id_keeps_all_its_parts() -> None:
    changed = of_many_parts("a", None, None)

    @hook
    def add(state: State) -> None:
        state.set("messages", [*state.data["messages"][:-1], changed], handler_override=replace_values)

    outcome = run(make_durable(replying(of_many_parts("a"), add)), MemoryJournal.open(say="hi"))
    assert outcome.result is not None, outcome.why
    assert but_for_ids(outcome.result["messages"][1]) == but_for_ids(changed)


@pytest.mark.parametrize("arguments", [None, {"q": "other"}])
def test_an_approved_reply_keeps_all_its_parts(arguments: dict[str, Any] | None) -> None:
    reply = of_many_parts("a", "b")
    durable = make_durable(replying(reply), policies={"fast": ToolPolicy(approval=True)})
    journal = MemoryJournal.open(say="hi")
    assert run(durable, journal).status == "waiting"
    journal = MemoryJournal.open(journal.store)
    journal.decide("a", approve=True, arguments=arguments)
    journal.decide("b", approve=True)
    outcome = run(durable, journal)
    assert outcome.result is not None, outcome.why
    expected = but_for_ids(reply)
    expected[2] = ("fast", arguments or {"q": "0"})
    [kept] = [message for message in outcome.result["messages"] if message.tool_calls]
    assert but_for_ids(kept) == expected
