"""The page of all that waits for a person: each line of the inbox with what is needed to decide it where it stands."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from sessions_app.access.availability import agent_cannot_run
from sessions_app.action_list import RESUME
from sessions_app.addresses import address, read_query
from sessions_app.desk.pages.advice import Advice, advice, who_may_release
from sessions_app.desk.pages.approvals import Batch, Card, read_cards
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.pages.doubts import Doubt, read_doubts
from sessions_app.desk.pages.session_agents import agent_title, load_agents
from sessions_app.finding import causes, inbox, inbox_counts, stuck
from sessions_app.finding.causes import Cause
from sessions_app.finding.counting import Count, digest, total
from sessions_app.finding.inbox import Entries
from sessions_app.finding.inbox_rows import (
    APPROVAL,
    BY_CAUSE,
    CHANGED,
    DOUBT,
    FAILED,
    KINDS,
    STUCK,
)
from sessions_app.finding.inbox_states import Condition
from sessions_app.history.failures import newest_failures, tool_of
from sessions_app.models import Session, WaitingFor
from sessions_app.models.compiled import compiled
from sessions_app.wording import time_left

TEMPLATES = {
    APPROVAL: "inbox/_approval.html",
    DOUBT: "inbox/_doubt.html",
}
# The id of the list's heading.
HEADING = "inbox-heading"
_LINE_ID = re.compile(r"line-[a-z]+-[0-9a-f-]+", re.ASCII)
CHIPS = {APPROVAL: "Approvals", DOUBT: "In doubt", FAILED: "Failed", CHANGED: "Agent changed", STUCK: "Stuck"}
# A kind that is rare has a chip only while there is such a line, or it is chosen.
_RARE = (CHANGED,)


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter by kind. ``kind`` is "" for all."""

    kind: str
    label: str
    number: Count


@dataclass(frozen=True, slots=True)
class Failed:
    """Sessions that failed for one reason, or wait since their agent has changed or cannot run.

    session: the first one, masked. ``last``: when the last one failed.
    refusal: why the button of the advice would be refused, "" if it would not, or there is none.
    cannot_run: why the agent cannot run, as a sentence; "" if it can.
    """

    session: Session
    number: Count
    key: str
    last: datetime
    agent_title: str
    error: str
    advice: Advice | None
    refusal: str
    cannot_run: str

    @property
    def is_one(self) -> bool:
        return self.number.number == 1 and not self.number.more

    @property
    def another_attempt_helps(self) -> bool:
        return self.advice is None or self.advice.action in (None, RESUME)

    @property
    def changed(self) -> bool:
        return self.session.waiting_for == WaitingFor.CHANGED


