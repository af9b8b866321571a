"""The outcomes that a person may record for a call in doubt: the choices of the forms, and the text of each."""

from typing import Any

from sessions_app.actions.outcomes import NO_RESULT, DoubtDecision

DECISIONS = [
    (DoubtDecision.RESULT.value, "It took effect, with this result"),
    (DoubtDecision.NOTHING.value, "It took effect, and this tool returns nothing"),
    (DoubtDecision.AGAIN.value, "It did not: run again"),
    (DoubtDecision.SKIP.value, "Skip, and tell the agent"),
]
NO_MESSAGE = "Write what the agent is told instead of a result."
NOT_NOTHING = "It returns nothing, but a result is written here. Choose one."


def outcome(decision: str, text: str) -> dict[str, Any]:
    """A choice of `DECISIONS` as the arguments of the actions."""
    return {decision: True} if decision in (DoubtDecision.AGAIN, DoubtDecision.NOTHING) else {decision: text}


def problem_of_outcome(decision: str | None, text: str | None) -> str:
    """Why the text does not go with the choice of `DECISIONS`, "" if it does."""
    match decision:
        case DoubtDecision.SKIP if not text:
            return NO_MESSAGE
        case DoubtDecision.RESULT if not text:
            return NO_RESULT
        case DoubtDecision.NOTHING if text:
            return NOT_NOTHING
    return ""
