"""`manage.py up`: one command starts everything, says where it is, and may be stopped or killed at any moment."""

import fcntl
import os
import re
import signal
import socket
import sqlite3
from contextlib import closing, contextmanager, suppress

import httpx
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection

from sessions_app.management.alone import ADVISORY_LOCK
from sessions_app.management.commands import up
from tools.processes import MANAGE, environment, run, running
from tools.services import wait_for

UP = (*MANAGE, "up", "--port", "0")
ADDRESS = r"AgentState is at (http://(?:[\d.]+|\[[\da-f:]+\]):\d+)/"
PASSWORD = r"with the password (\S+)"


@pytest.fixture(scope="module")
def static_root(tmp_path_factory):
    """Collected by the first start; the next ones find it up to date."""
    return str(tmp_path_factory.mktemp("static"))


@pytest.fixture
def env(sqlite_url, static_root):
    """A project of its own. Its one module of agents registers none, so no demo sessions are made."""
    return environment(
        DATABASE_URL=sqlite_url,
        STATIC_ROOT=static_root,
        SECRET_KEY="for these tests",
        AGENTSTATE_AGENTS="agentstate",
    )


@pytest.fixture
def demo_env(env, tmp_path):
    """With the demo's agents and sessions, and intervals at which a lost worker is detected soon."""
    return env | {
        "AGENTSTATE_AGENTS": "agentstate.demo.agents",
        "AGENTSTATE_DEMO_DIR": str(tmp_path / "demo"),
        "AGENTSTATE_DEMO_DELAY": "0.2",
        "AGENTSTATE_LEASE_SECONDS": "1",
        "AGENTSTATE_HEARTBEAT_SECONDS": "0.3",
        "AGENTSTATE_SWEEP_SECONDS": "0.3",
    }


