"""The forms by which a person repairs a session: its memory, its state, a message, a call's answer.

A repair never changes a row in place: the action makes a branch, which can be undone.
"""

import json
from typing import Any

from django import forms

from sessions_app import actions
from sessions_app.forms import ActForm, CallForm, ReasonForm
from sessions_app.models import Session

DONE = "Repaired, on a branch of its own. You can undo it."
_MARK = "[x] "


class MemoryForm(ReasonForm):
    """The plan is one step a line; a completed one begins with ``[x]``."""

    act, rule, button, done = "memory", "repair", "Change the memory", DONE

    goal = forms.CharField(required=False, max_length=2000)
    plan = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 6}),
        help_text="One step a line. Put [x] before a step that is done.",
    )
    notes = forms.CharField(
        required=False, widget=forms.Textarea(attrs={"rows": 4}), help_text="One note a line."
    )
    field_order = ("version", "goal", "plan", "notes", "reason")

    def perform(self, **given: Any) -> Session:
        lines = [line.strip() for line in given["plan"].splitlines() if line.strip()]
        steps = [(line.removeprefix(_MARK.strip()).strip(), line.startswith(_MARK.strip())) for line in lines]
        given["plan"] = [step for step, _ in steps]
        given["completed"] = [step for step, did in steps if did]
        given["notes"] = [line.strip() for line in given["notes"].splitlines() if line.strip()]
        return actions.edit_memory(**given)


class StateForm(ReasonForm):
    act, rule, button, done = "state-value", "repair", "Change the value", DONE

    key = forms.CharField(max_length=200, widget=forms.TextInput(attrs={"readonly": True}))
    value = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 8, "class": "mono", "spellcheck": "false"}),
        help_text="JSON, of the same type as before. A text stands in quotes.",
    )
    field_order = ("version", "key", "value", "reason")

    def clean_value(self) -> Any:
        try:
            return json.loads(self.cleaned_data["value"])
        except ValueError as error:
            raise forms.ValidationError(f"This is not JSON: {error}.") from None

    def perform(self, **given: Any) -> Session:
        return actions.edit_state(values={given.pop("key"): given.pop("value")}, **given)


class WordsForm(ReasonForm):
    act, rule, button, done = "words", "repair", "Replace the words", DONE

    position = forms.IntegerField(widget=forms.HiddenInput)
    text = forms.CharField(
        label="What the model sees instead", max_length=200_000, widget=forms.Textarea(attrs={"rows": 6})
    )
    field_order = ("version", "position", "text", "reason")

    def perform(self, **given: Any) -> Session:
        return actions.replace_message(**given)


class AnswerForm(CallForm):
    act, rule, button, done = "answer", "repair", "Answer for the tool", DONE

    answer = forms.ChoiceField(
        choices=[("result", "Its result is"), ("skip", "Skip it, and tell the agent")],
        widget=forms.RadioSelect,
    )
    text = forms.CharField(label="Result, or message to the agent", widget=forms.Textarea(attrs={"rows": 4}))
    reason = ReasonForm.base_fields["reason"]

    def perform(self, **given: Any) -> Session:
        answer, text = given.pop("answer"), given.pop("text")
        return actions.answer_call(**given, **{answer: text})


REPAIRS: dict[str, type[ActForm]] = {
    form.act: form for form in (MemoryForm, StateForm, WordsForm, AnswerForm)
}
