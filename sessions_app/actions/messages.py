"""Starting a session, and sending messages to its agent."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.utils import timezone

from agentstate.durable.schemas import broken_rule
from agentstate.durable.state.tags import as_plain_data, with_order
from sessions_app.access.errors import Invalid, Refused
from sessions_app.access.roles import Actor
from sessions_app.access.shown import in_one_line
from sessions_app.access.typed import MOST_TAGS, TAG_CHARACTERS, check_json
from sessions_app.action_list import MESSAGE
from sessions_app.actions import chat_messages
from sessions_app.actions.base import (
    begin_turn_if_over,
    check,
    commit,
    compare,
    enter_planning,
    in_one_transaction,
    json_object,
    lock,
    optional_reason,
    optional_text,
    queue,
    require,
    require_permission,
    required_text,
)
from sessions_app.actions.repeats import take_up
from sessions_app.models import (
    Branch,
    EventKind,
    InboxMessage,
    Message,
    RegisteredAgent,
    Session,
    SessionTag,
    StaffPermission,
    Status,
)
from sessions_app.models.session import uuid7


@in_one_transaction
def start(
    *,
    actor: Actor,
    agent: str,
    message: str = "",
    messages: Sequence[dict[str, Any]] = (),
    title: str = "",
    customer: str = "",
    tags: Iterable[str] = (),
    state: dict[str, Any] | None = None,
    generation_kwargs: dict[str, Any] | None = None,
    tools: Sequence[str] | None = None,
    reason: str = "",
    request_id: UUID | str | None = None,
) -> Session:
    """Start a session of `agent` with a first message, and wake a worker for it.

    :param message: May be empty for an agent that has a prompt of its own.
    :param messages: Instead of it, each as ``ChatMessage.to_dict()``: several, with pictures or files, or an earlier
        history in front of them. The last one is the user's, unless the agent has a prompt of its own.
    :param title: The first 80 characters of the user's last message, if none is given.
    :param tags: Kept in lower case, each once; at most `MOST_TAGS`.
    :param state: Values for the agent's state keys and its prompts' variables, as plain JSON: a key `$type` in one is a
        key like others.
    :param tools: The names of those of the agent's tools that it may use; None for all, an empty list for none.
    :param request_id: A UUID, a new one for each request. If it comes again, the session that it started is returned.
    :raises Invalid: for an unknown agent, naming the known ones, for values that cannot be stored, and for those that
        the agent needs and that are missing or of another type, as far as its worker has published them.
    :raises Refused: for an agent that cannot be built.
    """
    require_permission(actor, StaffPermission.START)
    tags, session_id = _texts(tags, "Give the tags as a list of texts, such as ['claims']."), uuid7()
    started = take_up(
        request_id,
        session_id,
        EventKind.STARTED,
        actor,
        agent=agent,
        messages=[message, *messages],
        title=title,
        customer=customer,
        tags=tags,
        inputs=[state, generation_kwargs, tools],
        reason=reason,
    )
    if started is not None:
        return started
    if message and messages:
        raise Invalid("Give one message, or several, not both.")
    message = optional_text("The message", message)
    reason = optional_reason(reason)
    names = sorted({required_text("A tag", tag.lower(), TAG_CHARACTERS) for tag in tags})
    if len(names) > MOST_TAGS:
        raise Invalid(f"There are {len(names)} tags, and a session has at most {MOST_TAGS}.")
    inputs: dict[str, Any] = {
        "state": _encoded("The state", state),
        "generation_kwargs": _encoded("The generation kwargs", generation_kwargs),
    }
    registered = RegisteredAgent.objects.filter(key=agent).first()
    if registered is None:
        known_agents = ", ".join(RegisteredAgent.objects.order_by("key").values_list("key", flat=True))
        raise Invalid(
            f"There is no agent {agent!r}. There are: {known_agents}."
            if known_agents
            else f"There is no agent {agent!r}: no worker has published its agents yet."
        )
    if registered.problem:
        raise Refused(f"The agent {agent!r} cannot run: {registered.problem}")
    has_prompt = bool(registered.inputs.get("prompt"))
    unread: list[tuple[str, dict[str, Any] | None]] = [(message, None)] if message else []
    if messages:
        unread = [*chat_messages.to_store(messages, prompt_follows=has_prompt)]
    if not unread and not has_prompt:
        required_text("The message", message)
    _check_values(registered, state or {})
    if tools is not None:
        inputs["tools"] = _tool_names(registered, tools)

    now = timezone.now()
    session = Session(
        id=session_id,
        agent=agent,
        title=optional_text("The title", title, 200) or in_one_line(_last_of_users(unread), 80),
        customer=optional_text("The customer", customer, 200),
        inputs=inputs,
        created_at=now,
        phase_since=now,
    )
    enter_planning(session, now)
    queue(session, now)
    session.branch = Branch.objects.create(session=session, number=1, created_by=actor.user, reason=reason)
    SessionTag.objects.bulk_create(SessionTag(session=session, name=name) for name in names)
    rows = [
        InboxMessage.objects.create(
            session=session,
            text=text,
            body=body,
            author=_author(actor, body),
            from_customer=_is_of_user(body),
        )
        for text, body in unread
    ]
    return commit(session, EventKind.STARTED, actor, reason, {"inbox": rows[-1].pk} if rows else {})


def _texts(given: Any, otherwise: str) -> list[str]:
    """The texts in a list.

    :raises Invalid: for anything else, with this sentence: of one text, each character would be a text of the list.
    """
    is_list = isinstance(given, Iterable) and not isinstance(given, str | Mapping)
    texts: list[str] = list(given) if is_list else []
    if not is_list or not all(isinstance(text, str) for text in texts):
        raise Invalid(otherwise)
    return texts


def _encoded(what: str, values: dict[str, Any] | None) -> dict[str, Any]:
    """The values by name as a worker decodes them: as plain data, with their keys in order."""
    plain = as_plain_data(json_object(what, values))
    return {name: with_order(value) for name, value in plain.items()}


def _last_of_users(messages: Sequence[tuple[str, dict[str, Any] | None]]) -> str:
    """The text of the user's last message; "" if there is none."""
    return next((text for text, body in reversed(messages) if _is_of_user(body)), "")


