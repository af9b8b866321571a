"""Plain Celery runs the sessions in production: workers and one beat, with Redis between them."""

import logging
import os
import signal
from typing import Any
from uuid import UUID

import click
import pytest
import redis
from celery import current_app
from celery.utils.log import get_task_logger
from kombu.pidbox import Mailbox

from agentstate.celery import app
from sessions_app import actions, wake
from sessions_app.models import ModelCall, Phase, RegisteredAgent, Session, Status
from tests.chaos import PERSON, Workers, celery, chaos_environment, start
from tests.chaos_moments import VARIABLE, moments
from tests.databases import connected
from tests.refusing import refusing_writes
from tools.processes import CELERY, MANAGE, environment, run, running
from tools.services import wait_for

WORKER = (*CELERY, "worker", "--concurrency", "2")
BEAT = (*CELERY, "beat")
QUESTION = "What does policy POL-8801 cover?"


@pytest.fixture
def url(new_database, django_db_blocker):
    """A database of PostgreSQL that this thread works on, too."""
    url = new_database("postgres")
    with django_db_blocker.unblock(), connected(url):
        yield url


@pytest.fixture
def env(url, redis_url):
    return environment(
        DATABASE_URL=url, REDIS_URL=redis_url, AGENTSTATE_SWEEP_SECONDS="0.5", AGENTSTATE_DEMO_DELAY="0"
    )


