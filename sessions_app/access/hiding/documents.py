"""Texts that are JSON as a whole: their values are hidden as in JSON, and everything else is kept as it is written.

What only JSON tells is hidden so: records and pairs, tables as lists of lists, and names with escapes in them.
"""

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

Json = Any

_WHOLE = re.compile(r'\s*+["\[{]')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}:,]|[^\s\[\]{}:,"]++', re.DOTALL)
_OPENING, _CLOSING = ("[", "{"), ("]", "}")


def masked(text: str, hide: Callable[[Json], Json]) -> str:
    """The text with its values hidden if it is JSON as a whole; else the text itself.

    :param hide: Hides values in JSON. Numbers are given to it as they are written.
    :raises RecursionError: for a text that is nested too deeply to be read.
    """
    if not _WHOLE.match(text):
        return text
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=str, parse_float=str)
    except ValueError:
        return text
    shown = hide(value)
    if shown == value:
        return text
    pieces = [(0, 0, ""), *_replaced(_TOKEN.finditer(text), value, shown), (len(text), len(text), "")]
    return "".join(text[before[1] : start] + new for before, (start, _, new) in pairwise(pieces))


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """All pairs of an object, also those whose name occurs twice."""
    result: dict[str, Json] = {}
    for name, item in pairs:
        unique = name
        while unique in result:
            # Before the name, whose last word may say what it is.
            unique = f"{len(result)} {unique}"
        result[unique] = item
    return result


def _replaced(tokens: "Iterator[re.Match[str]]", value: Json, shown: Json) -> Iterator[tuple[int, int, str]]:
    """What replaces which parts of the text in which the next tokens are those of the value."""
    first = next(tokens)
    is_kept = isinstance(value, dict | list) and type(value) is type(shown) and len(value) == len(shown)
    if not is_kept:
        end = _end(tokens, first)
        if shown != value:
            is_text = (
                isinstance(shown, str) and first.group()[0] != '"' and not isinstance(value, dict | list)
            )
            yield first.start(), end, shown if is_text else json.dumps(shown, ensure_ascii=False)
    elif not value:
        next(tokens)
    elif isinstance(value, dict):
        for (name, item), (shown_name, shown_item) in zip(value.items(), shown.items(), strict=True):
            key = next(tokens)
            if name != shown_name:
                yield key.start(), key.end(), json.dumps(shown_name, ensure_ascii=False)
            next(tokens)
            yield from _replaced(tokens, item, shown_item)
            next(tokens)
    else:
        for item, shown_item in zip(value, shown, strict=True):
            yield from _replaced(tokens, item, shown_item)
            next(tokens)


def _end(tokens: "Iterator[re.Match[str]]", first: "re.Match[str]") -> int:
    """Where the value ends whose first token was read."""
    token, depth = first, 0
    while True:
        mark = token.group()
        depth += (mark in _OPENING) - (mark in _CLOSING)
        if not depth:
            return token.end()
        token = next(tokens)
