"""What the read models and the forms of a session's pages are given: one object for one request."""

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.pages.why_not import WhyNot
from sessions_app.models import Branch, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext(PageContext):
    """A session as one person sees it at one moment. `sessions_app.desk.context.session_context` makes it.

    session: the session as it is shown: a masked copy, where anything is hidden, with its branch.
    session_row: the row itself, for forms and actions. Nothing is hidden in it, so no template gets it.
    branch: the branch whose history the session shows; masked like the session.
    queue: the key of the queue from which the page was opened, "" for none.
    newest_event: the position of the session's newest event, None where there is none, or it was not read with the
        session.
    has_open_calls, has_unread_messages: False where it was read with the session that there is none of them.
    """

    session: Session
    session_row: Session
    branch: Branch
    queue: str
    newest_event: int | None = None
    has_open_calls: bool = True
    has_unread_messages: bool = True

    @classmethod
    def of(cls, session: Session, *, actor: Actor, now: datetime, mask: Mask, queue: str = "") -> Self:
        """No query if the session's branch is loaded.

        :raises RuntimeError: for a session without a branch.
        """
        _ = session.current_branch
        shown = mask.row(session)
        return cls(
            session=shown,
            session_row=session,
            branch=shown.current_branch,
            actor=actor,
            now=now,
            mask=mask,
            queue=queue,
            newest_event=getattr(session, "newest_event", None),
            has_open_calls=getattr(session, "has_open_calls", True),
            has_unread_messages=getattr(session, "has_unread_messages", True),
            why_not=WhyNot(actor, shown, now),
        )
