"""What a search shows of the messages and calls that it found. No queries."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Self
from uuid import UUID

from sessions_app.addresses import address
from sessions_app.finding.hits import Hit
from sessions_app.times import since_when


@dataclass(frozen=True, slots=True)
class FoundLine:
    """One hit, masked.

    address: of its element on the timeline, or of the discarded branch that it lies on.
    parts: see `Hit`. ``when``: how long ago, as an element of the page.
    """

    address: str
    who: str
    parts: tuple[tuple[str, bool], ...]
    changes: str
    when: str
    discarded: bool

    @classmethod
    def of(cls, hit: Hit, session: UUID, queue: str, now: datetime) -> Self:
        """
        :param queue: The key of the queue from which the session is opened, "" for none.
        """
        page = (
            address("session", session, at=hit.position, queue=queue)
            if hit.visible
            else address("discarded", session, hit.branch, at=hit.position, queue=queue)
        )
        return cls(
            address=f"{page}#{hit.anchor}",
            who=hit.who,
            parts=tuple(hit.parts),
            changes=hit.changes,
            when=since_when(hit.at, now),
            discarded=not hit.visible,
        )


def lines(hits: Iterable[Hit], session: UUID, queue: str, now: datetime) -> tuple[FoundLine, ...]:
    """The parameters are those of `FoundLine.of`."""
    return tuple([FoundLine.of(hit, session, queue, now) for hit in hits])
