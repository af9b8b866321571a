"""One writer per session: claims, heartbeats, and the sweep that recovers sessions that lost their worker."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django import db
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from kombu.exceptions import KombuError, OperationalError
from pytest_django import Settings
from redis.exceptions import ReadOnlyError

from agentstate.celery import app
from agentstate.queues import FOUND_QUEUE, LATER_QUEUE
from sessions_app import actions, tasks
from sessions_app.access.errors import Moved
from sessions_app.access.roles import Actor
from sessions_app.models import Approval, Checkpoint, Event, Session, Status, WaitingFor, Worker
from sessions_app.runtime import leases, local, recovery, worker
from tests import builders
from tools.services import wait_for

pytestmark = pytest.mark.django_db

NOW = timezone.now()
LATER = NOW + timedelta(hours=1)


@pytest.fixture(autouse=True)
def times(settings: Settings) -> None:
    settings.AGENTSTATE_LEASE_SECONDS = 12
    settings.AGENTSTATE_MAX_ATTEMPTS = 3


def fresh(session: Session) -> Session:
    return Session.objects.get(pk=session.pk)


def claimed(now: datetime = NOW) -> tuple[Session, leases.Claim]:
    session = builders.paused()
    Session.objects.filter(pk=session.pk).update(status=Status.QUEUED, next_run_at=now, attempt=0)
    claim = leases.claim(session.pk, "host:1", now)
    assert claim is not None
    return session, claim


def last_event(session: Session) -> Event:
    event = session.events.last()
    assert event is not None
    return event


# Claim


def test_a_due_session_is_claimed_for_a_lease() -> None:
    session = builders.queued()
    claim = leases.claim(session.pk, "host:1", LATER)
    after = fresh(session)
    assert claim is not None
    assert (claim.session_id, claim.epoch, claim.worker, claim.attempt) == (session.pk, 1, "host:1", 1)
    assert not claim.lost.is_set()
    assert (after.status, after.epoch, after.worker, after.attempt) == (Status.RUNNING, 1, "host:1", 1)
    assert (after.lease_expires_at, after.next_run_at) == (LATER + timedelta(seconds=12), None)
    assert after.change == session.change + 1
    assert after.version == session.version


def test_a_claimed_session_is_not_claimed_again() -> None:
    session, _ = claimed()
    assert leases.claim(session.pk, "host:2", NOW) is None
    assert fresh(session).worker == "host:1"


@pytest.mark.parametrize("name", sorted(set(builders.STATES) - {"queued", "retrying", "lost"}))
def test_only_what_is_due_or_lost_is_claimed(name: str) -> None:
    session = builders.STATES[name]()
    assert leases.claim(session.pk, "host:2", timezone.now()) is None
    assert fresh(session).epoch == session.epoch


def test_a_session_that_is_due_later_is_not_claimed_before() -> None:
    session = builders.retrying()
    assert session.next_run_at is not None
    assert leases.claim(session.pk, "host:1", session.next_run_at - timedelta(seconds=1)) is None
    assert leases.claim(session.pk, "host:1", session.next_run_at) is not None


def test_a_session_that_is_not_there_is_not_claimed() -> None:
    session = builders.queued()
    assert leases.claim(Session(agent="x").pk, "host:1", LATER) is None
    assert fresh(session).status == Status.QUEUED


def test_a_lost_session_is_taken_over_with_a_new_epoch() -> None:
    session, old = claimed()
    claim = leases.claim(session.pk, "host:2", NOW + timedelta(seconds=13))
    assert claim is not None
    assert claim.epoch > old.epoch
    assert claim.attempt == old.attempt + 1
    assert leases.renew([old], NOW + timedelta(seconds=13)) == set()
    event = last_event(session)
    assert (event.kind, event.data) == ("lost", {"worker": "host:1", "attempt": 1})


def test_a_lost_session_that_was_to_stop_is_not_taken_over_but_stopped() -> None:
    session, _ = claimed()
    actions.cancel(actor=builders.SYSTEM, session_id=session.pk, reason="no longer needed")
    assert leases.claim(session.pk, "host:2", NOW + timedelta(seconds=13)) is None
    assert fresh(session).status == Status.CANCELLED


@pytest.mark.django_db(transaction=True)
def test_of_many_that_claim_at_once_one_wins() -> None:
    session = builders.queued()
    together = threading.Barrier(6)

    def claim(number: int) -> leases.Claim | None:
        try:
            together.wait()
            return leases.claim(session.pk, f"host:{number}", LATER)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        claims = list(pool.map(claim, range(6)))
    won = [claim for claim in claims if claim is not None]
    assert len(won) == 1
    assert (fresh(session).worker, fresh(session).epoch) == (won[0].worker, 1)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_of_many_people_who_answer_at_once_one_decides() -> None:
    session = builders.waiting_for_approval()
    call = Approval.objects.get().call_id
    people = [builders.actor("operator") for _ in range(4)]
    together = threading.Barrier(4)

    def answer(person: Actor) -> str:
        try:
            together.wait()
            actions.approve(actor=person, session_id=session.pk, call_id=call)
        except Moved as moved:
            return str(moved)
        else:
            return "decided"
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(answer, people))
    assert answers.count("decided") == 1
    winner = people[answers.index("decided")]
    [refusal] = set(answers) - {"decided"}
    assert refusal.startswith(f"It was already approved by {winner.name} at ")
    assert session.events.filter(kind="approved").count() == 1


# Renewal and heartbeat


def test_a_renewal_extends_the_leases_of_the_claims_that_are_valid() -> None:
    (kept, claim), (rewound, lost) = claimed(), claimed()
    actions.rewind(
        actor=builders.SYSTEM,
        session_id=rewound.pk,
        checkpoint_id=Checkpoint.objects.filter(branch=rewound.branch)[0].pk,
        reason="another way",
    )
    assert leases.renew([claim, lost], LATER) == {claim}
    assert fresh(kept).lease_expires_at == LATER + timedelta(seconds=12)
    assert fresh(rewound).lease_expires_at is None


def test_a_renewal_is_no_change_that_a_page_must_show() -> None:
    session, claim = claimed()
    before = fresh(session)
    leases.renew([claim], LATER)
    after = fresh(session)
    assert (after.change, after.version, after.updated_at) == (
        before.change,
        before.version,
        before.updated_at,
    )


def test_a_late_renewal_is_valid_if_no_other_worker_took_the_session() -> None:
    _, claim = claimed()
    assert leases.renew([claim], NOW + timedelta(minutes=5)) == {claim}


def test_renewing_nothing_renews_nothing() -> None:
    session, _ = claimed()
    lease = fresh(session).lease_expires_at
    assert leases.renew([], LATER) == set()
    assert fresh(session).lease_expires_at == lease


def test_a_heartbeat_renews_valid_claims_and_marks_lost_ones() -> None:
    (kept, claim), (taken, lost) = claimed(), claimed()
    Session.objects.filter(pk=taken.pk).update(epoch=lost.epoch + 1)
    heartbeat = leases.Heartbeat("host:1")
    with heartbeat.keeping(claim), heartbeat.keeping(lost):
        heartbeat.beat(LATER)
    assert fresh(kept).lease_expires_at == LATER + timedelta(seconds=12)
    assert (claim.lost.is_set(), lost.lost.is_set()) == (False, True)


def test_a_heartbeat_ignores_claims_that_have_ended() -> None:
    session, claim = claimed()
    lease = fresh(session).lease_expires_at
    heartbeat = leases.Heartbeat("host:1")
    with heartbeat.keeping(claim):
        pass
    heartbeat.beat(LATER)
    assert fresh(session).lease_expires_at == lease
    assert not claim.lost.is_set()


def test_a_heartbeat_records_that_the_worker_is_alive() -> None:
    heartbeat = leases.Heartbeat("host:1")
    heartbeat.beat(NOW)
    leases.sign_off("host:1", NOW)
    assert Worker.objects.get().stopped_at == NOW
    heartbeat.beat(LATER)
    worker = Worker.objects.get()
    assert (worker.name, worker.started_at, worker.beat_at, worker.stopped_at) == ("host:1", NOW, LATER, None)


def test_a_process_that_has_the_name_of_an_earlier_one_has_its_own_start() -> None:
    leases.Heartbeat("host:1").beat(NOW)
    second = leases.Heartbeat("host:1")
    second.beat(LATER)
    second.beat(LATER + timedelta(minutes=1))
    assert Worker.objects.get().started_at == LATER


@pytest.fixture(params=[db.OperationalError, db.InterfaceError, db.InternalError])
def broken_once(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """The database is unavailable at the first heartbeat."""
    renew, failures = leases.renew, [request.param("away:\nthe server is not running.")]

    def fails_once(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return renew(*args)

    monkeypatch.setattr(leases, "renew", fails_once)
    yield
    assert failures == []


@pytest.mark.django_db(transaction=True)
def test_the_heartbeat_runs_by_itself_until_its_block_ends(
    broken_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    session, claim = claimed()
    Session.objects.filter(pk=session.pk).update(lease_expires_at=NOW)
    with leases.Heartbeat("host:1", every=0.01) as heartbeat, heartbeat.keeping(claim):
        wait_for(lambda: (fresh(session).lease_expires_at or NOW) > NOW, "the lease to be renewed")
    assert "Worker host:1 missed a heartbeat: away: the server is not running\n" in caplog.text
    beat_at = Worker.objects.get().beat_at
    assert not any("heartbeat of" in thread.name for thread in threading.enumerate())
    assert Worker.objects.get().beat_at == beat_at


# Sweep


@pytest.mark.parametrize(
    "error, has_trace",
    [
        (db.OperationalError("disk\nfull"), False),
        (
            ExceptionGroup(
                "Two duties.", [db.OperationalError("disk full"), db.OperationalError("disk full")]
            ),
            False,
        ),
        (TypeError("disk\nfull"), True),
    ],
)
def test_a_sweep_that_fails_is_one_line_where_the_database_is_why_and_the_next_one_is_made(
    error: Exception, has_trace: bool, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.AGENTSTATE_SWEEP_SECONDS = 0.01
    swept: list[None] = []

    def sweep() -> None:
        swept.append(None)
        if len(swept) == 1:
            raise error

    with local.sweeping(sweep):
        wait_for(lambda: len(swept) > 1, "the next sweep")
    [record] = caplog.records
    assert record.getMessage() == "The sweep failed; the next one is due in 0.01 s: disk full"
    assert bool(record.exc_info) is has_trace


def test_the_sweep_finds_what_is_due_the_longest_waiting_first() -> None:
    first, second, later = builders.queued(), builders.queued(), builders.retrying()
    # Not NOW: this module may have been imported long before the sessions were made.
    now = timezone.now()
    Session.objects.filter(pk=second.pk).update(next_run_at=now - timedelta(hours=2))
    assert recovery.sweep(now) == [second.pk, first.pk]
    assert later.next_run_at is not None
    assert recovery.sweep(later.next_run_at)[-1] == later.pk


@pytest.mark.slow
@pytest.mark.parametrize("others", [1, 5])
def test_many_due_sessions_of_one_agent_keep_those_of_no_other_from_being_woken(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    builders.agent("away")
    builders.agent("letters")
    monkeypatch.setattr(recovery, "SWEEP_LIMIT", 6)
    now = timezone.now()

    def due(agent: str, hours: int) -> UUID:
        session = builders.queued(agent_key=agent)
        Session.objects.filter(pk=session.pk).update(next_run_at=now - timedelta(hours=hours))
        return session.pk

    away = [due("away", hours) for hours in range(30, 20, -1)]
    letters = [due("letters", hours) for hours in range(others, 0, -1)]
    woken = recovery.sweep(now)
    assert len(woken) == len(set(woken)) == 6
    assert woken[:2] == [away[0], letters[0]]
    assert [key for key in woken if key in letters] == letters[:3]
    assert [key for key in woken if key in away] == away[: 6 - min(others, 3)]


def test_the_sweep_changes_nothing_where_all_is_well() -> None:
    for build in builders.STATES.values():
        if build is not builders.lost:
            build()
    before = list(Session.objects.order_by("pk").values())
    recovery.sweep(timezone.now())
    assert list(Session.objects.order_by("pk").values()) == before


def test_the_sweep_lets_a_lost_session_run_again_and_fences_its_worker() -> None:
    session, claim = claimed()
    assert recovery.sweep(NOW + timedelta(seconds=11)) == []
    at = NOW + timedelta(seconds=13)
    assert recovery.sweep(at) == [session.pk]
    after = fresh(session)
    assert (after.status, after.next_run_at, after.worker, after.attempt) == (Status.QUEUED, at, "", 1)
    assert after.version == session.version + 1
    assert leases.renew([claim], at) == set()
    event = last_event(session)
    assert (event.kind, event.data, event.position) == (
        "lost",
        {"worker": "host:1", "attempt": 1},
        after.position,
    )


def test_the_sweep_gives_up_after_too_many_attempts_without_progress() -> None:
    session, at = builders.queued(), LATER
    for _ in range(3):
        assert leases.claim(session.pk, "host:1", at) is not None
        at += timedelta(minutes=1)
        woken = recovery.sweep(at)
    assert woken == []
    after = fresh(session)
    assert (after.status, after.waiting_for) == (Status.WAITING, WaitingFor.RETRIES)
    assert "3 times" in after.why
    assert last_event(session).kind == "gave_up"
    assert leases.claim(session.pk, "host:1", at) is None


@pytest.mark.parametrize(
    "action, status",
    [(actions.pause, Status.PAUSED), (actions.cancel, Status.CANCELLED)],
    ids=["pause", "cancel"],
)
def test_the_sweep_stops_a_lost_session_that_was_asked_to(
    action: Callable[..., Session], status: Status
) -> None:
    session, _ = claimed()
    action(actor=builders.SYSTEM, session_id=session.pk, reason="lunch")
    Session.objects.filter(pk=session.pk).update(attempt=3)
    assert recovery.sweep(NOW + timedelta(seconds=13)) == []
    after = fresh(session)
    assert (after.status, after.why, after.stop_request) == (status, "lunch", "")
    event = last_event(session)
    assert (event.kind, event.reason) == (status.value, "lunch")


def between_look_and_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Something happens after the sweep has found the lost sessions, and before it locks them."""
    in_batches = recovery._in_batches

    def late(keys: Iterable[Any], change: Any, now: datetime) -> None:
        keys = list(keys)
        if keys:
            act()
        in_batches(keys, change, now)

    monkeypatch.setattr(recovery, "_in_batches", late)


