"""Parts of pages that are drawn once in a process for the same values.

For what is drawn again and again and rarely changes: an open page is sent the buttons at its top with each step, and
several people have one session open; of an open list with news hardly any row has changed; and the
inbox shows the same requests for approval until they are decided.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

from django import template
from django.forms import BoundField
from django.template.loader import render_to_string
from django.urls import get_script_prefix
from django.utils.safestring import SafeString

register = template.Library()

# Of all parts that are kept and the values by which they are found again, and how many parts these may be.
MOST_CHARACTERS, MOST_PARTS = 8_000_000, 4096


@register.simple_tag
def drawn(part: str, **values: Hashable) -> SafeString:
    """A template, included with these values and nothing else of the context, which it may not depend on.

    ``{% drawn "session/_call_facts.html" session=session.pk facts=call.facts %}``

    :param values: A field of a dataclass, or an item of a tuple, always has values of one type: 1 and True, and a text
        and the same text that is safe, are equal there.
    """
    return parts.draw(part, values)


@register.simple_tag
def drawn_field(field: BoundField) -> SafeString:
    """A field of a form for a text, hidden values, or one of some choices without groups. It is drawn once for the same
    choices and value.
    """
    values = {
        "form": type(field.form),
        "name": field.html_name,
        "id": field.auto_id,
        "value": str(field.value() or ""),
        "choices": tuple(map(tuple, getattr(field.field.widget, "choices", ()))),
        "is_wrong": bool(field.errors),
    }
    return parts.keep("a field", values, lambda: SafeString(field))


class Parts:
    """The parts that were asked for last, up to so many characters and parts. May be used from any thread.

    ``misses`` counts those that had to be drawn, for tests: what is kept looks like what is drawn.
    """

    def __init__(self, most_characters: int, most_parts: int) -> None:
        self.most_characters, self.most_parts = most_characters, most_parts
        self.clear()

    def clear(self) -> None:
        # By its part and values, a text, and the characters of both.
        self._kept: OrderedDict[object, tuple[SafeString, int]] = OrderedDict()
        self._lock = Lock()
        self.characters = self.misses = 0

    def draw(self, part: str, values: dict[str, Hashable]) -> SafeString:
        return self.keep(part, values, lambda: render_to_string(part, values))

    def keep(self, part: str, values: dict[str, Hashable], draw: Callable[[], SafeString]) -> SafeString:
        """What was drawn for these values; draws it if it is not kept."""
        # The addresses in a part begin with the prefix under which this request came. Equal values of other types, such
        # as a text that is safe already, are drawn by themselves.
        key = part, get_script_prefix(), *values.items(), *map(type, values.values())
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept[0]
        text = draw()
        size = len(text) + len(str(values))
        with self._lock:
            self.misses += 1
            if key not in self._kept and size <= self.most_characters:
                self._kept[key] = text, size
                self.characters += size
            while self.characters > self.most_characters or len(self._kept) > self.most_parts:
                _, (_, oldest) = self._kept.popitem(last=False)
                self.characters -= oldest
        return text


parts = Parts(MOST_CHARACTERS, MOST_PARTS)
