"""Why an act was refused: each text is a sentence for the person who asked, `status` the HTTP answer."""


class ActionError(Exception):
    """An act that was refused. Nothing has changed."""

    status = 400


class Invalid(ActionError):
    """What was asked for is wrong in itself: a missing reason, a value that cannot be stored."""

    status = 400


class Forbidden(ActionError):
    """This person may not do this."""

    status = 403


class NotFound(ActionError):
    """There is no such session, checkpoint or call."""

    status = 404


class Refused(ActionError):
    """The session is in no state for this."""

    status = 409


class Moved(ActionError):
    """The session has changed since the page was drawn, or somebody else decided first."""

    status = 409
