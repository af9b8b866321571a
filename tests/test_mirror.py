"""The live mirror on a real server: what it holds, what it follows, and that no step waits for it."""

import json
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import override_settings
from django.utils import timezone

from agentstate import DurableAgent, ToolPolicy
from agentstate.journals.valkey import ValkeySessions
from sessions_app import actions
from sessions_app.history import log
from sessions_app.history.message_rows import RESULT_OF
from sessions_app.mirror import contents, healing, live
from sessions_app.mirror import sessions as mirror_sessions
from sessions_app.mirror.live import MirrorThread
from sessions_app.mirror.sessions import MirrorSessions
from sessions_app.models import Checkpoint, Message, Session, Status
from tests import builders, sample_agents
from tests.builders import SYSTEM, branch_of
from tests.driving import desk
from tests.refusing import refusing_writes
from tools import services
from tools.services import wait_for

DAY = 24 * 60 * 60


@pytest.fixture
def mirror(redis_url: str) -> Iterator[MirrorSessions]:
    mirror = MirrorSessions(redis_url, kept_seconds=DAY)
    with mirror.client:
        yield mirror


def state(mirror: MirrorSessions, session: Session) -> dict[str, str]:
    stored: dict[str, str] = mirror.client.hgetall(f"agent:state:{session.pk}")
    return stored


def messages(mirror: MirrorSessions, session: Session) -> list[dict[str, Any]]:
    return [json.loads(text) for text in mirror.client.lrange(f"agent:messages:{session.pk}", 0, -1)]


def entries(mirror: MirrorSessions, session: Session) -> list[tuple[str, dict[str, Any]]]:
    stream = mirror.client.xrange(f"agent:log:{session.pk}")
    return [(fields["op"], json.loads(fields["record"])) for _, fields in stream]


def everything(mirror: MirrorSessions, session: Session) -> tuple[Any, ...]:
    """What the mirror has of the session, but for the name of its last write; of each call the last entry."""
    own = ("last_write", "log_length")
    facts = {name: text for name, text in state(mirror, session).items() if name not in own}
    last = {(operation, record["position"]): record for operation, record in entries(mirror, session)}
    return facts, messages(mirror, session), dict(sorted(last.items()))


def ttls(mirror: MirrorSessions, session: Session) -> set[int]:
    return {mirror.client.ttl(f"agent:{kind}:{session.pk}") for kind in ("state", "messages", "log")}


@pytest.mark.slow
@pytest.mark.django_db
def test_a_session_of_the_desk_and_one_in_the_journal_have_the_same_structures(
    mirror: MirrorSessions, redis_url: str
) -> None:
    policies = {"fast": ToolPolicy(idempotent=True)}
    with warnings.catch_warnings(action="ignore"):  # this server keeps nothing on disk, as it says
        sessions = ValkeySessions(redis_url)
    with sessions.client, desk() as staff:
        journal = sessions.session("anna", agent="made-for-a-test", customer="Anna", title="Order 1042")
        DurableAgent(sample_agents.long_run(2), journal, policies=policies).run("hi")
        staff.agent(lambda: sample_agents.long_run(2), policies=policies)
        session = staff.run(staff.start("hi", customer="Anna", title="Order 1042"))
        mirror.update([session.pk])
        written: Any = sessions.client.hgetall("agent:state:anna")
        in_journal = {name.decode(): value.decode() for name, value in written.items()}
        listed: Any = sessions.client.lrange("agent:messages:anna", 0, -1)
    on_desk = state(mirror, session)
    shared = {"current_step", "status", "agent", "customer", "title"}
    shared |= {"result_step_1", "result_step_2", "result_step_3"}
    assert in_journal.keys() - {"epoch", "records", "last_write"} == {*shared, "updated_at"}
    assert on_desk.keys() - {
        *("mirror", "branch", "position", "change", "open_calls", "step_began_at", "last_write"),
        *("log_length", "messages_length"),
    } == {*shared, "updated_at"}
    assert {name: on_desk[name] for name in shared - {"result_step_1", "result_step_2", "result_step_3"}} == {
        "current_step": "3",
        "status": "complete",
        "agent": "made-for-a-test",
        "customer": "Anna",
        "title": "Order 1042",
    }
    assert [json.loads(on_desk[f"result_step_{step}"]) for step in (1, 2, 3)] == [
        json.loads(in_journal[f"result_step_{step}"]) for step in (1, 2, 3)
    ]
    assert messages(mirror, session) == [json.loads(text) for text in listed]


