"""Values of the state that a tool call's result holds already: a row names the call instead of storing them again.

Haystack puts a tool's result, or one value of it, into the State where the tool says so (``outputs_to_state``). Such a
row has the call's position in ``call_at``, and in ``value`` the name of the value; None stands for the whole result.
Results are never changed, and whoever sees the row's position sees the call's, which lies before it. Only values that
replace the one before are stored so: a state has one of each key to read.
"""

import json
from collections.abc import Collection, Iterable
from typing import Any

from django.db.models import Case, Q, TextField, When
from django.db.models.functions import Cast, Substr

from sessions_app.history.message_rows import AnsweredCall, values_of
from sessions_app.models import Branch, Checkpoint, StateValue, ToolCall

Json = Any
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
    calls = ToolCall.objects.visible_on(branch, after=min(positions) - 1, upto=max(positions))
    return dict(calls.filter(position__in=positions).values_list("position", "result"))


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
    whole_values = later = Q(pk__in=[])
    for key, position in list(checkpoint.keys.items())[:keys]:
        whole_values |= Q(key=key, position=position)
        later |= Q(key=key, position__gt=position)
    written = Cast("value", TextField())
    own = When(call_at__isnull=True, then=Substr(written, 1, characters))
    text = Case(own, default=written, output_field=TextField())
    values = StateValue.objects.visible_on(branch, upto=checkpoint.position)
    columns = values.annotate(text=text).values_list("key", "text", "call_at")
    rows = [*columns.filter(whole_values), *columns.filter(later).order_by("-position")[:keys]]
    results = results_at(branch, {call_at for *_, call_at in rows if call_at is not None})
    found = []
    for key, text_or_name, call_at in rows:
        shown = text_or_name
        if call_at is not None:
            shown = _text(part_of(results[call_at], json.loads(text_or_name or "null")))[:characters]
        found.append((key, shown))
    return found
