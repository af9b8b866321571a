"""One session as the records that were written to it, in order: what the memory and the file journal stand on.

Each record is plain JSON and is applied by `_apply`, when it is written and again when a file is read back. Opening
raises the session's epoch, so that a journal of an older one is fenced off.
"""

import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from agentstate.durable.port import LeaseLost
from agentstate.durable.records import (
    ApprovalRecord,
    CallRecord,
    InboxItem,
    ReplyRecord,
    StoredMessage,
)
from agentstate.names import ENDED_CALL_STATES

Json = Any
Record = dict[str, Json]


class Store:
    """One session: the tables that its records make up. Not thread-safe by itself; `lock` guards it."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.lock = threading.RLock()
        self.epoch = 0
        self.position = 0
        self.status = "idle"
        self.inputs: Record = {}
        self.inbox: list[InboxItem] = []
        self.messages: dict[int, Record] = {}
        self.checkpoints: list[Record] = []
        self.state: dict[str, Json] = {}
        self.replies: list[ReplyRecord] = []
        self.calls: dict[int, CallRecord] = {}
        self.progress: Record = {"phase": "idle", "previous": "", "since": _now().isoformat(), "totals": {}}
        self.stopped: Record = {}
        self.outcome: Record = {}
        self.context: list[int] = []
        self.adopts = False
        self._since = 0

    def write(self, record: Record) -> None:
        """Make one record part of the session. The file journal writes it down first."""
        self._apply(record)

    def _apply(self, record: Record) -> None:
        if record.get("before"):
            self._apply(record["before"])
        self.position = record.get("position", self.position)
        if record.get("progress"):
            self.progress = record["progress"]
        getattr(self, f"_apply_{record['op']}")(record)
        if record.get("stop"):
            self._apply_stop(record["stop"])

    def _apply_open(self, record: Record) -> None:
        self.epoch = record["epoch"]

    def _apply_say(self, record: Record) -> None:
        self.inbox.append(InboxItem(record["id"], record["body"]))

    def _apply_inputs(self, record: Record) -> None:
        self.inputs = record["inputs"]

    def _apply_adopt(self, record: Record) -> None:
        self.adopts = True

    def _apply_reply(self, record: Record) -> None:
        stored = tuple(StoredMessage(m["position"], m["body"]) for m in record["messages"])
        self.replies.append(ReplyRecord(record["name"], record["seq"], stored))
        if not record["aside"]:
            self.messages.update({message.position: message.body for message in stored})
            self.context += [message.position for message in stored]
        self._apply_plan(record)

    def _apply_plan(self, record: Record) -> None:
        for call in record["calls"]:
            self.calls[call["position"]] = CallRecord(**call)

    def _apply_call(self, record: Record) -> None:
        changes = dict(record["changes"])
        if changes.get("approval"):
            changes["approval"] = ApprovalRecord(**changes["approval"])
        self.calls[record["call"]] = replace(self.calls[record["call"]], **changes)

    def _apply_checkpoint(self, record: Record) -> None:
        self.adopts = False
        for message in record["messages"]:
            self.messages[message["position"]] = message["body"]
        taken = set(record["taken"])
        self.inbox = [item for item in self.inbox if item.id not in taken]
        new = [message["position"] for message in record["messages"]]
        self.context = [*self.context, *new] if record["context"] is None else record["context"]
        for key, change in record["state"].items():
            self.state[key] = [*self.state[key], *change["extend"]] if "extend" in change else change["set"]
        for settled in record["settled"]:
            call = self.calls[settled["position"]]
            if call.status not in ENDED_CALL_STATES:
                self.calls[call.position] = replace(call, status=settled["status"], error=settled["error"])
        self.checkpoints.append(
            {key: record[key] for key in ("position", "kind", "step", "counters", "tools", "definition")}
        )
        if record["kind"] != "prepared":
            self.replies = []
            self._since = record["position"]

    def _apply_stop(self, stop: Record) -> None:
        self.status, self.stopped = stop["status"], stop
        if stop["event"] == "finished":
            self.outcome = {key: stop[key] for key in ("final_answer", "exit_reason")}
        for position in stop["doubts"]:
            self.calls[position] = replace(self.calls[position], status="doubt")
        for ask in stop["asks"]:
            self.calls[ask["position"]] = replace(self.calls[ask["position"]], approval=ApprovalRecord(""))

    def _apply_stopped(self, record: Record) -> None:
        """A stop on its own: `_apply` does all there is to it."""

    def step_calls(self) -> tuple[CallRecord, ...]:
        return tuple(call for call in self.calls.values() if call.position > self._since)


class Fenced:
    def __init__(self, store: Store, epoch: int) -> None:
        self.store, self.epoch = store, epoch

    def __enter__(self) -> None:
        self.store.lock.acquire()
        if self.store.epoch != self.epoch:
            self.store.lock.release()
            raise LeaseLost(f"epoch {self.epoch} is over: the session is at {self.store.epoch}")

    def __exit__(self, *exception: object) -> None:
        self.store.lock.release()


def opened(store: Store, words: str, inputs: Record | None) -> int:
    with store.lock:
        epoch = store.epoch + 1
        store.write({"op": "open", "epoch": epoch})
        if inputs is not None:
            store.write({"op": "inputs", "inputs": inputs})
        if words:
            say(store, words)
        return epoch


def say(store: Store, text: str) -> None:
    body: Record = {"role": "user", "meta": {}, "name": None, "content": [{"text": text}]}
    position = store.position + 1
    store.write({"op": "say", "position": position, "id": position, "body": body})


def _now() -> datetime:
    return datetime.now(UTC)