def manage(env, *arguments):
    done = run((*MANAGE, *arguments), env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def of_slow_steps(url, redis_url, folder, *, slice_seconds):
    """The environment of workers whose steps take longer than a sweep's message lives."""
    return chaos_environment(
        url,
        folder,
        REDIS_URL=redis_url,
        AGENTSTATE_SWEEP_SECONDS="0.5",
        AGENTSTATE_SLICE_SECONDS=slice_seconds,
        AGENTSTATE_TEST_PACE="0.5",
    )


def wait_until_published():
    wait_for(RegisteredAgent.objects.filter(key="claims").exists, "the worker to publish its agents")


def wait_until_done(session_id):
    wait_for(Session.objects.filter(pk=session_id, phase=Phase.DONE).exists, "the session to end")


@pytest.mark.slow
def test_a_worker_is_woken_by_a_message_and_publishes_its_agents_first(env):
    with running(WORKER, env) as worker:
        wait_until_published()
        session_id = manage(env, "agent", "start", "claims", QUESTION)
        wait_until_done(session_id)
        with redis.Redis.from_url(env["REDIS_URL"], decode_responses=True) as mirror:
            state = f"agent:state:{session_id}"
            wait_for(lambda: mirror.hget(state, "status") == "complete", "the worker to mirror the session")
        os.kill(worker.pid, signal.SIGTERM)  # not its child, which may still be ending the task
        assert worker.wait() == 0
    assert "Traceback" not in worker.output


@pytest.mark.parametrize("arguments, level", [([], logging.INFO), (["-l", "ERROR"], logging.ERROR)])
def test_the_log_of_a_celery_process_is_that_of_the_settings_unless_its_command_line_says_a_level(
    arguments, level, monkeypatch
):
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", logging.INFO)
    monkeypatch.setattr(app.log, "already_setup", False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    handlers = list(root.handlers)

    @click.command()
    @click.option("-l", "--loglevel", default="WARNING")
    def worker(loglevel):
        assert app.log.setup_logging_subsystem(loglevel)

    worker.main(arguments, standalone_mode=False)
    assert (root.level, root.handlers) == (level, handlers)
    # Those of tools have no format of their own.
    own = get_task_logger("tools").parent
    assert own is not None
    assert all(isinstance(handler, logging.NullHandler) for handler in own.handlers)


@pytest.mark.slow
def test_beat_finds_a_session_whose_wake_up_was_lost(env):
    with running(WORKER, env), running(BEAT, env) as beat:
        wait_until_published()
        # This process shares no broker with the worker.
        wait_until_done(actions.start(actor=PERSON, agent="claims", message=QUESTION).pk)
        beat.send(signal.SIGTERM)
        assert beat.wait() == 0
    assert "Traceback" not in beat.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "pool, sessions, gives_way",
    [
        ("threads", 1, False),
        ("threads", 2, True),
        pytest.param("prefork", 1, False, marks=pytest.mark.long),
        pytest.param("prefork", 2, True, marks=pytest.mark.long),
    ],
)
def test_a_session_gives_way_behind_its_slice_only_where_another_waits_for_its_worker(
    pool, sessions, gives_way, env
):
    worker = (*CELERY, "worker", "--pool", pool, "--concurrency", "1")
    of_one_thread = {"AGENTSTATE_SLICE_SECONDS": "0.001", "AGENTSTATE_RESERVED_THREADS": "0"}
    with running(worker, env | of_one_thread) as process:
        wait_until_published()
        # Both messages wait before it reads the first.
        process.send(signal.SIGSTOP)
        started = [manage(env, "agent", "start", "claims", QUESTION) for _ in range(sessions)]
        process.send(signal.SIGCONT)
        for session_id in started:
            wait_until_done(session_id)
    # Each claim is an epoch.
    claims = sum(Session.objects.filter(pk__in=started).values_list("epoch", flat=True))
    assert (claims > sessions) == gives_way


@pytest.mark.slow
def test_a_session_whose_wake_up_was_lost_does_not_wait_until_the_others_are_done(
    url, redis_url, tmp_path, monkeypatch
):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    # Each step is a slice of its own.
    env = of_slow_steps(url, redis_url, tmp_path, slice_seconds="0.001")
    with Workers(celery(1, 1), env) as workers:
        workers.wait_until_ready()
        busy = [start("desk", f"busy {number}") for number in range(3)]
        wait_for(lambda: all(moments(session) for session in busy), "all of them to be run")
        late = start("desk", "late")
        wait_for(lambda: moments(late), "the late one to be run")
        on_their_way = Session.objects.filter(pk__in=busy, status__in=(Status.QUEUED, Status.RUNNING))
        assert on_their_way.count() == len(busy)


@pytest.mark.slow
def test_a_new_session_goes_before_those_that_run_for_long(url, redis_url, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    # Each of them would end in its slice.
    env = of_slow_steps(url, redis_url, tmp_path, slice_seconds="600")
    with Workers(celery(1, 1), env) as workers:
        workers.wait_until_ready()
        busy = [start("desk", f"busy {number}") for number in range(3)]
        wait_for(lambda: any(moments(session) for session in busy), "one of them to be run")
        new = start("desk", "new")
        # Sent by this process, since the others could have ended by the time at which another one has started.
        with current_app.connection_for_write(redis_url) as connection:
            wake.send_advances([new], connection=connection)
        wait_for(lambda: moments(new), "the new one to be run")
        on_their_way = Session.objects.filter(pk__in=busy, status__in=(Status.QUEUED, Status.RUNNING))
        assert on_their_way.count() == len(busy)


@pytest.mark.slow
def test_a_new_session_runs_in_a_reserved_thread_which_is_free_again_when_a_session_has_given_way(env):
    env |= {
        "AGENTSTATE_AGENTS": "benchmarks.waiting_agent",
        "AGENTSTATE_BENCH_MODEL_MS": "100",
        "AGENTSTATE_RESERVED_THREADS": "1",
    }
    replies = ModelCall.objects.filter(ended_at__isnull=False)

    def starts() -> UUID:
        session_id = actions.start(actor=PERSON, agent="waiting", message="100000").pk
        with current_app.connection_for_write(env["REDIS_URL"]) as connection:
            wake.send_advances([session_id], connection=connection)
        wait_for(replies.filter(branch__session=session_id).exists, "it to be run")
        return session_id

    with running((*CELERY, "worker", "--pool", "threads", "--concurrency", "1"), env):
        wait_for(RegisteredAgent.objects.filter(key="waiting").exists, "the worker to publish its agents")
        both = Session.objects.filter(pk__in=[starts(), starts()])
        wait_for(lambda: both.filter(status=Status.RUNNING).count() == 2, "both to run at once")
        wait_for(both.filter(status=Status.QUEUED).exists, "one of them to give way")
        goes_on = both.get(status=Status.RUNNING)
        so_far = replies.filter(branch=goes_on.branch).count()
        wait_for(lambda: replies.filter(branch=goes_on.branch).count() > so_far + 10, "the other to go on")
        assert sorted(both.values_list("status", "epoch")) == [(Status.QUEUED, 1), (Status.RUNNING, 1)]
        starts()


@pytest.mark.slow
@pytest.mark.parametrize(
    "pool, by_signal", [("threads", True), ("prefork", True), ("threads", False), ("solo", True)]
)
def test_a_worker_that_is_told_to_end_puts_its_session_back_at_the_end_of_its_step(
    pool, by_signal, url, redis_url, tmp_path, monkeypatch
):
    """Also where one of its threads is free, and nothing waits."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    env = of_slow_steps(url, redis_url, tmp_path, slice_seconds="600")
    worker = (*celery(1, 2)[0], "--pool", pool)
    with Workers([worker], env) as workers:
        workers.wait_until_ready()
        session = start("quick", "hi")
        with current_app.connection_for_write(redis_url) as connection:
            wake.send_advances([session], connection=connection)
        wait_for(lambda: moments(session), "it to be run")
        [process] = workers.processes
        if by_signal:
            os.kill(process.pid, signal.SIGTERM)
        else:
            # As `celery control shutdown` does it, which starts for seconds; its session may have ended then.
            with current_app.connection_for_write(redis_url) as connection:
                mailbox: Any = Mailbox(current_app.conf.control_exchange, type="fanout")
                mailbox(connection).abcast("shutdown")
        assert process.wait() == 0
    ended = Session.objects.get(pk=session)
    assert (ended.status, ended.why) == (Status.QUEUED, "")


START_WITH_A_STOPPED_SERVER = """
import os, signal, time
from uuid import uuid4
from django.core.management import call_command
from sessions_app import wake
from sessions_app.models import RegisteredAgent

RegisteredAgent.objects.create(key="claims", title="Claims", model="m", definition="d")
wake.send_advances([uuid4()])
os.kill(int(os.environ["SERVER"]), signal.SIGSTOP)
for attempt in "the open connection", "a new one":
    began = time.monotonic()
    call_command("agent", "start", "claims", "Is it covered?")
    print("seconds:", time.monotonic() - began)
"""


@pytest.mark.slow
def test_a_person_waits_for_seconds_only_where_redis_has_stopped_answering(env, redis_server):
    try:
        done = run(
            (*MANAGE, "shell", "-v0", "-c", START_WITH_A_STOPPED_SERVER),
            env | {"SERVER": str(redis_server.pid)},
        )
    finally:
        os.kill(redis_server.pid, signal.SIGCONT)
    assert done.returncode == 0, done.stderr
    waited = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("seconds:")]
    assert len(waited) == 2
    assert max(waited) < 15
    assert (
        done.stderr.count("was not sent: Timeout reading from socket. It stays queued, and the next sweep")
        == 2
    )


@pytest.fixture
def server(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(
    "pool, how",
    [
        ("threads", "a replica"),
        pytest.param("prefork", "a replica", marks=pytest.mark.long),
        pytest.param("threads", "without a disk", marks=pytest.mark.long),
    ],
)
def test_a_worker_goes_on_when_a_broker_takes_writes_again_which_it_has_refused(pool, how, env, server):
    with running((*WORKER, "--pool", pool), env) as worker:
        wait_until_published()
        wait_for(lambda: server.info("clients")["blocked_clients"], "the worker to ask for a message")
        with refusing_writes(server, how):
            worker.wait_for_output("WARNING .*Connection to broker lost", 30)
            worker.wait_for_output("Cannot connect to redis", 30)
        wait_until_done(manage(env, "agent", "start", "claims", QUESTION))
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait() == 0
    assert "CRITICAL" not in worker.output


@pytest.mark.slow
@pytest.mark.parametrize("command", [WORKER, BEAT])
@pytest.mark.parametrize("how", ["a replica", pytest.param("full", marks=pytest.mark.long)])
def test_a_process_that_starts_while_the_broker_refuses_writes_waits_for_it(command, how, env, server):
    with refusing_writes(server, how), running(command, env) as process:
        process.wait_for_output("Cannot connect to redis|Connection error", 30)
        server.replicaof("NO", "ONE")
        server.config_set("maxmemory", 0)
        wait_for(lambda: server.exists("_kombu.binding.agentstate.sweep"), "it to use the broker")
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 0
    assert "CRITICAL" not in process.output


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_beat_ends_when_it_is_told_to_while_it_waits_for_the_broker(signum, env, server):
    with running(BEAT, env) as beat:
        wait_for(lambda: server.exists("_kombu.binding.agentstate.sweep"), "it to use the broker")
        server.client_pause(60_000, all=False)
        try:
            wait_for(lambda: server.info("clients")["blocked_clients"], "it to wait for an answer")
            os.kill(beat.pid, signum)
            assert beat.wait() == 0
        finally:
            server.client_unpause()


CLOSE_WITH_AN_UNACKNOWLEDGED_MESSAGE = """
import redis
from agentstate.celery import app, settings

server = redis.Redis.from_url(settings.REDIS_URL)
with app.connection_for_read() as connection:
    queue = connection.SimpleQueue("of-this-test")
    queue.put("wake up")
    queue.put("and again")
    queue.get(timeout=30).ack()
    late = queue.get(timeout=30)
    print("not acknowledged:", server.hlen("unacked"))
print("put back:", server.llen("of-this-test"))
late.ack()
print("still not acknowledged:", server.hlen("unacked"))
"""


@pytest.mark.slow
def test_a_closed_connection_neither_puts_wake_ups_back_nor_acknowledges_them_which_a_lost_broker_makes_fail(
    env,
):
    done = run((*MANAGE, "shell", "-v0", "-c", CLOSE_WITH_AN_UNACKNOWLEDGED_MESSAGE), env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == [
        "not acknowledged: 1",
        "put back: 0",
        "still not acknowledged: 1",
    ]
