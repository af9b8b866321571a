"""Forms that a browser can send twice, though the person meant it once: on going back, or on loading the answer again.

Each drawing of such a form has an id. What the form holds belongs to the request's id as well: a person who goes back,
writes something else and sends it sends a second request.
"""

import json
from collections.abc import Mapping
from uuid import UUID, uuid4, uuid5

from django import forms
from django.http import QueryDict

from sessions_app.desk.forms.fields import Key

# The field of the id in the form.
FORM_ID = "form_id"


class FormId(forms.UUIDField):
    """The id of one drawing of a form. A form without one can be sent again."""

    def __init__(self) -> None:
        super().__init__(
            required=False,
            widget=forms.HiddenInput,
            initial=uuid4,
            error_messages={"invalid": Key.default_error_messages["required"]},
        )


def request_id(form: forms.Form) -> UUID | None:
    """The id of the request by which a valid form with a field `FORM_ID` was sent."""
    drawing = form.cleaned_data[FORM_ID]
    return uuid5(drawing, _typed_in(form.data)) if drawing else None


def _typed_in(data: Mapping[str, str] | QueryDict) -> str:
    fields = dict(data.lists()) if isinstance(data, QueryDict) else dict(data)
    fields.pop("csrfmiddlewaretoken", None)
    return json.dumps(fields, sort_keys=True)
