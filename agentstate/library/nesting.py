"""Refuses to run a session from within its own run, or to wait for a run on an event loop: either might never end.

Context variables go with a run into its threads and tasks, so that what runs inside is known there.
"""

import asyncio
import threading
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


class SessionInUse(RuntimeError):
    """The session is being run, and whoever wants to run it or to decide about it must not wait for that run here:
    within the run itself, or on an event loop.
    """


@dataclass
class _Run:
    """A run in which this code may be. It has ended where something outlives it that it began, such as a task."""

    names: frozenset[Hashable]
    has_ended: bool = False


_runs: ContextVar[tuple[_Run, ...]] = ContextVar("agentstate_session_runs", default=())


def check_outside(session_id: str, *names: Hashable) -> None:
    """
    :param names: By any of which the session is known.
    :raises SessionInUse: within a run of this session.
    """
    if any(not run.has_ended and not run.names.isdisjoint(names) for run in _runs.get()):
        raise SessionInUse(
            f"The session {session_id!r} is being run, and this call comes from one of its own tools or hooks: it "
            "would wait for itself. A tool may run another DurableAgent, with a session of its own."
        )


@contextmanager
def run_of(session_id: str, *names: Hashable) -> Iterator[None]:
    """The code inside is a run of the session.

    :raises SessionInUse: within a run of this session.
    """
    check_outside(session_id, *names)
    run = _Run(frozenset(names))
    token = _runs.set((*_runs.get(), run))
    try:
        yield
    finally:
        run.has_ended = True
        _runs.reset(token)


def held(lock: threading.Lock, session_id: str) -> AbstractContextManager[object]:
    """What to enter in order to hold the lock of the session's runs.

    :raises SessionInUse: on entering, where it would wait on an event loop: the run that holds the lock may need that
        loop in order to end.
    """
    return _held_at_once(lock, session_id) if _is_on_event_loop() else lock


@contextmanager
def _held_at_once(lock: threading.Lock, session_id: str) -> Iterator[None]:
    if not lock.acquire(blocking=False):
        raise SessionInUse(
            f"The session {session_id!r} is being run, and this call would hold up the event loop until that run has "
            "ended, which it may never do without the loop. Await run_async or resume_async, or make the call in a "
            "thread: await asyncio.to_thread(session.decide, ...)."
        )
    try:
        yield
    finally:
        lock.release()


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
