"""One session as the records that were written to it, in order: the basis of the memory and the file journal.

Each record is plain JSON and is applied by `_apply`, when it is written and again when a file is read. Opening raises
the session's epoch, so that a journal of an older one is fenced off.

The operations and keys of the records are those of the file format, version 1, and stay as they are. These differ from
the words used in the code:

    say, adopt, stopped     operations: add an unread message; accept an agent that has changed; end the run
    ask                     operation: add the unread messages of a turn, with its key and its inputs, at once
    taken, settled, stop    of a checkpoint: the ids of the messages that it read; the calls answered without running;
                            the end of the run
    back_to                 of a checkpoint: the position of the one that it repeats, to which the session goes back
    aside                   of a reply: it is one to a side call
    doubts, asks            of the end of a run: the calls in doubt; the approval requests, each with what the tool
                            would be given from the State besides (from_state)
    approval                of a planned call that is a new attempt of one that failed: the approval of that one, whose
                            arguments a person had changed
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from agentstate.durable.port import LeaseLost
from agentstate.durable.records import (
    ApprovalRecord,
    CallRecord,
    ReplyRecord,
    StoredMessage,
    UnreadMessage,
    user_body,
)
from agentstate.durable.shown_state import FromState, StateArgument
from agentstate.journals.turns import Turns
from agentstate.names import ENDED_CALL_STATES, STEP_KINDS, CallState, CheckpointKind, RunEvent

Json = Any
Record = dict[str, Json]
# What `Store.checkpoints` hold of the records of checkpoints.
_OF_CHECKPOINT = ("position", "kind", "step", "counters", "tools", "definition", "progress")


class Store:
    """One session: the tables that its records make up. Not thread-safe by itself; `lock` guards it."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.lock = threading.RLock()
        self.epoch = 0
        # Chosen at random when the session began: another session may have its id, in another folder or after its end.
        # "" for a session of an earlier version.
        self.token = ""
        self.position = 0
        self.status = "idle"
        self.inputs: Record = {}
        self.inputs_are_new = False  # since the last turn
        self.unread: list[UnreadMessage] = []
        self.messages: dict[int, Record] = {}
        self.checkpoints: list[Record] = []
        self.state: dict[str, Json] = {}
        self.replies: list[ReplyRecord] = []
        self.calls: dict[int, CallRecord] = {}
        self.progress: Record = {"phase": "idle", "previous": "", "since": _now().isoformat(), "totals": {}}
        self.last_end: Record = {}
        self.outcome: Record = {}
        self.context: list[int] = []
        self.turns = Turns()
        self.failed_attempts = 0
        self.accepts_any_agent = False
        # Where a breakpoint stopped the turn last, as `AtBreakpoint.to_dict`; whether the session still waits there.
        self.breakpoint: Record = {}
        self.is_at_breakpoint = False
        self._step_began_at = 0
        # Of each checkpoint to which the session has gone back: its position, and that of the one that repeats it.
        self._went_back: list[tuple[int, int]] = []
        self._operations: dict[str, Callable[[Record], None]] = {
            "open": self._apply_open,
            "say": self._apply_say,
            "ask": self._apply_ask,
            "inputs": self._apply_inputs,
            "adopt": self._apply_adopt,
            "reply": self._apply_reply,
            "plan": self._apply_plan,
            "call": self._apply_call,
            "checkpoint": self._apply_checkpoint,
            "stopped": self._apply_end_alone,
        }

    def write(self, record: Record) -> None:
        """Make one record part of the session. The file journal writes it to disk first."""
        self._apply(record)

    @property
    def name(self) -> str:
        """The session's id with its token: no other session has this name, whatever its id."""
        return "-".join(filter(None, (self.session_id, self.token)))

    def idempotency_key(self, position: int) -> str:
        """The key of the call at a position, which no other session has."""
        return f"{self.name}-{position}"

    def step_calls(self) -> tuple[CallRecord, ...]:
        """The calls of the unfinished step."""
        return tuple(call for call in self.calls.values() if call.position > self._step_began_at)

    def may_approve(self, call: CallRecord) -> bool:
        """Whether the call of the unfinished step waits for an approval, or at a breakpoint."""
        if call.approval is not None and call.approval.decision == "":
            return True
        return self.is_held(call)

    def is_held(self, call: CallRecord) -> bool:
        """Whether the session waits at a breakpoint that this call has met."""
        at_breakpoint = self.is_at_breakpoint and call.call_id in self.breakpoint["calls"]
        return at_breakpoint and call.status == CallState.PLANNED

    def context_at(self, checkpoint: Record) -> list[int]:
        """The positions of the messages that the model sees at one of `checkpoints`."""
        return list(checkpoint["context"][: checkpoint["seen"]])

    def discarded_calls(self, back_to: int | None = None) -> list[CallRecord]:
        """The calls that the current history does not show, since the session has gone back behind them.

        :param back_to: As if it had also gone back to the checkpoint at this position.
        """
        return [
            call
            for call in self.calls.values()
            if any(first < call.position < last for first, last in self._went_back)
            or (back_to is not None and call.position > back_to)
        ]

    def step_calls_by_id(self) -> dict[str, CallRecord]:
        """The last call of each id in the unfinished step: a new attempt comes behind the call that failed."""
        return {call.call_id: call for call in self.step_calls()}

    def _apply(self, record: Record) -> None:
        if record.get("before"):
            self._apply(record["before"])
        self.position = record.get("position", self.position)
        if record.get("progress"):
            self.progress = record["progress"]
        self._operations[record["op"]](record)
        if record.get("stop"):
            self._apply_end(record["stop"])

    def _apply_open(self, record: Record) -> None:
        self.epoch = record["epoch"]
        self.token = record.get("token", self.token)

    def _apply_say(self, record: Record) -> None:
        self.unread.append(UnreadMessage(record["id"], record["body"]))
        self.turns.said(record["body"])

    def _apply_ask(self, record: Record) -> None:
        self.unread += [UnreadMessage(message["id"], message["body"]) for message in record["messages"]]
        self._apply_inputs(record)
        self.turns.asked(
            record["key"],
            [message["body"] for message in record["messages"]],
            [message["id"] for message in record["messages"]],
        )

    def _apply_inputs(self, record: Record) -> None:
        self.inputs, self.inputs_are_new = record["inputs"], True

    def _apply_adopt(self, record: Record) -> None:
        self.accepts_any_agent = True

    def _apply_reply(self, record: Record) -> None:
        self.failed_attempts = 0
        self.is_at_breakpoint = False
        stored = tuple(StoredMessage(m["position"], m["body"]) for m in record["messages"])
        self.replies.append(ReplyRecord(record["name"], record["seq"], stored))
        if not record["aside"]:
            self.messages.update({message.position: message.body for message in stored})
            self.context += [message.position for message in stored]
        self._apply_plan(record)

    def _apply_plan(self, record: Record) -> None:
        for call in record["calls"]:
            approval = ApprovalRecord(**call["approval"]) if call.get("approval") else None
            self.calls[call["position"]] = CallRecord(**{**call, "approval": approval})
            self.is_at_breakpoint &= call.get("status") != CallState.STARTED

    def _apply_call(self, record: Record) -> None:
        changes = dict(record["changes"])
        if changes.get("approval"):
            request = self.calls[record["call"]].approval
            changes["approval"] = ApprovalRecord(
                **changes["approval"], from_state=request.from_state if request is not None else None
            )
        self.calls[record["call"]] = replace(self.calls[record["call"]], **changes)
        if changes.get("status") == CallState.STARTED:
            self.is_at_breakpoint = False

    def _apply_checkpoint(self, record: Record) -> None:
        self.accepts_any_agent = False
        self.failed_attempts = 0
        self.inputs_are_new = False
        if "back_to" in record:
            self._go_back(record["back_to"], record["position"])
        if record["kind"] in STEP_KINDS:
            self.turns.began(record["position"], self.inputs)
        for message in record["messages"]:
            self.messages[message["position"]] = message["body"]
        read = set(record["taken"])
        self.unread = [message for message in self.unread if message.id not in read]
        new = [message["position"] for message in record["messages"]]
        if record["context"] is None:
            self.context += new
        else:
            self.context = list(record["context"])
        for key, change in record["state"].items():
            self.state[key] = [*self.state[key], *change["extend"]] if "extend" in change else change["set"]
        for answered in record["settled"]:
            call = self.calls[answered["position"]]
            if call.status not in ENDED_CALL_STATES:
                self.calls[call.position] = replace(call, status=answered["status"], error=answered["error"])
        self.checkpoints.append(
            {
                **{key: record[key] for key in _OF_CHECKPOINT},
                "context": self.context,  # which grows, until it is replaced by another list
                "seen": len(self.context),
                "state": dict(self.state),
            }
        )
        if record["kind"] != CheckpointKind.PREPARED:
            self.replies = []
            self._step_began_at = record["position"]
        if record["kind"] == CheckpointKind.END and (turn := self.turns.unfinished):
            turn.context, turn.state, turn.counters = (
                tuple(self.context),
                dict(self.state),
                record["counters"],
            )

    def _go_back(self, position: int, by: int) -> None:
        """Discard what came after the checkpoint at a position, of which another one at `by` takes the place."""
        self._went_back.append((position, by))
        if position != self._step_began_at or self.breakpoint.get("before") == "tools":
            self.breakpoint = {}
        self.is_at_breakpoint = False
        turn, unasked = self.turns.went_back(position)
        self.inputs = turn.inputs
        self.unread = [message for message in self.unread if message.id not in unasked]
        self.state = {}
        self.checkpoints = [row for row in self.checkpoints if row["position"] <= position]

    def _apply_end_alone(self, record: Record) -> None:
        """The end of a run without a checkpoint: `_apply` does all of it."""

    def _apply_end(self, end: Record) -> None:
        self.status, self.last_end = end["status"], end
        self.turns.ended(end, self.unread)
        self.is_at_breakpoint = "breakpoint" in end
        if self.is_at_breakpoint:
            self.breakpoint = end["breakpoint"]
        elif end["event"] == RunEvent.FINISHED:
            self.breakpoint = {}
        if end["event"] == RunEvent.RETRY:
            self.failed_attempts += 1
        elif end["event"] == RunEvent.GAVE_UP:
            self.failed_attempts = 0  # whoever runs it again has decided to try again
        if end["event"] == RunEvent.FINISHED:
            self.outcome = {key: end[key] for key in ("final_answer", "exit_reason")}
        for position in end["doubts"]:
            self.calls[position] = replace(self.calls[position], status=CallState.DOUBT)
        for request in end["asks"]:
            call = self.calls[request["position"]]
            # A call that was approved with other arguments is asked about with these.
            edited = call.approval.edited if call.approval is not None else None
            request_of_call = ApprovalRecord("", edited, from_state=_from_state(request))
            self.calls[call.position] = replace(call, approval=request_of_call)


