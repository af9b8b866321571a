"""Resuming a session with calls in doubt: all of them are decided in the dialog, or nothing happens."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app import actions
from sessions_app.access.errors import Forbidden, Invalid, Moved, Refused
from sessions_app.models import Session, ToolCall, Worker
from tests import builders
from tests.pages import text_at

pytestmark = pytest.mark.django_db


def two_in_doubt(status: str = "waiting") -> tuple[Session, list[ToolCall]]:
    history = builders.looked_up()
    history.reply(calls=[("send_letter", {"text": "A"}), ("issue_refund", {"claim": "C", "amount": 1})])
    for call in history.calls:
        history.doubt(call)
    waiting = {"waiting_for": "doubt", "why": "Nobody knows."} if status == "waiting" else {}
    return history.rest(status, **waiting), history.calls


def decide_all(session, decisions, **how):
    how = {"actor": builders.SYSTEM, "reason": "Asked the post office", **how}
    return actions.decide_all(session_id=session.pk, decisions=decisions, **how)


def test_beside_the_outcomes_of_a_single_call_no_resume_is_offered(operator):
    session = builders.in_doubt()
    page = operator.get(f"/sessions/{session.pk}/").content.decode()
    assert "It took effect…" in page
    assert "Resume" not in re.sub(r"<[^>]+>", " ", page)
    assert f"/sessions/{session.pk}/resume/" not in page


@pytest.mark.slow
def test_a_paused_session_is_resumed_with_the_outcome_of_its_call(operator):
    history = builders.refunding()
    history.doubt(history.calls[-1])
    session = history.rest("paused")
    page = operator.get(f"/sessions/{session.pk}/").content.decode()
    assert re.search(rf'href="/sessions/{session.pk}/resume/"[^>]*>Decide and resume…<', page)


@pytest.mark.slow
@pytest.mark.parametrize("status", ["waiting", "paused"])
def test_one_form_decides_all_and_resumes(operator, status):
    session, (letter, refund) = two_in_doubt(status)
    page = operator.get(f"/sessions/{session.pk}/").content.decode()
    assert re.search(rf'href="/sessions/{session.pk}/resume/"[^>]*>Decide all 2 calls…<', page)
    address = f"/sessions/{session.pk}/resume/"
    text = operator.get(address).content.decode()
    assert "What will happen" in text
    assert "takes effect twice" in text
    assert len(re.findall(rf'name="decision-{letter.pk}"', text)) == 4
    fields = {
        "version": session.version,
        f"decision-{letter.pk}": "again",
        f"decision-{refund.pk}": "result",
        f"text-{refund.pk}": "Refunded",
        "reason": "Asked the post office",
    }
    answer = operator.post(address, fields)
    assert answer.status_code == 302, answer.content.decode()
    session.refresh_from_db()
    assert session.status == "queued"
    letter.refresh_from_db()
    refund.refresh_from_db()
    assert (letter.status, refund.status, refund.result) == ("planned", "done", "Refunded")
    kinds = list(session.events.filter(actor_name="anna").values_list("kind", "reason"))
    assert kinds == [
        ("decided", "Asked the post office"),
        ("decided", "Asked the post office"),
        ("resumed", "Asked the post office"),
    ]


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"decision-letter": ""}, "Choose the outcome of the call."),
        (
            {"decision-letter": "skip", "message-letter": " ", "text-letter": "Sent"},
            "Enter what the agent is told",
        ),
        ({"decision-letter": "result", "text-letter": " "}, "Enter what the tool returned"),
        ({"decision-letter": "nothing", "text-letter": "Sent"}, "You chose “returns nothing” but"),
        ({"reason": ""}, "Say why"),
    ],
)
def test_what_is_missing_is_asked_for_and_the_rest_is_kept(operator, changed, said):
    session, (letter, refund) = two_in_doubt()
    fields = {
        "version": session.version,
        "decision-letter": "again",
        f"decision-{refund.pk}": "result",
        f"text-{refund.pk}": "Refunded by hand",
        "reason": "Asked",
    } | changed
    fields = {name.replace("letter", str(letter.pk)): value for name, value in fields.items()}
    answer = operator.post(f"/sessions/{session.pk}/resume/", fields)
    text = answer.content.decode()
    assert answer.status_code == 400
    assert said in text
    assert "Refunded by hand" in text
    assert set(ToolCall.objects.filter(pk__in=[letter.pk, refund.pk]).values_list("status", flat=True)) == {
        "doubt"
    }


def test_deciding_one_call_says_too_what_running_it_again_means(operator):
    session = builders.in_doubt()
    call = ToolCall.objects.filter(branch=session.branch).latest("position")
    text = operator.get(f"/sessions/{session.pk}/decide/?call={call.pk}").content.decode()
    assert "takes effect twice" in text


@pytest.mark.slow
def test_the_result_and_the_message_to_the_agent_are_fields_of_their_own(operator):
    session = builders.in_doubt()
    call = ToolCall.objects.filter(branch=session.branch).latest("position")
    address = f"/sessions/{session.pk}/decide/"
    page = operator.get(f"{address}?call={call.pk}").content.decode()
    labels = [" ".join(label.split()) for label in re.findall(r"<label for=[^>]*>([^<]*)<", page)]
    assert labels[-3:] == ["Result", "Message to the agent", "Reason"]
    assert '<div class="field for-result">' in page
    assert '<div class="field for-message">' in page
    fields = {"version": session.version, "call_id": call.pk, "reason": "Asked", "decision": "skip"}
    answer = operator.post(address, fields | {"text": "It is paid"})
    assert answer.status_code == 400
    assert "Enter what the agent is told instead of a result." in answer.content.decode()
    assert "It is paid" in answer.content.decode()
    assert operator.post(address, fields | {"message": "Leave it"}).status_code == 302
    call.refresh_from_db()
    assert call.status == "skipped"


def test_all_are_decided_or_none():
    session, (letter, refund) = two_in_doubt()
    for decisions, error in (
        ({letter.pk: {"again": True}}, Invalid),
        ({letter.pk: {"again": True}, refund.pk: {}}, Invalid),
        ({letter.pk: {"again": True}, refund.pk: {"again": True, "skip": "no"}}, Invalid),
    ):
        with pytest.raises(error):
            decide_all(session, decisions)
    whole = {call.pk: {"again": True} for call in (letter, refund)}
    with pytest.raises(Moved):
        decide_all(session, whole, expected_version=session.version - 1)
    with pytest.raises(Forbidden):
        decide_all(session, whole, actor=builders.actor("viewer"))
    with pytest.raises(Invalid):
        decide_all(session, whole, reason=" ")
    done = ToolCall.objects.get(branch=session.branch, status="done")
    with pytest.raises(Refused):
        decide_all(session, whole | {done.pk: {"again": True}})
    assert not session.events.filter(kind="decided").exists()


def test_nothing_is_decided_where_nothing_is_in_doubt():
    with pytest.raises(Invalid):
        decide_all(builders.paused(), {})


@pytest.mark.slow
def test_a_tool_that_returns_nothing_is_a_choice_of_its_own(operator):
    session = builders.in_doubt()
    call = ToolCall.objects.filter(branch=session.branch).latest("position")
    page = operator.get(f"/sessions/{session.pk}/decide/?call={call.pk}").content.decode()
    assert 'name="decision" value="nothing"' in page
    fields = {"version": session.version, "call_id": call.pk, "reason": "Seen on the account"}
    address = f"/sessions/{session.pk}/decide/"
    answer = operator.post(address, fields | {"decision": "result", "text": " "})
    assert answer.status_code == 400
    assert "Enter what the tool returned" in answer.content.decode()
    assert operator.post(address, fields | {"decision": "nothing"}).status_code == 302
    call.refresh_from_db()
    assert (call.status, call.result) == ("done", None)


def sample_in(operator: Client, session: Session) -> set[str]:
    """The part with the sample in each of the two dialogs, "" for none."""
    call = ToolCall.objects.filter(branch=session.branch).latest("position")
    found = set()
    for address in (f"decide/?call={call.pk}", "resume/"):
        text = text_at(operator, f"/sessions/{session.pk}/{address}")
        sample = re.search(
            r"<summary[^>]*>([^<]*issue_refund[^<]*)</summary>\s*<pre[^>]*>([^<]*)</pre>", text
        )
        found.add(" ".join(unescape(" ".join(sample.groups())).split()) if sample else "")
    return found


@pytest.mark.slow
def test_the_dialog_offers_an_earlier_result_for_the_same_customer_with_what_is_hidden_hidden(
    operator, settings
):
    settings.AGENTSTATE_MASK_KEYS = ["iban"]
    other = builders.refunding()
    other.finish(other.calls[-1], {"paid": 120, "iban": "DE00 1234"})
    other.rest("paused")
    [sample] = sample_in(operator, builders.in_doubt())
    assert sample.startswith("What issue_refund returned earlier, in this session or for this customer")
    assert '"paid": 120' in sample
    assert "DE00 1234" not in sample


@pytest.mark.slow
@pytest.mark.parametrize("customer", ["Grace Hopper", ""])
@pytest.mark.parametrize(
    "result, form",
    [
        (
            # In the order in which PostgreSQL keeps the keys: the shortest first.
            {
                "note": None,
                "paid": [{"done": True, "amount": 120}],
                "payee": "Ada Lovelace",
                "Ada Lovelace": 1,
            },
            'The format of a result of issue_refund { "note": "nothing", "paid": [ { "done": "true or false", '
            '"amount": "number" } ], "payee": "text" }',
        ),
        ("Paid to Ada Lovelace", ""),
    ],
)
def test_of_another_customers_result_only_the_form_is_shown(operator, customer, result, form):
    other = builders.refunding(customer="Ada Lovelace" if customer else "")
    other.finish(other.calls[-1], result)
    other.rest("paused")
    session = builders.in_doubt(customer=customer)
    assert sample_in(operator, session) == {form}


def test_the_button_records_the_outcome_and_a_script_names_it_by_the_choice(operator):
    session = builders.in_doubt()
    call = ToolCall.objects.filter(branch=session.branch).latest("position")
    page = operator.get(f"/sessions/{session.pk}/decide/?call={call.pk}&decision=skip").content.decode()
    [label] = re.findall(r"<span (data-if-result[^>]*)>Record outcome</span>", page)
    assert dict(re.findall(r'data-if-(\w+)="([^"]*)"', label)) == {
        "result": "Record result",
        "nothing": "Record outcome",
        "again": "Run again",
        "skip": "Skip",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "worker, sentence, warning",
    [
        ({"stopped_at": 0}, "it cannot finish the call.", ""),
        (
            {"beat_at": 3600},
            "is offline: its last heartbeat was 1 h ago.",
            "Its worker may only have lost its connection,",
        ),
        ({}, "Worker host:7 is online.", "Its worker is online, so"),
        (None, "Worker host:7 is unknown.", "Its worker may still be running, so"),
    ],
)
def test_what_is_said_of_the_worker_agrees_with_whether_it_may_still_finish_the_call(
    operator, worker, sentence, warning
):
    session = builders.in_doubt()
    call = ToolCall.objects.filter(branch=session.branch).latest("position")
    ToolCall.objects.filter(pk=call.pk).update(worker="host:7")
    if worker is not None:
        times = {name: timezone.now() - timedelta(seconds=age) for name, age in worker.items()}
        Worker.objects.create(name="host:7", **times)
    page = operator.get(f"/sessions/{session.pk}/decide/?call={call.pk}&decision=again").content.decode()
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert sentence in text
    assert "also while it counts as offline" not in text
    assert ("may still finish the call" in text) is bool(warning)
    assert warning in text


def test_the_reason_names_the_calls_that_are_left_of_those_over_their_limits():
    session, (letter, _) = two_in_doubt()
    late = [f"{tool} did not answer within 2 seconds." for tool in ("issue_refund", "send_letter")]
    session.why = f"{late[0]} {late[1]} They may or may not have taken effect."
    session.save()
    decided: dict[str, Any] = {
        "actor": builders.SYSTEM,
        "reason": "Asked the post office",
        "skip": "It was not sent.",
    }
    session = actions.decide(session_id=session.pk, call_id=letter.pk, **decided)
    assert session.why == f"{late[0]} It may or may not have taken effect."


def test_a_call_that_took_longer_than_its_tool_may_is_not_said_to_have_lost_its_worker(operator: Client):
    history = builders.refunding()
    history.doubt(history.calls[-1])
    why = "issue_refund did not answer within 0.5 seconds. It may or may not have taken effect."
    session = history.rest("waiting", waiting_for="doubt", why=why)
    call = history.calls[-1]
    for page in ("/inbox/", f"/sessions/{session.pk}/", f"/sessions/{session.pk}/decide/?call={call.pk}"):
        text = " ".join(re.sub(r"<[^>]+>", " ", text_at(operator, page)).split())
        facts = text[text.index("issue_refund started") :]
        assert (
            ". issue_refund did not answer within 0.5 seconds. It may or may not have taken effect." in facts
        )
        assert "never reported back" not in facts
