"""Characters that a person does not see and that change what a person reads, made visible: ``⟨U+202E⟩``.

Those that order a line for another direction of writing (a text that holds one may read as another text), that have no
width, or that a terminal would obey. What is stored, searched and sent to programs keeps them; only what is shown to
people is written anew. Where such a character belongs to the writing it stays: in an emoji of several signs, and in
scripts that join their letters.
"""

import re

# Line feeds, tabs and carriage returns are not among them: a page shows each of them as white space.
_CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
# What orders a line, fillers, separators of lines, marks of no width, and the tag characters.
_ALWAYS = (
    r"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
_JOINERS = r"\u180b-\u180f\u200b-\u200d"
_VARIANTS = r"\ufe00-\ufe0f"
_VARIANTS_OF_IDEOGRAPHS = r"\U000e0100-\U000e01ef"
# Arabic, the scripts of India, Thai, Tibetan, Burmese, Khmer and Mongolian join letters, or break lines, by joiners.
_JOINED = r"\u0620-\u06ff\u0710-\u109f\u1780-\u18af\ua8e0-\ua9ff\uaa00-\uaadf\ufb50-\ufdff\ufe70-\ufefc"
_IDEOGRAPHS = r"\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_EMOJI = r"\xa9\xae\u203c\u2049\u2100-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
# The flags of England, Scotland and Wales are a black flag with a name in tag characters.
_FLAGS = (
    "\U0001f3f4\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074|"
    "\U000e0077\U000e006c\U000e0073)\U000e007f"
)
_INVISIBLE = re.compile(
    rf"(?P<flag>{_FLAGS})|[{_CONTROLS}{_ALWAYS}]"
    rf"|(?<![{_JOINED}{_EMOJI}\ufe0f])[{_JOINERS}]|(?<=[{_EMOJI}\ufe0f])(?!\u200d[{_EMOJI}])[{_JOINERS}]"
    rf"|(?<![{_JOINED}{_IDEOGRAPHS}{_EMOJI}#*0-9])[{_VARIANTS}]|(?<=[#*0-9])[{_VARIANTS}](?!\u20e3)"
    rf"|(?<![{_IDEOGRAPHS}])[{_VARIANTS_OF_IDEOGRAPHS}]"
)
# A quick look: no more than a set of characters, and all of the expression above are among them.
_SUSPECT = re.compile(rf"[{_CONTROLS}{_ALWAYS}{_JOINERS}{_VARIANTS}{_VARIANTS_OF_IDEOGRAPHS}]")
_BREAKS = re.compile(r"[\t\n\r]")
_USUAL = bytes([*b"\t\n\r", *range(0x20, 0x7F)])


def may_be_in(body: bytes) -> bool:
    """Whether an invisible character may be in a text of UTF-8. Of 70 KB this takes 40 µs."""
    rest = body.translate(None, _USUAL)
    return bool(rest) and may_be_within(rest.decode(errors="replace"))


def may_be_within(text: str) -> bool:
    return _SUSPECT.search(text) is not None


def names_in(text: str) -> list[str]:
    """The invisible characters of the text, each once: ``["U+202E"]``."""
    return list(dict.fromkeys(_name(found[0]) for found in _INVISIBLE.finditer(text) if not found["flag"]))


def shown(text: str) -> str:
    """The text with each invisible character by its name, ``⟨U+202E⟩``."""
    return _INVISIBLE.sub(lambda found: found[0] if found["flag"] else f"⟨{_name(found[0])}⟩", text)


def shown_in_a_line(text: str) -> str:
    """The same for a list with a text on each line: what would begin another line or column is named, too."""
    return _BREAKS.sub(lambda found: f"⟨{_name(found[0])}⟩", shown(text))


def escaped_in_json(document: str) -> str:
    r"""The text of a JSON document, with each invisible character as its escape, ``\u202e``: it says the same."""
    return _INVISIBLE.sub(lambda found: found[0] if found["flag"] else _escape(found[0]), document)


def _name(character: str) -> str:
    return f"U+{ord(character):04X}"


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
