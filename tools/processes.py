"""Real processes of this project, for tests that start, kill and watch them."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools.services import dies_with_us, wait_for

PROJECT = Path(__file__).resolve().parent.parent
MANAGE = (sys.executable, "manage.py")
CELERY = (sys.executable, "-m", "celery", "-A", "agentstate")
_OURS = re.compile(
    "AGENTSTATE_|COVERAGE_|DJANGO_|OPENAI_|"
    "(DATABASE_URL|REDIS_URL|SECRET_KEY|HTTPS|TRUSTED_PROXIES|DEBUG|PORT|ALLOWED_HOSTS)$"
)


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without anything that the project reads, plus the variables."""
    inherited = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
    return {**inherited, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "default", **variables}


class Process:
    """A running process of the project; what it prints on stdout and stderr is kept in `output`."""

    def __init__(self, command: tuple[str, ...], env: Mapping[str, str], cwd: Path = PROJECT) -> None:
        self.command = command
        self.output = ""
        self._popen = subprocess.Popen(
            # A shell that starts the tests in the background has them ignore Ctrl-C, which is inherited.
            ["env", "--default-signal=INT", *dies_with_us("KILL"), *command],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout
        with self._popen.stdout as lines:
            for line in lines:
                self.output += line

    def wait_for_output(self, pattern: str, seconds: float = 180) -> re.Match[str]:
        """:raises AssertionError: if the process ends without printing it."""

        def look() -> re.Match[str] | bool | None:
            ended = self._popen.poll() is not None
            if ended:
                self._reader.join()
            return re.search(pattern, self.output) or ended

        match = wait_for(look, f"{pattern!r} in the output of process {self.pid}", seconds)
        assert isinstance(match, re.Match), f"ended with {self._popen.returncode}, printing:\n{self.output}"
        return match

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    def send(self, signum: signal.Signals) -> None:
        os.killpg(self.pid, signum)

    def wait(self, seconds: float = 30) -> int:
        """The exit code; negative for a signal."""
        code = self._popen.wait(seconds)
        self._reader.join()
        return code

    def kill(self) -> None:
        """SIGKILL to it and to its children."""
        if self._popen.poll() is None:
            self.send(signal.SIGKILL)
        self.wait()


@contextmanager
def running(command: tuple[str, ...], env: Mapping[str, str], cwd: Path = PROJECT) -> Iterator[Process]:
    process = Process(command, env, cwd)
    try:
        yield process
    finally:
        process.kill()


def run(
    command: tuple[str, ...], env: Mapping[str, str], cwd: Path = PROJECT
) -> subprocess.CompletedProcess[str]:
    """Run to the end, within four minutes."""
    return subprocess.run(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
    )
