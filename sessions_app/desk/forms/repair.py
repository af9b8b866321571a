"""The forms by which a person repairs a session: its memory, its state, a message, a call's answer, a whole step.

A repair never changes a row in place: the action makes a branch, which can be undone.
"""

import json
import math
from typing import Any, ClassVar

from django import forms

from sessions_app import actions
from sessions_app.access.masking import Mask
from sessions_app.actions.repair import kind
from sessions_app.desk.forms.actions import ActForm, CallForm, ReasonForm
from sessions_app.desk.pages.session import repairs, state
from sessions_app.models import Session
from sessions_app.wording import arguments

DONE = "Repaired, on a branch of its own. You can undo it."


class Words(forms.CharField):
    """A text as it was typed. Browsers end its lines in their own way, which is not the person's."""

    widget = forms.Textarea(attrs={"rows": 6})

    def to_python(self, value: Any) -> str:
        return str(super().to_python(value)).replace("\r\n", "\n")


class Number(forms.CharField):
    """A whole number stays one: 500 does not become 500.0."""

    widget = forms.NumberInput(attrs={"step": "any"})

    def clean(self, value: Any) -> int | float:
        text = super().clean(value)
        try:
            number = int(text) if text.lstrip("+-").isdecimal() else float(text)
        except ValueError:
            raise forms.ValidationError(f"Write a number, not “{text}”.") from None
        if not math.isfinite(number):
            raise forms.ValidationError("Write a number that can be stored.")
        return number


class YesNo(forms.TypedChoiceField):
    def __init__(self, **kwargs: Any) -> None:
        choices = [("true", "true"), ("false", "false")]
        super().__init__(
            choices=choices, coerce=lambda text: text == "true", widget=forms.RadioSelect, **kwargs
        )


class Json(forms.CharField):
    widget = forms.Textarea(attrs={"rows": 10, "class": "mono", "spellcheck": "false"})

    def clean(self, value: Any) -> Any:
        try:
            return json.loads(super().clean(value), parse_constant=_no_number)
        except ValueError as error:
            raise forms.ValidationError(f"This is not JSON: {error}.") from None


class MemoryForm(ReasonForm):
    """The plan is one step a line; a completed one begins with ``[x]``. Notes stand apart by an empty line."""

    act, rule, button, done = "memory", "repair", "Change the memory", DONE

    goal = Words(required=False, widget=forms.Textarea(attrs={"rows": 2}))
    plan = Words(
        required=False,
        help_text=f"One step a line. Put {repairs.MARK} before a step that is done.",
    )
    notes = Words(
        required=False,
        widget=forms.Textarea(attrs={"rows": 4}),
        help_text="An empty line between two notes.",
    )
    field_order = ("version", "goal", "plan", "notes", "reason")

    def perform(self, **given: Any) -> Session:
        present = state.memory(self.session.current_branch, mask=Mask.none()) or state.Memory()
        steps = repairs.steps_of(given["plan"])
        typed = {
            "goal": given["goal"],
            "plan": [step for step, _ in steps],
            "notes": repairs.notes_of(given["notes"]),
        }
        written = {"goal": present.goal, "plan": [step for step, _ in present.plan], "notes": present.notes}
        meant = Mask.configured().restore(typed, written)
        done = [step for step, (_, did) in zip(meant["plan"], steps, strict=True) if did]
        return actions.edit_memory(**given | meant, completed=done)


class StateForm(ReasonForm):
    """The field is made for the present value's type."""

    act, rule, button, done = "state-value", "repair", "Change the value", DONE

    key = forms.CharField(max_length=200, widget=forms.HiddenInput)
    FIELDS: ClassVar[dict[str, type[forms.Field]]] = {
        "text": Words,
        "a number": Number,
        "true or false": YesNo,
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        key = str(self["key"].value() or "")
        self.present = repairs.value(self.session.current_branch, key)
        value = Mask.configured().json({key: self.present})[key]
        what = kind(self.present)
        # What is hidden may be of another type than what it hides.
        made = self.FIELDS.get(what, Json) if kind(value) == what else Json
        self.fields["value"] = made(label=key or "Value", required=made is not Words)
        if made is Json:
            self.fields["value"].help_text = (
                "JSON; a text stands in quotes." if value is None else f"JSON: {what}, as before."
            )
        self.initial.setdefault(
            "value", value if made is Words else json.dumps(value, ensure_ascii=False, indent=2)
        )
        self.order_fields(["version", "key", "value", "reason"])

    def perform(self, **given: Any) -> Session:
        key = given.pop("key")
        values = Mask.configured().restore({key: given.pop("value")}, {key: self.present})
        return actions.edit_state(values=values, **given)


class WordsForm(ReasonForm):
    act, rule, button, done = "words", "repair", "Replace the words", DONE

    position = forms.IntegerField(
        widget=forms.HiddenInput, error_messages={"required": "Choose a message that the model reads."}
    )
    text = Words(label="What the model reads instead", max_length=200_000)
    field_order = ("version", "position", "text", "reason")

    def perform(self, **given: Any) -> Session:
        present = repairs.message_text(self.session.current_branch, given["position"])
        given["text"] = Mask.configured().restore(given["text"], present)
        return actions.replace_message(**given)


class AnswerForm(CallForm):
    act, rule, button, done = "answer", "repair", "Answer for the tool", DONE

    answer = forms.ChoiceField(
        choices=[("result", "Its result is"), ("skip", "Skip it, and tell the agent")],
        widget=forms.RadioSelect,
        error_messages={"required": "Choose: enter the call's result, or skip it."},
    )
    text = Words(label="Result, or message to the agent", widget=forms.Textarea(attrs={"rows": 4}))
    reason = ReasonForm.base_fields["reason"]

    def perform(self, **given: Any) -> Session:
        answer, text = given.pop("answer"), given.pop("text")
        return actions.answer_call(**given, **{answer: text})


class StepForm(ReasonForm):
    """A field for the result of each call that has not ended: then the step is done."""

    act, rule, button, done = "step", "repair", "Mark the step as done", DONE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls = repairs.unfinished(self.session.current_branch, Mask.configured())
        if not self.calls:
            self.impossible = "Every call of the newest step has ended: there is nothing to do by hand."
        for call in self.calls:
            self.fields[f"result-{call.pk}"] = Words(
                label=f"Result of {call.tool}",
                help_text=arguments(call.ran_with, 300),
                widget=forms.Textarea(attrs={"rows": 2}),
            )
        self.order_fields(["version", *(f"result-{call.pk}" for call in self.calls), "reason"])

    def perform(self, **given: Any) -> Session:
        results = {call.pk: given.pop(f"result-{call.pk}") for call in self.calls}
        return actions.answer_step(**given, results=results)


REPAIRS: dict[str, type[ActForm]] = {
    form.act: form for form in (MemoryForm, StateForm, WordsForm, AnswerForm, StepForm)
}


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number that can be stored")
