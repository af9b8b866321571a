"""Markers in place of the arguments of a compiled query, by which their places in its SQL are known."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Q

from sessions_app.models import conditions

Adapt = Callable[[Any], Any]
# No constant of a query has such a value.
_NUMBER = 1_907_654_000
_TEXT = "marker of a compiled query: "
_TIME = datetime(1012, 3, 4, 5, 6, 7, 891, UTC)
# The markers of several times lie so far apart, and nothing adds as much to one.
_APART = timedelta(days=2000)


def shape_of(value: Any, values: list[Any]) -> object:
    """What has to be equal for one SQL to serve two calls; the values that may differ are added to `values`."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple([shape_of(part, values) for part in value])
    if isinstance(value, Q):
        return conditions.shape_of(value, values)
    values.append(value)
    return type(value)


def marked(value: Any, markers: list[Any]) -> Any:
    """The argument with markers in place of its values, which are added to `markers`."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple([marked(part, markers) for part in value])
    if isinstance(value, Q):
        return conditions.with_values(value, lambda each: marked(each, markers))
    number = len(markers)
    match value:
        case int() if not isinstance(value, bool):
            marker: Any = _NUMBER + number
        case str():
            marker = f"{_TEXT}{number}"
        case UUID():
            marker = UUID(int=_NUMBER + number)
        case datetime():
            marker = _TIME + number * _APART
        case _:
            raise TypeError(f"A compiled query takes no {type(value).__name__}.")
    markers.append(marker)
    return marker


def places_of(parameters: Sequence[Any], markers: Sequence[Any]) -> Iterator[tuple[int, int, Adapt]]:
    """Of each parameter that is a marker its index, the number of the marker, and how a value in its place is adapted
    to the database.

    :raises ValueError: for a marker within a longer text.
    """
    known: dict[Any, tuple[int, Adapt]] = {}
    for number, marker in enumerate(markers):
        if not isinstance(marker, datetime):
            known[marker] = number, _itself
        if isinstance(marker, str):
            known[f"%{marker}%"] = number, _anywhere
        if isinstance(marker, UUID):
            known[marker.hex] = number, _hex
    for index, parameter in enumerate(parameters):
        if isinstance(parameter, bool) or not isinstance(parameter, int | str | UUID | datetime):
            continue
        if parameter in known:
            number, adapt = known[parameter]
            # psycopg has a type for each size of integer.
            yield index, number, type(parameter) if isinstance(parameter, int) else adapt
        elif (place := _place_of_time(parameter, markers)) is not None:
            yield index, *place
        elif isinstance(parameter, str) and _TEXT in parameter:
            raise ValueError("This query has an argument within a text that it is compared with.")


def _place_of_time(parameter: Any, markers: Sequence[Any]) -> tuple[int, Adapt] | None:
    """The number of the argument that the parameter is, with what is added to it."""
    is_text = isinstance(parameter, str)
    try:
        time = datetime.fromisoformat(parameter) if is_text else parameter
    except ValueError:
        return None
    if not isinstance(time, datetime):
        return None
    for number, marker in enumerate(markers):
        if not isinstance(marker, datetime):
            continue
        added = time.replace(tzinfo=UTC) - marker
        if abs(added) < _APART / 2:
            return number, partial(_as_text if is_text else _plus, added)
    return None


def _plus(added: timedelta, value: datetime) -> datetime:
    if value.tzinfo is None:
        raise TypeError("A compiled query takes no time without a time zone.")
    return value.astimezone(UTC) + added


def _as_text(added: timedelta, value: datetime) -> Any:
    return connections[DEFAULT_DB_ALIAS].ops.adapt_datetimefield_value(_plus(added, value))


def _itself(value: Any) -> Any:
    return value


def _anywhere(text: str) -> str:
    """The pattern of ``LIKE`` for the text with anything before and behind it, as Django makes it."""
    return f"%{connections[DEFAULT_DB_ALIAS].ops.prep_for_like_query(text)}%"


def _hex(value: UUID) -> str:
    return value.hex
