"""Where in a session a text is found: its messages and calls that match, with the words around, masked.

PostgreSQL reads the messages and calls of the sessions from the newest on until enough match, if the sessions are short
or the words common, and all that match by the index of the words otherwise. Of a list with long sessions it reads some
of the newest of each branch first.
"""

import re
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from uuid import UUID

from django.db import connection
from django.db.models import Case, IntegerField, Q, When, Window
from django.db.models.expressions import RawSQL
from django.db.models.functions import RowNumber

from agentstate.domain.words import words_of
from sessions_app.access.masking import Mask
from sessions_app.finding import keys
from sessions_app.finding.search import NEWEST, NO_END
from sessions_app.finding.search_words import (
    BETWEEN,
    MESSAGES,
    Phrase,
    Words,
    call_tables,
    call_text,
    phrases_of,
)
from sessions_app.history.staff_notes import note_places
from sessions_app.models import Branch, Message, Session, ToolCall
from sessions_app.wording import changes

# Characters shown on each side of a match.
AROUND = 80
# Of sessions with at most so many positions together, each message and call may be read, whatever the words are.
WALKED = 10_000
# So many of the newest messages, and calls, of each branch are read first in a list of longer sessions.
NEAR = 100
# Hits of each session in a list of them.
IN_LIST = 2
# A branch, and the last position of it that is searched; None for all of them. To the database, that is `NO_END`.
Segment = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Hit:
    """A message or a call that matches, masked. ``visible``: the current history shows it.

    kind: message or call. ``who``: who says a message, the tool of a call.
    branch: the number of its branch in the session, 0 if it lies on a branch of the session's source.
    parts: the surroundings of the first match, in pieces; those with True are matches. The beginning of the text where
        it is found by words that it has in another notation only, such as ``cafe`` in ``Café``.
    changes: of a call that ran with other arguments than the agent asked for, what differs.
    """

    kind: str
    position: int
    who: str
    at: datetime
    branch: int
    visible: bool
    parts: list[tuple[str, bool]]
    changes: str = ""

    @property
    def anchor(self) -> str:
        """The id of its element on the timeline."""
        return f"{self.kind[0]}{self.position}"


def in_session(session: Session, text: str, *, mask: Mask, whole: bool, limit: int = 20) -> list[Hit]:
    """The messages and calls of the session that contain the text, newest first. At most five queries.

    Matches in values that the mask hides are left out. Reads ``session.branch``.
    """
    phrases = phrases_of(text)
    if not phrases or session.branch is None:
        return []
    own_numbers = dict(Branch.objects.filter(session=session).values_list("pk", "number"))
    shared = [(pk, last) for pk, last in session.branch.lineage if pk not in own_numbers]
    segments = [*((pk, None) for pk in own_numbers), *shared]
    rows = _newest_in(segments, Words(phrases, whole), limit, may_walk=session.position <= WALKED)
    notes = note_places(row for row in rows if isinstance(row, Message))
    candidates = (_hit(row, session.branch, own_numbers, phrases, mask, notes) for row in rows[:limit])
    return [hit for hit in candidates if hit is not None]


