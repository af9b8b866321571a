"""The forms of the repairs: of a session's memory, its state, a message, the answer to a call, and a whole step.

A repair never changes a row in place: the action makes a branch, which can be undone.
"""

from typing import Any, ClassVar

from django import forms

from agentstate.durable.state.tags import without_order
from sessions_app import actions, wording
from sessions_app.access.action import Action
from sessions_app.access.availability import agent_cannot_run
from sessions_app.access.masking import Mask
from sessions_app.access.typed import whole_number, with_line_ends_of
from sessions_app.action_list import (
    ANSWER_CALL,
    ANSWER_STEP,
    EDIT_MEMORY,
    EDIT_STATE,
    REPLACE_MESSAGE,
    REWIND,
)
from sessions_app.actions.repair import value_type
from sessions_app.desk.forms.base import FIRST, ActionForm, ReasonForm
from sessions_app.desk.forms.calls import CallForm
from sessions_app.desk.forms.fields import (
    Json,
    Key,
    LongText,
    Number,
    WholeText,
    YesNo,
    as_sent_back,
    restored_text,
)
from sessions_app.desk.pages.session import consequences, repairs, state
from sessions_app.desk.pages.summary import formats_of
from sessions_app.desk.pages.why_not import WhyNot
from sessions_app.history import restore
from sessions_app.invisible import escaped_in_json
from sessions_app.models import Session

SAVE_AND_RESUME = "Save, rewind and resume"
NAME_IS_HIDDEN = "Part of the name of this key is hidden, so its value cannot be changed here."


class MemoryForm(ReasonForm):
    """The plan is one step a line; a completed step begins with ``[x]``. An empty line separates two notes."""

    goal = LongText(required=False, widget=forms.Textarea(attrs={"rows": 2}))
    plan = LongText(
        required=False,
        help_text=f"One step per line. Put {repairs.MARK} before a step that is done.",
    )
    notes = LongText(
        required=False,
        widget=forms.Textarea(attrs={"rows": 4}),
        help_text="Separate notes with an empty line. Notes with a key stay as they are.",
    )
    field_order = ("version", "goal", "plan", "notes", "reason")

    def perform(self, **arguments: Any) -> Session:
        """Only what was edited is set: the fields have the memory without some of its blanks and line ends."""
        branch, mask = self.session.current_branch, self.context.mask
        present = state.memory(branch, mask=Mask.none()) or state.Memory()
        shown = state.memory(branch, mask=mask) or state.Memory()
        texts = {name: arguments.pop(name) for name in present.parts}
        typed = repairs.typed_memory(texts, shown)
        as_shown = repairs.memory_fields(shown)
        edited = [name for name, text in texts.items() if text != as_sent_back(as_shown[name])]
        values = mask.restore(*({name: memory.parts[name] for name in edited} for memory in (typed, present)))
        if "plan" in edited:
            steps = zip(values["plan"], typed.plan, strict=True)
            values["completed"] = [step for step, (_, is_done) in steps if is_done]
        return actions.edit_memory(**arguments, **values)


