"""A durable run leaves nothing on the user's tools: they and their copies are what they are without it."""

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool
from haystack.tools.errors import ToolInvocationError

from agentstate import ToolPolicy, idempotency_key
from agentstate.durable.agent import make_durable
from agentstate.durable.definition import fingerprint
from agentstate.durable.run import Outcome, run, run_async
from agentstate.journals import MemoryJournal
from tests.dying import Died
from tests.sample_agents import scripted
from tests.test_durable_run import DyingJournal

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}}
COPIES = [copy.copy, copy.deepcopy]
both_copies = pytest.mark.parametrize("copied", COPIES, ids=["copy", "deepcopy"])
both_kinds = pytest.mark.parametrize("is_async", [False, True], ids=["function", "async_function"])


def tool(
    function: Callable[..., Any], is_async: bool = False, kind: type[Tool] = Tool, **options: Any
) -> Tool:
    async def awaited(n: int) -> Any:
        return function(n)

    by = {"async_function": awaited} if is_async else {"function": function}
    return kind(name="pay", description="Pays.", parameters=NUMBER, **by, **options)


def agent(pay: Tool) -> Agent:
    return Agent(chat_generator=scripted([ToolCall(pay.name, {"n": 1}, id="c1")], "Done."), tools=[pay])


def durably(of: Agent, journal: MemoryJournal | None = None, **options: Any) -> Outcome:
    durable, journal = make_durable(of, **options), journal or MemoryJournal.open(say="hi")
    return asyncio.run(run_async(durable, journal)) if durable.async_only else run(durable, journal)


def plainly(of: Agent) -> None:
    hi = [ChatMessage.from_user("hi")]
    [pay] = of.tools
    assert isinstance(pay, Tool)
    if pay.function is None:
        asyncio.run(of.run_async(hi))
    else:
        of.run(hi)


@both_copies
@both_kinds
def test_a_copy_of_a_tool_that_was_in_a_durable_run_is_recorded_as_itself(
    copied: Callable[[Tool], Tool], is_async: bool
) -> None:
    keys: list[str] = []

    def paying(n: int) -> str:
        keys.append(idempotency_key())
        return "paid"

    pay = tool(paying, is_async)
    durably(agent(pay))
    refund = copied(pay)
    refund.name = "refund"
    journal = MemoryJournal.open(say="hi", session_id="other")
    assert durably(agent(refund), journal).status == "idle"

    [call] = journal.store.calls.values()
    assert (call.tool, call.status, call.result) == ("refund", "done", "paid")
    assert keys[1:] == [call.idempotency_key]


@both_copies
@both_kinds
def test_a_copy_of_a_tool_whose_process_dies_in_its_call_is_in_doubt(
    copied: Callable[[Tool], Tool], is_async: bool
) -> None:
    paid: list[int] = []

    def paying(n: int) -> str:
        paid.append(n)
        return "paid"

    pay = tool(paying, is_async)
    durably(agent(pay))
    refund = copied(pay)
    refund.name = "refund"
    journal = DyingJournal.open(say="hi")
    assert isinstance(journal, DyingJournal)
    journal.dies_at = 3  # the end of the call
    with pytest.raises(Died):
        durably(agent(refund), journal)
    outcome = durably(agent(refund), MemoryJournal.open(journal.store))

    assert (outcome.status, paid) == ("waiting", [1, 1]), outcome.why


class Customer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.paid: list[int] = []

    def pay(self, n: int) -> str:
        self.paid.append(n)
        return f"paid to {self.name}"

    async def pay_async(self, n: int) -> str:
        return self.pay(n)

    def shown(self, result: Any) -> str:
        return f"{self.name}: {result}"


@both_kinds
@pytest.mark.parametrize("runs", [plainly, durably], ids=["plain", "durable"])
def test_a_deep_copy_of_an_agent_runs_its_own_objects(runs: Callable[[Agent], Any], is_async: bool) -> None:
    anna = Customer("Anna")
    by: Any = {"async_function": anna.pay_async} if is_async else {"function": anna.pay}
    outputs = {"handler": anna.shown}
    pay = Tool(name="pay", description="Pays.", parameters=NUMBER, outputs_to_string=outputs, **by)
    for_anna = agent(pay)
    durably(for_anna)
    for_ben = copy.deepcopy(for_anna)
    [bens] = for_ben.tools
    assert isinstance(bens, Tool)
    ben = getattr(bens.function or bens.async_function, "__self__", None)
    assert isinstance(ben, Customer)
    assert ben is not anna
    ben.name = "Ben"
    runs(for_ben)

    assert (anna.paid, ben.paid) == ([1], [1, 1])
    assert bens.outputs_to_string is not None
    assert bens.outputs_to_string["handler"]("it") == "Ben: it"


