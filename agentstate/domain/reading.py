"""Reads a durable session's snapshot, by the names of its fields: what a journal's `load` returns.

The bodies of messages are those of Haystack's `ChatMessage.to_dict()`.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from agentstate.domain.messages import Message, Role, ToolCall

Json = Any
Body = Mapping[str, Json]


class ReadableSession(Protocol):
    """A durable session as it is read: a journal of it, or `StoredSession`. `error` is read after `load`."""

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
        texts = [part["text"] for part in body["content"] if isinstance(part.get("text"), str)]
        calls = [part["tool_call"] for part in body["content"] if part.get("tool_call")]
        results = [part["tool_call_result"] for part in body["content"] if part.get("tool_call_result")]
        if texts or calls or not results:
            metadata = {"tool_calls": [_request(call) for call in calls]} if calls else {}
            yield Message(Role(body["role"]), "\n".join(texts), at, metadata)
        for result in results:
            yield Message.answering(_call(result, at), at)


def texts_of(value: Json) -> tuple[str, ...]:
    """A stored list of texts; what is not one, which an agent's own code may have stored, as far as it can be read."""
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


def calls_of(bodies: Iterable[Body], at: datetime) -> tuple[ToolCall, ...]:
    """The calls that have ended, in the order of their results."""
    parts = (part.get("tool_call_result") for body in bodies for part in body["content"])
    return tuple(_call(result, at) for result in parts if result)


def _request(call: Mapping[str, Json]) -> dict[str, Json]:
    return {"id": call["id"] or "", "name": call["tool_name"], "arguments": call["arguments"]}


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