@pytest.mark.django_db
def test_the_stream_tells_each_call_again_when_it_has_ended(mirror: MirrorSessions) -> None:
    history = builders.asked()
    history.reply(calls=[("lookup_policy", {"policy": "POL-7"})])
    session = history.save()
    mirror.update([session.pk])
    history.finish(history.calls[-1], "It is active.")
    history.checkpoint("step")
    mirror.update([history.save().pk])
    told = entries(mirror, session)
    assert [operation for operation, _ in told] == [
        *("event", "message", "message", "checkpoint", "reply", "message", "call"),
        *("call", "message", "checkpoint"),
    ]
    calls = [record for operation, record in told if operation == "call"]
    assert [(call["status"], call["result"]) for call in calls] == [
        ("planned", None),
        ("done", "It is active."),
    ]
    [result] = [record for operation, record in told if operation == "message" and record["role"] == "tool"]
    assert RESULT_OF in Message.objects.latest("position").body
    assert result["text"] == "It is active."  # though its call was told before


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("state_name", builders.STATES)
def test_what_was_mirrored_commit_by_commit_is_what_a_rebuild_makes(
    mirror: MirrorSessions, state_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        log, "PAGE", 3
    )  # pages of a long history, each of which another process may have written
    session = builders.STATES[state_name]()
    for position in range(1, session.position):
        Session.objects.filter(pk=session.pk).update(position=position, change=position)
        mirror.update([session.pk])
    session.change += session.position
    session.save()
    mirror.update([session.pk])
    mirrored = everything(mirror, session)
    mirror.update([session.pk], anew=True)
    assert everything(mirror, session) == mirrored


@pytest.mark.slow
@pytest.mark.django_db
def test_sessions_that_are_updated_together_are_written_as_each_is_alone(
    mirror: MirrorSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small that the longer ones take several pages, and so many sessions that they take several turns.
    monkeypatch.setattr(log, "PAGE", 48)
    together = [build() for build in builders.STATES.values()]
    source = builders.done()
    checkpoint = Checkpoint.objects.visible_on(branch_of(source)).last()
    assert checkpoint is not None
    # They share what lies before the fork.
    for number in range(mirror_sessions.TOGETHER):
        forked = actions.fork(
            actor=SYSTEM,
            session_id=(together[-1] if number % 2 else source).pk,
            checkpoint_id=checkpoint.pk,
            reason="try",
        )
        together.append(forked)
    assert mirror.update([session.pk for session in together]) == {}
    written = [everything(mirror, session) for session in together]
    for session, of_session in zip(together, written, strict=True):
        mirror.update([session.pk], anew=True)
        assert everything(mirror, session) == of_session


def _rewound_twice() -> Session:
    history = builders.History.of(builders.rewound(), step=1)
    history.session.phase = "planning"
    history.lookup()
    checkpoint = Checkpoint.objects.filter(branch=branch_of(history.session)).latest("position")
    session = history.save(status="paused")
    return actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=checkpoint.pk, reason="again")