@both_copies
@both_kinds
def test_a_copy_that_is_given_another_function_calls_that_in_a_plain_run(
    copied: Callable[[Tool], Tool], is_async: bool
) -> None:
    called: list[str] = []
    send = tool(lambda n: called.append("send"), is_async)
    durably(agent(send))
    other, another = copied(send), tool(lambda n: called.append("other"), is_async)
    other.function, other.async_function = another.function, another.async_function
    plainly(agent(other))
    assert called == ["send", "other"]


HANDLERS: dict[str, Callable[[Any], Any]] = {
    "a partial": functools.partial(round, ndigits=1),
    "an object": type("Shown", (), {"__call__": lambda self, value: f"{value:.2f}"})(),
    "a method": Customer("Anna").shown,
    "a function": str,
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_a_tool_is_the_same_after_a_durable_run(handler: Callable[[Any], Any]) -> None:
    price = tool(lambda n: 1.25, outputs_to_string={"handler": handler})
    before, attributes = copy.copy(price), dict(vars(price))
    definition = fingerprint(agent(price))
    durably(agent(price))

    assert vars(price) == attributes
    assert price == before
    assert fingerprint(agent(price)) == make_durable(agent(price)).definition == definition


class Own(Tool):
    """Its methods are decorated as those of Haystack's, and called by position too."""

    @functools.wraps(Tool.invoke)
    def invoke(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return f"own {super().invoke(**kwargs, **dict(zip('n', args, strict=False)))}"


class Awaited(Tool):
    async def invoke_async(self, **kwargs: Any) -> Any:
        return f"awaited {await super().invoke_async(**kwargs)}"


@dataclass(slots=True)
class Slotted(Tool):
    more: int = 0


def test_a_tool_of_a_class_with_methods_of_its_own_is_recorded_once() -> None:
    durably(agent(tool(lambda n: "paid")))
    for kind, result, is_async in (
        (Own, "own paid", False), (Awaited, "awaited paid", True), (Slotted, "paid", False),
    ):  # fmt: skip
        journal = MemoryJournal.open(say="hi")
        assert durably(agent(tool(lambda n: "paid", is_async, kind=kind)), journal).status == "idle"
        [call] = journal.store.calls.values()
        assert (call.status, call.result, call.attempt) == ("done", result, 1)
    assert tool(lambda n: "paid", kind=Own).invoke(*[1]) == "own paid"
    assert inspect.iscoroutinefunction(Tool.invoke_async)


@dataclass
class Order:
    title: str


@pytest.mark.parametrize("kind", [Tool, Slotted])
def test_what_a_handler_made_of_an_object_is_replayed_whatever_the_class_of_the_tool(
    kind: type[Tool],
) -> None:
    seen: list[Order] = []

    def title(order: Order) -> str:
        seen.append(order)
        return order.title

    order = tool(lambda n: Order("shoes"), kind=kind, outputs_to_string={"handler": title})
    journal = DyingJournal.open(say="hi")
    assert isinstance(journal, DyingJournal)
    journal.dies_at, journal.committed = 3, True  # the end of the call
    with pytest.raises(Died):
        durably(agent(order), journal)
    outcome = durably(agent(order), MemoryJournal.open(journal.store))

    assert outcome.result is not None, outcome.why
    assert outcome.result["messages"][2].tool_call_result.result == "shoes"
    assert seen == [Order("shoes")]
    assert order.outputs_to_string == {"handler": title}


class Reached:
    """A user's own wrapper, set on one tool."""

    def __init__(self, of: Tool) -> None:
        self.of = of
        self.calls = 0

    def __call__(self, **kwargs: Any) -> Any:
        self.calls += 1
        return type(self.of).invoke(self.of, **kwargs)


@both_copies
def test_a_method_that_is_set_on_a_tool_is_recorded_and_copied_with_it(
    copied: Callable[[Tool], Tool],
) -> None:
    pay = tool(lambda n: "paid")
    reached = Reached(pay)
    pay.invoke = reached  # type: ignore[method-assign]
    for _ in range(2):
        durably(agent(pay))
    refund = copied(pay)
    refund.name = "refund"
    journal = MemoryJournal.open(say="hi")
    assert durably(agent(refund), journal).status == "idle"
    [call] = journal.store.calls.values()
    assert (call.tool, call.status, call.attempt) == ("refund", "done", 1)
    # As without durable runs: a shallow copy has the same object as its method.
    assert reached.calls == (3 if copied is copy.copy else 2)
    plainly(agent(pay))
    assert reached.calls == (4 if copied is copy.copy else 3)


def test_a_failure_of_a_copy_is_its_own() -> None:
    def fails(n: int) -> str:
        raise ValueError("no money")

    pay = tool(fails)
    durably(agent(pay), policies={"pay": ToolPolicy(idempotent=True)})
    refund = copy.copy(pay)
    refund.name = "refund"
    with pytest.raises(ToolInvocationError, match="`refund`"):
        refund.invoke(n=1)
