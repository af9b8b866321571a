"""Why an action was refused: each text is a sentence for the person who asked, `status` the HTTP status."""

from uuid import UUID

from sessions_app.locks import retry_seconds


class ActionError(Exception):
    """An action that was refused. Nothing has changed. ``argument`` names the argument of a call that is wrong."""

    status = 400

    def __init__(self, text: str, *, argument: str = "") -> None:
        super().__init__(text)
        self.argument = argument


class Invalid(ActionError):
    """The request is wrong in itself: a reason is missing, a value cannot be stored."""

    status = 400


class Forbidden(ActionError):
    """The actor lacks the permission."""

    status = 403


class NotFound(ActionError):
    """There is no such session, checkpoint or call."""

    status = 404


class Refused(ActionError):
    """The session's state does not allow it."""

    status = 409


class Moved(ActionError):
    """The session has changed since the page was drawn, or another person decided first."""

    status = 409


class DefinitionNotShown(Moved):
    """The agent has changed, and the person was not shown its present definition."""


class EffectNotSeen(Invalid):
    """The tool of a call already took effect, or may have, and the person has not said that they saw it."""


class SentBefore(ActionError):
    """A form that was carried out before is sent again. ``session_id`` is the session that it changed or started."""

    status = 409

    def __init__(self, session_id: UUID) -> None:
        super().__init__(
            "This was already sent exactly as it is here, and was carried out. "
            "Press the button again only if you want to do it twice."
        )
        self.session_id = session_id


class Locked(ActionError):
    """Another process has locked the session, or on SQLite the database, and does not finish. To be tried again."""

    status = 503


class TakesNoWrites(Locked):
    """The database is read-only or full, or is being stopped. To be tried again."""

    def __init__(self) -> None:
        super().__init__(
            "The database takes no writes at present: it is read-only, its disk is full, or it is being stopped. "
            f"Nothing has changed; try again in {retry_seconds()} s."
        )
