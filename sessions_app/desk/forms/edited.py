"""The arguments of a call as a person has edited them in the fields of its card or its dialog."""

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from agentstate.durable.breakpoints import same_value
from agentstate.durable.schemas import Unseen
from sessions_app.access.errors import ActionError
from sessions_app.access.masking import Mask
from sessions_app.access.typed import with_line_ends_of
from sessions_app.desk.pages import arguments as argument_fields
from sessions_app.desk.pages.arguments import PREFIX, Field
from sessions_app.desk.pages.summary import published_tool
from sessions_app.models import Approval, RegisteredAgent

Arguments = dict[str, Any]


class Edited(TypedDict, total=False):
    """What `sessions_app.actions.approve` is told of edited arguments besides themselves."""

    retyped: set[str]
    seen: Arguments


def typed_arguments(
    tool: str,
    present: Arguments,
    typed: Mapping[str, str],
    *,
    agent: RegisteredAgent | None,
    mask: Mask,
    column: str = "arguments",
    prefix: str = PREFIX,
) -> tuple[Arguments, Edited]:
    """The arguments as they stand in the fields; those that the form does not show are the present ones.

    :param typed: What was sent, by the names of the inputs, which begin with ``prefix``.
    :param column: That of the present arguments, by whose name they may be hidden.
    :raises ActionError: naming the argument whose value is not one of its type.
    """
    schema = published_tool(agent, tool, mask).get("parameters") or {}
    shown = mask.column(column, present)
    try:
        edited = argument_fields.read(typed, shown, schema, prefix=prefix)
    except argument_fields.WrongValue as error:
        raise ActionError(str(error), argument=error.argument) from None
    restored: Arguments = mask.restore(edited, present, column=column)
    hidden = {
        shown_name: name
        for (name, value), (shown_name, item) in zip(present.items(), shown.items(), strict=False)
        if item != value
    }
    retyped = {name for shown_name, name in hidden.items() if edited.get(shown_name) != shown[shown_name]}
    # What was left as it is as a whole is as the agent asked for it.
    seen = {name: Unseen() for name in hidden.values() if name in restored and name not in retyped}
    if retyped:
        beside = _with_unseen(edited, restored)
        seen |= {
            name: beside[name] if isinstance(beside, dict) else beside for name in retyped if name in restored
        }
    return restored, {"retyped": retyped, "seen": seen}


def _with_unseen(typed: Any, restored: Any) -> Any:
    """The restored value with an `Unseen` in place of what the person who typed it had left hidden."""
    if isinstance(typed, dict) and isinstance(restored, dict) and len(typed) == len(restored):
        pairs = zip(typed.values(), restored.items(), strict=True)
        return {name: _with_unseen(item, original) for item, (name, original) in pairs}
    if isinstance(typed, list) and isinstance(restored, list) and len(typed) == len(restored):
        return list(map(_with_unseen, typed, restored))
    return restored if same_value(typed, restored) else Unseen()


def edited_arguments(
    approval: Approval | None,
    typed: Mapping[str, str],
    *,
    agent: RegisteredAgent | None,
    mask: Mask,
    prefix: str = PREFIX,
) -> tuple[Arguments | None, Edited]:
    """The same for the request of an approval, with its call; None for a form that does not show its arguments."""
    if approval is None or not any(name.startswith(prefix) for name in typed):
        return None, {}
    column = "arguments" if approval.edited is None else "edited"
    return typed_arguments(
        approval.call.tool,
        approval.run_arguments,
        typed,
        agent=agent,
        mask=mask,
        column=column,
        prefix=prefix,
    )


def edited_texts(fields: Iterable[Field], typed: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was sent for the arguments that it would have changed, each text with the label of its field."""
    return [
        (field.label, text)
        for field in fields
        if field.input_name in typed
        and with_line_ends_of(field.unchanged, text := str(typed[field.input_name])) != field.unchanged
    ]


def are_edited(
    approval: Approval | None, typed: Mapping[str, str], *, agent: RegisteredAgent | None, mask: Mask
) -> bool:
    """Whether a field holds another text than the request of an approval, with its call, has shown there."""
    if approval is None or not any(name.startswith(PREFIX) for name in typed):
        return False
    schema = published_tool(agent, approval.call.tool, mask).get("parameters") or {}
    shown = mask.row(approval)
    return any(
        field.value != before.value
        for field, before in zip(
            argument_fields.fields(shown.arguments, schema, typed, edited=shown.edited),
            argument_fields.fields(shown.arguments, schema, edited=shown.edited),
            strict=True,
        )
    )
