"""The outcomes that a person may record for a call in doubt: the choices of the forms, and the texts that go with them.

Each outcome that needs a text has a field of its own. The stylesheet shows those that go with what is chosen.
"""

from collections.abc import Mapping
from typing import Any

from django import forms

from sessions_app.actions.outcomes import NO_RESULT, DoubtDecision
from sessions_app.desk.forms.fields import LongText

DECISIONS = [
    (DoubtDecision.RESULT.value, "It took effect, with this result"),
    (DoubtDecision.NOTHING.value, "It took effect, and this tool returns nothing"),
    (DoubtDecision.AGAIN.value, "It did not: run again"),
    (DoubtDecision.SKIP.value, "Skip, and tell the agent"),
]
# The field in which a person goes on, by what is chosen.
GOES_ON_IN = {DoubtDecision.RESULT.value: "text", DoubtDecision.SKIP.value: "message"}
# What the button does, by what is chosen.
BUTTON_NAMES = {
    DoubtDecision.RESULT.value: "Record result",
    DoubtDecision.NOTHING.value: "Record outcome",
    DoubtDecision.AGAIN.value: "Run again",
    DoubtDecision.SKIP.value: "Skip",
}
NO_MESSAGE = "Enter what the agent is told instead of a result."
NOT_NOTHING = "You chose “returns nothing” but entered a result. Choose one."
RESULT_HELP = "What the tool returned, as text or as JSON."
MESSAGE_HELP = "The agent reads it instead of a result."


class Outcomes(forms.RadioSelect):
    """The outcomes to choose from. With the attribute ``autofocus``, only the first of them has it."""

    def create_option(
        self, name: str, value: Any, label: Any, selected: Any, index: int, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        option = super().create_option(name, value, label, selected, index, *args, **kwargs)
        if index:
            option["attrs"].pop("autofocus", None)
        return option


def focus_on(fields: Mapping[str, forms.Field], name: str) -> None:
    """Let the dialog open with this field in focus, instead of with the first that can have it."""
    fields[name].widget.attrs["autofocus"] = True


class OutcomeText(LongText):
    """A text that one outcome needs: ``part`` is the class by which the stylesheet shows it with that outcome."""

    def __init__(self, part: str, **kwargs: Any) -> None:
        self.part = part
        super().__init__(required=False, widget=forms.Textarea(attrs={"rows": 2}), **kwargs)


def result_field(of: str = "") -> OutcomeText:
    return OutcomeText("for-result", label=f"Result{of}", help_text=RESULT_HELP)


def message_field(about: str = "") -> OutcomeText:
    return OutcomeText("for-message", label=f"Message to the agent{about}", help_text=MESSAGE_HELP)


def outcome(decision: str, result: str, message: str) -> dict[str, Any]:
    """A choice of `DECISIONS` as the arguments of the actions."""
    match decision:
        case DoubtDecision.SKIP:
            return {decision: message}
        case DoubtDecision.RESULT:
            return {decision: result}
    return {decision: True}


def problem_of_outcome(decision: str | None, result: str | None, message: str | None) -> tuple[str, str]:
    """The part whose text does not go with the choice of `DECISIONS`, and why; two empty texts if all do."""
    match decision:
        case DoubtDecision.SKIP if not message:
            return "message", NO_MESSAGE
        case DoubtDecision.RESULT if not result:
            return "text", NO_RESULT
        case DoubtDecision.NOTHING if result:
            return "text", NOT_NOTHING
    return "", ""
