"""Reads a durable session's snapshot, by the names of its fields: what a journal's `load` returns.

The bodies of messages are those of Haystack's `ChatMessage.to_dict()`. All that they tell the model is in the messages
made of them, and in the bodies made of these again; their `meta`, such as the tokens of a reply, is not.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import singledispatch
from typing import Any, Protocol, runtime_checkable

from agentstate.articles import an
from agentstate.domain import parts
from agentstate.domain.messages import Message, Role, ToolCall

Json = Any
Body = Mapping[str, Json]


@runtime_checkable
class ReadableSession(Protocol):
    """A durable session as it is read, such as a journal of it. `error` is read after `load`."""

    @property
    def session_id(self) -> str: ...

    @property
    def error(self) -> str:
        """That of the run that ended last; "" if there is none."""

    def load(self) -> Any:
        """The snapshot: `agentstate.durable.records.Snapshot`, which this package does not import."""


@runtime_checkable
class HasJournal(Protocol):
    """What gives a journal for reading, as a `DurableAgent` does."""

    def journal(self) -> ReadableSession: ...


@singledispatch
def readable(session: Any) -> ReadableSession:
    """The session as it is read. An application registers here how its own sessions are.

    :raises TypeError: for what is no durable session.
    """
    if isinstance(session, HasJournal):
        return session.journal()
    if not hasattr(session, "load"):
        raise TypeError(
            f"{an(session, start=True)} is not a durable session: give a journal, or an object that has one."
        )
    journal: ReadableSession = session
    return journal


def bodies_of(snapshot: Any) -> list[Body]:
    """The conversation at the last checkpoint, with the messages that were not read yet."""
    checkpoint = snapshot.checkpoint
    return [
        *(stored.body for stored in (checkpoint.context if checkpoint else ())),
        *(unread.body for unread in snapshot.unread),
    ]


def messages_of(bodies: Iterable[Body], at: datetime) -> Iterator[Message]:
    """The messages, dated `at`, since their bodies have no times. A call's result is a message of its own."""
    for body in bodies:
        calls = [part["tool_call"] for part in body["content"] if part.get("tool_call")]
        results = [part["tool_call_result"] for part in body["content"] if part.get("tool_call_result")]
        own = [part for part in body["content"] if not {"tool_call", "tool_call_result"} & part.keys()]
        if own or calls or not results:
            text, metadata = parts.split(own)
            if calls:
                metadata["tool_calls"] = [_request(call) for call in calls]
            if body.get("name"):
                metadata["name"] = body["name"]
            yield Message(Role(body["role"]), text, at, metadata)
        for result in results:
            yield _answer(result, at)


def calls_of(bodies: Iterable[Body], at: datetime) -> tuple[ToolCall, ...]:
    """The calls that have ended, in the order of their results."""
    parts = (part.get("tool_call_result") for body in bodies for part in body["content"])
    return tuple(_call(result, at) for result in parts if result)


def bodies_from(history: list[Message], calls: Iterable[ToolCall]) -> list[dict[str, Json]]:
    """The messages as those of Haystack, plain JSON.

    :param calls: Those that have ended, in order: they say which results are errors.
    """
    errors = _errors(history, calls)
    origins: dict[str, Json] = {}
    bodies = []
    for index, message in enumerate(history):
        data = message.to_dict()
        metadata = data["metadata"]
        content: list[Json] = parts.joined(data["content"], metadata)
        if message.role is Role.TOOL:
            call_id = metadata["tool_call_id"]
            error = errors[index]
            result = data["content"] if error is None else error
            if error is None and parts.PARTS in metadata:
                result = content
            content = [
                {
                    "tool_call_result": {
                        "result": result,
                        "origin": origins[call_id],
                        "error": error is not None,
                    }
                }
            ]
        for call in metadata.get("tool_calls") or ():
            origin = {
                "tool_name": call["name"],
                "arguments": call["arguments"],
                "id": call["id"],
                "extra": call.get("extra"),
            }
            origins[call["id"]] = origin
            content.append({"tool_call": origin})
        bodies.append(
            {
                "role": data["role"],
                "meta": {},
                "name": metadata.get("name"),
                "content": content or [{"text": ""}],
            }
        )
    return bodies


def _errors(history: list[Message], calls: Iterable[ToolCall]) -> dict[int, str | None]:
    """By the index of each tool's message why its call failed; None where it did not.

    A model may use an id again in a later reply, and the history may lack its oldest messages: the newest result
    belongs to the newest call of its id.
    """
    by_id: dict[str, list[str | None]] = {}
    for call in calls:
        by_id.setdefault(call.call_id, []).append(call.error)
    errors = {}
    for index, message in reversed(list(enumerate(history))):
        if message.role is Role.TOOL:
            of_the_id = by_id.get(message.metadata["tool_call_id"])
            errors[index] = of_the_id.pop() if of_the_id else None
    return errors


def _request(call: Mapping[str, Json]) -> dict[str, Json]:
    extra = {"extra": call["extra"]} if call.get("extra") else {}
    return {"id": call["id"] or "", "name": call["tool_name"], "arguments": call["arguments"], **extra}


def _answer(result: Mapping[str, Json], at: datetime) -> Message:
    """The tool's message. A result that is parts, such as images, has its text as the content."""
    message = Message.answering(_call(result, at), at)
    if result["error"] or not isinstance(result["result"], list):
        return message
    text, other = parts.split(result["result"])
    return replace(message, content=text, metadata={**message.metadata, **(other or {parts.PARTS: []})})


def _call(result: Mapping[str, Json], at: datetime) -> ToolCall:
    origin, error = result["origin"], result["error"]
    return ToolCall(
        origin["id"] or "",
        origin["tool_name"],
        origin["arguments"],
        None if error else result["result"],
        str(result["result"]) if error else None,
        timestamp=at,
    )
