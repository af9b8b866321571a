"""What helps against a failure, in one sentence, and the action that does it, by what a person may do. No queries.

Another attempt is the first thing to do only where it can end otherwise.
"""

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sessions_app.access.action import Action
from sessions_app.access.availability import agent_cannot_run
from sessions_app.access.roles import Actor
from sessions_app.action_list import FORK, RELEASE, REPLACE_MESSAGE, RESUME, REWIND
from sessions_app.history.failures import exception_type, http_status
from sessions_app.models import Session, StaffPermission, Status, WaitingFor
from sessions_app.wording import shorten

TRY_AGAIN = "Try again"
EDIT_MESSAGE, OTHER_WORDS = "Edit the message", "Fork with another message"
AGENT_CHANGED, AGENT_CANNOT_RUN = "The agent has changed", "The agent cannot run"
_BUSY = frozenset({408, 409, 425, 429})
_REFUSED_KEY = frozenset({401, 403})
_TOO_LONG = ("context length", "context window", "maximum context", "too many tokens", "context is longer")
# What Python itself raises where code is wrong. The client of a model has exceptions of its own, or raises an `OSError`
# where it waited too long or was not connected.
_OF_CODE = frozenset(
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, OSError)
)


@dataclass(frozen=True, slots=True)
class Advice:
    """What helps, as it is said to a person who may do everything; `for_actor` words it by what a person may do.

    what: names the failure in a few words: ``HTTP 400 from the model``.
    action, label: the button that does it; None and "" where no button helps.
    parameters: those of the address of its dialog.
    without_repair: what helps a person who may not repair a session, where that is something else.
    """

    what: str
    text: str
    action: Action | None = None
    label: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    without_repair: "Advice | None" = None

    def for_actor(self, actor: Actor) -> "Advice":
        """The advice with a button only for what the person may do; else it says who may."""
        others = self.without_repair
        if others is not None and not actor.may(StaffPermission.REPAIR):
            return others.for_actor(actor)
        if self.action is None or not (lacking := self.action.lacking(actor)):
            return self
        return replace(self, text=f"{self.text} {lacking}", action=None, label="", parameters={})


def who_may_release(session: Session, actor: Actor) -> str:
    """Who may release a running session from its worker, as a sentence; "" where the person may, or it does not run."""
    return RELEASE.lacking(actor) if session.status == Status.RUNNING else ""


def advice(session: Session, tool: str = "") -> Advice | None:
    """For a session that has failed, gave up, or waits since its agent has changed; None for any other.

    Reads its registered agent.

    :param session: Masked, as it is shown.
    :param tool: The tool whose failure ended the turn, if one did.
    """
    gave_up = session.status == Status.WAITING and session.waiting_for == WaitingFor.RETRIES
    if session.status == Status.WAITING and session.waiting_for == WaitingFor.CHANGED:
        if problem := agent_cannot_run(session):
            return Advice(AGENT_CANNOT_RUN, f"{problem} It can be resumed once that is corrected.")
        text = "See what changed, then resume with the agent as it is now, or rewind."
        return Advice(AGENT_CHANGED, text, RESUME, RESUME.label)
    if not gave_up and not session.is_failed:
        return None
    error = session.why if gave_up else session.error
    status, what = http_status(error), what_failed(error, tool)
    if problem := agent_cannot_run(session):
        return Advice(what, f"{problem} Try again once that is corrected.")
    if session.new_definition:
        text = "The agent has changed since: another attempt runs with the new definition, and may end differently."
        return Advice(what, text, RESUME, TRY_AGAIN)
    if tool:
        text = f"{tool} failed. Try again if the cause is gone; otherwise"
        asks = Advice(what, f"{text} rewind, or ask a supervisor to set its result.", RESUME, TRY_AGAIN)
        return Advice(what, f"{text} set its result, or rewind.", RESUME, TRY_AGAIN, without_repair=asks)
    return _about_model(what, status, error, gave_up)


def what_failed(error: str, tool: str = "") -> str:
    """A failure in a few words. ``error`` is masked, and ``tool`` as for `advice`."""
    status, kind = http_status(error), exception_type(error)
    what = f"HTTP {status}" if status else kind
    if tool:
        return f"{what or 'An error'} from {tool}"
    if not what:
        return shorten(" ".join(error.split()), 90)
    return f"{what} in the agent's code" if what in _OF_CODE else f"{what} from the model"


def _about_model(what: str, status: int | None, error: str, gave_up: bool) -> Advice:
    if any(phrase in error.lower() for phrase in _TOO_LONG):
        text = "The context does not fit into the model: rewind to before the long result, or"
        forks = Advice(what, f"{text} fork with a shorter message.", REWIND, REWIND.label)
        return Advice(what, f"{text} shorten the message.", REWIND, REWIND.label, without_repair=forks)
    if status in _REFUSED_KEY:
        text = "The model's server refuses the workers' credentials. Try again once they are corrected."
        return Advice(what, text, RESUME, TRY_AGAIN)
    if status == 404:
        text = "The model, or its address, was not found. Try again once the agent is corrected."
        return Advice(what, text, RESUME, TRY_AGAIN)
    if status is not None and status < 500 and status not in _BUSY:
        text = f"Asking the model again does not help with HTTP {status}:"
        forks = Advice(
            what,
            f"{text} fork with the message reworded, or ask a supervisor to edit the message here.",
            FORK,
            OTHER_WORDS,
            {"reword": "last"},
        )
        text = f"{text} edit the message, which rewinds to it."
        return Advice(what, text, REPLACE_MESSAGE, EDIT_MESSAGE, without_repair=forks)
    if status is not None or gave_up:
        return Advice(what, "This may be temporary. Try again once the service responds.", RESUME, TRY_AGAIN)
    text = "The same step will fail again unless the cause is gone. Try again once the agent is corrected, or"
    forks = Advice(what, f"{text} fork with the message reworded.", RESUME, TRY_AGAIN)
    return Advice(what, f"{text} rewind and edit the message.", RESUME, TRY_AGAIN, without_repair=forks)
