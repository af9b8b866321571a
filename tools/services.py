"""Throwaway servers for the tests: a redis-server, a PostgreSQL cluster; and where Chromium is.

Each server listens on a free port of this machine only, keeps its data in a directory of its own that goes with
it, and dies with the process that started it, also when that is killed.

    python -m tools.services COMMAND...     runs COMMAND with DATABASE_URL naming a throwaway PostgreSQL
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psycopg
import redis

T = TypeVar("T")
START_SECONDS = 120
_PREFIX = "agentstate-test-"


class Missing(Exception):
    """A program that is not installed. Says how to get it."""

    def __init__(self, package: str) -> None:
        super().__init__(f"needs {package}, which is not installed here (apt-get install {package})")


def wait_for(condition: Callable[[], T], what: str, seconds: float = START_SECONDS) -> T:
    """The first true value that `condition` gives.

    :raises TimeoutError: naming `what`, when `seconds` have passed.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"Waited {seconds:g} s for {what}, without success.")
        time.sleep(0.02)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def chromium() -> str:
    """:raises Missing: if there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise Missing("chromium")


class Redis:
    """A redis-server that keeps nothing on disk, so that a restart loses every message.

    :raises Missing: on `start`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise Missing("redis-server")
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = _spawn([program, *options], self._folder, dies_by="KILL")
        wait_for(self._answers, "redis-server to start")

    def stop(self) -> None:
        """As a power cut would: at once, and nothing is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def restart(self) -> None:
        self.stop()
        self.start()

    def flush(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False


class Postgres:
    """A PostgreSQL cluster without passwords. PostgreSQL refuses root, so root lends it another user.

    :param durable: Wait for the disk at each commit, as a benchmark has to. Tests need not.
    :raises Missing: on `start`.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._data = folder / "data"
        self._fsync = "on" if durable else "off"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    def url(self, database: str = "postgres") -> str:
        return f"postgres://agentstate@127.0.0.1:{self._port}/{database}"

    def start(self) -> None:
        user = _other_user()
        if not self._data.exists():
            if user:
                shutil.chown(self._data.parent, user)
            initdb = [
                postgres_program("initdb"),
                "-D",
                str(self._data),
                "-U",
                "agentstate",
                "--auth=trust",
                "-E",
                "UTF8",
            ]
            _run([*initdb, "--no-sync", "--no-locale"], self._data.parent, user)
        server = [
            postgres_program("postgres"),
            "-D",
            str(self._data),
            "-p",
            str(self._port),
            "-h",
            "127.0.0.1",
        ]
        settings = [
            "-c",
            "unix_socket_directories=",
            "-c",
            f"fsync={self._fsync}",
            "-c",
            "max_connections=200",
        ]
        self._process = _spawn([*server, *settings], self._data.parent, dies_by="QUIT", user=user)
        wait_for(self._answers, "PostgreSQL to start")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def new_database(self, copied: str = "template1") -> str:
        """The URL of a database of one's own: an empty one, or a copy of one to which nobody is connected."""
        self._databases += 1
        name = f"test_{os.getpid()}_{self._databases}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{copied.rpartition("/")[2]}"')
        return self.url(name)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def running_redis() -> Iterator[Redis]:
    with _folder() as folder:
        server = Redis(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def running_postgres(*, durable: bool = False) -> Iterator[Postgres]:
    """A server that has started; the parameter is that of `Postgres`."""
    with _folder() as folder:
        server = Postgres(folder, durable=durable)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def _folder() -> Iterator[Path]:
    """A directory that names its owner, so that one left behind by a killed run goes with the next."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = directory.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not _is_alive(int(owner)):
            shutil.rmtree(directory, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _other_user() -> str | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise Missing("postgresql")


def postgres_program(name: str) -> str:
    """The newest one: Debian keeps the server programs out of the path."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    if path := shutil.which(name) or (str(versions[-1]) if versions else None):
        return path
    raise Missing("postgresql")


def _as(user: str | None) -> list[str]:
    return (
        ["setpriv", "--reuid", user, "--regid", str(pwd.getpwnam(user).pw_gid), "--clear-groups"]
        if user
        else []
    )


def _run(command: list[str], folder: Path, user: str | None) -> None:
    done = subprocess.run([*_as(user), *command], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")


def dies_with_us(signame: str, user: str | None = None) -> list[str]:
    """What to put before a command so that the kernel sends it this signal once the present process is gone."""
    return [*(_as(user) or ["setpriv"]), "--pdeathsig", signame] if shutil.which("setpriv") else []


def _spawn(
    command: list[str], folder: Path, dies_by: str, user: str | None = None
) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [*dies_with_us(dies_by, user), *command],
            cwd=folder,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )


def main(command: list[str]) -> int:
    try:
        with running_postgres() as server:
            return subprocess.run(command, env={**os.environ, "DATABASE_URL": server.url()}).returncode
    except Missing as missing:
        sys.stderr.write(f"Left out: {' '.join(command)}: {missing}\n")
        return int(os.environ.get("AGENTSTATE_TEST_REQUIRE_ALL") == "1")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
