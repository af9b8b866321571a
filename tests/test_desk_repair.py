"""Repairs on the desk, approvals that repeat or that hold for a session, and what the diagnosis says."""

import html
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from agentstate.durable.state.encoding import decode
from sessions_app import actions
from sessions_app.desk.pages.approvals import shown_fingerprint
from sessions_app.models import (
    Allowance,
    Approval,
    Branch,
    Checkpoint,
    Event,
    Message,
    Session,
    StateValue,
    ToolCall,
)
from tests import builders
from tests.pages import text_at

pytestmark = pytest.mark.django_db
MEMORY = {
    "goal": "Pay back",
    "plan": ["find the claim", "pay"],
    "notes": ["VIP"],
    "completed": ["find the claim"],
}


def remembering() -> Session:
    """A paused session whose agent keeps a working memory and one more state key."""
    history = builders.looked_up()
    checkpoint = history.last_checkpoint
    values = {
        "working_memory": MEMORY,
        "limit": 500,
        "name": "Ada\nLovelace",
        "vip": False,
        "offers": [1],
        "open": None,
    }
    for key, value in values.items():
        StateValue.objects.create(branch=history.branch, position=checkpoint.position, key=key, value=value)
        checkpoint.keys[key] = checkpoint.position
    checkpoint.save()
    return history.rest("paused")


def send(client: Client, session: Session, name: str, **fields: Any):
    session.refresh_from_db()
    fields = {"version": session.version, "reason": "It was wrong", **fields}
    return client.post(f"/sessions/{session.pk}/{name}/", fields)


def sent_back(client: Client, session: Session, name: str, query: str = "") -> dict[str, str]:
    """What a browser sends of the texts of a dialog that nobody has edited: each line ends with CRLF."""
    page = client.get(f"/sessions/{session.pk}/{name}/{query}").content.decode()
    texts = re.findall(r'<textarea name="(\w+)"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    assert texts
    return {
        field: re.sub(r"\r\n|\r|\n", "\r\n", html.unescape(text))
        for field, text in texts
        if field != "reason"
    }


def keep(session: Session, key: str, value: Any) -> None:
    StateValue.objects.filter(branch=session.branch, key=key).update(value=value)


def hints(client: Client, session: Session) -> dict[str, str]:
    text = text_at(client, f"/sessions/{session.pk}/")
    found = re.findall(r'<p class="hint [a-z]+" data-rule="([a-z ]+)">\s*([^<]+)', text)
    return {rule: said.strip() for rule, said in found}


@pytest.mark.slow
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
    answer = send(
        supervisor, session, "memory", goal="Pay half", plan="[x] find the claim\n[x] pay\nwrite", notes=""
    )
    assert answer.status_code == 302
    session.refresh_from_db()
    assert Branch.objects.filter(session=session).count() == 2
    value = StateValue.objects.get(branch=session.branch, key="working_memory").value
    assert value == {
        "goal": "Pay half",
        "plan": ["find the claim", "pay", "write"],
        "notes": [],
        "completed": ["find the claim", "pay"],
    }


@pytest.mark.slow
def test_a_state_value_is_changed_with_its_type_checked(supervisor):
    session = remembering()
    text = supervisor.get(f"/sessions/{session.pk}/state-value/?key=limit").content.decode()
    assert '<input type="number" name="value" value="500"' in text
    wrong = send(supervisor, session, "state-value", key="limit", value="much")
    assert wrong.status_code == 400
    assert "Enter a number, not “much”." in wrong.content.decode()
    assert 'value="much"' in wrong.content.decode()
    assert send(supervisor, session, "state-value", key="limit", value="250").status_code == 302
    session.refresh_from_db()
    assert StateValue.objects.get(branch=session.branch, key="limit").value == 250


def test_an_object_is_shown_and_edited_with_its_keys_in_order(supervisor):
    session = remembering()
    order = {"name": "b", "id": 1, "a": 2}
    keep(session, "limit", {"$type": "ordered", "keys": list(order), "value": order})
    assert "$type" not in supervisor.get(f"/sessions/{session.pk}/state/").content.decode()
    fields = sent_back(supervisor, session, "state-value", "?key=limit")
    assert json.loads(html.unescape(fields["value"])) == order
    assert list(json.loads(html.unescape(fields["value"]))) == list(order)
    same = send(supervisor, session, "state-value", key="limit", **fields)
    assert (same.status_code, "Nothing was changed." in same.content.decode()) == (400, True)
    edits: list[dict[str, Any]] = [
        {**order, "b": 3},
        {"id": 1, "name": "b", "a": 2, "b": 3},
        {"a": 2, "id": 1},
    ]
    for edited in edits:
        answer = send(supervisor, session, "state-value", key="limit", value=json.dumps(edited))
        assert answer.status_code == 302
        session.refresh_from_db()
        value: Any = StateValue.objects.get(branch=session.branch, key="limit").value
        assert json.dumps(decode(value)) == json.dumps(edited)
        assert ("$type" in value) == (edited != {"a": 2, "id": 1})
    typed = {"$type": "ordered", "keys": 5, "value": {}}
    wrong = send(supervisor, session, "state-value", key="limit", value=json.dumps(typed))
    assert wrong.status_code == 400


@pytest.mark.slow
def test_a_message_is_replaced_for_the_model(supervisor):
    session = remembering()
    message = builders.branch_of(session).messages.get(role="user")
    text = supervisor.get(
        f"/sessions/{session.pk}/message-text/?position={message.position}"
    ).content.decode()
    assert "Is my windscreen covered by POL-7?</textarea>" in text
    answer = send(supervisor, session, "message-text", position=message.position, text="Is POL-8 covered?")
    assert answer.status_code == 302
    message.refresh_from_db()
    assert message.text == "Is my windscreen covered by POL-7?"
    assert "Is POL-8 covered?" in supervisor.get(f"/sessions/{session.pk}/").content.decode()


@pytest.mark.slow
@pytest.mark.parametrize("act", [actions.rewind, actions.fork])
def test_a_message_that_was_replaced_is_shown_as_replaced_where_the_session_goes_on_from_the_repair(
    supervisor, act
):
    session = builders.done()
    asked = builders.branch_of(session).messages.get(role="user")
    by: dict[str, Any] = {"actor": builders.SYSTEM, "session_id": session.pk, "reason": "A slip"}
    actions.replace_message(**by, position=asked.position, text="Is POL-8 covered?")
    session.refresh_from_db()
    repaired = Checkpoint.objects.get(branch=session.branch)
    shown = act(**by, checkpoint_id=repaired.pk)
    assert not Event.objects.visible_on(shown.branch).filter(kind="repaired").exists()
    for tab in ("", "conversation/"):
        page = re.sub(r"<[^>]*>", " ", text_at(supervisor, f"/sessions/{shown.pk}/{tab}"))
        said = " ".join(page.split()).partition("covered by POL-7? The model reads instead, by tests ")[2]
        assert re.match(r"just now ?: A slip Is POL-8 covered\?", said)
        assert "Is POL-8" not in said[40:]


@pytest.mark.slow
def test_a_correction_that_rewinds_says_what_it_discards_and_is_compared_and_undone_from_there(supervisor):
    history = builders.looked_up()
    told = Message.objects.get(branch=history.branch, role="tool")
    history.reply(calls=[("issue_refund", {"claim": "CLM-1042", "amount": 120})])
    history.finish(history.calls[0], "paid")
    history.checkpoint("step")
    history.reply("Paid.")
    session = history.end("Paid.")
    address = f"/sessions/{session.pk}/message-text/?position={told.position}"
    form = " ".join(supervisor.get(address).content.decode().split())
    assert "2 steps of the current history will be discarded." in form
    # What is explained is the primary button; saving alone is the other one.
    assert "<h2>Save, rewind and resume</h2>" in form
    assert re.findall(r'<button class="(button(?: first)?)"[^>]*>(?: <span >)?([^<]+)<', form) == [
        ("button first", "Save, rewind and resume"),
        ("button", "Save correction"),
    ]
    assert "Not undone:" in form
    assert "issue_refund" in form
    answer = send(
        supervisor, session, "message-text", position=told.position, text="It has lapsed.", first="on"
    )
    assert answer.status_code == 302
    assert Session.objects.get(pk=session.pk).status == "queued"
    page = supervisor.get(f"/sessions/{session.pk}/").content.decode()
    assert f'<a href="/sessions/{session.pk}/branches/1/compare/">Compare</a>' in page
    comparison = supervisor.get(f"/sessions/{session.pk}/branches/1/compare/", follow=True).content.decode()
    assert f'href="/sessions/{session.pk}/undo/"' in comparison
    call = ToolCall.objects.filter(branch__session=session).earliest("position")
    call_page = " ".join(supervisor.get(f"/sessions/{session.pk}/calls/{call.pk}/").content.decode().split())
    assert "The model reads instead" in call_page
    assert '<p class="say">It has lapsed.</p>' in call_page


def test_two_checkpoints_of_the_current_history_offer_no_undo(supervisor):
    session = builders.rewound()
    first = Checkpoint.objects.filter(branch__session=session).earliest("position")
    comparison = supervisor.get(f"/compare/?a={first.pk}&b={first.pk}").content.decode()
    assert f"/sessions/{session.pk}/undo/" not in comparison


def test_a_message_that_no_step_has_read_yet_is_corrected_without_rewinding(supervisor):
    session = builders.done()
    said = builders.branch_of(session).messages.filter(role="assistant").latest("position")
    form = text_at(supervisor, f"/sessions/{session.pk}/message-text/?position={said.position}")
    assert "Save, rewind and resume" not in form


def test_a_person_answers_for_a_tool(supervisor):
    session = builders.in_doubt()
    call = ToolCall.objects.get(branch=session.branch, tool="issue_refund")
    answer = send(supervisor, session, "answer", call_id=call.pk, answer="result", text="Paid by hand")
    assert answer.status_code == 302
    session.refresh_from_db()
    assert ToolCall.objects.get(branch=session.branch, tool="issue_refund").result == "Paid by hand"


@pytest.mark.slow
@pytest.mark.parametrize(
    "key, field, typed, value",
    [
        ("limit", '<input type="number"', "250.5", 250.5),
        ("name", "<textarea", "Bob\r\nBrown", "Bob\nBrown"),
        ("name", "<textarea", "", ""),
        ("vip", '<input type="radio" name="value" value="true"', "true", True),
        ("offers", "<textarea", "[1, 2]", [1, 2]),
        ("open", "<textarea", '"text"', "text"),
    ],
)
def test_each_type_of_value_has_its_field(supervisor, key, field, typed, value):
    session = remembering()
    text = supervisor.get(f"/sessions/{session.pk}/state-value/?key={key}").content.decode()
    assert field in text
    assert send(supervisor, session, "state-value", key=key, value=typed).status_code == 302
    session.refresh_from_db()
    assert StateValue.objects.get(branch=session.branch, key=key).value == value


@pytest.mark.parametrize(
    "key, typed, said",
    [
        ("limit", "", "This field is required."),
        ("limit", "1e999", "Write a number that can be stored."),
        ("vip", "perhaps", "Select a valid choice"),
        ("offers", "[1,", "This is not JSON"),
        ("offers", "[NaN]", "NaN is not a number that can be stored"),
        ("offers", '{"1": 2}', "offers must be a list, not an object."),
        ("name", "Ada\r\nLovelace", "Nothing was changed."),
        ("colour", '"red"', "There is no state key"),
    ],
)
def test_a_wrong_value_is_refused_and_kept(supervisor, key, typed, said):
    session = remembering()
    answer = send(supervisor, session, "state-value", key=key, value=typed)
    assert answer.status_code == 400
    assert said in answer.content.decode().replace("&#x27;", "'")
    assert "It was wrong" in answer.content.decode()
    assert Branch.objects.filter(session=session).count() == 1


@pytest.mark.parametrize("value", ["Ada\r\nLovelace", "Ada \n", "  Ada", "\n\nAda\r", "", " ", "\r\n"])
def test_a_text_that_is_sent_back_as_it_was_shown_is_not_changed(supervisor, value):
    session = remembering()
    keep(session, "name", value)
    fields = sent_back(supervisor, session, "state-value", "?key=name")
    answer = send(supervisor, session, "state-value", key="name", **fields)
    assert answer.status_code == 400
    assert "Nothing was changed." in answer.content.decode()
    assert Branch.objects.filter(session=session).count() == 1


@pytest.mark.parametrize(
    "value, typed, stored",
    [
        ("  Ada\r\nLovelace\r\n", "  Ada\r\nByron\r\n", "  Ada\r\nByron\r\n"),
        ("  Ada\nLovelace\n", "  Ada\r\nByron\r\n", "  Ada\nByron\n"),
        ("  Ada\r\nLovelace", "  Ada\nByron", "  Ada\r\nByron"),
        ("  Ada", "Ada", "Ada"),
        ("Ada", "Ada ", "Ada "),
    ],
)
def test_only_what_was_edited_in_a_text_is_changed(supervisor, value, typed, stored):
    session = remembering()
    keep(session, "name", value)
    assert send(supervisor, session, "state-value", key="name", value=typed).status_code == 302
    session.refresh_from_db()
    assert StateValue.objects.get(branch=session.branch, key="name").value == stored


ODD_MEMORY = {
    "goal": " Pay\r\nback ",
    "mood": "calm",
    "plan": ["find  the claim", "pay\nat once ", "pay"],
    "notes": ["VIP \n\nsince 2019", {"key": "iban", "text": "DE89"}, "Pays late\r\n"],
    "completed": ["pay", "an earlier step", "find  the claim"],
}


def test_a_memory_that_is_sent_back_as_it_was_shown_is_not_changed(supervisor):
    session = remembering()
    keep(session, "working_memory", ODD_MEMORY)
    answer = send(supervisor, session, "memory", **sent_back(supervisor, session, "memory"))
    assert answer.status_code == 400
    assert "Nothing was changed." in answer.content.decode()
    assert Branch.objects.filter(session=session).count() == 1


@pytest.mark.parametrize(
    "edit, changed",
    [
        ({"goal": "Pay half"}, {"goal": "Pay half"}),
        (
            {"plan": "[x] find the claim\r\npay at once\r\nwrite"},
            {"plan": ["find  the claim", "pay\nat once ", "write"], "completed": ["find  the claim"]},
        ),
        (
            {"notes": "Pays late\r\n\r\nVIP\r\nsince 2020"},
            {"notes": ["Pays late\r\n", "VIP\nsince 2020", {"key": "iban", "text": "DE89"}]},
        ),
    ],
)
def test_only_what_was_edited_in_a_memory_is_changed(supervisor, edit, changed):
    session = remembering()
    keep(session, "working_memory", ODD_MEMORY)
    fields = sent_back(supervisor, session, "memory") | edit
    assert send(supervisor, session, "memory", **fields).status_code == 302
    session.refresh_from_db()
    value = StateValue.objects.get(branch=session.branch, key="working_memory").value
    assert value == ODD_MEMORY | changed


def test_a_message_that_is_sent_back_as_it_was_shown_is_not_changed(supervisor):
    session = remembering()
    message = builders.branch_of(session).messages.get(role="user")
    message.text = " Is my windscreen covered\r\nby POL-7? \n"
    message.save()
    fields = sent_back(supervisor, session, "message-text", f"?position={message.position}")
    answer = send(supervisor, session, "message-text", position=message.position, **fields)
    assert answer.status_code == 400
    assert "Nothing was changed." in answer.content.decode()
    assert Branch.objects.filter(session=session).count() == 1


def test_the_state_tab_leads_to_a_form_for_each_key(supervisor):
    session = remembering()
    text = supervisor.get(f"/sessions/{session.pk}/state/").content.decode()
    assert f'href="/sessions/{session.pk}/state-value/?key=limit"' in text
    assert f'href="/sessions/{session.pk}/memory/?key=working_memory"' in text


def test_notes_of_several_lines_stay_as_they_are(supervisor):
    session = remembering()
    notes = "VIP\r\nsince 2019\r\n\r\nPays late"
    answer = send(
        supervisor, session, "memory", goal="Pay back", plan="[x] find the claim\r\npay", notes=notes
    )
    assert answer.status_code == 302
    session.refresh_from_db()
    value = StateValue.objects.get(branch=session.branch, key="working_memory").value
    assert value == {**MEMORY, "notes": ["VIP\nsince 2019", "Pays late"]}
    text = supervisor.get(f"/sessions/{session.pk}/memory/").content.decode()
    assert "VIP\nsince 2019\n\nPays late</textarea>" in text


@pytest.mark.slow
def test_what_the_model_reads_instead_is_shown_where_it_was_said(supervisor):
    session = remembering()
    message = builders.branch_of(session).messages.get(role="user")
    send(supervisor, session, "message-text", position=message.position, text="Is POL-8 covered?")
    for tab in ("", "conversation/"):
        text = supervisor.get(f"/sessions/{session.pk}/{tab}").content.decode()
        assert text.count("Is POL-8 covered?") == 1
        assert text.index("Is my windscreen covered") < text.index("The model reads instead")
        assert text.index("The model reads instead") < text.index("Is POL-8 covered?")
    # It is that which the next replacement begins with.
    text = supervisor.get(
        f"/sessions/{session.pk}/message-text/?position={message.position}"
    ).content.decode()
    assert "Is POL-8 covered?</textarea>" in text


@pytest.mark.slow
def test_the_result_of_a_call_of_a_finished_step_is_replaced_from_its_card(supervisor):
    session = remembering()
    call = ToolCall.objects.get(branch=session.branch)
    page = supervisor.get(f"/sessions/{session.pk}/").content.decode()
    assert f'href="/sessions/{session.pk}/message-text/?call={call.pk}"' in page
    form = supervisor.get(f"/sessions/{session.pk}/message-text/?call={call.pk}").content.decode()
    assert "&quot;status&quot;: &quot;active&quot;" in form
    place = re.search(r'name="position" value="(\d+)"', form)
    assert place
    assert send(supervisor, session, "message-text", position=place[1], text="lapsed").status_code == 302
    page = supervisor.get(f"/sessions/{session.pk}/").content.decode()
    assert re.search(r"The model reads instead.*?sue.*?It was wrong.*?lapsed", page, re.DOTALL)
    assert "replaced the result of lookup_policy" in page


@pytest.mark.slow
def test_a_step_that_a_repair_carried_over_is_shown_once(supervisor):
    session = builders.in_doubt()
    call = ToolCall.objects.get(branch=session.branch, tool="issue_refund")
    send(supervisor, session, "answer", call_id=call.pk, answer="skip", text="Paid by hand")
    page = supervisor.get(f"/sessions/{session.pk}/").content.decode()
    assert page.count('aria-label="Step 2"') == 1
    assert "History before a repair by <b>sue</b>" in re.sub(r"\s+", " ", page)
    assert "answered issue_refund manually" in page


@pytest.mark.slow
def test_the_end_of_a_turn_that_was_repaired_is_shown_once(supervisor):
    session = builders.done()
    said = builders.branch_of(session).messages.filter(role="assistant").latest("position")
    assert send(supervisor, session, "message-text", position=said.position, text="No.").status_code == 302
    page = supervisor.get(f"/sessions/{session.pk}/").content.decode()
    assert page.count("End of the turn") == 1
    assert re.search(r"Yes, POL-7 covers.*?The model reads instead.*?No\.", page, re.DOTALL)


@pytest.mark.slow
def test_a_step_is_done_by_hand(supervisor):
    history = builders.looked_up()
    history.reply(calls=[("send_letter", {"text": "Dear Ada"}), ("send_letter", {"text": "Dear Bob"})])
    first, second = [history.doubt(call) for call in history.calls]
    session = history.rest("waiting", waiting_for="doubt")
    assert (
        f'href="/sessions/{session.pk}/step/"' in supervisor.get(f"/sessions/{session.pk}/").content.decode()
    )
    form = supervisor.get(f"/sessions/{session.pk}/step/").content.decode()
    assert "Result of send_letter" in form
    assert "Dear Bob" in form
    half = send(supervisor, session, "step", **{f"result-{first.pk}": "sent"})
    assert half.status_code == 400
    assert "sent</textarea>" in half.content.decode()
    done = send(
        supervisor, session, "step", **{f"result-{first.pk}": "sent", f"result-{second.pk}": "sent too"}
    )
    assert done.status_code == 302
    session.refresh_from_db()
    found = ToolCall.objects.filter(branch=session.branch).order_by("position")
    assert [call.result for call in found] == ["sent", "sent too"]
    assert session.status == "paused"


@pytest.mark.slow
def test_a_step_with_nothing_left_to_do_says_so(supervisor):
    session = remembering()
    assert f"/sessions/{session.pk}/step/" not in supervisor.get(f"/sessions/{session.pk}/").content.decode()
    text = supervisor.get(f"/sessions/{session.pk}/step/").content.decode()
    assert "there is nothing to complete manually" in text
    assert re.search(r'<button type="button" class="button first" aria-disabled="true"', text)
    assert send(supervisor, session, "step").status_code == 400


REPAIRS = ["memory", "state-value", "message-text", "answer", "step"]


def typed(session: Session, name: str) -> dict[str, Any]:
    """What the repair's form sends when it is filled in rightly."""
    call = ToolCall.objects.filter(branch=session.branch).latest("position")
    fields: dict[str, dict[str, Any]] = {
        "memory": {"goal": "x", "plan": "", "notes": ""},
        "state-value": {"key": "limit", "value": "1"},
        "message-text": {"position": 3, "text": "x"},
        "answer": {"call_id": call.pk, "answer": "result", "text": "x"},
        "step": {f"result-{call.pk}": "x"},
    }
    return fields[name]


def in_the_middle(status: str = "paused") -> Session:
    """As `remembering`, and a call of the next step has been asked for."""
    session = remembering()
    history = builders.refunding()
    checkpoint = history.last_checkpoint
    for value in StateValue.objects.filter(branch=session.branch):
        value.pk, value.branch, value.position = None, history.branch, checkpoint.position
        value.save(force_insert=True)
        checkpoint.keys[value.key] = checkpoint.position
    checkpoint.save()
    return history.rest(status)


@pytest.mark.slow
@pytest.mark.parametrize("name", REPAIRS)
def test_a_repair_is_done_audited_and_can_be_undone(supervisor, name):
    session = in_the_middle()
    answer = send(supervisor, session, name, **typed(session, name))
    assert answer.status_code == 302, answer.content.decode()
    event = Event.objects.get(session=session, kind="repaired")
    assert (event.actor_name, event.reason) == ("sue", "It was wrong")
    page = supervisor.get(f"/sessions/{session.pk}/").content.decode()
    assert "It was wrong" in page
    undo = supervisor.get(f"/sessions/{session.pk}/undo/").content.decode()
    assert undo.count("Undo the repair") >= 2
    assert send(supervisor, session, "undo").status_code == 302
    session.refresh_from_db()
    assert builders.branch_of(session).number == 1


@pytest.mark.parametrize("name", REPAIRS)
def test_a_repair_needs_a_login_and_refuses_other_methods(client, name):
    session = in_the_middle()
    answer = send(client, session, name, **typed(session, name))
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/")
    client.force_login(builders.user("supervisor"))
    assert client.put(f"/sessions/{session.pk}/{name}/").status_code == 405
    assert Branch.objects.filter(session=session).count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", REPAIRS)
@pytest.mark.parametrize("status, why", [("running", "pause it first"), ("cancelled", "It was cancelled")])
def test_what_runs_or_is_over_is_not_repaired_and_the_page_says_why(supervisor, name, status, why):
    session = in_the_middle(status)
    page = supervisor.get(f"/sessions/{session.pk}/").content.decode()
    assert f"/sessions/{session.pk}/{name}/" not in page
    assert why in page
    form = typed(session, name)
    query = {"call": form.get("call_id", ""), "key": "limit"}
    text = supervisor.get(f"/sessions/{session.pk}/{name}/", query).content.decode()
    assert why in text
    assert re.search(r'<button type="button" class="button first" aria-disabled="true"', text)
    answer = send(supervisor, session, name, **form)
    assert answer.status_code == 409
    assert why in answer.content.decode()
    assert Branch.objects.filter(session=session).count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", REPAIRS)
def test_repairs_need_the_permission_a_reason_and_the_present_version(client, name):
    session = in_the_middle()
    fields = typed(session, name)
    query = {"call": fields.get("call_id", ""), "key": "limit"}
    client.force_login(builders.user("operator"))
    assert send(client, session, name, **fields).status_code == 403
    text = client.get(f"/sessions/{session.pk}/{name}/", query).content.decode()
    assert "Editing needs the supervisor role." in text
    client.force_login(builders.user("supervisor"))
    assert send(client, session, name, **fields, reason="").status_code == 400
    stale = send(client, session, name, **fields, version=session.version + 1)
    assert stale.status_code == 409
    assert "It was wrong" in stale.content.decode()
    assert Branch.objects.filter(session=session).count() == 1


def test_a_tool_is_allowed_for_the_rest_of_the_session(client):
    client.force_login(builders.user("operator", "anna"))
    session = builders.waiting_for_approval()
    approval = Approval.objects.get(session=session)
    fields = {"call_id": approval.call_id, "fingerprint": shown_fingerprint(approval), "for_session": "on"}
    assert send(client, session, "approve", **fields).status_code == 302
    assert [(a.tool, a.granted_by) for a in Allowance.objects.filter(session=session)] == [
        ("issue_refund", "anna")
    ]


@pytest.mark.slow
def test_a_call_that_ran_on_a_discarded_tail_can_be_answered_with_its_result(client):
    client.force_login(builders.user("operator"))
    history = builders.refunding()
    before = history.finish(history.calls[-1], "refunded 120 EUR")
    history.checkpoint("step")
    history.reply("Again.", [("issue_refund", {"claim": "CLM-1042", "amount": 120})])
    approval = history.ask(history.calls[-1], repeats=before)
    session = history.rest("waiting", waiting_for="approval")
    text = client.get(f"/sessions/{session.pk}/").content.decode()
    assert "This call already ran" in text
    assert re.search(r"Its result on record: refunded 120 EUR</p>", text)
    assert f'formaction="/sessions/{session.pk}/reuse/"' in text
    assert "Run it again" in text
    assert send(client, session, "reuse", call_id=approval.call_id).status_code == 302
    call = ToolCall.objects.get(pk=approval.call_id)
    assert (call.status, call.result) == ("done", "refunded 120 EUR")
    # Where the result came from is no session that the audit trail could lead to.
    assert client.get(f"/sessions/{session.pk}/audit/").status_code == 200


def held(status: str = "done") -> Session:
    """A refund that was tried on a discarded branch, and that the agent asks for again."""
    history = builders.refunding()
    before = history.calls[-1]
    if status == "done":
        history.finish(before, {"refunded": "x" * 300})
    elif status == "failed":
        history.finish(before, error="Timeout at the bank")
    else:
        history.doubt(before)
    start = Checkpoint.objects.filter(branch=history.branch).earliest("position")
    history.rest("paused")
    actions.rewind(actor=builders.SYSTEM, session_id=history.session.pk, checkpoint_id=start.pk, reason="x")
    history.session.refresh_from_db()
    history.reply(calls=[("issue_refund", {"claim": "CLM-1042", "amount": 120})])
    history.ask(history.calls[-1], repeats=before)
    return history.rest("waiting", waiting_for="approval")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["session", "inbox"])
