"""The agents that workers have published, and what their sessions add up to."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count

from sessions_app.access.masking import Mask
from sessions_app.models import RegisteredAgent, Session, Status

NEWEST = 500


@dataclass(slots=True)
class AgentRow:
    """An agent, with numbers of its sessions."""

    agent: RegisteredAgent
    sessions: int = 0
    running: int = 0
    waiting: int = 0


def agents(mask: Mask) -> list[AgentRow]:
    """All agents. Two queries."""
    rows = {agent.key: AgentRow(agent) for agent in mask.rows(RegisteredAgent.objects.all())}
    numbers = Session.objects.order_by().values("agent", "status").annotate(n=Count("pk"))
    for number in numbers:
        row = rows.get(number["agent"])
        if row is None:
            continue
        row.sessions += number["n"]
        row.running += number["n"] if number["status"] in (Status.RUNNING, Status.QUEUED) else 0
        row.waiting += number["n"] if number["status"] == Status.WAITING else 0
    return list(rows.values())


@dataclass(slots=True)
class AgentTotals:
    """The sum of the totals of ``count`` sessions."""

    count: int = 0
    totals: dict[str, Any] = field(default_factory=dict)


def totals(agent: RegisteredAgent) -> AgentTotals:
    """Those of the agent's newest `NEWEST` sessions. One query."""
    edges: Counter[str] = Counter()
    visits: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    rows = (
        Session.objects.filter(agent=agent.key)
        .order_by("-created_at")
        .values_list("totals", flat=True)[:NEWEST]
    )
    for row in rows:
        edges.update(row.get("edges", {}))
        visits.update(row.get("visits", {}))
        seconds.update(row.get("seconds", {}))
        numbers.update({key: value for key, value in row.items() if isinstance(value, int | float)})
    return AgentTotals(len(rows), {**numbers, "edges": edges, "visits": visits, "seconds": seconds})
