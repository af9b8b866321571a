"""Hidden values in JSON: the values of hidden keys, records of a name and a value, pairs, tables, and texts.

- An object of which a field `name`, `key`, `field` or `label` (or one whose last word that is) holds a hidden name, as
  text of at most 60 characters, hides all its other values.
- In each list of two within a list, ``[["iban", "DE89"]]``, the second item is hidden where the first is a hidden name;
  in a list of lists, the columns whose names in the first list are hidden.

Type tags count as plain data, whether or not they are well-formed.
"""

import re
from collections.abc import Sequence
from typing import Any

from agentstate.names import TYPE_TAG
from sessions_app.access.hiding import documents
from sessions_app.access.hiding.names import HiddenNames
from sessions_app.access.hiding.patterns import HiddenPattern
from sessions_app.access.hiding.records import NAMING_FIELD
from sessions_app.access.hiding.text import hidden_spans
from sessions_app.access.typed import JSON_DEPTH

Json = Any
HIDDEN = "••••"
_NAMING_FIELD = re.compile(rf"{NAMING_FIELD}\Z")
_LONGEST_NAME = 60


class Hider:
    """Hides values in texts and JSON.

    :param names: The names of hidden keys.
    :param patterns: What is hidden wherever it stands.
    """

    def __init__(self, names: HiddenNames, patterns: Sequence[HiddenPattern]) -> None:
        self.names = names
        self._patterns = patterns

    def text(self, text: str, depth: int = 0) -> str:
        """The text with all that is hidden in it replaced. One that is JSON as a whole is read as JSON too."""
        if depth < JSON_DEPTH and (self.names or self._patterns):
            text = documents.masked(text, lambda value: self.json(value, depth))
        pieces: list[str] = []
        place = 0
        for start, end in hidden_spans(text, self.names, self._patterns):
            pieces += [text[place:start], HIDDEN]
            place = end
        return "".join([*pieces, text[place:]]) if place else text

    def json(self, value: Json, depth: int = 0) -> Json:
        """The value with all that is hidden in it replaced; what is nested too deeply is hidden whole."""
        if isinstance(value, str):
            return self.text(value, depth + 1)
        if isinstance(value, dict | list | tuple):
            if depth >= JSON_DEPTH:
                return HIDDEN
            return self._object(value, depth + 1) if isinstance(value, dict) else self._list(value, depth + 1)
        if isinstance(value, int | float) and not isinstance(value, bool):
            # A card number may be stored as a number.
            return HIDDEN if any(pattern.spans(str(value)) for pattern in self._patterns) else value
        return value

    def _object(self, value: dict[str, Json], depth: int) -> dict[str, Json]:
        if value.get(TYPE_TAG) == "dict" and isinstance(pairs := value.get("value"), list):
            # A mapping whose keys are not all text.
            return {
                **self._object({**value, "value": None}, depth),
                "value": self._list(pairs, depth + 1, False),
            }
        is_record = any(self._names_record(key, item) for key, item in value.items())
        return {
            self.text(key): HIDDEN
            if self.names.hides(key) or (is_record and not self._names_record(key, item))
            else self.json(item, depth)
            for key, item in value.items()
        }

    def _names_record(self, key: str, item: Json) -> bool:
        return (
            isinstance(item, str)
            and len(item) <= _LONGEST_NAME
            and _NAMING_FIELD.search(key) is not None
            and self.names.hides(item)
        )

    def _list(self, value: Sequence[Json], depth: int, may_have_head: bool = True) -> list[Json]:
        items = [self.json(item, depth) for item in value]
        if not self.names or not value:
            return items
        head = value[0] if may_have_head and isinstance(value[0], list | tuple) else []
        columns = {column for column, name in enumerate(head) if self._is_name(name)}
        for place, (row, shown) in enumerate(zip(value, items, strict=True)):
            if not isinstance(row, list | tuple) or isinstance(shown, str):
                continue
            if len(row) == 2 and self._is_name(row[0]):
                shown[1] = HIDDEN
            if place > 0:
                shown[:] = [HIDDEN if column in columns else item for column, item in enumerate(shown)]
        return items

    def _is_name(self, value: Json) -> bool:
        return isinstance(value, str) and len(value) <= _LONGEST_NAME and self.names.hides(value)
