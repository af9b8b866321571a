"""All sessions of the mirror: finding what it lacks, rebuilding it, and removing it.

What is lost is found in the order in which sessions changed. How far that has come is written on the server itself, so
that a server that lost its data is filled again, from the beginning. Those that were looked at before are looked at
again in turn, some by each call: a server may lose a part of what it has.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

import redis
from django.db import Error
from django.db.models import Q, QuerySet
from django.utils import timezone

from agentstate.journals import layout
from sessions_app.mirror.sessions import TOGETHER, MirrorSessions
from sessions_app.models import Session

logger = logging.getLogger(__name__)

Id = TypeVar("Id", str, UUID)
UNAVAILABLE = (redis.ConnectionError, redis.TimeoutError)
# The time and the id of the last session that was looked at.
SEEN = "agent:mirror:seen"
# A session that changed so recently is looked at again: the commit of one that changed before it may come later.
RECENT = timedelta(seconds=60)
# One that changed just now is left to the process that has changed it.
JUST_NOW = timedelta(seconds=3)
# Sessions that are looked at by one call; and again.
AT_ONCE = 1000
AGAIN_AT_ONCE = 200
# The id of the last session that was looked at again.
SEEN_AGAIN = "agent:mirror:seen_again"
# A key that nobody makes.
NEVER_THERE = "agent:mirror:never_there"
_COMPARED = ("pk", "change", "status", "phase", "updated_at", "customer", "title")


class RefusesWrites(redis.ConnectionError):
    """The server answers, and takes no writes: it is full, has become a replica or cannot write to its disk."""


def update(mirror: MirrorSessions, session_ids: Sequence[UUID], *, anew: bool = False) -> None:
    """Update sessions. What is wrong with one of them alone is logged, so that it does not hold up the others.

    :raises ConnectionError, TimeoutError: those of redis, if the server does not answer, and `RefusesWrites`. Some may
        have been updated.
    :raises Error: that of Django, if the database does not.
    """
    for first in range(0, len(session_ids), TOGETHER):
        together = session_ids[first : first + TOGETHER]
        try:
            _log(mirror, mirror.update(together, anew=anew))
        except redis.ConnectionError:
            raise
        except Exception:  # one of them may be the reason
            for session_id in together:
                _update_alone(mirror, session_id, anew=anew)


def _update_alone(mirror: MirrorSessions, session_id: UUID, *, anew: bool) -> None:
    try:
        _log(mirror, mirror.update([session_id], anew=anew))
    except redis.ConnectionError:
        raise
    except Exception as error:
        if isinstance(error, redis.ResponseError):
            _check_takes_writes(mirror)
        if isinstance(error, (redis.TimeoutError, Error)):
            # Where both answer, it is this session that takes too long.
            mirror.client.ping()
            Session.objects.exists()
        logger.exception("The mirror of session %s was not updated.", session_id)


def _log(mirror: MirrorSessions, refused: Mapping[UUID, redis.RedisError]) -> None:
    if refused:
        _check_takes_writes(mirror)
    for session_id, error in refused.items():
        logger.error("The server refused the mirror of session %s: %s", session_id, error)


def _check_takes_writes(mirror: MirrorSessions) -> None:
    """:raises RefusesWrites: if the server refuses also what could take memory, and changes nothing."""
    try:
        mirror.client.set(NEVER_THERE, "", xx=True)
    except redis.ResponseError as error:
        raise RefusesWrites(str(error)) from error


def heal(mirror: MirrorSessions) -> int:
    """Update the sessions that the mirror lacks, among those that changed since the last call and some of the others.

    Those that changed just now are left out: the process that changed them updates them soon.

    :returns: How many these were.
    :raises ConnectionError, TimeoutError, Error: as `update`.
    """
    try:
        return _heal(mirror)
    except redis.ResponseError:
        _check_takes_writes(mirror)
        raise


def _heal(mirror: MirrorSessions) -> int:
    seen = mirror.client.get(SEEN)
    rows = list(_changed_since(seen).only(*_COMPARED)[:AT_ONCE])
    lacking = mirror.lacking(rows) + mirror.lacking(_seen_before(mirror, seen))
    update(mirror, lacking)
    settled = [row for row in rows if row.updated_at < timezone.now() - RECENT]
    if settled:
        mirror.client.set(SEEN, f"{settled[-1].updated_at.isoformat()} {settled[-1].pk}")
    return len(lacking)


def rebuild(mirror: MirrorSessions) -> int:
    """Write every session anew, and remove what is of none; returns how many sessions the mirror has then."""
    for session_ids in _pages(_mirrored_ids(mirror)):
        existing = {str(pk) for pk in Session.objects.filter(pk__in=session_ids).values_list("pk", flat=True)}
        mirror.delete(session_id for session_id in session_ids if session_id not in existing)
    every = Session.objects.order_by("updated_at", "pk").values_list("pk", flat=True)
    for page in _pages(every.iterator()):
        update(mirror, page, anew=True)
    return sum(1 for _ in _mirrored_ids(mirror))


def remove(mirror: MirrorSessions) -> int:
    """Remove the mirror of every session; returns how many there were. Journals on the same server stay."""
    removed = 0
    for session_ids in _pages(_mirrored_ids(mirror)):
        mirror.delete(session_ids)
        removed += len(session_ids)
    mirror.client.delete(SEEN, SEEN_AGAIN)
    return removed


def _changed_since(seen: str | None) -> QuerySet[Session]:
    sessions = Session.objects.filter(updated_at__lt=timezone.now() - JUST_NOW).order_by("updated_at", "pk")
    if seen is None:
        return sessions
    at, _, session_id = seen.partition(" ")
    changed_at = datetime.fromisoformat(at).astimezone(UTC)
    return sessions.filter(Q(updated_at__gt=changed_at) | Q(updated_at=changed_at, pk__gt=UUID(session_id)))


def _seen_before(mirror: MirrorSessions, seen: str | None) -> list[Session]:
    """The next of the sessions that were looked at before and belong in the mirror."""
    if seen is None:
        return []
    after = mirror.client.get(SEEN_AGAIN)
    sessions = Session.objects.filter(pk__gt=UUID(after)) if after else Session.objects.all()
    rows = list(sessions.order_by("pk").only(*_COMPARED)[:AGAIN_AT_ONCE])
    # Behind the last one the next call begins with the first.
    mirror.client.set(SEEN_AGAIN, str(rows[-1].pk) if len(rows) == AGAIN_AT_ONCE else "")
    at, _, session_id = seen.partition(" ")
    last = datetime.fromisoformat(at).astimezone(UTC), UUID(session_id)
    return [row for row in rows if (row.updated_at, row.pk) <= last and not mirror.is_over(row)]


def _mirrored_ids(mirror: MirrorSessions) -> Iterator[str]:
    """The ids of all sessions that the server has a mirror of; one may come twice."""
    prefix = layout.key("state", "")
    for name in mirror.client.scan_iter(f"{prefix}*", count=AT_ONCE, _type="hash"):
        if mirror.client.hexists(name, layout.MIRROR):
            yield name.removeprefix(prefix)


def _pages(session_ids: Iterable[Id]) -> Iterator[list[Id]]:
    page: list[Id] = []
    for session_id in session_ids:
        page.append(session_id)
        if len(page) == AT_ONCE:
            yield page
            page = []
    if page:
        yield page
