"""The condition that a row is one of many: its keys are one parameter, however many they are.

As a parameter each, some thousands of them take longer to send and to parse than to look up.
"""

import json
from collections.abc import Collection, Sequence
from uuid import UUID

from django.db import connection
from django.db.models import BooleanField, F, Func, Q, Value
from django.db.models.expressions import RawSQL

from sessions_app.models.selects import NO_ROWS, Sql


def are(keys: Collection[UUID] | Collection[int]) -> Q:
    """The condition that the primary key is one of these, which are all of one kind. No query of its own."""
    if not keys:
        return Q(pk__in=[])
    is_uuid = any(isinstance(key, UUID) for key in keys)
    return in_list(listed(keys), kind="uuid" if is_uuid else "bigint")


def listed_each(rows: Sql, groups: int, most: int) -> list[str | None] | None:
    """The keys of each of some groups of rows, `listed`, or None where it has none; None if there are more rows than
    `most`. One query.

    The database lists the keys: of thousands Python would make an object each, and a text again.

    :param rows: With a limit. The columns are a key that is a UUID, and whether the row belongs to each of the groups.
    """
    sql, values = rows
    if sql == NO_ROWS:
        return [None] * groups
    lists = "json_group_array(key)" if connection.vendor == "sqlite" else "array_agg(key)"
    selected = ", ".join(
        f"CAST({lists} FILTER (WHERE in_{number}) AS text), count(*) FILTER (WHERE in_{number})"
        for number in range(groups)
    )
    names = ", ".join(f"in_{number}" for number in range(groups))
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH found(key, {names}) AS ({sql}) SELECT count(*), {selected} FROM found",  # noqa: S608 - a select of our own
            values,
        )
        number, *found = cursor.fetchone()
    if number > most:
        return None
    return [keys if any_keys else None for keys, any_keys in zip(found[::2], found[1::2], strict=True)]


def listed_up_to(selects: Sequence[Sql], most: int) -> list[tuple[str | None, bool]]:
    """The keys that each of the queries selects, which are UUIDs, `listed`, or None for none, and whether these are
    all; of one that selects more than `most`, some. One query, or none.

    It is planned as if all rows were read: of a limit PostgreSQL would expect that it is reached soon in any order.
    """
    found: list[tuple[str | None, bool]] = [(None, True)] * len(selects)
    read = [place for place, select in enumerate(selects) if select != (NO_ROWS, ())]
    if not read:
        return found
    named = [f"found_{place}(key) AS MATERIALIZED ({selects[place][0]})" for place in read]
    keys = "json_group_array(key)" if connection.vendor == "sqlite" else "CAST(array_agg(key) AS text)"
    lists = [
        f"(SELECT {keys} AS keys_{place}, count(*) AS number_{place} FROM "  # noqa: S608 - our own
        f"(SELECT key FROM found_{place} LIMIT {most + 1:d}) AS some_{place}) AS list_{place}"
        for place in read
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH {', '.join(named)} SELECT * FROM {', '.join(lists)}",  # noqa: S608 - as above
            [value for place in read for value in selects[place][1]],
        )
        row = cursor.fetchone()
    for place, listed_keys, number in zip(read, row[::2], row[1::2], strict=True):
        found[place] = listed_keys if number else None, number <= most
    return found


def listed(keys: Collection[UUID] | Collection[int]) -> str:
    """The keys as the parameter of `in_list`."""
    if connection.vendor == "sqlite":
        return json.dumps([key.hex if isinstance(key, UUID) else key for key in keys])
    return "{" + ",".join(map(str, keys)) + "}"


def in_list(keys: str | None, *, kind: str = "bigint") -> Q:
    """The condition of `are` for keys that are `listed`. A compiled query takes these as one argument.

    :param keys: None for none.
    :param kind: The type of the primary key in PostgreSQL.
    """
    if keys is None:
        return Q(pk__in=[])
    if connection.vendor == "sqlite":
        return Q(pk__in=RawSQL("SELECT value FROM json_each(%s)", [keys]))
    # PostgreSQL sees how many there are, and looks them up or hashes them. Of a subquery it would expect a hundred.
    template = f"%(expressions)s::{kind}[])"
    return Q(Func(F("pk"), Value(keys), template=template, arg_joiner=" = ANY(", output_field=BooleanField()))
