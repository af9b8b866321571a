"""What a person decides about calls in doubt: their outcome is recorded, or they run again, or they are skipped.

Only calls of the current branch can be decided, and only while no worker runs the session.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.utils import timezone

from sessions_app.access.availability import agent_cannot_run
from sessions_app.access.errors import Invalid, Refused
from sessions_app.access.roles import Actor
from sessions_app.action_list import DECIDE, RESUME
from sessions_app.actions.base import (
    check,
    commit,
    count_ended_call,
    in_one_transaction,
    lock,
    queue,
    require,
    required_reason,
)
from sessions_app.actions.calls import find_call, why_of_others
from sessions_app.actions.definition import accept_definition, require_shown_definition
from sessions_app.actions.outcomes import DoubtDecision, Outcome, one_outcome, stored_result
from sessions_app.models import CallStatus, Session, ToolCall, WaitingFor


@in_one_transaction
def decide(
    *,
    actor: Actor,
    session_id: UUID | str,
    call_id: int | str,
    reason: str,
    result: str | None = None,
    nothing: bool = False,
    again: bool = False,
    skip: str | None = None,
    definition: str = "",
    expected_version: int | None = None,
) -> Session:
    """Record the outcome of a call in doubt: its `result`, run it `again`, or `skip` it with a message to the model.

    `nothing` says that it took effect, and that its tool returns nothing.

    The session continues when no call of it is in doubt any more.

    :param call_id: The row's primary key, or as text the id that the model gave the call.
    :param definition: The agent's new definition that the person was shown and continues with.
    :raises Moved: to run it again with an agent that has changed, where that was not shown.
    :raises Refused: to run it again with an agent that cannot run. Its outcome can be recorded all the same.
    :raises Invalid: unless exactly one of the four is given, and for a result that the tool cannot have returned.
    """
    require(actor, DECIDE)
    reason = required_reason(reason)
    outcome = one_outcome(result=result, nothing=nothing, again=again, skip=skip)
    session = lock(session_id, expected_version)
    call = find_call(session, call_id, ToolCall.objects.filter(status=CallStatus.DOUBT))
    check(session, DECIDE, call=call)
    accept_definition(session, definition)
    doubts = ToolCall.objects.filter(branch=session.branch, status=CallStatus.DOUBT)
    others = list(doubts.exclude(pk=call.pk).values_list("tool", flat=True))
    _decide(session, call, actor, outcome, definition)
    if session.waiting_for == WaitingFor.DOUBT and others:
        session.why = why_of_others(session.why, [call.tool], others)
    elif session.waiting_for == WaitingFor.DOUBT:
        queue(session)
    return commit(session, DECIDE.event, actor, reason, {**call.reference(), "decision": outcome.decision})


@in_one_transaction
def decide_all(
    *,
    actor: Actor,
    session_id: UUID | str,
    decisions: Mapping[int, Mapping[str, Any]],
    reason: str,
    definition: str = "",
    expected_version: int | None = None,
) -> Session:
    """Record the outcome of every call in doubt, and let the session continue: all at once, or nothing.

    :param decisions: By the calls' primary keys, what `decide` takes: a ``result``, ``nothing``, ``again`` or ``skip``.
    :param definition: As for `decide`.
    :raises Moved: if the agent has changed, and that was not shown.
    :raises Refused: if the agent cannot run. Single outcomes can be recorded all the same.
    :raises Invalid: if a call in doubt is missing.
    """
    require(actor, DECIDE)
    require(actor, RESUME)
    reason = required_reason(reason)
    outcomes = {
        pk: one_outcome(
            result=decision.get("result"),
            nothing=bool(decision.get("nothing")),
            again=bool(decision.get("again")),
            skip=decision.get("skip"),
        )
        for pk, decision in decisions.items()
    }
    session = lock(session_id, expected_version)
    doubts = {
        call.pk: call
        for call in ToolCall.objects.filter(branch=session.branch, status=CallStatus.DOUBT).order_by(
            "position"
        )
    }
    for pk in decisions:
        check(session, DECIDE, call=find_call(session, pk, ToolCall.objects.none()))
    if missing := [call.tool for pk, call in doubts.items() if pk not in outcomes]:
        raise Invalid(f"Record the outcome of {', '.join(missing)} too.")
    if not doubts:
        raise Invalid("No call is in doubt: there is nothing to decide.")
    _require_runnable_agent(session)
    require_shown_definition(session, definition)
    for pk, call in doubts.items():
        _decide(session, call, actor, outcomes[pk], definition)
        data = {**call.reference(), "decision": outcomes[pk].decision}
        commit(session, DECIDE.event, actor, reason, data)
    queue(session)
    return commit(session, RESUME.event, actor, reason)


def _require_runnable_agent(session: Session) -> None:
    """:raises Refused: with the reason, if the agent cannot run."""
    if why := agent_cannot_run(session):
        raise Refused(why)


def _decide(session: Session, call: ToolCall, actor: Actor, outcome: Outcome, definition: str) -> None:
    """Write the outcome of the call."""
    if outcome.decision == DoubtDecision.AGAIN:
        _require_runnable_agent(session)
        require_shown_definition(session, definition)
        call.status, call.started_at = CallStatus.PLANNED, None
    else:
        skipped = outcome.decision == DoubtDecision.SKIP
        call.status = CallStatus.SKIPPED if skipped else CallStatus.DONE
        call.result = None if skipped else stored_result(session, call.tool, outcome)
        call.error = outcome.text if skipped else ""
        call.ended_at, call.decided_by = timezone.now(), actor.name
        count_ended_call(session)
    call.save()