@contextmanager
def signed_in(address, name, password):
    """A client with the session that this name and password give."""
    with httpx.Client(base_url=address, follow_redirects=True) as client:
        client.get("/login/").raise_for_status()
        form = {"username": name, "password": password, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
        client.post("/login/", data=form)
        assert "sessionid" in client.cookies
        yield client


def test_several_that_are_started_at_once_collect_the_static_files_one_after_the_other(
    settings, tmp_path, monkeypatch
):
    settings.STATIC_ROOT = tmp_path / "static"
    called = []

    def prepare(name, **options):
        other = os.open(settings.STATIC_ROOT, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        called.append(name)

    monkeypatch.setattr(up, "call_command", prepare)
    up.Command()._collect_static()
    assert called == ["collectstatic"]
    later = os.open(settings.STATIC_ROOT, os.O_RDONLY)
    fcntl.flock(later, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(later)


@pytest.mark.slow
def test_the_first_start_prints_a_password_and_the_next_ones_do_not(env):
    with running(UP, env) as first:
        address = first.wait_for_output(ADDRESS)[1]
        password = first.wait_for_output(PASSWORD)[1]
        for name in ("viewer", "operator", "supervisor"):
            with signed_in(address, name, password) as client:
                # Only supervisors are let into the admin; others are asked who they are.
                assert (client.get("/admin/").url.path == "/admin/") is (name == "supervisor")
        first.send(signal.SIGTERM)
        assert first.wait() == 0
    assert first.output.count(password) == 1

    with running(UP, env) as second:
        address = second.wait_for_output(ADDRESS)[1]
        with signed_in(address, "operator", password):
            pass
        assert not re.search(PASSWORD, second.output)
        assert "sessions of the demo" not in second.output


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
def test_the_environment_names_the_password_also_for_users_that_exist(env):
    with running(UP, env) as first:
        first.wait_for_output(ADDRESS)
    with running(UP, env | {"AGENTSTATE_DEMO_PASSWORD": "open sesame"}) as second:
        address = second.wait_for_output(ADDRESS)[1]
        with signed_in(address, "viewer", "open sesame"):
            pass
        assert "open sesame" not in second.output


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
@pytest.mark.parametrize(
    "arguments, more, why",
    [
        (("--host", "0.0.0.0"), {}, "other machines can reach this server at 0.0.0.0"),
        ((), {"TRUSTED_PROXIES": "1"}, "this server is behind a proxy"),
    ],
)
def test_where_others_can_reach_it_the_demo_users_are_closed_and_none_are_made(env, arguments, more, why):
    with running(UP, env) as first:
        password = first.wait_for_output(PASSWORD)[1]
        first.wait_for_output(ADDRESS)
    with running((*UP, *arguments), env | more) as second:
        address = second.wait_for_output(ADDRESS)[1].replace("0.0.0.0", "127.0.0.1")
        assert f"The passwords of the demo users viewer, operator, supervisor no longer work: {why}." in (
            second.output
        )
        assert f"No demo users: {why}." in second.output
        with httpx.Client(base_url=address) as client:
            client.get("/login/")
            token = client.cookies["csrftoken"]
            form = {"username": "supervisor", "password": password, "csrfmiddlewaretoken": token}
            assert "is wrong" in client.post("/login/", data=form).text


@pytest.mark.slow
def test_on_postgres_no_demo_users_are_made(env, postgres_url):
    with running(UP, env | {"DATABASE_URL": postgres_url}) as up:
        up.wait_for_output(ADDRESS)
        assert "No demo users: they are made on SQLite only." in up.output
        assert "Sign in as" not in up.output


@pytest.mark.slow
@pytest.mark.parametrize("password", ["sesame", "password123", "1234567890", "supervisor"])
def test_a_weak_demo_password_is_refused_and_nothing_was_begun(env, tmp_path, password):
    done = run(UP, env | {"AGENTSTATE_DEMO_PASSWORD": password})
    assert done.returncode == 1
    assert "AGENTSTATE_DEMO_PASSWORD is not good enough: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "db.sqlite3").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_soon_and_without_a_traceback(env, signum):
    with running((*UP, "--no-demo"), env) as up:
        up.wait_for_output(ADDRESS)
        up.send(signum)
        assert up.wait(20) == 0
    assert "Stopping after the current step, or in 3.5 seconds if that takes longer..." in up.output
    assert "Traceback" not in up.output


@pytest.mark.slow
@pytest.mark.parametrize("signum, online_after", [(signal.SIGINT, 0), (signal.SIGKILL, 1)])
def test_its_worker_is_online_before_any_session_was_run_and_signs_off_unless_it_is_killed(
    env, signum, online_after
):
    with closing(sqlite3.connect(env["DATABASE_URL"].removeprefix("sqlite:///"))) as database:

        def online():
            names = "SELECT name FROM sessions_app_worker WHERE stopped_at IS NULL"
            return len(database.execute(names).fetchall())

        with running((*UP, "--no-demo"), env) as up:
            up.wait_for_output(ADDRESS)
            wait_for(lambda: online() == 1, "the worker's heartbeat")
            up.send(signum)
            up.wait(20)
        assert online() == online_after


def statuses(env, agent):
    """The statuses of the agent's sessions, as the database has them."""
    with closing(sqlite3.connect(env["DATABASE_URL"].removeprefix("sqlite:///"))) as database:
        rows = database.execute("SELECT status FROM sessions_app_session WHERE agent = ?", [agent])
        return [status for (status,) in rows]


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
def test_after_sigkill_the_next_start_carries_on_by_itself(demo_env):
    with running(UP, demo_env) as first:
        first.wait_for_output(ADDRESS)
        wait_for(lambda: statuses(demo_env, "research") == ["running"], "the long research to run")
        first.send(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    assert statuses(demo_env, "research") == ["running"]
    with running(UP, demo_env | {"AGENTSTATE_DEMO_DELAY": "0"}) as second:
        second.wait_for_output(ADDRESS)
        wait_for(lambda: statuses(demo_env, "research") == ["idle"], "the research to end", 300)
    assert len(statuses(demo_env, "claims")) > 5


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
def test_a_running_session_is_queued_at_its_next_step_when_stopped(demo_env):
    with running(UP, demo_env) as up:
        up.wait_for_output(ADDRESS)
        wait_for(lambda: statuses(demo_env, "research") == ["running"], "the long research to run")
        up.send(signal.SIGTERM)
        assert up.wait(20) == 0
    assert statuses(demo_env, "research") == ["queued"]
    assert "Traceback" not in up.output


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
def test_static_files_are_served_under_names_that_may_be_cached_for_ever(env):
    with running((*UP, "--no-demo"), env) as up:
        address = up.wait_for_output(ADDRESS)[1]
        page = httpx.get(f"{address}/admin/login/").text
        style = re.search(r'href="(/static/admin/css/base\.[0-9a-f]+\.css)"', page)
        assert style
        assert "immutable" in httpx.get(address + style[1]).headers["cache-control"]


@pytest.mark.slow
def test_the_database_is_its_owners_alone_while_it_runs(env, tmp_path):
    with running((*UP, "--no-demo"), env) as up:
        address = up.wait_for_output(ADDRESS)[1]
        # A thread of the server opens a connection, and keeps it.
        httpx.get(address, cookies={"sessionid": "nobody's" * 4})
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("db.sqlite3*")}
    assert modes == {f"db.sqlite3{end}": 0o600 for end in ("", "-wal", "-shm", "-lock")}


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
def test_one_connection_goes_on_after_head_and_a_large_body_is_not_waited_for(env):
    with running((*UP, "--no-demo"), env) as up:
        address = up.wait_for_output(ADDRESS)[1]
        with httpx.Client(base_url=address, limits=httpx.Limits(max_connections=1)) as client:
            length = len(client.get("/login/").content)
            for _ in range(3):
                head = client.head("/login/")
                assert head.status_code == 200
                assert abs(int(head.headers["content-length"]) - length) < 100
                assert client.get("/login/").text.startswith("\n<!doctype html>")
        host, port = re.findall(r"[\d.]+", address)
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(
                b"POST /login/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
def test_behind_a_proxy_that_adds_tls_plain_requests_are_sent_to_https(env):
    with running((*UP, "--no-demo"), env | {"HTTPS": "true", "TRUSTED_PROXIES": "1"}) as up:
        login = up.wait_for_output(ADDRESS)[1] + "/login/"
        assert httpx.get(login).headers["location"].startswith("https://")
        answer = httpx.get(login, headers={"X-Forwarded-Proto": "https"})
        assert answer.status_code == 200
        assert "Secure" in answer.headers["set-cookie"]


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
def test_nobody_says_that_their_request_came_over_tls_where_no_proxy_is_trusted(env):
    with running((*UP, "--no-demo"), env | {"HTTPS": "true"}) as up:
        login = up.wait_for_output(ADDRESS)[1] + "/login/"
        answer = httpx.get(login, headers={"X-Forwarded-Proto": "https"})
        assert answer.headers["location"].startswith("https://")


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
def test_the_address_that_it_prints_leads_to_it_by_ipv6_too(env):
    with running((*UP, "--no-demo", "--host", "::1"), env) as up:
        address = up.wait_for_output(ADDRESS)[1]
        assert address.startswith("http://[::1]:")
        assert httpx.get(f"{address}/login/").status_code == 200


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
def test_with_redis_it_works_too(env, redis_url):
    with running((*UP, "--no-demo"), env | {"REDIS_URL": redis_url}) as up:
        address = up.wait_for_output(ADDRESS)[1]
        assert httpx.get(f"{address}/login/").status_code == 200
        up.send(signal.SIGTERM)
        assert up.wait(20) == 0
    assert "Traceback" not in up.output


def others_wait(url):
    """Whether another process would have to wait for `alone_with_database`."""
    if not url.startswith("sqlite"):
        other = connection.copy()
        try:
            with other.cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_lock(%s)", [ADVISORY_LOCK])
                return not cursor.fetchone()[0]
        finally:
            other.close()
    with open(f"{url.removeprefix('sqlite:///')}-lock", "a") as file, suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    return True


on_both = pytest.mark.parametrize("own_database", ["sqlite", "postgres"], indirect=True)


@pytest.mark.slow
@pytest.mark.parametrize("own_database", ["sqlite"], indirect=True)
def test_a_folder_that_cannot_be_written_is_a_sentence(own_database, django_db_blocker, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system", "/srv/db.sqlite3-lock")

    monkeypatch.setattr("sessions_app.management.alone.os.open", refuse)
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(up, "_accept_plain_http", lambda: None)
    told = r"^The database or the static files cannot be prepared: .*Read-only file system: '/srv/db.sqlite3-lock'\.$"
    with django_db_blocker.unblock(), pytest.raises(CommandError, match=told):
        call_command("up", port="0", no_demo=True)


@pytest.mark.slow
@on_both
def test_of_two_that_start_at_once_one_prepares_the_database_while_the_other_waits(
    own_database, django_db_blocker, monkeypatch
):
    waited = []

    def prepare(*arguments, **options):
        waited.append(others_wait(own_database))
        raise OperationalError("database or disk is full")

    monkeypatch.setattr(up.Command, "_prepare", prepare)
    # What it sets for its whole process.
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(up, "_accept_plain_http", lambda: None)
    with django_db_blocker.unblock():
        with pytest.raises(CommandError, match=r"^The database cannot be used: database or disk is full\.$"):
            call_command("up", port="0", no_demo=True)
        assert waited == [True]
        wait_for(lambda: not others_wait(own_database), "the lock to be released")


@pytest.mark.slow
def test_a_taken_port_is_one_clear_line_and_nothing_was_begun(env, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run((*MANAGE, "up"), env | {"PORT": str(port)})
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"Cannot listen on 127.0.0.1 port {port}: Address already in use." in done.stderr
    assert f"PORT={port + 1}" in done.stderr
    assert not (tmp_path / "db.sqlite3").exists()


@pytest.mark.slow
@pytest.mark.parametrize("port", ["web", "65536", "-1"])
def test_an_invalid_port_is_refused(env, port):
    done = run((*MANAGE, "up", f"--port={port}"), env)
    assert done.returncode == 1
    assert f"must be a number from 0 to 65535, not {port!r}" in done.stderr
