"""The desk's forms: one per act. Each reads what a person typed, and does the act through `sessions_app.actions`.

`run` may raise any `ActionError`; the view shows it on the same form, so nothing that was typed is lost.
"""

import json
from typing import Any, ClassVar

from django import forms
from django.contrib.auth.models import User

from sessions_app import actions, wording
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.pages.session import checkpoints
from sessions_app.models import CallStatus, RegisteredAgent, Session, Status, ToolCall

DECISIONS = [
    ("result", "It ran: enter its result"),
    ("again", "Run it again"),
    ("skip", "Skip it, and tell the agent"),
]
NOTHING_SAID = "Write what the agent is told instead of a result."


def decided(decision: str, text: str) -> dict[str, Any]:
    """A choice of `DECISIONS` as the actions take it."""
    return {"again": True} if decision == "again" else {decision: text}


class JsonObject(forms.CharField):
    """A JSON object, empty for none."""

    widget = forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "class": "mono"})

    def clean(self, value: Any) -> dict[str, Any] | None:
        text = super().clean(value)
        if not text:
            return None
        try:
            data = json.loads(text)
        except ValueError as error:
            raise forms.ValidationError(f"This is not JSON: {error}.") from None
        if not isinstance(data, dict):
            raise forms.ValidationError('Write a JSON object, such as {"policy": "POL-88"}.')
        return data


class StartForm(forms.Form):
    agent = forms.ChoiceField()
    message = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 4}), help_text="What the customer asks, in their words."
    )
    title = forms.CharField(
        required=False, max_length=200, help_text="The message's beginning, if left empty."
    )
    customer = forms.CharField(required=False, max_length=200)
    tags = forms.CharField(required=False, help_text="Separated by commas.")
    state = JsonObject(
        required=False, label="State values", help_text="A JSON object with values for the agent's state."
    )
    generation_kwargs = JsonObject(
        required=False,
        label="Generation options",
        help_text='A JSON object for the model, such as {"temperature": 0}.',
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agents = list(RegisteredAgent.objects.all())
        field = self.fields["agent"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(agent.key, agent.title) for agent in self.agents if not agent.problem]

    def run(self, actor: Actor) -> Session:
        data = dict(self.cleaned_data)
        tags = [tag.strip() for tag in data.pop("tags").split(",") if tag.strip()]
        return actions.start(actor=actor, tags=tags, **data)


class ActForm(forms.Form):
    """An act on one session. ``version`` is that of the session as the page showed it.

    ``rule`` is the act's name in `access.availability` and `access.roles`, where that is another one.
    """

    act: ClassVar[str]
    rule = ""
    button: str
    done: ClassVar[str]
    impossible = ""  # why there is nothing to do, where the rules cannot tell

    version = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, session: Session, call: ToolCall | None = None, **kwargs: Any) -> None:
        self.session = session
        self.call = call
        super().__init__(*args, **kwargs)

    def run(self, actor: Actor) -> Session:
        data = dict(self.cleaned_data)
        return self.perform(
            actor=actor, session_id=self.session.pk, expected_version=data.pop("version"), **data
        )

    def perform(self, **given: Any) -> Session:
        act = getattr(actions, self.act)
        session: Session = act(**given)
        return session


class ReasonForm(ActForm):
    reason = forms.CharField(
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Kept in the audit trail.",
        error_messages={"required": "Say why: the reason is kept in the audit trail."},
    )


class PauseForm(ReasonForm):
    act, button, done = "pause", "Pause", "Paused."


class ResumeForm(ReasonForm):
    """Where calls are in doubt, they are decided in the same form, and with them the session is resumed."""

    act, button, done = "resume", "Resume", "Resumed."

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.doubts: list[ToolCall] = []
        if self.session.status in (Status.WAITING, Status.PAUSED):
            found = ToolCall.objects.filter(branch=self.session.branch, status=CallStatus.DOUBT)
            self.doubts = Mask.configured().rows(found.defer("result", "state").order_by("position"))
        if not self.doubts:
            return
        self.rule, self.button = "decide", "Decide and resume"
        reason = self.fields.pop("reason")
        for call in self.doubts:
            self.fields[f"decision-{call.pk}"] = forms.ChoiceField(
                label=f"{call.tool} {wording.arguments(call.arguments, 60)}".strip(),
                choices=DECISIONS,
                widget=forms.RadioSelect,
                error_messages={"required": "Choose what became of the call."},
            )
            self.fields[f"text-{call.pk}"] = forms.CharField(
                required=False,
                label=f"Result of {call.tool}, or message to the agent",
                widget=forms.Textarea(attrs={"rows": 2}),
            )
        self.fields["reason"] = reason

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        for call in self.doubts:
            if data.get(f"decision-{call.pk}") == "skip" and not data.get(f"text-{call.pk}"):
                self.add_error(f"text-{call.pk}", NOTHING_SAID)
        return data

    def perform(self, **given: Any) -> Session:
        if not self.doubts:
            return super().perform(**given)
        decisions = {
            call.pk: decided(given.pop(f"decision-{call.pk}"), given.pop(f"text-{call.pk}"))
            for call in self.doubts
        }
        return actions.decide_all(decisions=decisions, **given)


class ReleaseForm(ReasonForm):
    act, button, done = "release", "Release", "Released. Another worker may take it."


class NoteForm(ActForm):
    act, button, done = "note", "Note it", "Noted."

    # A note harms nothing if the session has moved on: the version is not asked for.
    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    text = forms.CharField(
        label="Note",
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="For colleagues: the agent does not read it.",
    )

    def perform(self, **given: Any) -> Session:
        given.pop("expected_version")
        return actions.note(**given)


class CancelForm(ReasonForm):
    act, button, done = "cancel", "Cancel the session", "Cancelled."


class UndoForm(ReasonForm):
    act, button, done = "undo", "Undo the rewind", "Undone: the session is where it was."


class CheckpointForm(ReasonForm):
    checkpoint = forms.IntegerField(
        widget=forms.HiddenInput, error_messages={"required": "Choose a checkpoint first."}
    )
    run_on = forms.BooleanField(required=False, label="Run on from there at once")

    def perform(self, **given: Any) -> Session:
        given["checkpoint_id"] = given.pop("checkpoint")
        given["run"] = given.pop("run_on")
        return super().perform(**given)

    @property
    def chosen(self) -> int | None:
        """The checkpoint that the form is about, as far as one is chosen."""
        value = str(self["checkpoint"].value() or "")
        return int(value) if value.isdecimal() else None


class RewindForm(CheckpointForm):
    act, button, done = "rewind", "Rewind", "Rewound. What came after stays readable, and you can undo it."


class ForkForm(CheckpointForm):
    act, button, done = "fork", "Fork", "This is the fork: it goes its own way from here."

    replace = forms.IntegerField(required=False, widget=forms.HiddenInput)
    message = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="Another message to go on with. With one, the fork runs at once.",
    )
    title = forms.CharField(required=False, max_length=200)
    field_order = ("version", "checkpoint", "replace", "message", "title", "run_on", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self["replace"].value() not in (None, ""):
            said = self.fields["message"]
            said.label, said.required = "Said instead", True
            said.help_text = "The model sees only this, not what was said before. The fork runs at once."

    def perform(self, **given: Any) -> Session:
        if (replaced := given.get("replace")) is not None and self.session.branch is not None:
            said = checkpoints.user_text_at(self.session.branch, replaced)
            given["message"] = Mask.configured().restore(given["message"], said)
        return super().perform(**given)


class MessageForm(ActForm):
    act, button, done = "message", "Send", "Sent. The agent reads it at its next step."

    # A message harms nothing if the session has moved on: the version is not asked for.
    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    text = forms.CharField(label="Message", widget=forms.Textarea(attrs={"rows": 3}))

    def perform(self, **given: Any) -> Session:
        given.pop("expected_version")
        return actions.send_message(**given)


class AssignForm(ActForm):
    act, button, done = "assign", "Assign", "Assigned."

    assignee = forms.ModelChoiceField(
        User.objects.filter(is_active=True).order_by("username"),
        required=False,
        to_field_name="username",
        empty_label="nobody",
    )


class CallForm(ActForm):
    call_id = forms.IntegerField(widget=forms.HiddenInput)


class ApproveForm(CallForm):
    """``edited`` is made from the fields of the tool's schema, see `sessions_app.desk.pages.arguments`."""

    act, button, done = "approve", "Approve", "Approved. The call runs with the arguments shown."

    fingerprint = forms.CharField(widget=forms.HiddenInput, max_length=64)
    for_session = forms.BooleanField(required=False, label="Allow this tool for the rest of the session")
    reason = forms.CharField(required=False, max_length=2000, label="Note")


class ReuseForm(CallForm):
    """For a call that has run already, on a tail that a rewind left behind."""

    act, rule, button, done = (
        "reuse",
        "approve",
        "Use the recorded result",
        "The recorded result is used; the call does not run.",
    )

    reason = forms.CharField(required=False, max_length=2000, label="Note")


class WithdrawForm(ActForm):
    act, button, done = "withdraw", "Ask again", "From its next step on it is asked for again."

    tool = forms.CharField(widget=forms.HiddenInput, max_length=200)
    reason = forms.CharField(required=False, max_length=2000, label="Note")


class RejectForm(CallForm):
    act, button, done = "reject", "Reject", "Rejected. The agent has been told."

    message = forms.CharField(
        label="Message to the agent",
        max_length=4000,
        widget=forms.Textarea(attrs={"rows": 2}),
        error_messages={"required": "Tell the agent why: it reads this instead of a result."},
    )


class DecideForm(CallForm):
    act, button, done = "decide", "Decide", "Decided."

    decision = forms.ChoiceField(
        choices=DECISIONS,
        widget=forms.RadioSelect,
        error_messages={"required": "Choose what became of the call."},
    )
    text = forms.CharField(
        required=False, label="Result, or message to the agent", widget=forms.Textarea(attrs={"rows": 2})
    )
    reason = ReasonForm.base_fields["reason"]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("decision") == "skip" and not data.get("text"):
            self.add_error("text", NOTHING_SAID)
        return data

    def perform(self, **given: Any) -> Session:
        return super().perform(**decided(given.pop("decision"), given.pop("text")), **given)


FORMS: dict[str, type[ActForm]] = {
    form.act: form
    for form in (
        PauseForm,
        ResumeForm,
        CancelForm,
        RewindForm,
        UndoForm,
        ForkForm,
        MessageForm,
        NoteForm,
        ReleaseForm,
        AssignForm,
        ApproveForm,
        RejectForm,
        ReuseForm,
        WithdrawForm,
        DecideForm,
    )
}
