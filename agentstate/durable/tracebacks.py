"""Where an error was raised, for the log, which must not show the values of a session."""

import traceback


def places_of(error: BaseException) -> str:
    """The types of the error and of those that caused it, each with the lines of code that it passed.

    Their texts are left out: they may hold what is hidden on the desk, which shows that of the error.
    """
    parts = []
    cause: BaseException | None = error
    seen = set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        lines = "".join(traceback.format_tb(cause.__traceback__)).rstrip()
        parts.append(f"{type(cause).__name__}\n{lines}".rstrip())
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\ncaused by ".join(parts)
