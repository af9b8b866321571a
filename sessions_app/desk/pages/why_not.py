"""Why a person cannot take an action: one sentence per action, for buttons, forms and notes on every page."""

from datetime import datetime

from sessions_app.access.roles import Actor
from sessions_app.action_list import ACTIONS, EDIT_STATE, NOT_ALLOWED
from sessions_app.models import Session, StaffPermission

# What a person does without a session, or without changing one.
_ONLY_PERMISSION = {
    "view": StaffPermission.VIEW,
    "start": StaffPermission.START,
    "reveal": StaffPermission.REVEAL,
}


class UnknownActionError(LookupError):
    """A misspelt action. Not a `KeyError`: a template would read that as "", and so as a possible action."""


class WhyNot:
    """``why_not.pause`` is why the actor cannot pause the session, as a sentence; "" where it is possible.

    The names are the keys of `sessions_app.action_list`; ``repair``, for the repairs, which have one rule; and
    ``view``, ``start`` and ``reveal``. Without a session only the actor's role counts. Each sentence is made when it is
    first asked for, and kept. No query but the one for the user's permissions; ``session.branch`` must be loaded.

    :raises UnknownActionError: for another name.
    """

    def __init__(self, actor: Actor, session: Session | None = None, now: datetime | None = None) -> None:
        self._actor, self._session, self._now = actor, session, now
        self._sentences: dict[str, str] = {}

    def __getitem__(self, action: str) -> str:
        if action not in self._sentences:
            self._sentences[action] = self._sentence(action)
        return self._sentences[action]

    def __getattr__(self, action: str) -> str:
        if action.startswith("_"):
            raise AttributeError(action)
        return self[action]

    def _sentence(self, name: str) -> str:
        action = EDIT_STATE if name == "repair" else ACTIONS.get(name)
        permission = action.permission if action is not None else _ONLY_PERMISSION.get(name)
        if permission is None:
            raise UnknownActionError(f"{name!r} is not an action.")
        if not self._actor.may(permission):
            return NOT_ALLOWED
        if action is None or self._session is None:
            return ""
        return action.impossible(self._session, now=self._now)
