"""An installation of its own for a benchmark: PostgreSQL that waits for the disk, Redis, workers, a web server."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, LiteralString

import psycopg

from tools.processes import CELERY, MANAGE, Process, environment, run, running
from tools.services import Postgres, free_port, running_postgres, running_redis, wait_for

TICKS = os.sysconf("SC_CLK_TCK")
HOST = "127.0.0.1"
# The name under which the server knows the connections of the workers.
NAME_OF_WORKERS = "worker"


@dataclass(frozen=True, slots=True)
class Installation:
    """
    database: a connection beside those of the installation.
    search: the process that adds to the search; the sweep does where there is none.
    """

    env: dict[str, str]
    postgres: Postgres
    database: psycopg.Connection[Any]
    workers: tuple[Process, ...]
    search: Process | None = None

    def one(self, query: LiteralString, *values: object) -> Any:
        """The first value of the first row."""
        row = self.database.execute(query, values).fetchone()
        return row[0] if row else None

    def shell(self, code: str) -> str:
        """What the code prints in a process of the project.

        :raises AssertionError: if it fails.
        """
        done = run((*MANAGE, "shell", "-v0", "-c", code), self.env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def worker_cpu(self) -> float:
        """Seconds of CPU that the workers have used."""
        return sum(cpu_seconds(worker.pid) for worker in self.workers)

    def search_cpu(self) -> float:
        """Seconds of CPU that the process that adds to the search has used."""
        return cpu_seconds(self.search.pid) if self.search else 0

    def database_cpu(self) -> float:
        """Seconds of CPU that the server has used, with the processes of its connections, ended ones included."""
        server = self.postgres.pid
        assert server is not None
        children = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        of_server = [pid for pid in children if _fields(pid)[1:2] == [str(server)]]
        return cpu_seconds(server, with_ended=True) + sum(cpu_seconds(pid) for pid in of_server)

    @contextmanager
    def web_server(self, *, asgi: bool = False) -> Iterator[tuple[str, Process]]:
        """Its address, and its process.

        :param asgi: One that offers server-sent events.
        """
        port = str(free_port())
        with TemporaryDirectory(prefix="agentstate-static-") as static:
            env = self.env | {"STATIC_ROOT": static}
            collected = run((*MANAGE, "collectstatic", "--noinput", "-v0"), env)
            assert collected.returncode == 0, collected.stderr
            waitress = ("waitress", f"--listen={HOST}:{port}", "agentstate.wsgi:application")
            uvicorn = (
                "uvicorn",
                f"--host={HOST}",
                f"--port={port}",
                "--no-access-log",
                "--no-proxy-headers",
                "agentstate.asgi:application",
            )
            with running((sys.executable, "-m", *(uvicorn if asgi else waitress)), env) as process:
                process.wait_for_output("running on|Serving on")
                yield f"http://{HOST}:{port}", process


@contextmanager
def installed(
    *,
    processes: int = 1,
    threads: int = 4,
    connections: int = 10,
    search: bool = False,
    **variables: str,
) -> Iterator[Installation]:
    """Servers and workers that have started, with the agent of `benchmarks.waiting_agent`.

    :param threads: of each worker process.
    :param connections: that each process opens at most.
    :param search: A process of its own adds to the search, as is advised for workers with many threads.
    :param variables: of the environment of all processes.
    """
    with ExitStack() as stack:
        postgres = stack.enter_context(running_postgres(durable=True))
        redis = stack.enter_context(running_redis())
        env = environment(
            **{
                "DATABASE_URL": postgres.new_database(),
                "REDIS_URL": redis.url,
                "SECRET_KEY": "only for benchmarks",
                "HTTPS": "false",
                "ALLOWED_HOSTS": HOST,
                "AGENTSTATE_AGENTS": "benchmarks.waiting_agent",
                "AGENTSTATE_CONNECTIONS": str(connections),
                "AGENTSTATE_MIRROR": "false",
                "LOG_LEVEL": "WARNING",
                **variables,
            }
        )
        migrated = run((*MANAGE, "migrate", "-v0"), env)
        assert migrated.returncode == 0, migrated.stderr
        pool = ("worker", "-P", "threads", "-c", str(threads))
        workers = [
            stack.enter_context(
                running((*CELERY, *pool, "-n", f"bench{number}@%h"), env | {"PGAPPNAME": NAME_OF_WORKERS})
            )
            for number in range(processes)
        ]
        stack.enter_context(running((*CELERY, "beat"), env))
        follower = (
            stack.enter_context(running((*MANAGE, "update_search", "--follow"), env)) if search else None
        )
        database = stack.enter_context(psycopg.connect(env["DATABASE_URL"], autocommit=True))
        installation = Installation(env, postgres, database, tuple(workers), follower)
        online: LiteralString = "SELECT count(*) FROM sessions_app_worker WHERE stopped_at IS NULL"
        wait_for(lambda: installation.one(online) == processes, "the workers", 300)
        yield installation


def cpu_seconds(pid: int, *, with_ended: bool = False) -> float:
    """Of one process; 0 once it has ended.

    :param with_ended: with those of its children that have ended.
    """
    return sum(map(int, _fields(pid)[11 : 15 if with_ended else 13])) / TICKS


def memory_mb(pid: int) -> float:
    """The most that a process has had in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _fields(pid: int) -> list[str]:
    """Those of `/proc/PID/stat` behind the name of the program."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
