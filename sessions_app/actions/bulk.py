"""Bulk actions: one action on many sessions, which are fixed when it starts.

Celery works through the items in small batches (`run_batch`), each by the function of the single action. An item is
marked as done in the transaction that changes its session, by a conditional UPDATE: it is done once, however many
workers try, and a killed worker leaves nothing half-done; the sweep finds what it left (`unattended`). A session whose
state does not allow the action is refused with the reason, and the others continue. One that is locked stays pending.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, cached_property
from heapq import nlargest
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import Exists, OuterRef, Q, QuerySet, Value
from django.utils import timezone

from sessions_app import locks
from sessions_app.access.action import Action
from sessions_app.access.errors import ActionError, Forbidden, Invalid, Locked, Moved, NotFound, Refused
from sessions_app.access.roles import Actor, check_actor
from sessions_app.action_list import ACTIONS, ASSIGN, PAUSE, RESUME
from sessions_app.actions import steer
from sessions_app.actions.base import (
    BY_FIELDS,
    BY_REASON,
    in_one_transaction,
    optional_text,
    require,
    required_reason,
)
from sessions_app.finding.keys import in_list, listed_each
from sessions_app.models import BulkAction, BulkItem, RegisteredAgent, Session
from sessions_app.models.selects import as_sql
from sessions_app.unavailable import may_pass
from sessions_app.wake import wake_bulk

logger = logging.getLogger(__name__)
Outcome = BulkItem.Outcome

MOST = 10_000
BATCH = 25
EXAMPLES = 5
# So many sessions are looked at to choose the action that a page opens on; the estimate looks at them all.
LOOKED_AT = 500
# What the rules of the bulk actions read of a session. A rule that reads another field cannot be asked without it here.
_FACTS = ("agent", "status", "phase", "waiting_for", "stop_request", "next_run_at")
# What is read: which of them changed last, what names one among the refused, and the facts. As an object of the ORM a
# row takes five times as long.
_READ = ("updated_at", "id", "title", *_FACTS)
Row = tuple[Any, ...]
# How a value of `Action.bulk_fields` is checked when a bulk action starts.
CHECKS = {"assignee": steer.check_assignee}
# A bulk action of which no item was done for so long has lost its worker.
QUIET = timedelta(seconds=15)


@dataclass(slots=True)
class Refusal:
    """``examples`` are the first of the ``number`` sessions that would be refused for this reason."""

    why: str
    number: int = 0
    examples: list[Session] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a bulk action would do now; give ``total`` to `bulk_start` as `expected`."""

    total: int
    possible: int
    refused: list[Refusal]


class Chosen:
    """The sessions that a query finds, read when they are asked for: at most three queries."""

    def __init__(self, query: QuerySet[Session]) -> None:
        self._query = query

    @cached_property
    def _keys(self) -> Q | None:
        """The condition that names each of them by its key, so that the query, which may take long, is executed once;
        None if they are more than `MOST`.
        """
        rows = self._query.order_by().values_list("pk", Value(True))[: MOST + 1]
        keys = listed_each(as_sql(rows), 1, MOST)
        return in_list(keys[0], kind="uuid") if keys is not None else None

    @property
    def are_too_many(self) -> bool:
        """Whether they are more than `MOST`."""
        return self._keys is None

    @cached_property
    def all(self) -> list[Row]:
        """All of them, in the order of their keys. Not to be asked for where they are too many."""
        assert self._keys is not None
        return list(_rows(Session.objects.filter(self._keys).order_by("pk")))

    def newest(self) -> list[Row]:
        """The first `LOOKED_AT` of those that changed last."""
        if self.are_too_many:
            return list(_rows(self._query.order_by("-updated_at", "-pk")[:LOOKED_AT]))
        return nlargest(LOOKED_AT, self.all)

    @cached_property
    def _agents(self) -> dict[str, RegisteredAgent]:
        return {agent.key: agent for agent in RegisteredAgent.objects.all()}

    def why_impossible(self, action: Action, now: datetime) -> Callable[[Row], str]:
        """Tells of a row why the action is impossible, "" if it is not: as `Action.impossible`, which is asked once for
        all rows with the same facts.
        """

        @cache
        def of(*facts: Any) -> str:
            session = Session.from_db(None, _FACTS, facts)
            session.registered_agent = self._agents.get(session.agent)
            return action.impossible(session, now=now)

        return lambda row: of(*row[-len(_FACTS) :])


