"""A bulk action does each of its sessions once, as the single action would, whatever happens to the workers."""

import threading
from datetime import timedelta

import psycopg
import pytest
from django.db import InterfaceError, InternalError, OperationalError, connection
from django.utils import timezone

from agentstate.celery import app
from sessions_app import actions, tasks
from sessions_app.access.errors import Forbidden, Invalid, Moved, NotFound, Refused
from sessions_app.access.masking import Mask
from sessions_app.action_list import ACTIONS, PAUSE, RESUME
from sessions_app.actions import BY_REASON, bulk, steer
from sessions_app.desk.pages import bulk as reading
from sessions_app.models import BulkAction, Event, Session, StaffPermission
from tests import builders

pytestmark = pytest.mark.django_db
ALL = Session.objects.all()


@pytest.fixture
def actor():
    return builders.actor("operator")


@pytest.fixture(autouse=True)
def sent(monkeypatch):
    """The bulk actions that were sent to workers."""
    bulk_actions: list[int] = []
    monkeypatch.setattr(app, "send_task", lambda task, arguments, **options: bulk_actions.append(*arguments))
    return bulk_actions


def start(actor, kind="pause", **more):
    return actions.bulk_start(actor=actor, kind=kind, sessions=ALL, reason="Provider is down", **more)


def work(bulk_action):
    while bulk.run_batch(bulk_action.pk):
        pass
    return reading.progress(bulk_action)


def late():
    return timezone.now() + timedelta(minutes=1)


def test_each_session_is_done_as_the_single_act_would_and_the_others_are_refused_with_the_reason(actor):
    queued, running, done = builders.queued(), builders.running(), builders.done()
    bulk_action = start(actor, query="agent=claims")
    assert work(bulk_action) == reading.Progress(done=2, refused=1)
    assert Session.objects.get(pk=queued.pk).status == "paused"
    assert Session.objects.get(pk=running.pk).stop_request == "pause"
    (item,) = reading.failures(builders.page_context(), bulk_action).items
    assert (item.session, item.why) == (done, "It is not running.")
    event = Event.objects.get(session=queued, kind="paused")
    assert (event.actor, event.reason, event.data) == (
        actor.user,
        "Provider is down",
        {"bulk": bulk_action.pk},
    )
    assert not Event.objects.filter(session=done, data__has_key="bulk").exists()
    assert (bulk_action.query, bulk_action.actor_name) == ("agent=claims", actor.name)


@pytest.mark.parametrize(
    "kind, state, status",
    [("resume", "paused", "queued"), ("cancel", "queued", "cancelled"), ("assign", "done", "idle")],
)
def test_every_kind_of_act(kind, state, status, actor):
    session = builders.STATES[state]()
    colleague = builders.user()
    assert work(start(actor, kind, assignee=colleague)) == reading.Progress(done=1)
    session.refresh_from_db()
    assert session.status == status
    assert session.assignee == (colleague if kind == "assign" else None)


def test_which_sessions_are_meant_is_fixed_when_it_begins(actor):
    builders.queued()
    bulk_action = start(actor)
    late_comer = builders.queued()
    assert work(bulk_action) == reading.Progress(done=1)
    late_comer.refresh_from_db()
    assert late_comer.status == "queued"


def test_a_session_that_a_filter_finds_twice_is_done_once(actor):
    builders.queued(tags=["a", "b"])
    twice = Session.objects.filter(tags__name__in=["a", "b"])
    assert twice.count() == 2
    bulk_action = actions.bulk_start(
        actor=actor, kind="pause", sessions=twice, reason="Provider is down", expected=1
    )
    assert (
        actions.bulk_estimate(actor=actor, kind="resume", chosen=actions.bulk_chosen(sessions=twice)).total
        == 1
    )
    assert work(bulk_action) == reading.Progress(done=1)


