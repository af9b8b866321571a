"""The forms of the actions on a whole session.

An action that asks for nothing but a reason needs no form of its own: `form_of` gives it `ReasonForm`.
"""

from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.http import Http404

from sessions_app import actions
from sessions_app.access.action import Action
from sessions_app.access.availability import agent_cannot_run
from sessions_app.access.roles import people_who_may
from sessions_app.access.typed import REASON_CHARACTERS, whole_number
from sessions_app.action_list import (
    ASSIGN,
    DECIDE,
    FORK,
    MESSAGE,
    NOTE,
    RESUME,
    REWIND,
    UNDO,
    WITHDRAW,
)
from sessions_app.actions.history import made_by_repair
from sessions_app.desk.forms.base import ActionForm, ContinuingForm, ReasonForm, optional_reason
from sessions_app.desk.forms.fields import Key, LongText, restored_text
from sessions_app.desk.forms.once import FORM_ID, FormId, take_request_id
from sessions_app.desk.forms.outcomes import (
    DECISIONS,
    Outcomes,
    focus_on,
    message_field,
    outcome,
    problem_of_outcome,
    result_field,
)
from sessions_app.desk.pages.advice import TRY_AGAIN
from sessions_app.desk.pages.causes import advice_for
from sessions_app.desk.pages.session import checkpoints, consequences
from sessions_app.desk.pages.summary import summary
from sessions_app.models import STOPPED, CallStatus, Checkpoint, Session, StaffPermission, ToolCall

# The fields of one outcome.
_OUTCOME = ("decision", "text", "message")


class ResumeForm(ContinuingForm, ReasonForm):
    """Where calls are in doubt, they are decided in the same form, and the session is resumed with them."""

    details = "session/_dialog_resume.html"
    button_if_changed = "Resume with the new definition"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.doubts: list[ToolCall] = []
        if self.session.is_failed:
            self.heading = TRY_AGAIN
            self.button = self.button if self.session.new_definition else TRY_AGAIN
        if self.session.status in STOPPED:
            calls = ToolCall.objects.filter(branch=self.session.branch, status=CallStatus.DOUBT)
            calls = calls.select_related("approval").defer("result", "state").order_by("position")
            self.doubts = self.context.mask.rows(calls)
        self.decides = bool(self.doubts)
        if not self.decides:
            return
        self.impossible = agent_cannot_run(self.session)
        changed = " with the new definition" if self.session.new_definition else ""
        number = len(self.doubts)
        self.button = f"{'Decide' if number == 1 else f'Decide all {number} calls'} and resume{changed}"
        reason = self.fields.pop("reason")
        agent = self.session.registered_agent
        for call in self.doubts:
            self.fields[f"decision-{call.pk}"] = forms.ChoiceField(
                label=f"Outcome of: {summary(agent, call.tool, call.ran_with, self.context.mask)}",
                choices=DECISIONS,
                widget=Outcomes,
                error_messages={"required": "Choose the outcome of the call."},
            )
            self.fields[f"text-{call.pk}"] = result_field(f" of {call.tool}")
            self.fields[f"message-{call.pk}"] = message_field(f" about {call.tool}")
        self.fields["reason"] = reason
        focus_on(self.fields, f"decision-{self.doubts[0].pk}")

    @property
    def required_action(self) -> Action:
        return DECIDE if self.decides else RESUME

    def why_not(self, details: dict[str, Any]) -> str:
        lacking = RESUME.lacking(self.context.actor) if self.decides else ""
        return super().why_not(details) or lacking

    def read_details(self) -> dict[str, Any]:
        advice = advice_for(self.context.session)
        return {
            **consequences.details_of_resume(self.context),
            "advice": advice.for_actor(self.context.actor) if advice is not None else None,
        }

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        for call in self.doubts:
            name, problem = problem_of_outcome(*(data.get(f"{name}-{call.pk}") for name in _OUTCOME))
            if problem:
                self.add_error(f"{name}-{call.pk}", problem)
        return data

    def perform(self, **arguments: Any) -> Session:
        if not self.doubts:
            return actions.resume_as_shown(**arguments)
        decisions = {
            call.pk: outcome(*(arguments.pop(f"{name}-{call.pk}") for name in _OUTCOME))
            for call in self.doubts
        }
        return actions.decide_all(decisions=decisions, **arguments)


class UndoForm(ReasonForm):
    details = "session/_dialog_undo.html"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        branch = self.session.current_branch
        if branch.undo_to is not None and made_by_repair(branch):
            self.heading = self.button = "Undo the repair"

    def read_details(self) -> dict[str, Any]:
        target = self.session.current_branch.undo_to
        return {"consequences": consequences.of_undo(self.context), "returns_to": target and target.number}


class OnceForm(ActionForm):
    """For an action that is as good if the session has moved on: the version is not asked for.

    What was sent before is not carried out again unless the person says so.
    """

    version = Key(required=False)
    form_id = FormId()

    def perform(self, **arguments: Any) -> Session:
        del arguments["expected_version"], arguments[FORM_ID]
        arguments["request_id"] = take_request_id(self, self.context.actor, self.action.key, self.session.pk)
        return self.send(**arguments)

    def send(self, **arguments: Any) -> Session:
        raise NotImplementedError


class NoteForm(OnceForm):
    text = LongText(
        label="Note",
        max_length=REASON_CHARACTERS,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="For colleagues: the agent does not read it.",
    )

    def send(self, **arguments: Any) -> Session:
        return actions.note(**arguments)


