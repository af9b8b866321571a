"""The reply that the model is writing, as an open page shows it: masked, and held back where it may yet be hidden.

A pattern may match more than what is written so far, and a value may stand before the name that hides it. So where
anything is hidden, the text ends behind the last sentence, or the last paragraph, that is written to its end. In what
looks like a document rather than prose (brackets, quotes, colons, lines) a sentence is no end.
"""

import re
from dataclasses import dataclass

from sessions_app.access.masking import Mask
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.models import Message, Status
from sessions_app.watching import partial_replies

_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")
_SENTENCE_END = re.compile(r"[.!?…]\s+")
_DOCUMENT = re.compile(r"[\[\]{}()<>|=:;\"`\\\n\t]|--")


@dataclass(frozen=True, slots=True)
class PartialReply:
    """
    version: what the page says that it shows, when it asks again; "" where nothing is being written.
    held_back: how many characters are written and not shown.
    """

    version: str = ""
    text: str = ""
    held_back: int = 0

    @property
    def is_written(self) -> bool:
        return bool(self.text or self.held_back)


def partial_reply(context: SessionContext) -> PartialReply:
    """No query. What is not that of the session's present run and model call is not shown."""
    session = context.session_row
    written = partial_replies.read(session.pk)
    is_present = (
        session.status == Status.RUNNING
        and written.epoch == session.epoch
        and written.model_calls == session.totals.get("model_calls", 0)
    )
    if not is_present:
        return PartialReply(written.version)
    text, held_back = shown_part(written.text, context.mask)
    return PartialReply(written.version, text, held_back)


def shown_part(text: str, mask: Mask) -> tuple[str, int]:
    """What is shown of an unfinished text, and how many characters are not."""
    if not mask.hides_anything:
        return text, 0
    masked = mask.message(Message.Role.ASSISTANT, text)
    end = _end_of_finished(masked)
    return masked[:end].rstrip(), len(masked) - end


def _end_of_finished(text: str) -> int:
    paragraph = max((match.end() for match in _PARAGRAPH_END.finditer(text)), default=0)
    document = _DOCUMENT.search(text, paragraph)
    prose_end = document.start() if document else len(text)
    sentences = _SENTENCE_END.finditer(text, paragraph, prose_end)
    return max((match.end() for match in sentences), default=paragraph)
