"""The long-term memory of an agent about a customer: which entries there are, and which of them are offered to agents.

An entry is offered while the history of the session that it was learned from shows the call that remembered it, or the
history of the session that asks does, as that of a fork may. A repair copies the calls of the unfinished step: a copy
that is shown shows its original.
"""

from collections.abc import Iterable, Sequence

from django.db.models import Q, QuerySet

from agentstate.durable.long_term import MOST_ENTRIES
from sessions_app.models import Branch, MemoryEntry, Session, ToolCall


def entries_about(session: Session) -> QuerySet[MemoryEntry]:
    """The entries of the session's agent about its customer, newest first, each with its call and its session's branch.

    A session that names no customer has none.
    """
    entries = MemoryEntry.objects.filter(agent=session.agent, customer=session.customer)
    if not session.customer:
        entries = entries.none()
    return entries.select_related("session__branch", "call").defer("vector").order_by("-pk")


def offered_to(session: Session) -> list[MemoryEntry]:
    """Those of the newest 1,000 entries that the session's agent may recall, with their vectors. Two queries.

    Reads ``session.branch``.
    """
    entries = list(entries_about(session).defer(None)[:MOST_ENTRIES])
    discarded = discarded_among(entries, session.branch)
    return [entry for entry in entries if entry.pk not in discarded]


def discarded_among(entries: Sequence[MemoryEntry], branch: Branch | None = None) -> set[int]:
    """The keys of the entries that were remembered on a discarded branch. One query, or none.

    :param branch: That of the session that asks: what its history shows is not discarded for it.
    """
    unseen = [
        (entry, call) for entry in entries if (call := entry.call) and not _is_shown(entry, [call], branch)
    ]
    originals = {call.copy_of_id or call.pk for _, call in unseen}
    if not originals:
        return set()
    same: dict[int, list[ToolCall]] = {}
    for row in ToolCall.objects.filter(Q(copy_of__in=originals) | Q(pk__in=originals)).only(
        "branch_id", "position", "copy_of_id"
    ):
        same.setdefault(row.copy_of_id or row.pk, []).append(row)
    return {
        entry.pk
        for entry, call in unseen
        if not _is_shown(entry, same.get(call.copy_of_id or call.pk, []), branch)
    }


def _is_shown(entry: MemoryEntry, calls: Iterable[ToolCall], branch: Branch | None) -> bool:
    branches = [shown for shown in (entry.session.branch, branch) if shown is not None]
    return any(shown.sees(call.branch_id, call.position) for shown in branches for call in calls)
