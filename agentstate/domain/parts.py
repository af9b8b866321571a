"""What a message holds besides one text: images, files, reasoning. Carried in `Message.metadata`, and lost nowhere.

A body's content is a list of parts, as in Haystack's `ChatMessage.to_dict()`. Where it is more than one text, the
message has `PARTS`: the parts in their order, each text as ``{"characters": length}`` of its share of
`Message.content`, in which the texts stand line by line. So a text is in one place only, and can be changed there.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Json = Any
Part = Mapping[str, Json]

PARTS: Final = "parts"
"""The key of `Message.metadata`."""

_LENGTH = "characters"
_KINDS = {_LENGTH, "image", "file", "reasoning"}


def split(content: Sequence[Part]) -> tuple[str, dict[str, Json]]:
    """The text of these parts, and the metadata that says what else there is; empty for a single text."""
    texts = [part["text"] for part in content if is_text(part)]
    if len(texts) == len(content) <= 1:
        return "".join(texts), {}
    parts = [{_LENGTH: len(part["text"])} if is_text(part) else dict(part) for part in content]
    return "\n".join(texts), {PARTS: parts}


def joined(text: str, metadata: Mapping[str, Json]) -> list[dict[str, Json]]:
    """The parts of which `split` made this; a text that was changed since stands where the first one was.

    :raises ValueError: for a part that is none of these.
    """
    parts: list[dict[str, Json]] = [dict(part) for part in metadata.get(PARTS) or ()]
    if any(len(part) != 1 or not part.keys() <= _KINDS for part in parts):
        raise ValueError(f"A part of a message has one of: {', '.join(sorted(_KINDS))}.")
    lengths = [part[_LENGTH] for part in parts if _LENGTH in part]
    if sum(lengths) + max(0, len(lengths) - 1) == len(text) and _fits(text, lengths):
        texts = _shares(text, lengths)
        return [{"text": next(texts)} if _LENGTH in part else part for part in parts]
    first = next((index for index, part in enumerate(parts) if _LENGTH in part), 0)
    others = [part for part in parts if _LENGTH not in part]
    return [*others[:first], *([{"text": text}] if text else []), *others[first:]]


def kinds(metadata: Mapping[str, Json]) -> list[str]:
    """Which kinds of parts there are besides texts, such as `image`."""
    return [kind for part in metadata.get(PARTS) or () for kind in part if kind != _LENGTH]


def is_text(part: Part) -> bool:
    return isinstance(part.get("text"), str)


def _fits(text: str, lengths: Sequence[int]) -> bool:
    """Whether a line ends between each two shares."""
    ends = [sum(lengths[: number + 1]) + number for number in range(len(lengths) - 1)]
    return all(text[end] == "\n" for end in ends)


def _shares(text: str, lengths: Iterable[int]) -> Any:
    start = 0
    for length in lengths:
        yield text[start : start + length]
        start += length + 1
