"""What a request for approval showed of the State: by argument, as it was masked. No queries."""

from typing import Any

from agentstate.durable.state.tags import without_tags
from sessions_app.access.masking import HIDDEN
from sessions_app.models import Approval, ToolCall

Json = Any


def of_request(approval: Approval) -> dict[str, Json]:
    """The values by argument, without type tags; None where the State had none. Empty where it takes nothing of it.

    In the order of their names, since PostgreSQL has one of its own. A value is stored by the State's key and the
    argument, of which a mask may have hidden one or the other.
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
