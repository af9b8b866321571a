"""Failures of a model: which of them are worth another attempt, and when."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

RETRY_STATUS = frozenset({408, 409, 425, 429}) | frozenset(range(500, 600))
# By name, so that no HTTP library has to be imported to recognise its errors.
_TRANSIENT_NAMES = re.compile(
    r"(Timeout|ConnectionError|ConnectError|ConnectTimeout|ReadError|RemoteProtocolError|APIConnectionError)"
)
MAX_DELAY = 300.0
# Far more than the desk shows, which masks an error before it cuts it off.
_LONGEST = 100_000


class ModelFailed(Exception):
    """A call of the agent's own chat generator failed. `error`, also the `__cause__`, is what it raised."""

    def __init__(
        self, name: str, seq: int, error: BaseException, started_at: datetime, ended_at: datetime
    ) -> None:
        super().__init__(describe(error))
        self.name, self.seq, self.error = name, seq, error
        self.started_at, self.ended_at = started_at, ended_at

    @property
    def transient(self) -> bool:
        return is_transient(self.error)


class GarbledReply(Exception):
    """What the chat generator returned is not a list of valid assistant messages."""


def beginning(text: str, most: int) -> str:
    """At most so many characters of the text, without a word that would be cut: its beginning could not be masked."""
    if len(text) <= most:
        return text
    shown = text[: most - 1]
    if not text[most - 1].isspace():
        shown = shown[: max(shown.rfind(blank) for blank in " \n\t") + 1]
    return f"{shown.rstrip()}…"


def describe(error: BaseException) -> str:
    """``Type: message``, at most 100,000 characters."""
    try:
        text = str(error).strip() or "no message"
    except Exception:  # an error's own code may fail
        text = "no message"
    return beginning(f"{type(error).__name__}: {text}", _LONGEST)


def is_transient(error: BaseException) -> bool:
    """Whether it is likely to pass without a change: timeouts, lost connections, 408, 409, 425, 429 and 5xx."""
    for cause in _chain(error):
        status = getattr(cause, "status_code", None) or getattr(
            getattr(cause, "response", None), "status_code", None
        )
        if isinstance(status, int):
            return status in RETRY_STATUS
        if isinstance(cause, TimeoutError | ConnectionError):
            return True
        if any(_TRANSIENT_NAMES.search(kind.__name__) for kind in type(cause).__mro__):
            return True
    return False


def retry_delay(error: BaseException, attempt: int, base: float) -> float:
    """Seconds until the next attempt: what the server asks for, else doubling from `base`."""
    for cause in _chain(error):
        headers = getattr(getattr(cause, "response", None), "headers", None)
        header = headers.get("retry-after") if headers is not None and hasattr(headers, "get") else None
        seconds = _seconds(str(header)) if header is not None else None
        if seconds is not None:
            return min(max(seconds, 0.0), MAX_DELAY)
    return float(min(base * 2 ** max(0, attempt - 1), MAX_DELAY))


def _seconds(header: str) -> float | None:
    """The seconds that a `Retry-After` header asks for, itself seconds or a date; None if it is neither."""
    if re.fullmatch(r"\d+(\.\d+)?", header):
        return float(header)
    try:
        return (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):
        return None


def _chain(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes
