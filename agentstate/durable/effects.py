"""Requests approval of calls that would follow an effect of their tool which the session's history does not show.

The journal is asked once about each call that may need approval, before the calls of the step run. The request for
approval shows the effects, and what the tool is given from the State. The journal looks for effects again when it
records the start of the call.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentstate.durable import state_arguments
from agentstate.durable.policy import fingerprint
from agentstate.durable.records import CallRecord, EarlierEffects
from agentstate.durable.run_context import RunContext, Suspended
from agentstate.durable.run_end import ApprovalRequest, NeedsApproval
from agentstate.durable.shown_state import digests
from agentstate.names import CallState, Decision


def suspend_for_approvals(run: RunContext, pending: list[CallRecord]) -> None:
    """
    :param pending: The calls of the step.
    :raises Suspended: if a call needs a person's approval.
    """
    decisions = []  # what people have to decide about
    failed_before = False
    for record in pending:
        earlier = _earlier_effects(run, record)
        if earlier is not None and earlier.needs_decision:
            decisions.append(earlier)
            run.request_approval(record, record.tool, record.run_arguments)
        elif _is_uncertain_attempt(run, record):
            failed_before = True
            run.request_approval(record, record.tool, record.run_arguments)
        elif (
            record.status == CallState.PLANNED
            and record.approval is not None
            and record.approval.decision == ""
        ):
            # An open request stands: the call must not run because another call of its step was decided.
            run.request_approval(record, record.tool, record.run_arguments)
        if earlier is not None:
            _show(run, record, earlier)
    if run.approval_requests:
        raise Suspended(_needs_approval(run, decisions, pending=pending, failed_before=failed_before))


def suspended_for(run: RunContext, record: CallRecord, earlier: EarlierEffects) -> Suspended:
    """Request approval of a call that was about to start when another session took effect.

    :returns: What ends the run.
    """
    with run.lock:
        run.request_approval(record, record.tool, record.run_arguments)
        _show(run, record, earlier)
        return Suspended(_needs_approval(run, [earlier]))


def _show(run: RunContext, record: CallRecord, earlier: EarlierEffects) -> None:
    """Let the request for the call's approval show these effects."""
    run.approval_requests = [
        replace(request, earlier=earlier.calls, repeats=earlier.repeats)
        if request.position == record.position
        else request
        for request in run.approval_requests
    ]


def _is_uncertain_attempt(run: RunContext, record: CallRecord) -> bool:
    """Whether the call failed before, may have taken effect then, and is not approved to be tried again."""
    approval = record.approval
    is_undecided = record.status == CallState.PLANNED and (approval is None or approval.carried)
    return is_undecided and record.call_id in run.new_attempts and not run.policy(record.tool).idempotent


def _earlier_effects(run: RunContext, record: CallRecord) -> EarlierEffects | None:
    """The effects that the call would follow; None for a call that does not need approval for any, or does not run.

    An approved call is asked about too: since its request was made, its arguments may have been changed, and the tool
    may have taken effect in another session that shares the history by a fork.
    """
    scope = run.policy(record.tool).effect_scope
    is_refused = record.approval is not None and record.approval.decision not in ("", Decision.APPROVED)
    if scope is None or record.status != CallState.PLANNED or is_refused:
        return None
    return run.journal.earlier_effects(
        record.tool, record.run_arguments, position=record.position, scope=scope
    )


def _needs_approval(
    run: RunContext,
    decisions: list[EarlierEffects],
    *,
    pending: Sequence[CallRecord] = (),
    failed_before: bool = False,
) -> NeedsApproval:
    """:param pending: The calls of the step, where none has been replayed yet."""
    names = ", ".join(sorted({request.tool for request in run.approval_requests}))
    why = f"{names} needs approval."
    if any(earlier.repeats is not None for earlier in decisions):
        why += " It was already called with the same arguments, outside the current history."
    elif decisions:
        why += (
            " It has already taken effect outside the current history, or may have, and that was not undone."
        )
    if failed_before:
        why += " It failed before, and may or may not have taken effect."
    return NeedsApproval(why=why, requests=tuple(_with_state(run, pending)))


def _with_state(run: RunContext, pending: Sequence[CallRecord]) -> Iterator[ApprovalRequest]:
    """The requests with what the tools would be given from the State besides, to which the decision is bound too."""
    if run.tool_state is None:
        yield from run.approval_requests
        return
    tools = {tool.name: tool for tool in run.tool_state.data["tools"]}
    requests = {request.position: request for request in run.approval_requests}
    shown = {}
    for call, state in state_arguments.given(pending, run.tool_state, tools):
        if asked := requests.get(call.position):
            shown[call.position] = state_arguments.taken(tools.get(asked.tool), asked.arguments, state)
    for request in run.approval_requests:
        if request.position in shown:
            taken = shown[request.position]
        else:
            taken = state_arguments.taken(tools.get(request.tool), request.arguments, run.tool_state)
        bound = fingerprint(request.tool, request.arguments, digests(taken))
        yield replace(request, from_state=taken, fingerprint=bound)
