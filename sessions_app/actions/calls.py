"""What a person decides about a tool call: one that is in doubt, or one that needs approval.

Only calls of the present branch can be decided, and only while nothing runs the session. Two people who
decide the same call at once: one of them does, the other is told who was first.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import jsonschema
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from sessions_app.access.availability import decided_already
from sessions_app.access.errors import Invalid, Moved, NotFound
from sessions_app.access.roles import Actor
from sessions_app.actions.base import check, commit, fit, given, lock, require, settle, storable
from sessions_app.models import (
    Allowance,
    Approval,
    CallStatus,
    RegisteredAgent,
    Session,
    Status,
    ToolCall,
    WaitingFor,
)
from sessions_app.wake import wake


@transaction.atomic(durable=True)
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
    """Say what became of a call in doubt: its `result`, run it `again`, or `skip` it with a message to the
    model.

    The session goes on when no call of it is in doubt any more.

    :param call_id: The row's primary key, or as text the id that the model gave the call.
    :raises Invalid: unless exactly one of the three is given.
    """
    require(actor, "decide")
    reason = given("The reason", reason)
    result, again, skip = _one_of(result, again, skip)
    session = lock(session_id, expected_version)
    call = _call(session, call_id, ToolCall.objects.filter(status=CallStatus.DOUBT))
    check(session, "decide", call=call)
    decision = _decide(call, actor, result=result, again=again, skip=skip)
    still_in_doubt = ToolCall.objects.filter(branch=session.branch, status=CallStatus.DOUBT).exists()
    if session.waiting_for == WaitingFor.DOUBT and not still_in_doubt:
        _go_on(session)
    return commit(session, "decided", actor, reason, {**_named(call), "decision": decision})


@transaction.atomic(durable=True)
def decide_all(
    *,
    actor: Actor,
    session_id: UUID | str,
    decisions: Mapping[int, Mapping[str, Any]],
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Say of every call in doubt what became of it, and let the session go on: all at once, or nothing.

    :param decisions: By the calls' primary keys, what `decide` takes: a ``result``, ``again`` or ``skip``.
    :raises Invalid: if a call in doubt is missing.
    """
    require(actor, "decide")
    require(actor, "resume")
    reason = given("The reason", reason)
    chosen = {
        pk: _one_of(each.get("result"), bool(each.get("again")), each.get("skip"))
        for pk, each in decisions.items()
    }
    session = lock(session_id, expected_version)
    doubts = {
        call.pk: call
        for call in ToolCall.objects.filter(branch=session.branch, status=CallStatus.DOUBT).order_by(
            "position"
        )
    }
    for pk in decisions:
        check(session, "decide", call=_call(session, pk, ToolCall.objects.none()))
    if missing := [call.tool for pk, call in doubts.items() if pk not in chosen]:
        raise Invalid(f"Say what became of {', '.join(missing)} too.")
    if not doubts:
        raise Invalid("No call is in doubt: there is nothing to decide.")
    for pk, call in doubts.items():
        result, again, skip = chosen[pk]
        decision = _decide(call, actor, result=result, again=again, skip=skip)
        commit(session, "decided", actor, reason, {**_named(call), "decision": decision})
    _go_on(session)
    return commit(session, "resumed", actor, reason)


@transaction.atomic(durable=True)
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
    :raises Moved: if the fingerprint is not that of the call, or somebody else decided first.
    :raises Invalid: for edited arguments that the tool's schema does not allow.
    """
    require(actor, "approve")
    reason = fit("The reason", reason)
    session, approval = _open_approval(session_id, call_id, expected_version, "approve")
    if fingerprint is not None and fingerprint != approval.fingerprint:
        raise Moved(
            "The call's arguments are not those that you were shown. Look at them again, then decide."
        )
    if edited is not None:
        edited = storable("The arguments", edited)
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
    return _answered(
        session, approval, "approved", actor, reason, data | ({"for_session": True} if for_session else {})
    )


@transaction.atomic(durable=True)
def reuse(
    *,
    actor: Actor,
    session_id: UUID | str,
    call_id: int | str,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Answer a call that was run already, on a tail that was left behind, with the result on record there.

    :raises Invalid: if the call repeats none, or there is no result on record.
    """
    require(actor, "approve")
    reason = fit("The reason", reason)
    session, approval = _open_approval(session_id, call_id, expected_version, "approve")
    before = approval.repeats
    if before is None or before.status != CallStatus.DONE:
        raise Invalid("There is no result on record for this call: run it, or reject it.")
    _answer(approval, actor, decision=Approval.Decision.REUSED)
    ToolCall.objects.filter(pk=approval.call_id).update(
        status=CallStatus.DONE,
        result=before.result,
        state=before.state,
        lossy=before.lossy,
        ended_at=timezone.now(),
        decided_by=actor.name,
    )
    return _answered(session, approval, "reused", actor, reason, {"from": before.position})


