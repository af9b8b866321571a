"""The rows of one synthetic history, at the positions and with the contents of a real run's."""

import json
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from agentstate.demo.stories import Call, as_text
from agentstate.domain.phases import AgentPhase
from agentstate.durable.policy import fingerprint
from agentstate.durable.progress import Meter
from agentstate.durable.records import Progress
from agentstate.names import CallState, CheckpointKind, Decision, RunEvent
from sessions_app.management.synth.rows import Rows
from sessions_app.models import Approval, Checkpoint, Event, EventKind, Message, ModelCall, ToolCall

MODEL = "scripted demo model"
SUPERVISOR = "kim"


class HistoryRows:
    """Adds the rows of one branch in their order; time passes as it does in a run.

    :param branch: The key of the branch.
    :param calls: Keys for its calls.
    :param definition: That of its agent as published, "" if it is not.
    """

    def __init__(
        self,
        rows: Rows,
        begins: datetime,
        *,
        chance: random.Random,
        session: UUID,
        branch: int,
        calls: Iterator[int],
        definition: str,
    ) -> None:
        self.now = begins
        self.position = 0
        self.step = 0
        self.meter = Meter(Progress("idle", "", begins, {}), clock=lambda: self.now)
        self.counters: dict[str, Any] = {}
        self.call_ids: dict[int, str] = {}
        self._rows, self._chance, self._calls = rows, chance, calls
        self._session, self._branch, self._definition = session, branch, definition
        self._context_at = 0

    def reply(self, text: str, calls: list[Call]) -> None:
        if calls and self.meter.phase is AgentPhase.REFLECTING:
            self.meter.to(AgentPhase.PLANNING)
        started = self.now
        seconds = round(0.4 + self._chance.random() * 1.6, 3)
        self.wait(seconds)
        usage = self.counters["token_usage"]
        read, written = 200 + min(self.position * 8, 6000), len(text) // 4 + 20 * len(calls) + 1
        usage["prompt_tokens"] += read
        usage["completion_tokens"] += written
        usage["total_tokens"] += read + written
        self.counters["context_tokens"] = read + written
        position = self.next_position()
        self._rows.add(
            ModelCall,
            {
                "branch_id": self._branch,
                "position": position,
                "replies": 1,
                "model": MODEL,
                "prompt_tokens": read,
                "completion_tokens": written,
                "started_at": started,
                "ended_at": self.now,
            },
        )
        for name, amount in (("model_calls", 1), ("prompt_tokens", read), ("completion_tokens", written)):
            self.meter.add(name, amount)
        self.meter.add("model_seconds", seconds)
        asked = [{"tool_call": _origin(call, self.call_ids[id(call)])} for call in calls]
        self.message("assistant", [{"text": None}, *asked], text, meta={"model": MODEL, "index": 0})
        if calls:
            self.meter.to(AgentPhase.EXECUTING)

    def result(self, call: Call) -> None:
        """The message with the result of a call that the last reply asked for."""
        answer = {"result": None, "origin": _origin(call, self.call_ids[id(call)]), "error": False}
        self.message("tool", [{"tool_call_result": answer}], as_text(call.result))
        self.counters["tool_call_counts"][call.tool] += 1

    def failed_reply(self, error: str) -> None:
        started = self.now
        self.wait(2.0)
        times = {"started_at": started, "ended_at": self.now}
        values = {"branch_id": self._branch, "position": self.next_position(), "model": MODEL, "error": error}
        self._rows.add(ModelCall, values | times)
        self.meter.add("failed_model_calls", 1)

    def ask(self, calls: list[Call], status: CallState = CallState.DONE) -> list[int]:
        """The model's reply with these calls, and the calls in that state; returns their keys."""
        # The calls follow the reply and its message.
        self.call_ids = {id(call): f"call_{self.position + 3 + number}" for number, call in enumerate(calls)}
        self.reply(f"I'll {' and '.join(call.tool.replace('_', ' ') for call in calls)}.", calls)
        asked_at, keys = self.now, []
        for call in calls:
            position, key = self.next_position(), next(self._calls)
            keys.append(key)
            values: dict[str, Any] = {
                "id": key,
                "branch_id": self._branch,
                "position": position,
                "call_id": self.call_ids[id(call)],
                "tool": call.tool,
                "arguments": call.arguments,
                "status": status,
                "idempotency_key": f"{self._session}-{position}",
                "asked_at": asked_at,
            }
            if status is not CallState.PLANNED:
                values |= {"started_at": self.now, "attempt": 1}
            if status is CallState.DONE:
                seconds = round(0.01 + self._chance.random() / 4, 3)
                self.wait(seconds)
                values |= {"ended_at": self.now, "result": _encoded(as_text(call.result))}
                self.meter.add("tool_calls", 1)
                self.meter.add("tool_seconds", seconds)
            self._rows.add(ToolCall, values)
        return keys

    def approval(self, key: int, call: Call, *, decided: bool) -> None:
        values = {
            "session_id": self._session,
            "call_id": key,
            "arguments": call.arguments,
            "fingerprint": fingerprint(call.tool, call.arguments),
            "asked_at": self.now,
        }
        if decided:
            values |= {"decision": Decision.APPROVED, "decided_at": self.now, "decided_by": SUPERVISOR}
        self._rows.add(Approval, values)

    def message(self, role: str, content: list[Any], text: str, meta: dict[str, Any] | None = None) -> int:
        position = self.next_position()
        body: dict[str, Any] = {"content": content} if meta is None else {"meta": meta, "content": content}
        values = {"branch_id": self._branch, "position": position, "role": role, "text": text, "body": body}
        self._rows.add(Message, values | {"created_at": self.now})
        return position

    def checkpoint(self, kind: CheckpointKind, **values: Any) -> None:
        position = self.next_position()
        if values.get("context") is not None:
            self._context_at = position
        progress = self.meter.progress()
        self._rows.add(
            Checkpoint,
            {
                "branch_id": self._branch,
                "position": position,
                "kind": kind,
                "step": self.step,
                "phase": progress.phase,
                "context_at": self._context_at,
                "counters": self.counters,
                "totals": progress.totals,
                "definition": self._definition,
                "created_at": self.now,
                **values,
            },
        )

    def event(self, kind: EventKind | RunEvent, actor: str, *, reason: str = "", **values: Any) -> None:
        self._rows.add(
            Event,
            {
                "session_id": self._session,
                "branch_id": self._branch,
                "position": self.next_position(),
                "kind": kind,
                "actor_name": actor,
                "reason": reason,
                "created_at": self.now,
                **values,
            },
        )

    def end_step(self) -> None:
        self.step += 1
        self.meter.add("steps", 1)

    def next_position(self) -> int:
        self.position += 1
        return self.position

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def _origin(call: Call, call_id: str) -> dict[str, Any]:
    return {"tool_name": call.tool, "arguments": call.arguments, "id": call_id, "extra": None}


@cache
def _encoded(text: str) -> Any:
    """A tool's result as a run stores it."""
    from agentstate.durable.state.encoding import encode

    return encode(json.loads(text), "the result")
