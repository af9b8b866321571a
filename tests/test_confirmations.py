"""Haystack's own strategies of confirmation do in a session what they do on a console, where people answer later."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks.human_in_the_loop import (
    AlwaysAskPolicy,
    AskOncePolicy,
    BlockingConfirmationStrategy,
    ConfirmationHook,
    ConfirmationUIResult,
    ToolExecutionDecision,
)
from haystack.tools import Tool

from agentstate import DurableAgent
from agentstate.durable.approvals import JournalConfirmationStrategy
from agentstate.journals import MemoryJournal
from agentstate.names import STAFF_NOTE
from tests.sample_agents import scripted

PAY = {"type": "object", "properties": {"a": {"type": "integer"}}}
both_ways = pytest.mark.parametrize("is_async", [False, True], ids=["run", "run_async"])


class Console:
    """It answers at once, as in a plain run; a durable run never asks it."""

    def __init__(self, answer: ConfirmationUIResult | None = None) -> None:
        self.answer = answer

    def get_user_confirmation(self, *args: Any, **kwargs: Any) -> ConfirmationUIResult:
        assert self.answer is not None, "a durable run never asks on a console"
        return self.answer

    def to_dict(self) -> dict[str, Any]:
        return {"type": "Console", "init_parameters": {}}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Console":
        return cls()


class Limited(BlockingConfirmationStrategy):
    """Nothing above 1,000 is paid, and below 100 nobody is asked."""

    def run(self, *, tool_name: str, tool_params: dict[str, Any], **inputs: Any) -> ToolExecutionDecision:
        call_id = inputs["tool_call_id"]
        if tool_params["a"] > 1000:
            return ToolExecutionDecision(tool_name, False, call_id, feedback="over the limit")
        if tool_params["a"] < 100:
            return ToolExecutionDecision(tool_name, True, call_id, final_tool_params=tool_params)
        return super().run(tool_name=tool_name, tool_params=tool_params, **inputs)


class LimitedAsync(BlockingConfirmationStrategy):
    async def run_async(self, *, tool_name: str, **inputs: Any) -> ToolExecutionDecision:
        if inputs["tool_params"]["a"] > 1000:
            return ToolExecutionDecision(tool_name, False, inputs["tool_call_id"], feedback="over the limit")
        return await super().run_async(tool_name=tool_name, **inputs)


def strategy(
    kind: type[BlockingConfirmationStrategy] = BlockingConfirmationStrategy,
    policy: Any = None,
    answer: ConfirmationUIResult | None = None,
    **texts: Any,
) -> BlockingConfirmationStrategy:
    console: Any = Console(answer)
    return kind(confirmation_policy=policy or AlwaysAskPolicy(), confirmation_ui=console, **texts)


def paying(paid: list[int], confirms: Any, *amounts: list[int]) -> Agent:
    """An agent that pays these amounts, those of a list at once."""

    def pay(a: int) -> str:
        paid.append(a)
        return f"paid {a}"

    steps = [
        [ToolCall("pay", {"a": amount}, id=f"p{step}-{number}") for number, amount in enumerate(each)]
        for step, each in enumerate(amounts)
    ]
    return Agent(
        chat_generator=scripted(*steps, "Done."),
        tools=[Tool(name="pay", description="Pays.", parameters=PAY, function=pay)],
        hooks={"before_tool": [ConfirmationHook({"pay": confirms})]},
    )


def until_it_waits(session: DurableAgent, is_async: bool = False, say: str = "") -> list[str]:
    """The ids of the calls for which the session waits after it ran."""
    if is_async:
        asyncio.run(session.run_async(say) if say else session.resume_async())
    else:
        session.run(say) if say else session.resume()
    return [call.call_id for call in session.pending()]


def told(messages: list[ChatMessage]) -> list[str]:
    """What the model is told of the calls: by their results, and by users' messages between them."""
    return [
        str(message.tool_call_result.result) if message.tool_call_result else message.text or ""
        for message in messages[1:]
        if message.tool_call_result or message.is_from("user")
    ]


