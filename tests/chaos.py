"""The parts of the chaos tests: workers that die and are replaced, and a person who decides.

The processes under test share a database that is not that of the test suite; `databases.connected` makes it this
process's own for a while, so that a test acts through `sessions_app.actions` and looks at rows as the desk does.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from django.utils import timezone

from sessions_app import actions
from sessions_app.access.errors import Locked, Refused
from sessions_app.access.roles import Actor
from sessions_app.models import Approval, CallStatus, RegisteredAgent, Session, Status, ToolCall, WaitingFor
from tests import chaos_agents
from tests.chaos_moments import VARIABLE, moments
from tools.processes import CELERY, Process, environment
from tools.services import Redis, wait_for

PERSON = Actor.system("a person")
LOOK_SECONDS = 0.2


def chaos_environment(url: str, folder: Path, **ours: str) -> dict[str, str]:
    """Of workers that notice a death soon, and of agents that leave a record in `folder`."""
    quick = {
        "AGENTSTATE_AGENTS": "tests.chaos_moments,tests.chaos_agents",
        "AGENTSTATE_LEASE_SECONDS": "2",
        "AGENTSTATE_HEARTBEAT_SECONDS": "0.5",
        "AGENTSTATE_SWEEP_SECONDS": "1",
        "AGENTSTATE_RETRY_SECONDS": "0.2",
        "LOG_LEVEL": "WARNING",
        VARIABLE: str(folder),
    }
    return environment(DATABASE_URL=url, SECRET_KEY="of the chaos tests", **{**quick, **ours})


def start(agent: str, title: str) -> UUID:
    """Start a session. Its wake-up goes nowhere: this process shares no broker with the workers."""
    inputs = chaos_agents.INPUTS[agent]
    return actions.start(actor=PERSON, agent=agent, message="hi", title=title, state=inputs).pk


def celery(workers: int = 2, concurrency: int = 4) -> list[tuple[str, ...]]:
    """The commands that start so many workers and, at the end, their beat."""
    # Agents are imported before a worker forks, so that a child that replaces a killed one costs little.
    worker = (*CELERY, "worker", "--include", "tests.chaos_agents", "--concurrency", str(concurrency))
    named = [(*worker, "--hostname", f"chaos{number}@localhost") for number in range(workers)]
    return [*named, (*CELERY, "beat")]


class Workers:
    """Processes that run sessions. Whichever of them has died is replaced by `keep`."""

    def __init__(self, commands: Sequence[tuple[str, ...]], env: Mapping[str, str]) -> None:
        self.commands = commands
        self.env = env
        self.processes: list[Process] = []
        # What each process that `keep` has replaced printed, so that a failed test shows why it ended.
        self.replaced: list[str] = []

    def __enter__(self) -> Self:
        self.processes = [Process(command, self.env) for command in self.commands]
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self.processes:
            _kill_group(process)

    def wait_until_ready(self) -> None:
        """Until they have published their agents, and sessions can be started."""

        def published() -> bool:
            ended = [process.output for process in self.processes if process.ended]
            assert not ended, ended
            return RegisteredAgent.objects.count() == len(chaos_agents.INPUTS)

        wait_for(published, "the workers to publish their agents")

    def keep(self) -> None:
        """Start again what has ended."""
        for number, process in enumerate(self.processes):
            if process.ended:
                _kill_group(process)
                end = f"ended with {process.wait()}, printing:\n{process.output[-20_000:]}"
                self.replaced.append(f"{' '.join(process.command)}\n{end}")
                self.processes[number] = Process(self.commands[number], self.env)

    def strike(self, whom: str, dice: random.Random) -> bool:
        """SIGKILL to one of Celery's processes; False if there is none at the moment that has anything to lose.

        :param whom: A "child" that runs a session, a whole "worker", only the "parent" process of one, or "beat".
        """
        *workers, beat = self.processes
        pids = {pid: worker for worker in workers for pid in _children(worker.pid)}
        running = Session.objects.filter(status=Status.RUNNING).values_list("worker", flat=True)
        busy = sorted({int(worker.rpartition(":")[2]) for worker in running} & pids.keys())
        if not busy:
            return False
        pid = dice.choice(busy)
        with suppress(ProcessLookupError):
            if whom == "child":
                os.kill(pid, signal.SIGKILL)
            elif whom == "parent":
                os.kill(pids[pid].pid, signal.SIGKILL)
            else:
                (beat if whom == "beat" else pids[pid]).send(signal.SIGKILL)
        return True


def _children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _kill_group(process: Process) -> None:
    """It and its children, also those that outlived it."""
    with suppress(ProcessLookupError):
        process.send(signal.SIGKILL)
    process.wait()


class BrokerTrouble:
    """The broker is emptied every few seconds; every third time it is restarted instead. `done` counts it."""

    def __init__(self, broker: Redis, every: float) -> None:
        self.broker = broker
        self.every = every
        self.done: Counter[str] = Counter()
        self._next = time.monotonic() + every

    def __call__(self) -> None:
        if time.monotonic() < self._next:
            return
        if sum(self.done.values()) % 3 == 2:
            self.broker.restart()
            self.done["broker restarted"] += 1
        else:
            self.broker.flush()
            self.done["broker flushed"] += 1
        self._next = time.monotonic() + self.every


class Strikes:
    """Processes of the workers are killed with SIGKILL at random times. `done` counts them by kind."""

    def __init__(self, workers: Workers, dice: random.Random, **times: int) -> None:
        self.workers = workers
        self.dice = dice
        self.done: Counter[str] = Counter()
        self.left = dice.sample(list(times), k=sum(times.values()), counts=list(times.values()))
        self._next = 0.0

    def __call__(self) -> None:
        if self.left and time.monotonic() >= self._next and self.workers.strike(self.left[-1], self.dice):
            self.done[f"killed {self.left.pop()}"] += 1
            self._next = time.monotonic() + self.dice.uniform(0.0, 0.8)


@dataclass
class Person:
    """Decides what sessions wait for by what is on record: a call that had its effect is never to run again.

    With dice, a whimsical one, who also pauses sessions and resumes them. `late` is how long after its start a call of
    a worker that lost its session, and lives, may still take effect.
    """

    dice: random.Random | None = None
    late: timedelta = timedelta(seconds=10)
    decided: Counter[str] = field(default_factory=Counter)

    def look(self) -> None:
        """Decide what waits. Where others write for longer than an action waits, it is left for the next look."""
        try:
            self._decide_all()
            if self.dice is not None:
                self._pause_and_resume(self.dice)
        except Locked:
            self.decided["tried again"] += 1

    def _decide_all(self) -> None:
        for session in Session.objects.filter(status=Status.WAITING):
            if session.waiting_for == WaitingFor.APPROVAL:
                for approval in Approval.objects.filter(session=session, decision=""):
                    actions.approve(
                        actor=PERSON, session_id=session.pk, call_id=approval.call_id, effects_seen=True
                    )
                    self.decided["approved"] += 1
            elif session.waiting_for == WaitingFor.DOUBT:
                for call in ToolCall.objects.filter(branch=session.branch, status=CallStatus.DOUBT):
                    self._decide(session, call)
            else:
                assert session.waiting_for == WaitingFor.RETRIES, session.why
                actions.resume(actor=PERSON, session_id=session.pk, reason="try on")
                self.decided["resumed"] += 1

    def _decide(self, session: Session, call: ToolCall) -> None:
        assert call.started_at is not None
        # In this order: what a worker did before it was gone is on record by then.
        is_over = _is_gone(call.worker) or call.started_at < timezone.now() - self.late
        mine = [line for line in moments(session.pk) if line.get("key") == call.idempotency_key]
        effects = [line["result"] for line in mine if line["what"] == "effect"]
        about: dict[str, Any] = {"actor": PERSON, "session_id": session.pk, "call_id": call.pk}
        if effects:
            actions.decide(**about, result=effects[-1], reason="it is on record")
            self.decided["result entered"] += 1
        elif is_over:
            actions.decide(**about, again=True, reason="it had no effect")
            self.decided["run again"] += 1

    def _pause_and_resume(self, dice: random.Random) -> None:
        for session in Session.objects.filter(status=Status.PAUSED):
            actions.resume(actor=PERSON, session_id=session.pk, reason="enough rest")
        busy = list(Session.objects.filter(status__in=(Status.QUEUED, Status.RUNNING)))
        if busy and dice.random() < 0.2:
            with suppress(Refused):
                actions.pause(actor=PERSON, session_id=dice.choice(busy).pk, reason="a whim")
                self.decided["paused"] += 1


def _is_gone(worker: str) -> bool:
    pid = worker.rpartition(":")[2]
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def see_through(
    wanted: Iterable[tuple[str, str]],
    person: Person,
    *meanwhile: Callable[[], object],
    at_once: int = 24,
    seconds: float = 900,
) -> dict[UUID, str]:
    """Start the sessions that are wanted, some at once, and decide what waits, until each has ended.

    :param wanted: The agent and the title of each.
    :returns: The sessions, and the agent of each.
    """
    to_start = list(wanted)[::-1]
    started: dict[UUID, str] = {}
    pending = Session.objects.exclude(status=Status.IDLE)

    def ended() -> bool:
        with suppress(Locked):
            while to_start and pending.count() < at_once:
                agent, title = to_start[-1]
                started[start(agent, title)] = agent
                to_start.pop()
        person.look()
        for callback in meanwhile:
            callback()
        time.sleep(LOOK_SECONDS)
        return not pending.exists()

    try:
        wait_for(ended, "the sessions to end", seconds)
    except TimeoutError as error:
        stuck = [f"{s.title}: {s.status} {s.phase} {s.why} {s.error}" for s in pending]
        raise AssertionError(f"{error} Not ended: {stuck}; not begun: {len(to_start)}") from None
    return started
