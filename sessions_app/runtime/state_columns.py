"""What a request for approval shows of the State, as columns of its row.

Masking a large value takes long, so it is done before the session's row is locked.
"""

from dataclasses import replace
from typing import Any

from agentstate.durable.run_end import NeedsApproval, RunEnd
from agentstate.durable.shown_state import FromState, StateArgument
from sessions_app.history.from_state import as_shown

Json = Any


def with_excerpts(end: RunEnd) -> RunEnd:
    """The same end, with the excerpts of large values that its requests show. To be called before `columns`.

    The calls of a step may be given the same value, which is masked once.
    """
    if not isinstance(end, NeedsApproval) or not any(request.from_state for request in end.requests):
        return end
    made: dict[tuple[str, str, str], Json] = {}
    requests = [replace(each, from_state=_with_excerpts(each.from_state, made)) for each in end.requests]
    return replace(end, requests=tuple(requests))


def _with_excerpts(
    arguments: FromState | None, made: dict[tuple[str, str, str], Json]
) -> dict[str, StateArgument] | None:
    if arguments is None:
        return None
    shown = {}
    for name, argument in arguments.items():
        place = argument.key, name, argument.digest
        if place not in made:
            made[place] = as_shown(argument.key, name, argument.value)
        shown[name] = replace(argument, value=made[place])
    return shown


def columns(arguments: FromState | None) -> dict[str, Json]:
    """The columns of `Approval`. An argument for which the State has no value has a digest only."""
    if arguments is None:
        return {"from_state": None, "from_state_digests": None}
    values: dict[str, dict[str, Json]] = {}
    for name, argument in arguments.items():
        if argument.digest:
            values.setdefault(argument.key, {})[name] = argument.value
    digests = {name: {"key": argument.key, "digest": argument.digest} for name, argument in arguments.items()}
    return {"from_state": values, "from_state_digests": digests}
