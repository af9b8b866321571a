"""The forms by which a person decides about one tool call: one that needs approval, or one that is in doubt."""

from typing import Any

from django import forms
from django.http import Http404

from sessions_app import actions
from sessions_app.access.action import Action
from sessions_app.access.typed import REJECTION_CHARACTERS, whole_number
from sessions_app.action_list import APPROVE, DECIDE, REJECT, REUSE
from sessions_app.desk.forms.base import ActionForm, ContinuingForm, ReasonForm, optional_reason
from sessions_app.desk.forms.edited import are_edited, edited_arguments
from sessions_app.desk.forms.fields import Key, LongText
from sessions_app.desk.forms.outcomes import (
    BUTTON_NAMES,
    DECISIONS,
    GOES_ON_IN,
    Outcomes,
    focus_on,
    message_field,
    outcome,
    problem_of_outcome,
    result_field,
)
from sessions_app.desk.pages import approvals, doubts
from sessions_app.desk.pages.arguments import PREFIX
from sessions_app.desk.pages.earlier_effects import Request
from sessions_app.desk.pages.session import samples
from sessions_app.desk.pages.summary import CallSummary, summary_of
from sessions_app.models import Approval, Session, ToolCall

CONTINUES = "and continue with the new definition"
EDITED = (
    "You have edited the arguments, and the recorded result is not that of your edit. "
    "Cancel to run the call with them, or send this to use the recorded result without them."
)


class CallForm(ActionForm):
    details = "session/_dialog_call.html"

    call_id = Key()

    @property
    def subject(self) -> str:
        calls = ToolCall.objects.filter(branch__session=self.session, pk=self.cleaned_data["call_id"])
        row = calls.select_related("approval").defer("result", "state").first()
        if row is None:
            return ""
        return self._summary(self.context.mask.row(row)).line

    @property
    def place(self) -> str:
        calls = ToolCall.objects.filter(branch__session=self.session, pk=self.cleaned_data["call_id"])
        position = calls.values_list("position", flat=True).first()
        return f"c{position}" if position is not None else ""

    def read_details(self) -> dict[str, Any]:
        """The call with its approval, as they are shown, and the card to decide it."""
        key = whole_number(str(self["call_id"].value() or ""))
        calls = ToolCall.objects.filter(branch__session=self.session)
        calls = calls.select_related("branch", "approval__repeats__branch")
        row = calls.filter(pk=key).first() if key is not None else None
        if row is None:
            raise Http404("This session has no such call.")
        call = self.context.mask.row(row)
        approval = getattr(call, "approval", None)
        details = {"call": call, "summary": self._summary(call), "card": None, "approval": approval}
        if approval is None:
            return details
        request = Request(approval, call, self.context.session)
        [card] = approvals.cards([request], self.context.mask, self.arguments_to_run())
        return {**details, "card": card}

    def arguments_to_run(self) -> dict[str, str]:
        """What was typed into the fields of the arguments and the call would run with, by the names of the inputs."""
        return {name: str(value) for name, value in self.data.items() if name.startswith(PREFIX)}

    def _summary(self, call: ToolCall) -> CallSummary:
        return summary_of(self.session.registered_agent, call, self.context.mask)


class ApproveForm(ContinuingForm, CallForm):
    """``edited`` is read from the fields of the tool's schema, see `sessions_app.desk.pages.arguments`."""

    button_if_changed = APPROVE.button
    details = "session/_dialog_approve.html"
    decides = True
    pays = True

    fingerprint = forms.CharField(widget=forms.HiddenInput, max_length=64)
    for_session = forms.BooleanField(
        required=False, label="Pre-approve this tool for the rest of this session"
    )
    effects_seen = forms.BooleanField(required=False)
    reason = optional_reason()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.button_end = CONTINUES if self.session.new_definition else ""

    def read_details(self) -> dict[str, Any]:
        details = super().read_details()
        card = details["card"]
        if card is not None and card.seen_label:
            self.fields["effects_seen"].label = card.seen_label
        else:
            del self.fields["effects_seen"]
        tool = details["call"].tool
        self.fields["for_session"].label = f"Pre-approve {tool} for the rest of this session"
        return details

    def run(self) -> Session:
        approvals_of_call = Approval.objects.select_related("call").filter(
            call_id=self.cleaned_data["call_id"], session=self.session
        )
        self.cleaned_data["edited"], how = edited_arguments(
            approvals_of_call.first(),
            self.data,
            agent=self.session.registered_agent,
            mask=self.context.mask,
        )
        self.cleaned_data |= how
        return super().run()

    def perform(self, **arguments: Any) -> Session:
        approval = Approval.objects.filter(call_id=arguments["call_id"]).first()
        arguments["fingerprint"] = approvals.stored_fingerprint(approval, arguments["fingerprint"])
        return actions.approve(**arguments)


class ReuseForm(ContinuingForm, CallForm):
    """For a call that ran already on a discarded branch."""

    decides = True
    button_if_changed = "Use the recorded result and continue with the new definition"

    reason = optional_reason()

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if (key := data.get("call_id")) is not None and are_edited(
            Approval.objects.select_related("call").filter(call_id=key, session=self.session).first(),
            self.data,
            agent=self.session.registered_agent,
            mask=self.context.mask,
        ):
            self.add_error(None, EDITED)
        return data

    def arguments_to_run(self) -> dict[str, str]:
        """None: nothing runs."""
        return {}

    def perform(self, **arguments: Any) -> Session:
        return actions.reuse(**arguments)


class RejectForm(CallForm):
    message = LongText(
        label="Message to the agent",
        max_length=REJECTION_CHARACTERS,
        widget=forms.Textarea(attrs={"rows": 2}),
        error_messages={"required": "Tell the agent why: it reads this instead of a result."},
    )

    def perform(self, **arguments: Any) -> Session:
        return actions.reject(**arguments)


class DecideForm(ContinuingForm, CallForm):
    decides = True
    details = "session/_dialog_decide.html"
    button_if_changed = DECIDE.button
    button_names = BUTTON_NAMES

    decision = forms.ChoiceField(
        choices=DECISIONS,
        widget=Outcomes,
        error_messages={"required": "Choose the outcome of the call."},
    )
    text = result_field()
    message = message_field()
    reason = ReasonForm.base_fields["reason"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.button_end = CONTINUES if self.session.new_definition else ""
        chosen = str(self["decision"].value() or "")
        focus_on(self.fields, GOES_ON_IN.get(chosen, "reason") if chosen else "decision")

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        name, problem = problem_of_outcome(data.get("decision"), data.get("text"), data.get("message"))
        if problem:
            self.add_error(name, problem)
        return data

    def read_details(self) -> dict[str, Any]:
        details = super().read_details()
        session = self.context.session
        [doubt] = doubts.of_calls([(details["call"], session)], self.context.now, self.context.mask)
        return details | {"doubt": doubt, "samples": samples.of_tools(self.context, [doubt.call.tool])}

    def perform(self, **arguments: Any) -> Session:
        chosen = outcome(*(arguments.pop(name) for name in ("decision", "text", "message")))
        return actions.decide(**chosen, **arguments)


FORMS: dict[Action, type[ActionForm]] = {
    APPROVE: ApproveForm,
    REJECT: RejectForm,
    REUSE: ReuseForm,
    DECIDE: DecideForm,
}
