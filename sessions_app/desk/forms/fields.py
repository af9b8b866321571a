"""The fields of the desk's forms whose values need more than Django's own fields: keys, numbers, JSON and long texts.

What is accepted, and why not, is decided by `sessions_app.access.typed`; a field turns its refusal into an error of the
form, which keeps what was typed.
"""

from typing import Any, ClassVar

from django import forms

from sessions_app.access import typed
from sessions_app.access.errors import Invalid
from sessions_app.access.masking import HIDDEN, Mask


class Key(forms.CharField):
    """A hidden key, position or version."""

    widget = forms.HiddenInput
    default_error_messages: ClassVar[dict[str, Any]] = {
        "required": "The form is incomplete. Open it again.",
        "invalid": "The form contains an invalid number. Open it again.",
    }

    def clean(self, value: Any) -> int | None:
        text = super().clean(value)
        if not text:
            return None
        number = typed.whole_number(text)
        if number is None:
            raise forms.ValidationError(self.error_messages["invalid"])
        return number


class LongText(forms.CharField):
    """A text as it was typed: browsers send another line end than the person meant."""

    widget = forms.Textarea(attrs={"rows": 6})

    def to_python(self, value: Any) -> str:
        return typed.with_plain_line_ends(str(super().to_python(value)))


class WholeText(LongText):
    """The same with the blanks around it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(strip=False, **kwargs)


def as_sent_back(shown: str) -> str:
    """What a `LongText` reads that showed the text, and that nobody has edited."""
    return typed.with_plain_line_ends(shown).strip()


def restored_text(mask: Mask, text: str, original: str, role: str = "") -> str:
    """What a person meant who edited the original in a `LongText`, which has other line ends and none around it.

    :param role: That of the message whose text it is, if it is one.
    :raises Invalid: see `Mask.restore`.
    """
    shown = mask.message(role, original)
    if text == as_sent_back(shown):
        return original
    return str(mask.restore(typed.with_line_ends_of(shown, text), "" if shown == HIDDEN else original))


class Number(forms.CharField):
    """A whole number stays one: 500 does not become 500.0."""

    widget = forms.NumberInput(attrs={"step": "any"})

    def clean(self, value: Any) -> int | float:
        try:
            return typed.read_number(super().clean(value))
        except Invalid as error:
            raise forms.ValidationError(str(error)) from None


class YesNo(forms.TypedChoiceField):
    def __init__(self, **kwargs: Any) -> None:
        choices = [("true", "true"), ("false", "false")]
        super().__init__(
            choices=choices, coerce=lambda text: text == "true", widget=forms.RadioSelect, **kwargs
        )


class Json(forms.CharField):
    """Any JSON value."""

    widget = forms.Textarea(attrs={"rows": 10, "class": "mono", "spellcheck": "false"})

    def clean(self, value: Any) -> Any:
        return _json(super().clean(value))


class JsonObject(forms.CharField):
    """A JSON object, empty for none."""

    widget = forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "class": "mono"})

    def clean(self, value: Any) -> dict[str, Any] | None:
        text = super().clean(value)
        if not text:
            return None
        data = _json(text)
        if not isinstance(data, dict):
            raise forms.ValidationError('Write a JSON object, such as {"name": "value"}.')
        return data


def _json(text: str) -> Any:
    try:
        return typed.read_json(text)
    except Invalid as error:
        raise forms.ValidationError(str(error)) from None
