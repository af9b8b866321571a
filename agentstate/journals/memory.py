"""A journal in memory: for tests, and for the file journal, which only stores its records elsewhere."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Self

from agentstate.durable.breakpoints import Place
from agentstate.durable.policy import EffectScope
from agentstate.durable.records import (
    CallEnd,
    CallRecord,
    CommittedCheckpoint,
    CommittedReply,
    EarlierEffects,
    NewCall,
    NewCheckpoint,
    NewReply,
    Progress,
    Signals,
    Snapshot,
    StoredCheckpoint,
    StoredMessage,
)
from agentstate.durable.run_end import Finished, RunEnd
from agentstate.journals import going_back
from agentstate.journals.decisions import NOT_GIVEN, attempt_of, decision_record
from agentstate.journals.ends import end_record, progress_from, progress_record
from agentstate.journals.store import Fenced, Record, Store, begin_epoch, say
from agentstate.names import CallState, CheckpointKind, Need


class MemoryJournal:
    """A session's journal at one epoch. `MemoryJournal.open()` makes a new session, or the next epoch of a store.

    :param say: What the user says next, if anything.
    :param inputs: For the turns from here on: "state" (the values of state keys and of the prompts' variables),
        "generation_kwargs" and "tools" (names), as they would be given to `Agent.run`. A key ``$type`` is plain data.
    """

    def __init__(self, store: Store | None = None, epoch: int = 0) -> None:
        """:raises TypeError: without a store, which `open` makes."""
        if not isinstance(store, Store):
            name = type(self).__name__
            raise TypeError(
                f"A {name} is opened, not constructed: {name}.open(...), as its documentation says."
            )
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
        return cls(store, begin_epoch(store, say, inputs))

    @property
    def session_id(self) -> str:
        return self.store.session_id

    @property
    def error(self) -> str:
        """That of the run that ended last; "" if there is none."""
        return str(self.store.last_end.get("error") or "")

    def next_epoch(self) -> Self:
        """The session's journal at its next epoch, in this process; the present one can write no more."""
        return type(self)(self.store, begin_epoch(self.store, "", None))

    # What a person does

    def say(self, text: str) -> None:
        """Add an unread user message: the agent reads it at its next step, or as its next turn."""
        with self.store.lock:
            say(self.store, text)

    def resume(self) -> None:
        """Let a session that waits because its agent has changed continue with the agent as it is now.

        Or let the tool call be tried again whose failure has ended the turn, with the arguments that a person has set
        for it, if any. It then waits for approval, unless its tool is idempotent. Or begin the step again whose reply
        has ended the turn, by a tool that the agent lacks.

        :raises LookupError: if the session does none of these.
        """
        store = self.store
        with store.lock:
            failed = store.calls.get(store.last_end.get("failed_call", 0))
            if store.last_end.get("waiting_for") == Need.CHANGED:
                store.write({"op": "adopt"})
            elif failed is not None and failed == store.step_calls_by_id().get(failed.call_id):
                attempt = attempt_of(failed, position=store.position + 1)
                store.write({"op": "plan", "position": store.position + 1, "calls": [attempt]})
            elif store.last_end.get("asks_again") and store.replies:
                self.go_back(None)
            else:
                raise LookupError(
                    "There is nothing to resume: the agent has not changed, and no failed call has ended the turn."
                )

    def go_back(
        self, at: int | None, state: Record | None = None, messages: Sequence[Record] | None = None, *,
        discarding: Callable[[int], None] = lambda position: None,
    ) -> None:  # fmt: skip
        """Return to the start of a step (the newest, for None), with other values of the state, or other messages.

        :param at: The position of its checkpoint, see `agentstate.journals.going_back.checkpoints`.
        :param state: Encoded values, by state key. Other keys are as they were there.
        :param messages: The bodies of what the model sees there instead.
        :param discarding: Told the checkpoint's position before what came after it is discarded.
        :raises LookupError: if no step of the current history starts there.
        """
        with self._fenced():
            new, back_to = going_back.again(self.store, at, state or {}, messages)
            discarding(back_to)
            record, _, _ = self._checkpoint_record(new)
            self.store.write({**record, "back_to": back_to})

    def decide(
        self, call_id: str, *, approve: bool | None = None, arguments: Record | None = None,
        result: Any = NOT_GIVEN, again: bool = False, skip: str = "", message: str = "",
    ) -> None:  # fmt: skip
        """Decide about a call that waits, for approval, in doubt, or at a breakpoint.

        For a call that needs approval: `approve` True (with `arguments` to change them) or False (with a `message` for
        the model). For one in doubt: its `result` (None is one), `again` to run it again, or `skip` with a message for
        the model. For one at a breakpoint other `arguments`, or as for approval; undecided it runs as it is.

        :raises LookupError: if no call of that id waits for such a decision, with what it waits for.
        :raises NotStorable: for a result, or arguments, that cannot be stored.
        """
        with self.store.lock:
            record = decision_record(
                self.store, call_id,
                approve=approve, arguments=arguments, result=result, again=again, skip=skip, message=message,
            )  # fmt: skip
            self.store.write(record)

    # The port

    def load(self) -> Snapshot:
        store = self.store
        with self._fenced():
            last = store.checkpoints[-1] if store.checkpoints else None
            checkpoint = None
            if last is not None:
                seen = [position for position in store.context if position <= last["position"]]
                checkpoint = StoredCheckpoint(
                    position=last["position"],
                    kind=CheckpointKind(last["kind"]),
                    step=last["step"],
                    context=tuple(StoredMessage(position, store.messages[position]) for position in seen),
                    state=dict(store.state),
                    counters=last["counters"],
                    tools=tuple(last["tools"]),
                    definition=last["definition"],
                )
            return Snapshot(
                inputs=store.inputs,
                progress=progress_from(store.progress),
                definition=checkpoint.definition if checkpoint and not store.accepts_any_agent else "",
                checkpoint=checkpoint,
                unread=tuple(store.unread),
                replies=tuple(store.replies),
                calls=store.step_calls(),
                inputs_are_new=store.inputs_are_new,
                turn_is_asked=store.turns.is_asked,
                passed=Place.from_dict(store.breakpoint) if store.breakpoint else None,
            )

    def checkpoint(self, new: NewCheckpoint) -> CommittedCheckpoint:
        with self._fenced():
            record, positions, read = self._checkpoint_record(new)
            self.store.write(record)
            status = self.store.status if new.run_end is not None else ""
            return CommittedCheckpoint(positions, self._signals(), read, status)

    def reply(self, new: NewReply, checkpoint: NewCheckpoint | None = None) -> CommittedReply:
        with self._fenced():
            before, positions, read = self._checkpoint_record(checkpoint) if checkpoint else (None, (), ())
            first = (before["position"] if before else self.store.position) + 1
            messages = [{"position": first + i, "body": body} for i, body in enumerate(new.messages)]
            calls = self._planned(new.calls, first + len(messages))
            if new.start_calls and not self.store.discarded_calls():
                calls = [{**call, "status": CallState.STARTED, "attempt": 1} for call in calls]
            self.store.write(
                {
                    "op": "reply",
                    "before": before,
                    "position": first + len(messages) + len(calls) - 1,
                    "name": new.name,
                    "seq": new.seq,
                    "aside": new.side_call,
                    "messages": messages,
                    "calls": calls,
                    "at": [new.started_at.isoformat(), new.ended_at.isoformat()],
                    "progress": progress_record(new.progress),
                }
            )
            signals = self._signals()
            return CommittedReply(
                positions=tuple(range(first, first + len(messages))),
                calls=tuple(CallRecord(**call) for call in calls),
                signals=signals,
                checkpoint=CommittedCheckpoint(positions, signals, read) if before else None,
            )

    def _checkpoint_record(
        self, new: NewCheckpoint
    ) -> tuple[Record, tuple[int, ...], tuple[StoredMessage, ...]]:
        """The checkpoint's record, the positions of its new messages, and the unread messages that it reads."""
        store = self.store
        own_ids = [message.unread_id for message in new.messages if message.unread_id is not None]
        own_ids += new.replaced_unread
        unread_bodies = {message.id: message.body for message in store.unread}
        bodies = [
            unread_bodies[m.unread_id] if m.body is None and m.unread_id is not None else m.body
            for m in new.messages
        ]
        others = [message for message in store.unread if message.id not in own_ids]
        to_read = others if new.kind == CheckpointKind.STEP and new.read_unread else []
        first = store.position + 1
        positions = list(range(first, first + len(bodies)))
        read = [StoredMessage(first + len(bodies) + i, message.body) for i, message in enumerate(to_read)]
        all_positions = positions + [message.position for message in read]
        context = None
        if new.context is not None:
            context = [positions[-p - 1] if p < 0 else p for p in new.context]
            context += [message.position for message in read]
        progress, end = new.progress, None
        if new.run_end is not None:
            status: str = new.run_end.status
            if isinstance(new.run_end, Finished) and others and new.next_turn is not None:
                status, progress = "queued", new.next_turn
            end = end_record(new.run_end, status)
        record: Record = {
            "op": "checkpoint",
            "position": first + len(all_positions),
            "messages": [
                {"position": position, "body": body}
                for position, body in zip(
                    all_positions, [*bodies, *(message.body for message in to_read)], strict=True
                )
            ],
            "taken": own_ids + [message.id for message in to_read],
            "context": context,
            "kind": new.kind,
            "step": new.step,
            "state": new.state,
            "counters": new.counters,
            "tools": list(new.tools),
            "definition": new.definition,
            "settled": [asdict(call) for call in new.answered],
            "progress": progress_record(progress),
            "stop": end,
        }
        return record, tuple(positions), tuple(read)

    def plan(self, calls: Sequence[NewCall]) -> tuple[CallRecord, ...]:
        with self._fenced():
            first = self.store.position + 1
            planned = self._planned(calls, first)
            self.store.write({"op": "plan", "position": first + len(planned) - 1, "calls": planned})
            return tuple(CallRecord(**call) for call in planned)

    def earlier_effects(
        self, tool: str, arguments: Record, *, position: int, scope: EffectScope
    ) -> EarlierEffects | None:
        with self._fenced():
            return going_back.discarded_effects(self.store, self.store.calls[position], arguments, scope)

    def allowed(self) -> frozenset[str]:
        with self._fenced():
            return frozenset()  # in a script no call is approved for the rest of its session

    def approved(self, tool: str) -> tuple[Record, ...]:
        with self._fenced():
            return going_back.approved_arguments(self.store, tool)

    def start_call(
        self, position: int, *, sent: Record | None, at: datetime, scope: EffectScope | None = None
    ) -> Signals:
        with self._fenced():
            attempt = self.store.calls[position].attempt + 1
            changes = {"status": CallState.STARTED, "sent": sent, "attempt": attempt}
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
                    "progress": progress_record(progress) if progress else None,
                }
            )
            return self._signals()

    def end_run(self, end: RunEnd, progress: Progress | None = None) -> str:
        with self._fenced():
            self.store.write(
                {
                    "op": "stopped",
                    "progress": progress_record(progress) if progress else None,
                    "stop": end_record(end, end.status),
                }
            )
            return self.store.status

    def check_claim(self) -> None:
        with self._fenced():
            pass

    def thread_done(self) -> None:
        pass

    # Whoever runs an agent on it does so in a thread of their own.
    call_here: Callable[[Callable[[], None]], None] | None = None

    def _planned(self, calls: Sequence[NewCall], first: int) -> list[Record]:
        return [
            {
                "position": first + i,
                "call_id": call.call_id,
                "tool": call.tool,
                "arguments": call.arguments,
                "idempotency_key": self.store.idempotency_key(first + i),
            }
            for i, call in enumerate(calls)
        ]

    def _signals(self) -> Signals:
        return Signals(unread=bool(self.store.unread))

    def _fenced(self) -> "Fenced":
        return Fenced(self.store, self._epoch)
