"""The agents that workers have published, and what all their sessions add up to."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count

from sessions_app.models import RegisteredAgent, Session, Status

SUMMED = 500


@dataclass(slots=True)
class Summary:
    agent: RegisteredAgent
    sessions: int = 0
    running: int = 0
    waiting: int = 0


def agents() -> list[Summary]:
    """Two queries."""
    found = {agent.key: Summary(agent) for agent in RegisteredAgent.objects.all()}
    for row in Session.objects.order_by().values("agent", "status").annotate(n=Count("pk")):
        summary = found.get(row["agent"])
        if summary is None:
            continue
        summary.sessions += row["n"]
        summary.running += row["n"] if row["status"] in (Status.RUNNING, Status.QUEUED) else 0
        summary.waiting += row["n"] if row["status"] == Status.WAITING else 0
    return list(found.values())


@dataclass(slots=True)
class Totals:
    """Those of the newest `SUMMED` sessions, added up."""

    of: int = 0
    totals: dict[str, Any] = field(default_factory=dict)


def totals(agent: RegisteredAgent) -> Totals:
    """One query."""
    edges: Counter[str] = Counter()
    visits: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    rows = (
        Session.objects.filter(agent=agent.key)
        .order_by("-created_at")
        .values_list("totals", flat=True)[:SUMMED]
    )
    for row in rows:
        edges.update(row.get("edges", {}))
        visits.update(row.get("visits", {}))
        seconds.update(row.get("seconds", {}))
        numbers.update({key: value for key, value in row.items() if isinstance(value, int | float)})
    return Totals(len(rows), {**numbers, "edges": edges, "visits": visits, "seconds": seconds})
