"""Hidden values in one text: what names and patterns hide in it."""

from collections.abc import Iterable, Sequence

from sessions_app.access.hiding import Budget, Span
from sessions_app.access.hiding.names import HiddenNames
from sessions_app.access.hiding.patterns import HiddenPattern
from sessions_app.access.hiding.records import Records
from sessions_app.access.hiding.tables import in_tables, lines_of_strings
from sessions_app.access.hiding.values import value_after, without_quotes


def hidden_spans(text: str, names: HiddenNames, patterns: Sequence[HiddenPattern]) -> list[Span]:
    """What is hidden in the text: spans in order that neither touch nor overlap, without white space around them."""
    spans = [span for pattern in patterns for span in pattern.spans(text)]
    if keys := list(names.find(text)):
        spans += _named(text, keys, names)
    return _merged(text, spans)


def _named(text: str, keys: list[Span], names: HiddenNames) -> list[Span]:
    """Values by their names. Each name counts by itself, also within what another hides: quotes may mislead."""
    spans = list(in_tables(text, keys, names))
    if "\\n" in text:
        for quote in "'\"":
            lines = lines_of_strings(text, quote)
            spans += in_tables(lines, list(names.find(lines)), names)
    budget = Budget(text)
    records = Records(text, budget)
    # From here on all is hidden.
    hidden_from = len(text)
    for start, end in keys:
        if start >= hidden_from:
            break
        element = records.element(start)
        hidden = [element] if element else records.beside(start, end)
        if not element and (value := value_after(text, start, end, budget)):
            hidden.append(without_quotes(text, value))
        spans += hidden
        if budget.is_spent:
            spans.append((end, len(text)))
            break
        hidden_from = min([hidden_from, *(first for first, last in hidden if last >= len(text))])
    return spans


def _merged(text: str, spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(_stripped(text, span) for span in spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _stripped(text: str, span: Span) -> Span:
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