def test_a_session_renewed_in_the_meantime_is_not_taken_by_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    session, claim = claimed()
    at = NOW + timedelta(seconds=13)
    between_look_and_lock(monkeypatch, lambda: leases.renew([claim], at))
    assert recovery.sweep(at) == []
    assert fresh(session).status == Status.RUNNING
    assert last_event(session).kind != "lost"


def test_a_stop_request_that_comes_during_the_sweep_is_not_overlooked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, _ = claimed()

    def cancel() -> None:
        actions.cancel(actor=builders.SYSTEM, session_id=session.pk, reason="no longer needed")

    between_look_and_lock(monkeypatch, cancel)
    assert recovery.sweep(NOW + timedelta(seconds=13)) == []
    after = fresh(session)
    assert (after.status, after.why) == (Status.CANCELLED, "no longer needed")


def lost_and_expired(number: int) -> list[Session]:
    """So many lost sessions, so many of them out of attempts, and so many whose approval request has expired."""
    lost = [builders.lost() for _ in range(number)]
    worn_out = [builders.lost() for _ in range(number)]
    Session.objects.filter(pk__in=[session.pk for session in worn_out]).update(attempt=3)
    waiting = [builders.waiting_for_approval() for _ in range(number)]
    Approval.objects.filter(decision="").update(expires_at=NOW)
    return [*lost, *worn_out, *waiting]


