"""Agents whose model calls and effects are all recorded, for tests that kill their workers.

    desk    parallel calls, state in and out, a failing and an unknown tool, effects that must not be repeated, an
            approval; ends with a text
    long    a context that a summariser cuts short, a model that is away at first, a hook that adds calls to the
            model's; ends with a tool
    quick   calls that are recorded as started by the commit of the reply that asks for them: one alone, and two in
            parallel; effects that must not be repeated

What a model says depends on the messages alone. A plain run, outside a worker, is on record as the session "plain".
"""

import hashlib
import json
import os
import time
from typing import Annotated, Any

from haystack import Document
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks import hook
from haystack.hooks.compaction import CompactionHook, SummarizationCompactor
from haystack.tools import tool

from agentstate import ToolPolicy, agent, idempotency_key
from agentstate.durable import run_context
from sessions_app.runtime.queued_messages import Queues
from tests import chaos_moments

# How long a tool, and a model, takes: so that a kill at random finds them at work.
PACE = float(os.environ.get("AGENTSTATE_TEST_PACE", "0"))
IDEMPOTENT = ToolPolicy(idempotent=True)
REPEATABLE = {"look_up", "note", "count", "fail", "audit", "close"}
AUDITED = "one effect, on record"


def _has_message(*_: Any, **__: Any) -> bool:
    return True


# Sessions are handed over behind each slice, and in it once they have run for a second, though nothing may wait.
if os.environ.get("AGENTSTATE_TEST_GIVES_WAY"):
    Queues.has_message = _has_message  # type: ignore[method-assign]


def _enter(name: str, **arguments: Any) -> str:
    session, key = _call()
    chaos_moments.moment(session, "enter", name, key=key, arguments=arguments)
    time.sleep(PACE)
    return key


def _effect(name: str, key: str, result: str = "", **arguments: Any) -> str:
    chaos_moments.moment(_call()[0], "effect", name, key=key, arguments=arguments, result=result)
    return result


def _call() -> tuple[str, str]:
    try:
        key = idempotency_key()
    except RuntimeError:
        return "plain", "plain"
    return key.rpartition("-")[0], key


@tool(outputs_to_state={"docs": {"source": "docs"}})
def look_up(what: Annotated[str, "what"]) -> dict[str, Any]:
    """Finds a document."""
    key = _enter("look_up", what=what)
    _effect("look_up", key, what=what)
    return {"docs": [Document(content=f"all about {what}", id=what, meta={"page": 3})], "found": 1}


@tool
def pay(order: Annotated[str, "order"], amount: Annotated[int, "amount"]) -> str:
    """Pays money, each time it is called."""
    key = _enter("pay", order=order, amount=amount)
    return _effect("pay", key, f"paid {amount} for {order}", order=order, amount=amount)


@tool
def send(letter: Annotated[str, "letter"]) -> str:
    """Sends a letter, each time it is called."""
    key = _enter("send", letter=letter)
    return _effect("send", key, f"sent the {letter}", letter=letter)


@tool
def refund(order: Annotated[str, "order"]) -> str:
    """Pays money back once a person has approved it."""
    key = _enter("refund", order=order)
    return _effect("refund", key, f"refunded {order}", order=order)


@tool
def note(text: Annotated[str, "text"], state: State) -> str:
    """Writes to the State by itself."""
    key = _enter("note", text=text)
    state.set("notes", [text])
    return _effect("note", key, f"noted, {len(state.data['notes'])} in all", text=text)


@tool(inputs_from_state={"docs": "docs"})
def count(docs: list[Document]) -> str:
    """Reads the State."""
    key = _enter("count", docs=len(docs))
    return _effect("count", key, f"{len(docs)} documents", docs=len(docs))


@tool
def fail(why: Annotated[str, "why"]) -> str:
    """Raises."""
    _enter("fail", why=why)
    raise ValueError(why)


@tool
def audit(number: Annotated[int, "number"]) -> str:
    """Is called in addition to what the model asked for."""
    key = _enter("audit", number=number)
    return _effect("audit", key, AUDITED, number=number)


@tool
def close(verdict: Annotated[str, "verdict"]) -> str:
    """Ends the run."""
    key = _enter("close", verdict=verdict)
    return _effect("close", key, f"closed as {verdict}", verdict=verdict)


