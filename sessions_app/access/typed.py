"""What people type: how much of it is accepted, and how numbers and JSON are read from it.

These limits and readers are the only ones. The actions apply the limits, so they hold for the desk, the admin and the
command line alike; forms, query strings and the command line read numbers and JSON with the functions here. No input
makes them raise anything but `Invalid`, and their time is linear in the length of the input. No queries.
"""

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from sessions_app.access.errors import Invalid

Json = Any

KB = 1024
MOST_TAGS = 20
TAG_CHARACTERS = 50
REASON_CHARACTERS = 2000
REJECTION_CHARACTERS = 4000  # of what the agent reads instead of a result, on the desk
MESSAGE_BYTES = 100 * KB
JSON_BYTES = 256 * KB
JSON_DEPTH = 100
# The largest finite float has 309 digits before the point; beyond it, programs disagree about what a number is.
NUMBER_DIGITS = 300
MOST_SAVED_VIEWS = 50
# Keys and positions are stored as 64-bit integers.
LARGEST_KEY = 2**63 - 1

_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(_INTEGER.pattern + r"(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# What Python says of a text that is not JSON, in words for people.
_NOT_JSON = {
    "Extra data": "there is more text after the value",
    "Expecting value": "a value is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing",
    "Expecting property name enclosed in double quotes": "a name in double quotes is missing",
    "Unterminated string starting at": "the closing quote is missing of the text that starts",
    "Invalid control character at": "a text contains a line break or a control character",
    "Invalid \\escape": "a backslash in a text is followed by a character that it cannot escape",
    "Invalid \\uXXXX escape": "\\u in a text is not followed by four hexadecimal digits",
    "Illegal trailing comma before end of object": "nothing follows the comma",
    "Illegal trailing comma before end of array": "nothing follows the comma",
}
# Strings are skipped, so that a bracket in one does not count.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?+|[\[{]|[\]}]', re.DOTALL)
_CUT = 60


def whole_number(text: str) -> int | None:
    """A key or a position from 0 to `LARGEST_KEY`, in decimal digits; None for anything else."""
    if not _DIGITS.fullmatch(text):
        return None
    number = int(text)
    return number if number <= LARGEST_KEY else None


def requested_number(name: str, text: str | None) -> int | None:
    """A key or a position from the parameter ``name`` of a query string; None if it is missing or empty.

    :raises Invalid: if it is not a whole number, or too large for one.
    """
    if not text:
        return None
    number = whole_number(text)
    if number is None:
        raise Invalid(f"The address has “{cut(text)}” as {name}, which is not a valid number.")
    return number


def read_time(text: str) -> datetime | None:
    """An ISO 8601 time with an offset, in UTC; None for anything else, and for one that no calendar date in UTC has."""
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def read_json(text: str) -> Json:
    """The value of a JSON text.

    :raises Invalid: saying what is wrong, for a text that is not JSON, or beyond the limits.
    """
    _check_bytes("The JSON", len(text.encode(errors="replace")), JSON_BYTES)
    if _depth_of_text(text) > JSON_DEPTH:
        raise Invalid(_too_deep("The JSON"))
    try:
        return json.loads(
            text, parse_constant=_refuse_constant, parse_int=_read_integer, parse_float=_read_float
        )
    except json.JSONDecodeError as error:
        where = f"at line {error.lineno}, column {error.colno}"
        text = f"This is not JSON: {_NOT_JSON.get(error.msg, error.msg)} {where}. Put texts in double quotes."
        raise Invalid(text) from None
    except ValueError as error:
        raise Invalid(f"This is not JSON: {error}.") from None


def read_number(text: str) -> int | float:
    """A number as JSON writes it; a whole number stays one: 500 does not become 500.0.

    :raises Invalid: for anything else, also for what Python alone reads, and for a number that cannot be stored.
    """
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        raise Invalid(f"Enter a number, not “{cut(text)}”.")
    is_whole = _INTEGER.fullmatch(text) is not None
    number = int(text) if is_whole and len(text) <= NUMBER_DIGITS else float(text)
    if not math.isfinite(number) or (is_whole and isinstance(number, float)):
        raise Invalid("Write a number that can be stored.")
    return number


def with_line_ends_of(shown: str, text: str) -> str:
    """What was typed where `shown` stood: browsers send each end of a line as CRLF, whatever the text had.

    The shown text itself, if only ends of lines differ.
    """
    lines = with_plain_line_ends(text)
    if lines == with_plain_line_ends(shown):
        return shown
    return lines.replace("\n", "\r\n") if "\r\n" in shown else lines


def with_plain_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_json(what: str, value: Json, *, most_depth: int = JSON_DEPTH, most_bytes: int = JSON_BYTES) -> None:
    """Check that a value is plain JSON within the limits, without NaN and with texts that can be stored.

    :raises Invalid: if it is not.
    """
    for item, depth in _items(value, most_depth):
        if depth > most_depth:
            raise Invalid(_too_deep(what))
        if isinstance(item, str):
            check_text(what, item)
        elif isinstance(item, int) and not isinstance(item, bool) and abs(item) >= 10**NUMBER_DIGITS:
            raise Invalid(f"{what} holds a number of more than {NUMBER_DIGITS} digits.")
    try:
        size = len(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError):
        raise Invalid(f"{what} must hold plain JSON values only, and no NaN.") from None
    _check_bytes(what, size, most_bytes)


def check_text(what: str, text: str, *, most_bytes: int | None = None) -> None:
    """:raises Invalid: for a text that cannot be stored: with NUL characters, not valid Unicode, or too long."""
    if "\x00" in text:
        raise Invalid(f"{what} contains NUL characters, which cannot be stored. Remove them.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{what} contains characters that are not valid Unicode. Remove them.") from None
    if most_bytes is not None:
        _check_bytes(what, size, most_bytes)


def cut(text: str) -> str:
    """The text for a sentence about it: its beginning, if it is long."""
    return text if len(text) <= _CUT else f"{text[:_CUT]}…"


def _check_bytes(what: str, size: int, most: int) -> None:
    if size > most:
        # Rounded up, so that it is more than what fits.
        raise Invalid(
            f"{what} is too long: it has {-(-size // KB):,} KB, and at most {most // KB} KB are allowed."
        )


def _too_deep(what: str) -> str:
    return f"{what} is nested too deeply: at most {JSON_DEPTH} levels can be stored."


def _depth_of_text(text: str) -> int:
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        character = match.group()[0]
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _items(value: Json, most_depth: int) -> Iterator[tuple[Json, int]]:
    """Every value in a JSON value, and every key, with its depth; without recursion. Ends one level too deep."""
    level, depth = [value], 0
    while level and depth <= most_depth + 1:
        inner: list[Json] = []
        for item in level:
            nested = isinstance(item, dict | list | tuple)
            yield item, depth + 1 if nested else depth
            if isinstance(item, dict):
                inner += [str(key) for key in item]
                inner += item.values()
            elif nested:
                inner += item
        level, depth = inner, depth + 1


def _read_integer(text: str) -> int:
    if len(text) > NUMBER_DIGITS:
        raise ValueError(f"a number has more than {NUMBER_DIGITS} digits")
    return int(text)


def _read_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{cut(text)} is too large to be stored")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number that can be stored")
