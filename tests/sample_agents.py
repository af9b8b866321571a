"""Haystack agents of every kind that a durable run must carry, with scripted models.

Each is a factory. What the tools and models do to the world goes to `effects`, so that two runs can be compared by it.
A model's answer depends on the messages alone, as a real one's would.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from haystack import Document, component
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ReasoningContent, ToolCall
from haystack.hooks import hook
from haystack.hooks.budget import TokenBudgetHook
from haystack.hooks.compaction import CompactionHook, SlidingWindowCompactor, SummarizationCompactor
from haystack.hooks.human_in_the_loop import AlwaysAskPolicy, BlockingConfirmationStrategy, ConfirmationHook
from haystack.tools import AgentTool, ComponentTool, Tool, Toolset, tool

effects: list[str] = []


def effect(what: str) -> None:
    effects.append(what)


@tool
def fast(q: Annotated[str, "what"]) -> str:
    """Answers at once."""
    effect(f"fast({q})")
    return f"fast:{q}"


@tool
def slow(q: Annotated[str, "what"]) -> str:
    """Another tool."""
    effect(f"slow({q})")
    return f"slow:{q}"


@tool(outputs_to_state={"docs": {"source": "docs"}})
def fetch(q: Annotated[str, "what"]) -> dict[str, Any]:
    """Fetches documents."""
    effect(f"fetch({q})")
    return {"docs": [Document(content=f"doc {q}", id=q, meta={"page": 3})], "n": 1}


@tool
def note(text: Annotated[str, "text"], state: State) -> str:
    """Writes to the State by itself."""
    effect(f"note({text})")
    state.set("notes", [text])
    return f"noted, {len(state.data['notes'])} in all"


@tool(inputs_from_state={"docs": "docs"})
def count(docs: list[Document]) -> str:
    """Reads the State."""
    effect(f"count({len(docs)})")
    return f"{len(docs)} documents"


@tool
def broken(q: Annotated[str, "what"]) -> str:
    """Raises."""
    effect(f"broken({q})")
    raise ValueError(f"no {q} here")


@tool
def save(content: Annotated[str, "content"]) -> str:
    """Ends the run where it is an exit condition."""
    effect(f"save({content})")
    return f"saved {content}"


@tool
def refund(order: Annotated[str, "order"], amount: Annotated[float, "amount"]) -> str:
    """Pays money back."""
    effect(f"refund({order},{amount:g})")
    return f"refunded {amount:g} for {order}"


@component
class Upper:
    @component.output_types(text=str)
    def run(self, text: str) -> dict[str, str]:
        effect(f"upper({text})")
        return {"text": text.upper()}


def scripted(*replies: str | list[ToolCall], name: str = "model") -> MockChatGenerator:
    """A model that gives the n-th reply when it has replied n times since the user last spoke."""

    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        number = 0
        for message in reversed(messages):
            if message.is_from("user") and not (message.text or "").startswith("A person"):
                break
            number += message.is_from("assistant") and "rejected" not in str(message.meta)
        number = min(number, len(replies) - 1)
        effect(f"{name}({number})")
        answer = replies[number]
        if isinstance(answer, str):
            return ChatMessage.from_assistant(answer)
        return ChatMessage.from_assistant(
            f"step {number}", tool_calls=answer, reasoning=ReasoningContent(f"think {number}")
        )

    return MockChatGenerator(response_fn=reply)


def everything() -> Agent:
    """Parallel calls, state in and out, a component, a toolset, identical calls without ids, a failing tool."""
    call = ToolCall
    return Agent(
        chat_generator=scripted(
            [
                call("fast", {"q": "a"}, id="c1"),
                call("slow", {"q": "b"}, id="c2"),
                call("fetch", {"q": "d1"}, id="c3"),
            ],
            [
                call("note", {"text": "n1"}, id="c4"),
                call("upper", {"text": "hey"}, id="c5"),
                call("fast", {"q": "same"}),
                call("fast", {"q": "same"}),
            ],
            [
                call("note", {"text": "n2"}, id="c6"),
                call("count", {}, id="c7"),
                call("broken", {"q": "x"}, id="c8"),
                call("missing", {}, id="c9"),
                call("fetch", {"q": "d2"}, id="c10"),
            ],
            "All done.",
        ),
        system_prompt="You help {{ who }}.",
        tools=[
            Toolset([fast, slow]),
            fetch,
            note,
            count,
            broken,
            ComponentTool(component=Upper(), name="upper", description="u"),
        ],
        state_schema={"docs": {"type": list[Document]}, "notes": {"type": list[str]}},
    )


def plain_talk() -> Agent:
    return Agent(chat_generator=scripted("Hello."))


def tool_exit() -> Agent:
    return Agent(
        chat_generator=scripted(
            [ToolCall("fast", {"q": "a"}, id="t1")], [ToolCall("save", {"content": "it"}, id="t2")]
        ),
        tools=[fast, save],
        exit_conditions=["save"],
    )


@hook
def require_save(state: State) -> None:
    if state.data.get("exit_reason") == "text" and state.data["step_count"] < 3:
        state.set("messages", [ChatMessage.from_user("A person wants you to save first.")])
        state.set("continue_run", True)


def goes_on() -> Agent:
    """An `on_exit` hook that sends the agent on."""
    return Agent(
        chat_generator=scripted("I am done.", [ToolCall("save", {"content": "it"}, id="s1")], "Saved."),
        tools=[save],
        exit_conditions=["text", "save"],
        hooks={"on_exit": [require_save]},
    )


def long_run(steps: int = 6, **options: Any) -> Agent:
    replies: list[str | list[ToolCall]] = [
        [ToolCall("fast", {"q": f"q{n}"}, id=f"l{n}")] for n in range(steps)
    ]
    return Agent(chat_generator=scripted(*replies, "Long done."), tools=[fast, fetch], **options)


def compacting() -> Agent:
    """The context is cut short by a sliding window; the model below counts its own replies in the text it is given."""
    return Agent(
        chat_generator=counting(7),
        tools=[fast],
        hooks={
            "before_llm": [
                CompactionHook(SlidingWindowCompactor(), context_window=400, compact_at=0.5, compact_to=0.2)
            ]
        },
    )


def summarising() -> Agent:
    return Agent(
        chat_generator=counting(7),
        tools=[fast],
        hooks={
            "before_llm": [
                CompactionHook(
                    SummarizationCompactor(chat_generator=MockChatGenerator(response_fn=_summary)),
                    context_window=400,
                    compact_at=0.5,
                    compact_to=0.3,
                )
            ]
        },
    )


def _summary(messages: list[ChatMessage]) -> str:
    effect(f"summary({len(messages)})")
    return "They talked about queries."


def counting(calls: int) -> MockChatGenerator:
    """A model that goes by the last tool result it sees, so that it works on a shortened context too."""

    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        results = [result.result for message in messages for result in message.tool_call_results]
        number = int(str(results[-1]).rsplit("q", 1)[1]) + 1 if results else 0
        effect(f"model({number},{len(messages)})")
        if number >= calls:
            return ChatMessage.from_assistant("Counted.")
        text = f"query number {number} " + "and some words to fill the window " * 6
        return ChatMessage.from_assistant(
            text, tool_calls=[ToolCall("fast", {"q": f"q{number}"}, id=f"k{number}")]
        )

    return MockChatGenerator(response_fn=reply)


def budgeted() -> Agent:
    return long_run(hooks={"before_llm": [TokenBudgetHook(max_total_tokens=20, add_final_message=True)]})


def three_steps() -> Agent:
    return long_run(max_agent_steps=3)


def nested() -> Agent:
    inner = Agent(
        chat_generator=scripted([ToolCall("slow", {"q": "inner"}, id="i1")], "Inner done.", name="inner"),
        tools=[slow],
        system_prompt="You are the inner one.",
    )
    helper = AgentTool(agent=inner, name="helper", description="asks the inner agent")
    return Agent(
        chat_generator=scripted(
            [ToolCall("helper", {"messages": []}, id="h1"), ToolCall("slow", {"q": "outer"}, id="h2")],
            "Outer done.",
        ),
        tools=[helper, slow],
    )


def prompted() -> Agent:
    return Agent(
        chat_generator=scripted([ToolCall("fast", {"q": "p"}, id="p1")], "Prompted."),
        tools=[fast],
        user_prompt="Please help {{ who }}.",
    )


@hook
def greet(state: State) -> None:
    effect("before_run")
    state.set("messages", [ChatMessage.from_user("A person says: be kind.")])


@hook
def sign(state: State) -> None:
    effect("after_run")
    state.set("messages", [ChatMessage.from_assistant("Signed.")])


def hooked() -> Agent:
    return long_run(3, hooks={"before_run": [greet], "after_run": [sign]})


@hook
def redact(state: State) -> None:
    """Rewrites what the user said, in copies of the messages."""
    messages = [
        ChatMessage.from_user("*" * len(message.text or "")) if message.is_from("user") else message
        for message in state.get("messages")
    ]
    state.set("messages", messages, handler_override=replace_values)


def redacting() -> Agent:
    return long_run(2, system_prompt="You never see names.", hooks={"before_run": [redact]})


@component
class Attentive:
    """A model that tells what it was asked with."""

    @component.output_types(replies=list[ChatMessage])
    def run(
        self, messages: list[ChatMessage], tools: Any = None, generation_kwargs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        names = ",".join(sorted(tool.name for tool in tools or []))
        effect(f"model({generation_kwargs},{names})")
        if any(message.tool_call_results for message in messages):
            return {"replies": [ChatMessage.from_assistant(f"Asked with {generation_kwargs} and {names}.")]}
        return {"replies": [ChatMessage.from_assistant(tool_calls=[ToolCall("fast", {"q": "a"}, id="a1")])]}


def attentive() -> Agent:
    return Agent(chat_generator=Attentive(), tools=[fast, slow])


def refunds() -> Agent:
    return Agent(
        chat_generator=scripted(
            [
                ToolCall("fast", {"q": "look"}, id="r0"),
                ToolCall("refund", {"order": "A1", "amount": 100}, id="r1"),
                ToolCall("refund", {"order": "B2", "amount": 7}, id="r2"),
            ],
            "Refund handled.",
        ),
        tools=[fast, refund],
    )


def confirmed() -> Agent:
    """Haystack's own confirmation, with a strategy that would block on a prompt."""
    agent = refunds()
    strategy = BlockingConfirmationStrategy(
        confirmation_policy=AlwaysAskPolicy(), confirmation_ui=_NoConsole()
    )
    return agent.clone(hooks={"before_tool": [ConfirmationHook({"refund": strategy})]})


