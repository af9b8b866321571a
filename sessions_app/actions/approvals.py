"""What a person decides about a call that needs approval: it runs, is refused, or is answered with a recorded result.

Only calls of the current branch can be decided, and only while no worker runs the session. If two people decide the
same call at once, the decision of one counts, and the other is told who was first.
"""

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from django.utils import timezone

from agentstate.durable.breakpoints import same_value
from agentstate.durable.schemas import WrongSchemaError, unfit_arguments
from sessions_app.access.action import Action
from sessions_app.access.availability import already_decided
from sessions_app.access.errors import EffectNotSeen, Invalid, Moved, NotFound
from sessions_app.access.roles import Actor
from sessions_app.action_list import APPROVE, REJECT, REUSE, WITHDRAW
from sessions_app.actions.base import (
    check,
    commit,
    count_ended_call,
    in_one_transaction,
    json_object,
    lock,
    optional_reason,
    queue,
    require,
    required_text,
)
from sessions_app.actions.calls import find_call
from sessions_app.actions.definition import require_shown_definition
from sessions_app.history.effects import follows_an_effect
from sessions_app.models import Allowance, Approval, CallStatus, Session, ToolCall, WaitingFor

EFFECT_NOT_SEEN = (
    "{tool} already took effect, or may have. "
    "Confirm on the call's own card that you have seen it, then approve."
)


@in_one_transaction
def approve(
    *,
    actor: Actor,
    session_id: UUID | str,
    call_id: int | str,
    fingerprint: str | None = None,
    edited: dict[str, Any] | None = None,
    retyped: Collection[str] = (),
    seen: Mapping[str, Any] | None = None,
    for_session: bool = False,
    definition: str = "",
    effects_seen: bool = False,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Let a call run, with the arguments that were shown or with `edited` ones.

    Where the call was approved before and is asked about again, those shown are the ones of that decision.

    :param fingerprint: That of the arguments as they were shown.
    :param retyped: Names of `edited` arguments that were hidden from the person, who typed new values. They always
        count as changed; otherwise the reply would reveal whether the typed value equals the hidden one.
    :param seen: Those of the `edited` arguments of which something was left hidden, with an `Unseen` for it: what the
        tool's schema says of a hidden value is not told.
    :param for_session: Let this tool run for the rest of the session without asking again.
    :param definition: The agent's new definition that the person was shown and continues with.
    :param effects_seen: The person has seen that the call repeats an effect, or follows one that its history does not
        show: see `sessions_app.history.effects.follows_an_effect`.
    :raises Moved: if the fingerprint is not that of the call, another person decided first, or the agent has changed
        and that was not shown.
    :raises Invalid: for edited arguments that the tool's schema does not allow, and for a call that follows such an
        effect without `effects_seen`.
    """
    require(actor, APPROVE)
    reason = optional_reason(reason)
    session, approval = _open_approval(session_id, call_id, expected_version, APPROVE)
    require_shown_definition(session, definition)
    if fingerprint is not None and fingerprint != approval.fingerprint:
        raise Moved(
            "The call's arguments have changed since you were shown them. Check them again, then decide."
        )
    follows = follows_an_effect(approval)
    if follows and not effects_seen:
        raise EffectNotSeen(EFFECT_NOT_SEEN.format(tool=approval.call.tool))
    if edited is None:
        edited = approval.edited
    else:
        edited = changed_arguments(session, approval, edited, retyped, seen)
    _answer(approval, actor, decision=Approval.Decision.APPROVED, edited=edited)
    if for_session:
        Allowance.objects.get_or_create(
            session=session, tool=approval.call.tool, defaults={"granted_by": actor.name}
        )
    data = {"edited": True} if edited is not None else {}
    if follows:
        data["effects_seen"] = True
    if for_session:
        data["for_session"] = True
    return _commit_answer(session, approval, APPROVE, actor, reason, data)


@in_one_transaction
def reuse(
    *,
    actor: Actor,
    session_id: UUID | str,
    call_id: int | str,
    definition: str = "",
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Answer a call that ran already on a discarded branch with the result recorded there.

    :param definition: As for `approve`.
    :raises Invalid: if the call repeats none, or no result is recorded.
    """
    require(actor, REUSE)
    reason = optional_reason(reason)
    session, approval = _open_approval(session_id, call_id, expected_version, REUSE)
    require_shown_definition(session, definition)
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
    count_ended_call(session)
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

    :raises Moved: if another person decided first.
    """
    require(actor, REJECT)
    message = required_text("The message to the model", message)
    reason = optional_reason(reason)
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
    """Withdraw that a tool is pre-approved for the rest of the session: from the next step on, its calls need approval.

    :raises NotFound: if the tool is not pre-approved for the rest of the session.
    """
    require(actor, WITHDRAW)
    reason = optional_reason(reason)
    session = lock(session_id, expected_version)
    check(session, WITHDRAW)
    withdrawn, _ = Allowance.objects.filter(session=session, tool=tool).delete()
    if not withdrawn:
        raise NotFound(f"{tool} is not pre-approved for the rest of this session.")
    return commit(session, WITHDRAW.event, actor, reason, {"tool": tool})


def _open_approval(
    session_id: UUID | str, call_id: int | str, expected_version: int | None, action: Action
) -> tuple[Session, Approval]:
    session = lock(session_id, expected_version)
    call = find_call(session, call_id, ToolCall.objects.filter(approval__decision=""))
    approval = Approval.objects.filter(call=call).select_related("call__branch").first()
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


def changed_arguments(
    session: Session,
    approval: Approval,
    edited: dict[str, Any],
    retyped: Collection[str],
    seen: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    """The edited arguments; None if they are those that the agent asked for.

    The limits hold for those that were changed: what the agent asked for may be longer.
    """
    requested: dict[str, Any] = approval.arguments
    if isinstance(edited, dict):
        changed = {
            name: value
            for name, value in edited.items()
            if name not in requested or not same_value(requested[name], value) or name in retyped
        }
    else:
        changed = edited  # which `json_object` refuses
    json_object("The arguments", changed)
    if not changed and edited.keys() == requested.keys():
        return None
    _check_arguments(session, approval, edited, seen)
    return edited


def _check_arguments(
    session: Session, approval: Approval, edited: dict[str, Any], seen: Mapping[str, Any] | None
) -> None:
    """Edited arguments must be valid for the tool's schema, and none may be added that the tool does not have."""
    name = approval.call.tool
    published = session.registered_agent
    tools = {tool["name"]: tool for tool in (published.tools if published else [])}
    if name not in tools:
        raise Invalid(f"The arguments of {name} cannot be changed: its schema is not known here.")
    schema = tools[name]["parameters"]
    try:
        unfit = unfit_arguments(name, schema, edited, approval.arguments, seen)
    except WrongSchemaError as error:
        raise Invalid(f"The arguments of {name} cannot be changed: its schema is wrong: {error}.") from None
    if unfit is not None:
        raise Invalid(unfit.why, argument=unfit.argument)