def bulk_chosen(*, sessions: QuerySet[Session]) -> Chosen:
    """The sessions for `bulk_fitting` and `bulk_estimate`, which read them once. No query of its own."""
    return Chosen(sessions)


def bulk_fitting(*, actor: Actor, chosen: Chosen) -> Action:
    """The action to begin with for these sessions: to pause or to resume them, whichever more of them allow now.

    Those that changed last are looked at. To assign them where neither is possible for any. To end sessions is never
    the first choice.
    """
    check_actor(actor)
    now = timezone.now()
    allowed = [action for action in (PAUSE, RESUME) if actor.may(action.permission)]
    newest = chosen.newest() if allowed else []
    numbers = {action: [*map(chosen.why_impossible(action, now), newest)].count("") for action in allowed}
    fitting = max(numbers, key=lambda action: numbers[action], default=ASSIGN)
    return fitting if numbers.get(fitting) else ASSIGN


def bulk_estimate(*, actor: Actor, kind: str, chosen: Chosen) -> Estimate:
    """How many of the sessions the action is possible for, and why not for the others. Changes nothing.

    :raises Invalid: for none, or more than `MOST`.
    """
    action = _bulk_action(actor, kind)
    _check_number(MOST + 1 if chosen.are_too_many else len(chosen.all))
    now = timezone.now()
    possible = 0
    refused: dict[str, Refusal] = {}
    why_impossible = chosen.why_impossible(action, now)
    for row in chosen.all:
        why = why_impossible(row)
        if not why:
            possible += 1
            continue
        refusal = refused.setdefault(why, Refusal(why))
        refusal.number += 1
        if len(refusal.examples) < EXAMPLES:
            refusal.examples.append(Session.from_db(None, _READ, row))
    return Estimate(len(chosen.all), possible, sorted(refused.values(), key=lambda refusal: -refusal.number))


@in_one_transaction
def bulk_start(
    *,
    actor: Actor,
    kind: str,
    sessions: QuerySet[Session],
    reason: str,
    query: str = "",
    assignee: User | None = None,
    expected: int | None = None,
) -> BulkAction:
    """Fix the sessions of a bulk action, and wake a worker for it.

    :param query: The query string that selected them, kept for readers.
    :param assignee: For an action that asks for it: the new assignee; None takes the assignment away.
    :param expected: The number of sessions that the person was shown.
    :raises Moved: if there are more or fewer of them now.
    """
    action = _bulk_action(actor, kind)
    if actor.user is None:
        raise Forbidden("Only people with an account can start a bulk action.")
    reason = required_reason(reason)
    given = {name: value for name, value in {"assignee": assignee}.items() if name in action.bulk_fields}
    for name, value in given.items():
        CHECKS[name](value)
    keys = _keys_of(sessions)
    _check_number(len(keys))
    if expected is not None and len(keys) != expected:
        raise Moved(f"The list had {expected:,} sessions and now has {len(keys):,}. Check it, then decide.")
    bulk = BulkAction.objects.create(
        kind=kind,
        query=optional_text("The filter", query),
        reason=reason,
        actor=actor.user,
        actor_name=actor.name,
        **given,
    )
    BulkItem.objects.bulk_create(
        (BulkItem(bulk_action=bulk, session_id=key) for key in sorted(keys)), batch_size=1000
    )
    wake_bulk(bulk.pk)
    return bulk


@in_one_transaction
def bulk_stop(*, actor: Actor, bulk_id: int) -> BulkAction:
    """Leave out the sessions that have not been done yet. What is done stays done.

    :raises Refused: if every session has been done.
    """
    bulk = BulkAction.objects.select_for_update(of=("self",)).filter(pk=bulk_id).first()
    if bulk is None:
        raise NotFound(f"There is no bulk action {bulk_id}.")
    require(actor, ACTIONS[bulk.kind])
    if bulk.stopped_at is not None:
        raise Refused(f"It was already stopped by {bulk.stopped_by}.")
    bulk.stopped_at, bulk.stopped_by = timezone.now(), actor.name
    if not _stop_pending(bulk, f"Stopped by {actor.name}."):
        raise Refused("It has finished; there is nothing left to stop.")
    bulk.save(update_fields=["stopped_at", "stopped_by"])
    return bulk


