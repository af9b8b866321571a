"""Refuses to run a session from within its own run, by its tools and hooks: it would wait for itself forever.

Context variables go with a run into its threads and tasks, so that what runs inside is known there.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


class SessionInUse(RuntimeError):
    """The session is being run by the very run from which it was to be run, or decided about."""


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