class _NoConsole:
    def get_user_confirmation(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a durable run never asks on a console")

    def to_dict(self) -> dict[str, Any]:
        return {"type": "tests.sample_agents._NoConsole", "init_parameters": {}}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "_NoConsole":
        return cls()


def one_tool(function: Callable[..., Any], **options: Any) -> Agent:
    """An agent that calls the given function once and then says "Over."."""
    made = Tool(
        name="it",
        description="it",
        parameters={"type": "object", "properties": {}},
        function=function,
        **options,
    )
    return Agent(chat_generator=scripted([ToolCall("it", {}, id="x1")], "Over."), tools=[made])


@tool
async def later(q: Annotated[str, "what"]) -> str:
    """Answers when it was awaited."""
    await asyncio.sleep(0)
    effect(f"later({q})")
    return f"later:{q}"


@tool
async def note_later(text: Annotated[str, "text"], state: State) -> str:
    """Writes to the State by itself."""
    await asyncio.sleep(0)
    effect(f"note_later({text})")
    state.set("notes", [text])
    return f"noted, {len(state.data['notes'])} in all"


@tool
async def broken_later(q: Annotated[str, "what"]) -> str:
    """Raises."""
    await asyncio.sleep(0)
    effect(f"broken_later({q})")
    raise ValueError(f"no {q} here")


def both() -> Tool:
    """A tool that has a function of each kind."""

    def now(q: str) -> str:
        effect(f"both({q}), in a thread")
        return f"both:{q}"

    async def awaited(q: str) -> str:
        await asyncio.sleep(0)
        effect(f"both({q}), awaited")
        return f"both:{q}"

    parameters = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    return Tool(name="both", description="both", parameters=parameters, function=now, async_function=awaited)


@component
class UpperLater:
    @component.output_types(text=str)
    def run(self, text: str) -> dict[str, str]:
        raise AssertionError("it is run by run_async")

    @component.output_types(text=str)
    async def run_async(self, text: str) -> dict[str, str]:
        await asyncio.sleep(0)
        effect(f"upper_later({text})")
        return {"text": text.upper()}


@component
class Awaited:
    """A chat generator whose replies can only be awaited."""

    def __init__(self, inner: MockChatGenerator) -> None:
        self.inner = inner

    def to_dict(self) -> dict[str, Any]:
        return {"type": "tests.sample_agents.Awaited", "init_parameters": {"inner": self.inner.to_dict()}}

    @component.output_types(replies=list[ChatMessage])
    def run(
        self, messages: list[ChatMessage], streaming_callback: Any = None, tools: Any = None
    ) -> dict[str, Any]:
        raise AssertionError("it is run by run_async")

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self, messages: list[ChatMessage], streaming_callback: Any = None, tools: Any = None
    ) -> dict[str, Any]:
        return await self.inner.run_async(messages, streaming_callback=streaming_callback, tools=tools)