def test_a_held_repetition_shows_what_is_on_record_and_offers_three_ways(client, place):
    client.force_login(builders.user("operator"))
    session = held()
    address = f"/sessions/{session.pk}/" if place == "session" else "/inbox/"
    text = client.get(address).content.decode()
    assert "in discarded history" in text
    assert "&quot;refunded&quot;: &quot;xxx" in text
    buttons = [" ".join(found.split()) for found in re.findall(r"<button[^>]*>(?:\s*<span>)?([^<]+)<", text)]
    assert buttons.index("Use the recorded result") < buttons.index("Run it again")
    assert "Reject…" in text
    # A standing yes would not cover a repetition, so none is offered.
    assert 'name="for_session"' not in text


def test_a_recorded_result_is_not_used_for_edited_arguments_until_the_person_says_so(client):
    client.force_login(builders.user("operator"))
    session = held()
    call = Approval.objects.get(session=session).call_id
    answer = send(client, session, "reuse", **{"call_id": call, "arg-claim": "CLM-1042", "arg-amount": "75"})
    assert answer.status_code == 400
    assert "You have edited the arguments" in answer.content.decode()
    assert "will run with" not in answer.content.decode()
    assert Approval.objects.get(session=session).decision == ""
    unedited = {"call_id": call, "arg-claim": "CLM-1042", "arg-amount": "120"}
    assert send(client, session, "reuse", **unedited).status_code == 302


