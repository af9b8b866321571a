"""Which sessions a text is found in: by the words of their messages and of their calls.

`sessions_app.finding.search_words` says what is searched and how, `sessions_app.finding.hits` shows where in a session.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import connection

from sessions_app.finding.keys import listed
from sessions_app.finding.search_words import MESSAGES, Words, call_tables, phrases_of
from sessions_app.models import Branch, Message, Session, ToolCall
from sessions_app.models.selects import Sql

# So many messages, and so many calls, a search looks at of all sessions: the newest that match.
NEWEST = 300
# The last position that is searched of a branch that is searched to its end.
NO_END = 2**63 - 1


def newest_sessions(text: str, *, whole: bool) -> tuple[list[UUID], bool]:
    """The sessions whose history contains the text, by the newest `NEWEST` messages and calls that do. One query.

    That includes discarded branches, and the history that a fork shares with its source. A text without any word is
    contained in none.

    :returns: Their keys, and whether there may be more.
    """
    phrases = phrases_of(text)
    if not phrases:
        return [], False
    sql, params = _sessions(Words(phrases, whole), NEWEST)
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        rows = cursor.fetchall()
    keys = [row[0] if isinstance(row[0], UUID) else UUID(row[0]) for row in rows]
    return keys, any(number >= NEWEST for _, number in rows)


def sessions_among(text: str, after: Mapping[UUID, int], *, whole: bool) -> set[UUID]:
    """Those of some sessions whose history contains the text, as `newest_sessions` finds it. One query.

    PostgreSQL reads the messages and calls of the sessions; SQLite finds all that match of all sessions by the index.

    :param after: Behind which position each of the sessions is looked through; 0 for all of its history.
    """
    phrases = phrases_of(text)
    if not phrases or not after:
        return set()
    words = Words(phrases, whole)
    messages, in_messages = _matches(words, [MESSAGES])
    calls, in_calls = _matches(words, call_tables())
    branches = Branch._meta.db_table
    asked = "SELECT * FROM unnest(%s::uuid[], %s::bigint[])"
    if connection.vendor == "sqlite":
        asked = "SELECT one.value, place.value FROM json_each(%s) one JOIN json_each(%s) place ON place.key = one.key"
    of_segment = (
        "row.branch_id = segment.branch_id AND row.position > segment.after AND row.position <= segment.upto"
    )
    sql = f"""
        WITH asked (session_id, after) AS MATERIALIZED ({asked}),
        segment (session_id, branch_id, after, upto) AS MATERIALIZED (
            SELECT session_id, branch.id, asked.after, {NO_END}
            FROM {branches} branch JOIN asked USING (session_id)
            UNION ALL
            SELECT session_id, {_item(0)}, asked.after, {_item(1)}
            FROM {branches} fork JOIN asked USING (session_id) CROSS JOIN {_each_segment()}
            WHERE fork.number = 1
        )
        SELECT DISTINCT session_id FROM segment WHERE EXISTS (
            SELECT 1 FROM {Message._meta.db_table} row WHERE {of_segment} AND ({messages})
        ) OR EXISTS (
            SELECT 1 FROM {ToolCall._meta.db_table} row WHERE {of_segment} AND ({calls})
        )
    """  # noqa: S608 - names of our own tables; the words are parameters
    keys, positions = listed(after.keys()), listed(after.values())
    with connection.cursor() as cursor:
        cursor.execute(sql, [keys, positions, *in_messages, *in_calls])
        return {key if isinstance(key, UUID) else UUID(key) for (key,) in cursor.fetchall()}


def _matches(words: Words, tables: list[str]) -> Sql:
    """Whether the ``row`` of a message or a call, whose words are in these tables, matches."""
    if connection.vendor == "sqlite":
        found = words.keys(tables)
        return f"row.id IN ({found.sql})", tuple(found.params)
    [table] = tables
    match, values = words.match_of(table, "row.id")
    return match, tuple(values)


def _sessions(words: Words, limit: int) -> tuple[str, tuple[Any, ...]]:
    """Selects the key of each session whose history matches, and how many messages and calls did."""
    matching = (
        Message.objects.filter(pk__in=words.keys([MESSAGES], limit)),
        ToolCall.objects.filter(pk__in=words.keys(call_tables(), limit)),
    )
    matches = [rows.order_by().values("branch_id", "position").query for rows in matching]
    (messages, first), (calls, second) = (query.sql_with_params() for query in matches)
    branches, sessions = Branch._meta.db_table, Session._meta.db_table
    # PostgreSQL expects few sessions to be connected by forks, and would compare all of these with each hit.
    sql = f"""
        WITH matching AS ({messages} UNION ALL {calls}),
        hit AS MATERIALIZED (
            SELECT branch_id, (SELECT session_id FROM {branches} WHERE id = branch_id) AS session_id, place
            FROM (SELECT branch_id, MIN(position) AS place FROM matching GROUP BY branch_id) AS of_branch
        ),
        number AS (SELECT COUNT(*) AS hits FROM matching),
        line AS MATERIALIZED (
            SELECT DISTINCT (SELECT line FROM {sessions} WHERE id = hit.session_id) AS line FROM hit
        ),
        shared (session_id, branch_id, upto) AS MATERIALIZED (
            SELECT fork.session_id, {_item(0)}, {_item(1)} FROM line
            JOIN {sessions} member ON member.line = line.line
            JOIN {branches} fork ON fork.session_id = member.id AND fork.number = 1 CROSS JOIN {_each_segment()}
        )
        SELECT session_id, (SELECT hits FROM number) FROM hit
        UNION
        SELECT shared.session_id, (SELECT hits FROM number) FROM shared
        JOIN hit ON hit.branch_id = shared.branch_id AND hit.place <= shared.upto
    """  # noqa: S608 - names of our own tables; the words are parameters
    return sql, (*first, *second)


def _each_segment() -> str:
    elements = "json_each" if connection.vendor == "sqlite" else "jsonb_array_elements"
    return f"{elements}(fork.lineage) AS segment"


def _item(index: int) -> str:
    sqlite, postgres = f"json_extract(segment.value, '$[{index}]')", f"(segment.value ->> {index})::bigint"
    return sqlite if connection.vendor == "sqlite" else postgres
