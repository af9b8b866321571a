"""The condition that a row is one of many: its keys are one parameter, however many they are.

As a parameter each, some thousands of them take longer to send and to parse than to look up.
"""

import json
from collections.abc import Collection
from uuid import UUID

from django.db import connection
from django.db.models import BooleanField, F, Func, Q, Value
from django.db.models.expressions import RawSQL


def are(keys: Collection[UUID] | Collection[int]) -> Q:
    """The condition that the primary key is one of these, which are all of one kind. No query of its own."""
    if not keys:
        return Q(pk__in=[])
    is_uuid = any(isinstance(key, UUID) for key in keys)
    return in_list(listed(keys), kind="uuid" if is_uuid else "bigint")


def listed(keys: Collection[UUID] | Collection[int]) -> str:
    """The keys as the parameter of `in_list`."""
    if connection.vendor == "sqlite":
        return json.dumps([key.hex if isinstance(key, UUID) else key for key in keys])
    return "{" + ",".join(map(str, keys)) + "}"


def in_list(keys: str, *, kind: str = "bigint") -> Q:
    """The condition of `are` for keys that are `listed`. A compiled query takes these as one argument.

    :param kind: The type of the primary key in PostgreSQL.
    """
    if connection.vendor == "sqlite":
        return Q(pk__in=RawSQL("SELECT value FROM json_each(%s)", [keys]))
    # PostgreSQL sees how many there are, and looks them up or hashes them. Of a subquery it would expect a hundred.
    template = f"%(expressions)s::{kind}[])"
    return Q(Func(F("pk"), Value(keys), template=template, arg_joiner=" = ANY(", output_field=BooleanField()))
