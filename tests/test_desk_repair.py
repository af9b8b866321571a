"""Repairs on the desk, approvals that repeat or that hold for a session, and what the diagnosis says."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app.models import Allowance, Approval, Branch, Session, StateValue, ToolCall
from tests import builders

pytestmark = pytest.mark.django_db
MEMORY = {
    "goal": "Pay back",
    "plan": ["find the claim", "pay"],
    "completed": ["find the claim"],
    "notes": ["VIP"],
}


@pytest.fixture
def supervisor(client: Client) -> Client:
    client.force_login(builders.user("supervisor", "sue"))
    return client


def remembering() -> Session:
    """A paused session whose agent keeps a working memory and one more state key."""
    history = builders.looked_up()
    checkpoint = history.last_checkpoint
    for key, value in (("working_memory", MEMORY), ("limit", 500)):
        StateValue.objects.create(branch=history.branch, position=checkpoint.position, key=key, value=value)
        checkpoint.keys[key] = checkpoint.position
    checkpoint.save()
    return history.rest("paused")


def act(client: Client, session: Session, name: str, **fields: Any):
    session.refresh_from_db()
    fields = {"version": session.version, "reason": "It was wrong", **fields}
    return client.post(f"/sessions/{session.pk}/{name}/", fields)


def hints(client: Client, session: Session) -> dict[str, str]:
    text = client.get(f"/sessions/{session.pk}/").content.decode()
    found = re.findall(r'<p class="hint [a-z]+" data-rule="([a-z ]+)">\s*([^<]+)', text)
    return {rule: said.strip() for rule, said in found}


def test_the_working_memory_is_shown(supervisor):
    text = supervisor.get(f"/sessions/{remembering().pk}/").content.decode()
    assert "Pay back" in text
    assert re.search(r'<li class="did">\s*find the claim', text)
    assert re.search(r"<li>\s*pay\s*</li>", text)
    assert "VIP" in text


def test_the_working_memory_is_changed_on_a_branch_of_its_own(supervisor):
    session = remembering()
    text = supervisor.get(f"/sessions/{session.pk}/memory/").content.decode()
    assert "[x] find the claim\npay" in text
    answer = act(
        supervisor, session, "memory", goal="Pay half", plan="[x] find the claim\n[x] pay\nwrite", notes=""
    )
    assert answer.status_code == 302
    session.refresh_from_db()
    assert Branch.objects.filter(session=session).count() == 2
    value = StateValue.objects.get(branch=session.branch, key="working_memory").value
    assert value == {
        "goal": "Pay half",
        "plan": ["find the claim", "pay", "write"],
        "completed": ["find the claim", "pay"],
        "notes": [],
    }


def test_a_state_value_is_changed_with_its_type_checked(supervisor):
    session = remembering()
    text = supervisor.get(f"/sessions/{session.pk}/state-value/?key=limit").content.decode()
    assert re.search(r">\s*500</textarea>", text)
    assert act(supervisor, session, "state-value", key="limit", value='"much"').status_code == 400
    wrong = act(supervisor, session, "state-value", key="limit", value="{")
    assert wrong.status_code == 400
    assert "This is not JSON" in wrong.content.decode()
    assert act(supervisor, session, "state-value", key="limit", value="250").status_code == 302
    session.refresh_from_db()
    assert StateValue.objects.get(branch=session.branch, key="limit").value == 250


def test_a_message_is_replaced_for_the_model(supervisor):
    session = remembering()
    message = builders.branch_of(session).messages.get(role="user")
    text = supervisor.get(f"/sessions/{session.pk}/words/?position={message.position}").content.decode()
    assert "Is my windscreen covered by POL-7?</textarea>" in text
    answer = act(supervisor, session, "words", position=message.position, text="Is POL-8 covered?")
    assert answer.status_code == 302
    message.refresh_from_db()
    assert message.text == "Is my windscreen covered by POL-7?"
    assert "Is POL-8 covered?" in supervisor.get(f"/sessions/{session.pk}/").content.decode()


def test_a_person_answers_for_a_tool(supervisor):
    session = builders.in_doubt()
    call = ToolCall.objects.get(branch=session.branch, tool="issue_refund")
    answer = act(supervisor, session, "answer", call_id=call.pk, answer="result", text="Paid by hand")
    assert answer.status_code == 302
    session.refresh_from_db()
    assert ToolCall.objects.get(branch=session.branch, tool="issue_refund").result == "Paid by hand"


@pytest.mark.parametrize(
    "name, fields",
    [
        ("memory", {"goal": "x", "plan": "", "notes": ""}),
        ("state-value", {"key": "limit", "value": "1"}),
        ("words", {"position": 3, "text": "x"}),
    ],
)
def test_repairs_need_the_permission_a_reason_and_the_present_version(client, name, fields):
    session = remembering()
    client.force_login(builders.user("operator"))
    assert act(client, session, name, **fields).status_code == 403
    assert "Your role does not allow this." in client.get(f"/sessions/{session.pk}/{name}/").content.decode()
    client.force_login(builders.user("supervisor"))
    assert act(client, session, name, **fields, reason="").status_code == 400
    stale = act(client, session, name, **fields, version=session.version + 1)
    assert stale.status_code == 409
    assert "It was wrong" in stale.content.decode()
    assert Branch.objects.filter(session=session).count() == 1


def test_a_tool_is_allowed_for_the_rest_of_the_session(client):
    client.force_login(builders.user("operator", "anna"))
    session = builders.waiting_for_approval()
    approval = Approval.objects.get(session=session)
    fields = {"call_id": approval.call_id, "fingerprint": approval.fingerprint, "for_session": "on"}
    assert act(client, session, "approve", **fields).status_code == 302
    assert [(a.tool, a.granted_by) for a in Allowance.objects.filter(session=session)] == [
        ("issue_refund", "anna")
    ]


def test_a_call_that_ran_on_a_discarded_tail_can_be_answered_with_its_result(client):
    client.force_login(builders.user("operator"))
    history = builders.refunding()
    before = history.finish(history.calls[-1], "refunded 120 EUR")
    history.checkpoint("step")
    history.reply("Again.", [("issue_refund", {"claim": "CLM-1042", "amount": 120})])
    approval = history.ask(history.calls[-1], repeats=before)
    session = history.rest("waiting", waiting_for="approval")
    text = client.get(f"/sessions/{session.pk}/").content.decode()
    assert "This very call has run before" in text
    assert f'formaction="/sessions/{session.pk}/reuse/"' in text
    assert "Run it again" in text
    assert act(client, session, "reuse", call_id=approval.call_id).status_code == 302
    call = ToolCall.objects.get(pk=approval.call_id)
    assert (call.status, call.result) == ("done", "refunded 120 EUR")


def test_a_healthy_session_has_no_hints(supervisor):
    assert hints(supervisor, builders.done()) == {}


def test_the_same_call_three_times_is_told(supervisor):
    history = builders.asked()
    for _ in range(3):
        history.lookup("POL-7")
    assert (
        hints(supervisor, history.rest("paused"))["same call"]
        == "lookup_policy was asked the same thing 3 times."
    )


def test_a_tool_that_keeps_failing_is_told_until_it_works_again(supervisor):
    history = builders.asked()
    for number in range(3):
        history.reply(calls=[("lookup_policy", {"policy": str(number)})])
        history.finish(history.calls[-1], error="No answer")
        history.checkpoint("step")
    assert (
        hints(supervisor, history.rest("paused"))["failing tool"]
        == "The last 3 calls of lookup_policy failed."
    )
    history.lookup("POL-9")
    assert "failing tool" not in hints(supervisor, history.session)


def test_lost_workers_old_approvals_slow_calls_and_forgotten_sessions_are_told(supervisor):
    assert "stale heartbeat" in hints(supervisor, builders.lost())
    old = builders.waiting_for_approval()
    assert "old approval" not in hints(supervisor, old)
    Approval.objects.filter(session=old).update(asked_at=timezone.now() - timedelta(minutes=14))
    assert hints(supervisor, old)["old approval"] == "issue_refund has waited for an approval for 14 min."
    slow = builders.running()
    ToolCall.objects.filter(branch=slow.branch).update(started_at=timezone.now() - timedelta(minutes=20))
    assert "slow call" in hints(supervisor, slow)
    forgotten = builders.queued()
    Session.objects.filter(pk=forgotten.pk).update(next_run_at=timezone.now() - timedelta(minutes=5))
    assert "nobody comes" in hints(supervisor, forgotten)
    assert "many attempts" in hints(supervisor, builders.retries_used_up())


def test_a_changed_definition_and_a_secret_are_told(supervisor):
    history = builders.asked()
    history.reply(calls=[("send_letter", {"text": "My key is sk-" + "a1" * 15})])
    session = history.rest("paused", definition="other")
    assert set(hints(supervisor, session)) == {"changed definition", "secret"}
