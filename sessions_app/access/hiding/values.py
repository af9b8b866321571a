"""Values that follow a name in a text: ``iban: DE89``, ``"iban": [1, 2]``, ``iban=DE89&a=1``, ``--iban DE89``.

Between a name and its value stands ``:``, ``=``, ``=>``, ``->`` or the like. The name may be quoted or emphasized, and
up to three more words or a remark in brackets may follow it (``IBAN of the customer (new): ...``); after such words a
colon counts only before white space, unlike that of a time.

Quoted strings and pairs of brackets belong to a value whole; one that is never closed belongs to it to the end of the
text. Otherwise a value ends at the end of its line, or before

- a comma or semicolon that is followed by a name with a value, a lower-case word, a closing bracket or the line's end,
- ``&name=``; and where ``=`` stood before the value, the next ``name=``,
- a closing quote or bracket with which its line, its item or its sentence ends; and a closing tag.

Where it ends with its line, the lines below that are indented more belong to it, as in YAML. And where a name without
quotes begins its line, with a colon and white space, the value is all of the line.
"""

import re

from sessions_app.access.hiding import Budget, Span

_QUOTE = r"""(?:\\{0,15}["'”’»]|&quot;|&\#3[49];|%2[27])"""
_AFTER_NAME = re.compile(
    rf"""(?:[.\-/]?\w{{1,64}}+){{0,4}}+
    (?P<words>(?:[ \t]{{1,3}}[\w\-]{{1,32}}+){{0,3}})\.?
    (?:[ \t]?\([^()\n]{{0,40}}\)|\[[^\[\]\n]{{0,40}}\]){{0,2}}
    [*_`?!\#\])]{{0,4}}{_QUOTE}?[*_`\])]{{0,4}}
    (?:[ \t\r\n\u00a0\u2000-\u200a\u202f\u3000]{{0,50}}
        (?P<sign>:=|:|={{1,3}}>?|->|[\uff1a\uff1d]|&\#(?:58|61);|%3[ADad])[*_`]{{0,3}}
    | (?P<option>[ \t]{{1,20}}+(?=[^\s\-])))""",
    re.VERBOSE,
)
_OPTION = re.compile(r"--?[\w\-]{0,64}\Z")
_EQUALS = ("=", "\uff1d", "%3d", "%3D", "&#61;")
_SPACE = re.compile(r"[ \t]*+")
_SPACE_OR_END = re.compile(r"\s|\Z")
_NOT_BLANK = re.compile(r"\S")
_INDENTED = re.compile(r"(?:\r?\n|\r)([ \t]*+)")
_LINE_PREFIX = re.compile(r"[ \t]*+(?:[\-*•>#]++[ \t]++)*+")
_START_OF_NAME = re.compile(r"[\w.$@\-]{0,64}+")
_NAME = rf"""{_QUOTE}?[\w$@•][\w .$@•/\-]{{0,63}}+{_QUOTE}?[ \t]{{0,20}}"""
_ENTRY = re.compile(rf"[-*•]\s|{_NAME}[:=](?:\s|\Z)")
_NEXT_ITEM = re.compile(
    rf"[,;](?:\s{{0,200}}+(?:\Z|[\])}}]|{_NAME}[:=])|[ \t]{{0,200}}+[\r\n]|\s{{1,200}}+(?=(?P<word>[^\W\d_])))"
)
_NEXT_PARAMETER = re.compile(r"&(?:amp;)?(?:[\w.\[\]%•+\-]{1,64}+=|\Z|[\s\"'])")
_NEXT_ASSIGNMENT = re.compile(r"[ \t]{1,200}+[\w.:\-]{1,64}+=(?!=)")
_CLOSED = re.compile(r"\s{0,200}+(?:[,;:}\])<>\"'\\]|/>|\Z)|\.?[ \t]{0,200}+(?:[\r\n]|\Z)")
# A run of backslashes is read once: from its beginning.
_POINT = re.compile(r"""&(?:\#\w{1,6}|[A-Za-z]{2,8});|[\r\n,;&<(){}\[\]]|(?<!\\)\\*+["'“«]""")
_POINT_OR_SPACE = re.compile(rf"{_POINT.pattern}|[ \t]++")
_STRING = re.compile(r"""(?:[bBrRuUfF]{1,2}(?=["']))?(\\*+)(["'“«])""")
_CLOSING_QUOTES = {"“": "”", "«": "»"}
_QUOTES = {quote: re.compile(rf"(?<!\\)(\\*+){quote}") for quote in "\"'”»"}
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_BRACKET_OR_STRING = re.compile(
    r"""[(){}\[\]]|"(?:[^"\\]|\\.)*+"|(?<!\\)\\*+["“«]|(?<![\w\\])(?:'(?:[^'\\]|\\.)*+'|\\*+')""", re.DOTALL
)
_LONGEST_NESTED = 2_000


