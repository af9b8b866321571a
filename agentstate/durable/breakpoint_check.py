"""Whether a run stops at a breakpoint: asked before the model of each step, and before the calls of each step.

All calls of a step wait before the first of them starts. The place at which a session was stopped does not stop it
again: a resumed run goes on past it, also where it is killed, or its model fails, before it has done so.
"""

from collections.abc import Sequence

from agentstate.durable.breakpoints import Breakpoint, Place
from agentstate.durable.records import CallRecord
from agentstate.durable.run_context import RunContext
from agentstate.durable.run_end import AtBreakpoint
from agentstate.names import AGENT_GENERATOR, CallState, Decision


def before_model(run: RunContext) -> AtBreakpoint | None:
    """The end of the run, if a breakpoint stops it before the model of the step; a recorded reply is not asked for."""
    place = Place("model", run.step)
    if place == run.passed or run.recorded_reply(AGENT_GENERATOR, 0) is not None:
        return None
    breakpoints = tuple(breakpoint for breakpoint in _breakpoints(run) if not breakpoint.tool)
    return _stopped(place, breakpoints) if breakpoints else None


def before_tools(run: RunContext, pending: Sequence[CallRecord]) -> AtBreakpoint | None:
    """The end of the run, if a breakpoint stops it before one of the calls of the step that has not started."""
    place = Place("tools", run.step)
    if place == run.passed:
        return None
    waiting = [call for call in pending if call.status == CallState.PLANNED and not _is_refused(call)]
    breakpoints = tuple(
        breakpoint
        for breakpoint in _breakpoints(run)
        if any(breakpoint.stops(call.tool, call.run_arguments) for call in waiting)
    )
    calls = tuple(
        call.call_id
        for call in waiting
        if any(breakpoint.stops(call.tool, call.run_arguments) for breakpoint in breakpoints)
    )
    return _stopped(place, breakpoints, calls) if breakpoints else None


def _is_refused(call: CallRecord) -> bool:
    return call.approval is not None and call.approval.decision in (Decision.REJECTED, Decision.EXPIRED)


def _breakpoints(run: RunContext) -> tuple[Breakpoint, ...]:
    return run.own_breakpoints + run.signals.breakpoints


def _stopped(place: Place, breakpoints: tuple[Breakpoint, ...], calls: tuple[str, ...] = ()) -> AtBreakpoint:
    labels = " and ".join(dict.fromkeys(breakpoint.label for breakpoint in breakpoints))
    return AtBreakpoint(why=f"Breakpoint {labels}.", place=place, breakpoints=breakpoints, calls=calls)