@pytest.mark.slow
def test_a_sweep_makes_as_many_queries_for_many_sessions_as_for_few() -> None:
    # Three that look for what there is to do; for the requests that have expired a lock, a read and three writes; for
    # the lost sessions a lock, a write for each of two kinds, and their events.
    for number in (1, 12):
        sessions = lost_and_expired(number)
        with CaptureQueriesContext(connection) as captured:
            recovery.sweep(LATER)
        statements = [q["sql"] for q in captured.captured_queries if "SAVEPOINT" not in q["sql"]]
        assert len(statements) == 12, "\n".join(statements)
        for session in sessions:
            after = fresh(session)
            event = last_event(session)
            assert after.version == session.version + 1
            assert (event.actor_name, event.position) == ("sweep", after.position)
        kinds = [last_event(session).kind for session in sessions]
        assert kinds == ["lost"] * number + ["gave_up"] * number + ["expired"] * number


@pytest.mark.slow
def test_a_sweep_works_through_more_sessions_than_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "BATCH", 2)
    sessions = [builders.lost() for _ in range(5)]
    assert set(recovery.sweep(LATER)) == {session.pk for session in sessions}


# Approval requests that expire


def test_an_approval_that_is_not_given_in_time_expires_and_the_session_goes_on() -> None:
    session = builders.waiting_for_approval()
    Approval.objects.update(expires_at=NOW)
    assert recovery.sweep(NOW - timedelta(seconds=1)) == []
    assert recovery.sweep(NOW) == [session.pk]
    approval, after = Approval.objects.get(), fresh(session)
    assert (approval.decision, approval.decided_at, approval.message) == ("expired", NOW, recovery.EXPIRED)
    assert (after.status, after.waiting_for, after.why, after.attempt) == (Status.QUEUED, "", "", 0)
    assert after.version == session.version + 1
    event = last_event(session)
    assert (event.kind, event.data["tool"], event.position) == ("expired", "issue_refund", after.position)
    assert recovery.sweep(NOW) == [session.pk]
    assert session.events.filter(kind="expired").count() == 1


