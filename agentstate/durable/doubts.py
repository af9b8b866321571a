"""Calls in doubt: they were started and did not end, and their tool may not be run again automatically."""

from collections.abc import Callable, Iterable, Mapping

from haystack.tools import Tool

from agentstate.durable import nested_agents
from agentstate.durable.records import CallRecord
from agentstate.durable.run_end import InDoubt, were_late, were_started
from agentstate.names import CallState


def in_doubt(
    calls: Iterable[CallRecord],
    may_run_again: Callable[[str], bool],
    *,
    tools: Mapping[str, Tool] | None = None,
    also: str = "",
) -> InDoubt | None:
    """The end of a run that meets calls in doubt; None where there are none.

    :param may_run_again: Whether an interrupted call of the tool runs again without a person.
    :param tools: Those at hand, by name: an agent inside a tool has effects of its own.
    :param also: What keeps the session from running besides, as sentences for people.
    """
    doubts = [
        call
        for call in calls
        if call.status in (CallState.STARTED, CallState.DOUBT) and not may_run_again(call.tool)
    ]
    if not doubts:
        return None
    names = sorted({call.tool for call in doubts})
    notes = "".join(nested_agents.doubt_note((tools or {}).get(name)) for name in names)
    return InDoubt(
        why=f"{were_started(names)} or may not have taken effect.{notes}{f' {also}' if also else ''}",
        calls=tuple(call.position for call in doubts),
    )


def late(calls: Mapping[int, tuple[Tool, str]]) -> InDoubt:
    """The end of a run of which one or more calls exceeded their time limits and may have taken effect.

    :param calls: By their positions, the tool of each, and a sentence that says what its limit was.
    """
    tools = {tool.name: tool for tool, _ in calls.values()}
    notes = "".join(nested_agents.doubt_note(tools[name]) for name in sorted(tools))
    sentences = [sentence for _, sentence in calls.values()]
    return InDoubt(
        why=f"{were_late(sentences)} or may not have taken effect.{notes}", calls=tuple(sorted(calls))
    )
