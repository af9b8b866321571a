"""The arguments that a tool is given from the State (`inputs_from_state`) besides those that the model asked for.

Haystack adds them when a call runs, so an earlier call of the same step may change them. A person who approves a call
is shown them as they are then, and an approved call runs with those that were there before its step's calls began.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentstate.durable.state.encoding import encode_lossy

if TYPE_CHECKING:
    from haystack.components.agents.state import State

Json = Any


def from_state(state: "State | None", tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What the tool would be given now besides these arguments.

    :param state: That of the step; None before its tools are known.
    """
    if state is None:
        return {}
    keys = next((each.inputs_from_state for each in state.data["tools"] if each.name == tool), None) or {}
    return {name: state.get(key) for key, name in keys.items() if name not in arguments and state.has(key)}


def without_unchanged(
    state: "State | None", tool: str, edited: dict[str, Json], asked: Mapping[str, Any]
) -> dict[str, Json]:
    """The arguments that a person has edited, without those from the State that the person left as they are.

    :param asked: The model's.
    """
    given, _ = encode_lossy(from_state(state, tool, asked))
    return {name: value for name, value in edited.items() if name not in given or value != given[name]}
