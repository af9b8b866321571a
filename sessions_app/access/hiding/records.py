"""Values beside a name in a text: elements of XML and HTML, and records of a name and a value.

- ``<iban>...</iban>``: the content, however it is nested.
- A record is what lies in braces, a tag with its element, or lines of one item of YAML. Where its field `name`, `key`,
  `field` or `label` (or one whose last word that is) holds a hidden name and little else, the rest of it is hidden.
- ``<key>iban</key><string>...</string>``: the content of the next element.
"""

import re

from sessions_app.access.hiding import Budget, Span

# A field whose last word says that its value is the name of something.
NAMING_FIELD = r"(?:(?<![^\W_])(?i:name|key|field|label)|(?<=[a-z0-9])(?:Name|Key|Field|Label))"
_NAMING = re.compile(
    rf"""{NAMING_FIELD}(?P<quote>\\{{0,15}}["'])?[ \t]{{0,20}}(?P<sign>:|=>?)\s{{0,20}}"""
    r"""\\{0,15}["']?[\w .\-/]{0,60}\Z"""
)
_START_OF_FIELD = re.compile(r"""(?:\\{0,15}["'])?\w{0,40}\Z""")
_NAMED_REST = re.compile(r"""[\w .\-/]{0,60}(?:\\{0,15}["']|\s{0,20}[,;}\])>\r\n/]|[ \t]|\Z)""")
_WINDOW = 120
_LONGEST_TAG = 10_000
_TAG_NAME = re.compile(r"<(?P<name>[A-Za-z_][\w:.\-]{0,100}+)")
_TAG_REST = re.compile(rf"[^<>]{{0,{_LONGEST_TAG}}}+>")
_LABEL = re.compile(
    r"<(?:\w{1,20}:)?(?:name|key|field|label|dt|th|td|b|strong)\b[^<>]{0,200}>[\w .\-]{0,60}\Z", re.IGNORECASE
)
_LABEL_REST = re.compile(r"[\w .\-:]{0,60}</[\w:]{1,40}>\s{0,200}+(?=<[A-Za-z_])")
_VOID = frozenset({"input", "meta", "link", "br", "hr", "img", "param", "source", "col", "area", "base"})
_BRACE_OR_STRING = re.compile(
    r"""[{}]|"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|'(?:[^'\\\r\n]|\\.)*+'(?=\s{0,20}[,:}\])])""", re.DOTALL
)
_LINE_START = re.compile(r"[ \t]*+(?:-[ \t]+)?")
_LINE = re.compile(r"([ \t]*+)((?:-[ \t]+)?)[^\r\n]*+(?:\r\n|\n|\r|\Z)")


