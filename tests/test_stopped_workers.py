"""A worker that is stopped, as SIGSTOP or a frozen virtual machine stops it, and continues too late, writes nothing.

By then another worker has run the session to its end, and the desk has answered all the while. `make test` stops a
worker once at each kind of moment; the tests marked `long` stop it at every moment of three agents.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from sessions_app import actions, locks
from sessions_app.models import (
    Approval,
    Branch,
    Checkpoint,
    Event,
    InboxMessage,
    Message,
    ModelCall,
    Session,
    StateValue,
    Status,
    ToolCall,
)
from tests import builders
from tests.chaos import PERSON, Person, chaos_environment, start
from tests.chaos_checks import Plain, check, plainly, stored_result
from tests.chaos_moments import VARIABLE, moments
from tests.databases import NewDatabases, connected
from tests.worker_processes import WAIT_SECONDS, WorkerProcess, make_due
from tools.services import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

AGENTS = ("desk", "long", "quick")
ON_A_BRANCH: tuple[Any, ...] = (Message, ModelCall, ToolCall, Checkpoint, StateValue)
OF_A_SESSION: tuple[Any, ...] = (Branch, Event, Approval, InboxMessage)
on_postgres = pytest.mark.parametrize("setting", ["postgres"], indirect=True)
on_sqlite = pytest.mark.parametrize("setting", ["sqlite"], indirect=True)
Line = dict[str, Any]


class Setting:
    """Two worker processes on a database that this process works on, too, and a person at the desk."""

    def __init__(self, url: str, folder: Path) -> None:
        # Leases end when a test says so.
        self.env = chaos_environment(
            url,
            folder,
            AGENTSTATE_LEASE_SECONDS="3600",
            AGENTSTATE_TEST_PACE="0.02",
            AGENTSTATE_TEST_CLAIM_WAIT="0.3",
        )
        self.first, self.second = self.worker("first"), self.worker("second")
        self.plain: dict[str, Plain] = {}
        self._undisturbed: dict[str, list[Line]] = {}

    def worker(self, name: str, **env: str) -> WorkerProcess:
        return WorkerProcess(name, {**self.env, **env})

    def wait_until_ready(self) -> None:
        assert [worker.outcome() for worker in (self.first, self.second)] == ["ready", "ready"]
        self.plain = {agent: plainly(agent) for agent in AGENTS}
        self.desk = Client()
        self.desk.force_login(builders.user("supervisor"))

    def page(self, session: UUID) -> str:
        """The session's page, which must be there whatever its worker does."""
        answer = self.desk.get(f"/sessions/{session}/")
        assert answer.status_code == 200
        return answer.content.decode()

    def finish(self, session: UUID) -> None:
        """Let the second worker drive the session to its end."""

        def ended() -> bool:
            make_due(session)
            assert self.second.drive(session) != "lost"
            return Session.objects.filter(pk=session, status=Status.IDLE).exists()

        wait_for(ended, "the session to end", WAIT_SECONDS)

    def undisturbed(self, agent: str) -> list[Line]:
        """The moments of a session that nobody disturbs."""
        if agent not in self._undisturbed:
            session = start(agent, "undisturbed")
            self.finish(session)
            check(session, self.plain[agent])
            self._undisturbed[agent] = moments(session)
        return self._undisturbed[agent]

    def one_of_each_kind(self, *, inside: bool) -> Iterator[tuple[str, int]]:
        """An agent and the number of a moment of it, for each kind of moment."""
        seen: set[tuple[str, str]] = set()
        for agent in AGENTS:
            kinds: dict[tuple[str, str], list[int]] = {}
            for line in self.undisturbed(agent):
                if (line["what"] == "inside") is inside:
                    tools = line["what"] in ("enter", "effect")
                    kinds.setdefault((line["what"], "" if tools else line["name"]), []).append(line["n"])
            for kind, numbers in kinds.items():
                if kind not in seen:
                    seen.add(kind)
                    yield agent, numbers[len(numbers) // 2]


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def setting(
    request: pytest.FixtureRequest,
    new_database: NewDatabases,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_blocker: Any,
) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("stopped")
    url = new_database(request.param)
    with pytest.MonkeyPatch.context() as patch, django_db_blocker.unblock(), connected(url):
        patch.setenv(VARIABLE, str(folder))
        made = Setting(url, folder)
        try:
            made.wait_until_ready()
            yield made
        finally:
            made.first.kill()
            made.second.kill()


@pytest.fixture
def short_lease(setting: Setting) -> Iterator[WorkerProcess]:
    """A worker whose leases end by themselves, soon."""
    worker = setting.worker("third", AGENTSTATE_LEASE_SECONDS="1", AGENTSTATE_HEARTBEAT_SECONDS="0.3")
    try:
        assert worker.outcome() == "ready"
        yield worker
    finally:
        worker.kill()


@pytest.fixture(autouse=True)
def _short_waits(setting: Setting, django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.2)
    with django_db_blocker.unblock():
        yield
    # A test that fails may leave it stopped, to the next one's confusion.
    setting.first.cont()


def rows(session: UUID) -> dict[str, list[dict[str, Any]]]:
    """All that is stored of the session."""
    queries = {model.__name__: model.objects.filter(branch__session=session) for model in ON_A_BRANCH}
    queries |= {model.__name__: model.objects.filter(session=session) for model in OF_A_SESSION}
    queries["Session"] = Session.objects.filter(pk=session)
    return {name: list(query.order_by("pk").values()) for name, query in queries.items()}


def end_lease(session: UUID) -> None:
    """As if the session's worker had missed all its heartbeats."""
    running = Session.objects.filter(pk=session, status=Status.RUNNING)
    running.update(lease_expires_at=timezone.now() - timedelta(seconds=1))


def stop_between_writes(setting: Setting, stops: Iterable[tuple[str, int]]) -> int:
    """Stop the first worker at each of these moments past its lease; returns how many had a session to lose."""
    lost = 0
    for agent, number in stops:
        session = start(agent, f"stop at {number}")
        setting.first.drive_until_stopped(session)
        held = Session.objects.filter(pk=session, status=Status.RUNNING).exists()
        end_lease(session)
        assert ("Its worker is lost." in setting.page(session)) is held
        # Another worker gets as far as it can without a person: to the end, or to a call in doubt.
        taken_over = setting.second.drive(session) != "busy"
        assert taken_over or not held
        setting.page(session)

        before, known = rows(session), len(moments(session))
        outcome = setting.first.wake()

        assert rows(session) == before, f"{agent} {number}"
        assert held is (outcome == "lost")
        late = [line["n"] for line in moments(session)[known:]]
        setting.finish(session)
        check(session, setting.plain[agent], too_late=late)
        lost += held
    return lost


def stop_inside_writes(setting: Setting, worker: WorkerProcess, stops: Iterable[tuple[str, int]]) -> None:
    """PostgreSQL: stop the worker in each of these transactions until its lease and the transaction have ended."""
    for agent, number in stops:
        session = start(agent, f"stop inside {number}")
        worker.drive_until_stopped(session)
        setting.page(session)

        def taken_over(session: UUID = session) -> bool:
            return setting.second.drive(session) != "busy"

        wait_for(taken_over, "the session to be taken over", WAIT_SECONDS)
        setting.page(session)

        before, known = rows(session), len(moments(session))
        outcome = worker.wake()

        assert rows(session) == before, f"{agent} {number}"
        assert outcome == "lost"
        late = [line["n"] for line in moments(session)[known:]]
        setting.finish(session)
        check(session, setting.plain[agent], too_late=late)


def stop_inside_writes_for_a_while(setting: Setting, stops: Iterable[tuple[str, int]]) -> None:
    """Stop the first worker in each of these transactions; the desk says so, and the run continues undisturbed."""
    for agent, number in stops:
        other = start(agent, "beside it")
        session = start(agent, f"stop inside {number}")
        setting.first.drive_until_stopped(session)
        before = rows(session)

        assert "Running" in setting.page(session)
        reason = "She has called back"
        answer = setting.desk.post(f"/sessions/{session}/pause/", {"version": 0, "reason": reason})
        text = answer.content.decode()
        assert answer.status_code == 503
        if connection.vendor == "sqlite":
            assert "The database is locked by another process, which has not finished writing." in text
            # There is one writer: nobody can take over until the process continues or is killed.
            assert setting.second.drive(other) == "busy"
        else:
            assert "The session is locked by its worker first, which has not finished writing." in text
            assert setting.second.drive(other) in ("waiting", "queued", "idle")
        assert "Nothing has changed; try again in 12 s." in text
        assert reason in text
        assert rows(session) == before

        assert setting.first.wake() != "lost"
        setting.finish(session)
        check(session, setting.plain[agent])
        setting.finish(other)


def test_of_two_workers_told_to_run_one_session_one_does(setting: Setting) -> None:
    for number in range(3):
        session = start("desk", f"race {number}")
        for expected in ("waiting", "idle"):
            before = len(moments(session))
            both = (setting.first, setting.second)
            for worker in both:
                worker.begin(session)
            outcomes = {worker.outcome(): worker for worker in both}
            assert outcomes.keys() == {"busy", expected}
            assert {line["pid"] for line in moments(session)[before:]} == {outcomes[expected].pid}
            Person().look()
        assert Session.objects.get(pk=session).epoch == 2
        assert not Event.objects.filter(session=session, kind="lost").exists()
        check(session, setting.plain["desk"])


def test_a_worker_stopped_between_two_writes_writes_nothing_when_another_has_taken_over(
    setting: Setting,
) -> None:
    assert stop_between_writes(setting, setting.one_of_each_kind(inside=False)) >= 9


def test_a_worker_stopped_inside_a_write_holds_up_nothing_but_what_it_writes(setting: Setting) -> None:
    stop_inside_writes_for_a_while(setting, setting.one_of_each_kind(inside=True))


@on_postgres
def test_a_session_is_taken_over_from_a_worker_stopped_inside_a_write(
    setting: Setting, short_lease: WorkerProcess
) -> None:
    stop_inside_writes(setting, short_lease, setting.one_of_each_kind(inside=True))


@on_sqlite
def test_a_session_is_taken_over_once_the_process_stopped_inside_a_write_is_killed(
    setting: Setting, short_lease: WorkerProcess
) -> None:
    number = next(line["n"] for line in setting.undisturbed("desk") if line["what"] == "inside")
    session = start("desk", f"stop inside {number}")
    short_lease.drive_until_stopped(session)
    wait_for(
        lambda: Session.objects.lost(timezone.now()).filter(pk=session).exists(),
        "the lease to end",
        WAIT_SECONDS,
    )
    assert "Its worker is lost." in setting.page(session)
    assert setting.second.drive(session) == "busy"
    short_lease.kill()
    setting.finish(session)
    check(session, setting.plain["desk"])
    assert Event.objects.filter(session=session, kind="lost").count() == 1


def test_a_rewind_fences_the_worker_that_runs_the_session(setting: Setting) -> None:
    lines = setting.undisturbed("desk")
    number = next(line["n"] for line in lines if (line["what"], line["name"]) == ("enter", "pay"))
    session = start("desk", f"stop at {number}")
    setting.first.drive_until_stopped(session)
    left = Session.objects.get(pk=session)

    checkpoint = Checkpoint.objects.filter(branch=left.branch).order_by("position")[0]
    actions.rewind(
        actor=PERSON, session_id=session, checkpoint_id=checkpoint.pk, reason="start anew", run=True
    )
    before = rows(session)
    assert setting.first.wake() == "lost"
    assert rows(session) == before

    setting.finish(session)
    now = Session.objects.get(pk=session)
    assert now.epoch > left.epoch + 1
    assert now.branch_id != left.branch_id
    assert stored_result(now) == setting.plain["desk"].result


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("agent", AGENTS)
def test_stopped_between_any_two_writes(setting: Setting, agent: str) -> None:
    numbers = [line["n"] for line in setting.undisturbed(agent) if line["what"] != "inside"]
    assert stop_between_writes(setting, [(agent, number) for number in numbers]) >= len(numbers) - 5


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("agent", AGENTS)
@on_postgres
def test_stopped_inside_any_write_until_another_takes_over(
    setting: Setting, short_lease: WorkerProcess, agent: str
) -> None:
    numbers = [line["n"] for line in setting.undisturbed(agent) if line["what"] == "inside"]
    stop_inside_writes(setting, short_lease, [(agent, number) for number in numbers])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("agent", AGENTS)
def test_stopped_inside_any_write_for_a_while(setting: Setting, agent: str) -> None:
    numbers = [line["n"] for line in setting.undisturbed(agent) if line["what"] == "inside"]
    stop_inside_writes_for_a_while(setting, [(agent, number) for number in numbers])
