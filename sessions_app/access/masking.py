"""Hiding values that not every member of staff may read: by the names of keys, and by patterns in texts.

Which those are is configured: AGENTSTATE_MASK_KEYS and AGENTSTATE_MASK_PATTERNS. They are hidden from everyone. A
person with the permission `reveal_values` may ask to see them, which `sessions_app.actions.reveal` writes into the
audit trail. Every page and file that shows values of a session sends them through a `Mask`.

Hiding is a matter of showing only: agents, tools and the database work with the values themselves, and no row that was
read from the database is changed. A mask never raises, whatever the value is, and takes a time linear in its length;
`sessions_app.access.hiding` finds what it hides.
"""

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self, TypeVar

from django.conf import settings
from django.db.models import Model

from agentstate.names import STAFF_NOTE
from sessions_app.access import tool_names
from sessions_app.access.hiding.names import HiddenNames, normalized
from sessions_app.access.hiding.patterns import HiddenPattern
from sessions_app.access.hiding.restore import check_still_hidden, restore
from sessions_app.access.hiding.tree import HIDDEN, Hider
from sessions_app.access.masked_copy import masked_copy
from sessions_app.models import (
    AgentDefinition,
    Approval,
    Branch,
    BulkAction,
    BulkItem,
    Checkpoint,
    Event,
    InboxMessage,
    MemoryEntry,
    Message,
    ModelCall,
    RegisteredAgent,
    SavedView,
    Session,
    StateValue,
    ToolCall,
)

__all__ = ["HIDDEN", "Mask"]

