"""A filter for the lists of Django's admin: each value with the heading of its column, as a phone shows them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

register = template.Library()


@register.filter
def labelled(cells: Iterable[SafeString], headers: Iterable[Mapping[str, Any]]) -> Iterator[SafeString]:
    """The cells of a row, as the admin has made them, each with ``data-label``. The box that ticks the row has none."""
    for cell, header in zip(cells, headers, strict=True):
        is_value = cell.startswith("<td ") and "action-checkbox" not in cell.partition(">")[0]
        label = format_html(' data-label="{}"', str(header["text"]).capitalize()) if is_value else ""
        yield mark_safe(f"{cell[:3]}{label}{cell[3:]}")  # noqa: S308 - the admin has escaped the cell
