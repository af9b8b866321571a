"""Finds which state keys changed since the last commit, and how: a new value, or items added to a list.

Items that cannot change in place are encoded once; a growing list costs what is added to it.
"""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from haystack.dataclasses import ChatMessage, Document

from agentstate.durable.state.encoding import Json, decode, encode_marked
from agentstate.durable.state.tags import stand_ins

logger = logging.getLogger(__name__)

# Live objects, and what a checkpoint holds elsewhere: never stored as state keys.
NOT_KEYS = frozenset({
    "messages", "tools", "hook_context", "stop_run", "continue_run",
    "step_count", "token_usage", "context_tokens", "tool_call_counts", "exit_reason",
})  # fmt: skip
COUNTERS = ("step_count", "token_usage", "context_tokens", "tool_call_counts")
_REASONS = ("stop_run", "exit_reason")
# A tool that is given the State may stop the run.
_NOT_SET_BY_TOOLS = NOT_KEYS - {"stop_run"}


def counters_of(data: Mapping[str, Any], *, ends_turn: bool) -> dict[str, Any]:
    """The counters of a checkpoint. Within a turn also why the run stops, or went on, which hooks may read and set."""
    reasons = {} if ends_turn else {name: data[name] for name in _REASONS if data.get(name) is not None}
    return {**{name: data.get(name) for name in COUNTERS}, **reasons}


@dataclass(slots=True)
class _Known:
    live: Any
    data: Json


class StateKeys:
    """What is known to be stored of the State's keys, by key: the live value, and its encoded form."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._told: set[tuple[str, str]] = set()

    def start_from(self, state: Mapping[str, Json]) -> dict[str, Any]:
        """Take the stored values as known, and return them decoded."""
        values = {key: decode(data) for key, data in state.items()}
        self._known = {key: _Known(_copied(values[key]), data) for key, data in state.items()}
        return values

    def changes(self, data: Mapping[str, Any]) -> tuple[dict[str, Json], dict[str, "_Known"]]:
        """The changed keys as in `NewCheckpoint.state`, and what to give to `committed` once they are stored."""
        changes: dict[str, Json] = {}
        changed: dict[str, _Known] = {}
        for key, value in data.items():
            if key in NOT_KEYS or (value is None and key not in self._known):
                continue
            stored = self._known.get(key)
            if stored is not None and stored.live is value and stable(value):
                continue
            encoded = self._encode(key, value, stored)
            change = difference(stored.data, encoded) if stored is not None else {"set": encoded}
            if change is not None:
                changes[key] = change
                changed[key] = _Known(_copied(value), encoded)
        return changes, changed

    def newly_lost(self, changes: Mapping[str, Json]) -> dict[str, str]:
        """Of the changes those that cannot be stored as they are, and had nothing of the kind: key and type."""
        lost = {}
        for key in {key for key, _ in self._told} & changes.keys():
            before = stand_ins(self._known[key].data) if key in self._known else []
            if new := [name for name in stand_ins(changes[key]) if name not in before]:
                lost[key] = new[0]
        return lost

    def committed(self, changed: Mapping[str, "_Known"]) -> None:
        self._known.update(changed)

    def encoded(self, data: Mapping[str, Any]) -> dict[str, Json]:
        """All keys, encoded: to find what a tool that was given the live State has changed."""
        return {
            key: self._encode(key, value, self._known.get(key))
            for key, value in data.items()
            if key not in _NOT_SET_BY_TOOLS
        }

    def _encode(self, key: str, value: Any, stored: "_Known | None") -> Json:
        if (
            type(value) is list
            and stored is not None
            and type(stored.live) is list
            and isinstance(stored.data, list)
        ):
            same = 0
            for item, before in zip(value, stored.live, strict=False):
                if item is not before or not stable(item):
                    break
                same += 1
            return stored.data[:same] + [self._marked(key, item) for item in value[same:]]
        return self._marked(key, value)

    def _marked(self, key: str, value: Any) -> Json:
        """The value as it is stored. What cannot be is told once in the log: the run has it, one that continues not."""
        data, lost_type = encode_marked(value)
        if lost_type and (key, lost_type) not in self._told:
            self._told.add((key, lost_type))
            logger.warning(
                "The State key %r holds a %s, which cannot be stored: a run that continues this session has its text "
                "or its plain data instead.",
                key,
                lost_type,
            )
        return data


def difference(before: Json, after: Json) -> dict[str, Json] | None:
    """How `before` became `after`: None, {"extend": items} or {"set": value}."""
    if (
        isinstance(before, list)
        and isinstance(after, list)
        and len(after) >= len(before)
        and same_json(before, after[: len(before)])
    ):
        return {"extend": after[len(before) :]} if len(after) > len(before) else None
    return None if same_json(before, after) else {"set": after}


def apply(current: Json, change: Mapping[str, Json]) -> Json:
    """The encoded value after a change."""
    if "extend" in change:
        return [*(current or []), *change["extend"]]
    return change["set"]


def stable(value: Any) -> bool:
    """Whether the value does not change in place, so that the same object means the same content."""
    return (
        value is None
        or isinstance(value, str | int | float | bool | bytes | Document | ChatMessage | datetime)
        or (
            dataclasses.is_dataclass(value)
            and not isinstance(value, type)
            and value.__dataclass_params__.frozen  # type: ignore[attr-defined]
        )
    )


def same_json(before: Json, after: Json) -> bool:
    """Whether two stored values are the same: 1, 1.0 and True are not; the order of keys does not count."""
    if type(before) is not type(after):
        return False
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(same_json(before[key], after[key]) for key in before)
    if isinstance(before, list):
        return len(before) == len(after) and all(map(same_json, before, after))
    return bool(before == after)


def _copied(value: Any) -> Any:
    """The list's items as they are now: the list itself may grow in place."""
    return list(value) if type(value) is list else value
