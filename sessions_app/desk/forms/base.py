"""What the forms of the actions have in common: each reads what a person typed, and calls one function of the actions.

`run` may raise any `ActionError`; the view shows it on the same form, so nothing that was typed is lost.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms

from sessions_app import actions
from sessions_app.access.action import Action
from sessions_app.access.typed import REASON_CHARACTERS
from sessions_app.desk.forms.fields import Key, LongText
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.models import Session

# What an action may be about besides the session: the names of `Action.impossible`.
TARGETS = ("checkpoint", "call", "approval")
# The parameter of the first button of a form that has two: without it, what the second one does is done.
FIRST = "first"
# The parameter of the button that browsers press for Enter in a field of a form that decides a call.
UNDECIDED = "undecided"
NOT_DECIDED = (
    "Nothing was decided, because no button was pressed. What you typed is kept: press a button below."
)


class ActionForm(forms.Form):
    """An action on one session, as the person sees it. ``version`` is that of the session as the page showed it.

    ``details`` is the template of what the dialog shows above the fields: the values that `read_details` returns.
    ``heading`` and ``button`` may be others than the action's where the form does more. ``second_button`` is the label
    of another button; the first one then sends the form with the parameter `FIRST`. "" for none. ``pays`` says that the
    button names the sum that the call moves, if it moves one, and ``button_end`` what follows the sum there.
    ``button_names`` are the names that a script gives the button, by the chosen value of the field ``decision``.
    ``decides`` says that it decides calls, so that Enter in a field does not send it.
    """

    details = ""
    second_button = ""
    pays = False
    decides = False
    button_end = ""
    button_names: ClassVar[Mapping[str, str]] = {}
    impossible = ""  # why there is nothing to do, where the action's rule cannot tell

    version = Key()

    def __init__(self, *args: Any, action: Action, context: SessionContext, **kwargs: Any) -> None:
        self.action = action
        self.context = context
        self.session = context.session_row
        self.heading, self.button = action.title, action.button
        super().__init__(*args, **kwargs)

    @property
    def subject(self) -> str:
        """What the action is about besides the session, in a few words, masked: ``Refund €120.00``."""
        return ""

    @property
    def place(self) -> str:
        """The id of the element on the session's page where it shows what was done, "" for the top of the page."""
        return ""

    @property
    def required_action(self) -> Action:
        """The action whose permission and rule decide whether the form can be sent."""
        return self.action

    def read_details(self) -> dict[str, Any]:
        """The values of ``details``. Among them are the rows that the action's rule asks about: see `TARGETS`.

        :raises Http404: if what the form is about does not exist.
        """
        return {}

    def clean(self) -> dict[str, Any]:
        if UNDECIDED in self.data:
            self.add_error(None, NOT_DECIDED)
        return super().clean() or {}

    def why_not(self, details: dict[str, Any]) -> str:
        """Why this person cannot send the form now, "" if they can."""
        action = self.required_action
        if lacking := action.lacking(self.context.actor):
            return lacking
        targets = {name: details[name] for name in TARGETS if name in details}
        reason = action.impossible(self.session, now=self.context.now, **targets) or self.impossible
        return self.context.mask.text(reason)

    def run(self) -> Session:
        data = dict(self.cleaned_data)
        return self.perform(
            actor=self.context.actor,
            session_id=self.session.pk,
            expected_version=data.pop("version"),
            **data,
        )

    def perform(self, **arguments: Any) -> Session:
        raise NotImplementedError


def optional_reason() -> forms.CharField:
    """The field of an action that may be done without a reason."""
    return forms.CharField(required=False, max_length=REASON_CHARACTERS, label="Note")


class ReasonForm(ActionForm):
    """For an action that asks for nothing but a reason, and as the base of those that ask for more."""

    reason = LongText(
        max_length=REASON_CHARACTERS,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Kept in the audit trail.",
        error_messages={"required": "Say why: the reason is kept in the audit trail."},
    )

    def perform(self, **arguments: Any) -> Session:
        return actions.BY_REASON[self.action](**arguments)


class ContinuingForm(ActionForm):
    """For an action after which the agent continues.

    ``definition`` is the agent's new definition, where the page showed that it has changed. The button then says that
    the agent continues with it.
    """

    button_if_changed = ""

    definition = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.session.new_definition:
            self.button = self.button_if_changed