@hook
async def greet_later(state: State) -> None:
    await asyncio.sleep(0)
    effect("before_run, awaited")
    state.set("messages", [ChatMessage.from_user("A person says: be kind.")])


@hook
async def sign_later(state: State) -> None:
    await asyncio.sleep(0)
    effect("after_run, awaited")
    state.set("messages", [ChatMessage.from_assistant("Signed.")])


@hook
async def remind_later(state: State) -> None:
    """Changes what the model sees, so that it need not run again on a resumed step."""
    await asyncio.sleep(0)
    if state.data["step_count"] == 1:
        effect("before_llm, awaited")
        state.set("messages", [ChatMessage.from_user("A person reminds you.")])


class Watching:
    """A hook without an asynchronous function: an asynchronous run has it run in a thread."""

    def run(self, state: State) -> None:
        state.set("seen", [state.data["step_count"]])

    def to_dict(self) -> dict[str, Any]:
        return {"type": "tests.sample_agents.Watching", "init_parameters": {}}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Watching":
        return cls()


def awaited() -> Agent:
    """Tools, a component, hooks and a model that can only be awaited, beside some that run in threads."""
    call = ToolCall
    model = scripted(
        [
            call("later", {"q": "a"}, id="c1"),
            call("fast", {"q": "b"}, id="c2"),
            call("both", {"q": "c"}, id="c3"),
            call("upper_later", {"text": "hey"}, id="c4"),
        ],
        [
            call("note_later", {"text": "n1"}, id="c5"),
            call("later", {"q": "same"}),
            call("later", {"q": "same"}),
            call("broken_later", {"q": "x"}, id="c6"),
            call("missing", {}, id="c7"),
        ],
        "All done.",
    )
    return Agent(
        chat_generator=Awaited(model),
        tools=[
            Toolset([later, fast]),
            both(),
            note_later,
            broken_later,
            ComponentTool(component=UpperLater(), name="upper_later", description="u"),
        ],
        state_schema={"notes": {"type": list[str]}, "seen": {"type": list[int]}},
        hooks={
            "before_run": [greet_later],
            "before_llm": [Watching(), remind_later],
            "after_tool": [Watching()],
            "after_run": [sign_later],
        },
    )