@dataclass(frozen=True, slots=True)
class Stuck:
    """A session that should move by itself and does not, masked.

    who_may: who may release it from its worker, "" where the person may, or that would not help.
    """

    session: Session
    agent_title: str
    why: str
    who_may: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line. ``item`` is a `Card`, `Doubt`, `Failed` or `Stuck`, by the kind.

    id: of its element. ``following``: of the element where the keyboard goes on once it is decided.
    has_similar: the page has another approval of the same tool.
    template: "" of what is drawn once for what it shows, by the tag `drawn_line`.
    """

    kind: str
    since: datetime
    item: Card | Doubt | Failed | Stuck
    id: str = ""
    following: str = HEADING
    has_similar: bool = False

    @property
    def template(self) -> str:
        return TEMPLATES.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class Listing:
    """Which lines a page has, and how many there are of each kind: what a live inbox asks for, without their items."""

    kind: str
    entries: Entries
    numbers: Mapping[str, Count]
    mark: str


@dataclass(frozen=True, slots=True)
class InboxPage:
    """``next`` is the ``after`` of the next page, "" on the last; ``number`` is that of the lines on all pages.

    chips: first that of all kinds.
    most_causes: so many causes of a kind are on the pages, where there are more; else None.
    """

    lines: list[Line]
    chips: list[Chip]
    number: Count
    next: str
    mark: str
    most_causes: int | None = None

    @property
    def total(self) -> Count:
        """The number of the lines of every kind."""
        return self.chips[0].number

    @property
    def first(self) -> datetime | None:
        """Since when its first line waits, which is the oldest or the newest of the page."""
        return self.lines[0].since if self.lines else None

    @property
    def has_ticks(self) -> bool:
        """Whether several approvals can be decided at once."""
        return any(isinstance(line.item, Card) and line.item.in_batch for line in self.lines)


def list_page(
    context: PageContext,
    *,
    kind: str = "",
    condition: Condition | None = None,
    tool: str = "",
    after: str = "",
    oldest_first: bool = True,
) -> Listing:
    """The lines of one page. At most 14 queries, however many lines there are.

    :param kind: One of `KINDS`, "" for all. ``tool``: only calls of this tool.
    """
    kinds: Sequence[str] = (kind,) if kind else KINDS
    found = inbox.read_page(
        context.now,
        kinds=kinds,
        condition=condition,
        tool=tool,
        after=after,
        oldest_first=oldest_first,
    )
    numbers = inbox_counts.counts(context.now, condition, tool, known=found.numbers)
    # The time that is left to decide is shown, too.
    left = [
        time_left(entry.expires_at, context.now) for entry in found.entries if entry.expires_at is not None
    ]
    shown = ((entry.kind, entry.key, entry.version) for entry in found.entries)
    mark = digest([*shown, *numbers.values(), *left, found.next, found.more_causes])
    return Listing(kind, found, numbers, mark)


def read_page(context: PageContext, listing: Listing, *, batch: Batch | None = None) -> InboxPage:
    """The page with its lines. At most 15 queries, however many lines there are.

    :param batch: The form of several approvals; None where each has a form of its own.
    """
    found, numbers = listing.entries, listing.numbers
    items = _items(context, found, batch)
    tools = Counter(item.call.tool for item in items.values() if isinstance(item, Card))
    lines = [
        Line(
            entry.kind,
            entry.since,
            item := items[entry.kind, entry.key],
            f"line-{entry.kind}-{entry.key}",
            has_similar=isinstance(item, Card) and tools[item.call.tool] > 1,
        )
        for entry in found.entries
        if (entry.kind, entry.key) in items
    ]
    lines = [replace(line, following=after_it.id) for line, after_it in pairwise(lines)] + lines[-1:]
    chips = [
        Chip(name, CHIPS[name], number)
        for name, number in numbers.items()
        if number or name == listing.kind or name not in _RARE
    ]
    number_of_all = total(numbers.values())
    number = numbers.get(listing.kind, number_of_all)
    most_causes = causes.MOST_CAUSES if found.more_causes else None
    chips = [Chip("", "All", number_of_all), *chips]
    return InboxPage(lines, chips, number, found.next, listing.mark, most_causes)


def address_of_inbox(query: str = "", place: str = HEADING) -> str:
    """The inbox as it was filtered, at the id of an element of it; at its heading for anything else."""
    filters = read_query(query)
    page = f"{address('inbox')}?{filters.urlencode()}" if filters else address("inbox")
    return f"{page}#{place if _LINE_ID.fullmatch(place) else HEADING}"


def _items(
    context: PageContext, found: Entries, batch: Batch | None
) -> dict[tuple[str, object], Card | Doubt | Failed | Stuck]:
    def keys(kind: str) -> list[Any]:
        return [entry.key for entry in found.entries if entry.kind == kind]

    items: dict[tuple[str, object], Card | Doubt | Failed | Stuck] = {}
    items |= {(APPROVAL, key): card for key, card in read_cards(context, keys(APPROVAL), batch).items()}
    items |= {(DOUBT, key): doubt for key, doubt in read_doubts(context, keys(DOUBT)).items()}
    by_cause = [(kind, key) for kind in BY_CAUSE for key in keys(kind)]
    newest = [found.causes[key].newest for _, key in by_cause]
    sessions = _sessions(context, [*(key for _, key in by_cause), *newest, *keys(STUCK)])
    failures = newest_failures(keys(FAILED))
    for kind, key in by_cause:
        cause = found.causes[key]
        if key in sessions and cause.newest in sessions:
            last = sessions[cause.newest].updated_at
            tool = tool_of(failures.get(key, {}))
            items[kind, key] = _failed(context, sessions[key], cause, last, tool)
    for key in keys(STUCK):
        if key in sessions:
            items[STUCK, key] = _stuck(context, sessions[key])
    return items


def _sessions(context: PageContext, keys: Sequence[Any]) -> dict[Any, Session]:
    """The sessions, masked, with their agents. Two queries, if there are any."""
    if not keys:
        return {}
    sessions = context.mask.rows(_sessions_with(tuple(set(keys))))
    load_agents(sessions, context.agents)
    return {session.pk: session for session in sessions}


@compiled
def _sessions_with(keys: tuple[UUID, ...]) -> QuerySet[Session]:
    return Session.objects.filter(pk__in=keys).select_related("branch", "assignee")


def _failed(context: PageContext, session: Session, cause: Cause, last: datetime, tool: str) -> Failed:
    what_helps = advice(session, tool)
    if what_helps is not None:
        what_helps = what_helps.for_actor(context.actor)
    action = what_helps.action if what_helps is not None else None
    cannot_run = agent_cannot_run(session)
    # Of a changed agent, and of one that cannot run, the advice says it in present words.
    is_said = session.waiting_for == WaitingFor.CHANGED and bool(cannot_run or session.new_definition)
    return Failed(
        session=session,
        number=cause.number,
        key=str(cause.key),
        last=last,
        agent_title=agent_title(session),
        error="" if is_said else session.error or session.why,
        advice=what_helps,
        refusal=context.why_not.of(action) if action is not None else "",
        cannot_run=cannot_run,
    )


def _stuck(context: PageContext, session: Session) -> Stuck:
    why = (
        stuck.why_not_moving(session, context.now) or "An approval has expired, and no sweep has rejected it."
    )
    return Stuck(session, agent_title(session), why, who_may_release(session, context.actor))
