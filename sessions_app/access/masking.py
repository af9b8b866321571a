"""Hiding values that not every member of staff may read: by the names of keys, and by patterns in texts.

Which those are is configured: AGENTSTATE_MASK_KEYS and AGENTSTATE_MASK_PATTERNS. They are hidden from everybody. A
person with the permission `reveal_values` may ask to see them, which `sessions_app.actions.reveal` writes into the
audit trail. Every page and file that shows values of a session sends them through a `Mask`.

Hiding is a matter of showing only: agents, tools and the database work with the values themselves, and no row that was
read from the database is changed.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from django.conf import settings
from django.db.models import Model

from agentstate.names import TYPE_TAG
from sessions_app.access.errors import Invalid
from sessions_app.access.masked_copy import masked_copy
from sessions_app.models import (
    Approval,
    Branch,
    BulkAction,
    BulkItem,
    Checkpoint,
    Event,
    InboxMessage,
    Message,
    ModelCall,
    RegisteredAgent,
    SavedView,
    Session,
    StateValue,
    ToolCall,
)

Json = Any
Row = TypeVar("Row", bound=Model)
HIDDEN = "••••"
# The fields of each model that may hold a hidden value. A state value is hidden by the name of its key, too.
_MASKED_FIELDS: dict[type[Model], tuple[str, ...]] = {
    Approval: ("arguments", "edited", "message"),
    Branch: ("reason", "left_state"),
    BulkAction: ("reason",),
    BulkItem: ("why",),
    Checkpoint: ("outcome",),
    Event: ("reason", "data"),
    InboxMessage: ("text",),
    Message: ("text", "body"),
    ModelCall: ("side_replies", "error"),
    RegisteredAgent: ("problem",),
    SavedView: ("name",),
    Session: ("title", "customer", "why", "error", "final_answer", "exit_reason", "inputs"),
    StateValue: ("value",),
    ToolCall: ("arguments", "sent", "result", "error", "state", "small", "beginning"),
}
# Annotations of `history.call_rows` that hold the result or a part of it.
_FIELD_OF = {"small": "result", "beginning": "result"}
# A value in a text: quoted (the quotes themselves may be escaped), or else to the end of the line or the list.
_VALUE = re.compile(
    r"""\\"[\s\S]*?(?:\\"|$)|'(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?|(?:[^\n,;&})\]"']|,(?=\S))+"""
)
_JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Mask:
    """What is hidden: values under some names of keys, and what matches patterns. The empty mask hides nothing."""

    keys: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def configured(cls) -> Self:
        """What is hidden from everybody until they ask to see it."""
        return cls.of(settings.AGENTSTATE_MASK_KEYS, settings.AGENTSTATE_MASK_PATTERNS)

    @classmethod
    def of(cls, keys: Iterable[str], patterns: Iterable[str]) -> Self:
        """:raises re.error: for an invalid pattern."""
        return cls(frozenset(map(_normalized, keys)), tuple(map(re.compile, patterns)))

    @classmethod
    def none(cls) -> Self:
        """Hides nothing: for what has been revealed, for the command line, and for the search index."""
        return cls()

    @property
    def hides_anything(self) -> bool:
        return bool(self.keys or self.patterns)

    def text(self, text: str) -> str:
        """The text with what matches a pattern, and what follows the name of a hidden key, hidden.

        Such a name counts where ``:`` or ``=`` stands between it and the value, as in JSON within a text.
        """
        if not self.hides_anything or not text:
            return text
        # Names first: what a pattern takes out of a JSON text may leave no JSON.
        return self._without_matches(self._without_named_values(text) if self.keys else text)

    def json(self, value: Json) -> Json:
        """The same for plain JSON, however deep: the whole value of a hidden key, and patterns in every text."""
        if not self.hides_anything:
            return value
        if isinstance(value, dict):
            if value.get(TYPE_TAG) == "dict":
                # A mapping whose keys are not all text, stored as pairs.
                return {**value, "value": [self._pair(*pair) for pair in value["value"]]}
            return {
                self._without_matches(key): HIDDEN if self.hides_key(key) else self.json(item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.json(item) for item in value]
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            # A card number may be stored as a number.
            return HIDDEN if any(pattern.search(str(value)) for pattern in self.patterns) else value
        return value

    def named(self, name: str, value: Json) -> Json:
        """The value under this name: all of it is hidden if the name is a hidden key, unless it is empty."""
        return HIDDEN if value and self.hides_key(name) else self.json(value)

    def hides_key(self, name: str) -> bool:
        return _normalized(name) in self.keys

    def hides(self, value: Json) -> bool:
        """Whether anything in the value (JSON or text) is hidden: then there is something to reveal."""
        return self.hides_anything and self.json(value) != value

    def row(self, row: Row) -> Row:
        """A copy of the row for showing, with its values and those of its loaded related rows hidden. No query.

        The row itself stays as it is; where nothing is hidden, it is returned. See `masked_copy` for what the copy
        refuses.
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

    def restore(self, typed: Json, original: Json) -> Json:
        """The values that a person meant who edited them while some were hidden: those left hidden are the originals.

        :raises Invalid: for a text of which a part is still hidden and another part was changed.
        """
        if not self.hides_anything:
            return typed
        return self._restore(typed, original, self.json(original))

    def _restore(self, typed: Json, original: Json, shown: Json) -> Json:
        if typed == shown:
            return original
        if isinstance(typed, dict) and isinstance(original, dict) and isinstance(shown, dict):
            return {
                _refuse_hidden(key): self._restore(item, original[key], shown[key])
                if key in original and key in shown
                else _refuse_hidden(item)
                for key, item in typed.items()
            }
        if isinstance(typed, list) and isinstance(original, list) and isinstance(shown, list):
            if len(typed) == len(original):
                return [self._restore(*items) for items in zip(typed, original, shown, strict=True)]
            return [_original_item(item, original, shown) for item in typed]
        return _refuse_hidden(typed)

    def _field(self, row: Model, name: str, value: Json) -> Json:
        return self.named(row.key if isinstance(row, StateValue) else _FIELD_OF.get(name, name), value)

    def _pair(self, key: Json, item: Json) -> Json:
        return [self.json(key), HIDDEN if isinstance(key, str) and self.hides_key(key) else self.json(item)]

    def _without_matches(self, text: str) -> str:
        for pattern in self.patterns:
            text = pattern.sub(lambda match: HIDDEN if match.group() else "", text)
        return text

    def _without_named_values(self, text: str) -> str:
        pieces: list[str] = []
        place = 0
        for name in _name_pattern(self.keys).finditer(text):
            if name.start() < place:
                continue
            start = name.end()
            end = _end_of_value(text, start)
            if end > start:
                quote = text[start] if text[start] in "'\"" else ""
                pieces += [text[place:start], quote, HIDDEN, quote]
                place = end
        return "".join([*pieces, text[place:]])


