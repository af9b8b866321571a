"""Arguments that a person changed: one note on the call, on every page, and never the customer's words."""

import json
import re
from html import unescape

import pytest
from django.test import Client

from agentstate.names import STAFF_NOTE
from sessions_app import actions
from sessions_app.access.masking import Mask
from sessions_app.finding import search_index
from sessions_app.history.export import session_json
from sessions_app.models import Approval, Checkpoint, EventKind, RegisteredAgent, Session, ToolCall
from sessions_app.models.event import record_event
from tests import builders

pytestmark = pytest.mark.django_db

ASKED = {"claim": "CLM-1042", "amount": "100.00"}
RAN = {"claim": "CLM-1042", "amount": "120.00"}
BEFORE = f"A person changed the arguments of 'issue_refund' to {RAN}."
NOW = f"""{STAFF_NOTE} A person changed the arguments of 'issue_refund' to {{"claim": "CLM-1042"}}."""
CHANGE = "amount 100.00 -> 120.00"


@pytest.fixture
def desk(client: Client) -> Client:
    client.force_login(builders.user("supervisor"))
    return client


def edited(text: str) -> tuple[Session, ToolCall]:
    """A refund that a person raised, with the rows as Haystack's hook leaves them behind."""
    history = builders.looked_up()
    history.reply("I refund it now.", [("issue_refund", ASKED)])
    [call] = history.calls
    history.ask(call, decision="approved", edited=RAN, decided_at=history.now, decided_by="anna")
    history.finish(call, "refunded", sent=RAN)
    history.user(text)
    origin = {"tool_name": call.tool, "arguments": RAN, "id": call.call_id, "extra": None}
    history.message("assistant", "I refund it now.", [{"text": "I refund it now."}, {"tool_call": origin}])
    history.checkpoint("step")
    return history.rest("paused"), call


def plain(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200
    text = unescape(re.sub(r"<[^>]+>", " ", response.content.decode()))
    return re.sub(r" +([,.:])", r"\1", " ".join(text.split()))


@pytest.mark.slow
@pytest.mark.parametrize("text", [BEFORE, NOW])
def test_a_change_is_one_note_on_the_call(desk, text):
    session, call = edited(text)
    timeline = plain(desk, f"/sessions/{session.pk}/")
    assert timeline.count("Customer ") == 1  # the customer's own message
    assert "A person changed" not in timeline
    assert timeline.count(CHANGE) == 1
    assert f"{CHANGE}, changed by anna" in timeline
    assert timeline.count("I refund it now.") == 1
    own = plain(desk, f"/sessions/{session.pk}/calls/{call.pk}/")
    assert f"{CHANGE}, changed by anna" in own
    assert own.index("120.00") < own.rindex("Requested")


@pytest.mark.slow
@pytest.mark.parametrize("text", [BEFORE, NOW])
def test_the_conversation_compare_and_the_export_say_that_staff_changed_it(desk, text):
    session, _ = edited(text)
    conversation = plain(desk, f"/sessions/{session.pk}/conversation/")
    assert f"Staff issue_refund: {CHANGE}, changed by anna" in conversation
    assert "A person changed" not in conversation
    assert conversation.count("Customer ") == 1
    assert conversation.count("I refund it now.") == 1
    first, last = Checkpoint.objects.earliest("position"), Checkpoint.objects.latest("position")
    compared = plain(desk, f"/compare/?a={first.pk}&b={last.pk}")
    assert f"Staff issue_refund: {CHANGE}, changed by anna" in compared
    assert "A person changed" not in compared
    exported = session_json(session, mask=Mask.none())["messages"]
    notes = [message for message in exported if message["role"] == "staff"]
    assert [CHANGE in message["text"] for message in notes] == [True]
    assert "user" not in [m["role"] for m in exported if "changed" in (m["text"] or "")]


@pytest.mark.slow
def test_what_a_customer_writes_is_never_taken_for_a_note(desk):
    session, _ = edited(NOW)
    history = builders.asked(title="Another")
    history.user(NOW)
    history.user(BEFORE)
    history.checkpoint("step")
    history.reply("I cannot do that.")
    session = history.rest("paused")
    for tab in ("", "conversation/"):
        assert plain(desk, f"/sessions/{session.pk}/{tab}").count("A person changed") == 2
    exported = session_json(session, mask=Mask.none())["messages"]
    assert [message["role"] for message in exported].count("user") == 3


def test_what_a_customer_wrote_in_a_history_that_a_session_is_started_with_is_never_taken_for_a_note(desk):
    history = builders.History()
    with history.in_one_write():
        history.user(BEFORE).from_customer = True
        history.message("assistant", "I understand.", [{"text": "I understand."}])
    history.user("Pay me.")
    history.checkpoint("start")
    session = history.rest("paused")
    for tab in ("", "conversation/"):
        text = plain(desk, f"/sessions/{session.pk}/{tab}")
        assert text.count("A person changed") == 1
        assert "Staff" not in text
    exported = session_json(session, mask=Mask.none())["messages"]
    assert [(message["role"], message["text"]) for message in exported[:1]] == [("user", BEFORE)]


@pytest.mark.slow
def test_two_changes_in_one_step_are_told_apart(desk):
    history = builders.looked_up()
    asked = [{"claim": "A", "amount": 1}, {"claim": "B", "amount": 2}]
    history.reply("Both.", [("issue_refund", arguments) for arguments in asked])
    for call in history.calls:
        ran = {**call.arguments, "amount": call.arguments["amount"] + 10}
        history.ask(call, decision="approved", edited=ran, decided_at=history.now, decided_by="anna")
        history.finish(call, "refunded", sent=ran)
    history.user(NOW)
    history.user(NOW)
    history.message("assistant", "", [])
    history.checkpoint("step")
    text = plain(desk, f"/sessions/{history.rest('paused').pk}/conversation/")
    assert text.index("amount 1 -> 11") < text.index("amount 2 -> 12")


def test_an_agent_that_says_the_same_twice_is_shown_twice(desk):
    history = builders.looked_up()
    history.lookup("POL-8")
    text = plain(desk, f"/sessions/{history.rest('paused').pk}/conversation/")
    assert text.count("I look that up.") == 2


@pytest.mark.slow
def test_wherever_a_call_is_shown_what_ran_comes_first(desk):
    """120 was paid where 100 had been asked for: in the dialogs, in the audit trail and among the hits of a search."""
    session, call = edited(NOW)
    record_event(
        session, EventKind.APPROVED, position=session.position + 1, actor_name="anna", data=call.reference()
    )
    first = Checkpoint.objects.earliest("position")
    dialog = plain(desk, f"/sessions/{session.pk}/rewind/?checkpoint={first.pk}")
    effects = dialog[dialog.index("Not undone") :]
    assert effects.index("Amount 120.00") < effects.index(CHANGE)
    trail = plain(desk, f"/sessions/{session.pk}/audit/")
    assert trail.index("Amount 120.00") < trail.index(CHANGE)
    search_index.update()
    found = plain(desk, f"/sessions/{session.pk}/find/?q=CLM-1042")
    assert found.index("120.00") < found.index("100.00")
    assert CHANGE in found
    assert "Staff" in found
    exported = next(
        c for c in session_json(session, mask=Mask.none())["tool_calls"] if c["tool"] == call.tool
    )
    assert (exported["arguments"], exported["requested"]) == (RAN, ASKED)


@pytest.mark.slow
def test_a_call_that_was_approved_with_changes_and_has_not_run_is_shown_with_them(desk):
    history = builders.looked_up()
    history.reply("I refund it now.", [("issue_refund", ASKED)])
    history.ask(history.calls[0], decision="approved", edited=RAN, decided_at=history.now, decided_by="anna")
    session = history.rest("paused")
    for address, ran in (("", 'amount="120.00"'), ("resume/", "Amount 120.00")):
        text = plain(desk, f"/sessions/{session.pk}/{address}")
        assert text.index(ran) < text.index(CHANGE)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["", "conversation/", "json/?raw=1", "find/?q=CLM-1042"])