def first_in_each(
    sessions: Sequence[Session], text: str, *, mask: Mask, whole: bool
) -> dict[UUID, list[Hit]]:
    """The newest `IN_LIST` hits in each of the sessions, by the sessions' keys. At most nine queries.

    On PostgreSQL, where the sessions have more than `WALKED` positions together, those among the newest messages and
    calls of each branch; of all messages and calls in a session that has none there.
    """
    phrases = phrases_of(text)
    if not phrases or not sessions:
        return {}
    branches = {row.pk: row for row in Branch.objects.filter(session__in=sessions).defer("left_state")}
    numbers: dict[UUID, dict[int, int]] = defaultdict(dict)
    for row in branches.values():
        numbers[row.session_id][row.pk] = row.number
    of_session: dict[UUID, set[Segment]] = {}
    for session in sessions:
        own_numbers = numbers[session.pk]
        lineage = branches[session.branch_id].lineage if session.branch_id in branches else ()
        shared = {(pk, last) for pk, last in lineage if pk not in own_numbers}
        of_session[session.pk] = {*((pk, None) for pk in own_numbers), *shared}

    def newest_of(those: Sequence[Session], near: int | None, *, may_walk: bool) -> None:
        segments = list({segment for session in those for segment in of_session[session.pk]})
        rows = _newest_in(segments, Words(phrases, whole), IN_LIST, may_walk=may_walk, near=near)
        notes = note_places(row for row in rows if isinstance(row, Message))
        by_branch: dict[int, list[Message | ToolCall]] = defaultdict(list)
        for found in rows:
            by_branch[found.branch_id].append(found)
        for session in those:
            own_numbers = numbers[session.pk]
            branch = branches[session.branch_id]  # type: ignore[index]
            found_here = [
                row
                for pk, _ in of_session[session.pk]
                for row in by_branch[pk]
                if pk in own_numbers or branch.sees(pk, row.position)
            ]
            found_here.sort(key=lambda row: row.position, reverse=True)
            hits = (_hit(row, branch, own_numbers, phrases, mask, notes) for row in found_here)
            by_session[session.pk] = list(islice((hit for hit in hits if hit is not None), IN_LIST))

    by_session: dict[UUID, list[Hit]] = {}
    with_branch = [session for session in sessions if session.branch_id in branches]
    are_short = sum(session.position for session in sessions) <= WALKED or connection.vendor == "sqlite"
    newest_of(with_branch, None if are_short else NEAR, may_walk=True)
    if not are_short:
        long = [session for session in with_branch if session.position > NEAR]
        if without := [session for session in long if not by_session[session.pk]]:
            newest_of(without, None, may_walk=False)
    return by_session


def _newest_in(
    segments: Sequence[Segment], words: Words, each: int, *, may_walk: bool, near: int | None = None
) -> list[Message | ToolCall]:
    """So many of the messages, and of the calls, that match in each segment, newest first. At most three queries.

    :param may_walk: All rows of the segments may be read, or so many of the newest of each as `near` says.
    """
    shared = sorted((last, branch) for branch, last in segments if last is not None)
    here = Q(branch_id__in=[branch for branch, last in segments if last is None])
    for last, branch in shared:
        here |= Q(branch_id=branch, position__lte=last)
    # Between two ends of segments of one branch, so that the newest of each segment are among them.
    parts = [
        When(branch_id=branch, position__lte=last, then=place) for place, (last, branch) in enumerate(shared)
    ]
    part = Case(*parts, default=len(parts), output_field=IntegerField())
    newest = Window(RowNumber(), partition_by=["branch_id", part], order_by="-position")
    matching_messages, matching_calls = _matching(segments, words, each, may_walk=may_walk, near=near)
    rows: list[Message | ToolCall] = [
        *Message.objects.filter(matching_messages & here)
        .annotate(newest=newest)
        .filter(newest__lte=each)
        .defer("body"),
        *ToolCall.objects.filter(matching_calls & here)
        .annotate(newest=newest)
        .filter(newest__lte=each)
        .defer("state"),
    ]
    return sorted(rows, key=lambda row: row.position, reverse=True)


def _matching(
    segments: Sequence[Segment], words: Words, each: int, *, may_walk: bool, near: int | None
) -> tuple[Q, Q]:
    """Which messages, and which calls, match: all of them, or at least so many of each segment. At most one query.

    See the module for which of the two.
    """
    tables = ((Message, [MESSAGES]), (ToolCall, call_tables()))
    if connection.vendor == "sqlite":
        return Q(pk__in=words.keys([MESSAGES])), Q(pk__in=words.keys(call_tables()))
    known = ([], []) if may_walk else _few(words)
    messages, calls = (
        Q(pk__in=_walk(model._meta.db_table, names[0], segments, words, each, near))
        if may_walk or len(found) > NEWEST
        else keys.are(found)
        for (model, names), found in zip(tables, known, strict=True)
    )
    return messages, calls


def _few(words: Words) -> tuple[list[int], list[int]]:
    """The keys of the messages, and of the calls, that match; if those are more than `NEWEST`, only some. One query."""
    selects = [words.keys(names, NEWEST + 1) for names in ([MESSAGES], call_tables())]
    sql = " UNION ALL ".join(
        f"SELECT {place}, key FROM ({select.sql}) AS found"  # noqa: S608 - the words are parameters
        for place, select in enumerate(selects)
    )
    found: tuple[list[int], list[int]] = ([], [])
    with connection.cursor() as cursor:
        cursor.execute(sql, [value for select in selects for value in select.params])
        for place, key in cursor.fetchall():
            found[place].append(key)
    return found


