"""What a person meant when they edited JSON in which some values were hidden. Linear in its size but for its depth."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sessions_app.access.errors import Invalid
from sessions_app.access.hiding.tree import HIDDEN
from sessions_app.access.typed import JSON_DEPTH

Json = Any


def restore(typed: Json, original: Json, shown: Json) -> Json:
    """The typed value, with the original values where it still has those that were shown.

    :raises Invalid: for a text of which a part is still hidden and another part was changed, and for a value that is
        nested too deeply. Nothing else is raised.
    """
    try:
        return _restored(typed, original, shown)
    except RecursionError:
        raise Invalid(f"The value is nested too deeply. Write it with at most {JSON_DEPTH} levels.") from None


def check_still_hidden(typed: Json, restored: Json, shown: Json) -> None:
    """Check that the original values within the restored one are hidden as they were: the name beside one may differ.

    :param shown: The restored value as it would be shown now.
    :raises Invalid: if more of an original value would be shown than before, and for a value nested too deeply.
    """
    try:
        shows_more = _shows_more(typed, restored, shown)
    except RecursionError:
        raise Invalid(f"The value is nested too deeply. Write it with at most {JSON_DEPTH} levels.") from None
    if shows_more:
        raise Invalid(
            f"A hidden value ({HIDDEN}) would no longer be hidden after this change. Leave the name that hides it "
            "unchanged, or type a new value."
        )


def _shows_more(typed: Json, restored: Json, shown: Json) -> bool:
    if shown == HIDDEN or _same(shown) == _same(typed) or _same(restored) == _same(typed):
        return False
    if isinstance(typed, dict) and isinstance(restored, dict) and isinstance(shown, dict):
        # A key and its value are looked at as a list of two.
        typed, restored, shown = (
            [list(item) for item in value.items()] for value in (typed, restored, shown)
        )
    if isinstance(typed, list) and isinstance(restored, list) and isinstance(shown, list):
        return not (len(typed) == len(restored) == len(shown)) or any(
            map(_shows_more, typed, restored, shown)
        )
    return True


def _restored(typed: Json, original: Json, shown: Json) -> Json:
    if _same(typed) == _same(shown):
        return original
    if isinstance(typed, dict) and isinstance(original, dict) and isinstance(shown, dict):
        return _object(typed, original, shown)
    if isinstance(typed, list) and isinstance(original, list) and isinstance(shown, list):
        if len(typed) == len(original):
            return [_restored(*items) for items in zip(typed, original, shown, strict=True)]
        return _items(typed, original, shown)
    return _without_hidden(typed)


def _object(typed: dict[str, Json], original: dict[str, Json], shown: dict[str, Json]) -> dict[str, Json]:
    # The keys are in the same order, unless two that were hidden became one.
    originals = dict(zip(shown, original, strict=True)) if len(shown) == len(original) else {}
    restored = {}
    for key, item in typed.items():
        name = originals.get(key, key)
        if name != key and _same(item) == _same(shown[key]):
            restored[name] = original[name]
        elif key in original and key in shown:
            restored[_without_hidden(key)] = _restored(item, original[key], shown[key])
        else:
            restored[_without_hidden(key)] = _without_hidden(item)
    return restored


def _items(typed: Sequence[Json], original: Sequence[Json], shown: Sequence[Json]) -> list[Json]:
    """The items of a list that has become longer or shorter: in order, the originals of those that look the same, where
    there are as many as before.

    By what is shown alone: if it counted whether two originals are equal, a person could find that out.
    """
    originals: dict[str, list[Json]] = {}
    for before, item in zip(original, shown, strict=True):
        originals.setdefault(_same(item), []).append(before)
    forms = [_same(item) for item in typed]
    counts = Counter(forms)
    unchanged = {form: iter(rows) for form, rows in originals.items() if len(rows) == counts[form]}
    return [
        next(unchanged[form]) if form in unchanged else _without_hidden(item)
        for form, item in zip(forms, typed, strict=True)
    ]


def _same(value: Json) -> str:
    """A text that two values share if they are the same JSON: `1` is neither `1.0` nor `true`."""
    return json.dumps(value, sort_keys=True, default=repr)


def _without_hidden(typed: Json) -> Json:
    """The value as typed.

    :raises Invalid: if a part of it is still hidden.
    """
    if HIDDEN in json.dumps(typed, ensure_ascii=False, default=repr):
        raise Invalid(
            f"A hidden value ({HIDDEN}) cannot be changed in part. Replace the whole value, or leave it as it is."
        )
    return typed
