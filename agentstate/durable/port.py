"""The port: what a durable run must be able to record and read back.

A journal is bound to one session and one epoch. Each method that writes is one commit: when it returns, what it
was given survives the death of this process. A write by a journal whose epoch is no longer the session's
changes nothing and raises `LeaseLost`. Methods may be called from several threads. All values are plain JSON;
an adapter needs neither Haystack nor what the values mean.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from agentstate.durable.interruptions import Interruption
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
)
from agentstate.durable.run_end import RunEnd

Json = Any


class LeaseLost(Interruption):
    """Another worker has the session now."""


class JournalUnavailable(Interruption):
    """The journal cannot be reached. The run stops where it is; the session resumes when its lease has expired."""


class EffectElsewhere(Exception):
    """A call must not start: its tool took effect in another session that shares the history by a fork, and a person
    has to decide.
    """

    def __init__(self, earlier: EarlierEffects) -> None:
        super().__init__("The tool took effect in another session that shares the history by a fork.")
        self.earlier = earlier


class Journal(Protocol):
    def load(self) -> Snapshot:
        """The state to resume from."""

    def checkpoint(self, new: NewCheckpoint) -> CommittedCheckpoint:
        """Commit a checkpoint with its messages, answered calls and, if it has one, the end of the run."""

    def reply(self, new: NewReply, checkpoint: NewCheckpoint | None = None) -> CommittedReply:
        """Commit a model's reply with its calls as planned and, before it, the deferred checkpoint of its step.

        With `NewReply.start_calls` the calls are recorded as started at once, unless the same commit finds a stop
        request or breakpoints, or `earlier_effects` could find any effect of this session.
        """

    def plan(self, calls: Sequence[NewCall]) -> tuple[CallRecord, ...]:
        """Commit calls that a hook added to the model's."""

    def earlier_effects(
        self, tool: str, arguments: dict[str, Json], *, position: int, scope: EffectScope
    ) -> EarlierEffects | None:
        """The effects of the tool that a call with these arguments would follow unseen; None if there are none.

        They are calls on discarded branches of the session, and in the sessions that share its history by a fork: the
        session that it was forked from, its forks, and theirs, also after the point of the fork. What the current
        history shows is not among them. Reads only.

        :param arguments: Those that would run.
        :param position: That of the call itself. Once it is approved, what its request showed needs no other decision.
        """

    def allowed(self) -> frozenset[str]:
        """The tools that are pre-approved for the rest of the session, as `Snapshot.allowed`, by now. Reads only."""

    def approved(self, tool: str) -> tuple[dict[str, Json], ...]:
        """The arguments of the tool's calls in the current history that people have approved as they were requested,
        oldest first. Reads only.
        """

    def start_call(
        self, position: int, *, sent: dict[str, Json] | None, at: datetime, scope: EffectScope | None = None
    ) -> Signals:
        """Record that the call has started. `sent` are its arguments, where they are not the model's.

        :param scope: For a call that may need approval because of earlier effects.
        :raises EffectElsewhere: if the tool took effect in another session that shares the history by a fork since
            `earlier_effects`, and a person has to decide about that; nothing is written. No two such sessions look and
            start at once.
        """

    def check_claim(self) -> None:
        """Called when a call has been recorded as started, right before its function is entered.

        A process may have stood still since that commit; by now another worker may have the session.

        :raises LeaseLost: if so. A journal may leave out the reading where nobody can have taken the session over.
        """

    def finish_call(self, position: int, end: CallEnd, progress: Progress | None = None) -> Signals:
        """Record how the call ended."""

    def end_run(self, end: RunEnd, progress: Progress | None = None) -> str:
        """Record how the run ended, and release the lease. Nothing may be written after it.

        :returns: The session's status, which is another than the end's where a person has requested one.
        """

    def thread_done(self) -> None:
        """Free what a tool call has opened in its own thread. Called in that thread when the call has ended."""

    @property
    def call_here(self) -> Callable[[Callable[[], None]], None] | None:
        """Calls a function in the present thread, without the connections that the run has open there, and closes those
        that the function opens.

        None where the thread is that of the run's caller, who may have opened anything: tools are called in other
        threads then, as they are where a journal does not have this.
        """
