"""The journal port on the ORM: what a run records, each time in one commit that is fenced by its session's epoch.

What is recorded of calls is written through the run's own connection too, by one thread at a time.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.utils import timezone

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
    StoredMessage,
    UnreadMessage,
)
from agentstate.durable.run_end import Failed, GaveUp, RetryLater, RunEnd
from agentstate.names import CallState, CheckpointKind
from sessions_app.access.shown import cut_off
from sessions_app.history import restore
from sessions_app.history.message_rows import AnsweredCall
from sessions_app.models import (
    InboxMessage,
    ModelCall,
    Session,
    ToolCall,
    pre_approved_tools,
    unread_messages,
)
from sessions_app.runtime import session_breakpoints, statements, step_rows
from sessions_app.runtime.checkpoint_rows import CheckpointRows, is_rows_only, positions_of, read_ids
from sessions_app.runtime.connection import RunConnection
from sessions_app.runtime.decisions import DecisionsRead
from sessions_app.runtime.effect_guard import EffectGuard
from sessions_app.runtime.end_of_run import LONGEST_REASON, end_run, turn_after_nothing
from sessions_app.runtime.leases import Claim
from sessions_app.runtime.state_columns import with_excerpts
from sessions_app.runtime.step_rows import LONGEST_TOOL_NAME, NewMessageRow
from sessions_app.runtime.whole_commits import Expected

Json = Any
# The positions of a checkpoint's messages, the unread messages that it read, the session's status, and its rows.
Written = tuple[tuple[int, ...], tuple[StoredMessage, ...], str, CheckpointRows]
# While steps are shorter than this, lists are in the order of the changes only to within it. The end of a run, and what
# people do, set `updated_at` in any case.
UPDATED_AGAIN_AFTER = timedelta(seconds=5)


class OrmJournal(DecisionsRead):
    """The journal of one claim. Create it in the thread that drives the session, and `load` it before anything else.

    :param known: The checkpoint whose context the run has: where it continues there, `load` leaves the context out.
    """

    def __init__(self, claim: Claim, *, known: restore.CheckpointKey | None = None) -> None:
        super().__init__(claim, RunConnection())
        self._known = known
        self._session: Session
        self._updated_at: datetime
        self._checkpoints: CheckpointRows
        # Of the unfinished step: the calls by their positions, and those that are done by their ids.
        self._asked: dict[int, CallRecord] = {}
        self._answered: dict[str, AnsweredCall] = {}

    def load(self) -> Snapshot:
        with self._transaction():
            session = self.claim.read_session()
            self._session, self._branch = session, session.current_branch
            self._updated_at, self._position = session.updated_at, session.position
            self._guard = EffectGuard(session)
            restored = restore.read(self._branch, last=session.position, known=self._known)
            allowed = pre_approved_tools(session.pk)
            unread = tuple(UnreadMessage(row.pk, row.whole) for row in unread_messages(session.pk))
        self._checkpoints = CheckpointRows.behind(self._branch, restored)
        self._remember_calls(restored.calls)
        return Snapshot(
            inputs=session.inputs,
            progress=Progress(session.phase, session.previous_phase, session.phase_since, session.totals),
            definition=session.definition,
            checkpoint=restored.checkpoint,
            unread=unread,
            replies=restored.replies,
            calls=restored.calls,
            allowed=allowed,
            breakpoints=session_breakpoints.of_rows(session.breakpoints),
            passed=Place.from_dict(session.breakpoint_hit) if session.breakpoint_hit else None,
        )

    @property
    def last_checkpoint(self) -> restore.CheckpointKey | None:
        """The one that this run has written last."""
        return self._checkpoints.last

    def checkpoint(self, new: NewCheckpoint) -> CommittedCheckpoint:
        values = {"definition": new.definition, "attempt": 1, **self._updated(timezone.now())}
        may_read = new.kind == CheckpointKind.STEP and new.read_unread
        at_once = None
        if is_rows_only(new):
            at_once = self._at_once(
                lambda fence: self._write_checkpoint(new, fence, fence.position),
                positions_of(new),
                new.progress,
                values,
                Expected(self._position, all_read=may_read),
            )
        if at_once is not None:
            return self._committed(new, *at_once)
        with self._transaction():
            fence = self._fence(positions_of(new), new.progress, **values)
            unread: list[InboxMessage] = []
            if fence.unread and may_read:
                unread = self._unread(excluding=new)
                if unread:
                    fence = self._fence(len(unread))
            written = self._write_checkpoint(new, fence, fence.position, unread)
        return self._committed(new, fence, written)

    def reply(self, new: NewReply, checkpoint: NewCheckpoint | None = None) -> CommittedReply:
        messages = [] if new.side_call else list(new.messages)
        own_positions = 1 + len(messages) + len(new.calls)
        before = positions_of(checkpoint) if checkpoint else 0
        values: dict[str, Json] = {"definition": checkpoint.definition} if checkpoint else {}
        values |= {"attempt": 1, **self._updated(new.ended_at)}

        def write(fence: statements.Fence) -> tuple[tuple[int, ...], tuple[CallRecord, ...], Written | None]:
            written = None
            if checkpoint is not None:
                written = self._write_checkpoint(checkpoint, fence, fence.position - own_positions)
            first = fence.position - own_positions + 1
            step_rows.model_call(self._branch, first, new, replies=len(messages))
            positions = tuple(range(first + 1, first + 1 + len(messages)))
            self._insert([NewMessageRow(*row, new.ended_at) for row in zip(positions, messages, strict=True)])
            starts = new.start_calls and not (
                fence.stop_request or fence.breakpoints or self._guard.may_find_effects
            )
            calls = self._plan(new.calls, first + 1 + len(messages), new.ended_at, starts=starts)
            return positions, calls, written

        expected = None
        if checkpoint is None or is_rows_only(checkpoint):
            may_start = new.start_calls and not self._guard.may_find_effects
            expected = Expected(self._position, undisturbed=may_start)
        is_stored = partial(step_rows.has_model_call, self._branch, new)
        fence, (positions, calls, written) = self._persist(
            write, before + own_positions, new.progress, values, expected, is_stored
        )
        committed = self._committed(checkpoint, fence, written) if checkpoint and written else None
        self._remember_calls(calls)
        return CommittedReply(positions, calls, fence.signals(), committed)

    def plan(self, calls: Sequence[NewCall]) -> tuple[CallRecord, ...]:
        now = timezone.now()
        _, planned = self._commit(
            lambda fence: self._plan(calls, fence.position - len(calls) + 1, now),
            len(calls),
            expected=Expected(self._position),
        )
        self._remember_calls(planned)
        return planned

    def earlier_effects(
        self, tool: str, arguments: dict[str, Json], *, position: int, scope: EffectScope
    ) -> EarlierEffects | None:
        if not self._guard.may_find_effects:
            return None
        with self._transaction():
            return self._guard.earlier_effects(tool, arguments, position=position, scope=scope)

    def start_call(
        self, position: int, *, sent: dict[str, Json] | None, at: datetime, scope: EffectScope | None = None
    ) -> Signals:
        values: dict[str, Any] = {"status": CallState.STARTED, "sent": sent, "started_at": at}
        values["worker"] = self.claim.worker[:200]

        def write(fence: statements.Fence) -> None:
            if scope is not None:
                self._guard.check_start(position, sent, scope)
            where = {"branch_id": self._branch.id, "position": position}
            statements.update(ToolCall, values, where=where, raise_by_one="attempt")

        # Where other sessions share the history by a fork, it looks for their effects once the session row is locked.
        at_once = scope is None or not self._guard.is_in_line
        expected = Expected(undisturbed=scope is not None) if at_once else None
        return self._commit(write, expected=expected)[0].signals()

    def check_claim(self) -> None:
        if timezone.now() < self.claim.lease_end:
            return
        with self._transaction():
            if not Session.objects.filter(pk=self.claim.session_id, epoch=self.claim.epoch).exists():
                self.claim.lost.set()
                raise self.claim.is_over()

    def finish_call(self, position: int, end: CallEnd, progress: Progress | None = None) -> Signals:
        values = {
            "status": end.status,
            "ended_at": end.ended_at,
            "result": end.result,
            "error": end.error,
            "state": end.state,
            "lossy": end.lossy,
            "cached": end.cached,
        }

        def write(fence: statements.Fence) -> None:
            statements.update(ToolCall, values, where={"branch_id": self._branch.id, "position": position})
            if end.lossy and (kinds := step_rows.lost_types(end)):
                tool = ToolCall.objects.values_list("tool", flat=True).get(
                    branch=self._branch, position=position
                )
                step_rows.lossy_results(self._session.agent, tool, kinds, end.ended_at)

        expected = None if end.lossy else Expected()
        fence, _ = self._persist(write, 0, progress, {"attempt": 1}, expected)
        if end.status == CallState.DONE and position in self._asked:
            self._remember_answer(self._asked[position], end.result)
        return fence.signals()

    def end_run(self, end: RunEnd, progress: Progress | None = None) -> str:
        end = with_excerpts(end)
        now = timezone.now()
        failed = end.failed_call if isinstance(end, Failed | RetryLater | GaveUp) else None
        with self._transaction():
            fence = self._fence(1 if failed else 0, progress)
            if failed is not None:
                values = asdict(failed)
                values["ended_at"] = max(failed.started_at, failed.ended_at)
                values["error"] = cut_off(failed.error, LONGEST_REASON)
                ModelCall.objects.create(branch=self._branch, position=fence.position, **values)
            following = turn_after_nothing(end, progress, now)
            return str(end_run(self._session, self.claim.worker, end, fence, now, next_turn=following))

    def _committed(
        self, new: NewCheckpoint, fence: statements.Fence, written: Written
    ) -> CommittedCheckpoint:
        """Remember what the next checkpoint refers to, now that this one is committed."""
        positions, read, status, self._checkpoints = written
        if new.kind != CheckpointKind.PREPARED:
            self._asked, self._answered = {}, {}
        return CommittedCheckpoint(positions, fence.signals(), read, status)

    def _updated(self, now: datetime) -> dict[str, Json]:
        """`updated_at`, which is in the indexes of the lists, unless it was set a moment ago."""
        if abs(now - self._updated_at) < UPDATED_AGAIN_AFTER:
            return {}
        self._updated_at = now
        return {"updated_at": now}

    # Inside a commit

    def _write_checkpoint(
        self,
        new: NewCheckpoint,
        fence: statements.Fence,
        position: int,
        unread: Sequence[InboxMessage] = (),
    ) -> Written:
        """Store the checkpoint at `position`, and in front of it what it lost, its messages and the unread ones."""
        now = timezone.now()
        first = position - len(unread) - len(new.messages)
        positions = tuple(range(first, first + len(new.messages)))
        if new.lost:
            step_rows.not_stored(self._session, self.claim.worker, new.lost, position=first - 1, at=now)
        self._store_messages(new, positions, now)
        read = self._read(unread, first + len(new.messages))
        read_at = [message.position for message in read]
        rows = self._checkpoints.insert(new, position, positions, read_at, self._answered.values(), now)
        step_rows.answered_calls(self._branch, new.answered, now)
        status = ""
        if new.run_end is not None:
            ended = (self._session, self.claim.worker, new.run_end, fence, now)
            status = str(end_run(*ended, next_turn=new.next_turn, read=len(read_ids(new))))
        return positions, read, status, rows

    def _store_messages(self, new: NewCheckpoint, positions: Sequence[int], now: datetime) -> None:
        ids = read_ids(new)
        unread = InboxMessage.objects.select_related("author").in_bulk(ids) if ids else {}
        rows = []
        for position, message in zip(positions, new.messages, strict=True):
            if message.unread_id is None:
                rows.append(NewMessageRow(position, message.body or {}, now))
            else:
                rows.append(NewMessageRow.read(position, unread[message.unread_id], message.body))
        self._insert(rows)
        if ids:
            InboxMessage.objects.filter(pk__in=ids).delete()

    def _unread(self, excluding: NewCheckpoint) -> list[InboxMessage]:
        own_ids = read_ids(excluding)
        rows = InboxMessage.objects.filter(session_id=self.claim.session_id).exclude(pk__in=own_ids)
        return list(rows.select_related("author"))

    def _read(self, rows: Sequence[InboxMessage], first: int) -> tuple[StoredMessage, ...]:
        """Make unread messages part of the conversation, from the position `first` on."""
        read = tuple(StoredMessage(first + i, row.whole) for i, row in enumerate(rows))
        for message, row in zip(read, rows, strict=True):
            self._insert([NewMessageRow.read(message.position, row)])
            row.delete()
        return read

    def _plan(
        self, calls: Sequence[NewCall], first: int, at: datetime, *, starts: bool = False
    ) -> tuple[CallRecord, ...]:
        records = tuple(
            CallRecord(
                position=first + i,
                call_id=call.call_id[:200],
                tool=call.tool,
                arguments=call.arguments,
                idempotency_key=f"{self.claim.session_id}-{first + i}",
                status=CallState.STARTED if starts else CallState.PLANNED,
                attempt=int(starts),
            )
            for i, call in enumerate(calls)
        )
        step_rows.planned_calls(self._branch, records, at, self.claim.worker)
        return records

    def _insert(self, messages: Sequence[NewMessageRow]) -> None:
        step_rows.messages(self._branch, messages, self._answered)

    def _remember_calls(self, calls: Sequence[CallRecord]) -> None:
        for call in calls:
            self._asked[call.position] = call
            if call.status == CallState.DONE:
                self._remember_answer(call, call.result)

    def _remember_answer(self, call: CallRecord, result: Json) -> None:
        tool = cut_off(call.tool, LONGEST_TOOL_NAME)
        self._answered[call.call_id] = AnsweredCall(call.position, call.call_id, tool, call.arguments, result)
