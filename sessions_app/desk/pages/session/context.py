"""What the read models of a session's pages are given: one object for one request."""

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.pages.why_not import WhyNot
from sessions_app.models import Branch, Session


@dataclass(frozen=True, slots=True)
class SessionContext:
    """A session as one person sees it at one moment. `sessions_app.desk.context.session_context` makes it.

    session: the session as it is shown: a masked copy, where anything is hidden, with its branch.
    session_row: the row itself, for forms and actions. Nothing is hidden in it, so no template gets it.
    branch: the branch whose history the session shows; masked like the session.
    mask: what is hidden from this person on this page.
    queue: the key of the queue from which the page was opened, "" for none.
    """

    session: Session
    session_row: Session
    branch: Branch
    actor: Actor
    now: datetime
    mask: Mask
    queue: str
    why_not: WhyNot

    @classmethod
    def of(cls, session: Session, *, actor: Actor, now: datetime, mask: Mask, queue: str = "") -> Self:
        """No query if the session's branch is loaded.

        :raises RuntimeError: for a session without a branch.
        """
        _ = session.current_branch
        shown = mask.row(session)
        why_not = WhyNot(actor, shown, now)
        return cls(shown, session, shown.current_branch, actor, now, mask, queue, why_not)
