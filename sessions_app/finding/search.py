"""Full-text search in sessions: in their messages, and in the names, arguments, results and errors of their tool calls.

Every word must occur in the same message or call. The parts of a word with punctuation (``CLM-1042``) and of a quoted
phrase must follow each other, and the last word may be the beginning of one. Case, accents and punctuation do not
matter. Any text is a valid query. The first 100,000 characters of each message and call are searched.

The words are stored in tables of their own, which `sessions_app.finding.search_index` fills a few seconds later: those
of the masked text, and where that hides something, those of the whole text too. ``whole`` says that a person may find
by the latter, since they may reveal hidden values. Others find by the former, and by nothing while the index was made
with another masking than the present one, see `sessions_app.finding.search_masking`.
"""

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Q, QuerySet, Window
from django.db.models.expressions import RawSQL
from django.db.models.functions import RowNumber

from agentstate.domain.words import words_of
from agentstate.names import TYPE_TAG
from sessions_app.access.masking import Mask
from sessions_app.finding.search_masking import IS_PRESENT, present
from sessions_app.history.staff_notes import note_places
from sessions_app.models import Branch, Message, Session, ToolCall
from sessions_app.wording import changes

MESSAGES, CALLS, OPEN_CALLS = (f"sessions_app_{name}_words" for name in ("message", "call", "open_call"))
MOST_WORDS = 30
# So many messages, and so many calls, a search looks at: the newest that match.
NEWEST = 2_000
# Two letters are the beginning of very many words.
SHORTEST_BEGINNING = 3
# Characters shown on each side of a match.
AROUND = 80
# The fields of a call that are indexed besides its tool, and what stands between them, which holds no word.
CALL_FIELDS, BETWEEN = ("sent", "arguments", "error", "result"), " · "
# A tool's message is indexed with its call already, and an agent's instructions are in each of its sessions: neither is
# indexed unless a person has written it.
INDEXED_MESSAGES = ~Q(text="") & (~Q(role__in=[Message.Role.TOOL, Message.Role.SYSTEM]) | ~Q(author=""))


