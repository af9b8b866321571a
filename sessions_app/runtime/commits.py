"""The commits of a run: each is fenced by the epoch of its session, and writes all that it writes or nothing.

A commit begins with the fence: an UPDATE of the session row with the claim's epoch in its WHERE clause. It locks the
row, gives out positions, and returns stop requests and the number of unread messages. If it updates no row, the claim
is over, and nothing is written.

The commits of every step are made at once (`runtime/whole_commits.py`): on PostgreSQL by one statement, without BEGIN
and COMMIT, so with one round trip and no transaction that a process could leave open by standing still. What such a
commit writes has to be known before the fence has returned anything. Where something else holds of the session row it
writes nothing, and a transaction finds out what does.

A commit that holds what cannot be had again is kept and made again while PostgreSQL is away: see `_persist`.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from django.conf import settings

from agentstate.durable.port import JournalUnavailable
from agentstate.durable.records import Progress
from sessions_app.mirror.live import session_changed
from sessions_app.runtime import statements
from sessions_app.runtime.connection import RunConnection
from sessions_app.runtime.effect_guard import EffectGuard
from sessions_app.runtime.end_of_run import progress_fields
from sessions_app.runtime.leases import Claim
from sessions_app.runtime.whole_commits import Expected, fence_and_write

logger = logging.getLogger(__name__)

Json = Any
T = TypeVar("T")
# Between two attempts at a commit while the server is away.
RETRY_SECONDS = 0.5


class AlreadyStored(JournalUnavailable):
    """The server went away when it had stored a commit, before it said so. The next claim goes on behind it."""


class FencedCommits:
    """The commits of one claim, on the connection of its run."""

    def __init__(self, claim: Claim, connection: RunConnection) -> None:
        self.claim = claim
        self.connection = connection
        self._guard: EffectGuard
        # The last one that was given out, unless another process has taken one since.
        self._position = 0
        # When the database was found unavailable, on the monotonic clock, if no commit has succeeded since.
        self._away_since: float | None = None

    def thread_done(self) -> None:
        self.connection.close_others()

    def call_here(self, work: Callable[[], None]) -> None:
        self.connection.aside(work)

    def _transaction(self) -> AbstractContextManager[None]:
        return self.connection.transaction()

    def _whole_commit(self, commit: Callable[[], T]) -> T:
        return self.connection.whole_commit(commit)

    def _persist(
        self,
        write: Callable[[statements.Fence], T],
        positions: int,
        progress: Progress | None,
        values: dict[str, Json],
        expected: Expected | None,
        is_stored: Callable[[], bool] | None = None,
    ) -> tuple[statements.Fence, T]:
        """As `_commit`, of what was paid for: a model's reply, or the result of a call.

        While PostgreSQL is away, as when it restarts, the commit is made again until it succeeds, another worker has
        the session, or the length of a lease has passed.

        :param is_stored: Whether an earlier attempt has stored it, asked while the session's row is locked. None for
            what may be written twice.
        :raises JournalUnavailable: if the server stays away, on SQLite at once; and `AlreadyStored`.
        """
        unless = None
        while True:
            try:
                committed = self._commit(write, positions, progress, values, expected, unless)
            except AlreadyStored:
                raise
            except JournalUnavailable as error:
                if not self._may_return(error):
                    raise
            else:
                self._away_since = None
                return committed
            unless = is_stored
            if self.claim.lost.wait(RETRY_SECONDS):
                raise self.claim.is_over()

    def _may_return(self, error: JournalUnavailable) -> bool:
        """Whether to wait for the database. All calls of a run wait for the length of one lease together."""
        if not self.connection.passes(error):
            return False
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            told = "The database is unavailable, so session %s waits to store what it has: %s"
            logger.warning(told, self.claim.session_id, error)
        return now < self._away_since + settings.AGENTSTATE_LEASE_SECONDS

    def _commit(
        self,
        write: Callable[[statements.Fence], T],
        positions: int = 0,
        progress: Progress | None = None,
        values: dict[str, Json] | None = None,
        expected: Expected | None = None,
        unless: Callable[[], bool] | None = None,
    ) -> tuple[statements.Fence, T]:
        """One commit of the fence and of what `write` stores behind it: at once where `expected` is given and holds,
        else by a transaction that reads first. `write` may be called twice.

        :raises AlreadyStored: if `unless` says so, which is asked in the transaction: `expected` would not hold.
        """
        if expected is not None:
            at_once = self._at_once(write, positions, progress, values or {}, expected)
            if at_once is not None:
                return at_once
        with self._transaction():
            fence = self._fence(positions, progress, **(values or {}))
            if unless is not None and unless():
                raise AlreadyStored("it went away during a commit that it has stored")
            with statements.together():
                result = write(fence)
        return fence, result

    def _at_once(
        self,
        write: Callable[[statements.Fence], T],
        positions: int,
        progress: Progress | None,
        values: dict[str, Json],
        expected: Expected,
    ) -> tuple[statements.Fence, T] | None:
        """As `_commit`, with what `write` stores for the expected fence. None if nothing was written: where the claim
        is over, something else than `expected` holds, or there are many rows.
        """
        if progress is not None:
            values = values | progress_fields(progress)

        def commit() -> tuple[statements.Fence, T] | None:
            with statements.collected() as writes:
                result = write(statements.Fence((expected.position or 0) + positions, "", 0, None))
            if not writes.are_few():
                return None
            fence = fence_and_write(
                self.claim.session_id, self.claim.epoch, positions, values, writes, expected
            )
            if fence is None:
                return None
            self._passed(fence)
            return fence, result

        return self._whole_commit(commit)

    def _fence(self, positions: int, progress: Progress | None = None, **values: Json) -> statements.Fence:
        """:raises LeaseLost: if the claim is over; heartbeats of it end too."""
        if progress is not None:
            values |= progress_fields(progress)
        fence = statements.fence(self.claim.session_id, self.claim.epoch, positions, values)
        if fence is None:
            self.claim.lost.set()
            raise self.claim.is_over()
        self._passed(fence)
        return fence

    def _passed(self, fence: statements.Fence) -> None:
        self._position = fence.position
        self._guard.is_in_line |= fence.line is not None
        session_changed(self.claim.session_id)