def _normalized(key: str) -> str:
    """``iban``, ``IBAN`` and ``I-Ban`` are the same name."""
    return re.sub(r"[\s_-]+", "", key).casefold()


def _name_pattern(keys: frozenset[str]) -> re.Pattern[str]:
    names = "|".join(r"[\s_-]?".join(map(re.escape, key)) for key in sorted(keys, key=len, reverse=True))
    return re.compile(rf"(?<![\w-])(?:{names})\\?[\"']?\s*[:=]\s*", re.IGNORECASE)


def _end_of_value(text: str, start: int) -> int:
    """Where the value that begins at ``start`` ends. In doubt, more is hidden rather than less."""
    try:
        value, end = _JSON.raw_decode(text, start)
    except ValueError:
        # Cut off, or not JSON: where it ends is unknown, so nothing that follows is shown.
        if text.startswith(("{", "["), start):
            return len(text)
    else:
        if isinstance(value, dict | list | str) or not text[end:] or text[end] in ",}]\n":
            return end
    match = _VALUE.match(text, start)
    return match.end() if match else start


def _original_item(item: Json, original: Sequence[Json], shown: Sequence[Json]) -> Json:
    """The original of an item in a list that has become longer or shorter, if only one can be meant."""
    candidates = [value for value, masked in zip(original, shown, strict=True) if masked == item]
    same = candidates and all(value == candidates[0] for value in candidates)
    return candidates[0] if same else _refuse_hidden(item)


def _refuse_hidden(typed: Json) -> Json:
    """The value as typed.

    :raises Invalid: if a part of it is still hidden.
    """
    if HIDDEN in json.dumps(typed, ensure_ascii=False):
        raise Invalid(
            f"A hidden value ({HIDDEN}) cannot be changed in part. Write the whole of it, or leave it."
        )
    return typed