def _asked(name: str, messages: list[ChatMessage]) -> bool:
    """Put on record that a model was asked, and say whether it is the first time for these messages."""
    run = run_context.current()
    session = str(run.journal.claim.session_id) if run is not None else "plain"  # type: ignore[attr-defined]
    conversation = [
        [
            m.role,
            m.text,
            [[c.id, c.tool_name, c.arguments] for c in m.tool_calls],
            [[r.origin.id, r.result] for r in m.tool_call_results],
        ]
        for m in messages
    ]
    text = json.dumps(conversation, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    before = [line for line in chaos_moments.moments(session) if line["what"] == "ask"]
    chaos_moments.moment(session, "ask", name, digest=digest)
    time.sleep(PACE)
    return all(line["digest"] != digest for line in before)


def scripted(*replies: str | list[ToolCall]) -> MockChatGenerator:
    """A model that gives the n-th reply when it has replied n times before."""

    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        _asked("model", messages)
        answer = replies[sum(message.is_from("assistant") for message in messages)]
        if isinstance(answer, str):
            return ChatMessage.from_assistant(answer)
        return ChatMessage.from_assistant("Let me see.", tool_calls=answer)

    return MockChatGenerator(response_fn=reply)


@agent(
    "desk",
    policies={
        "refund": ToolPolicy(approval=True),
        **dict.fromkeys(("look_up", "note", "count", "fail"), IDEMPOTENT),
    },
)
def desk() -> Agent:
    call = ToolCall
    return Agent(
        chat_generator=scripted(
            [call("look_up", {"what": "fire"}, id="d1"), call("look_up", {"what": "water"}, id="d2")],
            [
                call("pay", {"order": "A1", "amount": 100}, id="d3"),
                call("send", {"letter": "receipt"}, id="d4"),
                call("note", {"text": "paid"}, id="d5"),
            ],
            [
                call("count", {}, id="d6"),
                call("fail", {"why": "no such thing"}, id="d7"),
                call("missing", {}, id="d8"),
            ],
            [call("refund", {"order": "A1"}, id="d9"), call("send", {"letter": "apology"}, id="d10")],
            "Everything is settled.",
        ),
        system_prompt="You settle claims for {{ who }}.",
        tools=[look_up, pay, send, refund, note, count, fail],
        state_schema={"docs": {"type": list[Document]}, "notes": {"type": list[str]}},
    )


@hook
def audit_too(state: State) -> None:
    """Puts a call of its own beside those of the model."""
    last = state.data["messages"][-1]
    calls = last.tool_calls
    if any(call.tool_name == "pay" for call in calls) and all(call.tool_name != "audit" for call in calls):
        number = int(str(calls[0].id)[1:])
        added = ToolCall("audit", {"number": number}, id=f"audit{number}")
        message = ChatMessage.from_assistant(last.text, tool_calls=[*calls, added])
        state.set("messages", [*state.data["messages"][:-1], message], handler_override=replace_values)


def _long_reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
    first = _asked("model", messages)
    paid = [
        int(str(result.origin.id)[1:])
        for message in messages
        for result in message.tool_call_results
        if result.origin.tool_name == "pay"
    ]
    number = max(paid) + 1 if paid else 0
    if number == 1 and first and run_context.current() is not None:
        raise ConnectionError("the model is away")
    padding = "and some words to fill the window " * 6
    if number == 3:
        return ChatMessage.from_assistant(
            padding, tool_calls=[ToolCall("close", {"verdict": "paid"}, id="l3")]
        )
    call = ToolCall("pay", {"order": f"L{number}", "amount": number}, id=f"l{number}")
    return ChatMessage.from_assistant(f"Payment {number} {padding}", tool_calls=[call])


def _summary(messages: list[ChatMessage]) -> str:
    _asked("summary", messages)
    return "They spoke of payments."


@agent("long", policies={"audit": IDEMPOTENT, "close": IDEMPOTENT})
def long() -> Agent:
    compactor = SummarizationCompactor(chat_generator=MockChatGenerator(response_fn=_summary))
    return Agent(
        chat_generator=MockChatGenerator(response_fn=_long_reply),
        tools=[pay, audit, close],
        exit_conditions=["close"],
        hooks={
            "before_llm": [CompactionHook(compactor, context_window=200, compact_at=0.5, compact_to=0.3)],
            "before_tool": [audit_too],
        },
    )


@agent("quick")
def quick() -> Agent:
    call = ToolCall
    return Agent(
        chat_generator=scripted(
            [call("pay", {"order": "Q1", "amount": 1}, id="q1")],
            [
                call("send", {"letter": "receipt"}, id="q2"),
                call("pay", {"order": "Q2", "amount": 2}, id="q3"),
            ],
            "Both are paid.",
        ),
        tools=[pay, send],
    )


INPUTS: dict[str, dict[str, Any]] = {"desk": {"who": "Ann"}, "long": {}, "quick": {}}
