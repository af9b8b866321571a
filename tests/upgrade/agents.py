"""The agents whose sessions lie in the stored databases: deterministic, and without a network.

The model goes by the messages alone. The user's last message names the tool calls of each step, and the final answer
repeats what the tools answered:

    look a + look b; pay A1 100

A stored session goes on with these agents after the upgrade. Leave them as they are: each change of an agent's
definition makes all its sessions wait for a person, and the stored answers are those of these functions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

from haystack import Document
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ByteStream, ChatMessage, GeneratedAnswer, ReasoningContent, ToolCall
from haystack.hooks import hook
from haystack.hooks.compaction import CompactionHook, SlidingWindowCompactor, SummarizationCompactor
from haystack.tools import tool

from agentstate import ToolPolicy, agent
from agentstate.durable.interruptions import Interruption

WORKS, CUT, SUMMED, HOOKED = "stored-works", "stored-cut", "stored-summed", "stored-hooked"
CHANGED, GONE, BROKEN = "stored-changed", "stored-gone", "stored-broken"
OURS = (WORKS, CUT, SUMMED, HOOKED, CHANGED, GONE)
HOUR = 3600.0
# The agents whose context is shortened stop after so many queries.
QUERIES = 7


class Killed(Interruption):
    """Stands for SIGKILL: nothing of the run comes after it."""


@dataclass
class Faults:
    """What goes wrong while a database is filled. Nothing goes wrong while a stored one is checked."""

    dies_in: set[str] = field(default_factory=set)
    """The process dies in the tools of these names, or in "model"."""

    model_raises: list[Exception] = field(default_factory=list)
    """The next calls of the model raise these."""

    meanwhile: Callable[[], object] | None = None
    """Somebody else does this during the next call of the model."""

    older: bool = False
    """Whether the agent `CHANGED` is built as it was before it was changed."""


faults = Faults()


def passes(name: str) -> None:
    """:raises Killed: if the process is to die here."""
    if name in faults.dies_in:
        raise Killed


# The tools


@tool
def look(q: Annotated[str, "what"]) -> str:
    """Looks something up; may be repeated, and its results are kept for a while."""
    passes("look")
    return f"look:{q}"


@tool
def read(q: Annotated[str, "what"]) -> str:
    """Reads something; may be repeated."""
    passes("read")
    return f"read:{q}"


@tool(outputs_to_state={"docs": {"source": "docs"}})
def fetch(q: Annotated[str, "what"]) -> dict[str, Any]:
    """Fetches a document into the State."""
    passes("fetch")
    return {"docs": [Document(id=q, content=f"document {q}", meta={"page": 3})], "n": 1}


@tool(inputs_from_state={"docs": "docs"})
def count(docs: list[Document]) -> str:
    """Reads the documents in the State."""
    return f"{len(docs)} documents: {', '.join(str(found.content) for found in docs)}"


@tool
def note(text: Annotated[str, "text"], state: State) -> str:
    """Adds to a list in the State by itself."""
    state.set("notes", [text])
    return f"noted: {', '.join(state.data['notes'])}"


@tool
def plan(text: Annotated[str, "steps, with commas between them"], state: State) -> str:
    """Replaces a value in the State."""
    state.set("plan", {"steps": text.split(","), "done": []})
    return f"planned: {text}"


VALUES: dict[str, Any] = {
    "answer": GeneratedAnswer("yes", "is it?", [Document(id="d", content="it is")]),
    "bytes": b"\x00\xff",
    "date": date(2026, 1, 5),
    "datetime": datetime(2026, 1, 5, 9, 30, tzinfo=UTC),
    "decimal": Decimal("12.50"),
    "dict": {1: "one", ("a", 2): "pair"},
    "document": Document(id="d", content="Grüße, 世界 🌍"),
    "float": [-0.0, 1e23, 0.1, float("inf")],
    "frozenset": frozenset({"a"}),
    "int": [2**70, 2**13_000],
    "message": ChatMessage.from_user("hello"),
    "none": None,
    "set": {1, 2},
    "stream": ByteStream(b"abc", mime_type="text/plain"),
    "timedelta": timedelta(days=1, seconds=2, microseconds=3),
    "tuple": (1, "a", True),
    "uuid": UUID(int=7),
}


@tool(outputs_to_string={"handler": str})
def store(q: Annotated[str, "anything"], state: State) -> dict[str, Any]:
    """Puts a value of each type that can be stored into the State."""
    state.set("values", VALUES)
    # The keys are not in the order of the alphabet, and their order has to be kept.
    return {"zebra": Decimal("1.0"), "ant": date(2026, 1, 5), "stored": q}


@tool
def weigh(q: Annotated[str, "anything"], state: State) -> str:
    """Compares the values in the State with those that were put there."""
    held = state.data.get("values") or {}
    other = sorted(name for name in VALUES if name not in held or not _same(held[name], VALUES[name]))
    return f"{len(held)} values, different: {', '.join(other) or 'none'}"


def _same(one: Any, other: Any) -> bool:
    # repr tells -0.0 from 0.0. It does not work for sets, which have no order, nor for very long integers.
    if isinstance(one, Document | ChatMessage | ByteStream | GeneratedAnswer):
        return type(one) is type(other) and bool(one == other)
    return (
        type(one) is type(other) and one == other and (isinstance(one, int | set) or repr(one) == repr(other))
    )


class _Odd:
    def __str__(self) -> str:
        return "something odd"


@tool
def odd(q: Annotated[str, "anything"]) -> Any:
    """Answers with what can be kept only as its text."""
    return _Odd()


@tool
def broken(q: Annotated[str, "what"]) -> str:
    """Fails each time."""
    raise ValueError(f"there is no {q}")


@tool
def post(q: Annotated[str, "what"]) -> str:
    """Has an effect that must not be repeated."""
    passes("post")
    return f"posted:{q}"


@tool
def pay(order: Annotated[str, "order"], amount: Annotated[int, "amount"]) -> str:
    """Pays money; a person has to say yes."""
    passes("pay")
    return f"paid {amount} for {order}"


@tool
def lend(order: Annotated[str, "order"], amount: Annotated[int, "amount"]) -> str:
    """Lends money; a person has to say yes within an hour."""
    passes("lend")
    return f"lent {amount} for {order}"


@tool
def finish(text: Annotated[str, "the answer"]) -> str:
    """Ends the turn."""
    return f"finished: {text}"


TOOLS = (look, read, fetch, count, note, plan, store, weigh, odd, broken, post, pay, lend, finish)
ARGUMENTS = {"pay": ("order", "amount"), "lend": ("order", "amount"), "count": ()} | dict.fromkeys(
    ("note", "plan", "finish"), ("text",)
)


# The models


def _trouble() -> None:
    callback, faults.meanwhile = faults.meanwhile, None
    if callback is not None:
        callback()
    passes("model")
    if faults.model_raises:
        raise faults.model_raises.pop(0)


def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
    """What the next step of the user's last message asks for, else the final answer."""
    _trouble()
    users = [n for n, message in enumerate(messages) if message.is_from("user") and not _of_a_hook(message)]
    since = messages[users[-1] :]
    said = since[0].text or ""
    steps = [step for step in said.split(";") if step.strip()]
    done = 1 + max((int((call.id or "").split("-")[1]) for m in since for call in m.tool_calls), default=-1)
    asked = _calls(steps[done], f"{len(users)}-{done}") if done < len(steps) else []
    if asked:
        return ChatMessage.from_assistant(
            f"Step {done + 1}.",
            tool_calls=asked,
            reasoning=ReasoningContent(f"The user wants {steps[done].strip()}."),
            meta={"usage": {"prompt_tokens": 10 * len(messages), "completion_tokens": 5 * len(asked)}},
        )
    results = [str(result.result) for message in since for result in message.tool_call_results]
    return ChatMessage.from_assistant(f"Done: {' | '.join(results)}" if results else f"You said: {said}")