@pytest.mark.slow
@pytest.mark.django_db
def test_what_two_queries_find_of_sessions_that_share_it_is_written_once(
    mirror: MirrorSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MOST_RANGES", 1)
    source = builders.done()
    together = [_rewound_twice(), source, builders.fork_of(source)]
    mirror.update([session.pk for session in together])
    written = [(entries(mirror, session), messages(mirror, session)) for session in together]
    monkeypatch.undo()
    for session, of_session in zip(together, written, strict=True):
        mirror.update([session.pk], anew=True)
        assert (entries(mirror, session), messages(mirror, session)) == of_session


@pytest.mark.django_db
def test_of_a_step_with_many_calls_these_are_read_by_one_query(
    mirror: MirrorSessions, django_assert_num_queries: Any
) -> None:
    history = builders.asked()
    history.reply(calls=[("lookup_policy", {"policy": f"POL-{number}"}) for number in range(200)])
    mirror.update([history.save().pk])
    for call in history.calls:
        history.finish(call, f"{call.call_id} is active.")
    history.checkpoint("step")
    session = history.save()
    with django_assert_num_queries(7):
        mirror.update([session.pk])
    facts, written, told = everything(mirror, session)
    answers = [record for (operation, _), record in told.items() if operation == "message"][-200:]
    assert all("is active." in record["text"] for record in answers)
    mirror.update([session.pk], anew=True)
    assert everything(mirror, session)[:2] == (facts, written)


@pytest.mark.django_db
def test_what_is_new_of_many_sessions_is_read_by_as_few_queries_as_of_one(
    mirror: MirrorSessions, django_assert_num_queries: Any
) -> None:
    histories = [builders.asked() for _ in range(mirror_sessions.TOGETHER)]
    for history in histories:
        history.reply(calls=[("lookup_policy", {"policy": "POL-7"})])
    keys = [history.save().pk for history in histories]
    mirror.update(keys)
    for history in histories:
        history.finish(history.calls[-1], {"status": "active"})
        history.checkpoint("step")
        history.save()
    for updated in (keys[:1], keys[1:]):
        with django_assert_num_queries(7):  # the sessions, five kinds of rows, and the calls that have ended
            mirror.update(updated)


@pytest.mark.django_db
def test_after_a_rewind_the_mirror_follows_the_current_branch_and_after_undoing_it_the_other(
    mirror: MirrorSessions,
) -> None:
    session = builders.done()
    mirror.update([session.pk])
    before = everything(mirror, session)
    start = Checkpoint.objects.visible_on(branch_of(session)).first()
    assert start is not None
    actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="again")
    mirror.update([session.pk])
    facts, talk, _ = everything(mirror, session)
    assert (facts["branch"], facts["status"], facts["current_step"]) == ("2", "paused", "0")
    assert [body["role"] for body in talk] == ["system", "user"]
    assert not [name for name in facts if name.startswith("result_step_")]
    assert entries(mirror, session)[-1][1]["kind"] == "rewound"
    actions.undo(actor=SYSTEM, session_id=session.pk, reason="no")
    mirror.update([session.pk])
    facts, talk, _ = everything(mirror, session)
    assert (facts["branch"], facts["status"], talk) == ("1", "complete", before[1])


@pytest.mark.django_db
@pytest.mark.parametrize("anew", [False, True])
def test_after_a_repair_the_steps_still_have_their_results(mirror: MirrorSessions, anew: bool) -> None:
    session = builders.paused()
    mirror.update([session.pk])
    results = {name: text for name, text in state(mirror, session).items() if name.startswith("result_step_")}
    assert results
    message = Message.objects.get(branch=session.branch, role="user")
    actions.replace_message(
        actor=SYSTEM,
        session_id=session.pk,
        position=message.position,
        text="And POL-8?",
        reason="She meant that",
    )
    repeated = Checkpoint.objects.filter(branch__session=session).latest("position")
    assert (repeated.branch.number, repeated.kind) == (2, "step")
    mirror.update([session.pk], anew=anew)
    assert state(mirror, session).items() >= results.items()
    assert state(mirror, session)["branch"] == "2"


@pytest.mark.django_db
def test_a_process_that_read_the_session_before_a_rewind_does_not_write_the_branch_that_was_left(
    mirror: MirrorSessions, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = builders.done()
    mirror.update([session.pk])
    start = Checkpoint.objects.visible_on(branch_of(session)).first()
    assert start is not None
    read = MirrorSessions._stored

    def late(self: MirrorSessions, session_ids: Any) -> Any:
        monkeypatch.undo()
        actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="again")
        other = MirrorSessions(redis_url, kept_seconds=DAY)
        with other.client:
            other.update([session.pk])
        return read(self, session_ids)

    Session.objects.filter(pk=session.pk).update(change=session.change + 1)
    monkeypatch.setattr(MirrorSessions, "_stored", late)
    mirror.update([session.pk])
    assert state(mirror, session)["branch"] == "2"
    assert [body["role"] for body in messages(mirror, session)] == ["system", "user"]