@pytest.mark.parametrize(
    "kind, is_async",
    [(Limited, False), (Limited, True), (LimitedAsync, True)],
    ids=["run", "both", "run_async"],
)
def test_a_strategy_with_rules_of_its_own_keeps_them(
    kind: type[BlockingConfirmationStrategy], is_async: bool
) -> None:
    paid: list[int] = []
    session = DurableAgent(paying(paid, strategy(kind), [5, 500, 5000]), MemoryJournal.open())
    asked = until_it_waits(session, is_async, say="go")
    assert asked == (["p0-1"] if kind is Limited else ["p0-0", "p0-1"])
    for call_id in asked:
        session.decide(call_id, approve=True)
    assert until_it_waits(session, is_async) == []

    assert sorted(paid) == [5, 500]
    assert sorted(told(session.history())) == ["over the limit", "paid 5", "paid 500"]


class InExecutor(BlockingConfirmationStrategy):
    """It asks in a thread, to which asyncio does not give the context variables."""

    async def run_async(self, **inputs: Any) -> ToolExecutionDecision:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: self.run(**inputs))


class InThread(BlockingConfirmationStrategy):
    def run(self, **inputs: Any) -> ToolExecutionDecision:
        with ThreadPoolExecutor() as threads:
            return threads.submit(lambda: BlockingConfirmationStrategy.run(self, **inputs)).result()