@pytest.mark.slow
@pytest.mark.parametrize(
    "status, said",
    [("failed", "it failed there. <code>Timeout at the bank</code>"), ("doubt", "did not report back")],
)
def test_without_a_result_on_record_none_is_offered(client, status, said):
    client.force_login(builders.user("operator"))
    session = held(status)
    text = re.sub(r"\s+", " ", client.get(f"/sessions/{session.pk}/").content.decode())
    assert said in text
    assert "Use the recorded result" not in text
    call = Approval.objects.get(session=session).call_id
    answer = send(client, session, "reuse", call_id=call)
    assert answer.status_code == 400
    assert "There is no result on record" in answer.content.decode()


@pytest.mark.slow
def test_a_fork_that_repeats_its_source_leads_to_the_call_there(client):
    client.force_login(builders.user("operator"))
    history = builders.refunding()
    before = history.finish(history.calls[-1], "refunded")
    start = Checkpoint.objects.filter(branch=history.branch).earliest("position")
    source = history.rest("paused")
    fork = actions.fork(actor=builders.SYSTEM, session_id=source.pk, checkpoint_id=start.pk, reason="x")
    history.session = fork
    history.reply(calls=[("issue_refund", {"claim": "CLM-1042", "amount": 120})])
    history.ask(history.calls[-1], repeats=before)
    history.rest("waiting", waiting_for="approval")
    link = f"/sessions/{source.pk}/calls/{before.pk}/"
    assert link in client.get(f"/sessions/{fork.pk}/").content.decode()
    assert client.get(link).status_code == 200


