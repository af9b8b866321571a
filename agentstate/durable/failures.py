"""Failures of a model: which of them are worth another try, and when."""

import re
from datetime import datetime

RETRY_STATUS = frozenset({408, 409, 425, 429}) | frozenset(range(500, 600))
# By name, so that no HTTP library has to be imported to recognise its errors.
_TRANSIENT_NAMES = re.compile(
    r"(Timeout|ConnectionError|ConnectError|ConnectTimeout|ReadError|RemoteProtocolError|APIConnectionError)"
)
MAX_DELAY = 300.0


class ModelFailed(Exception):
    """A chat generator raised, or answered something that is no reply. `__cause__` is what it raised."""

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
    """What the chat generator returned is not a list of chat messages by the assistant."""


def describe(error: BaseException) -> str:
    text = str(error).strip() or "no message"
    return f"{type(error).__name__}: {text}"[:4000]


def is_transient(error: BaseException) -> bool:
    """Timeouts, lost connections, 429 and 5xx pass by themselves; all else does not."""
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
        asked = headers.get("retry-after") if headers is not None and hasattr(headers, "get") else None
        if asked is not None and re.fullmatch(r"\d+(\.\d+)?", str(asked)):
            return min(float(asked), MAX_DELAY)
    return float(min(base * 2 ** max(0, attempt - 1), MAX_DELAY))


def _chain(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes
