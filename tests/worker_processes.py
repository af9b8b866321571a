"""Worker processes that a test tells which session to drive, and that it can stop and continue."""

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from django.utils import timezone

from sessions_app.models import Session, Status
from tests.chaos import Person
from tests.chaos_moments import VARIABLE
from tools.processes import PROJECT
from tools.services import dies_with_us, wait_for

WAIT_SECONDS = 180


def make_due(session: UUID) -> None:
    """Decide what the session waits for, and let the time pass until it is tried again."""
    Person(late=timedelta(seconds=3)).look()
    Session.objects.filter(pk=session, status=Status.QUEUED).update(next_run_at=timezone.now())


class WorkerProcess:
    """One process of `tests.worker_main`; `outcome` is "ready" once it can be told what to drive."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self.env = env
        self._log = (Path(env[VARIABLE]) / f"{name}.err").open("w+")
        self._process = subprocess.Popen(
            [*dies_with_us("KILL"), sys.executable, "-m", "tests.worker_main", name],
            env={**env, "DJANGO_SETTINGS_MODULE": "agentstate.settings"},
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid
        self._outcomes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._outcomes.put(line.strip())

    def begin(self, session: UUID) -> None:
        """Tell it to drive the session."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{session}\n")

    def outcome(self) -> str:
        """What became of the session that it was told first."""
        try:
            return self._outcomes.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            self._log.seek(0)
            raise AssertionError(f"{self.name} does not answer:\n{self._log.read()}") from None

    def drive(self, session: UUID) -> str:
        self.begin(session)
        return self.outcome()

    def drive_until_stopped(self, session: UUID) -> None:
        """Drive a session that stops its worker, deciding what it waits for before it gets there."""
        self.begin(session)

        def stopped() -> bool:
            if not self._outcomes.empty():
                outcome = self.outcome()
                assert outcome != "idle", "the session has ended, and its worker was never stopped"
                make_due(session)
                self.begin(session)
            return self._state() == "T"

        wait_for(stopped, f"{self.name} to be stopped", WAIT_SECONDS)

    def wake(self) -> str:
        """Continue the stopped process; what became of the session that it was driving."""
        self.cont()
        return self.outcome()

    def cont(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def kill(self) -> None:
        """Also where it is stopped."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for stream in (self._process.stdin, self._process.stdout, self._log):
            stream.close()