@pytest.mark.parametrize(
    "name, decision", [("approve", "approved"), ("reject", "rejected"), ("reuse", "reused")]
)
def test_a_held_repetition_is_decided(client, name, decision):
    client.force_login(builders.user("operator", "anna"))
    session = held()
    approval = Approval.objects.get(session=session)
    fields = {
        "call_id": approval.call_id,
        "fingerprint": shown_fingerprint(approval),
        "message": "It is paid",
        "effects_seen": "on",
    }
    assert send(client, session, name, **fields).status_code == 302
    approval.refresh_from_db()
    assert (approval.decision, approval.decided_by) == (decision, "anna")
    session.refresh_from_db()
    assert session.status == "queued"


@pytest.mark.slow
def test_reusing_needs_a_login_the_permission_the_version_and_an_open_question(client):
    session = held()
    call = Approval.objects.get(session=session).call_id
    assert send(client, session, "reuse", call_id=call)["Location"].startswith("/login/")
    client.force_login(builders.user("viewer"))
    assert send(client, session, "reuse", call_id=call).status_code == 403
    page = client.get(f"/sessions/{session.pk}/").content.decode()
    assert re.search(
        r'title="Deciding an approval needs the operator or supervisor role."[^>]*>Use the recorded result<',
        page,
    )
    client.force_login(builders.user("operator", "anna"))
    assert client.put(f"/sessions/{session.pk}/reuse/").status_code == 405
    assert send(client, session, "reuse", call_id=call, version=0).status_code == 409
    assert send(client, session, "reuse", call_id=call).status_code == 302
    late = send(client, session, "reuse", call_id=call)
    assert late.status_code == 409
    assert "answered with the result on record by anna" in late.content.decode()


