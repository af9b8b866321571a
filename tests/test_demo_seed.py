"""The demo desk has sessions in every condition, each come about by itself."""

import os
from collections import Counter
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from agentstate.demo import ledger, tools
from agentstate.demo import seed as seeding
from agentstate.demo.seed import seed
from sessions_app import actions
from sessions_app.access.errors import Refused
from sessions_app.access.roles import Actor
from sessions_app.finding import queues
from sessions_app.models import (
    CallStatus,
    Checkpoint,
    Event,
    Phase,
    RegisteredAgent,
    Session,
    Status,
    ToolCall,
)
from sessions_app.runtime.agents import publish_agents
from sessions_app.runtime.worker import drive
from tests import builders

ACTOR = Actor.system("tests")

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSTATE_DEMO_DIR", str(tmp_path))
    monkeypatch.delenv("AGENTSTATE_DEMO_DELAY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def published(settings) -> None:
    settings.AGENTSTATE_AGENTS = ["agentstate.demo.agents"]
    publish_agents()


def _titled(title: str) -> Session:
    return Session.objects.get(title=title)


def _call(title: str, tool: str) -> ToolCall:
    branch = _titled(title).branch
    assert branch is not None
    return ToolCall.objects.visible_on(branch).filter(tool=tool).latest("position")


@pytest.mark.slow
def test_an_empty_desk_is_filled_with_every_condition_and_each_can_be_carried_on(published, monkeypatch):
    for role in ("operator", "supervisor"):
        builders.user(role, role)

    assert seed() == Session.objects.count() == 16
    assert "AGENTSTATE_DEMO_DELAY" not in os.environ

    conditions = Counter(Session.objects.values_list("status", "waiting_for", "phase"))
    assert conditions == {
        (Status.IDLE, "", Phase.DONE): 6,
        (Status.IDLE, "", Phase.ERROR): 1,
        (Status.QUEUED, "", Phase.PLANNING): 2,
        (Status.RUNNING, "", Phase.PLANNING): 1,
        (Status.WAITING, "approval", Phase.EXECUTING): 2,
        (Status.WAITING, "doubt", Phase.EXECUTING): 1,
        (Status.PAUSED, "", Phase.PLANNING): 1,
        (Status.PAUSED, "", Phase.REFLECTING): 1,
        (Status.CANCELLED, "", Phase.PLANNING): 1,
    }
    stuck = queues.read_page("stuck", now=timezone.now()).sessions
    assert [session.title for session in stuck] == ["A worker that hangs"]
    kinds = set(Event.objects.values_list("kind", flat=True))
    assert kinds >= {"started", "message", "approved", "rejected", "rewound", "forked", "cancelled", "failed"}
    assert not Event.objects.filter(kind__in=["rewound", "forked", "paused", "cancelled"], reason="").exists()
    assert {actor.username for actor in User.objects.filter(assigned_sessions__isnull=False)} == {
        "operator",
        "supervisor",
    }

    # Every refund and every letter is in the ledger of a session's tool call, and no other is.
    did = CallStatus.DONE, CallStatus.DOUBT
    for tool, name, count in (("issue_refund", "refunds", 1), ("send_letter", "letters", 5)):
        keys = ToolCall.objects.filter(tool=tool, status__in=did).values_list("idempotency_key", flat=True)
        assert sorted(keys) == sorted(entry["key"] for entry in ledger.entries(name))
        assert len(keys) == count

    rewound = _titled("Burst pipe in the kitchen")
    assert rewound.branch is not None
    assert rewound.branch.number == 2
    assert rewound.branch.reason == "The letter names the wrong claim; ask the customer first"
    assert rewound.branch.undo_to is not None
    assert Checkpoint.objects.filter(
        branch=rewound.branch.undo_to, position__gt=rewound.branch.left_at
    ).exists()
    forked = _titled("What if she means the windscreen")
    assert forked.forked_from is not None
    assert forked.forked_from.branch.session == _titled("Policy, deductible and claim")

    # None of them is a dead end.
    monkeypatch.setenv("AGENTSTATE_DEMO_DELAY", "0")
    research = _titled("Storm damage of the year")
    assert drive(research.pk, worker="w") == "idle"
    research.refresh_from_db()
    assert research.final_answer.startswith("I have read 14 of 14 sources.")

    doubt = _call("Letter to a farmhouse", "send_letter")
    session = _titled("Letter to a farmhouse")
    actions.decide(actor=ACTOR, session_id=session.pk, call_id=doubt.pk, again=True, reason="One more try")
    assert drive(session.pk, worker="w") == "idle"
    assert [entry["key"] for entry in ledger.entries("letters")].count(doubt.idempotency_key) == 2

    asked = _call("Refund after a rear-end collision", "issue_refund")
    session = _titled("Refund after a rear-end collision")
    edited = {**asked.arguments, "amount": 450.0}
    actions.approve(actor=ACTOR, session_id=session.pk, call_id=asked.pk, edited=edited)
    assert drive(session.pk, worker="w") == "idle"
    session.refresh_from_db()
    assert session.final_answer.startswith("$450.00 has been refunded on claim CLM-1042 (RF-0002).")
    assert ledger.entries("refunds")[-1]["amount"] == "450.00"

    paused = _titled("Hail on the bonnet")
    actions.resume(actor=ACTOR, session_id=paused.pk, reason="The report is there")
    assert drive(paused.pk, worker="w") == "waiting"

    failed = _titled("Question on an archived claim")
    actions.resume(actor=ACTOR, session_id=failed.pk, reason="Perhaps it works now")
    assert drive(failed.pk, worker="w") == "idle"
    failed.refresh_from_db()
    assert failed.phase == Phase.ERROR
    assert "HTTP 400: the ledger ARC-0413 is longer than this model can read." in failed.error

    busy = _titled("Surgery for a beagle")
    for expected in ("queued", "idle"):
        Session.objects.filter(pk=busy.pk).update(next_run_at=busy.created_at)
        assert drive(busy.pk, worker="w") == expected

    assert seed() == 0


def test_a_desk_in_use_is_left_alone(published):
    builders.History()
    assert seed() == 0
    assert Session.objects.count() == 1


def test_a_desk_with_agents_of_its_own_gets_no_demo_sessions(settings):
    settings.AGENTSTATE_AGENTS = ["tests.sample_registry"]
    builders.agent("claims")
    assert seed() == 0
    assert not Session.objects.exists()


def test_a_real_model_is_not_paid_for_a_demo(published, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-this-test")
    assert seed() == 0
    assert not Session.objects.exists()


def test_without_demo_users_the_demo_itself_is_the_actor(published, monkeypatch):
    monkeypatch.setattr(seeding, "SCENES", [seeding.cancellation])
    assert seed() == 1
    assert set(Event.objects.values_list("actor_name", flat=True)) == {"demo"}


def test_a_scene_that_another_worker_upset_does_not_stop_the_others(published, monkeypatch, caplog):
    def upset() -> None:
        raise Refused("It is done already.")

    monkeypatch.setattr(seeding, "SCENES", [upset, seeding.question, upset])
    assert seed() == 1
    assert Session.objects.get().phase == Phase.DONE
    assert caplog.text.count("The demo's upset did not go as planned: It is done already.") == 2


@pytest.mark.slow
def test_the_delay_of_the_environment_is_back_afterwards(published, monkeypatch):
    monkeypatch.setattr(seeding, "SCENES", [seeding.question])
    monkeypatch.setenv("AGENTSTATE_DEMO_DELAY", "7")
    waited: list[float] = []
    monkeypatch.setattr("agentstate.demo.tools.time.sleep", waited.append)
    assert seed() == 1
    assert set(waited) == {0.0}
    assert os.environ["AGENTSTATE_DEMO_DELAY"] == "7"
    tools.delay()
    assert waited[-1] == 7.0


def test_what_the_desk_is_told_of_the_agents_has_their_tools(published):
    claims = RegisteredAgent.objects.get(key="claims")
    assert claims.problem == ""
    assert {tool["name"] for tool in claims.tools} >= {"issue_refund", "send_letter", "make_plan"}