def test_a_change_of_a_hidden_argument_is_told_although_its_values_are_not(desk, settings, page):
    settings.AGENTSTATE_MASK_KEYS = ["amount"]
    session, _ = edited(NOW)
    search_index.update()
    text = desk.get(f"/sessions/{session.pk}/{page}").content.decode()
    assert "100.00" not in text
    assert "120.00" not in text
    if page.startswith("json"):
        assert "requested" in text
    else:
        assert "amount •••• -> another value" in plain(desk, f"/sessions/{session.pk}/{page}")


@pytest.mark.slow
def test_who_changed_a_hidden_argument_stands_on_the_call(desk, settings):
    settings.AGENTSTATE_MASK_KEYS = ["amount"]
    session, call = edited(NOW)
    for address in (f"/sessions/{session.pk}/", f"/sessions/{session.pk}/calls/{call.pk}/"):
        assert "amount •••• -> another value, changed by anna" in plain(desk, address)


@pytest.mark.slow
def test_an_approval_with_edits_that_change_nothing_is_shown_as_an_approval(desk):
    session, call = edited(NOW)
    ToolCall.objects.filter(pk=call.pk).update(arguments=RAN)
    assert "approved by anna" in plain(desk, f"/sessions/{session.pk}/")


@pytest.mark.parametrize("asked, typed", [({"dry": 0}, {"dry": False}), ({"to": [1]}, {"to": [True]})])
def test_a_value_of_another_type_is_another_value(asked, typed):
    history = builders.looked_up()
    properties: dict[str, object] = {name: {} for name in asked}
    tools = [builders.tool("pay", properties=properties, approval=True)]
    RegisteredAgent.objects.filter(key="claims").update(tools=tools)
    history.reply("I pay.", [("pay", asked)])
    history.ask(history.calls[-1])
    session = history.rest("waiting", waiting_for="approval", why="It needs approval.")
    actions.approve(actor=builders.SYSTEM, session_id=session.pk, call_id=history.calls[-1].pk, edited=typed)
    assert json.dumps(Approval.objects.get().edited) == json.dumps(typed)
