"""Records tool calls that a user's `before_tool` hook has added as planned, like the calls that the model requested.

A call without a usable id gets one. A hook that runs again in a resumed step may give the same call another id: such a
call is known by its tool and arguments, and keeps the id that is on record, with the decisions about it.
"""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.dataclasses import ToolCall

from agentstate.durable.call_ids import is_usable_id, new_call_id
from agentstate.durable.records import NewCall
from agentstate.durable.run_context import RunContext
from agentstate.durable.state.chat_messages import with_calls
from agentstate.durable.state.encoding import encode_lossy
from agentstate.durable.state.keys import same_json


def plan_added_calls(run: RunContext, state: State) -> None:
    """Commit the calls of the last message that are not on record, and give each call an id of its own."""
    messages = state.data.get("messages") or []
    calls = messages[-1].tool_calls if messages else []
    ids = {call.id for call in calls}
    if len(ids) == len(calls) and run.calls.keys() >= ids:
        return
    calls_with_ids = _with_recorded_ids(run, calls)
    added = [call for call in calls_with_ids if run.call(call.id) is None]
    if added:
        planned = run.journal.plan([NewCall(call.id or "", call.tool_name, _encoded(call)) for call in added])
        run.calls.update({record.call_id: record for record in planned})
    if [call.id for call in calls_with_ids] != [call.id for call in calls]:
        renamed = with_calls(messages[-1], calls_with_ids)
        state.set("messages", [*messages[:-1], renamed], handler_override=replace_values)


def _with_recorded_ids(run: RunContext, calls: list[ToolCall]) -> list[ToolCall]:
    """The calls, each with an id of its own: that on record, where there is one."""
    used: set[str | None] = set()
    are_recorded = []
    for call in calls:
        are_recorded.append(run.call(call.id) is not None and call.id not in used)
        if are_recorded[-1]:
            used.add(call.id)
    result = []
    for call, is_recorded in zip(calls, are_recorded, strict=True):
        call_id = call.id if is_recorded else _id_of_added_call(run, call, used)
        used.add(call_id)
        result.append(call if call.id == call_id else replace(call, id=call_id))
    return result


def _id_of_added_call(run: RunContext, call: ToolCall, used: Container[str | None]) -> str:
    recorded = _recorded_id(run, call, used)
    if recorded is not None:
        return recorded
    is_free = is_usable_id(call.id) and call.id not in used and run.call(call.id) is None
    return str(call.id) if is_free else new_call_id()


def _recorded_id(run: RunContext, call: ToolCall, used: Container[str | None]) -> str | None:
    """The id of an equal call on record that no call of the message has; None if there is none."""
    arguments = _encoded(call)
    return next(
        (
            record.call_id
            for record in run.calls.values()
            if record.call_id not in used
            and record.tool == call.tool_name
            and same_json(record.arguments, arguments)
        ),
        None,
    )


def _encoded(call: ToolCall) -> dict[str, Any]:
    encoded: dict[str, Any] = encode_lossy(call.arguments)[0]
    return encoded
