"""A journal in memory: for tests, and the store on which the file journal stands.

The store holds one session as the records that were written to it, in order; each record is plain JSON and is applied
by `_apply`. Opening a journal raises the session's epoch, so that an older one is fenced off.
"""

import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from agentstate.durable.journal import (
    ENDED,
    ApprovalRecord,
    Base,
    CallEnd,
    CallRecord,
    Committed,
    InboxItem,
    LeaseLost,
    NewCall,
    NewCheckpoint,
    NewReply,
    Progress,
    RepliedCommit,
    ReplyRecord,
    Signals,
    Snapshot,
    Stop,
    StoredMessage,
)

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
            if call.status not in ENDED:
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


class MemoryJournal:
    """A session's journal at one epoch. `MemoryJournal.open()` makes a new session, or the next epoch of a store.

    :param say: What the user says next, if anything.
    :param inputs: As `Snapshot.inputs`; kept from the first opening on.
    """

    def __init__(self, store: Store, epoch: int) -> None:
        self.store = store
        self._epoch = epoch

    @classmethod
    def open(
        cls,
        store: Store | None = None,
        *,
        say: str = "",
        inputs: Record | None = None,
        session_id: str = "session",
    ) -> "MemoryJournal":
        store = store or Store(session_id)
        return cls(store, _opened(store, say, inputs))

    # What a person does

    def say(self, text: str) -> None:
        """Put a user message into the inbox: the agent sees it at its next step, or as its next turn."""
        with self.store.lock:
            _say(self.store, text)

    def decide(
        self, call_id: str, *, approve: bool | None = None, arguments: Record | None = None,
        result: Json = None, again: bool = False, skip: str = "", message: str = "",
    ) -> None:  # fmt: skip
        """Answer for a call that waits: `approve` True (with `arguments` to change them) or False (with a `message` for
        the model); or, for one in doubt, its `result`, `again`, or `skip` with a message for the model.

        :raises LookupError: if no such call waits.
        """
        with self.store.lock:
            call = next((call for call in self.store.step_calls() if call.call_id == call_id), None)
            open_approval = call is not None and call.approval is not None and call.approval.decision == ""
            if call is None or not (open_approval if approve is not None else call.status == "doubt"):
                raise LookupError(f"No call {call_id!r} waits for that decision.")
            changes: Record
            if approve is not None:
                decision = "approved" if approve else "rejected"
                changes = {"approval": {"decision": decision, "arguments": arguments, "message": message}}
            elif again:
                changes = {"status": "planned"}
            elif skip:
                changes = {"status": "skipped", "error": skip}
            else:
                changes = {"status": "done", "result": result}
            self.store.write({"op": "call", "call": call.position, "changes": changes})

    # The port

    def load(self) -> Snapshot:
        store = self.store
        with self._fenced():
            checkpoint = store.checkpoints[-1] if store.checkpoints else None
            base = None
            if checkpoint is not None:
                seen = [position for position in store.context if position <= checkpoint["position"]]
                base = Base(
                    position=checkpoint["position"],
                    kind=checkpoint["kind"],
                    step=checkpoint["step"],
                    context=tuple(StoredMessage(position, store.messages[position]) for position in seen),
                    state=dict(store.state),
                    counters=checkpoint["counters"],
                    tools=tuple(checkpoint["tools"]),
                    definition=checkpoint["definition"],
                )
            return Snapshot(
                inputs=store.inputs,
                progress=_progress(store.progress),
                definition=base.definition if base else "",
                base=base,
                inbox=tuple(store.inbox),
                replies=tuple(store.replies),
                calls=store.step_calls(),
            )

    def checkpoint(self, new: NewCheckpoint) -> Committed:
        with self._fenced():
            record, positions, folded = self._drawn_up(new)
            self.store.write(record)
            return Committed(positions, self._signals(), folded)

    def reply(self, new: NewReply, checkpoint: NewCheckpoint | None = None) -> RepliedCommit:
        with self._fenced():
            before, positions, folded = self._drawn_up(checkpoint) if checkpoint else (None, (), ())
            first = (before["position"] if before else self.store.position) + 1
            messages = [{"position": first + i, "body": body} for i, body in enumerate(new.messages)]
            calls = self._planned(new.calls, first + len(messages))
            self.store.write(
                {
                    "op": "reply",
                    "before": before,
                    "position": first + len(messages) + len(calls) - 1,
                    "name": new.name,
                    "seq": new.seq,
                    "aside": new.aside,
                    "messages": messages,
                    "calls": calls,
                    "at": [new.started_at.isoformat(), new.ended_at.isoformat()],
                    "progress": _plain(new.progress),
                }
            )
            places = tuple(range(first, first + len(messages)))
            signals = self._signals()
            committed = Committed(positions, signals, folded) if before else None
            return RepliedCommit(places, tuple(CallRecord(**call) for call in calls), signals, committed)

    def _drawn_up(self, new: NewCheckpoint) -> tuple[Record, tuple[int, ...], tuple[StoredMessage, ...]]:
        """The checkpoint's record, the positions of its new messages, and what it folds in of the inbox."""
        store = self.store
        taken = [message.inbox_id for message in new.messages if message.inbox_id is not None]
        by_id = {item.id: item.body for item in store.inbox}
        bodies = [m.body if m.inbox_id is None else by_id[m.inbox_id] for m in new.messages]
        fold = [item for item in store.inbox if new.kind == "step" and new.fold and item.id not in taken]
        first = store.position + 1
        positions = list(range(first, first + len(bodies)))
        folded = [StoredMessage(first + len(bodies) + i, item.body) for i, item in enumerate(fold)]
        places = positions + [message.position for message in folded]
        context = None
        if new.context is not None:
            context = [positions[-place - 1] if place < 0 else place for place in new.context]
            context += [message.position for message in folded]
        left = any(item.id not in taken for item in store.inbox)
        stop, progress = new.stop, new.progress
        if stop is not None and stop.status == "idle" and left and new.followup is not None:
            stop, progress = replace(stop, status="queued"), new.followup
        record: Record = {
            "op": "checkpoint",
            "position": first + len(places),
            "messages": [
                {"position": position, "body": body}
                for position, body in zip(places, [*bodies, *(item.body for item in fold)], strict=True)
            ],
            "taken": taken + [item.id for item in fold],
            "context": context,
            "kind": new.kind,
            "step": new.step,
            "state": new.state,
            "counters": new.counters,
            "tools": list(new.tools),
            "definition": new.definition,
            "settled": [asdict(settled) for settled in new.settled],
            "progress": _plain(progress),
            "stop": _stop(stop),
        }
        return record, tuple(positions), tuple(folded)

    def plan(self, calls: Sequence[NewCall]) -> tuple[CallRecord, ...]:
        with self._fenced():
            first = self.store.position + 1
            planned = self._planned(calls, first)
            self.store.write({"op": "plan", "position": first + len(planned) - 1, "calls": planned})
            return tuple(CallRecord(**call) for call in planned)

    def repeats(self, tool: str, arguments: Record) -> int | None:
        return None  # it has no rewind, so nothing is ever left behind

    def start_call(self, position: int, *, sent: Record | None, at: datetime) -> Signals:
        with self._fenced():
            attempt = self.store.calls[position].attempt + 1
            changes = {"status": "started", "sent": sent, "attempt": attempt}
            self.store.write({"op": "call", "call": position, "changes": changes, "at": at.isoformat()})
            return self._signals()

    def finish_call(self, position: int, end: CallEnd, progress: Progress | None = None) -> Signals:
        with self._fenced():
            changes = {"status": end.status, "result": end.result, "error": end.error, "state": end.state}
            self.store.write(
                {
                    "op": "call",
                    "call": position,
                    "changes": changes,
                    "at": end.ended_at.isoformat(),
                    "cached": end.cached,
                    "lossy": end.lossy,
                    "progress": _plain(progress) if progress else None,
                }
            )
            return self._signals()

    def stop(self, stop: Stop) -> None:
        with self._fenced():
            progress = _plain(stop.progress) if stop.progress else None
            self.store.write({"op": "stopped", "progress": progress, "stop": _stop(stop)})

    def thread_done(self) -> None:
        pass

    def _planned(self, calls: Sequence[NewCall], first: int) -> list[Record]:
        return [
            {
                "position": first + i,
                "call_id": call.call_id,
                "tool": call.tool,
                "arguments": call.arguments,
                "idempotency_key": f"{self.store.session_id}-{first + i}",
            }
            for i, call in enumerate(calls)
        ]

    def _signals(self) -> Signals:
        return Signals(inbox=bool(self.store.inbox))

    def _fenced(self) -> "_Fenced":
        return _Fenced(self.store, self._epoch)


