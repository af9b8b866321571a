"""The agents that workers have published, and what their sessions add up to."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import OuterRef

from agentstate.names import CHANGED_TEXT
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.definition_changes import DefinitionChanges, between
from sessions_app.finding.counting import Count, CountUpTo
from sessions_app.models import AgentDefinition, LossyResult, RegisteredAgent, Session, Status

NEWEST = 500
MOST_LOSSY = 20
MOST_DEFINITIONS = 5


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent, and how many sessions it has, how many of them run or are due, and how many wait for a person."""

    agent: RegisteredAgent
    sessions: Count
    running: Count
    waiting: Count


def agents(mask: Mask) -> list[AgentRow]:
    """All agents, their sessions counted up to `counting.MOST`. One query."""
    sessions = Session.objects.filter(agent=OuterRef("key"))
    # A column of its own for each status: an index finds one status of an agent, and need not look at the others.
    rows = RegisteredAgent.objects.annotate(
        sessions=CountUpTo(sessions),
        queued=CountUpTo(sessions.filter(status=Status.QUEUED)),
        running=CountUpTo(sessions.filter(status=Status.RUNNING)),
        waiting=CountUpTo(sessions.filter(status=Status.WAITING)),
    )
    counted = list(rows)
    return [
        AgentRow(
            agent,
            sessions=Count.of(row.sessions),
            running=Count.of(row.queued + row.running),
            waiting=Count.of(row.waiting),
        )
        for agent, row in zip(mask.rows(counted), counted, strict=True)
    ]


def lossy_results(key: str) -> list[LossyResult]:
    """The types of which the agent's tools returned what could not be stored as it is, last seen first. One query."""
    return list(LossyResult.objects.filter(agent=key).order_by("-seen_at", "pk")[:MOST_LOSSY])


def has_changed_text(agent: str, tool: str, shown: str) -> bool:
    """Whether a result that was not stored exactly is a text, or holds one, with a character replaced. One query.

    :param shown: The result as it is shown. Without a replacement it was of a type of which the tool returned others.
    """
    kinds = set(LossyResult.objects.filter(agent=agent, tool=tool).values_list("kind", flat=True))
    return CHANGED_TEXT in kinds and ("\ufffd" in shown or len(kinds) == 1)


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition of an agent as it was published, and what changed since the one before; None for the first."""

    row: AgentDefinition
    changes: DefinitionChanges | None


def definitions(key: str, mask: Mask) -> list[Definition]:
    """The newest definitions of the agent, newest first. One query."""
    rows = mask.rows(
        AgentDefinition.objects.filter(agent=key).order_by("-published_at", "-pk")[: MOST_DEFINITIONS + 1]
    )
    known = {row.definition: row for row in rows}
    earlier: list[AgentDefinition | None] = [*rows[1:], None]
    return [
        Definition(row, between(known, before.definition, row.definition) if before is not None else None)
        for row, before in zip(rows[:MOST_DEFINITIONS], earlier, strict=False)
    ]


@dataclass(slots=True)
class AgentTotals:
    """The sum of the totals of ``count`` sessions, in which a history that they share by forks counts once."""

    count: int = 0
    totals: dict[str, Any] = field(default_factory=dict)


def totals(agent: RegisteredAgent) -> AgentTotals:
    """Those of the current histories of the agent's newest `NEWEST` sessions, of each what it did itself. One query."""
    groups: dict[str, Counter[str]] = {name: Counter() for name in ("edges", "visits", "seconds")}
    numbers: Counter[str] = Counter()
    rows = (
        Session.objects.filter(agent=agent.key)
        .order_by("-created_at")
        .values_list("totals", "forked_from__totals")[:NEWEST]
    )
    for own, at_fork in rows:
        shared = at_fork or {}
        for name, group in groups.items():
            group.update(_less(own.get(name, {}), shared.get(name, {})))
        numbers.update(_less(own, shared))
    return AgentTotals(len(rows), {**numbers, **groups})


def _less(numbers: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, float]:
    """The numbers, each less the other of its name: none below 0, as a fork may be rewound to before it was forked."""
    return {
        name: max(0, number - others.get(name, 0))
        for name, number in numbers.items()
        if isinstance(number, int | float)
    }
