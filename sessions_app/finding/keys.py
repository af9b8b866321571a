"""The condition that a row is one of many: its keys are one parameter, however many they are.

As a parameter each, some thousands of them take longer to send and to parse than to look up.
"""

import json
from collections.abc import Collection
from uuid import UUID

from django.db import connection
from django.db.models import Q
from django.db.models.expressions import RawSQL


def are(keys: Collection[UUID] | Collection[int]) -> Q:
    """The condition that the primary key is one of these, which are all of one kind. No query of its own."""
    if not keys:
        return Q(pk__in=[])
    if connection.vendor == "sqlite":
        values = [key.hex if isinstance(key, UUID) else key for key in keys]
        return Q(pk__in=RawSQL("SELECT value FROM json_each(%s)", [json.dumps(values)]))
    kind = "uuid" if any(isinstance(key, UUID) for key in keys) else "bigint"
    array = "{" + ",".join(map(str, keys)) + "}"
    return Q(pk__in=RawSQL(f"SELECT unnest(%s::{kind}[])", [array]))  # noqa: S611 - the keys are a parameter
