"""Parts of pages that are drawn once in a process for the same values.

For what is drawn again and again and rarely changes: an open page is sent the phase diagram with each step, which
changes two of its thirty parts; of an open list with news hardly any row has changed; and the inbox shows the same
requests for approval until they are decided.
"""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

from django import template
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

register = template.Library()

# Of all parts that are kept. The values by which they are found take as much again.
MOST_CHARACTERS = 8_000_000


@register.simple_tag
def drawn(part: str, **values: Hashable) -> SafeString:
    """A template, included with these values and nothing else of the context, which it may not depend on.

    ``{% drawn "session/_diagram_node.html" node=node address=address %}``
    """
    return parts.draw(part, values)


class Parts:
    """The parts that were asked for last, up to so many characters. May be used from any thread."""

    def __init__(self, most_characters: int) -> None:
        self.most_characters = most_characters
        self.clear()

    def clear(self) -> None:
        self._kept: OrderedDict[object, SafeString] = OrderedDict()
        self._lock = Lock()
        self.characters = self.misses = 0

    def draw(self, part: str, values: dict[str, Hashable]) -> SafeString:
        # Equal values of other types, such as a text that is safe already, are drawn by themselves.
        key = part, *values.items(), *map(type, values.values())
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept
        text = render_to_string(part, values)
        with self._lock:
            self.misses += 1
            if key not in self._kept:
                self._kept[key] = text
                self.characters += len(text)
            while self.characters > self.most_characters:
                _, oldest = self._kept.popitem(last=False)
                self.characters -= len(oldest)
        return text


parts = Parts(MOST_CHARACTERS)