@pytest.mark.slow
def test_the_estimate_says_what_would_be_refused_and_changes_nothing(actor, django_assert_num_queries):
    builders.queued()
    done = [builders.done() for _ in range(7)]
    paused = builders.paused()
    actor.may(StaffPermission.PAUSE)
    with django_assert_num_queries(3):
        estimate = actions.bulk_estimate(actor=actor, kind="pause", chosen=actions.bulk_chosen(sessions=ALL))
    assert (estimate.total, estimate.possible) == (9, 1)
    assert [(refusal.why, refusal.number) for refusal in estimate.refused] == [
        ("It is not running.", 7),
        ("It is already paused.", 1),
    ]
    assert estimate.refused[0].examples == done[:5]
    assert estimate.refused[1].examples == [paused]
    assert not BulkAction.objects.exists()
    bulk_action = start(actor, expected=estimate.total)
    assert work(bulk_action).refused == sum(refusal.number for refusal in estimate.refused)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [key for key, action in ACTIONS.items() if action.bulk])
def test_an_estimate_costs_the_same_for_many_sessions(actor, django_assert_num_queries, kind):
    for _ in range(12):
        builders.paused()
    actor.may(StaffPermission.PAUSE)
    with django_assert_num_queries(3):
        assert (
            actions.bulk_estimate(actor=actor, kind=kind, chosen=actions.bulk_chosen(sessions=ALL)).total
            == 12
        )


@pytest.mark.parametrize("kind", [key for key, action in ACTIONS.items() if action.bulk])
def test_the_estimate_has_of_each_session_what_the_action_says_of_it_alone(actor, kind):
    builders.agent("claims")
    builders.agent("letters", problem="It cannot be built.")
    for build in builders.STATES.values():
        for agent in ("claims", "letters", "nobody's"):
            build(agent_key=agent)
    later = timezone.now() + timedelta(hours=1)
    Session.objects.filter(status="queued", agent="letters").update(next_run_at=later)
    alone: dict[str, list[Session]] = {}
    for session in Session.objects.order_by("pk"):
        alone.setdefault(ACTIONS[kind].impossible(session), []).append(session)
    estimate = actions.bulk_estimate(actor=actor, kind=kind, chosen=actions.bulk_chosen(sessions=ALL))
    assert estimate.possible == len(alone.pop("", []))
    assert {refusal.why: (refusal.number, refusal.examples) for refusal in estimate.refused} == {
        why: (len(sessions), sessions[:5]) for why, sessions in alone.items()
    }
    shown = [(each.title, each.agent) for refusal in estimate.refused for each in refusal.examples]
    expected = [(each.title, each.agent) for refusal in estimate.refused for each in alone[refusal.why][:5]]
    assert shown == expected


def test_those_that_changed_last_choose_the_action_to_begin_with(actor, monkeypatch):
    monkeypatch.setattr(bulk, "LOOKED_AT", 1)
    first, newest, last = builders.queued(), builders.paused(), builders.queued()
    assert sorted([newest.pk, last.pk, first.pk]) == [first.pk, newest.pk, last.pk]
    Session.objects.exclude(pk=newest.pk).update(updated_at=timezone.now() - timedelta(days=1))
    assert actions.bulk_fitting(actor=actor, chosen=actions.bulk_chosen(sessions=ALL)) is RESUME


def test_more_or_fewer_sessions_than_expected_are_not_touched(actor):
    builders.queued()
    with pytest.raises(Moved, match="The list had 2 sessions and now has 1"):
        start(actor, expected=2)
    assert not BulkAction.objects.exists()


@pytest.mark.parametrize(
    "kind, sentence", [("delete", "There is no bulk action 'delete'"), ("pause", "No session")]
)
def test_what_cannot_be_a_bulk_act_is_refused(kind, sentence, actor):
    with pytest.raises(Invalid, match=sentence):
        start(actor, kind)
    with pytest.raises(Invalid, match=sentence):
        actions.bulk_estimate(actor=actor, kind=kind, chosen=actions.bulk_chosen(sessions=ALL))


def test_too_many_sessions_are_refused_and_nothing_is_kept(actor, monkeypatch):
    monkeypatch.setattr(bulk, "MOST", 1)
    builders.queued()
    builders.queued()
    for function in (
        start,
        lambda actor: actions.bulk_estimate(
            actor=actor, kind="pause", chosen=actions.bulk_chosen(sessions=ALL)
        ),
    ):
        with pytest.raises(Invalid, match="More than 1 sessions are chosen"):
            function(actor)
    assert not BulkAction.objects.exists()