def _author(actor: Actor, body: dict[str, Any] | None) -> User | None:
    """Of an earlier history, the user's messages alone are what the person sends."""
    return actor.user if _is_of_user(body) else None


def _is_of_user(body: dict[str, Any] | None) -> bool:
    """Whether the message is the user's, as one without a body is."""
    return body is None or body["role"] == Message.Role.USER


def _check_values(agent: RegisteredAgent, values: dict[str, Any]) -> None:
    """Nothing is checked of an agent whose worker has not published what it can be given.

    :raises Invalid: for a value that the agent needs and that is missing, one that the agent would ignore, or one of
        another type.
    """
    if "values" not in agent.inputs:
        return
    declared_names = {declared["name"] for declared in agent.inputs["values"]}
    if unknown := sorted(values.keys() - declared_names):
        taken = sorted(each["name"] for each in agent.inputs["values"] if each["schema"] is not None)
        raise Invalid(
            f"The agent takes no value for {', '.join(unknown)}. "
            f"Its state keys and the variables of its prompts are: {', '.join(taken) or 'none'}."
        )
    for declared in agent.inputs["values"]:
        name, schema = declared["name"], declared["schema"]
        if name not in values:
            if declared["required"]:
                raise Invalid(f"The agent's prompt needs a value for {name}.")
        elif schema is None:
            raise Invalid(
                f"{name} is of the type {declared['type']}, which cannot be given as JSON. The agent's own tools and "
                "hooks set it."
            )
        elif schema and (rule := broken_rule(values[name], schema)):
            raise Invalid(f"The value of {name} is wrong: {rule}.")


def _tool_names(agent: RegisteredAgent, names: Sequence[str]) -> list[str]:
    """:raises Invalid: for what is no list of names, and for a tool that the agent lacks, as far as that is known."""
    names = _texts(names, "Name the tools by a list of their names: a worker could not find an object again.")
    check_json("The tools", names)
    known = {str(tool["name"]) for tool in agent.tools}
    if not agent.tools_pending and (unknown := sorted(set(names) - known)):
        raise Invalid(
            f"The agent has no tools {', '.join(unknown)}. It has: {', '.join(sorted(known)) or 'none'}."
        )
    return names


@in_one_transaction
def send_message(
    *,
    actor: Actor,
    session_id: UUID | str,
    text: str = "",
    messages: Sequence[dict[str, Any]] = (),
    from_customer: bool = False,
    reason: str = "",
    expected_version: int | None = None,
    request_id: UUID | str | None = None,
) -> Session:
    """Send the agent a message: it reads it at its next step, or as the next turn of a session that has ended.

    :param from_customer: It is what the customer says; the actor only types it in.
    :param messages: Instead of the text, each as ``ChatMessage.to_dict()``: several, or with pictures or files.
    :param request_id: A UUID, a new one for each request. If it comes again, nothing more is sent.
    :raises Invalid: for a message that is not the user's: what the agent and its tools said is the session's history.
    """
    require(actor, MESSAGE)
    if text and messages:
        raise Invalid("Give one message, or several, not both.")
    unread = chat_messages.to_store(messages) if messages else [(required_text("The message", text), None)]
    if any(body is not None and body["role"] != Message.Role.USER for _, body in unread):
        raise Invalid(
            "Only user messages can be sent: the history is the one that the session has on record."
        )
    reason = optional_reason(reason)
    session = lock(session_id)
    said = {"text": text, "messages": messages, "from_customer": from_customer, "reason": reason}
    if take_up(request_id, session.pk, MESSAGE.event, actor, **said) is not None:
        return session
    compare(session, expected_version)
    check(session, MESSAGE)
    rows = [
        InboxMessage.objects.create(
            session=session, text=text, body=body, author=actor.user, from_customer=from_customer
        )
        for text, body in unread
    ]
    if session.status == Status.IDLE:
        now = timezone.now()
        begin_turn_if_over(session, now)
        queue(session, now)
    return commit(session, MESSAGE.event, actor, reason, {"inbox": rows[-1].pk})
