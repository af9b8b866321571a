"""Parts of pages that are drawn once in a process for the same values.

For what is drawn again and again and rarely changes: an open page is sent the phase diagram with each step, which
changes two of its thirty parts, and of an open list with news hardly any row has changed.
"""

from collections.abc import Hashable
from functools import lru_cache

from django import template
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

register = template.Library()

# Each takes one or two kilobytes.
MOST_PARTS = 4096


@register.simple_tag
def drawn(part: str, **values: Hashable) -> SafeString:
    """A template, included with these values and nothing else of the context, which it may not depend on.

    ``{% drawn "session/_diagram_node.html" node=node address=address %}``
    """
    return _drawn(part, **values)


@lru_cache(maxsize=MOST_PARTS, typed=True)
def _drawn(part: str, **values: Hashable) -> SafeString:
    return render_to_string(part, values)
