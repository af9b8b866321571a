"""The sessions that have several properties together, as PostgreSQL finds them by one index.

Tens of thousands of sessions may have a tag and tens of thousands be in a phase, of which hardly one is both. By an
index of either, PostgreSQL reads all of its rows to see that. The index of migration 0040 has all properties of each
session as keys, its *facets*: it compares the lists of sessions that it has for each key, and no row is read but those
of sessions that have all of them.

The phase of a session that runs is none of them, since each commit of a run changes it: running sessions, which are
few, are asked for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from django.db.models import BooleanField, F, Func, Q, Value

from sessions_app.finding.parts import opaque
from sessions_app.models import Status

# As each row of the sessions has them, in the table of PostgreSQL only: triggers keep them (migration 0040).
TAG_NAMES = "tag_names"
# The columns of which the second expression of the index is made, in the order of its places.
_COLUMNS = ("agent", "status", "has_failed", "phase_at_rest", "assignee")
_KEYS = (
    "(ARRAY['agent ' || {0}, 'status ' || {1}, 'phase ' || CASE WHEN {1} = 'running' THEN NULL "
    "WHEN {2} THEN 'error' ELSE COALESCE({3}, 'done') END, 'assignee ' || COALESCE({4}::text, 'nobody')])"
)


@dataclass(frozen=True, slots=True)
class Facets:
    """What a filter asks for, as far as the index has it, and the rest; "" where it asks for nothing.

    assignee: their key, or "nobody".
    since: when a session changed at the earliest. ``are_many_since``: a large part of all did later.
    rest: what else is asked of a session.
    """

    agent: str = ""
    status: str = ""
    phase: str = ""
    tag: str = ""
    assignee: str = ""
    since: datetime | None = None
    are_many_since: bool = False
    rest: Q = field(default_factory=Q)

    @property
    def is_any(self) -> bool:
        """Whether the index has something that is asked for."""
        return any((self.agent, self.status, self.phase, self.tag, self.assignee))

    @property
    def is_of_state(self) -> bool:
        """Whether a status or a phase is asked for, and nothing else but the age."""
        return bool(self.status or self.phase) and not (self.agent or self.tag or self.assignee or self.rest)

    @property
    def is_of_person(self) -> bool:
        """Whether sessions are asked for that are assigned to someone."""
        return self.assignee not in ("", "nobody")

    @property
    def fields(self) -> int:
        """How many fields are asked for, the rest aside."""
        named = self.agent, self.status, self.phase, self.tag, self.assignee, self.since
        return sum(map(bool, named))

    def narrowed(self, *, rest: Q, status: str = "", phase: str = "") -> Self:
        """With something else that is asked of a session, and a status and phase that those asked for may have."""
        return replace(self, rest=self.rest & rest, status=status or self.status, phase=phase or self.phase)

    @property
    def where(self) -> Q:
        """The condition, so that PostgreSQL reads the index."""
        return self.of_index & self.others

    @property
    def others(self) -> Q:
        """What the index does not have."""
        since = self._since()
        # The index finds those that match faster than one by their age finds hundreds of thousands.
        return (Q(opaque(since)) if self.are_many_since else since) & self.rest

    @property
    def of_index(self) -> Q:
        """What the index has."""
        if not self.phase:
            return self._has()
        if self.status == Status.RUNNING:
            return self._has() & Q(phase=self.phase)
        if self.status:
            return self.at_rest
        return self.at_rest | replace(self, status=Status.RUNNING).of_index

    @property
    def at_rest(self) -> Q:
        """The same, of sessions that do not run."""
        return self._has("phase")

    @property
    def asked(self) -> Q:
        """The same condition, as it takes the least to ask it of each row."""
        return self._columns() & self._since() & self.rest

    @property
    def asked_in_order(self) -> Q:
        """The same, of rows that an index gives in their order: PostgreSQL reads no other one, but for a time."""
        columns = self._columns()
        return (Q(opaque(columns)) if columns else Q()) & self._since() & self.rest

    def _columns(self) -> Q:
        where = Q(_Has([], [self.tag])) if self.tag else Q()
        if self.tag and self.agent:
            # The index of agents and statuses gives fewer than that of tags.
            where = Q(opaque(where))
        for name in ("agent", "status", "phase"):
            if value := getattr(self, name):
                where &= Q(**{name: value})
        if self.assignee:
            where &= Q(assignee=None if self.assignee == "nobody" else int(self.assignee))
        return where

    def _since(self) -> Q:
        return Q(updated_at__gte=self.since) if self.since else Q()

    def _has(self, *names: str) -> Q:
        names = ("agent", "status", "assignee", *names)
        keys = [f"{name} {value}" for name in names if (value := getattr(self, name))]
        return Q(_Has(keys, [self.tag] if self.tag else []))


class _Has(Func):
    """Whether a session has the keys and the tags. PostgreSQL only."""

    output_field = BooleanField()
    is_its_sources = True

    def __init__(self, keys: Sequence[str], tags: Sequence[str]) -> None:
        columns = map(F, _COLUMNS if keys else ("id",))
        super().__init__(*columns, *map(Value, (*tags, *keys)), tags=str(len(tags)), keys=str(len(keys)))

    def as_sql(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, tuple[Any, ...]]:  # type: ignore[override]
        tags, keys = int(self.extra["tags"]), int(self.extra["keys"])
        sources = [compiler.compile(source) for source in self.source_expressions]
        columns = [sql for sql, _ in sources[: len(sources) - tags - keys]]
        values = [value for _, found in sources[len(columns) :] for value in found]
        table = columns[0].rpartition(".")[0]
        parts = []
        if tags:
            parts.append(f"{table}.{TAG_NAMES} @> {_array(tags)}")
        if keys:
            parts.append(f"{_KEYS.format(*columns)} @> {_array(keys)}")
        return f"({' AND '.join(parts)})", tuple(values)


def _array(values: int) -> str:
    return f"ARRAY[{', '.join(['%s'] * values)}]::text[]"