def value_after(text: str, start: int, end: int, budget: Budget) -> Span | None:
    """The value that follows the name from ``start`` to ``end``; None if there is none."""
    after = _AFTER_NAME.match(text, end)
    if after is None:
        return None
    place = _SPACE.match(text, after.end()).end()  # type: ignore[union-attr]
    sign = after["sign"]
    if sign is None:
        is_option = not after["words"] and _OPTION.search(text, max(0, start - 66), start)
        return (place, _end_of_word(text, place, budget)) if is_option else None
    if after["words"] and sign == ":" and place == after.end():
        following = text[place : place + 1]
        if following and following not in "\r\n\"'“«\\":
            return None
    column, begins_line = _column(text, start)
    if place == len(text) or text[place] in "\r\n":
        return _value_below(text, place, column, budget)
    value_end = _end(text, place, sign.startswith(_EQUALS), budget)
    if begins_line and sign in ":\uff1a" and place > after.end():
        value_end = _end_of_line(text, value_end)
    if value_end < len(text) and text[value_end] in "\r\n":
        value_end = _end_of_block(text, value_end, column, False, budget)
    return (place, value_end) if value_end > place else None


def _value_below(text: str, line_end: int, column: int, budget: Budget) -> Span | None:
    """The value on the lines below a name after which the line ends."""
    not_blank = _NOT_BLANK.search(text, line_end)
    if not_blank is None:
        return None
    first = not_blank.start()
    budget.spend(line_end, first)
    indentation = first - 1 - text.rfind("\n", line_end, first)
    if text[first] not in "\"'[{\\“«":
        is_item = text.startswith(("- ", "-\t"), first)
        if indentation > column or (indentation == column and is_item):
            end = _end_of_line(text, first)
            return first, _end_of_block(text, end, column, is_item and indentation == column, budget)
        if _ENTRY.match(text, first):
            return None
    end = _end(text, first, False, budget)
    return (first, end) if end > first else None


def without_quotes(text: str, value: Span) -> Span:
    """The value without its quotes, if it is one quoted string and nothing else."""
    start, end = value
    if text[start] in "\"'" and end - start > 2 and end_of_string(text, start, Budget("")) in (end, -1):
        return start + 1, end - (1 if text[end - 1] == text[start] else 0)
    return value


def end_of_string(text: str, start: int, budget: Budget, limit: int | None = None) -> int:
    """Where the string ends that begins at ``start``, perhaps with an escaped quote; -1 if it is not closed."""
    opening = _STRING.match(text, start)
    if opening is None:
        return -1
    escapes, quote = len(opening[1]), opening[2]
    limit = len(text) if limit is None else min(limit, len(text))
    place = opening.end()
    if not escapes and text.startswith(quote * 3, place - 1):
        triple_end = text.find(quote * 3, place + 2, limit)
        budget.spend(place, limit if triple_end < 0 else triple_end)
        return triple_end + 3 if triple_end >= 0 else -1
    for closing in _QUOTES[_CLOSING_QUOTES.get(quote, quote)].finditer(text, place, limit):
        budget.spend(place, closing.end())
        place = closing.end()
        before = len(closing[1])
        if before < escapes:
            # The quote of a string around this one, which was not closed.
            return closing.start()
        # At the level of `escapes`, a quote in the string has more backslashes, and so has a backslash before its end.
        if before % (2 * (escapes + 1)) == escapes:
            return place
        if budget.is_spent:
            return -1
    budget.spend(place, limit)
    return -1