@pytest.mark.slow
@pytest.mark.django_db
def test_the_time_begins_when_a_session_has_ended_and_stops_when_it_continues(
    mirror: MirrorSessions,
) -> None:
    for unfinished in (builders.queued(), builders.in_doubt(), builders.paused(), builders.failed()):
        mirror.update([unfinished.pk])
        assert ttls(mirror, unfinished) - {-2} == {-1}
    session = builders.done()
    Session.objects.filter(pk=session.pk).update(updated_at=timezone.now() - timedelta(hours=1))
    mirror.update([session.pk])
    [ttl] = ttls(mirror, session)
    assert DAY - 3700 < ttl <= DAY - 3600
    actions.send_message(actor=SYSTEM, session_id=session.pk, text="And now?")
    mirror.update([session.pk])
    assert ttls(mirror, session) == {-1}
    actions.cancel(actor=SYSTEM, session_id=session.pk, reason="no answer")
    mirror.update([session.pk])
    assert ttls(mirror, session) <= {DAY, DAY - 1}


@pytest.mark.django_db
def test_a_session_whose_time_is_over_is_not_mirrored_again(mirror: MirrorSessions) -> None:
    session = builders.done()
    Session.objects.filter(pk=session.pk).update(updated_at=timezone.now() - timedelta(days=2))
    mirror.update([session.pk])
    assert healing.rebuild(mirror) == 0


@pytest.mark.django_db
@pytest.mark.parametrize("found_by", ["update", "sweep"])
def test_a_title_or_a_customer_that_was_changed_without_a_commit_is_mirrored(
    mirror: MirrorSessions, found_by: str
) -> None:
    session = builders.done(customer="Ada", title="Glass")
    Session.objects.filter(pk=session.pk).update(updated_at=timezone.now() - timedelta(hours=1))
    mirror.update([session.pk])
    healing.heal(mirror)
    Session.objects.filter(pk=session.pk).update(customer="", title="Erased")
    if found_by == "update":
        mirror.update([session.pk])
    else:
        assert healing.heal(mirror) == 1
    stored = state(mirror, session)
    assert (stored["customer"], stored["title"]) == ("", "Erased")
    assert healing.heal(mirror) == 0


@pytest.mark.slow
@pytest.mark.django_db
def test_the_mirror_of_a_deleted_session_is_removed(mirror: MirrorSessions) -> None:
    deleted, unseen, present = builders.done(), builders.failed(), builders.paused()
    for session in (deleted, unseen, present):
        mirror.update([session.pk])
    mirror.client.hset("agent:state:anna", "status", "running")  # a journal's
    deleted_id, unseen_id = deleted.pk, unseen.pk
    deleted.delete()
    unseen.delete()
    mirror.update([deleted_id])
    assert not mirror.client.keys(f"agent:*:{deleted_id}")
    assert healing.rebuild(mirror) == 1
    assert not mirror.client.keys(f"agent:*:{unseen_id}")
    assert mirror.client.hgetall("agent:state:anna") == {"status": "running"}


@pytest.mark.django_db
def test_a_journal_is_not_overwritten_and_a_mirror_is_not_run(mirror: MirrorSessions, redis_url: str) -> None:
    session, other = builders.done(), builders.done()
    mirror.update([session.pk])
    with warnings.catch_warnings(action="ignore"):
        sessions = ValkeySessions(redis_url)
    with sessions.client:
        with pytest.raises(ValueError, match="has only its mirror"):
            sessions.open(str(session.pk), say="hi")
        journal = sessions.open(str(other.pk), say="hi")
        mirror.update([other.pk])
        assert len(journal.load().unread) == 1
        followed = [record for _, record in sessions.follow(str(session.pk), timeout=0.01)]
    assert followed == [record for _, record in entries(mirror, session)]


