"""By which conditions the index of facets finds the sessions that may have a line, in each state. PostgreSQL only."""

from collections.abc import Sequence
from dataclasses import replace

from django.db.models import Q

from sessions_app.finding.facets import Facets
from sessions_app.finding.inbox_states import HAS_CAUSE, IS_MOVING, IS_STOPPED, MOVING
from sessions_app.finding.parts import opaque
from sessions_app.models import STOPPED, Phase, Status

WITH_CAUSE = (Status.WAITING, Status.IDLE)
# The states of a `Condition`: each as a condition, the statuses that it has, and what else it asks of a session.
OF_STATES = (
    (IS_STOPPED, STOPPED, Q()),
    (IS_MOVING, MOVING, Q()),
    (HAS_CAUSE, WITH_CAUSE, Q(failure__isnull=False)),
)


def where_in_states(facets: Facets, statuses: Sequence[Status], also: Q) -> Q:
    """The condition that a session meets the filter and has one of the statuses, or is idle and has failed, so that
    PostgreSQL finds the sessions by an index. Others may meet it.
    """
    if (
        statuses == WITH_CAUSE
        and facets.phase not in ("", Phase.ERROR)
        and facets.status in ("", Status.WAITING)
    ):
        # The index of phases has the causes, which hardly any session that waits in one has.
        waiting = Q(status=Status.WAITING, phase_at_rest=facets.phase)
        asked = replace(facets, status="", phase="").asked_in_order
        return waiting & also & asked
    # Those that wait in that phase are among those that are in it.
    are_failed = statuses == WITH_CAUSE and facets.phase == Phase.ERROR and not facets.status
    where = Q()
    for status in statuses:
        if facets.status not in ("", status) or (status == Status.WAITING and are_failed):
            continue
        if status != Status.IDLE:
            where |= replace(facets, status=status).of_index
        elif facets.phase in ("", Phase.ERROR):
            # Nearly all in the phase are idle, and it is a shorter list.
            where |= replace(facets, status="", phase=Phase.ERROR).at_rest
    if not where:
        return Q(pk__in=[])
    # Of a session that has failed, its own index would give all that have a cause, which is nearly each one found.
    return where & facets.others & (Q(opaque(also)) if also else also)
