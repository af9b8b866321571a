"""The messages that a model sees, read as columns: there may be thousands, for which the ORM takes as long as the rest.

A message that answers a call may hold the call's position instead of its text (`message_rows`). Where all texts are
values of one name in the results of their calls, as of tools with that `outputs_to_string`, the database reads these
values out of the results, which may hold much more. Else whole results are read.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from sys import getsizeof
from typing import Any

from django.db import connection
from django.db.models import Case, QuerySet, TextField, When
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast

from agentstate.durable.records import StoredMessage
from agentstate.names import TYPE_TAG
from sessions_app.history.message_rows import (
    FEW,
    RESULT_OF,
    RESULT_SOURCE,
    AnsweredCall,
    Body,
    complete,
)
from sessions_app.models import Branch, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import Ranges, visible

# The position, role, text and body of a message.
MessageColumns = tuple[int, str, str, str]
CallColumns = tuple[int, str, str, str, str | None]
# Where a JSON text does not have this, no value in it is tagged.
TAG = json.dumps(TYPE_TAG)
# So that a long history is not one text in memory.
TEXTS_AT_ONCE = 1_000


def stored_messages(branch: Branch, rows: Sequence[MessageColumns]) -> dict[int, StoredMessage]:
    """The whole messages by their positions. At most one query."""
    bodies = list(_parsed([body for _, _, _, body in rows]))
    calls, sizes = _answered(branch, bodies)
    stored = {}
    for (position, role, text, written), body in zip(rows, bodies, strict=True):
        size = getsizeof(text) + getsizeof(written) + sizes.get(body.get(RESULT_OF), 0)
        whole = complete(role, text, body, calls)
        stored[position] = StoredMessage(position, whole, TAG not in written, size)
    return stored


def fetched(sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows of texts and numbers, as the driver returns them."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def _parsed(texts: Sequence[str]) -> Iterator[Any]:
    """The values of many JSON texts, read as a few long ones, which takes two thirds of the time."""
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        yield from json.loads(f"[{','.join(texts[start : start + TEXTS_AT_ONCE])}]")


def as_text(column: str) -> Cast:
    """A column of JSON as its text, to be given to `_parsed`."""
    return Cast(column, TextField())


def _answered(
    branch: Branch, bodies: Iterable[Body]
) -> tuple[Mapping[int, AnsweredCall], Mapping[int | None, int]]:
    """The calls that hold the texts of the bodies, and the bytes of what was read of each, by their positions. Of their
    results only these texts may be read.
    """
    # Several messages may answer one call, each by another value of its result.
    places = [(body[RESULT_OF], body.get(RESULT_SOURCE)) for body in bodies if RESULT_OF in body]
    if not places:
        return {}, {}
    found, names = {position for position, _ in places}, {name for _, name in places}
    positions = tuple(found) if len(found) <= FEW else None
    where = visible(branch, after=min(found) - 1, upto=max(found))
    source = names.pop() if len(names) == 1 else None
    # Django takes some names for places in a list.
    if source is not None and source.isidentifier():
        rows = fetched(*_with_value.sql_with_params(where, positions, source=source))
        results: Iterator[Any] = ({source: text} for *_, text in rows)
    else:
        rows = fetched(*_with_result.sql_with_params(where, positions))
        results = _parsed([result or "null" for *_, result in rows])
    arguments = _parsed([row[3] for row in rows])
    calls = {
        position: AnsweredCall(position, call_id, tool, given, result)
        for (position, call_id, tool, *_), given, result in zip(rows, arguments, results, strict=True)
    }
    return calls, {position: getsizeof(given) + getsizeof(result) for position, _, _, given, result in rows}


@compiled
def _with_result(where: Ranges, positions: tuple[int, ...] | None) -> QuerySet[ToolCall, CallColumns]:
    return _calls(where, positions).values_list(
        "position", "call_id", "tool", as_text("arguments"), as_text("result")
    )


@compiled
def _with_value(
    where: Ranges, positions: tuple[int, ...] | None, *, source: str
) -> QuerySet[ToolCall, CallColumns]:
    """With the text of that name in the result, as `message_rows.values_of` finds it."""
    tagged = KeyTextTransform(source, KeyTransform("value", "result"))
    value = Case(
        When(result__has_key=TYPE_TAG, then=tagged),
        default=KeyTextTransform(source, "result"),
        output_field=TextField(),
    )
    return (
        _calls(where, positions)
        .annotate(value_of=value)
        .values_list("position", "call_id", "tool", as_text("arguments"), "value_of")
    )


def _calls(where: Ranges, positions: tuple[int, ...] | None) -> QuerySet[ToolCall]:
    calls = ToolCall.objects.within(where)
    return calls if positions is None else calls.filter(position__in=positions)
