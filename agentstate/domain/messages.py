"""Messages, and tool calls that have ended: immutable values."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Self, cast

from agentstate.domain.frozen import (
    FrozenDict,
    Json,
    as_utc,
    freeze,
    require,
    set_fields,
    thaw,
    to_json,
    utc_now,
)


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that has ended. `arguments` and `result` are JSON; `error` says why it failed, or is None.

    `call_id` is one of its own where none is given; `tool_name` has to be given.
    """

    call_id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex}")
    tool_name: str = cast(str, None)
    arguments: Mapping[str, Json] = field(default_factory=dict)
    result: Json = None
    error: str | None = None
    duration_ms: float = 0.0
    timestamp: datetime = field(default_factory=utc_now)

    def __post_init__(self) -> None:
        require(str, call_id=self.call_id, tool_name=self.tool_name)
        require(str | None, error=self.error)
        require(Mapping, arguments=self.arguments)
        require(float | int, duration_ms=self.duration_ms)
        if not self.duration_ms >= 0:
            raise ValueError(f"duration_ms is {self.duration_ms}: a call lasts 0 milliseconds or more.")
        set_fields(
            self, arguments=FrozenDict(self.arguments, "arguments"), result=freeze(self.result, "result")
        )
        set_fields(
            self, duration_ms=freeze(self.duration_ms, "duration_ms"), timestamp=as_utc(self.timestamp)
        )

    @property
    def succeeded(self) -> bool:
        return self.error is None

    def to_observation(self) -> str:
        """The text that the model is shown: the result (as JSON, if it is not text), or the error."""
        if not self.succeeded:
            return f"[Tool Error] {self.tool_name} failed: {self.error}"
        return self.result if isinstance(self.result, str) else to_json(self.result)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation.

    `metadata` is JSON. An assistant message that asks for tools has `tool_calls` there: a list of mappings
    with `id`, `name` and `arguments`. A tool's message has the `tool_call_id` that it answers. What a message of a
    durable session holds besides its text, such as images, is in `parts` (see `agentstate.domain.parts`).
    """

    role: Role
    content: str
    timestamp: datetime = field(default_factory=utc_now)
    metadata: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(str, content=self.content)
        require(Mapping, metadata=self.metadata)
        set_fields(
            self,
            role=Role(self.role),
            timestamp=as_utc(self.timestamp),
            metadata=FrozenDict(self.metadata, "metadata"),
        )

    def to_dict(self) -> dict[str, Json]:
        """As plain JSON, the time in ISO 8601."""
        return {
            "role": self.role.value,
            "content": self.content,
            "timestamp": self.timestamp.isoformat(),
            "metadata": thaw(self.metadata),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> Self:
        """The message of which `to_dict` made this."""
        return cls(**{**data, "timestamp": datetime.fromisoformat(data["timestamp"])})

    @classmethod
    def asking(cls, thought: str, calls: Iterable[ToolCall], timestamp: datetime) -> Self:
        """The assistant's message that asks for these calls."""
        tool_calls = [
            {"id": call.call_id, "name": call.tool_name, "arguments": call.arguments} for call in calls
        ]
        return cls(Role.ASSISTANT, thought, timestamp, {"tool_calls": tool_calls})

    @classmethod
    def answering(cls, call: ToolCall, timestamp: datetime) -> Self:
        """The tool's message with the call's result or error."""
        metadata = {"tool_call_id": call.call_id, "tool_name": call.tool_name}
        return cls(Role.TOOL, call.to_observation(), timestamp, metadata)