@pytest.mark.slow
def test_allowances_are_listed_and_withdrawn(client):
    client.force_login(builders.user("operator", "anna"))
    session = builders.waiting_for_approval()
    assert "Pre-approved tools" not in client.get(f"/sessions/{session.pk}/").content.decode()
    Allowance.objects.create(session=session, tool="issue_refund", granted_by="berta")
    text = client.get(f"/sessions/{session.pk}/").content.decode()
    assert re.search(r"Pre-approved tools.*?issue_refund.*?by berta", text, re.DOTALL)
    form = client.get(f"/sessions/{session.pk}/withdraw/?tool=issue_refund").content.decode()
    assert 'name="tool" value="issue_refund"' in form
    stale = send(client, session, "withdraw", tool="issue_refund", version=0)
    assert stale.status_code == 409
    client.force_login(builders.user("viewer"))
    assert send(client, session, "withdraw", tool="issue_refund").status_code == 403
    client.force_login(User.objects.get(username="anna"))
    assert send(client, session, "withdraw", tool="issue_refund").status_code == 302
    assert not Allowance.objects.exists()
    assert send(client, session, "withdraw", tool="issue_refund").status_code == 404


def test_a_healthy_session_has_no_hints(supervisor):
    assert hints(supervisor, builders.done()) == {}


def test_the_same_call_three_times_is_told(supervisor):
    history = builders.asked()
    for _ in range(3):
        history.lookup("POL-7")
    assert (
        hints(supervisor, history.rest("paused"))["same call"]
        == "lookup_policy was called 3 times with the same arguments."
    )


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert "not taken" in hints(supervisor, forgotten)
    assert "many attempts" in hints(supervisor, builders.retries_used_up())


def test_a_changed_definition_and_a_secret_are_told(supervisor):
    history = builders.asked()
    history.reply(calls=[("send_letter", {"text": "My key is sk-" + "a1" * 15})])
    session = history.rest("paused", definition="other")
    assert set(hints(supervisor, session)) == {"changed definition", "secret"}
