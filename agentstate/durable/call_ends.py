"""Records how a tool call ended: at once, or, for a tool whose results are redacted, when the user's hooks have run.

Of a call with `ToolPolicy(redacted=True)` only what the `after_tool` hooks left in the conversation is ever stored.
Until then the call counts as started: if the run ends before, it is in doubt, or runs again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from haystack.dataclasses import ChatMessage, ToolCallResult
from haystack.tools import Tool

from agentstate.domain.phases import AgentPhase
from agentstate.durable import tool_outputs
from agentstate.durable.records import CallEnd, CallRecord
from agentstate.durable.run_context import RunContext
from agentstate.durable.state.encoding import clean_text
from agentstate.names import ENDED_CALL_STATES, CallState

# What is stored of a failure that ended the turn, so that no hook has seen it.
NOT_STORED = "Tool `{tool}` failed. What it said is not stored, since the tool's results are redacted."


class NotRedactable(ValueError):
    """A tool whose results cannot be redacted, since they go elsewhere than into the conversation."""


@dataclass(frozen=True, slots=True)
class WithheldEnd:
    """How a call ended, without what it returned."""

    record: CallRecord
    tool: Tool
    end: CallEnd
    started: datetime | None


def record_end(
    run: RunContext, record: CallRecord, tool: Tool, end: CallEnd, started: datetime | None
) -> None:
    """Commit the end of the call. For a tool whose results are redacted that is left to `record_what_hooks_left`."""
    if run.policy(tool.name).redacted:
        with run.lock:
            run.withheld.append(WithheldEnd(record, tool, replace(end, result=None, error=""), started))
    else:
        _commit(run, record, end, started)


def record_what_hooks_left(run: RunContext, messages: Sequence[ChatMessage]) -> None:
    """Commit the ends of the calls that were withheld, with what the conversation now holds of their results."""
    withheld, run.withheld = run.withheld, []
    if not withheld:
        return
    results = {result.origin.id: result for message in messages for result in message.tool_call_results}
    for call in withheld:
        result = results.get(call.record.call_id)
        if call.end.status == CallState.FAILED:
            end = replace(call.end, error=clean_text(str(result.result)) if result is not None else "")
        else:
            end = replace(call.end, result=_stored(call.tool, result))
        _commit(run, call.record, end, call.started)


def record_unseen_failure(run: RunContext, position: int | None) -> str | None:
    """Commit that the call at the position failed, where its failure ends the turn before any hook has seen it.

    :returns: What may be told of the failure; None if that is not so.
    """
    call = next((call for call in run.withheld if call.record.position == position), None)
    if call is None:
        return None
    run.withheld.remove(call)
    told = NOT_STORED.format(tool=call.tool.name)
    _commit(run, call.record, replace(call.end, error=told), call.started)
    return told


def check_redactable(tool: Tool) -> None:
    """:raises NotRedactable: for a tool of which more is kept than one text in the conversation."""
    where = "the State (outputs_to_state)" if tool.outputs_to_state else ""
    if not where and tool_outputs.has_several(tool):
        where = "several outputs (outputs_to_string)"
    if where:
        raise NotRedactable(
            f"The results of the tool {tool.name!r} cannot be redacted, since they go to {where} too. Leave "
            "`redacted` out of its policy, or return what may be kept."
        )


def _stored(tool: Tool, result: ToolCallResult | None) -> Any:
    """What a replay delivers, such that the model is shown again what the hooks left."""
    return tool_outputs.encode_shown(tool, result.result if result is not None else "")


def _commit(run: RunContext, record: CallRecord, end: CallEnd, started: datetime | None) -> None:
    with run.lock:
        run.meter.add("tool_calls", 1)
        if started is not None:
            run.meter.add("tool_seconds", max(0.0, (end.ended_at - started).total_seconds()))
        if end.cached or end.status == CallState.FAILED:
            run.meter.add("cached" if end.cached else "tool_errors", 1)
        run.progressed = True
        run.update_call(record, status=end.status, result=end.result, error=end.error, state=end.state)
        if all(call.status in ENDED_CALL_STATES for call in run.calls.values()):
            run.to(AgentPhase.REFLECTING)
        run.signals = run.journal.finish_call(record.position, end, run.meter.progress())
