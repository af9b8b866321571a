"""One act on many sessions: which they are is fixed when it begins, then each is done as the single act would be.

Celery works the items off in small batches (`step`). An item is ticked off in the transaction that does its session,
by a conditional UPDATE: so it is done once, however many workers try, and a killed one leaves nothing half-done; the
sweep finds what it left (`unattended`). A session that cannot be done is refused with the same reason as ever, and
the others go on.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from sessions_app.access import availability
from sessions_app.access.errors import ActionError, Forbidden, Invalid, Moved, NotFound, Refused
from sessions_app.access.roles import Actor
from sessions_app.actions import steer
from sessions_app.actions.base import fit, given, require
from sessions_app.models import BulkAct, BulkItem, Session
from sessions_app.wake import wake_bulk

logger = logging.getLogger(__name__)
Kind, Outcome = BulkAct.Kind, BulkItem.Outcome

MOST = 10_000
BATCH = 25
EXAMPLES = 5
# An act whose items stand still for so long has lost its worker.
QUIET = timedelta(seconds=15)


@dataclass(slots=True)
class Refusal:
    """``examples`` are the first of the ``number`` sessions that would be refused for this reason."""

    why: str
    number: int = 0
    examples: list[Session] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an act would do now; give ``total`` to `bulk_start` as what was expected."""

    total: int
    possible: int
    refused: list[Refusal]


def bulk_estimate(*, actor: Actor, kind: str, sessions: QuerySet[Session]) -> Estimate:
    """How many of the sessions the act would do, and why it would not do the others. One query; nothing changes.

    :raises Invalid: for none, or more than `MOST`.
    """
    _allowed(actor, kind)
    chosen = sessions.order_by("pk").distinct()
    _number(chosen.count())
    now = timezone.now()
    total = possible = 0
    refused: dict[str, Refusal] = {}
    for session in chosen.defer("inputs", "totals", "final_answer").iterator():
        total += 1
        why = availability.why_not(session, kind, now=now)
        if why is None:
            possible += 1
            continue
        refusal = refused.setdefault(why, Refusal(why))
        refusal.number += 1
        if len(refusal.examples) < EXAMPLES:
            refusal.examples.append(session)
    return Estimate(total, possible, sorted(refused.values(), key=lambda refusal: -refusal.number))


@transaction.atomic(durable=True)
def bulk_start(
    *,
    actor: Actor,
    kind: str,
    sessions: QuerySet[Session],
    reason: str,
    query: str = "",
    assignee: User | None = None,
    expected: int | None = None,
) -> BulkAct:
    """Fix which sessions are meant, and let workers begin.

    :param query: The query string that chose them, for whoever reads about it later.
    :param assignee: For ``assign``: who gets them; None for nobody.
    :param expected: How many the person was told they are.
    :raises Moved: if they are more or fewer by now.
    """
    _allowed(actor, kind)
    if actor.user is None:
        raise Forbidden("An act on many sessions is done in the name of a person with an account.")
    reason = given("The reason", reason)
    if kind == Kind.ASSIGN:
        steer.check_assignee(assignee)
    keys = list(sessions.order_by("pk").values_list("pk", flat=True).distinct()[: MOST + 1])
    _number(len(keys))
    if expected is not None and len(keys) != expected:
        raise Moved(
            f"They were {expected:,} sessions; by now they are {len(keys):,}. Look again, then decide."
        )
    act = BulkAct.objects.create(
        kind=kind,
        query=fit("The filter", query),
        reason=reason,
        assignee=assignee if kind == Kind.ASSIGN else None,
        actor=actor.user,
        actor_name=actor.name,
    )
    BulkItem.objects.bulk_create((BulkItem(act=act, session_id=key) for key in keys), batch_size=1000)
    wake_bulk(act.pk)
    return act


@transaction.atomic(durable=True)
def bulk_stop(*, actor: Actor, act_id: int) -> BulkAct:
    """Leave the sessions alone whose turn has not come. What is done stays done.

    :raises Refused: if there is nothing left to stop.
    """
    act = BulkAct.objects.select_for_update(of=("self",)).filter(pk=act_id).first()
    if act is None:
        raise NotFound(f"There is no bulk act {act_id}.")
    require(actor, act.kind)
    if act.stopped_at is not None:
        raise Refused(f"It was already stopped by {act.stopped_by}.")
    act.stopped_at, act.stopped_by = timezone.now(), actor.name
    if not _stop(act, f"Stopped by {actor.name}."):
        raise Refused("It has finished; there is nothing left to stop.")
    act.save(update_fields=["stopped_at", "stopped_by"])
    return act


def step(act_id: int, limit: int | None = None) -> bool:
    """Do the next few sessions of an act. Returns whether there is more to do."""
    act = BulkAct.objects.select_related("actor", "assignee").filter(pk=act_id).first()
    if act is None:
        return False
    if act.actor is None:
        # An actor without an account could do everything.
        _stop(act, f"The account of {act.actor_name} is gone.")
        return False
    actor = Actor.of(act.actor, bulk=act.pk)
    for item in act.items.filter(outcome=Outcome.PENDING)[: limit or BATCH]:
        _do(act, actor, item)
    return act.items.filter(outcome=Outcome.PENDING).exists()


def unattended(now: datetime | None = None) -> list[int]:
    """Acts with something to do that nobody has worked on for a while."""
    since = (now or timezone.now()) - QUIET
    items = BulkItem.objects.filter(act=OuterRef("pk"))
    acts = BulkAct.objects.filter(
        Exists(items.filter(outcome=Outcome.PENDING)), created_at__lte=since, stopped_at=None
    )
    return list(acts.exclude(Exists(items.filter(done_at__gt=since))).values_list("pk", flat=True))


def _do(act: BulkAct, actor: Actor, item: BulkItem) -> None:
    try:
        _verb(act)(actor=actor, session_id=item.session_id, reason=act.reason)
    except ActionError as error:
        _refuse(item, str(error))
    except (OperationalError, InterfaceError):
        # Not this session's fault: the sweep tries again.
        raise
    except Exception as error:  # One session's trouble must not keep the others waiting for ever.
        logger.exception("Bulk act %s failed on session %s.", act.pk, item.session_id)
        _refuse(item, f"It failed: {type(error).__name__}: {error}")


def _verb(act: BulkAct) -> Callable[..., Session]:
    match act.kind:
        case Kind.PAUSE:
            return steer.pause
        case Kind.RESUME:
            return steer.resume
        case Kind.CANCEL:
            return steer.cancel
        case _:
            return partial(steer.assign, assignee=act.assignee)


def _refuse(item: BulkItem, why: str) -> None:
    """Unless somebody else has done it, or stopped it: then its session was refused because of just that."""
    BulkItem.objects.filter(pk=item.pk, outcome=Outcome.PENDING).update(
        outcome=Outcome.REFUSED, why=why, done_at=timezone.now()
    )


def _stop(act: BulkAct, why: str) -> int:
    return act.items.filter(outcome=Outcome.PENDING).update(
        outcome=Outcome.STOPPED, why=why, done_at=timezone.now()
    )


def _allowed(actor: Actor, kind: str) -> None:
    if kind not in Kind.values:
        raise Invalid(f"There is no bulk act {kind!r}. There are: {', '.join(Kind.values)}.")
    require(actor, kind)


def _number(found: int) -> None:
    if not found:
        raise Invalid("No session is chosen.")
    if found > MOST:
        raise Invalid(f"More than {MOST:,} sessions are chosen. Narrow the filter.")