class Records:
    """Finds what lies beside hidden names in one text."""

    def __init__(self, text: str, budget: Budget) -> None:
        self._text, self._budget = text, budget
        self._braces: list[tuple[int, int, int]] | None = None
        self._has_tags = "<" in text and ">" in text
        self._may_have_records = re.search("name|key|field|label", text, re.IGNORECASE) is not None

    def element(self, start: int) -> Span | None:
        """The content of the element whose tag has the name at ``start``; None if that is no name of a tag."""
        tag = self._tag_around(start) if self._has_tags else None
        return self._content(tag) if tag and start < tag.end() else None

    def beside(self, start: int, end: int) -> list[Span]:
        """What is hidden because the name from ``start`` to ``end`` is the value of a field or an element."""
        text = self._text
        before = text[max(0, start - _WINDOW) : start]
        if self._has_tags and _LABEL.search(before) and (rest := _LABEL_REST.match(text, end)):
            following = _TAG_NAME.match(text, rest.end())
            return [self._content(following)] if following else []
        naming = _NAMING.search(before) if self._may_have_records else None
        rest = _NAMED_REST.match(text, end) if naming else None
        if naming is None or rest is None:
            return []
        field = _START_OF_FIELD.search(before, max(0, naming.start() - 50), naming.start())
        place = start - len(before) + (field.start() if field else naming.start())
        if naming["sign"] == "=" and self._has_tags and (tag := self._tag_around(place)):
            return [(tag.end(), place), (rest.end(), self._end_of_tag(tag)), self._content(tag)]
        first, last = self._braces_around(place) if naming["quote"] or "{" in text else (-1, -1)
        if first < 0:
            first, last = self._lines_around(place, naming["sign"] != ":")
        return [(first, place), (rest.end(), last)]

    def _tag_around(self, place: int) -> "re.Match[str] | None":
        """The tag within whose brackets the place is."""
        earliest = max(0, place - 1_000)
        opening = self._text.rfind("<", earliest, place)
        if opening < 0 or self._text.find(">", opening, place) >= 0:
            return None
        return _TAG_NAME.match(self._text, opening)

    def _end_of_tag(self, tag: "re.Match[str]") -> int:
        rest = _TAG_REST.match(self._text, tag.end())
        return rest.end() - 1 if rest else len(self._text)

    def _content(self, tag: "re.Match[str]") -> Span:
        """The content of the element that the tag opens. One that is not closed reaches to the end of the text."""
        text, start = self._text, min(len(self._text), self._end_of_tag(tag) + 1)
        if text[start - 2 : start] == "/>" or tag["name"].lower() in _VOID:
            return start, start
        opening, closing = f"<{tag['name']}", f"</{tag['name']}"
        depth, place = 1, start
        while (close := text.find(closing, place)) >= 0:
            depth += text.count(opening, place, close) - 1
            self._budget.spend(place, close)
            if depth == 0:
                return start, close
            if self._budget.is_spent:
                break
            place = close + len(closing)
        return start, len(text)

    def _braces_around(self, place: int) -> Span:
        """What lies within the innermost pair of braces around the place; from the start, if none was opened."""
        if self._braces is None:
            self._braces = self._read_braces()
        low, high = 0, len(self._braces)
        while low < high:
            middle = (low + high) // 2
            if self._braces[middle][0] <= place:
                low = middle + 1
            else:
                high = middle
        return self._braces[low - 1][1:] if low else (-1, -1)

    def _read_braces(self) -> list[tuple[int, int, int]]:
        """From each brace on, what is the innermost pair: `(place, start, end)`, with -1 where there is none."""
        opened: list[int] = []
        closed: dict[int, int] = {}
        inner: list[tuple[int, int]] = []
        for token in _BRACE_OR_STRING.finditer(self._text):
            if token.group() == "{":
                opened.append(token.end())
            elif token.group() == "}" and opened:
                closed[opened.pop()] = token.start()
            else:
                continue
            inner.append((token.start(), opened[-1] if opened else -1))
        length = len(self._text)
        return [(place, first, closed.get(first, length) if first >= 0 else -1) for place, first in inner]

    def _lines_around(self, place: int, is_one_line: bool) -> Span:
        """The lines of the same item of YAML, or of the same paragraph, if a line begins at the place."""
        text = self._text
        line = max(text.rfind("\n", 0, place), text.rfind("\r", 0, place)) + 1
        self._budget.spend(line, place)
        first = last = line
        match = _LINE.match(text, line)
        if is_one_line or match is None or match.end(2) != place:
            return line, match.end() if match else len(text)
        column, is_first = place - line, bool(match[2])
        while not is_first and first > 0:
            previous = max(text.rfind("\n", 0, first - 1), text.rfind("\r", 0, first - 1)) + 1
            match = _LINE.match(text, previous)
            if match is None or not match.group().strip() or match.end(2) - previous < column:
                break
            is_first = bool(match[2]) and match.end(2) - previous == column
            self._budget.spend(previous, first)
            first = previous
            if self._budget.is_spent:
                return 0, len(text)
        while (match := _LINE.match(text, last)) and match.end() > last:
            if last > line and (not match.group().strip() or len(match[1]) < column):
                break
            self._budget.spend(last, match.end())
            last = match.end()
            if self._budget.is_spent:
                return first, len(text)
        start = _LINE_START.match(text, first)
        return start.end() if start else first, last
