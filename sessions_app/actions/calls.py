"""What a person decides about a tool call: one that is in doubt, or one that needs approval.

Only calls of the present branch can be decided, and only while no worker runs the session. If two people decide the
same call at once, the decision of one counts, and the other is told who was first.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import jsonschema
from django.db.models import QuerySet
from django.utils import timezone

from sessions_app.access.availability import already_decided
from sessions_app.access.errors import Invalid, Moved, NotFound
from sessions_app.access.roles import Actor
from sessions_app.action_list import APPROVE, DECIDE, REJECT, RESUME, REUSE, WITHDRAW, Action
from sessions_app.actions.base import (
    check,
    commit,
    in_one_transaction,
    json_object,
    lock,
    optional_text,
    queue,
    require,
    required_text,
)
from sessions_app.models import (
    Allowance,
    Approval,
    CallStatus,
    RegisteredAgent,
    Session,
    ToolCall,
    WaitingFor,
)


@in_one_transaction
def decide(
    *,
    actor: Actor,
    session_id: UUID | str,
    call_id: int | str,
    reason: str,
    result: str | None = None,
    again: bool = False,
    skip: str | None = None,
    expected_version: int | None = None,
) -> Session:
    """Record the outcome of a call in doubt: its `result`, run it `again`, or `skip` it with a message to the model.

    The session continues when no call of it is in doubt any more.

    :param call_id: The row's primary key, or as text the id that the model gave the call.
    :raises Invalid: unless exactly one of the three is given.
    """
    require(actor, DECIDE.permission)
    reason = required_text("The reason", reason)
    result, again, skip = _one_of(result, again, skip)
    session = lock(session_id, expected_version)
    call = _call(session, call_id, ToolCall.objects.filter(status=CallStatus.DOUBT))
    check(session, DECIDE, call=call)
    decision = _decide(call, actor, result=result, again=again, skip=skip)
    still_in_doubt = ToolCall.objects.filter(branch=session.branch, status=CallStatus.DOUBT).exists()
    if session.waiting_for == WaitingFor.DOUBT and not still_in_doubt:
        queue(session)
    return commit(session, DECIDE.event, actor, reason, {**call.reference(), "decision": decision})


@in_one_transaction
def decide_all(
    *,
    actor: Actor,
    session_id: UUID | str,
    decisions: Mapping[int, Mapping[str, Any]],
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Record the outcome of every call in doubt, and let the session continue: all at once, or nothing.

    :param decisions: By the calls' primary keys, what `decide` takes: a ``result``, ``again`` or ``skip``.
    :raises Invalid: if a call in doubt is missing.
    """
    require(actor, DECIDE.permission)
    require(actor, RESUME.permission)
    reason = required_text("The reason", reason)
    outcomes = {
        pk: _one_of(decision.get("result"), bool(decision.get("again")), decision.get("skip"))
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
        check(session, DECIDE, call=_call(session, pk, ToolCall.objects.none()))
    if missing := [call.tool for pk, call in doubts.items() if pk not in outcomes]:
        raise Invalid(f"Say what became of {', '.join(missing)} too.")
    if not doubts:
        raise Invalid("No call is in doubt: there is nothing to decide.")
    for pk, call in doubts.items():
        result, again, skip = outcomes[pk]
        decision = _decide(call, actor, result=result, again=again, skip=skip)
        commit(session, DECIDE.event, actor, reason, {**call.reference(), "decision": decision})
    queue(session)
    return commit(session, RESUME.event, actor, reason)


@in_one_transaction
def approve(
    *,
    actor: Actor,
    session_id: UUID | str,
    call_id: int | str,
    fingerprint: str | None = None,
    edited: dict[str, Any] | None = None,
    for_session: bool = False,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Let a call run, with the arguments that were shown or with `edited` ones.

    :param fingerprint: That of the arguments as they were shown.
    :param for_session: Let this tool run for the rest of the session without asking again.
    :raises Moved: if the fingerprint is not that of the call, or another person decided first.
    :raises Invalid: for edited arguments that the tool's schema does not allow.
    """
    require(actor, APPROVE.permission)
    reason = optional_text("The reason", reason)
    session, approval = _open_approval(session_id, call_id, expected_version, APPROVE)
    if fingerprint is not None and fingerprint != approval.fingerprint:
        raise Moved(
            "The call's arguments are not those that you were shown. Look at them again, then decide."
        )
    if edited is not None:
        edited = json_object("The arguments", edited)
        if edited == approval.arguments:
            edited = None
        else:
            _check_arguments(session, approval, edited)
    _answer(approval, actor, decision=Approval.Decision.APPROVED, edited=edited)
    if for_session:
        Allowance.objects.get_or_create(
            session=session, tool=approval.call.tool, defaults={"granted_by": actor.name}
        )
    data = {"edited": True} if edited is not None else {}
    if for_session:
        data["for_session"] = True
    return _commit_answer(session, approval, APPROVE, actor, reason, data)


@in_one_transaction
def reuse(
    *,
    actor: Actor,
    session_id: UUID | str,
    call_id: int | str,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Answer a call that ran already on a discarded branch with the result recorded there.

    :raises Invalid: if the call repeats none, or no result is recorded.
    """
    require(actor, REUSE.permission)
    reason = optional_text("The reason", reason)
    session, approval = _open_approval(session_id, call_id, expected_version, REUSE)
    recorded = approval.repeats
    if recorded is None or recorded.status != CallStatus.DONE:
        raise Invalid("There is no result on record for this call: run it, or reject it.")
    _answer(approval, actor, decision=Approval.Decision.REUSED)
    ToolCall.objects.filter(pk=approval.call_id).update(
        status=CallStatus.DONE,
        result=recorded.result,
        state=recorded.state,
        lossy=recorded.lossy,
        ended_at=timezone.now(),
        decided_by=actor.name,
    )
    return _commit_answer(session, approval, REUSE, actor, reason, {"from": recorded.position})


@in_one_transaction
def reject(
    *,
    actor: Actor,
    session_id: UUID | str,
    call_id: int | str,
    message: str,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Refuse a call; the model is told `message` instead of a result.

    :raises Moved: if somebody else decided first.
    """
    require(actor, REJECT.permission)
    message = required_text("The message to the model", message)
    reason = optional_text("The reason", reason)
    session, approval = _open_approval(session_id, call_id, expected_version, REJECT)
    _answer(approval, actor, decision=Approval.Decision.REJECTED, message=message)
    return _commit_answer(session, approval, REJECT, actor, reason or message, {})


@in_one_transaction
def withdraw(
    *,
    actor: Actor,
    session_id: UUID | str,
    tool: str,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Withdraw that a tool is allowed for the rest of the session: from the next step on, its calls need approval.

    :raises NotFound: if the tool is not allowed for the rest of the session.
    """
    require(actor, WITHDRAW.permission)
    reason = optional_text("The reason", reason)
    session = lock(session_id, expected_version)
    check(session, WITHDRAW)
    withdrawn, _ = Allowance.objects.filter(session=session, tool=tool).delete()
    if not withdrawn:
        raise NotFound(f"{tool} is not allowed for the rest of this session.")
    return commit(session, WITHDRAW.event, actor, reason, {"tool": tool})


def _one_of(result: str | None, again: bool, skip: str | None) -> tuple[str | None, bool, str | None]:
    if (result is not None) + again + (skip is not None) != 1:
        raise Invalid("Choose one: enter the call's result, run it again, or skip it.")
    return (
        optional_text("The result", result) if result is not None else None,
        again,
        required_text("The message to the model", skip) if skip is not None else None,
    )


def _decide(call: ToolCall, actor: Actor, *, result: str | None, again: bool, skip: str | None) -> str:
    """Write the outcome of the call; returns the decision in a word."""
    if again:
        decision = "again"
        call.status, call.started_at = CallStatus.PLANNED, None
    else:
        decision = "skip" if result is None else "result"
        call.status = CallStatus.SKIPPED if result is None else CallStatus.DONE
        call.result, call.error = result, skip or ""
        call.ended_at, call.decided_by = timezone.now(), actor.name
    call.save()
    return decision


def _call(session: Session, call_id: int | str, preferred: QuerySet[ToolCall]) -> ToolCall:
    """The call of this session. A model may give several calls the same id: then the `preferred` one is meant."""
    calls = ToolCall.objects.filter(branch__session=session)
    if isinstance(call_id, int):
        matches = list(calls.filter(pk=call_id))
    else:
        named = calls.filter(call_id=call_id, branch=session.branch).order_by("-position")
        matches = list(named & preferred) or list(named[:1])
    if not matches:
        raise NotFound(f"This session has no call {call_id} in its present history.")
    if len(matches) > 1:
        raise Invalid(f"{len(matches)} open calls are named {call_id}. Decide them on the session's page.")
    return matches[0]


def _open_approval(
    session_id: UUID | str, call_id: int | str, expected_version: int | None, action: Action
) -> tuple[Session, Approval]:
    session = lock(session_id, expected_version)
    call = _call(session, call_id, ToolCall.objects.filter(approval__decision=""))
    approval = Approval.objects.filter(call=call).select_related("call").first()
    if approval is None:
        raise NotFound(f"The call {call_id} needs no approval.")
    if approval.decision:
        raise Moved(already_decided(approval))
    check(session, action, approval=approval)
    return session, approval


def _answer(approval: Approval, actor: Actor, **answer: Any) -> None:
    was_open = Approval.objects.filter(pk=approval.pk, decision="").update(
        decided_at=timezone.now(), decided_by=actor.name, **answer
    )
    if not was_open:
        approval.refresh_from_db()
        raise Moved(already_decided(approval))


def _commit_answer(
    session: Session, approval: Approval, action: Action, actor: Actor, reason: str, data: dict[str, Any]
) -> Session:
    still_open = Approval.objects.filter(call__branch=session.branch, decision="").exists()
    if session.waiting_for == WaitingFor.APPROVAL and not still_open:
        queue(session)
    return commit(session, action.event, actor, reason, {**approval.call.reference(), **data})


def _check_arguments(session: Session, approval: Approval, edited: dict[str, Any]) -> None:
    """Edited arguments must be valid for the tool's schema, and none may be added that the tool does not have."""
    name = approval.call.tool
    published = RegisteredAgent.objects.filter(key=session.agent).first()
    tools = {tool["name"]: tool for tool in (published.tools if published else [])}
    if name not in tools:
        raise Invalid(f"The arguments of {name} cannot be changed: its schema is not known here.")
    schema = tools[name]["parameters"]
    unknown = edited.keys() - schema.get("properties", {}).keys() - approval.arguments.keys()
    if unknown:
        raise Invalid(f"{name} has no argument {', '.join(sorted(unknown))}.")
    try:
        jsonschema.validate(edited, schema)
    except jsonschema.ValidationError as error:
        where = ".".join(str(part) for part in error.absolute_path)
        raise Invalid(
            f"The arguments do not fit {name}: {f'{where}: ' if where else ''}{error.message}"
        ) from None
    except jsonschema.SchemaError as error:
        raise Invalid(
            f"The arguments of {name} cannot be changed: its schema is wrong: {error.message}"
        ) from None
