"""What changed between two definitions of an agent: its prompts line by line, its tools, its model and its settings.

A definition is known where a worker has published it. What is hidden from the reader counts as the same on both sides,
so that nobody finds a hidden value by comparing.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sessions_app.access.masking import Mask
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.models import AgentDefinition
from sessions_app.wording import as_text

Json = Any
ADDED, REMOVED, CHANGED = "added", "removed", "changed"
MOST_LINES = 200
MOST_CHARACTERS = 300
_CONTEXT = 2
_MARKS = {"+": ADDED, "-": REMOVED, " ": "same"}
_PARTS = {"prompts": "Prompt", "tools": "Tools", "model": "Model", "settings": "Settings"}


@dataclass(frozen=True, slots=True)
class Change:
    """One change. ``lines`` are those of a text, with what became of each; else ``before`` and ``after`` are values."""

    kind: str
    name: str
    before: str = ""
    after: str = ""
    lines: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DefinitionChanges:
    """``parts`` are the changes by the title of their part. ``unknown`` are the definitions that are not on record."""

    before: str
    after: str
    parts: list[tuple[str, list[Change]]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def definition_changes(agent: str, before: str, after: str, mask: Mask) -> DefinitionChanges:
    """One query."""
    rows = AgentDefinition.objects.filter(agent=agent, definition__in=(before, after))
    return between({row.definition: row for row in mask.rows(rows)}, before, after)


def changes_of(context: SessionContext) -> DefinitionChanges | None:
    """Those of the session's agent since the session last ran; None if it has not changed. At most one query."""
    session = context.session
    if not session.new_definition:
        return None
    return definition_changes(session.agent, session.definition, session.new_definition, context.mask)


def between(rows: Mapping[str, AgentDefinition], before: str, after: str) -> DefinitionChanges:
    """The same of rows that are read and masked already, by their definition. No query."""
    if unknown := [definition for definition in (before, after) if definition not in rows]:
        return DefinitionChanges(before, after, unknown=unknown)
    first, second = rows[before].parts, rows[after].parts
    # A toolset that has not listed its tools yet has not lost them.
    unlisted = {kind for kind, side in ((ADDED, first), (REMOVED, second)) if side.get("tools_pending")}
    parts = []
    for name, title in _PARTS.items():
        changes = _part_changes(name, first.get(name) or {}, second.get(name) or {})
        shown = [change for change in changes if change.kind not in unlisted]
        if shown:
            parts.append((title, shown))
    return DefinitionChanges(before, after, parts)


def _part_changes(part: str, before: Json, after: Json) -> Iterator[Change]:
    if not isinstance(before, dict) or not isinstance(after, dict):  # hidden as a whole
        return
    for name in sorted({*before, *after}):  # a database may change their order
        first, second = before.get(name), after.get(name)
        if first == second:
            continue
        if part == "prompts":
            yield Change(CHANGED, f"{name} prompt", lines=_lines(str(first or ""), str(second or "")))
        elif part == "tools" and (name not in before or name not in after):
            whole = second if name in after else first
            description = str((whole or {}).get("description") or "") if isinstance(whole, dict) else ""
            yield Change(ADDED if name in after else REMOVED, name, after=_cut(description))
        else:
            yield from _values(name, first, second)


def _values(path: str, before: Json, after: Json) -> Iterator[Change]:
    """The values that differ, each by its path."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                yield from _values(f"{path}.{key}", before.get(key), after.get(key))
    elif isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        yield Change(CHANGED, path, lines=_lines(before, after))
    else:
        yield Change(CHANGED, path, _text(before), _text(after))


def _lines(before: str, after: str) -> list[tuple[str, str]]:
    """The lines that differ, with those around them."""
    lines = []
    compared = difflib.unified_diff(before.splitlines(), after.splitlines(), n=_CONTEXT, lineterm="")
    for number, line in enumerate(compared):
        if number < 2:  # the names of two files
            continue
        lines.append(("gap", "…") if line.startswith("@@") else (_MARKS[line[0]], _cut(line[1:])))
        if len(lines) > MOST_LINES:
            return [*lines[:MOST_LINES], ("gap", "… and more lines.")]
    return lines[1:] if lines[:1] == [("gap", "…")] else lines


def _text(value: Json) -> str:
    if value is None:
        return "none"
    return _cut(as_text(value))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
