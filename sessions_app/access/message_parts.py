"""Whether a Haystack message can be built from what was given: `ChatMessage.from_dict` refuses what is wrong here.

Without Haystack, which web processes do not import.
"""

from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

import filetype

from sessions_app.access.typed import cut

Json = Any
Types = tuple[type, ...]

_TEXT, _TEXT_OR_NONE, _OBJECT, _FLAG = (str,), (str, NoneType), (dict,), (bool,)
_NAMES: dict[type, str] = {
    str: "a text",
    dict: "an object",
    list: "a list",
    tuple: "a tuple",
    bool: "true or false",
    NoneType: "null",
}
# As Haystack's `IMAGE_MIME_TYPES`.
IMAGE_MIME_TYPES = frozenset(
    {
        "application/pdf",
        "application/postscript",
        "image/bmp",
        "image/gif",
        "image/icns",
        "image/jp2",
        "image/jpeg",
        "image/jpg",
        "image/mpo",
        "image/palm",
        "image/png",
        "image/sgi",
        "image/tiff",
        "image/vnd.adobe.photoshop",
        "image/webp",
        "image/x-icon",
        "image/x-pcx",
        "image/x-portable-anymap",
        "image/x-tga",
        "image/xbm",
        "image/xpm",
        "video/mpeg",
    }
)


@dataclass(frozen=True, slots=True)
class PartFields:
    """The fields of a kind of part, with the types of their values."""

    required: Mapping[str, Types]
    optional: Mapping[str, Types]

    def all(self) -> dict[str, Types]:
        return {**self.required, **self.optional}


CALL = PartFields(
    {"tool_name": _TEXT, "arguments": _OBJECT}, {"id": _TEXT_OR_NONE, "extra": (dict, NoneType)}
)
# A text is no object with fields; all other kinds of parts are.
PARTS: dict[str, PartFields] = {
    "image": PartFields(
        {"base64_image": _TEXT},
        {"mime_type": _TEXT_OR_NONE, "detail": _TEXT_OR_NONE, "meta": (dict, NoneType), "validation": _FLAG},
    ),
    "file": PartFields(
        {"base64_data": _TEXT},
        {
            "mime_type": _TEXT_OR_NONE,
            "filename": _TEXT_OR_NONE,
            "extra": (dict, NoneType),
            "validation": _FLAG,
        },
    ),
    "tool_call": CALL,
    "tool_call_result": PartFields({"result": (str, list, tuple), "origin": _OBJECT, "error": _FLAG}, {}),
    "reasoning": PartFields({"reasoning_text": _TEXT}, {"extra": (dict, NoneType)}),
}
_IN_RESULTS = ("text", "image", "file")


def why_not_built(message: Json, roles: list[str]) -> str:
    """What is wrong with the message, as the end of a sentence; "" if it can be built."""
    if not isinstance(message, dict):
        return "it is not an object"
    if message.get("role") not in roles:
        return f"its role is none of {', '.join(roles)}"
    if not isinstance(message.get("meta", {}), dict):
        return "its meta is not an object"
    if not isinstance(message.get("name"), str | None):
        return "its name is neither a text nor null"
    content = message.get("content")
    if not isinstance(content, list) or not content:
        return "its content is not a list of parts"
    return _why_wrong(content, ("text", *PARTS))


def _why_wrong(parts: list[Json], kinds: tuple[str, ...]) -> str:
    """What is wrong with the first part that is not as one of these kinds is."""
    for number, part in enumerate(parts, 1):
        if not isinstance(part, dict) or len(part) != 1 or not part.keys() <= set(kinds):
            return f"its part {number} is not an object with one of the keys {', '.join(kinds)}"
        [(kind, value)] = part.items()
        why = _why_wrong_of_kind(kind, value)
        if why:
            return f"the {kind} of its part {number} {why}"
    return ""


def _why_wrong_of_kind(kind: str, value: Json) -> str:
    if kind == "text":
        return "" if isinstance(value, str) else "is not a text"
    why = _why_unfit(value, PARTS[kind])
    if why:
        return why
    if kind == "image":
        return _why_undecoded(value, "base64_image") or _why_no_image(value)
    if kind == "file":
        return _why_undecoded(value, "base64_data")
    if kind == "tool_call_result":
        if why := _why_unfit(value["origin"], CALL):
            return f"has an origin that {why}"
        parts = value["result"]
        if not isinstance(parts, str) and (why := _why_wrong(_with_kinds(parts), _IN_RESULTS)):
            return f"has a result that is wrong: {why}"
    return ""


def _with_kinds(parts: Iterable[Json]) -> list[Json]:
    """The parts of a result, each under its kind, without which Haystack writes the pictures and files of a tuple."""
    of_fields = {"base64_image": "image", "base64_data": "file"}
    kinds = [
        next((of_fields[name] for name in of_fields if isinstance(part, dict) and name in part), "")
        for part in parts
    ]
    return [{kind: part} if kind else part for kind, part in zip(kinds, parts, strict=True)]


def _why_unfit(value: Json, fields: PartFields) -> str:
    if not isinstance(value, dict):
        return "is not an object"
    types = fields.all()
    for name in fields.required:
        if name not in value:
            return f"has no {name}"
    for name, given in value.items():
        if name not in types:
            return f"has a key {cut(str(name))!r}, which is unknown"
        if not isinstance(given, types[name]):
            return f"has a {name} that is not {' or '.join(_NAMES[each] for each in types[name])}"
    return ""


def _why_no_image(value: dict[str, Json]) -> str:
    """Whether the type is that of an image, unless nobody is to check that. Without one Haystack guesses it as here."""
    if not value.get("validation", True):
        return ""
    mime_type = value.get("mime_type")
    if mime_type:
        why = f"has the mime_type {cut(mime_type)!r}"
    else:
        mime_type = filetype.guess_mime(b64decode(value["base64_image"]))
        why = f"has no mime_type, and its data are of the type {mime_type!r}"
    return f"{why}, which is none of an image" if mime_type and mime_type not in IMAGE_MIME_TYPES else ""


def _why_undecoded(value: dict[str, Json], name: str) -> str:
    """Whether the data is base64, unless the part says that nobody is to check that."""
    if not value.get("validation", True):
        return ""
    try:
        b64decode(value[name], validate=True)
    except ValueError:
        return f"has a {name} that is not base64"
    return ""
