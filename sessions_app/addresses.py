"""Addresses of pages with a query string."""

from urllib.parse import quote, urlencode

from django.urls import reverse


def address(view: str, *args: object, **parameters: str | int | None) -> str:
    """Like `reverse`, but keyword arguments make the query string; those that are None or "" are left out."""
    path = reverse(view, args=args)
    given_parameters = {name: value for name, value in parameters.items() if value not in (None, "")}
    query = urlencode(given_parameters, safe="/", quote_via=quote)
    return f"{path}?{query}" if query else path
