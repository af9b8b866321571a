"""How a value from the State is shown with a request for approval: a large one by its beginning. Pure Python."""

import json
from typing import Any

from agentstate.durable.shown_state import FromState
from agentstate.durable.state.tags import without_tags

Json = Any
# Characters of a value that are stored with the request.
MOST_SHOWN = 2_000


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
