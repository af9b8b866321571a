"""The forms of breakpoints: setting one, removing one, and changing the arguments of a call that waits at one."""

from typing import Any

from django import forms
from django.http import Http404

from agentstate.durable.breakpoints import Comparison
from sessions_app import actions
from sessions_app.access.action import Action
from sessions_app.access.masking import Mask
from sessions_app.access.typed import whole_number
from sessions_app.action_list import CHANGE_ARGUMENTS, REMOVE_BREAKPOINT, SET_BREAKPOINT
from sessions_app.desk.forms.base import ActionForm, optional_reason
from sessions_app.desk.forms.calls import CallForm
from sessions_app.desk.forms.edited import Edited, typed_arguments
from sessions_app.desk.forms.fields import Key
from sessions_app.desk.pages import arguments as argument_fields
from sessions_app.desk.pages.arguments import PREFIX
from sessions_app.desk.pages.session import state
from sessions_app.desk.pages.session.breakpoints import breakpoints_of
from sessions_app.desk.pages.summary import published_tool
from sessions_app.models import Session, StaffPermission, ToolCall

MODEL = ":model"  # which no tool is called


class BreakpointForm(ActionForm):
    tool = forms.TypedChoiceField(label="Stop before", coerce=lambda name: "" if name == MODEL else name)
    argument = forms.CharField(
        required=False,
        max_length=200,
        label="Only if its argument",
        help_text="Name of one of the tool's arguments.",
    )
    comparison = forms.ChoiceField(
        required=False,
        label="Comparison",
        choices=[(comparison.value, comparison.text) for comparison in Comparison],
    )
    value = forms.CharField(
        required=False,
        label="Value",
        help_text="JSON, such as 100 or true; anything else is a text. For a text argument, 1042 is a text too.",
    )
    once = forms.BooleanField(required=False, label="Once: remove it after it has stopped the session")
    reason = optional_reason()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        agent = self.session.registered_agent
        names = [str(tool["name"]) for tool in (agent.tools if agent else [])]
        choices = [(MODEL, "the model"), *((name, name) for name in names)]
        self.fields["tool"].choices = choices  # type: ignore[attr-defined]
        if Mask.configured().hides_anything and not self.context.actor.may(StaffPermission.REVEAL):
            self.fields[
                "argument"
            ].help_text += " If something in it is hidden from you, the session does not stop."

    def perform(self, **arguments: Any) -> Session:
        argument, comparison, text = (arguments.pop(name) for name in ("argument", "comparison", "value"))
        when = (argument, comparison, text) if argument or text else None
        return actions.set_breakpoint(when=when, as_typed=True, **arguments)


class RemoveBreakpointForm(ActionForm):
    details = "session/_dialog_breakpoint.html"

    number = Key()
    reason = optional_reason()

    def read_details(self) -> dict[str, Any]:
        number = whole_number(str(self["number"].value() or ""))
        items = breakpoints_of(self.context.session)
        item = next((item for item in items if item.number == number), None)
        if item is None:
            raise Http404("This session has no such breakpoint.")
        return {"breakpoint": item}

    def perform(self, **arguments: Any) -> Session:
        return actions.remove_breakpoint(**arguments)


class ArgumentsForm(CallForm):
    """The arguments are read from the fields of the tool's schema. The state is shown beside them, for reading only."""

    details = "session/_dialog_arguments.html"
    decides = True

    reason = optional_reason()

    def read_details(self) -> dict[str, Any]:
        details = super().read_details()
        call: ToolCall = details["call"]
        typed = {name: str(value) for name, value in self.data.items() if name.startswith(PREFIX)}
        tool = published_tool(self.session.registered_agent, call.tool, self.context.mask)
        schema = tool.get("parameters") or {}
        fields = argument_fields.fields(call.arguments, schema, typed, edited=call.ran_with)
        return {**details, "fields": fields, "state": state.read_state(self.context)}

    def perform(self, **arguments: Any) -> Session:
        calls = ToolCall.objects.select_related("approval").filter(branch__session=self.session)
        call = calls.filter(pk=arguments["call_id"]).first()
        # For a call that the session does not have the action says what is wrong, after whether the person may.
        edited, how = self._typed(call) if call is not None else ({}, {})
        return actions.change_arguments(arguments=edited, **how, **arguments)

    def _typed(self, call: ToolCall) -> tuple[dict[str, Any], Edited]:
        return typed_arguments(
            call.tool,
            call.ran_with,
            self.data,
            agent=self.session.registered_agent,
            mask=self.context.mask,
            column=call.column_of_run,
        )


FORMS: dict[Action, type[ActionForm]] = {
    SET_BREAKPOINT: BreakpointForm,
    REMOVE_BREAKPOINT: RemoveBreakpointForm,
    CHANGE_ARGUMENTS: ArgumentsForm,
}
