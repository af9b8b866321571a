"""How the type of a value is named in an error: ``an int``, ``a list``, ``None``. Pure Python."""

from typing import Any


def an(value: Any, *, start: bool = False) -> str:
    """The type of the value in words, within a sentence or as the beginning of one."""
    if isinstance(value, type):
        return f"{'The' if start else 'the'} class {value.__name__}"
    if value is None:
        return "None"
    text = with_article(type(value).__name__)
    return text[0].upper() + text[1:] if start else text


def with_article(name: str) -> str:
    """The name behind its article. Types that begin with a u are spoken with a y: a UUID, a Union."""
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"
