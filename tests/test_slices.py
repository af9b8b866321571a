"""A session that has run for its slice of time gives way where other work waits for its worker, and nowhere else."""

from collections.abc import Callable

import pytest
from haystack.components.agents import Agent

from sessions_app.models import Checkpoint, Session, Status
from sessions_app.runtime import worker
from tests import sample_agents
from tests.driving import Desk


def steps(session: Session) -> int:
    return Checkpoint.objects.filter(branch=session.branch, kind=Checkpoint.Kind.STEP).count()


@pytest.mark.parametrize("build", [sample_agents.long_run, sample_agents.awaited])
def test_a_session_goes_on_behind_its_slice_while_nothing_else_waits(
    desk: Desk, build: Callable[[], Agent]
) -> None:
    desk.agent(build)
    session = desk.start()
    assert desk.drive(session, slice_seconds=0, others_wait=lambda: False) == "idle"
    session = desk.fresh(session)
    assert steps(session) > 1
    assert session.epoch == 1


def test_it_gives_way_at_the_step_at_which_other_work_begins_to_wait(desk: Desk) -> None:
    desk.agent(sample_agents.long_run)
    session = desk.start()
    answers = iter([False, False, True])
    assert desk.drive(session, slice_seconds=0, others_wait=lambda: next(answers)) == "queued"
    session = desk.fresh(session)
    assert (session.status, steps(session)) == (Status.QUEUED, 3)
    assert desk.run(desk.due(session)).status == Status.IDLE


def test_within_its_slice_it_goes_on_whatever_waits(desk: Desk) -> None:
    desk.agent(sample_agents.long_run)
    session = desk.start()
    assert desk.drive(session, slice_seconds=1_000, others_wait=lambda: True) == "idle"


def test_a_process_that_ends_keeps_no_session_though_nothing_waits(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.agent(sample_agents.long_run)
    session = desk.start()
    monkeypatch.setattr(worker.stopping, "is_set", lambda: True)
    assert desk.drive(session, slice_seconds=1_000, others_wait=lambda: False) == "queued"
    assert steps(desk.fresh(session)) == 1
