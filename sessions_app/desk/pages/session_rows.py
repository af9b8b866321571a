"""The rows of a list of sessions, each as all that is shown of it: a row is drawn once for the same values.

An open list is drawn again whenever one of its sessions or a number has changed, and hardly any of its rows has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from sessions_app.access import shown
from sessions_app.action_list import ASSIGN
from sessions_app.addresses import address
from sessions_app.desk.pages import found
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.pages.found import FoundLine
from sessions_app.finding import stuck
from sessions_app.finding.hits import Hit
from sessions_app.models import Session, Status
from sessions_app.times import changed_when, for_how_long
from sessions_app.wording import shorten

LONGEST_WHY = 110


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session, masked.

    tags: the text of each, and the address of the sessions that have it.
    why: why it does not move, waits or failed. phase: with ``phase_since``, "" where it is of no interest.
    take: the address at which the person takes it, "" if they may not or somebody has it.
    changed: when, like ``phase_since`` as an element of the page.
    hits: what a search found in its history, and ``all_hits`` the address of all that it finds there.
    """

    pk: UUID
    title: str
    address: str
    tags: tuple[tuple[str, str], ...]
    why: str
    tone: str
    label: str
    phase: str
    phase_since: str
    agent: str
    customer: str
    assignee: str
    take: str
    version: int
    changed: str
    hits: tuple[FoundLine, ...] = ()
    all_hits: str = ""

    @classmethod
    def of(
        cls,
        session: Session,
        queue: str,
        titles: Mapping[str, str],
        context: PageContext,
        sought: str = "",
        hits: Sequence[Hit] = (),
    ) -> Self:
        """
        :param queue: The key of the queue that the list shows.
        :param titles: Of the agents, by their keys.
        :param sought: What was searched for, and the ``hits`` in this session.
        """
        now = context.now
        tone, label = stuck.status_label(session, now)
        tags = shown.tags(context.mask, (tag.name for tag in session.tags.all()))
        may_take = session.assignee is None and not context.why_not.of(ASSIGN)
        why = "" if queue == "done" else stuck.why_not_moving(session, now) or session.why or session.error
        has_phase = session.status not in (Status.IDLE, Status.CANCELLED)
        return cls(
            pk=session.pk,
            title=str(session),
            address=address("session", session.pk, queue=queue),
            tags=tuple([(tag, address("desk", queue="all", tag=tag)) for tag in tags]),
            # A row is kept with what is shown of it, and a person may have given a reason of any length.
            why=shorten(why, LONGEST_WHY),
            tone=tone,
            label=label,
            phase=session.phase if has_phase else "",
            phase_since=for_how_long(session.phase_since, now) if has_phase else "",
            agent=titles.get(session.agent, session.agent),
            customer=session.customer,
            assignee=str(session.assignee or ""),
            take=address("dialog", session.pk, ASSIGN.key, queue=queue) if may_take else "",
            version=session.version,
            changed=changed_when(session.updated_at, now),
            hits=found.lines(hits, session.pk, queue, now),
            all_hits=address("find", session.pk, q=sought, queue=queue) if hits else "",
        )
