"""Workers run agents that are async only, or registered so, by `run_async`, on one event loop per process."""

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import close_old_connections, connection
from django.test import Client
from django.utils import timezone
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ToolCall
from haystack.hooks import hook
from haystack.tools import Tool

from agentstate import ToolPolicy
from agentstate.durable.registry import AgentBuildFailed
from sessions_app import actions
from sessions_app.models import CallStatus, Phase, RegisteredAgent, Session, Status, WaitingFor
from tests import builders, driving, sample_agents
from tests.builders import SYSTEM
from tests.chaos import chaos_environment
from tests.chaos_moments import VARIABLE
from tests.databases import NewDatabases, connected
from tests.driving import KEY, Desk
from tests.sample_agents import effects, scripted
from tests.test_async_run import SECONDS, waiting
from tests.worker_processes import WorkerProcess


@pytest.mark.slow
def test_a_worker_runs_an_agent_that_is_async_only_in_slices(desk: Desk) -> None:
    desk.agent(sample_agents.awaited)
    session = desk.start()
    slices = 1
    while desk.drive(session, slice_seconds=0) == "queued":
        slices += 1
    session = desk.fresh(session)
    assert (session.status, session.final_answer) == (Status.IDLE, "Signed.")
    assert slices > 2
    assert Counter(effects)["later(same)"] == 2
    assert Counter(effects)["both(c), awaited"] == 1
    assert [role for role, _ in desk.texts(session)][:3] == ["user", "user", "assistant"]


@pytest.mark.parametrize("run_async, way", [(None, "in a thread"), (True, "awaited")])
def test_an_agent_is_run_in_the_way_that_it_is_registered_for(
    desk: Desk, run_async: bool | None, way: str
) -> None:
    desk.agent(
        lambda: Agent(
            chat_generator=scripted([ToolCall("both", {"q": "a"}, id="b1")], "Over."),
            tools=[sample_agents.both()],
        ),
        run_async=run_async,
    )
    assert desk.run(desk.start()).final_answer == "Over."
    assert f"both(a), {way}" in effects


def test_an_agent_that_cannot_be_run_as_it_is_registered_is_published_with_the_reason(
    desk: Desk, client: Client
) -> None:
    desk.agent(sample_agents.awaited_nested, run_async=False)
    problem = RegisteredAgent.objects.get(key=KEY).problem
    assert problem == (
        f"The agent '{KEY}' is registered with run_async=False and has parts that are async only: the tool 'later' of "
        "the agent in the tool 'helper', the tool 'later'. Leave run_async out, or give each a synchronous function "
        "too."
    )
    client.force_login(builders.user("operator"))
    assert "run_async=False" in client.get("/agents/").content.decode()
    assert AgentBuildFailed.__name__ not in problem


@pytest.mark.slow
def test_a_call_in_doubt_an_approval_and_a_pause_are_as_in_a_synchronous_run(desk: Desk) -> None:
    async def wait(n: int) -> str:
        await asyncio.Event().wait()
        return ""

    policy = ToolPolicy(approval=True, timeout=0.01, effect="waits")
    desk.agent(lambda: waiting(wait), policies={"wait": policy})
    session = desk.run(desk.start())
    assert (session.status, session.waiting_for) == (Status.WAITING, WaitingFor.APPROVAL)

    actions.approve(actor=SYSTEM, session_id=session.pk, call_id="w0")
    session = desk.run(session)
    assert (session.status, session.waiting_for) == (Status.WAITING, WaitingFor.DOUBT)
    assert [call.call_id for call in desk.doubts(session)] == ["w0"]

    actions.decide(actor=SYSTEM, session_id=session.pk, call_id="w0", reason="looked", result="waited")
    assert desk.run(session).final_answer == "Over."


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_pause_that_is_requested_while_the_event_loop_runs_a_session_is_kept() -> None:
    sessions: list[Session] = []

    async def wait(n: int) -> str:
        effects.append("waiting")
        return "waited"

    @hook
    async def pause(state: State) -> None:
        if state.data["step_count"] == 0:
            await asyncio.to_thread(
                actions.pause, actor=SYSTEM, session_id=sessions[0].pk, reason="wait a moment"
            )

    with driving.desk() as desk:
        desk.agent(lambda: waiting(wait, hooks={"after_tool": [pause]}))
        sessions.append(desk.start())
        assert desk.run(sessions[0]).status == Status.PAUSED
        assert desk.run(desk.resume(sessions[0])).final_answer == "Over."
        assert effects.count("waiting") == 1


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_sessions_of_several_worker_threads_share_one_event_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    everybody = threading.Barrier(2)

    async def wait(n: int) -> str:
        loops.append(asyncio.get_running_loop())
        await asyncio.to_thread(everybody.wait, SECONDS)  # each waits for the other session
        return "met"

    with driving.desk() as desk:
        desk.agent(lambda: waiting(wait))
        sessions = [desk.start() for _ in range(2)]

        def drive(session: Session) -> str:
            try:
                return desk.drive(session)
            finally:
                close_old_connections()
                connection.close()

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(drive, sessions)) == ["idle", "idle"]
        assert len({id(loop) for loop in loops}) == 1
        assert {desk.fresh(session).final_answer for session in sessions} == {"Over."}


