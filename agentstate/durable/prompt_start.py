"""Whether the calls of a reply may be recorded as started by the commit of the reply itself, which saves a commit each.

They may where nothing can come between the reply and the tools: no hook of the user's, no approval, no cached answer,
no breakpoint of the run. The journal has the last word (`Journal.reply`), since it knows what people have requested. A
process that dies between that commit and the tool leaves a call in doubt that did not run; see docs/promises.md.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from haystack.components.agents import tool_calling
from haystack.dataclasses import ToolCall
from haystack.tools import Tool
from haystack.tools.utils import flatten_tools_or_toolsets

if TYPE_CHECKING:
    from agentstate.durable.run_context import RunContext


def may_start_with_reply(run: "RunContext", calls: Sequence[ToolCall], offered: Any) -> bool:
    """
    :param calls: All calls that the reply asks for.
    :param offered: The tools as the model was given them.
    """
    if len(calls) > run.starts_at_once or run.own_breakpoints or run.calls:
        return False
    tools = {tool.name: tool for tool in flatten_tools_or_toolsets(offered)}
    return all(
        call.tool_name in tools and _may_start(run, tools[call.tool_name], alone=len(calls) == 1)
        for call in calls
    )


def _may_start(run: "RunContext", tool: Tool, *, alone: bool) -> bool:
    policy = run.policy(tool.name)
    if policy.approval or policy.cache_ttl is not None:
        return False
    # Of several calls, those that share values of the State run one after the other.
    return alone or not _uses_state(tool)


def _uses_state(tool: Tool) -> bool:
    """As Haystack finds out which calls it runs one after the other."""
    if type(tool) is not Tool:
        return True
    reads, writes = tool_calling._state_io_for_call(tool, {})
    return bool(reads) or bool(writes)
