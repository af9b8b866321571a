"""A worker dies in a call, and the agent is changed before another worker comes: the call in doubt is not hidden."""

import html
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from haystack.components.agents import Agent

from agentstate import DurableAgent, ToolPolicy
from agentstate.library.outcomes import Waiting
from sessions_app import actions
from sessions_app.models import CallStatus, RegisteredAgent, Session, ToolCall
from tests import builders, driving, sample_agents
from tests.driving import KEY, Desk
from tests.dying import Died
from tests.pages import text_at


def dies() -> str:
    raise Died


def paying(words: str, tool: Callable[[], str] = lambda: "paid") -> Callable[[], Agent]:
    return lambda: sample_agents.one_tool(tool).clone(system_prompt=words)


def left_by_a_dead_worker(desk: Desk, **options: object) -> Session:
    desk.agent(paying("Be kind.", dies), **options)
    session = desk.start()
    with pytest.raises(Died):
        desk.drive(session)
    Session.objects.filter(pk=session.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    return session


def text_of(client: Client, address: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text_at(client, address))).split())


@pytest.mark.slow
@pytest.mark.django_db
def test_the_call_waits_for_its_outcome_and_then_the_session_continues_with_the_agent_as_it_is_now(
    desk: Desk, client: Client
) -> None:
    session = left_by_a_dead_worker(desk)
    desk.agent(paying("Be brief."))
    assert desk.drive(session) == "waiting"
    session = desk.fresh(session)
    assert session.waiting_for == "doubt"
    assert session.why == (
        "it was started and did not report back. It may or may not have taken effect. The agent has changed since."
    )
    [call] = desk.doubts(session)
    client.force_login(builders.user("operator", "anna"))
    for address in ("/inbox/", f"/sessions/{session.pk}/"):
        page = text_of(client, address)
        assert "It took effect… It did not: run again… Skip…" in page
        assert "See what changed" in page
    assert "it is in doubt." in page
    actions.decide(
        actor=builders.SYSTEM,
        session_id=session.pk,
        call_id=call.pk,
        reason="It is on the account",
        result="paid",
        definition=RegisteredAgent.objects.get().definition,
    )
    session = desk.run(session)
    assert (session.phase, session.final_answer) == ("done", "Over.")
    [call] = desk.calls(session)
    assert (call.status, call.result, call.decided_by) == (CallStatus.DONE, "paid", "tests")


@pytest.mark.slow
@pytest.mark.django_db
def test_an_idempotent_call_is_not_in_doubt_and_the_session_waits_for_the_change_alone(desk: Desk) -> None:
    idempotent = {"it": ToolPolicy(idempotent=True)}
    session = left_by_a_dead_worker(desk, policies=idempotent)
    desk.agent(paying("Be brief."), policies=idempotent)
    assert desk.drive(session) == "waiting"
    assert desk.fresh(session).waiting_for == "changed"
    assert not ToolCall.objects.filter(status=CallStatus.DOUBT).exists()
    desk.resume(session)
    assert desk.run(session).phase == "done"


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("how", ["its factory fails", "no worker has it"])
def test_an_agent_that_cannot_be_built_does_not_hide_the_call_either(desk: Desk, how: str) -> None:
    session = left_by_a_dead_worker(desk)
    if how == "no worker has it":
        driving.unregister(KEY)
    else:
        desk.agent(dies_when_built)
    assert desk.drive(session) == "waiting"
    session = desk.fresh(session)
    assert session.waiting_for == "doubt"
    assert session.why.startswith("it was started and did not report back.")
    assert KEY in session.why
    assert len(desk.doubts(session)) == 1


def dies_when_built() -> Agent:
    raise RuntimeError("no key for the model")


@pytest.mark.django_db
def test_of_a_tool_that_nobody_knows_the_run_of_the_agent_that_can_be_built_again_decides(desk: Desk) -> None:
    session = left_by_a_dead_worker(desk)
    driving.unregister(KEY)
    RegisteredAgent.objects.update(tools=[])
    assert desk.drive(session) == "waiting"
    assert desk.fresh(session).waiting_for == "changed"
    desk.agent(paying("Be kind."))
    desk.resume(session)
    assert desk.drive(session) == "waiting"
    assert desk.fresh(session).waiting_for == "doubt"


def test_a_script_decides_the_call_before_it_resumes_with_the_agent_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(Died):
        DurableAgent(paying("Be kind.", dies)(), path).run("hi")
    durable = DurableAgent(paying("Be brief.")(), path)
    outcome = durable.run("hi")
    assert isinstance(outcome, Waiting)
    assert outcome.waiting_for == "doubt"
    assert [call.waits_for for call in outcome.pending] == ["doubt"]
    durable.decide(outcome.pending[0].call_id, result="paid")
    outcome = durable.resume()
    assert isinstance(outcome, Waiting)
    assert outcome.waiting_for == "changed"
    assert durable.resume().text == "Over."
