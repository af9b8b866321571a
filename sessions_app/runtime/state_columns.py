"""What a request for approval shows of the State, as columns of its row.

A large value is masked for good before it is cut off: what is cut off in its middle may match no pattern any more. One
that would take long to be masked, with the session's row locked, is told by its size alone.
"""

from typing import Any

from agentstate.durable.shown_state import FromState
from agentstate.durable.state_excerpts import excerpt, size_of
from sessions_app.access.masking import Mask

Json = Any
# Characters of a value of which the beginning is stored.
MOST_MASKED = 200_000


def columns(arguments: FromState | None) -> dict[str, Json]:
    """The columns of `Approval`. An argument for which the State has no value has a digest only."""
    if arguments is None:
        return {"from_state": None, "from_state_digests": None}
    values: dict[str, dict[str, Json]] = {}
    for name, argument in arguments.items():
        if argument.digest:
            values.setdefault(argument.key, {})[name] = _shown(argument.key, name, argument.value)
    digests = {name: {"key": argument.key, "digest": argument.digest} for name, argument in arguments.items()}
    return {"from_state": values, "from_state_digests": digests}


def _shown(key: str, name: str, value: Json) -> Json:
    size = size_of(value)
    if excerpt(value) is value:
        return value
    if size > MOST_MASKED:
        return f"({size:,} characters)"
    mask = Mask.configured()
    return excerpt(mask.named(key, mask.named(name, value)))
