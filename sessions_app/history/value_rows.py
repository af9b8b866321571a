"""Values of the state that a tool call's result holds already: a row names the call instead of storing them again.

Haystack puts a tool's result, or one value of it, into the State where the tool says so (``outputs_to_state``). Such a
row has the call's position in ``call_at``, and in ``value`` the name of the value; None stands for the whole result.
Results are never changed, and whoever sees the row's position sees the call's, which lies before it. Only values that
replace the one before are stored so: a state has one of each key to read.
"""

import json
from collections.abc import Collection, Iterable
from typing import Any

from django.db.models import Case, Q, QuerySet, TextField, When
from django.db.models.functions import Cast, Substr

from sessions_app.history.message_rows import AnsweredCall, values_of
from sessions_app.models import Branch, Checkpoint, StateValue, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import Ranges, visible

Json = Any
# State keys, each with a position.
Places = tuple[tuple[str, int], ...]
# In characters of JSON text. A shorter value is stored with its row: the place of it would take as much room.
LEAST = 100
# Of a longer result none is taken: whoever reads the state would read the whole result.
MOST = 20_000
# For the same reason the value is at least this part of the result.
SHARE = 1 / 4
# Made once: `json.dumps` makes an encoder for each call that is not the default one.
_text = json.JSONEncoder(ensure_ascii=False).encode


def place_of(value: Json, calls: Iterable[AnsweredCall]) -> tuple[int, str | None] | None:
    """The position of the call that holds the encoded value, and its name there; None if it is to be stored."""
    if isinstance(value, str):
        if len(value) < LEAST:
            return None
    elif not value or not isinstance(value, list | dict):
        return None
    for call in calls:
        for name, part in ((None, call.result), *values_of(call.result).items()):
            if type(part) is type(value) and part == value and _is_worth_it(value, part, call.result):
                return call.position, name
    return None


def _is_worth_it(value: Json, part: Json, result: Json) -> bool:
    text = value if isinstance(value, str) else _text(value)
    # 1, 1.0 and True are equal, and so are dicts whose keys have another order.
    if text is not value and _text(part) != text:
        return False
    whole = len(_text(result))
    return LEAST <= len(text) >= SHARE * whole and whole <= MOST


def results_at(branch: Branch, positions: Collection[int]) -> dict[int, Json]:
    """The results of the calls that `call_at` names, by their positions: one query, or none."""
    if not positions:
        return {}
    where = visible(branch, after=min(positions) - 1, upto=max(positions))
    return dict(_results(where, tuple(positions)))


@compiled
def _results(where: Ranges, positions: tuple[int, ...]) -> QuerySet[ToolCall, tuple[int, Json]]:
    calls = ToolCall.objects.within(where).filter(position__in=positions)
    return calls.values_list("position", "result")


def part_of(result: Json, name: str | None) -> Json:
    """The value of that name in a call's result, or the result."""
    return result if name is None else values_of(result)[name]


def beginnings(
    branch: Branch, checkpoint: Checkpoint, *, keys: int, characters: int
) -> list[tuple[str, str]]:
    """The state's values by their keys, and what was last added to them, as JSON text that is cut off.

    Two queries, and one more where tool calls hold some of the values.

    :param keys: At most so many values, and so many additions.
    :param characters: Of each, so many.
    """
    where, places = visible(branch, upto=checkpoint.position), tuple(list(checkpoint.keys.items())[:keys])
    rows = [
        *_whole_beginnings(where, places, characters=characters),
        *_last_additions(where, places, characters=characters, most=keys),
    ]
    results = results_at(branch, {call_at for *_, call_at in rows if call_at is not None})
    found = []
    for key, text_or_name, call_at in rows:
        shown = text_or_name
        if call_at is not None:
            shown = _text(part_of(results[call_at], json.loads(text_or_name or "null")))[:characters]
        found.append((key, shown))
    return found


@compiled
def _whole_beginnings(
    where: Ranges, places: Places, *, characters: int
) -> QuerySet[StateValue, tuple[str, str, int | None]]:
    chosen = Q(pk__in=[])
    for key, position in places:
        chosen |= Q(key=key, position=position)
    return _beginnings(StateValue.objects.within(where).filter(chosen), characters)


@compiled
def _last_additions(
    where: Ranges, places: Places, *, characters: int, most: int
) -> QuerySet[StateValue, tuple[str, str, int | None]]:
    chosen = Q(pk__in=[])
    for key, position in places:
        chosen |= Q(key=key, position__gt=position)
    return _beginnings(StateValue.objects.filter(chosen).newest_within(where, most), characters)


def _beginnings(
    rows: QuerySet[StateValue], characters: int
) -> QuerySet[StateValue, tuple[str, str, int | None]]:
    """The key, the beginning of the value or the name that it has in the result of a call, and that call's position."""
    written = Cast("value", TextField())
    own = When(call_at__isnull=True, then=Substr(written, 1, characters))
    text = Case(own, default=written, output_field=TextField())
    return rows.annotate(text=text).values_list("key", "text", "call_at")
