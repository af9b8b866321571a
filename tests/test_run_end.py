"""Each way in which a run ends names a status, a need and an event that the database knows, and rests consistently."""

from datetime import UTC, datetime, timedelta

import pytest

from agentstate.durable import run_end
from agentstate.durable.run_end import ExplainedEnd, RunEnd
from sessions_app.models import EventKind, Session, Status, WaitingFor, resting_fields

NOW = datetime(2026, 1, 2, tzinfo=UTC)
KINDS = [
    kind
    for kind in vars(run_end).values()
    if isinstance(kind, type) and issubclass(kind, RunEnd) and kind not in (RunEnd, ExplainedEnd)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_end_names_what_the_database_knows(kind: type[RunEnd]) -> None:
    assert kind.status in set(Status.values) - {Status.RUNNING.value}
    assert kind.waiting_for in {"", *WaitingFor.values}
    assert (kind.status == "waiting") == bool(kind.waiting_for)
    assert kind.event in {"", *EventKind}


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.RUNNING}))
def test_a_session_at_rest_satisfies_the_constraints(status: Status, db: None) -> None:
    fields = resting_fields(status, now=NOW, why="why", waiting_for=WaitingFor.DOUBT, delay=30)
    session = Session.objects.create(agent="a", **fields)
    assert (session.worker, session.stop_request, session.lease_expires_at) == ("", "", None)
    assert session.next_run_at == (NOW + timedelta(seconds=30) if status == Status.QUEUED else None)
    assert session.waiting_for == (WaitingFor.DOUBT if status == Status.WAITING else "")


def test_a_reason_that_is_not_given_is_left_as_it_is() -> None:
    assert "why" not in resting_fields(Status.PAUSED, now=NOW)


@pytest.mark.parametrize("status", [Status.RUNNING, Status.WAITING])
def test_a_session_that_runs_or_waits_for_nothing_is_not_at_rest(status: Status) -> None:
    with pytest.raises(ValueError, match="session"):
        resting_fields(status, now=NOW)
