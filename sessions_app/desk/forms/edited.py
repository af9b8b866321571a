"""The arguments of a call as a person has edited them in the fields of its card or its dialog."""

from collections.abc import Mapping
from typing import Any

from sessions_app.access.errors import ActionError
from sessions_app.access.masking import Mask
from sessions_app.desk.pages import arguments as argument_fields
from sessions_app.desk.pages.arguments import PREFIX
from sessions_app.desk.pages.summary import published_tool
from sessions_app.models import Approval, RegisteredAgent

Arguments = dict[str, Any]


def typed_arguments(
    tool: str,
    present: Arguments,
    typed: Mapping[str, str],
    *,
    agent: RegisteredAgent | None,
    mask: Mask,
    prefix: str = PREFIX,
) -> tuple[Arguments, set[str]]:
    """The arguments as they stand in the fields; those that the form does not show are the present ones.

    And the names of those that were hidden, in part at least, and were typed again.

    :param typed: What was sent, by the names of the inputs, which begin with ``prefix``.
    :raises ActionError: naming the argument whose value is not one of its type.
    """
    schema = published_tool(agent, tool, mask).get("parameters") or {}
    shown = mask.json(present)
    try:
        edited = argument_fields.read(typed, shown, schema, prefix=prefix)
    except argument_fields.WrongValue as error:
        raise ActionError(str(error), argument=error.argument) from None
    restored: Arguments = mask.restore(edited, present)
    hidden = {
        shown_name: name
        for (name, value), (shown_name, item) in zip(present.items(), shown.items(), strict=False)
        if item != value
    }
    return restored, {
        name for shown_name, name in hidden.items() if edited.get(shown_name) != shown[shown_name]
    }


def edited_arguments(
    approval: Approval | None,
    typed: Mapping[str, str],
    *,
    agent: RegisteredAgent | None,
    mask: Mask,
    prefix: str = PREFIX,
) -> tuple[Arguments | None, set[str]]:
    """The same for the request of an approval, with its call; None for a form that does not show its arguments."""
    if approval is None or not any(name.startswith(prefix) for name in typed):
        return None, set()
    present = approval.arguments if approval.edited is None else approval.edited
    return typed_arguments(approval.call.tool, present, typed, agent=agent, mask=mask, prefix=prefix)
