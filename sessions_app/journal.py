"""The journal port on the ORM: what a run records, fenced by its session's epoch.

Each write is one transaction that begins with `_fence`: an UPDATE of the session row with the claim's epoch in its
WHERE clause. It locks the row, gives out the positions, and says what others want of the run. No row: the claim is
over, and nothing is written. Tool threads write through the run's own connection, one at a time.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connections, transaction
from django.db.models import F
from django.utils import timezone

from agentstate.durable.journal import (
    ENDED,
    CallEnd,
    CallRecord,
    Committed,
    InboxItem,
    JournalUnavailable,
    LeaseLost,
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
from sessions_app import restore, rowsql
from sessions_app.leases import Claim
from sessions_app.models import (
    Approval,
    Branch,
    Checkpoint,
    Event,
    InboxMessage,
    Message,
    ModelCall,
    Session,
    StateValue,
    ToolCall,
)
from sessions_app.packing import pack

Json = Any


class OrmJournal:
    """The journal of one claim. Made in the thread that drives the session; usable from its tool threads."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self._connection = connections[DEFAULT_DB_ALIAS]
        self._thread = threading.get_ident()
        self._lock = threading.RLock()
        self._branch: Branch
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
            rowsql.insert(
                ModelCall,
                [
                    {
                        "branch_id": self._branch.pk,
                        "position": first,
                        "name": new.name,
                        "seq": new.seq,
                        "replies": len(messages),
                        "aside": list(new.messages) if new.aside else None,
                        "model": new.model[:200],
                        "prompt_tokens": new.prompt_tokens,
                        "completion_tokens": new.completion_tokens,
                        "error": "",
                        "started_at": new.started_at,
                        "ended_at": max(new.started_at, new.ended_at),
                    }
                ],
            )
            positions = tuple(range(first + 1, first + 1 + len(messages)))
            self._insert_messages(
                [(p, body, "") for p, body in zip(positions, messages, strict=True)], new.ended_at
            )
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
        if not self._branch.leaves_something_behind:
            return None
        with self._transaction():
            before = restore.left_behind(self._branch, tool, arguments)
        return before.position if before else None

    def start_call(self, position: int, *, sent: dict[str, Json] | None, at: datetime) -> Signals:
        with self._transaction():
            fence = self._fence(0)
            rowsql.update(
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
            rowsql.update(
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
            self._let_go(stop, fence, now)

    def thread_done(self) -> None:
        if threading.get_ident() != self._thread:
            connections.close_all()

    # Inside a transaction

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction on the run's connection, whichever thread this is."""
        with self._lock:
            lent = threading.get_ident() != self._thread
            own = getattr(connections._connections, DEFAULT_DB_ALIAS, None) if lent else None  # type: ignore[attr-defined]
            if lent:
                self._connection.inc_thread_sharing()
                connections[DEFAULT_DB_ALIAS] = self._connection
            try:
                with transaction.atomic():
                    yield
            except (OperationalError, InterfaceError) as error:
                raise JournalUnavailable(str(error)) from error
            finally:
                if lent:
                    self._connection.dec_thread_sharing()
                    if own is not None:
                        connections[DEFAULT_DB_ALIAS] = own
                    else:
                        del connections[DEFAULT_DB_ALIAS]

    def _fence(self, positions: int, progress: Progress | None = None, **values: Json) -> "rowsql.Fence":
        if progress is not None:
            values |= {
                "phase": progress.phase,
                "previous_phase": progress.previous,
                "phase_since": progress.since,
                "totals": progress.totals,
            }
        fence = rowsql.fence(self.claim.session_id, self.claim.epoch, positions, values)
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
        self, new: NewCheckpoint, fence: "rowsql.Fence", place: int, fold: Sequence[InboxMessage] = ()
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
            self._let_go(stop, fence, now)
        if new.kind != "prepared":
            self._results, self._call_ids = {}, {}
        return Committed(positions, fence.signals(), folded)

    def _insert_messages(self, rows: Sequence[tuple[int, dict[str, Json], str]], at: datetime) -> None:
        values = []
        for position, body, author in rows:
            role, text, rest = pack(body, self._results)
            values.append(
                {
                    "branch_id": self._branch.pk,
                    "position": position,
                    "role": role,
                    "text": text,
                    "body": rest,
                    "author": author,
                    "created_at": at,
                }
            )
        rowsql.insert(Message, values)

    def _store_messages(self, new: NewCheckpoint, positions: Sequence[int], now: datetime) -> None:
        ids = [message.inbox_id for message in new.messages if message.inbox_id is not None]
        inbox = InboxMessage.objects.select_related("author").in_bulk(ids) if ids else {}
        rows = []
        for position, message in zip(positions, new.messages, strict=True):
            if message.inbox_id is None:
                rows.append((position, message.body or {}, ""))
            else:
                item = inbox[message.inbox_id]
                rows.append(
                    (position, user_body(item.text), item.author.get_username() if item.author else "")
                )
        self._insert_messages(rows, now)
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
            self._insert_messages([(message.position, message.body, author)], item.created_at)
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
        rowsql.insert(
            StateValue,
            [
                {
                    "branch_id": self._branch.pk,
                    "position": place,
                    "key": key,
                    "extends": "extend" in change,
                    "value": change["extend"] if "extend" in change else change["set"],
                }
                for key, change in new.state.items()
            ],
        )
        tools = list(new.tools) if new.tools != self._tools or new.kind == "start" else None
        self._tools = new.tools
        outcome = None
        if new.kind == "end" and new.stop is not None:
            outcome = {"final_answer": new.stop.final_answer, "exit_reason": new.stop.exit_reason}
        rowsql.insert(
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
        rowsql.insert(
            ToolCall,
            [
                {
                    "branch_id": self._branch.pk,
                    "position": record.position,
                    "call_id": record.call_id,
                    "ordinal": ordinal,
                    "tool": record.tool[:200],
                    "arguments": record.arguments,
                    "status": "planned",
                    "error": "",
                    "lossy": False,
                    "cached": False,
                    "attempt": 0,
                    "idempotency_key": record.idempotency_key,
                    "decided_by": "",
                    "asked_at": at,
                }
                for ordinal, record in enumerate(records)
            ],
        )
        return records

    def _calls(self, position: int) -> Any:
        return ToolCall.objects.filter(branch=self._branch, position=position).exclude(status__in=ENDED)

    def _remember(self, calls: Sequence[CallRecord]) -> None:
        for call in calls:
            self._call_ids[call.position] = call.call_id
            if call.status == "done" and isinstance(call.result, str):
                self._results[call.call_id] = (call.position, call.result)

    def _let_go(self, stop: Stop, fence: "rowsql.Fence", now: datetime) -> None:
        """Give the session its next status. What a person has asked meanwhile comes first."""
        status = stop.status
        if fence.stop_request == "cancel" and status in ("queued", "waiting", "paused"):
            status = "cancelled"
        elif fence.stop_request == "pause" and status == "queued":
            status = "paused"
        if status == stop.status:
            self._ask(stop)
        values: dict[str, Json] = {
            "status": status,
            "waiting_for": stop.waiting_for if status == "waiting" else "",
            "error": stop.error,
            "worker": "",
            "lease_expires_at": None,
            "next_run_at": now + timedelta(seconds=stop.delay) if status == "queued" else None,
            "stop_request": "",
            "change": F("change") + 1,
            "updated_at": now,
        }
        if status not in ("paused", "cancelled"):  # there it is the reason of whoever asked for it
            values["why"] = stop.why
        if stop.event == "finished":
            values |= {"final_answer": stop.final_answer, "exit_reason": stop.exit_reason[:200]}
        if stop.event != "retry":
            values["attempt"] = 0
        if status != "queued":
            values["version"] = F("version") + 1
        if stop.progress is not None:
            values |= {
                "phase": stop.progress.phase,
                "previous_phase": stop.progress.previous,
                "phase_since": stop.progress.since,
                "totals": stop.progress.totals,
            }
        event = stop.event if status == stop.status else status
        if event:
            values["position"] = F("position") + 1
            Event.objects.create(
                session_id=self.claim.session_id,
                branch=self._branch,
                position=fence.position + 1,
                kind=event,
                actor_name=self.claim.worker,
                reason=stop.why or stop.error,
            )
        Session.objects.filter(pk=self.claim.session_id).update(**values)

    def _ask(self, stop: Stop) -> None:
        mine = ToolCall.objects.filter(branch=self._branch)
        if stop.doubts:
            mine.filter(position__in=stop.doubts, status="started").update(status="doubt")
        pks = dict(
            mine.filter(position__in=[ask.position for ask in stop.asks]).values_list("position", "pk")
        )
        now = timezone.now()
        for ask in stop.asks:
            Approval.objects.get_or_create(
                call_id=pks[ask.position],
                defaults={
                    "session_id": self.claim.session_id,
                    "arguments": ask.arguments,
                    "fingerprint": ask.fingerprint,
                    "asked_at": now,
                    "expires_at": now + timedelta(seconds=ask.ttl) if ask.ttl else None,
                    "repeats": restore.left_behind(self._branch, ask.tool, ask.arguments)
                    if ask.repeats
                    else None,
                },
            )


def user_body(text: str) -> dict[str, Json]:
    return {"role": "user", "meta": {}, "name": None, "content": [{"text": text}]}