class StateForm(ReasonForm):
    """The field fits the type of the present value."""

    key = forms.CharField(max_length=200, widget=forms.HiddenInput)
    FIELDS: ClassVar[dict[str, type[forms.Field]]] = {
        "text": WholeText,
        "a number": Number,
        "true or false": YesNo,
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        key = str(self["key"].value() or "")
        [shown_key] = self.context.mask.json({key: None})
        if shown_key != key:
            # No page names such a key, so its name has been guessed.
            self.impossible = NAME_IS_HIDDEN
        # The keys of an object stand in their order, which what is stored keeps by a tag.
        self.present = (
            None if self.impossible else without_order(repairs.value(self.session.current_branch, key))
        )
        [value] = self.context.mask.json({key: self.present}).values()
        self.shown = value
        type_name = value_type(self.present)
        # What is hidden may be of another type than what it hides.
        field_class = self.FIELDS.get(type_name, Json) if value_type(value) == type_name else Json
        self.fields["value"] = field_class(label=shown_key or "Value", required=field_class is not WholeText)
        if field_class is Json:
            self.fields["value"].help_text = (
                "JSON; put texts in double quotes." if value is None else f"JSON: {type_name}, as before."
            )
        self.initial.setdefault(
            "value", value if field_class is WholeText else escaped_in_json(wording.pretty(value))
        )
        self.order_fields(["version", "key", "value", "reason"])

    def clean(self) -> dict[str, Any]:
        if self.impossible:
            self.add_error(None, self.impossible)
        return super().clean() or {}

    def perform(self, **arguments: Any) -> Session:
        key, value = arguments.pop("key"), arguments.pop("value")
        if isinstance(self.fields["value"], WholeText):
            value = with_line_ends_of(self.shown, value)
        values = self.context.mask.restore({key: value}, {key: self.present})
        return actions.edit_state(values=values, **arguments)


class MessageTextForm(ReasonForm):
    """With the first of two buttons, the session also rewinds to the step that read the message first, and runs on."""

    details = "session/_dialog_correction.html"

    position = Key(error_messages={"required": "Choose a message that the model reads."})
    text = LongText(label="What the model reads instead")
    field_order = ("version", "position", "text", "reason")

    def read_details(self) -> dict[str, Any]:
        """What is discarded where the session also rewinds to where the message was first read, if it can."""
        position = whole_number(str(self["position"].value() or ""))
        checkpoint = None
        if position is not None and not WhyNot(self.context.actor).of(REWIND):
            checkpoint = restore.step_after(self.context.branch, position)
        if checkpoint is None or agent_cannot_run(self.session):
            return {}
        self.button, self.second_button = SAVE_AND_RESUME, self.button
        return {"checkpoint": checkpoint, "consequences": consequences.of_rewind(self.context, checkpoint)}

    def perform(self, **arguments: Any) -> Session:
        arguments["rewind"] = FIRST in self.data
        role, text = repairs.message_at(self.session.current_branch, arguments["position"])
        arguments["text"] = restored_text(self.context.mask, arguments["text"], text, role)
        return actions.replace_message(**arguments)


class AnswerForm(CallForm):
    answer = forms.ChoiceField(
        choices=[("result", "Its result is"), ("skip", "Skip it, and tell the agent")],
        widget=forms.RadioSelect,
        error_messages={"required": "Choose: enter the call's result, or skip it."},
    )
    text = LongText(label="Result, or message to the agent", widget=forms.Textarea(attrs={"rows": 4}))
    reason = ReasonForm.base_fields["reason"]

    def perform(self, **arguments: Any) -> Session:
        answer, text = arguments.pop("answer"), arguments.pop("text")
        return actions.answer_call(**arguments, **{answer: text})


class StepForm(ReasonForm):
    """A field for the result of each call that has not ended: with all of them the step is complete."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls = repairs.unfinished(self.session.current_branch, self.context.mask)
        agent = self.session.registered_agent
        if not self.calls:
            self.impossible = (
                "Every call of the newest step has ended: there is nothing to complete manually."
            )
        for call in self.calls:
            self.fields[f"result-{call.pk}"] = LongText(
                label=f"Result of {call.tool}",
                help_text=wording.arguments(call.ran_with, 300, formats_of(agent, call.tool)),
                widget=forms.Textarea(attrs={"rows": 2}),
            )
        self.order_fields(["version", *(f"result-{call.pk}" for call in self.calls), "reason"])

    def perform(self, **arguments: Any) -> Session:
        results = {call.pk: arguments.pop(f"result-{call.pk}") for call in self.calls}
        return actions.answer_step(**arguments, results=results)


FORMS: dict[Action, type[ActionForm]] = {
    EDIT_MEMORY: MemoryForm,
    EDIT_STATE: StateForm,
    REPLACE_MESSAGE: MessageTextForm,
    ANSWER_CALL: AnswerForm,
    ANSWER_STEP: StepForm,
}