def test_a_session_waits_on_while_another_approval_is_open() -> None:
    history = builders.looked_up()
    history.reply(
        calls=[("issue_refund", {"claim": "CLM-1", "amount": 1}), ("send_letter", {"text": "Dear Ada"})]
    )
    history.ask(history.calls[0], expires_at=NOW)
    history.ask(history.calls[1])
    session = history.rest("waiting", waiting_for=WaitingFor.APPROVAL, why="Two calls.")
    assert recovery.sweep(NOW) == []
    assert sorted(Approval.objects.values_list("decision", flat=True)) == ["", "expired"]
    assert fresh(session).status == Status.WAITING


def test_an_approval_request_on_a_discarded_branch_does_not_expire() -> None:
    session = builders.waiting_for_approval()
    Approval.objects.update(expires_at=NOW)
    actions.rewind(
        actor=builders.SYSTEM,
        session_id=session.pk,
        checkpoint_id=Checkpoint.objects.filter(branch=session.branch)[0].pk,
        reason="another way",
    )
    assert recovery.sweep(NOW) == []
    assert Approval.objects.get().decision == ""
    actions.undo(actor=builders.SYSTEM, session_id=session.pk, reason="it was right")
    assert recovery.sweep(NOW) == [session.pk]


# Tasks


def test_the_sweep_task_wakes_what_is_due(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    settings.AGENTSTATE_SWEEP_SECONDS = 7
    sent: list[Any] = []
    monkeypatch.setattr(app, "send_task", lambda task, args, **options: sent.append((args, options)))
    session = builders.queued()
    tasks.sweep()
    assert sent == [((str(session.pk),), {"expires": 7, "queue": FOUND_QUEUE})]


AWAY = db.OperationalError("connection failed: refused\nIs the server running?")


@pytest.mark.parametrize(
    "error, level, text, has_trace",
    [
        (AWAY, logging.INFO, "connection failed: refused Is the server running?", False),
        (AWAY, logging.DEBUG, "OperationalError", True),
        (TypeError("wrong"), logging.INFO, "TypeError", True),
    ],
)
@pytest.mark.parametrize("task", [tasks.advance, tasks.sweep])
def test_a_task_that_fails_is_one_line_of_the_log_where_the_database_is_why(
    task: Any,
    error: Exception,
    level: int,
    text: str,
    has_trace: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*args: Any, **how: Any) -> None:
        raise error

    monkeypatch.setattr(tasks, "_DUTIES", (fail, fail))
    monkeypatch.setattr(tasks, "heartbeat", fail)
    monkeypatch.setattr(tasks, "spare_imports", lambda: None)
    with caplog.at_level(level):
        task.apply([str(uuid4())] if task is tasks.advance else [])
    [record] = [record for record in caplog.records if record.name == "celery.app.trace"]
    assert text in record.getMessage()
    assert record.levelname == "ERROR"
    assert bool(record.exc_info) is has_trace
    assert record.getMessage().startswith(f"The task {task.name} failed: ") is not has_trace


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "became, queues", [("queued", [LATER_QUEUE]), ("waiting", []), ("busy", []), ("lost", [])]
)
def test_a_session_that_gave_way_is_woken_behind_all_others(
    became: str, queues: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(app, "send_task", lambda task, args, *, queue: sent.append(queue))
    # These last as long as the process.
    monkeypatch.setattr(tasks, "heartbeat", lambda: None)
    monkeypatch.setattr(tasks, "spare_imports", lambda: None)
    monkeypatch.setattr(worker, "drive", lambda session_id, **how: became)
    monkeypatch.setattr(worker, "compare_with_others", lambda session_id: None)
    tasks.advance(str(builders.queued().pk))
    assert sent == queues


@pytest.mark.parametrize(
    "error", [OperationalError("away"), KombuError("refused"), ReadOnlyError("You can't write.")]
)
def test_a_broker_that_is_unavailable_or_refuses_is_tried_once_by_a_sweep(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[Any] = []

    def refuse(task: str, args: Any, **options: Any) -> None:
        tries.append(args)
        raise error

    monkeypatch.setattr(app, "send_task", refuse)
    builders.queued(), builders.queued()
    tasks.sweep()
    assert len(tries) == 1
    assert caplog.text.count(f"was not sent: {str(error).rstrip('.')}. It stays queued") == 1