class UnderAnotherName(BlockingConfirmationStrategy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.console = self.confirmation_ui

    def run(self, **inputs: Any) -> ToolExecutionDecision:
        self.console.get_user_confirmation(inputs["tool_name"], "", inputs["tool_params"])
        return super().run(**inputs)


class PassingOn(BlockingConfirmationStrategy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.other = BlockingConfirmationStrategy(*args, **kwargs)

    def run(self, **inputs: Any) -> ToolExecutionDecision:
        return self.other.run(**inputs)


@dataclass(frozen=True)
class Frozen(BlockingConfirmationStrategy):
    confirmation_policy: Any
    confirmation_ui: Any
    reject_template: str = "No."
    modify_template: str = "Changed."
    user_feedback_template: str = "{feedback}"


class WithoutPolicy(BlockingConfirmationStrategy):
    """It has none of what the others have."""

    def __init__(self, **options: Any) -> None:
        self.console = options["confirmation_ui"]

    def run(self, **inputs: Any) -> ToolExecutionDecision:
        return ToolExecutionDecision(inputs["tool_name"], False, inputs["tool_call_id"], feedback="never")


@pytest.mark.parametrize(
    "kind, is_async",
    [
        (InExecutor, True),
        (InThread, False),
        (UnderAnotherName, False),
        (PassingOn, False),
        (PassingOn, True),
        (Frozen, False),
    ],
)
@pytest.mark.parametrize("policy", [AlwaysAskPolicy, AskOncePolicy])
def test_no_strategy_asks_on_a_console_however_it_asks(
    kind: type[BlockingConfirmationStrategy], is_async: bool, policy: Any
) -> None:
    paid: list[int] = []
    session = DurableAgent(paying(paid, strategy(kind, policy()), [500]), MemoryJournal.open())
    [call] = until_it_waits(session, is_async, say="go")
    assert not paid
    session.decide(call, approve=True)
    assert until_it_waits(session, is_async) == []
    assert paid == [500]


def test_a_strategy_without_a_policy_decides_by_its_own_rules() -> None:
    session = DurableAgent(paying([], strategy(WithoutPolicy), [5]), MemoryJournal.open())
    assert until_it_waits(session, say="go") == []
    assert told(session.history()) == ["never"]


TEXTS: dict[str, Any] = {
    "reject_template": "No {tool_name}: ask the treasury.",
    "modify_template": "{tool_name} runs with {final_tool_params} now.",
    "user_feedback_template": "They say: {feedback}",
}


@pytest.mark.parametrize("message", ["", "Too much."])
@pytest.mark.parametrize("texts", [TEXTS, {}], ids=["own texts", "the texts of Haystack"])
def test_the_model_is_told_of_a_rejection_in_the_words_of_the_strategy(
    texts: dict[str, Any], message: str
) -> None:
    plain = paying([], strategy(answer=ConfirmationUIResult("reject", message), **texts), [5])
    expected = told(plain.run([ChatMessage.from_user("go")])["messages"])
    session = DurableAgent(paying([], strategy(**texts), [5]), MemoryJournal.open())
    [call] = until_it_waits(session, say="go")
    session.decide(call, approve=False, message=message)
    assert until_it_waits(session) == []
    assert told(session.history()) == expected


@both_ways
@pytest.mark.parametrize("message", ["", "Too much."])
def test_the_model_is_told_of_a_change_in_the_words_of_the_strategy_marked_as_coming_from_staff(
    message: str, is_async: bool
) -> None:
    answer = ConfirmationUIResult("modify", message, {"a": 7})
    plain = paying([], strategy(answer=answer, **TEXTS), [5])
    changed, result = told(plain.run([ChatMessage.from_user("go")])["messages"])
    session = DurableAgent(paying([], strategy(**TEXTS), [5]), MemoryJournal.open())
    [call] = until_it_waits(session, is_async, say="go")
    session.decide(call, approve=True, arguments={"a": 7}, message=message)
    assert until_it_waits(session, is_async) == []
    marked = f"{STAFF_NOTE} A person changed the arguments of 'pay'. {changed}"
    assert told(session.history())[:2] == [marked, result]


class OnceAbove(AskOncePolicy):
    """It asks once, and about large amounts only."""

    def should_ask(self, tool_name: str, tool_description: str, tool_params: dict[str, Any]) -> bool:
        return tool_params["a"] > 100 and super().should_ask(tool_name, tool_description, tool_params)


ONCE: dict[str, Callable[[], Any]] = {
    "Haystack's": lambda: strategy(policy=AskOncePolicy()),
    "a subclass": lambda: strategy(policy=OnceAbove()),
    "ours": lambda: JournalConfirmationStrategy(AskOncePolicy()),
}


@both_ways
@pytest.mark.parametrize("confirms", ONCE.values(), ids=ONCE)
def test_a_policy_that_asks_once_asks_once_in_a_session_whatever_process_runs_it(
    confirms: Callable[[], Any], is_async: bool
) -> None:
    store = MemoryJournal.open().store
    paid: list[int] = []

    def session() -> DurableAgent:
        agent = paying(paid, confirms(), [500], [500], [700], [500])  # another process has another policy
        return DurableAgent(agent, MemoryJournal.open(store))

    assert until_it_waits(session(), is_async, say="go") == ["p0-0"]
    session().decide("p0-0", approve=True)
    assert until_it_waits(session(), is_async) == ["p2-0"]
    session().decide("p2-0", approve=True)
    # As in a plain run: it remembers the last arguments of the tool.
    assert until_it_waits(session(), is_async) == ["p3-0"]
    assert paid == [500, 500, 700]


@pytest.mark.parametrize("decision", [{"approve": False}, {"approve": True, "arguments": {"a": 1}}])
def test_a_policy_that_asks_once_asks_again_what_was_not_approved_as_it_was(decision: dict[str, Any]) -> None:
    session = DurableAgent(paying([], strategy(policy=AskOncePolicy()), [500], [500]), MemoryJournal.open())
    [call] = until_it_waits(session, say="go")
    session.decide(call, **decision)
    assert len(until_it_waits(session)) == 1


def test_a_policy_that_asks_once_asks_again_in_another_session_and_of_what_was_discarded() -> None:
    agent = paying([], strategy(policy=AskOncePolicy()), [500], [500])
    session = DurableAgent(agent, MemoryJournal.open())
    [call] = until_it_waits(session, say="go")
    session.decide(call, approve=True)
    assert until_it_waits(session) == []

    first, *_ = session.checkpoints()
    session.resume(at=first)
    assert [call.call_id for call in session.pending()] == ["p0-0"]
    other = DurableAgent(agent, MemoryJournal.open())
    assert until_it_waits(other, say="go") == ["p0-0"]


def test_a_policy_with_a_memory_of_its_own_is_told_of_what_people_decide() -> None:
    class Learning(AlwaysAskPolicy):
        def __init__(self) -> None:
            self.learned: list[str] = []

        def update_after_confirmation(self, *args: Any) -> None:
            self.learned.append(args[-1].action)

    policy = Learning()
    session = DurableAgent(paying([], strategy(policy=policy), [5]), MemoryJournal.open())
    [call] = until_it_waits(session, say="go")
    assert policy.learned == []
    session.decide(call, approve=True)
    assert until_it_waits(session) == []
    assert policy.learned == ["confirm"]
