"""Shows the replies of a run while the model writes them, on the pages that are open: the engine's port on the buffer.

A thread of its own writes each reply, so that a slow buffer never slows the model's reply: at most four times a second,
only what has changed, and only while a page of the session is open.
"""

import logging
import threading

from sessions_app.runtime.leases import Claim
from sessions_app.watching import news, open_pages, partial_replies
from sessions_app.watching.partial_replies import Written

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.25
# How often the thread looks whether a page has been opened.
LOOK_SECONDS = 1.0
# What is unchanged for so long is written again, so that it is held while the model is silent.
REFRESH_SECONDS = 10.0
# Of a longer reply the beginning is shown; the whole once it is committed.
MOST_CHARACTERS = 50_000


def shown_replies(claim: Claim) -> "ShownReplies | None":
    """None where they are not shown."""
    return ShownReplies(claim) if partial_replies.are_shown() else None


class ShownReplies:
    """The replies of one claim."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def begin(self, model_calls: int) -> "ShownReply":
        return ShownReply(self._claim, model_calls)


class ShownReply:
    """One reply. Its thread starts with the first text and ends with the reply."""

    def __init__(self, claim: Claim, model_calls: int) -> None:
        self._claim = claim
        self._model_calls = model_calls
        self._changed = threading.Condition()
        self._pieces: list[str] = []
        self._length = 0
        self._has_ended = False
        self._thread: threading.Thread | None = None

    def add(self, text: str) -> None:
        with self._changed:
            if self._length >= MOST_CHARACTERS or self._has_ended:
                return
            self._pieces.append(text)
            self._length += len(text)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentstate-reply", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads: the reply is shown once it is committed
                    self._has_ended = True

    def end(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify()

    def _run(self) -> None:
        try:
            self._write_until_end()
        except Exception:
            logger.exception("The reply that is being written could not be shown.")

    def _write_until_end(self) -> None:
        session_id, version, written = self._claim.session_id, 0, 0
        while not self._has_ended:
            if not open_pages.is_open(session_id):
                self._wait(LOOK_SECONDS)
                continue
            with self._changed:
                written, text = self._length, "".join(self._pieces)[:MOST_CHARACTERS]
            version += 1
            number = f"{self._claim.epoch}.{self._model_calls}.{version}"
            partial_replies.write(session_id, Written(number, self._claim.epoch, self._model_calls, text))
            news.reply_grown(session_id)
            self._wait(PAUSE_SECONDS)
            self._wait(REFRESH_SECONDS - PAUSE_SECONDS, longer_than=written)
        if version:
            partial_replies.remove(session_id)

    def _wait(self, seconds: float, *, longer_than: int | None = None) -> None:
        """Wait so long, or until the reply ends, or until its text is longer."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._has_ended or (longer_than is not None and self._length > longer_than), seconds
            )