def _walk(
    rows: str, table: str, segments: Sequence[Segment], words: Words, each: int, near: int | None
) -> RawSQL:
    """Selects the keys of so many matching rows of each segment, by reading from its newest row on."""
    match, params = words.match_of(table, "candidate.id")
    limit = "" if near is None else f"LIMIT {near:d}"
    sql = f"""
        SELECT found.id FROM unnest(%s::bigint[], %s::bigint[]) AS segment (branch_id, upto) CROSS JOIN LATERAL (
            SELECT candidate.id FROM (
                SELECT id, position FROM {rows} WHERE branch_id = segment.branch_id AND position <= segment.upto
                ORDER BY position DESC {limit}
            ) AS candidate
            WHERE {match} ORDER BY candidate.position DESC LIMIT {each:d}
        ) AS found
    """  # noqa: S608 - names of our own tables; the words are parameters
    branches, last = (
        [branch for branch, _ in segments],
        [NO_END if last is None else last for _, last in segments],
    )
    return RawSQL(sql, [branches, last, *params])  # noqa: S611 - as above


def _hit(
    row: Message | ToolCall,
    branch: Branch,
    numbers: dict[int, int],
    phrases: list[Phrase],
    mask: Mask,
    notes: Container[tuple[int, int]],
) -> Hit | None:
    if isinstance(row, Message):
        text, shown = row.text, mask.message(row.role, row.text)
    else:
        text, shown = call_text(row, Mask.none()), call_text(row, mask)
    parts = _snippet(shown, phrases)
    if shown != text and not any(is_match for _, is_match in parts) and not _has_any(shown, phrases):
        return None
    return Hit(
        kind="message" if isinstance(row, Message) else "call",
        position=row.position,
        who=_who(row, notes, mask),
        at=row.created_at if isinstance(row, Message) else row.asked_at,
        branch=numbers.get(row.branch_id, 0),
        visible=branch.sees(row.branch_id, row.position),
        parts=parts if isinstance(row, Message) else _without_name(parts, mask.tool(row.tool)),
        changes=""
        if isinstance(row, Message)
        else changes(
            row.changed_arguments,
            mask.column("arguments", row.arguments),
            mask.column("sent" if row.changed_arguments else "arguments", row.ran_with),
        ),
    )


def _has_any(text: str, phrases: list[Phrase]) -> bool:
    """Whether one of the phrases is found in the text, by its words as they are indexed."""
    words = words_of(text)
    return any(
        words[place : place + len(before)] == before
        and (word.startswith(last) if phrase.beginning else word == last)
        for phrase in phrases
        for *before, last in [phrase.words]
        for place, word in enumerate(words[len(before) :])
    )


def _who(row: Message | ToolCall, notes: Container[tuple[int, int]], mask: Mask) -> str:
    if not isinstance(row, Message):
        return mask.tool(row.tool)
    return "Staff" if (row.branch_id, row.position) in notes else row.who


def _without_name(parts: list[tuple[str, bool]], tool: str) -> list[tuple[str, bool]]:
    """The text of a call begins with its tool, which `Hit.who` names already."""
    if not parts or parts[0][1]:
        return parts
    return [(parts[0][0].removeprefix(f"{tool}{BETWEEN}"), False), *parts[1:]]


def _snippet(text: str, phrases: list[Phrase]) -> list[tuple[str, bool]]:
    """The surroundings of the first match, in pieces, with every match in them marked."""
    pattern = re.compile("|".join(phrase.pattern for phrase in phrases), re.IGNORECASE)
    first = pattern.search(text)
    start = max(0, first.start() - AROUND) if first else 0
    end = (first.end() if first else 0) + AROUND
    return list(_marked(text, pattern, start, end))


def _marked(text: str, pattern: re.Pattern[str], start: int, end: int) -> Iterator[tuple[str, bool]]:
    if start:
        yield "…", False
    place = start
    for match in pattern.finditer(text, start, end):
        if match.start() > place:
            yield text[place : match.start()], False
        yield match.group(), True
        place = match.end()
    if text[place:end]:
        yield text[place:end], False
    if len(text) > end:
        yield "…", False
