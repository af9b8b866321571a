"""Texts and values as the commands print them: without characters that control a terminal or reorder text.

What is invisible and no blank is shown by name, as on the pages.
"""

import json
from unicodedata import category

from sessions_app.invisible import escaped_in_json, shown
from sessions_app.wording import as_text


def one_line(value: object) -> str:
    """A text or an error on one line, anything else as JSON."""
    if value is None:
        return ""
    text = str(value) if isinstance(value, Exception) else as_text(value)
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """The text with its lines and blanks; U+FFFD for each other character that is not printed."""
    lines = shown(text.replace("\r\n", "\n").expandtabs(4))
    return "".join(char if _is_printed(char) else "\ufffd" for char in lines)


def _is_printed(char: str) -> bool:
    # Marks of format that are left belong to the writing, such as a joiner in an emoji.
    return char.isprintable() or char == "\n" or category(char) in ("Zs", "Cf")


def as_json(data: object, indent: int | None = None) -> str:
    """For programs and terminals: what is invisible is written as an escape, so it says the same."""
    return escaped_in_json(json.dumps(data, indent=indent, ensure_ascii=False))