def awaited_nested() -> Agent:
    """The agent in the tool has a tool that can only be awaited."""
    inner = Agent(
        chat_generator=scripted([ToolCall("later", {"q": "inner"}, id="i1")], "Inner done.", name="inner"),
        tools=[later],
    )
    helper = AgentTool(agent=inner, name="helper", description="asks the inner agent")
    return Agent(
        chat_generator=scripted(
            [ToolCall("helper", {"messages": []}, id="h1"), ToolCall("later", {"q": "outer"}, id="h2")],
            "Outer done.",
        ),
        tools=[helper, later],
    )


def awaited_summaries() -> Agent:
    summaries = Awaited(MockChatGenerator(response_fn=_summary))
    compaction = CompactionHook(
        SummarizationCompactor(chat_generator=summaries), context_window=400, compact_at=0.5, compact_to=0.3
    )
    return Agent(
        chat_generator=Awaited(counting(5)), tools=[fast], hooks={"before_llm": [compaction, remind_never]}
    )


@hook
async def remind_never(state: State) -> None:
    await asyncio.sleep(0)


KINDS: dict[str, tuple[Callable[[], Agent], dict[str, Any]]] = {
    "everything": (everything, {"who": "Ann"}),
    "plain_talk": (plain_talk, {}),
    "tool_exit": (tool_exit, {}),
    "goes_on": (goes_on, {}),
    "long_run": (long_run, {}),
    "compacting": (compacting, {}),
    "summarising": (summarising, {}),
    "budgeted": (budgeted, {}),
    "three_steps": (three_steps, {}),
    "nested": (nested, {}),
    "prompted": (prompted, {"who": "Ann"}),
    "hooked": (hooked, {}),
    "redacting": (redacting, {}),
}

# Those that only `run_async` can run.
ASYNC_KINDS: dict[str, tuple[Callable[[], Agent], dict[str, Any]]] = {
    "awaited": (awaited, {}),
    "awaited_nested": (awaited_nested, {}),
    "awaited_summaries": (awaited_summaries, {}),
}
