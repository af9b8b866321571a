"""Failures of a model: which of them are worth another attempt, and when.

They are recognised by what the errors of HTTP and cloud clients have in common, so that none of these has to be
imported.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

RETRY_STATUS = frozenset({408, 409, 425, 429}) | frozenset(range(500, 600))
# The names of classes of errors, and the codes by which AWS names them (botocore's `ClientError`).
_TRANSIENT_NAMES = re.compile(
    r"Timeout|ConnectionError|ConnectError|ReadError|RemoteProtocolError"
    r"|RateLimitE|TooManyRequests|Throttl|Overloaded|ServiceUnavailable|ModelNotReady"
)
# Seconds up to which the delay doubles.
MAX_DELAY = 300.0
# Seconds up to which a server is believed that says when to ask again: a day.
MAX_RETRY_AFTER = 86_400.0
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
    """Whether it is likely to pass without a change: timeouts, lost connections, throttling, and `RETRY_STATUS`."""
    for cause in _chain(error):
        if _TRANSIENT_NAMES.search(_aws_code(cause)):
            return True
        if (status := _status(cause)) is not None:
            return status in RETRY_STATUS
        if isinstance(cause, TimeoutError | ConnectionError):
            return True
        if any(_TRANSIENT_NAMES.search(kind.__name__) for kind in type(cause).__mro__):
            return True
    return False


def retry_delay(error: BaseException, attempt: int, base: float) -> float:
    """Seconds until the next attempt: what the server asks for, else doubling from `base`."""
    for cause in _chain(error):
        if (seconds := _retry_after(cause)) is not None:
            return min(max(seconds, 0.0), MAX_RETRY_AFTER)
    return float(min(base * 2 ** max(0, attempt - 1), MAX_DELAY))


def _get(value: Any, name: str) -> Any:
    """The attribute; None if there is none, or if it is a property that fails."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _status(error: BaseException) -> int | None:
    """The HTTP status of the response that the error is about; None if it has none."""
    response = _get(error, "response")
    named = [_get(error, "status_code"), _get(response, "status_code")]
    named.append(_item(response, "ResponseMetadata", "HTTPStatusCode"))
    # Also an exit code or the number of another protocol may have these names.
    named += [
        code
        for name in ("code", "status")
        if isinstance(code := _get(error, name), int) and 400 <= code < 600
    ]
    return next((status for status in named if isinstance(status, int) and status), None)


def _aws_code(error: BaseException) -> str:
    code = _item(_get(error, "response"), "Error", "Code")
    return code if isinstance(code, str) else ""


def _retry_after(error: BaseException) -> float | None:
    """The seconds after which the server or its client says to ask again; None if neither does."""
    response = _get(error, "response")
    headers = (
        _get(response, "headers"),
        _item(response, "ResponseMetadata", "HTTPHeaders"),
        _get(error, "headers"),
    )
    stated = [value for each in headers for value in _values(each, "retry-after")]
    found = (_seconds(str(value)) for value in [*stated, _get(error, "retry_after")])
    return next((seconds for seconds in found if seconds is not None), None)


def _item(value: Any, *keys: str) -> Any:
    """What stands in nested mappings under these keys; None if anything else does."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _values(headers: Any, name: str) -> Iterator[Any]:
    """Those of a header. A plain dict has the names as the server wrote them."""
    if headers is None or not hasattr(headers, "items"):
        return
    yield from (value for key, value in headers.items() if str(key).lower() == name)


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
        # `raise ... from None` says that the error is not due to the one that was being handled.
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ if error.__cause__ is not None else context
    return causes