class CheckpointForm(ReasonForm):
    """``question`` asks for the checkpoint; ``destination`` introduces the one that was chosen."""

    details = "session/_dialog_checkpoint.html"
    question = ""
    destination = ""

    checkpoint = Key(error_messages={"required": "Choose a checkpoint first."})
    run_on = forms.BooleanField(required=False, label="Resume immediately")

    def run(self) -> Session:
        self.cleaned_data["checkpoint_id"] = self.cleaned_data.pop("checkpoint")
        self.cleaned_data["run"] = self.cleaned_data.pop("run_on")
        return super().run()

    def read_details(self) -> dict[str, Any]:
        """The chosen checkpoint with what leaving from it does; without one, the checkpoints to choose from."""
        key = whole_number(str(self["checkpoint"].value() or ""))
        if key is None:
            if self.is_bound:
                raise Http404("No checkpoint was chosen.")
            newest = checkpoints.read_page(self.context, limit=15).checkpoints
            return {
                "checkpoint": None,
                "suggestions": self.suggestions(),
                "newest": newest,
                "present": self.present_place(),
            }
        checkpoint = checkpoints.find(self.context, key)
        if checkpoint is None:
            raise Http404("This session has no such checkpoint.")
        return {
            "checkpoint": checkpoint,
            "consequences": self.consequences(checkpoint),
            "agent_changed": self._agent_changed_since(checkpoint),
        }

    def _agent_changed_since(self, checkpoint: Checkpoint) -> bool:
        """Whether a run from there stops until a person resumes it with the new definition; a new turn does not."""
        agent = self.session.registered_agent
        if agent is None or agent.problem or checkpoint.kind == Checkpoint.Kind.END:
            return False
        return bool(checkpoint.definition) and checkpoint.definition != agent.definition

    def suggestions(self) -> list[checkpoints.Suggestion]:
        return checkpoints.suggestions(self.context)

    def present_place(self) -> int | None:
        """The checkpoint that is not offered, since the session rests there."""
        return None

    def consequences(self, checkpoint: Checkpoint) -> consequences.Consequences | None:
        """What leaving from the checkpoint does to this session; None for nothing."""
        return None


class RewindForm(CheckpointForm):
    question = "Rewind to"
    destination = "Rewind to"

    def suggestions(self) -> list[checkpoints.Suggestion]:
        """No checkpoint at which the session is already; and the last message, which its correction rewinds to."""
        present, message = self.present_place(), checkpoints.editable(self.context)
        elsewhere = [place for place in super().suggestions() if place.checkpoint.pk != present]
        return [*elsewhere, *([message] if message else [])]

    def present_place(self) -> int | None:
        return checkpoints.present_place(self.context)

    def consequences(self, checkpoint: Checkpoint) -> consequences.Consequences | None:
        return consequences.of_rewind(self.context, checkpoint)

    def perform(self, **arguments: Any) -> Session:
        return actions.rewind(**arguments)


class ForkForm(CheckpointForm):
    question = "Fork from"
    destination = "A new session from"

    replace = Key(required=False)
    message = LongText(
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="Optional first message. With one, the fork runs immediately.",
    )
    title = forms.CharField(required=False, max_length=200)
    field_order = ("version", "checkpoint", "replace", "message", "title", "run_on", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self["replace"].value() not in (None, ""):
            message = self.fields["message"]
            message.label, message.required = "New message", True
            message.help_text = "The model reads this message instead. The fork runs immediately."

    def suggestions(self) -> list[checkpoints.Suggestion]:
        message = checkpoints.replaceable(self.context)
        return [*super().suggestions(), *([message] if message else [])]

    def perform(self, **arguments: Any) -> Session:
        replaced = arguments.get("replace")
        if replaced is not None:
            original = checkpoints.user_text_at(self.session.current_branch, replaced)
            arguments["message"] = restored_text(self.context.mask, arguments["message"], original)
        return actions.fork(**arguments)


class MessageForm(OnceForm):
    text = LongText(label="Message", widget=forms.Textarea(attrs={"rows": 3}))
    from_customer = forms.BooleanField(required=False, label="These are the customer's words")

    def send(self, **arguments: Any) -> Session:
        return actions.send_message(**arguments)


class AssignForm(ActionForm):
    assignee = forms.ModelChoiceField(
        people_who_may(StaffPermission.VIEW).order_by("username"),
        required=False,
        to_field_name="username",
        empty_label="nobody",
        error_messages={
            "invalid_choice": "%(value)s cannot see sessions, or has no account, so none can be assigned to them."
        },
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Without a choice for whoever has the session now, nobody would be chosen unseen.
        field = self.fields["assignee"]
        if isinstance(field, forms.ModelChoiceField) and self.session.assignee_id is not None:
            present = User.objects.filter(pk=self.session.assignee_id)
            field.queryset = people_who_may(StaffPermission.VIEW).order_by("username") | present

    def perform(self, **arguments: Any) -> Session:
        return actions.assign(**arguments)


class WithdrawForm(ActionForm):
    tool = forms.CharField(widget=forms.HiddenInput, max_length=200)
    reason = optional_reason()

    def perform(self, **arguments: Any) -> Session:
        return actions.withdraw(**arguments)


FORMS: dict[Action, type[ActionForm]] = {
    RESUME: ResumeForm,
    REWIND: RewindForm,
    UNDO: UndoForm,
    FORK: ForkForm,
    MESSAGE: MessageForm,
    NOTE: NoteForm,
    ASSIGN: AssignForm,
    WITHDRAW: WithdrawForm,
}
