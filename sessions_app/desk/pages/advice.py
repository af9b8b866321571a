"""What helps against a failure, in one sentence, and the action that does it. No queries.

Another attempt is the first thing to do only where it can end otherwise.
"""

from dataclasses import dataclass, replace
from typing import Self

from sessions_app.access.availability import agent_cannot_run
from sessions_app.access.roles import Actor
from sessions_app.action_list import REPLACE_MESSAGE, RESUME, REWIND, Action
from sessions_app.history.failures import exception_type, http_status
from sessions_app.models import Phase, Session, Status, WaitingFor
from sessions_app.wording import shorten

TRY_AGAIN = "Try again"
EDIT_MESSAGE = "Edit the message"
AGENT_CHANGED, AGENT_CANNOT_RUN = "The agent has changed", "The agent cannot run"
_BUSY = frozenset({408, 409, 425, 429})
_REFUSED_KEY = frozenset({401, 403})
_TOO_LONG = ("context length", "context window", "maximum context", "too many tokens", "context is longer")


@dataclass(frozen=True, slots=True)
class Advice:
    """``label`` is the button of the action. ``what`` names the failure in a few words: ``HTTP 400 from the model``."""

    what: str
    text: str
    action: Action
    label: str

    def for_actor(self, actor: Actor) -> Self:
        """The advice, or for whom may not change what the model reads, what that person can do instead."""
        if self.action is not REPLACE_MESSAGE or actor.may(REPLACE_MESSAGE.permission):
            return self
        text = (
            f"{self.what} will not go away by itself: rewind and send another message, or fork with the last message "
            "in other words."
        )
        return replace(self, text=text, action=REWIND, label=REWIND.label)


def advice(session: Session, tool: str = "") -> Advice | None:
    """For a session that has failed, gave up, or waits since its agent has changed; None for any other.

    Reads its registered agent.

    :param session: Masked, as it is shown.
    :param tool: The tool whose failure ended the turn, if one did.
    """
    gave_up = session.status == Status.WAITING and session.waiting_for == WaitingFor.RETRIES
    if session.status == Status.WAITING and session.waiting_for == WaitingFor.CHANGED:
        if problem := agent_cannot_run(session):
            return Advice(AGENT_CANNOT_RUN, f"{problem} Correct it, then resume.", RESUME, RESUME.label)
        text = "See what changed, then resume with the agent as it is now, or rewind."
        return Advice(AGENT_CHANGED, text, RESUME, RESUME.label)
    if not gave_up and not (session.status == Status.IDLE and session.phase == Phase.ERROR):
        return None
    error = session.why if gave_up else session.error
    status, what = http_status(error), what_failed(error, tool)
    if session.new_definition:
        text = "The agent has changed since: another attempt runs with the new definition, and may end otherwise."
        return Advice(what, text, RESUME, TRY_AGAIN)
    if tool:
        text = f"{tool} failed. Try again if its cause is gone; else set its result, or rewind."
        return Advice(what, text, RESUME, TRY_AGAIN)
    return _about_model(what, status, error, gave_up)


def what_failed(error: str, tool: str = "") -> str:
    """A failure in a few words. ``error`` is masked, and ``tool`` as for `advice`."""
    status, kind = http_status(error), exception_type(error)
    by = tool or "the model"
    what = f"HTTP {status} from {by}" if status else f"{kind or 'An error'} from {by}" if kind or tool else ""
    return what or shorten(" ".join(error.split()), 90)


def _about_model(what: str, status: int | None, error: str, gave_up: bool) -> Advice:
    if any(phrase in error.lower() for phrase in _TOO_LONG):
        text = "The context does not fit into the model: rewind to before the long result, or shorten the message."
        return Advice(what, text, REWIND, REWIND.label)
    if status in _REFUSED_KEY:
        text = "The model's server refuses the workers' credentials. Correct them, then try again."
        return Advice(what, text, RESUME, TRY_AGAIN)
    if status == 404:
        text = "The model or its address is not known there. Correct the agent, then try again."
        return Advice(what, text, RESUME, TRY_AGAIN)
    if status is not None and status < 500 and status not in _BUSY:
        text = f"HTTP {status} will not go away by itself: rewind and change the message."
        return Advice(what, text, REPLACE_MESSAGE, EDIT_MESSAGE)
    if status is not None or gave_up:
        return Advice(what, "This may pass by itself. Try again once the service answers.", RESUME, TRY_AGAIN)
    text = "The same step fails again unless its cause is gone: correct the agent, or rewind and change the input."
    return Advice(what, text, RESUME, TRY_AGAIN)
