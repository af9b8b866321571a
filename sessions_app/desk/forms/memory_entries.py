"""The forms about an entry of the long-term memory, on the session from which it was learned."""

from functools import cached_property
from typing import Any

from django import forms
from django.http import Http404

from agentstate.durable.long_term import LONGEST_ENTRY
from sessions_app import actions
from sessions_app.access.action import Action
from sessions_app.access.typed import whole_number
from sessions_app.action_list import EDIT_ENTRY, ERASE_ENTRY
from sessions_app.desk.forms.base import ActionForm, ReasonForm
from sessions_app.desk.forms.fields import Key, LongText, restored_text
from sessions_app.models import MemoryEntry, Session


class EraseEntryForm(ReasonForm):
    details = "session/_dialog_entry.html"

    entry = Key(error_messages={"required": "Choose an entry of the memory first."})
    field_order: tuple[str, ...] = ("version", "entry", "reason")

    @cached_property
    def entry_row(self) -> MemoryEntry | None:
        """The entry itself, with nothing hidden; None if the session does not have it."""
        key = whole_number(str(self["entry"].value() or ""))
        if key is None:
            return None
        return MemoryEntry.objects.filter(pk=key, session=self.session).first()

    def read_details(self) -> dict[str, Any]:
        if self.entry_row is None:
            raise Http404("This session has no such entry.")
        return {"entry": self.context.mask.row(self.entry_row)}

    def run(self) -> Session:
        self.cleaned_data["entry_id"] = self.cleaned_data.pop("entry")
        return super().run()

    def perform(self, **arguments: Any) -> Session:
        return actions.erase_entry(**arguments)


class EditEntryForm(EraseEntryForm):
    text = LongText(label="Memory", max_length=LONGEST_ENTRY, widget=forms.Textarea(attrs={"rows": 3}))
    field_order = ("version", "entry", "text", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.is_bound and self.entry_row is not None:
            self.initial["text"] = self.context.mask.named("text", self.entry_row.text)

    def perform(self, **arguments: Any) -> Session:
        if self.entry_row is not None:
            arguments["text"] = restored_text(self.context.mask, arguments["text"], self.entry_row.text)
        return actions.edit_entry(**arguments)


FORMS: dict[Action, type[ActionForm]] = {EDIT_ENTRY: EditEntryForm, ERASE_ENTRY: EraseEntryForm}
