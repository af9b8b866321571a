"""The journal port on the ORM: what a run records, fenced by its session's epoch.

Each write is one transaction that begins with `_fence`: an UPDATE of the session row with the claim's epoch in its
WHERE clause. It locks the row, gives out the positions, and says what others want of the run. No row: the claim is
over, and nothing is written. Tool threads write through the run's own connection, one at a time.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from django.utils import timezone

from agentstate.durable.port import LeaseLost
from agentstate.durable.records import (
    CallEnd,
    CallRecord,
    Committed,
    InboxItem,
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
from agentstate.names import ENDED_CALL_STATES
from sessions_app.history import restore
from sessions_app.models import (
    Branch,
    Checkpoint,
    InboxMessage,
    ModelCall,
    Session,
    ToolCall,
)
from sessions_app.runtime import statements, step_rows
from sessions_app.runtime.connection import RunConnection
from sessions_app.runtime.end_of_run import let_go
from sessions_app.runtime.leases import Claim

Json = Any


class OrmJournal:
    """The journal of one claim. Made in the thread that drives the session; usable from its tool threads."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.connection = RunConnection()
        self._branch: Branch
        self._leaves_calls_behind = False
        self._keys: dict[str, int] = {}
        self._context_at = 0
        self._tools: tuple[str, ...] = ()
        self._results: dict[str, tuple[int, str]] = {}
        self._call_ids: dict[int, str] = {}

    def load(self) -> Snapshot:
        with self._transaction():
            session = (
                Session.objects.select_related("branch")
                .filter(pk=self.claim.session_id, epoch=self.claim.epoch)
                .first()
            )
            if session is None or session.branch is None:
                raise LeaseLost(f"epoch {self.claim.epoch} of {self.claim.session_id} is over")
            self._branch = session.branch
            self._leaves_calls_behind = restore.leaves_calls_behind(session.branch)
            found = restore.read(session, session.branch)
            allowed = frozenset(session.allowances.values_list("tool", flat=True))
        self._keys, self._context_at, self._tools = dict(found.keys), found.context_at, found.tools
        self._remember(found.calls)
        return Snapshot(
            inputs=session.inputs,
            progress=Progress(session.phase, session.previous_phase, session.phase_since, session.totals),
            definition=session.definition,
            base=found.base,
            inbox=tuple(InboxItem(item.pk, user_body(item.text)) for item in session.inbox.all()),
            replies=found.replies,
            calls=found.calls,
            allowed=allowed,
        )

    def checkpoint(self, new: NewCheckpoint) -> Committed:
        with self._transaction():
            return self._checkpoint(new)

    def reply(self, new: NewReply, checkpoint: NewCheckpoint | None = None) -> RepliedCommit:
        with self._transaction():
            messages = [] if new.aside else list(new.messages)
            own = 1 + len(messages) + len(new.calls)
            before = len(checkpoint.messages) + 1 if checkpoint else 0
            also = {"definition": checkpoint.definition} if checkpoint else {}
            fence = self._fence(before + own, new.progress, attempt=1, updated_at=new.ended_at, **also)
            committed = (
                self._write_checkpoint(checkpoint, fence, fence.position - own) if checkpoint else None
            )
            first = fence.position - own + 1
            step_rows.model_call(self._branch, first, new, replies=len(messages))
            positions = tuple(range(first + 1, first + 1 + len(messages)))
            self._insert([(p, body, "") for p, body in zip(positions, messages, strict=True)], new.ended_at)
            calls = self._plan(new.calls, first + 1 + len(messages), new.ended_at)
        self._remember(calls)
        return RepliedCommit(positions, calls, fence.signals(), committed)

    def plan(self, calls: Sequence[NewCall]) -> tuple[CallRecord, ...]:
        with self._transaction():
            fence = self._fence(len(calls))
            planned = self._plan(calls, fence.position - len(calls) + 1, timezone.now())
        self._remember(planned)
        return planned

    def repeats(self, tool: str, arguments: dict[str, Json]) -> int | None:
        if not self._leaves_calls_behind:
            return None
        with self._transaction():
            before = restore.left_behind(self._branch, tool, arguments)
        return before.position if before else None

    def start_call(self, position: int, *, sent: dict[str, Json] | None, at: datetime) -> Signals:
        with self._transaction():
            fence = self._fence(0)
            statements.update(
                ToolCall,
                {"status": "started", "sent": sent, "started_at": at},
                where={"branch_id": self._branch.pk, "position": position},
                raise_by_one="attempt",
            )
        return fence.signals()

    def finish_call(self, position: int, end: CallEnd, progress: Progress | None = None) -> Signals:
        with self._transaction():
            fence = self._fence(0, progress, attempt=1)
            values = {
                "status": end.status,
                "ended_at": end.ended_at,
                "result": end.result,
                "error": end.error,
            }
            extra = {"state": end.state, "lossy": end.lossy, "cached": end.cached}
            statements.update(
                ToolCall, values | extra, where={"branch_id": self._branch.pk, "position": position}
            )
        if end.status == "done" and isinstance(end.result, str) and position in self._call_ids:
            self._results[self._call_ids[position]] = (position, end.result)
        return fence.signals()

    def stop(self, stop: Stop) -> None:
        now = timezone.now()
        with self._transaction():
            fence = self._fence(1 if stop.failed else 0, stop.progress)
            if stop.failed is not None:
                told = asdict(stop.failed)
                told["ended_at"] = max(told["started_at"], told["ended_at"])
                ModelCall.objects.create(branch=self._branch, position=fence.position, **told)
            let_go(self.claim, self._branch, stop, fence, now)

    def thread_done(self) -> None:
        self.connection.close_others()

    def _transaction(self) -> AbstractContextManager[None]:
        return self.connection.transaction()

    # Inside a transaction

    def _fence(self, positions: int, progress: Progress | None = None, **values: Json) -> statements.Fence:
        if progress is not None:
            values |= {
                "phase": progress.phase,
                "previous_phase": progress.previous,
                "phase_since": progress.since,
                "totals": progress.totals,
            }
        fence = statements.fence(self.claim.session_id, self.claim.epoch, positions, values)
        if fence is None:
            self.claim.lost.set()
            raise LeaseLost(f"epoch {self.claim.epoch} of {self.claim.session_id} is over")
        return fence

    def _checkpoint(self, new: NewCheckpoint) -> Committed:
        fence = self._fence(
            len(new.messages) + 1,
            new.progress,
            definition=new.definition,
            attempt=1,
            updated_at=timezone.now(),
        )
        fold = self._inbox(excluding=new.messages) if fence.inbox and new.kind == "step" and new.fold else []
        if fold:
            fence = self._fence(len(fold))
        return self._write_checkpoint(new, fence, fence.position, fold)

    def _write_checkpoint(
        self, new: NewCheckpoint, fence: statements.Fence, place: int, fold: Sequence[InboxMessage] = ()
    ) -> Committed:
        """Store the checkpoint at `place`, and in front of it its messages and those folded in."""
        now = timezone.now()
        first = place - len(fold) - len(new.messages)
        positions = tuple(range(first, first + len(new.messages)))
        self._store_messages(new, positions, now)
        folded = self._fold(fold, first + len(new.messages))
        self._store_checkpoint(new, positions, folded, place, now)
        for settled in new.settled:
            self._calls(settled.position).update(status=settled.status, error=settled.error, ended_at=now)
        if new.stop is not None:
            stop, left = new.stop, fence.inbox - sum(m.inbox_id is not None for m in new.messages)
            if stop.status == "idle" and new.followup is not None and left > 0:
                stop = replace(stop, status="queued", progress=new.followup)
            let_go(self.claim, self._branch, stop, fence, now)
        if new.kind != "prepared":
            self._results, self._call_ids = {}, {}
        return Committed(positions, fence.signals(), folded)

    def _store_messages(self, new: NewCheckpoint, positions: Sequence[int], now: datetime) -> None:
        ids = [message.inbox_id for message in new.messages if message.inbox_id is not None]
        inbox = InboxMessage.objects.select_related("author").in_bulk(ids) if ids else {}
        fresh = []
        for position, message in zip(positions, new.messages, strict=True):
            if message.inbox_id is None:
                fresh.append((position, message.body or {}, ""))
            else:
                item = inbox[message.inbox_id]
                fresh.append(
                    (position, user_body(item.text), item.author.get_username() if item.author else "")
                )
        self._insert(fresh, now)
        if ids:
            InboxMessage.objects.filter(pk__in=ids).delete()

    def _inbox(self, excluding: Sequence[Any]) -> list[InboxMessage]:
        taken = [message.inbox_id for message in excluding if message.inbox_id is not None]
        waiting = InboxMessage.objects.filter(session_id=self.claim.session_id).exclude(pk__in=taken)
        return list(waiting.select_related("author"))

    def _fold(self, items: Sequence[InboxMessage], first: int) -> tuple[StoredMessage, ...]:
        folded = tuple(StoredMessage(first + i, user_body(item.text)) for i, item in enumerate(items))
        for message, item in zip(folded, items, strict=True):
            author = item.author.get_username() if item.author else ""
            self._insert([(message.position, message.body, author)], item.created_at)
            item.delete()
        return folded

    def _store_checkpoint(
        self,
        new: NewCheckpoint,
        positions: Sequence[int],
        folded: Sequence[StoredMessage],
        place: int,
        now: datetime,
    ) -> None:
        context = None
        if new.context is not None:
            seen = [positions[-p - 1] if p < 0 else p for p in new.context] + [m.position for m in folded]
            context, self._context_at = restore.ranges(seen), place
        for key, change in new.state.items():
            if "set" in change:
                self._keys[key] = place
        step_rows.state_values(self._branch, place, new.state)
        tools = list(new.tools) if new.tools != self._tools or new.kind == "start" else None
        self._tools = new.tools
        outcome = None
        if new.kind == "end" and new.stop is not None:
            outcome = {"final_answer": new.stop.final_answer, "exit_reason": new.stop.exit_reason}
        statements.insert(
            Checkpoint,
            [
                {
                    "branch_id": self._branch.pk,
                    "position": place,
                    "kind": new.kind,
                    "step": new.step,
                    "phase": new.progress.phase,
                    "context": context,
                    "context_at": self._context_at,
                    "keys": self._keys,
                    "counters": new.counters,
                    "tools": tools,
                    "outcome": outcome,
                    "totals": new.progress.totals,
                    "definition": new.definition,
                    "created_at": now,
                }
            ],
        )

    def _plan(self, calls: Sequence[NewCall], first: int, at: datetime) -> tuple[CallRecord, ...]:
        records = tuple(
            CallRecord(
                position=first + i,
                call_id=call.call_id[:200],
                tool=call.tool,
                arguments=call.arguments,
                idempotency_key=f"{self.claim.session_id}-{first + i}",
            )
            for i, call in enumerate(calls)
        )
        step_rows.planned_calls(self._branch, records, at)
        return records

    def _insert(self, messages: Sequence[tuple[int, dict[str, Json], str]], at: datetime) -> None:
        step_rows.messages(self._branch, messages, self._results, at)

    def _calls(self, position: int) -> Any:
        return ToolCall.objects.filter(branch=self._branch, position=position).exclude(
            status__in=ENDED_CALL_STATES
        )

    def _remember(self, calls: Sequence[CallRecord]) -> None:
        for call in calls:
            self._call_ids[call.position] = call.call_id
            if call.status == "done" and isinstance(call.result, str):
                self._results[call.call_id] = (call.position, call.result)


def user_body(text: str) -> dict[str, Json]:
    return {"role": "user", "meta": {}, "name": None, "content": [{"text": text}]}
