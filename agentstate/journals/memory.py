"""A journal in memory: for tests, and for the file journal, which only keeps its records elsewhere."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime

from agentstate.durable.records import (
    Base,
    CallEnd,
    CallRecord,
    Committed,
    NewCall,
    NewCheckpoint,
    NewReply,
    Progress,
    RepliedCommit,
    Signals,
    Snapshot,
    Stop,
    StoredMessage,
)
from agentstate.journals.store import Fenced, Json, Record, Store, opened, say


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
        return cls(store, opened(store, say, inputs))

    # What a person does

    def say(self, text: str) -> None:
        """Put a user message into the inbox: the agent sees it at its next step, or as its next turn."""
        with self.store.lock:
            say(self.store, text)

    def resume(self) -> None:
        """Let a session that waits because its agent has changed go on with the agent as it is now.

        :raises LookupError: if it does not wait for that.
        """
        with self.store.lock:
            if self.store.stopped.get("waiting_for") != "changed":
                raise LookupError("The session does not wait because its agent has changed.")
            self.store.write({"op": "adopt"})

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
                definition=base.definition if base and not store.adopts else "",
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

    def _fenced(self) -> "Fenced":
        return Fenced(self.store, self._epoch)


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
