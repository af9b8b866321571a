"""The cards beside a session's steps, below its key facts, and whether a page shows them as they are already.

All that people do with a session is an event, so a page that has the newest event has its allowances, too. An open page
is sent these cards when they have changed, and not with each step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from sessions_app.desk.pages.session import audit, state
from sessions_app.desk.pages.session.breakpoints import (
    BreakpointItem,
    breakpoints_of,
    breakpoints_of_agent,
)
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.diagnosis import Hint
from sessions_app.desk.pages.session.state import Memory
from sessions_app.models import Allowance, Checkpoint, Event, RegisteredAgent, allowances_of

LAST_EVENTS = 8
# The cards say, or leave it to a link, why a person cannot do this.
_WHY_NOT = ("role_memory", "state", "withdraw", "breakpoint", "note")


@dataclass(frozen=True, slots=True)
class Beside:
    """
    version: changes with whatever the cards show.
    is_shown: the page that asks shows them in this version; then the events and the allowances were not read.
    """

    memory: Memory | None
    hints: Sequence[Hint]
    breakpoints: Sequence[BreakpointItem]
    agents_breakpoints: Sequence[BreakpointItem]
    version: str
    is_shown: bool = False
    last_events: Sequence[Event] = ()
    allowances: Sequence[Allowance] = ()


def beside(
    context: SessionContext,
    *,
    agent: RegisteredAgent | None,
    checkpoint: Checkpoint | None,
    hints: Sequence[Hint],
    shown: str = "",
) -> Beside:
    """Two queries for what people did, or none if the page shows that; and the queries of `state.memory`.

    :param agent: That of the session.
    :param checkpoint: The newest that the session shows.
    :param shown: The version that the page shows, "" for none.
    """
    memory = state.memory(context.branch, checkpoint, mask=context.mask) if checkpoint else None
    breakpoints = breakpoints_of(context.session)
    agents_breakpoints = breakpoints_of_agent(context.mask.row(agent) if agent is not None else None)
    others = _digest(
        memory,
        hints,
        breakpoints,
        agents_breakpoints,
        context.session.final_answer,
        [context.why_not[name] for name in _WHY_NOT],
        f"{context.now:%Y-%m-%d %H}",  # a script counts ages up to a day, then they are dates
    )
    if shown and context.newest_event is not None and shown == _version(context.newest_event, others):
        return Beside(memory, hints, breakpoints, agents_breakpoints, shown, is_shown=True)
    events = audit.newest_events(context, LAST_EVENTS)
    # Read behind the events: of an allowance that is newer than these the next answer tells.
    allowances = allowances_of(context.session.pk)
    version = _version(events[0].position if events else 0, others)
    return Beside(
        memory,
        hints,
        breakpoints,
        agents_breakpoints,
        version,
        last_events=events,
        allowances=allowances,
    )


def _version(newest_event: int, others: str) -> str:
    return f"{newest_event}-{others}"


def _digest(*values: object) -> str:
    return sha256(repr(values).encode()).hexdigest()[:16]
