"""The reply that a model is writing for a session, as far as it is written: by its worker, for open pages.

It says to which claim and to which model call it belongs: what a lost run has left, or a reply that is committed
meanwhile, is not shown.
"""

from dataclasses import dataclass
from uuid import UUID

from django.conf import settings

from sessions_app.watching.buffer import buffer

# Longer than a worker waits before it writes an unchanged text again.
HELD_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Written:
    """
    version: changes with the text; "" where there is none.
    epoch: that of the run's claim.
    model_calls: the model calls of the visible history before this one.
    """

    version: str = ""
    epoch: int = 0
    model_calls: int = 0
    text: str = ""


def are_shown() -> bool:
    """Whether there are any for open pages: not where conversations must not be on the Redis server."""
    return settings.AGENTSTATE_MIRROR or not settings.REDIS_URL


def write(session_id: UUID, written: Written) -> None:
    values = {
        "version": written.version,
        "epoch": str(written.epoch),
        "model_calls": str(written.model_calls),
        "text": written.text,
    }
    buffer().write(_key(session_id), values, seconds=HELD_SECONDS)


def version_of(session_id: UUID) -> str:
    """The version of what is written now; "" where nothing is."""
    return buffer().read(_key(session_id), "version")[0] if are_shown() else ""


def read(session_id: UUID) -> Written:
    if not are_shown():
        return Written()
    version, epoch, model_calls, text = buffer().read(
        _key(session_id), "version", "epoch", "model_calls", "text"
    )
    if not (version and epoch.isdecimal() and model_calls.isdecimal()):
        return Written()
    return Written(version, int(epoch), int(model_calls), text)


def remove(session_id: UUID) -> None:
    buffer().remove(_key(session_id))


def _key(session_id: UUID) -> str:
    return f"agentstate:writing:{session_id}"
