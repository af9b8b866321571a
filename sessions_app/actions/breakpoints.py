"""Breakpoints of a session: setting and removing them, and changing the arguments of a call that waits at one.

A session that runs takes note of its breakpoints at its next commit, like of a request to pause. They are those of the
session: a rewind keeps them, a fork begins without any.
"""

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from django.utils import timezone

from agentstate.durable.breakpoints import Breakpoint, Condition
from agentstate.durable.condition_values import suits, why_never_met
from agentstate.durable.policy import fingerprint
from sessions_app.access import typed
from sessions_app.access.errors import Invalid, NotFound
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.action_list import CHANGE_ARGUMENTS, REMOVE_BREAKPOINT, SET_BREAKPOINT
from sessions_app.actions.approvals import changed_arguments
from sessions_app.actions.base import (
    check,
    commit,
    in_one_transaction,
    lock,
    optional_reason,
    optional_text,
    require,
    required_text,
)
from sessions_app.actions.calls import find_call
from sessions_app.models import Approval, CallStatus, Session, StaffPermission, ToolCall

MOST = 20
Json = Any


@in_one_transaction
def set_breakpoint(
    *,
    actor: Actor,
    session_id: UUID | str,
    tool: str = "",
    when: tuple[str, str, Json] | None = None,
    as_typed: bool = False,
    once: bool = False,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Let the session stop before the model, or before calls of a tool, until it is resumed.

    :param tool: "" for the model.
    :param when: The argument, the comparison and the value that a call of the tool has to meet.
    :param as_typed: The value is what a person has typed: JSON, or a text, by the type of the argument.
    :param once: Remove the breakpoint when it has stopped the session.
    :raises Invalid: for an unknown tool, argument or comparison, a value of a type that the argument never has, too
        many breakpoints, and a comparison with a hidden value by a person who may not see it. The condition of such
        a person is compared with the arguments as they are shown: where the session stops tells no more than they do.
    """
    require(actor, SET_BREAKPOINT)
    reason = optional_reason(reason)
    tool = optional_text("The tool", tool, 200)
    argument = required_text("The argument", when[0], 200) if when is not None else ""
    session = lock(session_id, expected_version)
    check(session, SET_BREAKPOINT)
    schemas = _schemas(session)
    if when is not None:
        _, comparison, value = when
        if as_typed:
            value = _read_value(argument, comparison, value, schemas.get(tool, {}))
        typed.check_json("The value", value)
        _check_not_hidden(actor, argument, value)
        when = (argument, comparison, value)
    present = session.breakpoints or []
    if len(present) >= MOST:
        raise Invalid(f"There are {len(present)} breakpoints, and a session has at most {MOST}.")
    number = 1 + max((row["number"] for row in present), default=0)
    try:
        breakpoint = Breakpoint(tool, when, once, number)
    except ValueError as error:
        raise Invalid(str(error)) from None
    _check_that_it_can_stop(session, breakpoint, schemas)
    row = breakpoint.to_dict()
    if when is not None and not actor.may(StaffPermission.REVEAL):
        row["as_shown"] = True
    session.breakpoints = [*present, {**row, "by": actor.name}]
    return commit(session, SET_BREAKPOINT.event, actor, reason, row)


@in_one_transaction
def remove_breakpoint(
    *,
    actor: Actor,
    session_id: UUID | str,
    number: int,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Remove a breakpoint. A session that waits at it goes on when it is resumed.

    :raises NotFound: if the session has no breakpoint of this number.
    """
    require(actor, REMOVE_BREAKPOINT)
    reason = optional_reason(reason)
    session = lock(session_id, expected_version)
    check(session, REMOVE_BREAKPOINT)
    present = session.breakpoints or []
    remaining = [row for row in present if row["number"] != number]
    if len(remaining) == len(present):
        raise NotFound(f"This session has no breakpoint {number}.")
    session.breakpoints = remaining or None
    [removed] = [row for row in present if row["number"] == number]
    return commit(session, REMOVE_BREAKPOINT.event, actor, reason, removed)


@in_one_transaction
def change_arguments(
    *,
    actor: Actor,
    session_id: UUID | str,
    call_id: int | str,
    arguments: dict[str, Json],
    retyped: Collection[str] = (),
    seen: Mapping[str, Json] | None = None,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Let a call that waits at a breakpoint before a tool run with other arguments. The person approves it with them.

    :param retyped: As for `approve`, and ``seen``.
    :raises Invalid: if nothing was changed, or for arguments that the tool's schema does not allow.
    """
    require(actor, CHANGE_ARGUMENTS)
    reason = optional_reason(reason)
    session = lock(session_id, expected_version)
    call = find_call(session, call_id, ToolCall.objects.filter(status=CallStatus.PLANNED))
    check(session, CHANGE_ARGUMENTS, call=call)
    now = timezone.now()
    approval = Approval.objects.filter(call=call).first() or Approval(
        session=session,
        call=call,
        arguments=call.ran_with,
        fingerprint=fingerprint(call.tool, call.ran_with),
        asked_at=now,
    )
    edited = changed_arguments(session, approval, arguments, retyped, seen)
    if edited is None and approval.edited is None:
        raise Invalid("Nothing was changed.")
    if approval.is_carried:  # it was that of the failed call; now this call is decided
        approval.fingerprint = fingerprint(call.tool, approval.run_arguments)
    approval.decision, approval.edited = Approval.Decision.APPROVED, edited
    approval.decided_at, approval.decided_by = now, actor.name
    approval.save()
    return commit(session, CHANGE_ARGUMENTS.event, actor, reason, call.reference())


def _check_not_hidden(actor: Actor, argument: str, value: Json) -> None:
    mask = Mask.configured()
    if (mask.hides_key(argument) or mask.hides(value)) and not actor.may(StaffPermission.REVEAL):
        raise Invalid(
            f"The values of {argument} are hidden from you, so a breakpoint cannot compare with them."
        )


def _schemas(session: Session) -> dict[str, dict[str, Json]]:
    """Of the arguments of each tool that the session's agent is known to have."""
    agent = session.registered_agent
    return {str(tool["name"]): tool["parameters"] for tool in (agent.tools if agent else [])}


def _read_value(argument: str, comparison: str, text: str, schema: Mapping[str, Json]) -> Json:
    """The text as JSON; as it is if it is none, or if the argument can only so be compared with it."""
    try:
        value = typed.read_json(text)
        conditions = [Condition.of((argument, comparison, read)) for read in (value, text)]
    except (Invalid, ValueError):
        return text
    as_json, as_text = (suits(condition, schema) for condition in conditions)
    return text if as_text and not as_json else value


def _check_that_it_can_stop(
    session: Session, breakpoint: Breakpoint, schemas: Mapping[str, Mapping[str, Json]]
) -> None:
    """:raises Invalid: for a tool that the agent lacks, and a condition that no call of it meets, as far as is known.

    A tool that was found at run time is known by its calls.
    """
    if not breakpoint.tool or not schemas:
        return
    if breakpoint.tool in schemas:
        if why := why_never_met(breakpoint, schemas[breakpoint.tool]):
            raise Invalid(why)
    elif (
        # Otherwise it would tell whether a hidden name was guessed.
        Mask.configured().tool(breakpoint.tool) != breakpoint.tool
        or not ToolCall.objects.filter(branch__session=session, tool=breakpoint.tool).exists()
    ):
        raise Invalid(f"The agent has no tool {breakpoint.tool!r}. It has: {', '.join(sorted(schemas))}.")
