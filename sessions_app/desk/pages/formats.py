"""An argument as people write it, by the format of its tool's policy: ``€450.00``, ``2 Nov 2026``. No queries.

What is shown is exact: an amount with more decimal places than its currency has is not rounded.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sessions_app.wording import Show

_SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥"}
# Currencies whose amounts have no decimal places.
_WHOLE = frozenset(("JPY", "KRW", "CLP", "ISK", "VND"))
# An amount that is stored as a text, as one of the type Decimal is.
_DECIMAL = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
# Below it each whole number is a float of its own.
_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class Currency:
    """How an amount is written: what stands before and after it, and how many decimal places it has at least."""

    before: str
    after: str
    places: int


def currency(format: str) -> Currency | None:
    """Of ``money:EUR``; None for a format that is none of money."""
    kind, _, code = format.partition(":")
    if kind != "money":
        return None
    symbol = _SYMBOLS.get(code, "")
    return Currency(symbol, "" if symbol else f" {code}", 0 if code in _WHOLE else 2)


def by_formats(formats: Mapping[str, str]) -> Show:
    """How the arguments of a tool are shown by the formats of its policy."""

    def show(name: str, value: Any) -> str | None:
        return formatted(value, formats[name]) if name in formats else None

    return show


def formatted(value: Any, format: str) -> str:
    """A value that does not fit its format, such as a hidden one, stays as it is."""
    money = currency(format)
    if money is not None and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{money.before}{_amount(value, money.places)}{money.after}"
    if money is not None and isinstance(value, str) and _DECIMAL.fullmatch(value):
        places = max(money.places, len(value.partition(".")[2]))
        return f"{money.before}{Decimal(value):,.{places}f}{money.after}"
    if format == "date" and isinstance(value, str):
        return _date(value)
    return value if isinstance(value, str) else str(value)


def plain(value: Any) -> str:
    """A value without a format: ``640`` for the number that is stored as 640.0, ``yes`` for true."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return str(value)


def _amount(value: float, places: int) -> str:
    if isinstance(value, int):  # of any size, so that it may be too large for a float
        return f"{value:,}" + (f".{0:0{places}}" if places else "")
    return f"{value:,.{places}f}" if round(value, places) == value else f"{value:,}"


def _date(text: str) -> str:
    try:
        day = datetime.fromisoformat(text).date() if "T" in text else date.fromisoformat(text)
    except ValueError:
        return text
    return f"{day.day} {day:%b %Y}"
