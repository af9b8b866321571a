"""Why a person cannot take an action: one sentence per action, for buttons, forms and notes on every page.

This is the only module of the pages that asks for roles and availability.
"""

from datetime import datetime

from sessions_app.access import availability
from sessions_app.access.roles import PERMISSION, Actor
from sessions_app.models import Approval, Checkpoint, Session, ToolCall

NOT_ALLOWED = "Your role does not allow this."


class UnknownActionError(LookupError):
    """A misspelt action. Not a `KeyError`: a template would read that as "", and so as a possible action."""


class WhyNot:
    """``why_not.pause`` is why the actor cannot pause the session, as a sentence; "" where it is possible.

    Without a session only the actor's role counts. Each sentence is made when it is first asked for, and kept. No
    query but the one for the user's permissions; ``session.branch`` must be loaded.

    :raises UnknownActionError: for a name that is not an action.
    """

    def __init__(self, actor: Actor, session: Session | None = None, now: datetime | None = None) -> None:
        self._actor, self._session, self._now = actor, session, now
        self._sentences: dict[str, str] = {}

    def __getitem__(self, action: str) -> str:
        if action not in self._sentences:
            self._sentences[action] = self.about(action)
        return self._sentences[action]

    def __getattr__(self, action: str) -> str:
        if action.startswith("_"):
            raise AttributeError(action)
        return self[action]

    def about(
        self,
        action: str,
        *,
        checkpoint: Checkpoint | None = None,
        call: ToolCall | None = None,
        approval: Approval | None = None,
    ) -> str:
        """The sentence about the checkpoint, the call, or the approval with its call."""
        if action not in PERMISSION:
            raise UnknownActionError(f"{action!r} is not an action.")
        if not self._actor.may(action):
            return NOT_ALLOWED
        return self.impossible(action, checkpoint=checkpoint, call=call, approval=approval)

    def impossible(
        self,
        action: str,
        *,
        checkpoint: Checkpoint | None = None,
        call: ToolCall | None = None,
        approval: Approval | None = None,
    ) -> str:
        """Why the session's state does not allow the action to anybody; "" if it does."""
        if self._session is None or action not in availability.ACTS:
            return ""
        reason = availability.why_not(
            self._session, action, checkpoint=checkpoint, call=call, approval=approval, now=self._now
        )
        return reason or ""
