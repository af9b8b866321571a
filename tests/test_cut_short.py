"""A turn that ended though the agent had not finished is told from one that has, wherever the session is shown."""

import re

import pytest
from django.test import Client

from agentstate import ToolPolicy
from sessions_app.models import Session
from tests import builders, sample_agents
from tests.driving import desk

FAST = {"fast": ToolPolicy(idempotent=True)}


def text_of(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_an_agent_that_has_used_all_its_steps_is_not_shown_as_done_and_goes_on_by_a_message(
    operator: Client,
) -> None:
    with desk() as staff:
        staff.agent(lambda: sample_agents.long_run(6, max_agent_steps=2), policies=FAST)
        session = staff.run(staff.start("hi"))
        assert (session.status, session.phase, session.exit_reason) == ("idle", "done", "max_agent_steps")
        page = text_of(operator, f"/sessions/{session.pk}/")
        assert "Out of steps. The agent used all the steps that it may take in one turn" in page
        assert "End of the turn (out of steps: max_agent_steps)" in page
        assert "Out of steps" in text_of(operator, "/?queue=done")
        staff.say(session, "Go on.")
        session = staff.run(session)
    assert session.totals["steps"] == 4


@pytest.mark.django_db
@pytest.mark.parametrize(
    "reason, label", [("length", "Answer cut off"), ("content_filter", "Answer withheld")]
)
def test_an_answer_that_the_model_did_not_finish_is_marked(operator: Client, reason: str, label: str) -> None:
    session = builders.done()
    Session.objects.update(exit_reason=reason)
    assert f"{label}. " in text_of(operator, f"/sessions/{session.pk}/")
    assert label in text_of(operator, "/?queue=all")


@pytest.mark.django_db
@pytest.mark.parametrize("reason", ["text", "lookup_policy"])
def test_a_turn_that_ended_by_an_answer_or_by_the_tool_that_ends_it_is_done(
    operator: Client, reason: str
) -> None:
    builders.done()
    Session.objects.update(exit_reason=reason)
    assert re.search(r"\bDone\b", text_of(operator, "/?queue=all"))
