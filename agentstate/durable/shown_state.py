"""What a request for approval shows of the State: arguments that the tool is given besides those of the model.

Pure Python, so that whoever stores or shows a request needs no Haystack.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentstate.durable.state.tags import without_tags

Json = Any
# Characters of a value that are stored with the request.
MOST_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class StateArgument:
    """An argument that a tool is given from the State.

    `key` is the State's. `value` is encoded by `encode_lossy`. `digest` tells whether the tool is given the same value
    later; it is "" where the State has none, as for a value of None.
    """

    key: str
    digest: str
    value: Json = None


# By the names of the arguments; None for a tool that takes none from the State, and where that was not recorded.
FromState = Mapping[str, StateArgument]


def digests(arguments: FromState | None) -> dict[str, str]:
    return {name: argument.digest for name, argument in (arguments or {}).items()}


def size_of(value: Json) -> int:
    """The characters that the value takes where it is stored."""
    return len(json.dumps(value, ensure_ascii=False))


def excerpt(value: Json) -> Json:
    """What is stored of the value: the beginning of its text, if it is longer than `MOST_SHOWN`."""
    if size_of(value) <= MOST_SHOWN:
        return value
    text = value if isinstance(value, str) else json.dumps(without_tags(value), ensure_ascii=False)
    return f"{text[:MOST_SHOWN]}… ({len(text):,} characters in all)"


def values_of(arguments: FromState | None) -> dict[str, Json]:
    """The values that were shown, as plain JSON; without the arguments for which the State has none."""
    return {
        name: without_tags(argument.value) for name, argument in (arguments or {}).items() if argument.digest
    }