def _of_a_hook(message: ChatMessage) -> bool:
    """What Haystack's confirmation tells the model of a person's decision, and what the hook below adds."""
    return (message.text or "").startswith("A person")


def _calls(step: str, prefix: str) -> list[ToolCall]:
    calls = []
    for number, asked in enumerate(step.split("+")):
        name, _, rest = asked.strip().partition(" ")
        if name not in {tool.name for tool in TOOLS}:
            return []
        names = ARGUMENTS.get(name, ("q",))
        values: list[Any] = rest.split(maxsplit=len(names) - 1) if names else []
        arguments = dict(zip(names, values, strict=True))
        if "amount" in arguments:
            arguments["amount"] = int(arguments["amount"])
        calls.append(ToolCall(name, arguments, id=f"{prefix}-{number}"))
    return calls


def counting(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
    """A model that goes by the last tool result, since the user's message may have been cut off."""
    _trouble()
    results = [str(result.result) for message in messages for result in message.tool_call_results]
    number = int(results[-1].rsplit("q", 1)[1]) + 1 if results else 0
    if number >= QUERIES:
        return ChatMessage.from_assistant("Counted.")
    text = f"query number {number} " + "and some words to fill the window " * 6
    return ChatMessage.from_assistant(
        text, tool_calls=[ToolCall("read", {"q": f"q{number}"}, id=f"k{number}")]
    )


def summary(messages: list[ChatMessage]) -> str:
    return f"They talked about {len(messages)} things."


@hook
def remind(state: State) -> None:
    """Before each call of the model: changes the State and the messages, so that a step has a point inside it."""
    state.set("reminded", (state.data.get("reminded") or 0) + 1)
    state.set("messages", [ChatMessage.from_user(f"A person reminds you, number {state.data['reminded']}.")])


# The agents

POLICIES = {
    **dict.fromkeys(
        ("read", "fetch", "count", "note", "plan", "store", "weigh"), ToolPolicy(idempotent=True)
    ),
    "look": ToolPolicy(idempotent=True, cache_ttl=24 * HOUR),
    "pay": ToolPolicy(approval=True, effect="moves money"),
    "lend": ToolPolicy(approval=True, approval_ttl=HOUR, effect="lends money"),
}
SCHEMA: dict[str, Any] = {
    "docs": {"type": list[Document]},
    "notes": {"type": list[str]},
    "plan": {"type": dict[str, Any], "handler": replace_values},
    "values": {"type": dict[str, Any], "handler": replace_values},
}


def _agent(prompt: str = "You work.", **options: Any) -> Agent:
    return Agent(
        chat_generator=MockChatGenerator(response_fn=reply, model="deterministic"),
        tools=list(TOOLS),
        system_prompt=f"{prompt} The customer is {{{{ who or 'nobody' }}}}.",
        required_variables=[],
        state_schema={**SCHEMA, **options.pop("state_schema", {})},
        exit_conditions=["text", "finish"],
        **options,
    )


@agent(WORKS, title="Works", description="Does what it is told, step by step.", policies=POLICIES)
def works() -> Agent:
    return _agent()


def _shortened(compactor: Any, compact_to: float) -> Agent:
    hook = CompactionHook(compactor, context_window=400, compact_at=0.5, compact_to=compact_to)
    model = MockChatGenerator(response_fn=counting, model="deterministic")
    return Agent(chat_generator=model, tools=[read], hooks={"before_llm": [hook]})


@agent(CUT, title="Forgets what lies back", policies={"read": POLICIES["read"]})
def cut() -> Agent:
    return _shortened(SlidingWindowCompactor(), 0.2)


@agent(SUMMED, title="Sums up what lies back", policies={"read": POLICIES["read"]})
def summed() -> Agent:
    return _shortened(SummarizationCompactor(chat_generator=MockChatGenerator(response_fn=summary)), 0.3)


@agent(HOOKED, title="Is reminded at each step", policies=POLICIES)
def hooked() -> Agent:
    counter = {"reminded": {"type": int, "handler": replace_values}}
    return _agent(hooks={"before_llm": [remind]}, state_schema=counter)


@agent(CHANGED, title="Was changed meanwhile", policies=POLICIES)
def changed() -> Agent:
    return _agent("You work as before." if faults.older else "You work differently now.")


@agent(GONE, title="Was gone for a while", policies=POLICIES)
def gone() -> Agent:
    return _agent("You come back.")


@agent(BROKEN, title="Cannot be built")
def cannot_be_built() -> Agent:
    raise RuntimeError("its model is not installed")
