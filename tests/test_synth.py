"""`manage.py agent synth`: sessions that look real and work, in every state; the same ones for the same seed."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from sessions_app import actions
from sessions_app.management import synth
from sessions_app.models import (
    Checkpoint,
    Event,
    Message,
    ModelCall,
    Phase,
    RegisteredAgent,
    Session,
    Status,
    ToolCall,
    WaitingFor,
)
from sessions_app.runtime.agents import publish_agents
from sessions_app.runtime.worker import drive
from tests import builders
from tests.builders import SYSTEM

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PARTS = (
    *(
        "",
        "conversation/",
        "state/",
        "checkpoints/",
        "audit/",
        "json/",
        "live/",
        "rewind/",
        "fork/",
        "memory/",
    ),
    *("?show=errors", "?show=tools", "?phase=planning", "?tool=look_up_policy"),
)


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings) -> None:
    monkeypatch.setenv("AGENTSTATE_DEMO_DIR", str(tmp_path))
    monkeypatch.setenv("AGENTSTATE_DEMO_DELAY", "0")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    settings.AGENTSTATE_AGENTS = ["agentstate.demo.agents"]
    publish_agents()


def write(sessions: int = 30, steps: int = 0, seed: int = 1) -> synth.Written:
    return synth.write(sessions=sessions, steps=steps, seed=seed, now=timezone.now())


def states() -> Iterator[Session]:
    """A session in each state."""
    for status, waiting_for, phase in sorted(
        set(Session.objects.values_list("status", "waiting_for", "phase"))
    ):
        sessions = Session.objects.filter(status=status, waiting_for=waiting_for, phase=phase)
        yield sessions.select_related("branch").order_by("pk")[0]


@pytest.mark.slow  # over a hundred pages
def test_sessions_in_every_state_are_made_and_every_page_of_them_works(client: Client):
    builders.agent()
    write(steps=200)
    client.force_login(builders.user("supervisor"))

    present = list(states())
    assert {(s.status, s.waiting_for) for s in present} == {
        (Status.IDLE, ""),
        (Status.QUEUED, ""),
        (Status.RUNNING, ""),
        (Status.PAUSED, ""),
        (Status.CANCELLED, ""),
        (Status.WAITING, WaitingFor.APPROVAL),
        (Status.WAITING, WaitingFor.DOUBT),
    }
    assert {s.phase for s in present} >= {Phase.DONE, Phase.ERROR, Phase.EXECUTING, Phase.REFLECTING}
    for session in [*present, Session.objects.latest("position")]:
        for part in PARTS:
            assert client.get(f"/sessions/{session.pk}/{part}").status_code == 200, (session.status, part)
    for address in ("/inbox/", "/?queue=all", "/?queue=waiting", "/agents/", "/workers/"):
        assert client.get(address).status_code == 200


def test_each_position_of_a_session_is_given_out_once_and_none_is_left_out():
    write(steps=100)
    for session in [*states(), Session.objects.latest("position")]:
        given = Counter(Event.objects.filter(session=session).values_list("position", flat=True))
        for model in (Message, ModelCall, ToolCall, Checkpoint):
            given.update(
                model._default_manager.filter(branch=session.branch).values_list("position", flat=True)
            )
        assert given == Counter(range(1, session.position + 1))


@pytest.mark.slow  # runs the demo agents
def test_what_rests_can_be_carried_on_by_the_demo_agents(demo):
    write(sessions=80, steps=200)

    paused = list(Session.objects.filter(status=Status.PAUSED))
    asked = list(Session.objects.filter(waiting_for=WaitingFor.APPROVAL))
    assert paused
    assert asked
    for session in paused:
        actions.resume(actor=SYSTEM, session_id=session.pk, reason="go on")
    for session in asked:
        call = ToolCall.objects.get(branch=session.branch, tool="issue_refund")
        actions.approve(
            actor=SYSTEM, session_id=session.pk, call_id=call.pk, effects_seen=True, reason="it is due"
        )
    for session in [*paused, *asked, *Session.objects.filter(status=Status.QUEUED)]:
        drive(session.pk, worker="w1", slice_seconds=60)
        session.refresh_from_db()
        assert (session.status, session.phase, session.error) == (Status.IDLE, Phase.DONE, ""), session.title


def test_the_same_seed_makes_the_same_sessions():
    def told() -> list[tuple[object, ...]]:
        fields = ("id", "agent", "title", "customer", "status", "position", "updated_at")
        return list(Session.objects.order_by("pk").values_list(*fields))

    synth.write(sessions=12, steps=0, seed=7, now=NOW)
    first = told()
    Session.objects.update(branch=None)
    Session.objects.all().delete()
    synth.write(sessions=12, steps=0, seed=7, now=NOW)
    assert told() == first
    assert len({title for _, _, title, *_ in first}) > 6


@pytest.mark.slow
def test_the_longest_session_has_as_many_steps_as_asked_for_and_a_tenth_of_them_has_the_next():
    write(sessions=3, steps=1_000)
    steps = sorted(
        Checkpoint.objects.filter(branch=session.branch).latest("position").step
        for session in Session.objects.select_related("branch")
    )
    assert steps[1:] == [99, 999]  # both are paused before their last step


def test_the_command_tells_what_it_wrote_and_refuses_a_database_with_sessions_unless_told():
    RegisteredAgent.objects.create(key="claims", title="Claims desk")
    out = StringIO()
    call_command("agent", "synth", "--sessions", "9", "--steps", "0", stdout=out)
    assert out.getvalue().startswith("Wrote 9 sessions in ")
    assert Session.objects.count() == 9
    with pytest.raises(CommandError, match="The database already contains sessions"):
        call_command("agent", "synth", "--sessions", "9")
    call_command("agent", "synth", "--sessions", "9", "--steps", "0", "--seed", "2", "--add", stdout=out)
    assert Session.objects.count() == 18


def test_rows_that_are_written_later_get_keys_of_their_own():
    write(sessions=9)
    builders.waiting_for_approval()
    assert Session.objects.count() == 10


@pytest.mark.parametrize(
    "sizes",
    [
        {"sessions": 0},
        {"sessions": -1},
        {"sessions": 100_000_001},
        {"sessions": 99_999_999_999_999_999_999},
        {"steps": -1},
        {"steps": 99},
        {"steps": 1_000_001},
    ],
    ids=str,
)
def test_a_number_of_sessions_or_steps_that_makes_none_or_has_no_end_is_wrong_usage(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delattr(synth, "write")
    why = "Give --sessions a number from 1 to 100,000,000, and --steps one from 100 to 1,000,000, or 0."
    with pytest.raises(CommandError) as refused:
        call_command("agent", "synth", add=True, **sizes)
    assert (str(refused.value), refused.value.returncode) == (why, 2)
    assert not Session.objects.exists()


def test_the_most_sessions_and_steps_that_the_command_takes_are_written(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, int]] = []

    def written(*, sessions: int, steps: int, **others: object) -> synth.Written:
        asked.append((sessions, steps))
        return synth.Written(sessions, 0)

    monkeypatch.setattr(synth, "write", written)
    call_command("agent", "synth", sessions=100_000_000, steps=1_000_000, stdout=StringIO())
    assert asked == [(100_000_000, 1_000_000)]