@pytest.mark.django_db
def test_two_processes_that_update_at_once_write_everything_once(
    mirror: MirrorSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = builders.done()
    write, other = mirror._write, MirrorSessions(mirror_url(mirror), kept_seconds=DAY)

    def after_another(writes: Any) -> Any:
        monkeypatch.setattr(mirror, "_write", write)
        other.update([session.pk])
        return write(writes)

    monkeypatch.setattr(mirror, "_write", after_another)
    with other.client:
        mirror.update([session.pk])
    assert [record["position"] for _, record in entries(mirror, session)] == sorted(
        {record["position"] for _, record in entries(mirror, session)}
    )
    assert state(mirror, session)["change"] == str(session.change)


def mirror_url(mirror: MirrorSessions) -> str:
    server = mirror.client.connection_pool.connection_kwargs
    return f"redis://{server['host']}:{server['port']}/0"


@pytest.mark.slow
@pytest.mark.django_db
def test_the_sweep_finds_what_the_mirror_lacks_and_then_looks_at_them_in_turn(
    mirror: MirrorSessions, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    monkeypatch.setattr(healing, "AT_ONCE", 2)
    old = [builders.paused(), builders.failed(), builders.in_doubt()]
    for hours, session in enumerate(old):
        Session.objects.filter(pk=session.pk).update(updated_at=timezone.now() - timedelta(hours=9 - hours))
    assert [healing.heal(mirror) for _ in range(3)] == [2, 1, 0]
    recent = builders.done()
    Session.objects.filter(pk=recent.pk).update(updated_at=timezone.now())
    assert healing.heal(mirror) == 0  # the process that changed it updates it
    Session.objects.filter(pk=recent.pk).update(updated_at=timezone.now() - healing.JUST_NOW)
    assert healing.heal(mirror) == 1
    with django_assert_num_queries(2):  # what has changed, and some of the others
        assert healing.heal(mirror) == 0
    mirror.client.flushall()
    assert [healing.heal(mirror) for _ in range(3)] == [2, 2, 0]
    assert state(mirror, recent)["status"] == "complete"


def _trim(mirror: MirrorSessions, session: Session) -> None:
    mirror.client.xtrim(f"agent:log:{session.pk}", maxlen=1, approximate=False)


def _drop(kind: str) -> Callable[[MirrorSessions, Session], None]:
    return lambda mirror, session: mirror.client.delete(f"agent:{kind}:{session.pk}")


def _replace(mirror: MirrorSessions, session: Session) -> None:
    mirror.client.set(f"agent:log:{session.pk}", "a key of another kind")


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("lose", [_trim, _drop("log"), _drop("messages"), _drop("state"), _replace])
def test_what_the_server_has_lost_of_an_old_session_is_written_again(
    mirror: MirrorSessions, lose: Callable[[MirrorSessions, Session], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing, "AGAIN_AT_ONCE", 1)
    sessions = [builders.paused(), builders.in_doubt()]
    Session.objects.update(updated_at=timezone.now() - timedelta(hours=1))
    assert healing.heal(mirror) == 2
    before = [everything(mirror, session) for session in sessions]
    for session in sessions:
        lose(mirror, session)
    assert [healing.heal(mirror) for _ in range(3)].count(1) == 2
    assert [everything(mirror, session) for session in sessions] == before
    assert [healing.heal(mirror) for _ in range(3)] == [0, 0, 0]


@pytest.mark.django_db
def test_a_session_whose_stream_has_lost_its_beginning_is_written_anew_by_its_next_commit(
    mirror: MirrorSessions,
) -> None:
    history = builders.asked()
    history.reply(calls=[("lookup_policy", {"policy": "POL-7"})])
    session = history.save()
    mirror.update([session.pk])
    _trim(mirror, session)
    history.finish(history.calls[-1], {"status": "active"})
    mirror.update([history.save().pk])
    told = everything(mirror, session)
    mirror.update([session.pk], anew=True)
    assert told == everything(mirror, session)


@pytest.mark.django_db
def test_a_session_that_the_server_refuses_does_not_hold_up_the_others(
    mirror: MirrorSessions, caplog: pytest.LogCaptureFixture
) -> None:
    refused, other = builders.paused(), builders.paused()
    mirror.client.rpush(f"agent:state:{refused.pk}", "a key of another kind")
    healing.update(mirror, [refused.pk, other.pk])
    assert f"The server refused the mirror of session {refused.pk}" in caplog.text
    assert state(mirror, other)["status"] == "paused"


@pytest.mark.django_db
def test_a_session_that_cannot_be_written_does_not_hold_up_the_others(
    mirror: MirrorSessions, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, *others = builders.paused(), builders.paused(), builders.failed()
    facts_of = contents.facts

    def facts(session: Session) -> dict[str, str]:
        if session.pk == broken.pk:
            raise ValueError("It is broken.")
        return facts_of(session)

    monkeypatch.setattr(mirror_sessions, "facts", facts)
    healing.update(mirror, [broken.pk, *(other.pk for other in others)])
    assert f"The mirror of session {broken.pk} was not updated." in caplog.text
    assert [state(mirror, other)["status"] for other in others] == ["paused", "failed"]


@pytest.mark.django_db
def test_a_server_that_drops_what_it_is_given_is_not_written_for_ever(
    mirror: MirrorSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "PAGE", 3)
    session = builders.done()
    write = mirror._write

    def dropping(writes: Any) -> Any:
        written = write(writes)
        mirror.client.flushall()
        return written

    monkeypatch.setattr(mirror, "_write", dropping)
    mirror.update([session.pk])
    assert mirror.client.keys("agent:*") == []


@pytest.mark.django_db
def test_a_mirror_that_is_up_to_date_costs_one_query(
    mirror: MirrorSessions, django_assert_num_queries: Any
) -> None:
    session = builders.done()
    mirror.update([session.pk])
    with django_assert_num_queries(1):
        mirror.update([session.pk])


@pytest.mark.django_db
@pytest.mark.parametrize(
    "error", [OperationalError("it took too long"), redis.TimeoutError("it took too long")]
)
def test_a_session_that_takes_too_long_does_not_hold_up_the_others(
    mirror: MirrorSessions,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    slow, *others = builders.paused(), builders.paused(), builders.failed()
    facts_of = contents.facts

    def facts(session: Session) -> dict[str, str]:
        if session.pk == slow.pk:
            raise error
        return facts_of(session)

    monkeypatch.setattr(mirror_sessions, "facts", facts)
    healing.update(mirror, [others[0].pk, slow.pk, others[1].pk])
    assert f"The mirror of session {slow.pk} was not updated." in caplog.text
    assert [state(mirror, other)["status"] for other in others] == ["paused", "failed"]
    monkeypatch.setattr(mirror.client, "ping", Mock(side_effect=error))  # then it is not the session
    with pytest.raises(type(error)):
        healing.update(mirror, [slow.pk])


@pytest.mark.django_db
def test_what_was_asked_of_the_thread_while_the_server_was_away_is_done_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "close_old_connections", lambda: None)  # this test needs its own
    away = MirrorSessions("redis://127.0.0.1:1/0", kept_seconds=DAY)
    thread = MirrorThread(lambda: away)
    thread._stopped = Mock(is_set=lambda: False)  # which does not wait
    first, second = builders.paused(), builders.paused()
    with away.client:
        thread._work(away, [first.pk, second.pk], heals=True)
    assert (list(thread._due), thread._heals) == ([first.pk, second.pk], True)


# The thread


@contextmanager
def mirroring(url: str, **settings: Any) -> Iterator[None]:
    """The mirror turned on in this process, with the thread that the first commit starts."""
    options = {"AGENTSTATE_MIRROR": True, "AGENTSTATE_MIRROR_URL": url, "AGENTSTATE_MIRROR_SECONDS": DAY}
    with override_settings(**options, **settings):
        try:
            yield
        finally:
            if live._thread is not None:
                live._thread.__exit__(None, None, None)
                live._thread = None


def is_mirrored(mirror: MirrorSessions, session: Session) -> Callable[[], bool]:
    change = str(Session.objects.values_list("change", flat=True).get(pk=session.pk))
    return lambda: mirror.client.hget(f"agent:state:{session.pk}", "change") == change


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_each_commit_is_mirrored_and_so_is_what_people_do_and_delete(
    mirror: MirrorSessions, redis_url: str
) -> None:
    with mirroring(redis_url), desk() as staff:
        staff.agent(lambda: sample_agents.long_run(2), policies={"fast": ToolPolicy(idempotent=True)})
        session = staff.start("hi")
        wait_for(is_mirrored(mirror, session), "the new session in the mirror")
        assert state(mirror, session)["status"] == "queued"
        staff.run(session)
        wait_for(is_mirrored(mirror, session), "the run in the mirror")
        assert state(mirror, session)["status"] == "complete"
        session.delete()
        wait_for(lambda: not mirror.client.exists(f"agent:state:{session.pk}"), "the mirror to forget it")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("failure", ["absent", "stalled"])
def test_a_server_that_is_absent_or_stalled_delays_and_fails_no_step_and_is_written_afterwards(
    redis_server: services.Redis,
    failure: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "LONGEST_WAIT_SECONDS", 0.5)
    redis_server.flush()
    pid = redis_server.pid
    assert pid is not None
    if failure == "absent":
        redis_server.stop()
    else:
        os.kill(pid, signal.SIGSTOP)
    with mirroring(redis_server.url), desk() as staff:
        try:
            staff.agent(lambda: sample_agents.long_run(2), policies={"fast": ToolPolicy(idempotent=True)})
            session = staff.run(staff.start("hi"))
            assert (session.status, session.phase) == (Status.IDLE, "done")
            assert [text for _, text in staff.texts(session)][-1] == "Long done."
        finally:
            if failure == "absent":
                redis_server.start()
            else:
                os.kill(pid, signal.SIGCONT)
        mirror = MirrorSessions(redis_server.url, kept_seconds=DAY)
        with mirror.client:
            wait_for(is_mirrored(mirror, session), "the mirror to be written")
    assert len([r for r in caplog.records if "The mirror is late" in r.getMessage()]) <= 1


@pytest.mark.django_db(transaction=True)
def test_where_it_is_turned_off_nothing_is_mirrored(redis_url: str, mirror: MirrorSessions) -> None:
    with mirroring(redis_url), override_settings(AGENTSTATE_MIRROR=False):
        builders.done()
        live.find_lost()
        assert live._thread is None
    assert mirror.client.keys("agent:*") == []


def test_what_waits_for_the_mirror_is_limited_and_each_session_waits_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "MOST_SESSIONS", 2)
    waiting = MirrorThread(lambda: pytest.fail("it was not started"))
    first, second = uuid4(), uuid4()
    for session_id in (first, second, first, uuid4()):
        waiting.update(session_id)
    assert list(waiting._due) == [first, second]


# The command


def command(*args: str) -> str:
    out = StringIO()
    call_command("agent", "mirror", *args, stdout=out)
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.django_db
def test_the_command_builds_the_mirror_again_and_removes_it(mirror: MirrorSessions, redis_url: str) -> None:
    session = builders.done()
    builders.paused()
    mirror.update([session.pk])
    mirror.client.rpush(f"agent:messages:{session.pk}", "not in the database")
    with mirroring(redis_url):
        assert command("--rebuild") == "The mirror has 2 sessions.\n"
        assert len(messages(mirror, session)) == 5
        with override_settings(AGENTSTATE_MIRROR=False):
            with pytest.raises(CommandError, match="The mirror is turned off"):
                command("--rebuild")
            assert command("--remove") == "Removed 2 sessions from the mirror.\n"
    assert mirror.client.keys("agent:*") == []


@pytest.fixture(params=["full", "a replica", "without a disk"])
def why(mirror: MirrorSessions, request: pytest.FixtureRequest) -> Iterator[str]:
    """What the server says, which answers and takes no writes."""
    with refusing_writes(mirror.client, request.param):
        yield {"full": "maxmemory", "a replica": "read only replica", "without a disk": "to persist"}[
            request.param
        ]


@pytest.mark.django_db
def test_the_command_ends_with_the_reason_where_the_server_takes_no_writes(
    redis_url: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    builders.paused()
    with (
        mirroring(redis_url),
        pytest.raises(CommandError, match=f"The server of the mirror failed: .*{why}"),
    ):
        command("--rebuild")
    assert not caplog.records


@pytest.mark.django_db
@pytest.mark.parametrize("deleted", [False, True])
def test_a_server_that_takes_no_writes_is_late_for_all_sessions_and_is_no_error_of_each(
    mirror: MirrorSessions, why: str, deleted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pks = [builders.paused().pk, uuid4() if deleted else builders.paused().pk]
    with pytest.raises(healing.UNAVAILABLE, match=why):
        healing.update(mirror, pks)
    with pytest.raises(healing.UNAVAILABLE, match=why):
        healing.heal(mirror)
    assert not caplog.records


@pytest.mark.django_db
def test_the_command_says_why_it_cannot() -> None:
    with pytest.raises(CommandError, match="set REDIS_URL or AGENTSTATE_MIRROR_URL"):
        command("--rebuild")
    with (
        mirroring("redis://127.0.0.1:1/0"),
        pytest.raises(CommandError, match="The server of the mirror failed: Error"),
    ):
        command("--remove")
