"""Forms that a browser can send twice, although the person meant to send it once: on a reload, or after going back.

Each time such a form is rendered it has another id, of which the id of the request is made. A page to which a person
goes back is rendered anew, but a script gives it the id with which it was sent (`static/desk/desk.js`). What was sent
before is not carried out again: the person is told so, and may send it once more. Of two requests that come at the same
moment the action carries out one.
"""

import json
from typing import Any
from uuid import UUID, uuid4, uuid5

from django import forms
from django.http import QueryDict

from sessions_app.access.errors import SentBefore
from sessions_app.access.roles import Actor
from sessions_app.models import HandledRequest

# The field of the id in the form.
FORM_ID = "form_id"
# What a form holds besides what a person typed.
_NOT_TYPED = (FORM_ID, "csrfmiddlewaretoken", "version", "back")


class FormId(forms.Field):
    """The id of a form as it is rendered. One without an id, or with a damaged one, is carried out each time."""

    widget = forms.HiddenInput

    def __init__(self) -> None:
        super().__init__(required=False, initial=uuid4)

    def clean(self, value: Any) -> UUID | None:
        try:
            return UUID(str(value))
        except ValueError:
            return None


def take_request_id(form: forms.Form, actor: Actor, *about: object) -> UUID | None:
    """The id of the request by which a valid form with a field `FORM_ID` was sent. One query.

    It stands for the person and for what they typed, too: other words are another request, and so are those of another
    person in the same browser.

    :param about: What the request is about besides what was typed.
    :raises SentBefore: if the request was carried out before. The form is given another id, for sending it once more.
    """
    form_id, data = form.cleaned_data[FORM_ID], form.data
    if form_id is None:
        return None
    assert isinstance(data, QueryDict)
    typed = [(name, [value for value in values if value]) for name, values in sorted(data.lists())]
    typed = [(name, values) for name, values in typed if values and name not in _NOT_TYPED]
    key = uuid5(form_id, json.dumps([actor.name, *map(str, about), typed]))
    if before := HandledRequest.objects.filter(pk=key).first():
        form.data = data.copy()
        form.data[FORM_ID] = str(uuid4())
        raise SentBefore(before.session_id)
    return key