@pytest.mark.slow
def test_a_hook_that_would_end_the_process_leaves_the_event_loop_to_other_sessions(desk: Desk) -> None:
    @hook
    async def leave(state: State) -> None:
        sys.exit(3)

    desk.agent(lambda: Agent(chat_generator=scripted("Hello."), hooks={"before_llm": [leave]}))
    assert desk.run(desk.start()).error == "SystemExit: 3"
    desk.agent(sample_agents.awaited_nested)
    assert desk.run(desk.start()).final_answer == "Outer done."


@pytest.mark.slow
def test_a_failed_async_call_that_ended_its_turn_is_tried_again_by_resume(desk: Desk) -> None:
    async def wait(n: int) -> str:
        effects.append("wait")
        if effects.count("wait") == 1:
            raise ConnectionError("the bank is away")
        return "waited"

    desk.agent(
        lambda: waiting(wait, raise_on_tool_invocation_failure=True),
        policies={"wait": ToolPolicy(idempotent=True)},
    )
    session = desk.run(desk.start())
    assert session.phase == Phase.ERROR
    assert "the bank is away" in session.error
    session = desk.run(desk.resume(session))
    assert session.final_answer == "Over."
    assert [call.status for call in desk.calls(session)] == [CallStatus.FAILED, CallStatus.DONE]


# A worker process that is killed


def deadly() -> Agent:
    """Its tool kills its process the first time that it is called."""

    async def wait(n: int) -> str:
        marker = Path(os.environ[VARIABLE]) / "killed"
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "survived"

    made = Tool(
        name="wait",
        description="Waits.",
        parameters={"type": "object", "properties": {"n": {"type": "integer"}}},
        async_function=wait,
    )
    return Agent(chat_generator=scripted([ToolCall("wait", {"n": 0}, id="w0")], "Over."), tools=[made])


@pytest.mark.slow
def test_a_worker_that_is_killed_in_an_async_tool_is_replaced_by_another(
    tmp_path: Path, new_database: NewDatabases, django_db_blocker: Any
) -> None:
    url = new_database("sqlite")
    env = chaos_environment(
        url, tmp_path, AGENTSTATE_AGENTS="tests.async_agents", AGENTSTATE_LEASE_SECONDS="3600"
    )
    with django_db_blocker.unblock(), connected(url):
        first, second = WorkerProcess("first", env), WorkerProcess("second", env)
        try:
            assert [first.outcome(), second.outcome()] == ["ready", "ready"]
            session = actions.start(actor=SYSTEM, agent="deadly", message="hi")
            first.begin(session.pk)
            first._process.wait(60)
            assert first._process.returncode == -signal.SIGKILL
            running = Session.objects.filter(pk=session.pk, status=Status.RUNNING)
            assert running.update(lease_expires_at=timezone.now() - timedelta(seconds=1)) == 1
            assert second.drive(session.pk) == "idle"
            session.refresh_from_db()
            assert session.final_answer == "Over."
            assert session.branch is not None
            [call] = session.branch.toolcalls.all()
            assert (call.result, call.attempt) == ("survived", 2)
        finally:
            first.kill()
            second.kill()
