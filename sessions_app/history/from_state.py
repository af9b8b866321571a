"""What a request for approval shows of the State: by argument, as it was masked. No queries.

It is stored by the State's key and the argument, of which a mask may hide one or the other, with a digest of each
value: see `agentstate.durable.shown_state`.
"""

from collections.abc import Mapping
from typing import Any

from agentstate.durable.shown_state import digest
from agentstate.durable.state.tags import without_tags
from agentstate.durable.state_excerpts import MOST_SHOWN, excerpt, size_of
from sessions_app.access.masking import HIDDEN, Mask
from sessions_app.models import Approval, ToolCall

Json = Any
# Characters of a value of which the beginning is stored.
MOST_MASKED = 25 * MOST_SHOWN


def of_request(approval: Approval) -> dict[str, Json]:
    """The values by argument, without type tags; None where the State had none. Empty where it takes nothing of it.

    In the order of their names, since PostgreSQL has one of its own.
    """
    values = approval.from_state if isinstance(approval.from_state, dict) else {}
    shown: dict[str, Json] = {}
    for name, taken in sorted((approval.from_state_digests or {}).items()):
        of_key = values.get(taken["key"])
        value = of_key.get(name, HIDDEN) if isinstance(of_key, dict) else HIDDEN
        shown[name] = without_tags(value) if taken["digest"] else None
    return shown


def of_call(call: ToolCall) -> dict[str, Json]:
    """The same for a call; empty for one whose request was not loaded."""
    approval = call._state.fields_cache.get("approval")
    return of_request(approval) if approval is not None else {}


def as_shown(key: str, name: str, value: Json) -> Json:
    """What is stored of a value: a large one is masked for good before it is cut off, since what is cut off in its
    middle may match no pattern any more. Masking takes long: of a value that is larger still, the size is told.

    :param value: As the State stores it.
    """
    size = size_of(value)
    if size <= MOST_SHOWN:
        return value
    if size > MOST_MASKED:
        return f"({size:,} characters)"
    mask = Mask.configured()
    return excerpt(mask.named(key, mask.named(name, value)))


def set_values(approval: Approval, state: Mapping[str, Json]) -> None:
    """Let the request show these values in the place of those that it took from the same keys. It is not saved.

    :param state: By key, as the State stores them.
    """
    values = approval.from_state if isinstance(approval.from_state, dict) else {}
    approval.from_state = values
    for name, taken in (approval.from_state_digests or {}).items():
        key = taken["key"]
        if key in state:
            taken["digest"] = digest(state[key])
            of_key = values.get(key)
            others = of_key if isinstance(of_key, dict) else {}
            values[key] = {**others, name: as_shown(key, name, state[key])}
