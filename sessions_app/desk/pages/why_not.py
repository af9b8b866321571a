"""Why a person cannot take an action: one sentence per action, for buttons, forms and notes on every page."""

from datetime import datetime

from sessions_app.access.action import Action
from sessions_app.access.roles import Actor
from sessions_app.action_list import ACTIONS, EDIT_STATE, REPLACE_MESSAGE
from sessions_app.models import Session, StaffPermission

# What a person does without a session, or without changing one.
_ONLY_PERMISSION = {
    "start": StaffPermission.START,
    "reveal": StaffPermission.REVEAL,
    "memory_entries": StaffPermission.MEMORY,
}

# Begins the name of an action whose role alone counts.
_ROLE = "role_"

# Actions that have one rule.
_GROUPS = {"state": EDIT_STATE, "repair": REPLACE_MESSAGE}


class UnknownActionError(LookupError):
    """A misspelt action. Not a `KeyError`: a template would read that as "", and so as a possible action."""


class WhyNot:
    """Why the actor cannot take an action on the session, as a sentence; "" where it is possible.

    ``why_not.of(PAUSE)`` in Python, ``{{ why_not.pause }}`` in a template. The names in templates are the keys of
    `sessions_app.action_list`; ``state`` and ``repair``, for the repairs of the state and for the others, with one rule
    each; and ``start``, ``reveal`` and ``memory_entries``. ``{{ why_not.role_rewind }}`` is about the actor's role
    alone, for what stays on a page while the session goes on: what the state forbids, the dialog says. Without a
    session only the role counts. Each sentence is made when it is first needed, and kept. No query but the one for the
    user's permissions; ``session.branch`` must be loaded.
    """

    def __init__(self, actor: Actor, session: Session | None = None, now: datetime | None = None) -> None:
        self._actor, self._session, self._now = actor, session, now
        self._sentences: dict[Action, str] = {}
        self._named: dict[str, str] = {}

    def of(self, action: Action) -> str:
        if action not in self._sentences:
            self._sentences[action] = self._sentence(action)
        return self._sentences[action]

    def __getitem__(self, name: str) -> str:
        """For templates.

        :raises UnknownActionError: for another name.
        """
        if name not in self._named:
            self._named[name] = self._of_name(name)
        return self._named[name]

    def _of_name(self, name: str) -> str:
        if name in _ONLY_PERMISSION:
            return self._actor.lacks(_ONLY_PERMISSION[name])
        action = _GROUPS.get(name) or ACTIONS.get(name.removeprefix(_ROLE))
        if action is None:
            raise UnknownActionError(f"{name!r} is not an action.")
        if name.startswith(_ROLE):
            return action.lacking(self._actor)
        return self.of(action)

    def _sentence(self, action: Action) -> str:
        if lacking := action.lacking(self._actor):
            return lacking
        return action.impossible(self._session, now=self._now) if self._session is not None else ""
