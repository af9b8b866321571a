"""The forms about lists of sessions: a bulk action on all of them, and a list saved under a name."""

from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.db.models import QuerySet

from sessions_app import actions
from sessions_app.access.action import Action
from sessions_app.access.roles import Actor
from sessions_app.desk.forms.base import ReasonForm
from sessions_app.desk.forms.fields import Key
from sessions_app.desk.forms.session import AssignForm
from sessions_app.models import BulkAction, SavedView, Session


class BulkForm(forms.Form):
    """``expected`` is the number of sessions that the person was shown."""

    expected = Key()
    assignee = AssignForm.base_fields["assignee"]
    reason = ReasonForm.base_fields["reason"]

    def __init__(self, *args: Any, action: Action, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action = action
        for name in {"assignee"}.difference(action.bulk_fields):
            del self.fields[name]
        # The page is this form: who opens it can type at once.
        self.visible_fields()[0].field.widget.attrs["autofocus"] = True

    def run(self, actor: Actor, sessions: QuerySet[Session], query: str) -> BulkAction:
        assignee: User | None = self.cleaned_data.get("assignee")
        return actions.bulk_start(
            actor=actor,
            kind=self.action.key,
            sessions=sessions,
            reason=self.cleaned_data["reason"],
            query=query,
            assignee=assignee,
            expected=self.cleaned_data["expected"],
        )


class ViewForm(forms.Form):
    name = forms.CharField(max_length=60, error_messages={"required": "Enter a name."})
    shared = forms.BooleanField(required=False, label="Share with everyone")
    replace = forms.BooleanField(required=False, label="Replace my view of the same name")
    query = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, why_not_share: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if why_not_share:
            shared = self.fields["shared"]
            shared.label = f"{shared.label}. {why_not_share}"
            shared.widget.attrs["disabled"] = True

    def run(self, actor: Actor) -> SavedView:
        return actions.save_view(actor=actor, **self.cleaned_data)
