"""What a call is given from the State, as a person reads it beside the arguments. No queries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sessions_app.desk.pages.arguments import label
from sessions_app.desk.pages.formats import formatted
from sessions_app.wording import as_text


@dataclass(frozen=True, slots=True)
class FromState:
    """An argument by its title, with its value by the policy's format; ``is_absent``: the State had none."""

    label: str
    text: str
    is_absent: bool = False


def shown(tool: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[FromState, ...]:
    """
    :param tool: As its agent's workers published it.
    :param values: By argument, masked: see `sessions_app.history.from_state`.
    """
    formats: Mapping[str, str] = (tool.get("policy") or {}).get("formats") or {}
    return tuple(
        [
            FromState(
                label(name, tool.get("parameters") or {}),
                "" if value is None else _text(value, formats.get(name, "")),
                value is None,
            )
            for name, value in values.items()
        ]
    )


def _text(value: Any, format: str) -> str:
    return formatted(value, format) if format else as_text(value)
