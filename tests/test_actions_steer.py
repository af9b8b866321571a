"""Pausing, resuming, cancelling and assigning, from every state that allows it."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from sessions_app import actions
from sessions_app.access.errors import Invalid
from sessions_app.models import InboxMessage, Phase, Session, Status
from tests import builders
from tests.builders import fresh

pytestmark = pytest.mark.django_db

Build = Callable[..., Session]


def last_event(session: Session) -> tuple[str, dict[str, object]]:
    event = session.events.last()
    assert event is not None
    return event.kind, event.data


def test_pausing_a_queued_session_stops_it_at_once() -> None:
    session = builders.queued()
    actions.pause(actor=builders.SYSTEM, session_id=session.pk, reason="lunch")
    session = fresh(session)
    assert (session.status, session.why, session.next_run_at) == (Status.PAUSED, "lunch", None)
    assert last_event(session) == ("paused", {})


@pytest.mark.parametrize(
    "verb, request_", [(actions.pause, "pause"), (actions.cancel, "cancel")], ids=["pause", "cancel"]
)
def test_a_running_session_is_only_asked_to_stop(verb: Callable[..., Session], request_: str) -> None:
    session = builders.running()
    verb(actor=builders.SYSTEM, session_id=session.pk, reason="lunch")
    after = fresh(session)
    assert (after.status, after.stop_request, after.why) == (Status.RUNNING, request_, "lunch")
    assert (after.epoch, after.worker, after.lease_expires_at) == (
        session.epoch,
        session.worker,
        session.lease_expires_at,
    )
    assert last_event(after) == ("stop_requested", {"request": request_})


def test_a_session_that_is_about_to_pause_may_still_be_cancelled() -> None:
    session = builders.pausing()
    actions.cancel(actor=builders.SYSTEM, session_id=session.pk, reason="no longer needed")
    assert fresh(session).stop_request == "cancel"


@pytest.mark.parametrize(
    "build",
    [
        builders.queued,
        builders.retrying,
        builders.paused,
        builders.waiting_for_approval,
        builders.in_doubt,
        builders.retries_used_up,
        builders.failed,
    ],
)
def test_cancelling_ends_a_session_that_no_worker_holds(build: Build) -> None:
    session = build()
    actions.cancel(actor=builders.SYSTEM, session_id=session.pk, reason="no longer needed")
    session = fresh(session)
    assert (session.status, session.waiting_for, session.why) == (Status.CANCELLED, "", "no longer needed")
    assert last_event(session) == ("cancelled", {})


@pytest.mark.parametrize(
    "build",
    [builders.paused, builders.retries_used_up, builders.changed, builders.retrying, builders.rewound],
)
def test_resuming_queues_a_session_where_it_was(build: Build, woken: list[str]) -> None:
    session = build()
    phase, epoch = session.phase, session.epoch
    actions.resume(actor=builders.SYSTEM, session_id=session.pk, reason="go on")
    session = fresh(session)
    assert session.status == Status.QUEUED
    assert session.next_run_at is not None
    assert session.next_run_at <= timezone.now()
    assert (session.phase, session.attempt, session.epoch) == (phase, 0, epoch)
    assert (session.waiting_for, session.why) == ("", "")
    assert woken == [str(session.pk)]


def test_resuming_says_from_where() -> None:
    session = builders.retries_used_up()
    actions.resume(actor=builders.SYSTEM, session_id=session.pk, reason="the server is back")
    assert last_event(fresh(session)) == ("resumed", {"status": "waiting", "waiting_for": "retries"})


def test_resuming_after_a_change_adopts_the_agent_as_it_is_now(woken: list[str]) -> None:
    changed, paused = builders.changed(), builders.paused()
    for session in (changed, paused):
        actions.resume(actor=builders.SYSTEM, session_id=session.pk, reason="go on")
    assert fresh(changed).definition == ""
    assert fresh(paused).definition == builders.DEFINITION


def test_resuming_a_failed_session_plans_anew(woken: list[str]) -> None:
    session = builders.failed()
    actions.resume(actor=builders.SYSTEM, session_id=session.pk, reason="the key is right now")
    session = fresh(session)
    assert (session.status, session.phase, session.previous_phase) == (
        Status.QUEUED,
        Phase.PLANNING,
        Phase.ERROR,
    )
    assert session.error == ""
    assert session.totals["edges"]["error>planning"] == 1
    assert woken == [str(session.pk)]


def test_resuming_withdraws_a_pause_that_the_worker_has_not_obeyed(woken: list[str]) -> None:
    session = builders.pausing()
    actions.resume(actor=builders.SYSTEM, session_id=session.pk, reason="back already")
    after = fresh(session)
    assert (after.status, after.stop_request, after.why) == (Status.RUNNING, "", "")
    assert after.lease_expires_at == session.lease_expires_at
    assert last_event(after) == ("resumed", {"status": "running", "stop_request": "pause"})
    assert woken == []


def test_resuming_at_the_end_of_a_turn_leaves_it_idle(woken: list[str]) -> None:
    session = builders.done()
    Session.objects.filter(pk=session.pk).update(status=Status.PAUSED)
    actions.resume(actor=builders.SYSTEM, session_id=session.pk, reason="go on")
    session = fresh(session)
    assert (session.status, session.phase, session.final_answer) == (
        Status.IDLE,
        Phase.DONE,
        "Yes, POL-7 covers your windscreen.",
    )
    assert woken == []


def test_resuming_at_the_end_of_a_turn_reads_what_was_said_since(woken: list[str]) -> None:
    session = builders.done()
    Session.objects.filter(pk=session.pk).update(status=Status.PAUSED)
    InboxMessage.objects.create(session=session, text="And the mirror?")
    actions.resume(actor=builders.SYSTEM, session_id=session.pk, reason="go on")
    session = fresh(session)
    assert (session.status, session.phase) == (Status.QUEUED, Phase.PLANNING)
    assert woken == [str(session.pk)]


def test_a_retry_that_is_put_off_can_be_had_now(woken: list[str]) -> None:
    session = builders.retrying()
    assert session.next_run_at is not None
    assert session.next_run_at > timezone.now() + timedelta(minutes=1)
    actions.resume(actor=builders.SYSTEM, session_id=session.pk, reason="the server is back")
    assert Session.objects.due(timezone.now()).filter(pk=session.pk).exists()


def test_a_session_is_given_to_a_colleague_and_taken_back() -> None:
    session, colleague = builders.paused(), builders.user("operator")
    actions.assign(actor=builders.SYSTEM, session_id=session.pk, assignee=colleague)
    assert fresh(session).assignee == colleague
    assert last_event(session) == ("assigned", {"assignee": colleague.username})
    actions.assign(actor=builders.SYSTEM, session_id=session.pk, assignee=None)
    assert fresh(session).assignee is None


def test_a_session_is_not_given_to_somebody_who_cannot_see_it() -> None:
    session, stranger, gone = builders.paused(), builders.user(role=None), builders.user("operator")
    gone.is_active = False
    gone.save()
    for nobody in (stranger, gone):
        with pytest.raises(Invalid, match=nobody.username):
            actions.assign(actor=builders.SYSTEM, session_id=session.pk, assignee=nobody)
    assert fresh(session).assignee is None


def test_the_action_returns_the_session_as_it_is_then() -> None:
    session = actions.pause(actor=builders.SYSTEM, session_id=builders.queued().pk, reason="lunch")
    stored = fresh(session)
    for field in Session._meta.concrete_fields:
        assert getattr(session, field.attname) == getattr(stored, field.attname), field.name
