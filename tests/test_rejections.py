"""Why a person rejected a call stands on the timeline once: at the call."""

import re

import pytest
from django.test import Client

from agentstate import ToolPolicy
from sessions_app import actions
from sessions_app.models import Approval
from tests import builders, sample_agents
from tests.driving import Desk

pytestmark = pytest.mark.django_db


@pytest.mark.slow
def test_a_reason_is_said_at_the_call_and_neither_as_its_error_nor_by_the_event(
    desk: Desk, client: Client
) -> None:
    desk.agent(lambda: sample_agents.one_tool(lambda: "paid"), policies={"it": ToolPolicy(approval=True)})
    session = desk.run(desk.start())
    approval = Approval.objects.get()
    actor = builders.actor("operator")
    actions.reject(actor=actor, session_id=session.pk, call_id=approval.call_id, message="It is paid already")
    desk.run(session)
    client.force_login(builders.user("viewer"))
    page = client.get(f"/sessions/{session.pk}/").content.decode()
    timeline = page[page.index('id="timeline"') : page.index("<aside")]
    assert timeline.count("It is paid already") == 1
    [note] = re.findall(r'<span class="note">\s*rejected by.*?</span>', timeline, re.DOTALL)
    assert "It is paid already" in note
    [event] = re.findall(r'<li\s+class="mark rejected".*?</li>', timeline, re.DOTALL)
    assert "rejected" in event
    assert "It is paid already" in client.get(f"/sessions/{session.pk}/audit/").content.decode()