class _Fenced:
    def __init__(self, store: Store, epoch: int) -> None:
        self.store, self.epoch = store, epoch

    def __enter__(self) -> None:
        self.store.lock.acquire()
        if self.store.epoch != self.epoch:
            self.store.lock.release()
            raise LeaseLost(f"epoch {self.epoch} is over: the session is at {self.store.epoch}")

    def __exit__(self, *exception: object) -> None:
        self.store.lock.release()


def _opened(store: Store, say: str, inputs: Record | None) -> int:
    with store.lock:
        epoch = store.epoch + 1
        store.write({"op": "open", "epoch": epoch})
        if inputs is not None:
            store.write({"op": "inputs", "inputs": inputs})
        if say:
            _say(store, say)
        return epoch


def _say(store: Store, text: str) -> None:
    body: Record = {"role": "user", "meta": {}, "name": None, "content": [{"text": text}]}
    position = store.position + 1
    store.write({"op": "say", "position": position, "id": position, "body": body})


def _plain(progress: Progress) -> Record:
    return {**asdict(progress), "since": progress.since.isoformat()}


def _progress(record: Record) -> Progress:
    return Progress(**{**record, "since": datetime.fromisoformat(record["since"])})


def _stop(stop: Stop | None) -> Record | None:
    if stop is None:
        return None
    keys = (
        "status",
        "event",
        "waiting_for",
        "why",
        "error",
        "delay",
        "final_answer",
        "exit_reason",
        "doubts",
    )
    record = {key: getattr(stop, key) for key in keys}
    return {**record, "doubts": list(stop.doubts), "asks": [asdict(ask) for ask in stop.asks]}


def _now() -> datetime:
    return datetime.now(UTC)