def run_batch(bulk_id: int, limit: int | None = None) -> bool:
    """Do the next few sessions of a bulk action.

    :returns: Whether more are left that can be done now. If all were locked, the sweep tries again later.
    """
    bulk = BulkAction.objects.select_related("actor", "assignee").filter(pk=bulk_id).first()
    if bulk is None:
        return False
    if bulk.actor is None:
        # An actor without an account could do everything.
        _stop_pending(bulk, f"The account of {bulk.actor_name} was deleted.")
        return False
    actor = Actor.of(bulk.actor, bulk=bulk.pk)
    pending = bulk.items.filter(outcome=Outcome.PENDING)
    with locks.sharing_one_wait():
        done = [_do(bulk, actor, item) for item in pending[: limit or BATCH]]
    return any(done) and pending.exists()


def unattended(now: datetime | None = None) -> list[int]:
    """The bulk actions with pending items that no worker has done anything for in a while."""
    since = (now or timezone.now()) - QUIET
    items = BulkItem.objects.filter(bulk_action=OuterRef("pk"))
    unfinished = BulkAction.objects.filter(
        Exists(items.filter(outcome=Outcome.PENDING)), created_at__lte=since, stopped_at=None
    )
    return list(unfinished.exclude(Exists(items.filter(done_at__gt=since))).values_list("pk", flat=True))


def _keys_of(sessions: QuerySet[Session]) -> list[UUID]:
    """Those of at most one session more than `MOST`, each once. One query, or two where a session is found twice."""
    keys = list(sessions.order_by().values_list("pk", flat=True)[: MOST + 1])
    once = list(dict.fromkeys(keys))
    if len(keys) > MOST >= len(once):
        once = list(sessions.order_by().values_list("pk", flat=True).distinct()[: MOST + 1])
    return once


def _rows(sessions: QuerySet[Session]) -> QuerySet[Session, Row]:
    return sessions.values_list(*_READ, named=False)


def _do(bulk: BulkAction, actor: Actor, item: BulkItem) -> bool:
    """Do it to one session, or note why not; False if the session is locked."""
    try:
        action = ACTIONS[bulk.kind]
        fields = {name: getattr(bulk, name) for name in action.bulk_fields}
        function = BY_FIELDS.get(action) or BY_REASON[action]
        function(actor=actor, session_id=item.session_id, reason=bulk.reason, **fields)
    except Locked:
        return False
    except ActionError as error:
        _refuse(item, str(error))
    except Exception as error:  # A failure with one session must not keep the others waiting for ever.
        if may_pass(error):
            # Not this session's fault: the sweep tries again.
            raise
        logger.exception("Bulk action %s failed on session %s.", bulk.pk, item.session_id)
        _refuse(item, f"It failed: {type(error).__name__}: {error}")
    return True


def _refuse(item: BulkItem, why: str) -> None:
    """Unless another worker has done it, or it was stopped: then its session was refused for just that reason."""
    BulkItem.objects.filter(pk=item.pk, outcome=Outcome.PENDING).update(
        outcome=Outcome.REFUSED, why=why, done_at=timezone.now()
    )


def _stop_pending(bulk: BulkAction, why: str) -> int:
    """The number of sessions that are left out now."""
    return bulk.items.filter(outcome=Outcome.PENDING).update(
        outcome=Outcome.STOPPED, why=why, done_at=timezone.now()
    )


def _bulk_action(actor: Actor, kind: str) -> Action:
    """:raises Invalid: for an action that cannot be done to many sessions at once."""
    action = ACTIONS.get(kind)
    if action is None or not action.bulk:
        kinds = ", ".join(action.key for action in ACTIONS.values() if action.bulk)
        raise Invalid(f"There is no bulk action {kind!r}. There are: {kinds}.")
    require(actor, action)
    return action


def _check_number(sessions: int) -> None:
    if not sessions:
        raise Invalid("No session is chosen.")
    if sessions > MOST:
        raise Invalid(f"More than {MOST:,} sessions are chosen. Narrow the filter.")
