"""The outcomes that a person may record for a call in doubt: the choices of the forms, and the text of each."""

from typing import Any

from sessions_app.actions.outcomes import NO_RESULT

DECISIONS = [
    ("result", "It ran: enter its result"),
    ("nothing", "It ran, and this tool returns nothing"),
    ("again", "Run it again"),
    ("skip", "Skip it, and tell the agent"),
]
NO_MESSAGE = "Write what the agent is told instead of a result."
NOT_NOTHING = "It returns nothing, but a result is written here. Choose one."


def outcome(decision: str, text: str) -> dict[str, Any]:
    """A choice of `DECISIONS` as the arguments of the actions."""
    return {decision: True} if decision in ("again", "nothing") else {decision: text}


def problem_of_outcome(decision: str | None, text: str | None) -> str:
    """Why the text does not go with the choice of `DECISIONS`, "" if it does."""
    match decision:
        case "skip" if not text:
            return NO_MESSAGE
        case "result" if not text:
            return NO_RESULT
        case "nothing" if text:
            return NOT_NOTHING
    return ""