def end_of_brackets(text: str, start: int, budget: Budget, limit: int | None = None) -> int:
    """Where the bracket closes that opens at ``start``; -1 if it does not."""
    limit = len(text) if limit is None else min(limit, len(text))
    opened: list[str] = []
    place = start
    while point := _BRACKET_OR_STRING.search(text, place, limit):
        budget.spend(place, point.end())
        if budget.is_spent:
            return -1
        mark, place = point.group(), point.end()
        if mark in _BRACKETS:
            opened.append(_BRACKETS[mark])
        elif mark in ")]}":
            # A bracket that was never opened is text; so is one that was never closed within this one.
            if mark in opened[-3:]:
                while opened.pop() != mark:
                    pass
            if not opened:
                return place
        elif len(mark) == 1 or mark[0] == "\\":
            place = end_of_string(text, point.start(), budget, limit)
            if place < 0:
                return -1
    budget.spend(place, limit)
    return -1


def _end(text: str, start: int, has_equals: bool, budget: Budget) -> int:
    """Where the value ends that begins at ``start`` with something else than white space."""
    place = start
    if (string := _STRING.match(text, start)) or text[start] in "[{":
        place = (end_of_string if string else end_of_brackets)(text, start, budget)
        if place < 0:
            return len(text)
    points = _POINT_OR_SPACE if has_equals else _POINT
    while point := points.search(text, place):
        budget.spend(place, point.end())
        if budget.is_spent:
            return len(text)
        place, mark = point.start(), point.group()
        if mark in "\r\n" or _ends_before(text, place, mark):
            break
        place = point.end()
        if mark in "([{" or (mark[-1] in "\"'“«" and text[point.start() - 1] in " \t([{=:,;|"):
            limit = place + _LONGEST_NESTED
            if mark != "(" and (line_end := text.find("\n", place, limit)) >= 0:
                # Only a call may go over several lines: `iban=Account(...)`.
                limit = line_end
            jump = end_of_brackets if mark in "([{" else end_of_string
            nested = jump(text, point.start(), budget, limit)
            place = nested if nested > 0 else place
    else:
        budget.spend(place, len(text))
        place = len(text)
    return start + len(text[start:place].rstrip(" \t"))


def _ends_before(text: str, place: int, mark: str) -> bool:
    """Whether the value ends before the mark at ``place``."""
    if mark in ",;":
        item = _NEXT_ITEM.match(text, place)
        return item is not None and (item["word"] is None or item["word"].islower())
    if mark == "&":
        return _NEXT_PARAMETER.match(text, place) is not None
    if mark == "<":
        return text.startswith("</", place)
    if mark[0] in " \t":
        return _NEXT_ASSIGNMENT.match(text, place) is not None
    if mark in ")]}" or mark[-1] in "\"'":
        return _CLOSED.match(text, place + len(mark)) is not None
    return False


def _end_of_word(text: str, start: int, budget: Budget) -> int:
    end = end_of_string(text, start, budget)
    return end if end > 0 else _SPACE_OR_END.search(text, start).start()  # type: ignore[union-attr]


def _column(text: str, name: int) -> tuple[int, bool]:
    """How far the content of the line is indented in which a name stands, and whether it begins with that name."""
    earliest = max(0, name - _LONGEST_NESTED)
    line = max(earliest, text.rfind("\n", earliest, name) + 1)
    content = _LINE_PREFIX.match(text, line, name).end()  # type: ignore[union-attr]
    return content - line, _START_OF_NAME.fullmatch(text, content, name) is not None


def _end_of_block(text: str, end: int, column: int, has_items: bool, budget: Budget) -> int:
    """Where the lines end that follow at ``end`` and are indented more, or are items of a list at the same column."""
    place = start = end
    while line := _INDENTED.match(text, place):
        place = line.end()
        if place == len(text) or text[place] in "\r\n":
            continue
        indentation = len(line[1])
        if indentation < column or (
            indentation == column and not (has_items and text.startswith(("- ", "-\t"), place))
        ):
            break
        place = end = _end_of_line(text, place)
    budget.spend(start, place)
    return end


def _end_of_line(text: str, place: int) -> int:
    end = text.find("\n", place)
    return end if end >= 0 else len(text)