@dataclass(frozen=True, slots=True)
class Hit:
    """A message or a call that matches, masked. ``visible``: the current history shows it.

    kind: message or call. ``who``: who says a message, the tool of a call.
    branch: the number of its branch in the session, 0 if it lies on a branch of the session's source.
    parts: the surroundings of the first match, in pieces; those with True are matches.
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


def history_contains(text: str, *, whole: bool) -> Q:
    """The condition that a session's history contains the text. No query of its own.

    That includes discarded branches, and the history that a fork shares with its source. A text without any word is
    contained in none.
    """
    phrases = _phrases(text)
    if not phrases:
        return Q(pk__in=[])
    sql, params = _sessions(phrases, whole)
    return Q(pk__in=RawSQL(f"SELECT session_id FROM ({sql}) AS sought", params))  # noqa: S608, S611 - words are parameters


def newest_sessions(text: str, *, whole: bool, limit: int = NEWEST) -> tuple[list[UUID], bool]:
    """The sessions whose history contains the text, by the newest ``limit`` messages and calls that do. One query.

    :returns: Their keys, and whether there may be more.
    """
    phrases = _phrases(text)
    if not phrases:
        return [], False
    sql, params = _sessions(phrases, whole, limit)
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        rows = cursor.fetchall()
    keys = [row[0] if isinstance(row[0], UUID) else UUID(row[0]) for row in rows]
    return keys, any(number >= limit for _, number in rows)


def _sessions(phrases: "list[_Phrase]", whole: bool, limit: int | None = None) -> tuple[str, tuple[Any, ...]]:
    """Selects the key of each session whose history matches, and how many messages and calls did."""
    matching = _matching(phrases, whole, limit)
    matches = [rows.order_by().values("branch_id", "position").query for rows in matching]
    (messages, first), (calls, second) = (query.sql_with_params() for query in matches)
    branches, sessions = Branch._meta.db_table, Session._meta.db_table
    sql = f"""
        WITH matching AS ({messages} UNION ALL {calls}),
        hit AS (SELECT branch_id, MIN(position) AS place FROM matching GROUP BY branch_id),
        number AS (SELECT COUNT(*) AS hits FROM matching)
        SELECT session_id, (SELECT hits FROM number) FROM {branches} WHERE id IN (SELECT branch_id FROM hit)
        UNION
        SELECT fork.session_id, (SELECT hits FROM number) FROM hit
        JOIN {branches} origin ON origin.id = hit.branch_id
        JOIN {sessions} source ON source.id = origin.session_id AND source.line IS NOT NULL
        JOIN {sessions} member ON member.line = source.line
        JOIN {branches} fork ON fork.session_id = member.id AND fork.number = 1 CROSS JOIN {_each_segment()}
        WHERE hit.branch_id = {_item(0)} AND hit.place <= {_item(1)}
    """  # noqa: S608 - names of our own tables; the words are parameters
    return sql, (*first, *second)


def hits(session: Session, text: str, *, mask: Mask, whole: bool, limit: int = 20) -> list[Hit]:
    """The messages and calls of the session that contain the text, newest first. At most four queries.

    Matches in values that the mask hides are left out. Reads ``session.branch``.
    """
    phrases = _phrases(text)
    if not phrases or session.branch is None:
        return []
    own_numbers = dict(Branch.objects.filter(session=session).values_list("pk", "number"))
    here = Q(branch_id__in=own_numbers)
    for pk, last in session.branch.lineage:
        if pk not in own_numbers:
            here |= Q(branch_id=pk, position__lte=last)
    messages, calls = _matching(phrases, whole)
    rows: list[Message | ToolCall] = [
        *messages.filter(here).order_by("-position")[:limit],
        *calls.filter(here).order_by("-position")[:limit],
    ]
    rows.sort(key=lambda row: row.position, reverse=True)
    notes = note_places(row for row in rows if isinstance(row, Message))
    candidates = (_hit(row, session.branch, own_numbers, phrases, mask, notes) for row in rows[:limit])
    return [hit for hit in candidates if hit is not None]


def first_hits(
    sessions: Sequence[Session], text: str, *, mask: Mask, whole: bool, each: int = 2
) -> dict[UUID, list[Hit]]:
    """The newest hits in each of the sessions, by the sessions' keys. At most four queries.

    Reads ``session.branch``.
    """
    phrases = _phrases(text)
    if not phrases or not sessions:
        return {}
    branches = Branch.objects.filter(session__in=sessions)
    owners = {pk: (key, number) for pk, key, number in branches.values_list("pk", "session_id", "number")}
    here = Q(branch_id__in=owners)
    for session in sessions:
        for pk, last in session.branch.lineage if session.branch else ():
            if pk not in owners:
                here |= Q(branch_id=pk, position__lte=last)
    newest = Window(RowNumber(), partition_by="branch_id", order_by="-position")
    rows: list[Message | ToolCall] = []
    for matching in _matching(phrases, whole):
        rows += matching.filter(here).annotate(newest=newest).filter(newest__lte=each)
    rows.sort(key=lambda row: row.position, reverse=True)
    notes = note_places(row for row in rows if isinstance(row, Message))
    by_session: dict[UUID, list[Hit]] = {}
    for session in sessions:
        if (branch := session.branch) is None:
            continue
        own_numbers = {pk: number for pk, (key, number) in owners.items() if key == session.pk}
        visible_rows = (
            row for row in rows if row.branch_id in own_numbers or branch.sees(row.branch_id, row.position)
        )
        hits = (_hit(row, branch, own_numbers, phrases, mask, notes) for row in visible_rows)
        by_session[session.pk] = list(islice((hit for hit in hits if hit is not None), each))
    return by_session


def plain(value: Any) -> str:
    """JSON as text to be searched and read: ``claim: CLM-1042, amount: 120``."""
    if isinstance(value, dict):
        if TYPE_TAG in value:
            return plain(value.get("value"))
        return ", ".join(f"{key}: {plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value)
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def message_text(text: str, mask: Mask) -> str:
    """The text of a message that is indexed and searched."""
    return str(mask.named("text", text))


def call_text(call: ToolCall, mask: Mask) -> str:
    """The text of a call that is indexed and searched."""
    values = (mask.named(name, getattr(call, name)) for name in CALL_FIELDS)
    return BETWEEN.join(filter(None, [call.tool, *map(plain, values)]))


# A key that is selected, its condition, the order from the newest on, and the parameters.
_Way = tuple[str, str, str, list[str | int]]


@dataclass(frozen=True, slots=True)
class _Phrase:
    """Words that follow each other. ``beginning``: the last of them is only the beginning of a word."""

    words: list[str]
    beginning: bool

    @property
    def fts5(self) -> str:
        return f'"{" ".join(self.words)}"' + "*" * self.beginning

    @property
    def tsquery(self) -> str:
        return " <-> ".join(f"'{word}'" for word in self.words) + ":*" * self.beginning

    @property
    def pattern(self) -> str:
        end = r"[^\W_]*" if self.beginning else r"(?![^\W_])"
        return r"(?<![^\W_])" + r"[\W_]+".join(map(re.escape, self.words)) + end


def _phrases(text: str) -> list[_Phrase]:
    parts = [
        (words_of(quoted or part), bool(quoted)) for quoted, part in re.findall(r'"([^"]*)"?|([^\s"]+)', text)
    ]
    parts = [(words, quoted) for words, quoted in parts if words][:MOST_WORDS]
    last = len(parts) - 1
    return [
        _Phrase(words, not quoted and place == last and len(words[-1]) >= SHORTEST_BEGINNING)
        for place, (words, quoted) in enumerate(parts)
    ]


def _matching(
    phrases: list[_Phrase], whole: bool, limit: int | None = None
) -> tuple[QuerySet[Message], QuerySet[ToolCall]]:
    if connection.vendor == "sqlite":
        query, tables = " AND ".join(phrase.fts5 for phrase in phrases), [CALLS, OPEN_CALLS]
    else:
        query, tables = " & ".join(phrase.tsquery for phrase in phrases), [CALLS]
    messages = Message.objects.filter(pk__in=_keys([MESSAGES], query, whole, limit))
    return messages, ToolCall.objects.filter(pk__in=_keys(tables, query, whole, limit))


def _keys(tables: list[str], query: str, whole: bool, limit: int | None) -> RawSQL:
    """The keys of the rows that match, or only the newest; the whole text of a row stands under its negative key."""
    match = "{0} MATCH %s" if connection.vendor == "sqlite" else "words @@ %s::tsquery"
    masked: _Way = ("rowid", f"rowid > 0 AND {IS_PRESENT}", "rowid DESC", [query, present()])
    ways: list[_Way] = [
        ("rowid", "rowid > 0", "rowid DESC", [query]),
        ("-rowid", "rowid < 0", "rowid", [query]),
    ]
    selects, params = [], list[str | int]()
    for table in tables:
        for key, condition, order, values in ways if whole else [masked]:
            select = f"SELECT {key} AS key FROM {table} WHERE {match.format(table)} AND {condition}"  # noqa: S608
            if limit is not None:
                select = f"SELECT key FROM ({select} ORDER BY {order} LIMIT {limit:d}) AS newest"  # noqa: S608
            selects.append(select)
            params += values
    return RawSQL(" UNION ALL ".join(selects), params)  # noqa: S611 - our own tables; the query is a parameter


def _each_segment() -> str:
    elements = "json_each" if connection.vendor == "sqlite" else "jsonb_array_elements"
    return f"{elements}(fork.lineage) AS segment"


def _item(index: int) -> str:
    sqlite, postgres = f"json_extract(segment.value, '$[{index}]')", f"(segment.value ->> {index})::bigint"
    return sqlite if connection.vendor == "sqlite" else postgres


def _hit(
    row: Message | ToolCall,
    branch: Branch,
    numbers: dict[int, int],
    phrases: list[_Phrase],
    mask: Mask,
    notes: Container[tuple[int, int]],
) -> Hit | None:
    if isinstance(row, Message):
        text, shown = row.text, message_text(row.text, mask)
    else:
        text, shown = call_text(row, Mask.none()), call_text(row, mask)
    parts = _snippet(shown, phrases)
    if shown != text and not any(is_match for _, is_match in parts):
        return None
    return Hit(
        kind="message" if isinstance(row, Message) else "call",
        position=row.position,
        who=_who(row, notes),
        at=row.created_at if isinstance(row, Message) else row.asked_at,
        branch=numbers.get(row.branch_id, 0),
        visible=branch.sees(row.branch_id, row.position),
        parts=parts if isinstance(row, Message) else _without_name(parts, row.tool),
        changes=""
        if isinstance(row, Message)
        else changes(row.changed_arguments, mask.json(row.arguments), mask.json(row.ran_with)),
    )


def _who(row: Message | ToolCall, notes: Container[tuple[int, int]]) -> str:
    if not isinstance(row, Message):
        return row.tool
    return "Staff" if (row.branch_id, row.position) in notes else row.who


def _without_name(parts: list[tuple[str, bool]], tool: str) -> list[tuple[str, bool]]:
    """The text of a call begins with its tool, which `Hit.who` names already."""
    if not parts or parts[0][1]:
        return parts
    return [(parts[0][0].removeprefix(f"{tool}{BETWEEN}"), False), *parts[1:]]


def _snippet(text: str, phrases: list[_Phrase]) -> list[tuple[str, bool]]:
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
