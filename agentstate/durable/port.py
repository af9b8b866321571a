"""The port: what a durable run must be able to record and read back.

A journal is bound to one session and one epoch. Each method that writes is one commit: when it returns, what it
was given survives the death of this process. A write by a journal whose epoch is no longer the session's
changes nothing and raises `LeaseLost`. Methods may be called from several threads. All values are plain JSON;
an adapter needs neither Haystack nor what the values mean.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from agentstate.durable.records import (
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
)

Json = Any


class LeaseLost(BaseException):
    """Another worker holds the session now. A BaseException, since Haystack turns exceptions of tools into messages."""


class JournalUnavailable(BaseException):
    """The journal cannot be reached. The run stops as it is; the session goes on when its lease has run out."""


class Journal(Protocol):
    def load(self) -> Snapshot:
        """What there is to go on from."""

    def checkpoint(self, new: NewCheckpoint) -> Committed:
        """Commit a checkpoint, and what came with it."""

    def reply(self, new: NewReply, checkpoint: NewCheckpoint | None = None) -> RepliedCommit:
        """Commit a model's reply, with the calls it asks for as planned; before it, the checkpoint of its step."""

    def plan(self, calls: Sequence[NewCall]) -> tuple[CallRecord, ...]:
        """Commit calls that a hook added to the model's."""

    def repeats(self, tool: str, arguments: dict[str, Json]) -> int | None:
        """The position of a call with these arguments that was started on a tail left behind by a rewind or a fork."""

    def start_call(self, position: int, *, sent: dict[str, Json] | None, at: datetime) -> Signals:
        """Commit that the call runs from now on. `sent` are its arguments, where they are not the model's."""

    def finish_call(self, position: int, end: CallEnd, progress: Progress | None = None) -> Signals:
        """Commit how the call ended."""

    def stop(self, stop: Stop) -> None:
        """Let go of the session. Nothing may be written after it."""

    def thread_done(self) -> None:
        """Called in a thread other than the run's own when its tool call is over, to free what the thread held."""