@transaction.atomic(durable=True)
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
    require(actor, "reject")
    message = given("The message to the model", message)
    reason = fit("The reason", reason)
    session, approval = _open_approval(session_id, call_id, expected_version, "reject")
    _answer(approval, actor, decision=Approval.Decision.REJECTED, message=message)
    return _answered(session, approval, "rejected", actor, reason or message, {})


@transaction.atomic(durable=True)
def withdraw(
    *,
    actor: Actor,
    session_id: UUID | str,
    tool: str,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Take back that a tool is allowed for the rest of the session: from its next step on people are asked again.

    :raises NotFound: if the tool is not allowed, or not any more.
    """
    require(actor, "withdraw")
    reason = fit("The reason", reason)
    session = lock(session_id, expected_version)
    check(session, "withdraw")
    withdrawn, _ = Allowance.objects.filter(session=session, tool=tool).delete()
    if not withdrawn:
        raise NotFound(f"{tool} is not allowed for the rest of this session.")
    return commit(session, "withdrawn", actor, reason, {"tool": tool})


def _one_of(result: str | None, again: bool, skip: str | None) -> tuple[str | None, bool, str | None]:
    if (result is not None) + again + (skip is not None) != 1:
        raise Invalid("Choose one: enter the call's result, run it again, or skip it.")
    return (
        fit("The result", result) if result is not None else None,
        again,
        given("The message to the model", skip) if skip is not None else None,
    )


def _decide(call: ToolCall, actor: Actor, *, result: str | None, again: bool, skip: str | None) -> str:
    """Write down what became of the call; the decision in a word."""
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
    """The call of this session. A model may name several alike: of those the `preferred` one is meant."""
    calls = ToolCall.objects.filter(branch__session=session)
    if isinstance(call_id, int):
        found = list(calls.filter(pk=call_id))
    else:
        named = calls.filter(call_id=call_id, branch=session.branch).order_by("-position")
        found = list(named & preferred) or list(named[:1])
    if not found:
        raise NotFound(f"This session has no call {call_id} in its present history.")
    if len(found) > 1:
        raise Invalid(f"{len(found)} open calls are named {call_id}. Decide them on the session's page.")
    return found[0]


def _open_approval(
    session_id: UUID | str, call_id: int | str, expected_version: int | None, act: str
) -> tuple[Session, Approval]:
    session = lock(session_id, expected_version)
    call = _call(session, call_id, ToolCall.objects.filter(approval__decision=""))
    approval = Approval.objects.filter(call=call).select_related("call").first()
    if approval is None:
        raise NotFound(f"The call {call_id} needs no approval.")
    if approval.decision:
        raise Moved(decided_already(approval))
    check(session, act, approval=approval)
    return session, approval


def _answer(approval: Approval, actor: Actor, **answer: Any) -> None:
    answered = Approval.objects.filter(pk=approval.pk, decision="").update(
        decided_at=timezone.now(), decided_by=actor.name, **answer
    )
    if not answered:
        approval.refresh_from_db()
        raise Moved(decided_already(approval))


def _answered(
    session: Session, approval: Approval, kind: str, actor: Actor, reason: str, data: dict[str, Any]
) -> Session:
    still_open = Approval.objects.filter(call__branch=session.branch, decision="").exists()
    if session.waiting_for == WaitingFor.APPROVAL and not still_open:
        _go_on(session)
    return commit(session, kind, actor, reason, {**_named(approval.call), **data})


def _go_on(session: Session) -> None:
    settle(session, Status.QUEUED)
    wake(session.pk)


def _named(call: ToolCall) -> dict[str, Any]:
    return {"call": call.pk, "call_id": call.call_id, "tool": call.tool, "position": call.position}


def _check_arguments(session: Session, approval: Approval, edited: dict[str, Any]) -> None:
    """An edit must fit the tool's schema, and must not reach for arguments that the tool does not have."""
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