def _from_state(request: Record) -> FromState | None:
    shown = request.get("from_state")
    return None if shown is None else {name: StateArgument(**argument) for name, argument in shown.items()}


class Fenced:
    """Holds the store's lock while a journal of this epoch uses it.

    :raises LeaseLost: on entering, if the epoch is over.
    """

    def __init__(self, store: Store, epoch: int) -> None:
        self.store, self.epoch = store, epoch

    def __enter__(self) -> None:
        self.store.lock.acquire()
        if self.store.epoch != self.epoch:
            self.store.lock.release()
            raise LeaseLost(f"epoch {self.epoch} is over: the session is at {self.store.epoch}")

    def __exit__(self, *exception: object) -> None:
        self.store.lock.release()


def begin_epoch(store: Store, message: str, inputs: Record | None) -> int:
    """Begin the session's next epoch, with what the user says and the inputs, if any; returns its number."""
    if inputs:
        from agentstate.durable.inputs import encoded  # with Haystack, which reading a journal does not need

        inputs = encoded(inputs)
    with store.lock:
        epoch = store.epoch + 1
        begins = {"token": uuid4().hex} if epoch == 1 else {}
        store.write({"op": "open", "epoch": epoch, **begins})
        if inputs is not None:
            store.write({"op": "inputs", "inputs": inputs})
        if message:
            say(store, message)
        return epoch


def say(store: Store, text: str) -> None:
    """Add an unread user message."""
    from agentstate.durable.state.encoding import clean_text  # with Haystack, as above

    position = store.position + 1
    store.write({"op": "say", "position": position, "id": position, "body": user_body(clean_text(text))})


def ask(store: Store, messages: Sequence[Record], *, key: str = "", inputs: Record | None = None) -> None:
    """Add the messages (their bodies) of the next turn, with its key and the inputs of its run."""
    first = store.position + 1
    numbered = [{"id": first + i, "body": body} for i, body in enumerate(messages)]
    position = store.position + len(numbered)
    store.write({"op": "ask", "position": position, "key": key, "messages": numbered, "inputs": inputs or {}})


def _now() -> datetime:
    return datetime.now(UTC)
