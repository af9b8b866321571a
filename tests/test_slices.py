"""A session that has run for its slice of time gives way where other work waits for its worker, and nowhere else."""

import os
from collections.abc import Callable

import pytest
from celery import signals
from haystack.components.agents import Agent

from sessions_app.models import Checkpoint, Session, Status
from sessions_app.runtime import process, worker
from sessions_app.runtime.stopping import SharedFlag, stopping
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


def test_behind_its_slice_it_gives_way_to_what_is_urgent_though_nothing_else_waits(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LEAST_SECONDS", 0.0)
    desk.agent(sample_agents.long_run)
    session = desk.start()
    assert (
        desk.drive(session, slice_seconds=0, others_wait=lambda: False, urgent_waits=lambda: True) == "queued"
    )


@pytest.mark.parametrize("is_forked", [False, True])
def test_a_signal_ends_the_slices_of_the_worker_that_gets_it_and_not_of_the_parent_of_one_that_a_tool_has_forked(
    is_forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a process has Celery's handler of its parent, and the memory that its parent shares with its pool."""
    flag = SharedFlag()
    monkeypatch.setattr(process, "stopping", flag)
    if is_forked:
        monkeypatch.setattr(os, "getpid", lambda: -1)
    signals.worker_shutting_down.send(sender="worker@host", sig="SIGTERM", how="Warm", exitcode=0)
    assert flag.is_set() is not is_forked


def test_a_process_that_ends_keeps_no_session_though_nothing_waits(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.agent(sample_agents.long_run)
    session = desk.start()
    monkeypatch.setattr(stopping, "is_set", lambda: True)
    assert desk.drive(session, slice_seconds=1_000, others_wait=lambda: False) == "queued"
    assert steps(desk.fresh(session)) == 1