Json = Any
Row = TypeVar("Row", bound=Model)
# The fields of each model that may hold a hidden value. A state value is hidden by the name of its key, too.
_MASKED_FIELDS: dict[type[Model], tuple[str, ...]] = {
    AgentDefinition: ("parts",),
    Approval: ("arguments", "edited", "message", "from_state"),
    Branch: ("reason", "left_state"),
    BulkAction: ("reason",),
    BulkItem: ("why",),
    Checkpoint: ("counters", "outcome"),
    Event: ("reason", "data"),
    InboxMessage: ("text", "body"),
    MemoryEntry: ("customer", "text"),
    Message: ("text", "body"),
    ModelCall: ("side_replies", "error"),
    RegisteredAgent: ("problem", "options"),
    SavedView: ("name",),
    Session: ("title", "customer", "why", "error", "final_answer", "exit_reason", "inputs", "breakpoints"),
    StateValue: ("value",),
    ToolCall: ("tool", "call_id", "arguments", "sent", "result", "error", "state", "small", "beginning"),
}
# Annotations of `history.call_rows` that hold the result or a part of it.
_FIELD_OF = {"small": "result", "beginning": "result"}
# Columns that are hidden by the name of another one, too: that the arguments were changed makes them no others.
_ALSO_NAMED = {"sent": ("arguments",), "edited": ("arguments",)}
# Columns of calls whose values are the texts of tools' messages.
_OF_CALLS = ("result", "error")
# How a message begins that tells the model of changed arguments. Those stored before they were marked lack the mark.
NOTE_OF_CHANGE = re.compile(
    rf"(?:{re.escape(STAFF_NOTE)} )?A person changed the arguments of '(?P<tool>[^']*)'"
)
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mask:
    """What is hidden: values under some names of keys, and what matches patterns. The empty mask hides nothing."""

    keys: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()

    @classmethod
    def configured(cls) -> Self:
        """What is hidden from everyone until they ask to see it."""
        return cls.of(settings.AGENTSTATE_MASK_KEYS, settings.AGENTSTATE_MASK_PATTERNS)

    @classmethod
    def of(cls, keys: Iterable[str], patterns: Iterable[str]) -> Self:
        """:raises PatternError: for a pattern that cannot be used."""
        mask = cls(frozenset(filter(None, map(normalized, keys))), tuple(patterns))
        _ = mask._hider
        return mask

    @classmethod
    def none(cls) -> Self:
        """Hides nothing: for what has been revealed, for the command line, and for the search index."""
        return cls()

    @property
    def hides_anything(self) -> bool:
        return bool(self.keys or self.patterns)

    def text(self, text: str) -> str:
        """The text with what matches a pattern, and what belongs to the name of a hidden key, hidden."""
        if not self.hides_anything or not text:
            return text
        return str(_or_hidden(self._hider.text, text))

    def json(self, value: Json) -> Json:
        """The same for plain JSON: the whole value of a hidden key, and what is hidden in every text and number.

        What is nested more than `typed.JSON_DEPTH` levels deep is hidden.
        """
        return _or_hidden(self._hider.json, value) if self.hides_anything else value

    def named(self, name: str, value: Json) -> Json:
        """The value under this name: all of it is hidden if the name is a hidden key, unless it is empty."""
        return HIDDEN if value and self.hides_key(name) else self.json(value)

    def column(self, name: str, value: Json) -> Json:
        """The same for a column of the desk, such as ``arguments``: an object or a list in it keeps its form."""
        if not any(map(self.hides_key, (name, *_ALSO_NAMED.get(name, ())))):
            return self.json(value)
        if isinstance(value, dict | list) and name != "result":
            return self._inside(value)
        return HIDDEN if value else value

    def message(self, role: str, text: str) -> str:
        """The text of a message, by its column's name. A tool's message has the result or the error of a call, and one
        that tells the model of a person's change has the arguments.
        """
        repeated: tuple[str, ...] = ()
        if role == Message.Role.TOOL:
            repeated = _OF_CALLS
        elif NOTE_OF_CHANGE.match(text):
            repeated = ("sent", *_ALSO_NAMED["sent"])
        return HIDDEN if text and any(map(self.hides_key, repeated)) else str(self.named("text", text))

    def hides_key(self, name: str) -> bool:
        """Whether what stands under this name is hidden; see `hiding.names`."""
        return self._hider.names.hides(name)

    def hides(self, value: Json) -> bool:
        """Whether anything in the value (JSON or text) is hidden: then there is something to reveal."""
        return self.hides_anything and bool(self.json(value) != value)

    def row(self, row: Row) -> Row:
        """A copy of the row for showing, with its values and those of its loaded related rows hidden.

        No query but that of `tool`. The row itself stays as it is; where nothing is hidden, it is returned. A value is
        masked when it is first read. See `masked_copy` for what the copy refuses.
        """
        return self.rows([row])[0]

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """The same for each of the rows. No query of its own."""
        if not self.hides_anything:
            return list(rows)
        memo: dict[int, Model] = {}
        # The rows must live as long as the memo, which knows them by their ids.
        originals = list(rows)
        return [masked_copy(row, _MASKED_FIELDS, self._field, memo) for row in originals]

    def tool(self, name: str) -> str:
        """The name of the tool that a call names: the model may have invented it. Names of agents' tools are shown.

        At most one query a minute, and only if a part of a name would be hidden.
        """
        shown = self.text(name)
        return name if shown == name or tool_names.is_known(name) else shown

    def restore(self, typed: Json, original: Json, *, column: str = "") -> Json:
        """The values that a person meant who edited them while some were hidden: those left hidden are the originals.

        :param column: The name of the column that holds them, by which they may be hidden, too.
        :raises Invalid: for a text of which a part is still hidden and another part was changed, for a change by which
            an original value would no longer be hidden, and for a value that is nested too deeply. Nothing else is
            raised.
        """
        if not self.hides_anything:
            return typed
        restored = restore(typed, original, self.column(column, original))
        check_still_hidden(typed, restored, self.column(column, restored))
        return restored

    @property
    def _hider(self) -> Hider:
        return _hider(self.keys, self.patterns)

    def _field(self, row: Model, name: str, value: Json) -> Json:
        if isinstance(row, StateValue):
            return self.named(row.key, value)
        if isinstance(row, ToolCall) and name == "tool":
            return self.tool(value)
        if isinstance(row, Message) and name == "text":
            return self.message(vars(row).get("role", Message.Role.TOOL), value)
        return self.column(_FIELD_OF.get(name, name), value)

    def _inside(self, value: Json) -> Json:
        """All values in it hidden, and its form as it is: pages rely on that of a column."""
        if isinstance(value, dict):
            return {self.text(key): HIDDEN if item else item for key, item in value.items()}
        return [self._inside(item) if isinstance(item, dict) else HIDDEN for item in value]


@lru_cache(maxsize=64)
def _hider(keys: frozenset[str], patterns: tuple[str, ...]) -> Hider:
    return Hider(HiddenNames(keys), [HiddenPattern(pattern) for pattern in patterns])


def _or_hidden(hide: Callable[[Json], Json], value: Json) -> Json:
    """What ``hide`` makes of the value. If that fails, all of the value is hidden: no page may fail with one value."""
    try:
        return hide(value)
    except Exception as error:
        # The error's own text might quote the value.
        _LOGGER.error("A value is hidden whole, because masking it failed with %s.", type(error).__name__)
        return HIDDEN
