"""How texts that are no field of a masked row are shown: tags, the query strings of lists, and texts that are cut off.

A value that is cut off in its middle may be one that no pattern matches any more.
"""

from collections.abc import Iterable
from functools import lru_cache

from django.http import QueryDict

from sessions_app.access.masking import HIDDEN, Mask


def tag(mask: Mask, name: str) -> str:
    """A tag: hidden whole where a part is hidden. It is stored in lower case, whatever case a pattern is written in."""
    in_any_case = Mask(mask.keys, tuple(f"(?i){pattern}" for pattern in mask.patterns))
    return HIDDEN if in_any_case.hides(name) else name


def tags(mask: Mask, names: Iterable[str]) -> list[str]:
    """The tags of a session as they are shown: by their names, and behind them those that are hidden.

    Among the others a hidden tag would show where it stands in the alphabet.
    """
    shown = [tag(mask, name) for name in sorted(names)]
    return sorted(shown, key=HIDDEN.__eq__)


def hides_in_query(mask: Mask, query: str) -> bool:
    """Whether a filter in a list's query string names something that is hidden."""
    return any(
        tag(mask, value) == HIDDEN or mask.hides({name: value})
        for name, values in parameters_of(query)
        for value in values
    )


@lru_cache(maxsize=1024)
def parameters_of(query: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The parameters of a list's query string, each with its values: saved views are read again with each page."""
    return tuple([(name, tuple(map(str, values))) for name, values in QueryDict(query).lists()])


def beginning(mask: Mask, text: str) -> str:
    """What can be shown of a text of which only the beginning was read: nothing, unless the mask hides nothing.

    What a value is may be said behind it, as in ``{"value": "DE89", "name": "iban"}``.
    """
    return HIDDEN if mask.hides_anything else text


def cut_off(text: str, most: int) -> str:
    """At most so many characters of a text that is stored. One that is longer is masked for good, then cut off."""
    if len(text) <= most:
        return text
    masked = Mask.configured().text(text)
    return masked if len(masked) <= most else f"{masked[: most - 1].rstrip()}…"


def in_one_line(text: str, length: int) -> str:
    """A text that is stored as a title, in one line.

    Masked for good where it has to be cut off, and where one line shows what its own lines hide, as those of a table.
    """
    mask = Mask.configured()
    line, masked_line = " ".join(text.split()), " ".join(mask.text(text).split())
    if len(line) <= length and mask.text(line) == masked_line:
        return line
    return masked_line[:length].rstrip()
