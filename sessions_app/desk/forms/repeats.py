"""Forms that a browser can send twice, though the person meant it once: on loading again, or after going back.

Each drawing of such a form has an id. A page to which a person goes back is drawn anew, but has the id again with which
it was sent, until they change something (`static/desk/desk.js`). What they typed belongs to the id of the request as
well: other words are another request, whatever the id.
"""

import json
from typing import Any
from uuid import UUID, uuid4, uuid5

from django import forms
from django.http import QueryDict

# The field of the id in the form.
FORM_ID = "form_id"
# What a form holds besides what a person typed.
_NOT_TYPED = (FORM_ID, "csrfmiddlewaretoken", "version", "back")


class FormId(forms.Field):
    """The id of one drawing of a form. A form without one, or with a damaged one, is carried out each time."""

    widget = forms.HiddenInput

    def __init__(self) -> None:
        super().__init__(required=False, initial=uuid4)

    def clean(self, value: Any) -> UUID | None:
        try:
            return UUID(str(value))
        except ValueError:
            return None


def request_id(form: forms.Form, *about: object) -> UUID | None:
    """The id of the request by which a valid form with a field `FORM_ID` was sent.

    :param about: What the request is about besides what was typed.
    """
    drawing = form.cleaned_data[FORM_ID]
    assert isinstance(form.data, QueryDict)
    typed = sorted((name, values) for name, values in form.data.lists() if name not in _NOT_TYPED)
    return uuid5(drawing, json.dumps([*map(str, about), typed])) if drawing else None
