"""Addresses of pages with a query string."""

from functools import lru_cache
from urllib.parse import quote

from django.core.exceptions import TooManyFieldsSent
from django.http import QueryDict
from django.urls import get_script_prefix, reverse

# So many characters has the longest value of a parameter that is kept: a page leads back to what it was asked for.
LONGEST_KEPT = 500


def address(view: str, /, *args: object, **parameters: str | int | None) -> str:
    """Like `reverse`, but keyword arguments make the query string; those that are None or "" are left out."""
    path = _path(get_script_prefix(), view, *args)
    query = "&".join(
        _parameter(name, text) if len(text := str(value)) <= LONGEST_KEPT else _quoted(name, text)
        for name, value in parameters.items()
        if value not in (None, "")
    )
    return f"{path}?{query}" if query else path


def read_query(query: str) -> QueryDict:
    """A query string within an address to go back to. Empty if it cannot be read: what was done stays done."""
    try:
        return QueryDict(query)
    except TooManyFieldsSent:
        return QueryDict()


@lru_cache(maxsize=1024, typed=True)
def _path(prefix: str, view: str, *args: object) -> str:
    """The pages of a session link to one address hundreds of times."""
    return reverse(view, args=args)


@lru_cache(maxsize=4096)
def _parameter(name: str, value: str) -> str:
    """They have the same parameters, and most of these the same values."""
    return _quoted(name, value)


def _quoted(name: str, value: str) -> str:
    return f"{quote(name, safe='/')}={quote(value, safe='/')}"
