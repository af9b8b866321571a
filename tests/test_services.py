"""The suite's own promises: no server outlives the run, and no test is left out without a word."""

import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import psycopg
import pytest
import redis

from tools.processes import environment, run, running
from tools.services import wait_for

A_TEST_WITH_REDIS = "tests/test_services.py::test_redis_restarts_empty_at_the_same_address"
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", A_TEST_WITH_REDIS)


def without_servers(**env: str) -> dict[str, str]:
    return environment(PATH="/nonexistent", **env)


@pytest.mark.slow
def test_a_test_whose_server_is_missing_is_listed_at_the_end():
    done = run(PYTEST, without_servers())
    assert done.returncode == 0
    reason = "1 test: needs redis-server, which is not installed here (apt-get install redis-server)"
    assert f"{reason}\n  {A_TEST_WITH_REDIS}\n" in done.stdout


@pytest.mark.slow
def test_where_nothing_may_be_left_out_that_is_a_failure():
    done = run(PYTEST, without_servers(AGENTSTATE_TEST_REQUIRE_ALL="1"))
    assert done.returncode == 1
    assert "Left out, which AGENTSTATE_TEST_REQUIRE_ALL forbids: needs redis-server" in done.stdout


def test_redis_restarts_empty_at_the_same_address(redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("key", "value")
        redis_server.restart()
        assert client.get("key") is None


def test_each_postgres_database_is_empty_and_of_its_own(postgres_server):
    one, other = postgres_server.new_database(), postgres_server.new_database()
    assert one != other
    with psycopg.connect(one) as connection:
        connection.execute("CREATE TABLE mine (id int)")
    with psycopg.connect(other) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE tablename = 'mine'").fetchone() == (
            0,
        )


def test_a_copy_of_a_postgres_database_has_its_tables_and_is_of_its_own(postgres_server):
    one = postgres_server.new_database()
    with psycopg.connect(one) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 1 AS id")
    with psycopg.connect(postgres_server.new_database(one)) as copy:
        assert copy.execute("DELETE FROM mine RETURNING id").fetchall() == [(1,)]
    with psycopg.connect(one) as connection:
        assert connection.execute("SELECT id FROM mine").fetchall() == [(1,)]


@pytest.mark.usefixtures("postgres_server", "redis_server")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="Only Linux lets a process die with its parent.")
def test_servers_die_with_a_run_that_is_killed():
    code = (
        "from tools.services import *\n"
        "with running_redis() as redis, running_postgres() as postgres:\n"
        "    print('pids', redis.pid, postgres.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with running((sys.executable, "-c", code), environment()) as process:
        pids = [int(pid) for pid in process.wait_for_output(r"pids (\d+) (\d+)").groups()]
        os.kill(process.pid, signal.SIGKILL)
        for pid in pids:
            wait_for(partial(_has_ended, pid), f"process {pid} to end")


def test_a_command_gets_a_postgres_of_its_own(postgres_server):
    show = "import os; print(os.environ['DATABASE_URL'])"
    command = (sys.executable, "-m", "tools.services", sys.executable, "-c", show)
    url = run(command, environment()).stdout.strip()
    assert url.startswith("postgres://")
    assert url != postgres_server.url()


def _has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return True
    return state == "Z"