def test_a_reason_and_a_possible_assignee_are_needed(actor):
    builders.queued()
    with pytest.raises(Invalid, match="reason is missing"):
        actions.bulk_start(actor=actor, kind="pause", sessions=ALL, reason=" ")
    with pytest.raises(Invalid, match="cannot see sessions"):
        start(actor, "assign", assignee=builders.user(None))


def test_only_who_may_do_the_act_may_do_it_in_bulk():
    builders.queued()
    viewer = builders.actor("viewer")
    with pytest.raises(Forbidden):
        start(viewer)
    with pytest.raises(Forbidden):
        actions.bulk_estimate(actor=viewer, kind="pause", chosen=actions.bulk_chosen(sessions=ALL))
    with pytest.raises(Forbidden, match="people with an account"):
        start(builders.SYSTEM)


def test_rights_that_were_taken_away_meanwhile_are_gone(actor):
    session = builders.queued()
    bulk_action = start(actor)
    actor.user.groups.clear()
    assert work(bulk_action) == reading.Progress(refused=1)
    session.refresh_from_db()
    assert session.status == "queued"
    assert " needs the " in reading.failures(builders.page_context(), bulk_action).items[0].why


def test_when_the_account_is_gone_nothing_more_is_done(actor):
    session = builders.queued()
    bulk_action = start(actor)
    actor.user.delete()
    assert work(bulk_action) == reading.Progress(stopped=1)
    session.refresh_from_db()
    assert session.status == "queued"


def test_it_is_worked_off_in_batches_that_let_others_in(
    actor, sent, monkeypatch, django_capture_on_commit_callbacks
):
    monkeypatch.setattr(bulk, "BATCH", 2)
    for _ in range(5):
        builders.queued()
    with django_capture_on_commit_callbacks(execute=True):
        bulk_action = start(actor)
    assert sent == [bulk_action.pk]
    with django_capture_on_commit_callbacks(execute=True):
        tasks.bulk_batch(bulk_action.pk)
    assert sent == [bulk_action.pk] * 2
    assert reading.progress(bulk_action) == reading.Progress(done=2, pending=3)


def test_a_stopped_act_leaves_the_rest_alone(actor):
    for _ in range(3):
        builders.queued()
    bulk_action = start(actor)
    bulk.run_batch(bulk_action.pk, limit=1)
    stopped = actions.bulk_stop(actor=actor, bulk_id=bulk_action.pk)
    assert stopped.stopped_by == actor.name
    assert work(bulk_action) == reading.Progress(done=1, stopped=2)
    assert Session.objects.filter(status="queued").count() == 2
    with pytest.raises(Refused, match=f"already stopped by {actor.name}"):
        actions.bulk_stop(actor=actor, bulk_id=bulk_action.pk)


def test_who_may_not_stop_and_what_cannot_be_stopped(actor):
    builders.queued()
    bulk_action = start(actor)
    with pytest.raises(Forbidden):
        actions.bulk_stop(actor=builders.actor("viewer"), bulk_id=bulk_action.pk)
    with pytest.raises(NotFound):
        actions.bulk_stop(actor=actor, bulk_id=0)
    work(bulk_action)
    with pytest.raises(Refused, match="finished"):
        actions.bulk_stop(actor=actor, bulk_id=bulk_action.pk)
    bulk_action.refresh_from_db()
    assert bulk_action.stopped_at is None


def test_what_was_stopped_after_a_worker_took_it_up_is_not_done(actor, monkeypatch):
    session = builders.queued()
    bulk_action = start(actor)

    def stop_first(**kwargs):
        actions.bulk_stop(actor=actor, bulk_id=bulk_action.pk)
        return steer.pause(**kwargs)

    monkeypatch.setitem(BY_REASON, PAUSE, stop_first)
    assert work(bulk_action) == reading.Progress(stopped=1)
    session.refresh_from_db()
    assert session.status == "queued"
    assert not Event.objects.filter(session=session, kind="paused").exists()


