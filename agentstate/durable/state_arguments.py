"""What a call is given from the State (`inputs_from_state`) besides its arguments, and whether that was approved.

Haystack takes it from the State when the call runs, so an earlier call of the same step may change it after a person
has approved the call. The request for approval shows it, with a digest of each value; the ledger compares what the
approved call is given with these digests, and lets no call run with other values.

What Haystack itself keeps in the State (the conversation, its counters) is neither shown nor compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from haystack.components.agents import tool_calling
from haystack.components.agents.state import State
from haystack.dataclasses import ToolCall
from haystack.tools import Tool

from agentstate.durable.records import CallRecord
from agentstate.durable.shown_state import FromState, StateArgument, digest
from agentstate.durable.state.encoding import decode, encode_lossy, encode_marked
from agentstate.durable.state.keys import NOT_KEYS, apply
from agentstate.names import ENDED_CALL_STATES, CallState, Decision

Json = Any


def given(
    calls: Sequence[CallRecord], state: State, tools: Mapping[str, Tool]
) -> Iterator[tuple[CallRecord, State]]:
    """The calls of a step, in the order in which Haystack runs them, each with the State that it will be given.

    Some may have ended, and are to be replayed: what they have left in the State is there for the calls behind them.
    Nothing is copied, since some values cannot be: it is for a run that ends at once, whose State is not used any more,
    and a State is that of its call until the next one is asked for.
    """
    known = [call for call in calls if call.tool in tools]
    if not any(call.status in ENDED_CALL_STATES for call in known):
        yield from ((call, state) for call in known)
        return
    later = State(state.schema, {key: state.data[key] for key in state.data.keys() - NOT_KEYS})
    asked = [ToolCall(call.tool, call.run_arguments, id=call.call_id) for call in known]
    for batch in tool_calling._schedule_tool_calls(asked, [tools[call.tool] for call in known]):
        yield from ((known[index], later) for index in batch)
        for index in batch:
            _merge(known[index], tools[known[index].tool], later)


def _merge(call: CallRecord, tool: Tool, state: State) -> None:
    if call.status not in ENDED_CALL_STATES:
        return
    for key, change in (call.state or {}).items():
        state.data[key] = decode(apply(encode_marked(state.data.get(key))[0], change))
    if call.status == CallState.DONE:
        tool_calling._merge_tool_outputs_into_state(tool, decode(call.result), state)


def taken(tool: Tool | None, arguments: Mapping[str, Any], state: State) -> FromState | None:
    """What the tool would be given now besides these arguments; None for a tool that takes nothing from the State."""
    if tool is None or not tool.inputs_from_state:
        return None
    result = {}
    for name, keys in _keys(tool, arguments).items():
        # One that only ever was None is not stored: a run that continues has the next one.
        key = next((key for key in keys if state.data.get(key) is not None), keys[0])
        stored = _as_stored(state.data.get(key))
        result[name] = StateArgument(key, _digest(stored), encode_lossy(stored)[0])
    return result


def why_changed(tool: Tool, record: CallRecord, kwargs: Mapping[str, Any]) -> str:
    """Why the call must not run with these arguments, as a sentence for the model; "" if it may.

    :param kwargs: Those that the tool would be called with, the State's among them.
    """
    approval = record.approval
    if approval is None or approval.from_state is None or approval.decision != Decision.APPROVED:
        return ""
    shown = approval.from_state
    changed = [
        name
        for name in _keys(tool, record.run_arguments)
        if _digest(_as_stored(kwargs.get(name))) != (shown[name].digest if name in shown else "")
    ]
    if not changed:
        return ""
    earlier = " An earlier attempt may have taken effect." if record.attempt else ""
    return (
        f"{tool.name} was not run: what it takes from the State ({', '.join(changed)}) changed after the request was "
        f"approved.{earlier} Ask for the call again, so that it can be approved with what the State holds now."
    )


def _keys(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, list[str]]:
    """The arguments that the tool takes from the State unless they are among those given, each with the State's keys of
    which the first that is there is taken.
    """
    keys: dict[str, list[str]] = {}
    for key, name in (tool.inputs_from_state or {}).items():
        if name not in arguments:
            keys.setdefault(name, []).append(key)
    # Behind a key of Haystack's own, which always is there, no other one is taken.
    own = {name: [*takewhile(lambda key: key not in NOT_KEYS, of_name)] for name, of_name in keys.items()}
    return {name: of_name for name, of_name in own.items() if of_name}


def _as_stored(value: Any) -> Any:
    """The value as a run has it that continues in another process: only so can both give the same digest."""
    return decode(encode_marked(value)[0])


def _digest(stored: Any) -> str:
    """:param stored: From `_as_stored`."""
    return digest(encode_marked(stored)[0])
