"""The rows of a list of sessions, each as all that is shown of it: a row is drawn once for the same values.

An open list is drawn again whenever one of its sessions or a number has changed, and hardly any of its rows has.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self
from uuid import UUID

from django.db.models import QuerySet

from sessions_app.access import shown
from sessions_app.action_list import ASSIGN
from sessions_app.addresses import address
from sessions_app.desk.pages import found
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.pages.found import FoundLine
from sessions_app.finding import stuck
from sessions_app.finding.hits import Hit
from sessions_app.models import Session, SessionTag, Status
from sessions_app.models.compiled import compiled
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
        tags: Iterable[str],
        queue: str,
        titles: Mapping[str, str],
        context: PageContext,
        sought: str = "",
        hits: Sequence[Hit] = (),
    ) -> Self:
        """
        :param session: As `finding.queues.read_page` reads it, masked.
        :param tags: Their names.
        :param queue: The key of the queue that the list shows.
        :param titles: Of the agents, by their keys.
        :param sought: What was searched for, and the ``hits`` in this session.
        """
        now = context.now
        tone, label = stuck.status_label(session, now)
        assignee = vars(session)["assignee_name"]
        may_take = assignee is None and not context.why_not.of(ASSIGN)
        why = "" if queue == "done" else stuck.why_not_moving(session, now) or session.why or session.error
        has_phase = session.status not in (Status.IDLE, Status.CANCELLED)
        return cls(
            pk=session.pk,
            title=str(session),
            address=address("session", session.pk, queue=queue),
            tags=tuple(
                [(tag, address("desk", queue="all", tag=tag)) for tag in shown.tags(context.mask, tags)]
            ),
            # A row is kept with what is shown of it, and a person may have given a reason of any length.
            why=shorten(why, LONGEST_WHY),
            tone=tone,
            label=label,
            phase=session.phase if has_phase else "",
            phase_since=for_how_long(session.phase_since, now) if has_phase else "",
            agent=titles.get(session.agent, session.agent),
            customer=session.customer,
            assignee=assignee or "",
            take=address("dialog", session.pk, ASSIGN.key, queue=queue) if may_take else "",
            version=session.version,
            changed=changed_when(session.updated_at, now),
            hits=found.lines(hits, session.pk, queue, now),
            all_hits=address("find", session.pk, q=sought, queue=queue) if hits else "",
        )


def read_rows(
    sessions: Sequence[Session],
    queue: str,
    titles: Mapping[str, str],
    context: PageContext,
    sought: str = "",
    hits: Mapping[UUID, Sequence[Hit]] = MappingProxyType({}),
) -> list[SessionRow]:
    """The rows of these sessions. One query, if there are any. The parameters are those of `SessionRow.of`.

    :param hits: By the keys of the sessions.
    """
    tags = defaultdict[UUID, list[str]](list)
    for session_id, name in _tags(tuple([session.pk for session in sessions])) if sessions else ():
        tags[session_id].append(name)
    return [
        SessionRow.of(session, tags[session.pk], queue, titles, context, sought, hits.get(session.pk, ()))
        for session in sessions
    ]


@compiled
def _tags(sessions: tuple[UUID, ...]) -> QuerySet[SessionTag, tuple[UUID, str]]:
    return SessionTag.objects.filter(session__in=sessions).values_list("session_id", "name")