def test_the_sweep_goes_on_with_what_a_killed_worker_left(actor, monkeypatch, sent):
    for _ in range(3):
        builders.queued()
    bulk_action = start(actor)
    bulk.run_batch(bulk_action.pk, limit=1)
    assert bulk.unattended() == []
    assert bulk.unattended(late()) == [bulk_action.pk]
    monkeypatch.setattr(bulk, "QUIET", timedelta(0))
    tasks.sweep()
    assert reading.progress(bulk_action) == reading.Progress(done=3)
    assert bulk.unattended(late()) == []


@pytest.mark.parametrize(
    "error, state",
    [
        (OperationalError, None),
        (InterfaceError, None),
        (OperationalError, "57P01"),
        (OperationalError, "53100"),
        (InternalError, "25P03"),  # the server has ended a transaction in which the worker stood still
        (InternalError, "25006"),  # the server is a replica for the moment
    ],
)
def test_a_lost_database_is_no_reason_to_refuse(actor, monkeypatch, error, state):
    builders.queued()
    bulk_action = start(actor)

    def fail(**kwargs):
        raise error("no") from (psycopg.errors.lookup(state)("no") if state else None)

    with monkeypatch.context() as patch:
        patch.setitem(BY_REASON, PAUSE, fail)
        with pytest.raises(error):
            bulk.run_batch(bulk_action.pk)
    assert work(bulk_action) == reading.Progress(done=1)


@pytest.mark.parametrize("error, state", [(InternalError, "XX001"), (OperationalError, "54000")])
def test_what_the_database_refuses_of_one_session_for_good_does_not_hold_up_the_others(
    actor, monkeypatch, error, state
):
    builders.queued()
    bulk_action = start(actor)

    def fail(**kwargs):
        raise error("no") from psycopg.errors.lookup(state)("no")

    monkeypatch.setitem(BY_REASON, PAUSE, fail)
    assert work(bulk_action) == reading.Progress(refused=1)


def test_one_session_in_trouble_does_not_hold_up_the_others(actor, monkeypatch, caplog):
    troubled, _ = builders.queued(), builders.queued()
    bulk_action = start(actor)
    pause = steer.pause

    def fail(*, session_id, **kwargs):
        if session_id == troubled.pk:
            raise TypeError("a bug")
        return pause(session_id=session_id, **kwargs)

    monkeypatch.setitem(BY_REASON, PAUSE, fail)
    assert work(bulk_action) == reading.Progress(done=1, refused=1)
    assert (
        reading.failures(builders.page_context(), bulk_action).items[0].why == "It failed: TypeError: a bug"
    )
    assert "a bug" in caplog.text


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_many_workers_do_each_session_once(actor):
    sessions = [builders.done() for _ in range(12)]
    bulk_action = start(actor, "assign", assignee=actor.user)
    workers = [threading.Thread(target=_work_in_thread, args=[bulk_action]) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert reading.progress(bulk_action) == reading.Progress(done=12)
    for session in sessions:
        assert Event.objects.filter(session=session, kind="assigned").count() == 1


def _work_in_thread(bulk_action):
    try:
        while bulk.run_batch(bulk_action.pk, limit=3):
            pass
    finally:
        connection.close()


def test_progress_of_many_acts_is_one_query(actor, django_assert_num_queries):
    builders.queued()
    builders.done()
    bulk_actions = [start(actor), start(actor, "cancel")]
    work(bulk_actions[0])
    with django_assert_num_queries(2):
        listed = reading.bulk_actions(Mask.none())
    assert [row.bulk for row in listed] == bulk_actions[::-1]
    assert [(row.progress.total, row.progress.percent, row.progress.finished) for row in listed] == [
        (2, 0, False),
        (2, 100, True),
    ]


def test_failures_come_in_pages(actor):
    sessions = [builders.done() for _ in range(3)]
    bulk_action = start(actor)
    work(bulk_action)
    first = reading.failures(builders.page_context(), bulk_action, limit=2)
    assert first.next is not None
    rest = reading.failures(builders.page_context(), bulk_action, after=first.next, limit=2)
    assert [item.session for item in [*first.items, *rest.items]] == sessions
    assert rest.next is None
