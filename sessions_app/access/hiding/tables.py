"""Columns of tables in a text: CSV with commas or semicolons, tabs, and the pipes of Markdown and database clients.

A line is the head of a table if it has at least two cells that all read like names, one of them a hidden one. In the
lines below, down to a blank one or one without the delimiter, the cells of hidden columns are hidden; where a line has
more or fewer cells than the head, all from the first hidden column on. Quoted cells may hold delimiters and line ends.
In a line that begins with a hidden name, the cells after it are hidden if there is only one, or if the line stands
below another one of a table with tabs or pipes. Below a line that is nothing but a hidden key, or a hidden name of one
word such as a path, all lines down to a blank one are hidden.
"""

import re
from collections.abc import Iterator

from sessions_app.access.hiding import Span
from sessions_app.access.hiding.names import HiddenNames

_LONGEST_HEAD = 20_000
_NAME = re.compile(
    r"""["'`*_\s]{0,20}(?:[\w•#][\w.•/#()%€$?*\-]{0,30}+[ ]?){1,5}+(?<![.!?] )(?<![.!?])["'`*_\s]{0,20}"""
)
_ONLY_WORDS = re.compile(r"[#*`\s>\-]{0,20}([\w .\-]{1,64}?)[#*`\s]{0,20}")
# Where a string of JSON or Python begins or ends, a line does. Escaped quotes are those of cells.
_STRING_MARKS = {
    quote: re.compile(rf"""\\[nrt"'\\]|(?<=[\s\[{{(:,=]){quote}|{quote}(?=\s{{0,20}}(?:[,:}}\])]|\Z))""")
    for quote in "'\""
}
_MARKS = {"\\n": " \n", "\\r": "  ", "\\t": " \t", '\\"': ' "', "\\'": " '", "\\\\": "\\ "}
_CELLS = {
    delimiter: re.compile(rf"""[ ]*+"(?:[^"]|"")*+(?:"|\Z)[^{delimiter}\r\n]*+|[^{delimiter}\r\n]*+""")
    for delimiter in "\t;,"
} | {"|": re.compile(r"[^|\r\n]*+")}
_BREAK = re.compile(r"\r\n|\n|\r|\Z")
_RULER = re.compile(r"[|+\-:=─\s]++")
_BLANK_LINE = re.compile(r"(?:\r\n|\n|\r)[ \t]*+(?=[\r\n]|\Z)|\Z")


def lines_of_strings(text: str, quote: str) -> str:
    """The text with the lines of quoted strings as its own lines, and every character at its place."""
    return _STRING_MARKS[quote].sub(lambda mark: _MARKS.get(mark.group(), "\n"), text)


def in_tables(text: str, keys: list[Span], names: HiddenNames) -> Iterator[Span]:
    """The cells that are hidden by the names of their columns or rows.

    :param keys: Where the text names hidden keys, in order.
    """
    reached = dict.fromkeys(_CELLS, 0)
    line_end = below_end = 0
    for start, _ in keys:
        if start < line_end:
            continue
        line = max(text.rfind("\n", line_end, start), text.rfind("\r", line_end, start), line_end - 1) + 1
        line_end = _BREAK.search(text, start).start()  # type: ignore[union-attr]
        if line_end - line > _LONGEST_HEAD:
            continue
        only = _ONLY_WORDS.fullmatch(text, line, line_end)
        is_only = only and (names.is_key(only[1]) or (" " not in only[1] and names.hides(only[1])))
        if is_only and line >= below_end:
            below_end = _BLANK_LINE.search(text, line_end).start()  # type: ignore[union-attr]
            yield line_end, below_end
        for delimiter in _CELLS:
            if line >= reached[delimiter] and text.find(delimiter, line, line_end) >= 0:
                table = _Table(text, delimiter, names)
                yield from table.hidden(line)
                reached[delimiter] = table.end


class _Table:
    """A table from its head on; `end` is where it ends, once `hidden` has been read."""

    def __init__(self, text: str, delimiter: str, names: HiddenNames) -> None:
        self._text, self._delimiter, self._names = text, delimiter, names
        self.end = 0

    def hidden(self, line: int) -> Iterator[Span]:
        head, self.end = self._row(line)
        width, columns = len(head), self._columns(head)
        above = self._text.rfind("\n", max(0, line - _LONGEST_HEAD), max(0, line - 1)) + 1
        yield from self._beside_name(head, self._delimiter in self._text[above:line])
        while columns and self.end < len(self._text):
            row, row_end = self._row(self.end)
            if len(row) < 2:
                break
            self.end = row_end
            if len(row) == width:
                yield from (self._inside(row[column]) for column in sorted(columns) if column < width)
            else:
                yield from map(self._inside, row[min(columns) :])
            yield from self._beside_name(row, True)
            columns |= self._columns(row)

    def _columns(self, row: list[Span]) -> set[int]:
        """The columns with hidden names, if the row reads like the head of a table."""
        cells = [self._text[start : min(end, start + 100)] for start, end in row]
        # A row of pipes may begin and end with one.
        if not all(_NAME.fullmatch(cell) for cell in cells[1:-1]):
            return set()
        if not all(_NAME.fullmatch(cell) or not cell.strip() for cell in (cells[0], cells[-1])):
            return set()
        return {column for column, cell in enumerate(cells) if self._names.hides(cell)}

    def _beside_name(self, row: list[Span], is_below: bool) -> Iterator[Span]:
        """The cells after the first of the row, if that is a hidden name."""
        filled = [cell for cell in row if self._text[cell[0] : min(cell[1], cell[0] + 200)].strip()]
        if len(filled) < 2 or (len(filled) > 2 and not (is_below and self._delimiter in "|\t")):
            return
        first = self._text[filled[0][0] : min(filled[0][1], filled[0][0] + 100)]
        second = self._text[filled[1][0]]
        is_prose = self._delimiter in ",;" and (second == " " or " " in first.strip())
        if not is_prose and _NAME.fullmatch(first) and self._names.hides(first):
            yield from map(self._inside, filled[1:])

    def _row(self, line: int) -> tuple[list[Span], int]:
        """The cells of a line, and where the next line begins."""
        text, cells, place = self._text, [], line
        while True:
            end = _CELLS[self._delimiter].match(text, place).end()  # type: ignore[union-attr]
            cells.append((place, end))
            if not text.startswith(self._delimiter, end):
                return cells, _BREAK.match(text, end).end()  # type: ignore[union-attr]
            place = end + 1

    def _inside(self, cell: Span) -> Span:
        """The cell without its quotes; nothing of a ruler."""
        start, end = cell
        if _RULER.fullmatch(self._text, start, end):
            return start, start
        content = self._text[start:end]
        start, end = end - len(content.lstrip()), start + len(content.rstrip())
        is_quoted = end - start > 2 and self._text[start] == self._text[end - 1] == '"'
        return (start + 1, end - 1) if is_quoted else (start, end)
