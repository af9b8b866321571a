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
    keys = [key if isinstance(key, UUID) else UUID(key) for key, _ in rows if key is not None]
    return keys, sum(number for _, number in rows) >= NEWEST


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
    """Selects the key of each session whose history matches; and, in a row without a key, how many messages and calls
    the index has found, those of rows that are deleted in this moment among them.
    """
    of_messages, of_calls = words.keys([MESSAGES], limit), words.keys(call_tables(), limit)
    messages, calls = Message._meta.db_table, ToolCall._meta.db_table
    branches, sessions = Branch._meta.db_table, Session._meta.db_table
    # PostgreSQL expects few sessions to be connected by forks, and would compare all of these with each hit.
    sql = f"""
        WITH message_key (key) AS MATERIALIZED ({of_messages.sql}),
        call_key (key) AS MATERIALIZED ({of_calls.sql}),
        matching AS (
            SELECT branch_id, position FROM {messages} WHERE id IN (SELECT key FROM message_key)
            UNION ALL SELECT branch_id, position FROM {calls} WHERE id IN (SELECT key FROM call_key)
        ),
        hit AS MATERIALIZED (
            SELECT branch_id, (SELECT session_id FROM {branches} WHERE id = branch_id) AS session_id, place
            FROM (SELECT branch_id, MIN(position) AS place FROM matching GROUP BY branch_id) AS of_branch
        ),
        line AS MATERIALIZED (
            SELECT DISTINCT (SELECT line FROM {sessions} WHERE id = hit.session_id) AS line FROM hit
        ),
        shared (session_id, branch_id, upto) AS MATERIALIZED (
            SELECT fork.session_id, {_item(0)}, {_item(1)} FROM line
            JOIN {sessions} member ON member.line = line.line
            JOIN {branches} fork ON fork.session_id = member.id AND fork.number = 1 CROSS JOIN {_each_segment()}
        )
        SELECT session_id, 0 FROM hit
        UNION
        SELECT shared.session_id, 0 FROM shared
        JOIN hit ON hit.branch_id = shared.branch_id AND hit.place <= shared.upto
        UNION ALL
        SELECT NULL, (SELECT COUNT(DISTINCT key) FROM message_key) + (SELECT COUNT(DISTINCT key) FROM call_key)
    """  # noqa: S608 - names of our own tables; the words are parameters
    return sql, (*of_messages.params, *of_calls.params)


def _each_segment() -> str:
    elements = "json_each" if connection.vendor == "sqlite" else "jsonb_array_elements"
    return f"{elements}(fork.lineage) AS segment"


def _item(index: int) -> str:
    sqlite, postgres = f"json_extract(segment.value, '$[{index}]')", f"(segment.value ->> {index})::bigint"
    return sqlite if connection.vendor == "sqlite" else postgres
