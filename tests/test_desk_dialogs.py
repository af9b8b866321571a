"""Every dialog of the desk: method, login, permission, reason, stale version, impossible state; and its effect."""

import html
import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import F
from django.test import Client
from django.utils import timezone

from agentstate.names import STAFF_NOTE
from sessions_app import actions
from sessions_app.access.roles import Actor
from sessions_app.desk.pages.approvals import shown_fingerprint
from sessions_app.models import Approval, Checkpoint, Event, InboxMessage, RegisteredAgent, Session, ToolCall
from tests import builders

pytestmark = pytest.mark.django_db

# For each action: a state in which it is possible, what is sent along, and a state in which it is impossible.
POSSIBLE: dict[str, tuple[str, str]] = {
    "pause": ("queued", "done"),
    "resume": ("paused", "running"),
    "cancel": ("paused", "cancelled"),
    "rewind": ("done", ""),
    "undo": ("rewound", "done"),
    "fork": ("done", ""),
    "message": ("done", "cancelled"),
    "assign": ("done", ""),
    "approve": ("waiting_for_approval", "approved"),
    "reject": ("waiting_for_approval", "approved"),
    "decide": ("in_doubt", "decided"),
}
NEEDS_REASON = {"pause", "resume", "cancel", "rewind", "undo", "fork", "decide"}


def address(session: Session, action: str) -> str:
    return f"/sessions/{session.pk}/{action}/"


def typed(session: Session, action: str, **changed: Any) -> dict[str, Any]:
    """What the action's form sends when it is filled in rightly."""
    fields: dict[str, Any] = {"version": session.version, "reason": "Because of the rain"}
    if action in ("rewind", "fork"):
        fields["checkpoint"] = Checkpoint.objects.filter(branch__session=session).earliest("position").pk
    if action in ("approve", "reject", "decide"):
        fields["call_id"] = ToolCall.objects.filter(branch__session=session).latest("position").pk
    if action == "approve":
        fields["fingerprint"] = shown_fingerprint(Approval.objects.get(session=session))
    fields |= {
        "message": {"text": "And my wing mirror?"},
        "assign": {"assignee": "anna"},
        "reject": {"message": "Too much money"},
        "decide": {"decision": "result", "text": "Refunded", "message": "Leave it"},
    }.get(action, {})
    return {name: value for name, value in (fields | changed).items() if value is not None}


def impossible(action: str) -> Session:
    state = POSSIBLE[action][1]
    if state == "approved":
        session = builders.waiting_for_approval()
        Approval.objects.update(decision="approved", decided_at=timezone.now(), decided_by="berta")
        return session
    if state == "decided":
        return builders.refunding().rest("waiting", waiting_for="approval")
    return builders.STATES[state]()


@pytest.mark.slow
@pytest.mark.parametrize("action", POSSIBLE)
def test_the_action_is_done_and_audited(operator, action):
    session = builders.STATES[POSSIBLE[action][0]]()
    answer = operator.post(address(session, action), typed(session, action))
    assert answer.status_code == 302, answer.content.decode()
    event = Event.objects.filter(actor_name="anna").latest("pk")
    if action in NEEDS_REASON:
        assert event.reason == "Because of the rain"
    told = operator.get(answer["Location"]).content.decode()
    assert '<p class="toast success">' in told


@pytest.mark.slow
@pytest.mark.parametrize("action", POSSIBLE)
def test_its_page_can_be_opened_and_sends_what_it_needs(operator, action):
    """Without JavaScript: the page has a form with the version, and the form's own fields do the action."""
    session = builders.STATES[POSSIBLE[action][0]]()
    fields = typed(session, action)
    query = {"checkpoint": fields.get("checkpoint", ""), "call": fields.get("call_id", "")}
    text = operator.get(address(session, action), query).content.decode()
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', text))
    assert hidden["version"] == str(session.version)
    for name in ("checkpoint", "call_id", "fingerprint"):
        assert hidden.get(name, "") == str(fields.get(name, ""))
    part = operator.get(address(session, action), query, headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in part
    assert "<form" in part


@pytest.mark.parametrize("action", POSSIBLE)
def test_it_needs_a_login(client, action):
    session = builders.STATES[POSSIBLE[action][0]]()
    answer = client.post(address(session, action), typed(session, action))
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/")
    _unchanged(session)


@pytest.mark.slow
@pytest.mark.parametrize("action", POSSIBLE)
def test_it_needs_the_permission(client, action):
    client.force_login(builders.user("viewer", "anna"))
    session = builders.STATES[POSSIBLE[action][0]]()
    answer = client.post(address(session, action), typed(session, action))
    assert answer.status_code == 403
    assert " needs the " in answer.content.decode()
    _unchanged(session)


@pytest.mark.parametrize("action", POSSIBLE)
def test_other_methods_are_refused(operator, action):
    session = builders.STATES[POSSIBLE[action][0]]()
    assert operator.put(address(session, action)).status_code == 405
    assert operator.delete(address(session, action)).status_code == 405


@pytest.mark.parametrize("action", POSSIBLE)
def test_it_is_protected_against_forgery(action):
    client = Client(enforce_csrf_checks=True)
    client.force_login(builders.user("operator"))
    session = builders.STATES[POSSIBLE[action][0]]()
    answer = client.post(address(session, action), typed(session, action))
    assert answer.status_code == 403
    assert "send it again" in answer.content.decode()
    _unchanged(session)


@pytest.mark.slow
@pytest.mark.parametrize("action", sorted(NEEDS_REASON))
@pytest.mark.parametrize("reason", [None, "", "   "])
def test_it_needs_a_reason(operator, action, reason):
    session = builders.STATES[POSSIBLE[action][0]]()
    answer = operator.post(address(session, action), typed(session, action, reason=reason))
    assert answer.status_code == 400
    assert "Say why: the reason is kept in the audit trail." in answer.content.decode()
    _unchanged(session)


@pytest.mark.slow
@pytest.mark.parametrize("action", sorted(set(POSSIBLE) - {"message"}))
def test_a_session_that_moved_meanwhile_is_a_conflict_and_keeps_what_was_typed(operator, action):
    session = builders.STATES[POSSIBLE[action][0]]()
    fields = typed(session, action)
    Session.objects.filter(pk=session.pk).update(version=session.version + 1)
    answer = operator.post(address(session, action), fields)
    text = answer.content.decode()
    assert answer.status_code == 409
    assert "has changed since this page was loaded" in text
    if action in NEEDS_REASON:
        assert "Because of the rain" in text
    _unchanged(session)
    # The person has been told, and sends the same form again: that holds.
    again = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', text))
    assert operator.post(address(session, action), fields | {"version": again["version"]}).status_code == 302


def test_who_approves_what_somebody_else_approved_is_told_so_and_cannot_send_it_again(operator):
    session = builders.waiting_for_approval()
    fields = typed(session, "approve")
    other = Client()
    other.force_login(builders.user("supervisor", "sue"))
    assert other.post(address(session, "approve"), fields).status_code == 302
    answer = operator.post(address(session, "approve"), fields)
    assert answer.status_code == 409
    text = answer.content.decode()
    words = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert re.search(r"Last change: .* sue approved issue_refund (?:just now|\d+ (?:s|min) ago)", words)
    _closed(text, session)
    assert "Check it again" not in words
    assert "Note: not sent Because of the rain" in words


@pytest.mark.parametrize("action", ["approve", "reject", "reuse"])
def test_who_is_late_is_shown_the_arguments_that_they_edited_and_no_others(operator, action):
    session = builders.waiting_for_approval()
    arguments = {"arg-claim": "CLM-1042", "arg-amount": "75.5"}
    fields = typed(session, "approve") | arguments | {"message": "Too much", "reason": ""}
    Approval.objects.filter(session=session).update(
        decision="approved",
        decided_by="sue",
        decided_at=timezone.now(),
        edited={"claim": "CLM-7", "amount": 3},
    )
    Session.objects.filter(pk=session.pk).update(status="paused", waiting_for="", version=F("version") + 1)
    answer = operator.post(address(session, action), fields)
    # The recorded result is not that of edited arguments, which the form itself says.
    assert answer.status_code == (400 if action == "reuse" else 409)
    listed = answer.context["typed"]
    assert listed[0] == ("Amount", "75.5")
    assert [label for label, _ in listed[1:]] == (["Message to the agent"] if action == "reject" else [])
    assert "Amount: not sent" in answer.content.decode()


def test_a_request_that_has_changed_meanwhile_can_be_approved_as_it_is_shown_then(operator):
    session = builders.waiting_for_approval()
    fields = typed(session, "approve")
    Approval.objects.filter(session=session).update(fingerprint="b" * 64)
    Session.objects.filter(pk=session.pk).update(version=F("version") + 1)
    answer = operator.post(address(session, "approve"), fields)
    assert answer.status_code == 409
    again = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', answer.content.decode()))
    again = {name: again[name] for name in ("version", "fingerprint")}
    assert operator.post(address(session, "approve"), fields | again).status_code == 302


@pytest.mark.parametrize("action", ["approve", "decide"])
def test_without_a_button_nothing_is_decided_and_what_was_typed_is_kept(operator, action):
    session = builders.STATES[POSSIBLE[action][0]]()
    answer = operator.post(address(session, action), typed(session, action, undecided="on"))
    text = answer.content.decode()
    assert answer.status_code == 400
    assert "Nothing was decided, because no button was pressed." in text
    assert "Because of the rain" in text
    _unchanged(session)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["/inbox/", "/sessions/{}/"])
def test_a_card_that_is_out_of_date_says_at_once_who_decided_what_and_when(operator, page):
    session = builders.waiting_for_approval()
    shown = operator.get(page.format(session.pk)).content.decode()
    [card] = re.findall(r'<form\s+method="post"\s+action="[^"]*/approve/.*?</form>', shown, re.DOTALL)
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', card))
    actions.reject(
        actor=Actor.of(builders.user("supervisor", "sue")),
        session_id=session.pk,
        call_id=int(fields["call_id"]),
        message="Not covered",
    )
    answer = operator.post(address(session, "approve"), fields, headers={"HX-Request": "true"})
    text = answer.content.decode()
    assert re.search(r"It was already rejected by sue at \d\d:\d\d\.", text)
    _closed(text, session)
    assert "not sent" not in text


def _closed(text: str, session: Session) -> None:
    """The dialog has no fields and no button to send it, but leads to the session."""
    [form] = re.findall(r'<form\s+class="dialog.*?</form>', text, re.DOTALL)
    assert re.findall(r'<(?:textarea|button|select|input(?! type="hidden"))[^>]*', form) == []
    assert re.search(rf'href="/sessions/{session.pk}/[^"]*"\s+target="_blank"', form)


def test_a_message_is_welcome_also_when_the_session_has_moved(operator):
    session = builders.running()
    answer = operator.post(address(session, "message"), {"text": "Hurry", "version": 0})
    assert answer.status_code == 302
    assert InboxMessage.objects.get(session=session).text == "Hurry"


@pytest.mark.slow
@pytest.mark.parametrize("action", [action for action, (_, state) in POSSIBLE.items() if state])
def test_an_impossible_action_is_a_conflict_and_says_why(operator, action):
    session = impossible(action)
    before = Event.objects.count()
    answer = operator.post(address(session, action), typed(session, action))
    assert answer.status_code == 409
    assert 'role="alert"' in answer.content.decode()
    assert Event.objects.count() == before


@pytest.mark.parametrize("action", [action for action, (_, state) in POSSIBLE.items() if state])
def test_an_impossible_action_is_shown_with_its_reason_and_without_a_working_button(operator, action):
    session = impossible(action)
    query = {"call": typed(session, action).get("call_id", "")}
    text = operator.get(address(session, action), query).content.decode()
    if action in ("approve", "reject", "decide"):
        return _closed(text, session)
    assert re.search(r'<button type="button" class="button first" aria-disabled="true"', text)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["rewind", "fork"])
def test_a_checkpoint_of_another_session_is_not_found(operator, action):
    session, other = builders.done(), builders.done()
    theirs = Checkpoint.objects.filter(branch__session=other).latest("position").pk
    mine = typed(session, action)["checkpoint"]
    assert operator.get(address(session, action), {"checkpoint": mine}).status_code == 200
    assert operator.get(address(session, action), {"checkpoint": theirs}).status_code == 404
    assert (
        operator.post(address(session, action), typed(session, action, checkpoint=theirs)).status_code == 404
    )
    _unchanged(session)


@pytest.mark.parametrize("action", ["approve", "reject", "decide"])
def test_a_call_of_another_session_is_not_found(operator, action):
    session = builders.STATES[POSSIBLE[action][0]]()
    other = builders.refunding()
    mine = typed(session, action)["call_id"]
    assert operator.get(address(session, action), {"call": mine}).status_code == 200
    fields = typed(session, action, call_id=other.calls[-1].pk)
    assert operator.post(address(session, action), fields).status_code == 404
    _unchanged(session)


@pytest.mark.parametrize("back", ["desk", "inbox"])
def test_an_action_whose_way_back_cannot_be_read_is_done_and_leads_somewhere(operator, back):
    session = builders.queued()
    fields = typed(session, "assign", back=f"{back}?{'&' * 1000}x#line")
    answer = operator.post(address(session, "assign"), fields)
    place = "/inbox/" if back == "inbox" else f"/sessions/{session.pk}/"
    assert (answer.status_code, answer["Location"].partition("#")[0]) == (302, place)


def test_an_unknown_action_is_not_found(operator):
    assert operator.post(address(builders.done(), "explode")).status_code == 404


@pytest.mark.slow
def test_disabled_buttons_say_why(operator):
    text = operator.get(f"/sessions/{builders.waiting_for_approval().pk}/").content.decode()
    why = "It waits for an approval: approve or reject the call first."
    assert f'aria-disabled="true" title="{why}"' in text
    assert re.search(rf'<span class="why-not" id="why-not-resume" popover>{why}</span>', text)
    assert "Review approval" in text


def test_a_viewer_is_told_which_role_an_action_needs(client):
    client.force_login(builders.user("viewer"))
    text = client.get(f"/sessions/{builders.paused().pk}/").content.decode()
    refused = re.findall(r'aria-disabled="true" title="(\w+) needs the operator or supervisor role\."', text)
    assert {"Resuming", "Rewinding", "Forking"} <= set(refused)


def test_rewind_offers_the_places_that_one_wants(operator):
    history = builders.looked_up()
    history.reply(calls=[("send_letter", {"text": "Dear"})])
    history.finish(history.calls[-1], error="No stamp")
    history.checkpoint("step")
    text = operator.get(address(history.rest("paused"), "rewind")).content.decode()
    assert "<b>The last step</b>" in text
    assert "<b>The last failure, the last use of send_letter</b>" in text
    assert "<summary>Another step</summary>" in text


@pytest.mark.slow
def test_rewind_does_not_offer_where_a_session_that_is_done_is_already(operator):
    session = builders.done()
    end = Checkpoint.objects.get(branch=session.branch, kind="end")
    rewind = operator.get(address(session, "rewind")).content.decode()
    assert "The end of the last turn" not in rewind
    assert f"?checkpoint={end.pk}" not in rewind
    assert "current" in rewind
    assert "The end of the last turn" in operator.get(address(session, "fork")).content.decode()


@pytest.mark.slow
def test_the_dialogs_that_discard_say_each_thing_once(operator):
    session = builders.done()
    end = Checkpoint.objects.get(branch=session.branch, kind="end")
    here = operator.get(address(session, "rewind"), {"checkpoint": end.pk}).content.decode()
    assert "No step of the current history will be discarded." in here
    assert "No discarded call" not in here
    start = Checkpoint.objects.get(branch=session.branch, kind="start")
    text = operator.get(address(session, "rewind"), {"checkpoint": start.pk}).content.decode()
    assert text.count("readable") == 1
    assert (
        operator.post(address(session, "rewind"), typed(session, "rewind", checkpoint=start.pk)).status_code
        == 302
    )
    text = operator.get(address(session, "undo")).content.decode()
    [form] = re.findall(r'<form\s+class="dialog.*?</form>', text, re.DOTALL)
    assert form.count("No step of the current history will be discarded.") == 1
    assert "readable" not in form


@pytest.mark.slow
def test_an_undo_offers_to_compare_what_it_discarded_with_the_history_that_it_returned_to(operator):
    session = builders.rewound()
    answer = operator.post(address(session, "undo"), typed(session, "undo"), follow=True)
    toasts = re.findall(r'<p class="toast[^"]*">(.*?)</p>', answer.content.decode(), re.DOTALL)
    assert len(toasts) == 1
    assert f'<a href="/sessions/{session.pk}/branches/2/compare/">Compare</a>' in toasts[0]
    assert operator.get(f"/sessions/{session.pk}/branches/2/compare/").status_code == 302


def test_rewind_says_which_side_effects_are_not_undone(operator):
    history = builders.refunding()
    history.finish(history.calls[-1], "refunded")
    history.checkpoint("step")
    session = history.rest("paused")
    first = Checkpoint.objects.filter(branch=session.branch).earliest("position")
    text = operator.get(address(session, "rewind"), {"checkpoint": first.pk}).content.decode()
    effects = text[text.index("Not undone") :]
    assert "<b>Issue refund</b> <span>Claim CLM-1042, Amount 120</span>" in effects
    assert "lookup_policy" not in effects  # may be repeated: it has no side effect
    assert "3 steps of the current history will be discarded" in text


def test_resume_says_what_is_reused_and_what_runs(operator):
    history = builders.looked_up()
    history.reply(
        calls=[
            ("lookup_policy", {"policy": "A"}),
            ("lookup_policy", {"policy": "B"}),
            ("send_letter", {"text": "C"}),
        ]
    )
    history.finish(history.calls[0], "active")
    history.begin(history.calls[1])
    text = operator.get(address(history.rest("paused"), "resume")).content.decode()
    plain = re.sub(r"<[^>]+>|\s+", " ", text)
    plain = re.sub(r"\s+", " ", plain)
    assert "Reused: the model's reply of this step" in plain.replace("&#x27;", "'")
    assert "Reused: Lookup policy Policy A" in plain
    assert "Runs again: Lookup policy Policy B" in plain
    assert "Runs: Send letter Text C" in plain


@pytest.mark.slow
def test_an_approval_shows_the_exact_arguments_and_can_be_given_with_others(operator):
    session = builders.waiting_for_approval()
    text = operator.get(f"/sessions/{session.pk}/").content.decode()
    assert 'name="arg-amount" value="120"' in text
    assert 'name="arg-claim" value="CLM-1042"' in text
    fields = typed(session, "approve") | {"arg-claim": "CLM-1042", "arg-amount": "99.5"}
    assert operator.post(address(session, "approve"), fields).status_code == 302
    approval = Approval.objects.get(session=session)
    assert approval.decision == "approved"
    assert approval.edited == {"claim": "CLM-1042", "amount": 99.5}


def test_an_approval_as_asked_is_not_an_edited_one(operator):
    session = builders.waiting_for_approval()
    fields = typed(session, "approve") | {"arg-claim": "CLM-1042", "arg-amount": "120"}
    assert operator.post(address(session, "approve"), fields).status_code == 302
    assert Approval.objects.get(session=session).edited is None


def asking(arguments, **properties):
    """A session that waits for the approval of a call of a tool with these properties in its schema."""
    builders.agent("letters", tools=[builders.tool("send", properties=properties, approval=True)])
    history = builders.History(agent_key="letters")
    history.user("Write to her")
    history.checkpoint("start")
    history.reply("Yes.", [("send", arguments)])
    history.ask(history.calls[-1])
    return history.rest("waiting", waiting_for="approval")


@pytest.mark.parametrize("schema", [True, False], ids=["anything", "nothing"])
def test_an_argument_whose_schema_is_true_or_false_is_shown_and_can_be_edited(operator, schema):
    session = asking({"note": "Dear Ada", "copies": 2}, note=schema, copies=True, lines=True)
    for page in ("/inbox/", f"/sessions/{session.pk}/", "/inbox/?tool=send"):
        response = operator.get(page)
        assert response.status_code == 200
        assert "Dear Ada" in response.content.decode()
    fields = typed(session, "approve") | {"arg-note": "Dear Ada", "arg-copies": "3", "arg-lines": "[1]"}
    status = operator.post(address(session, "approve"), fields).status_code
    edited = Approval.objects.get(session=session).edited
    # A schema of false allows no value at all.
    assert (status, edited) == (
        (302, {"note": "Dear Ada", "copies": 3, "lines": [1]}) if schema else (400, None)
    )


def sent_by_browser(text):
    """What a browser sends of the fields for the arguments, if they are left alone."""
    fields = {}
    for name, options in re.findall(r'<select[^>]* name="(arg-[^"]*)">(.*?)</select>', text, re.DOTALL):
        values = re.findall(r'<option value="([^"]*)"', options)
        chosen = re.findall(r'<option value="([^"]*)" selected', options)
        fields[name] = html.unescape([*chosen, *values][0])
    for name, value in re.findall(r'<textarea[^>]*name="(arg-[^"]*)"[^>]*>(.*?)</textarea>', text, re.DOTALL):
        fields[name] = html.unescape(value.removeprefix("\n")).replace("\r\n", "\n").replace("\n", "\r\n")
    for name, value in re.findall(r'<input[^>]* name="(arg-[^"]*)" value="([^"]*)"', text):
        fields[name] = re.sub(r"[\r\n]", "", html.unescape(value))
    return fields


CHOICES = {"how": {"type": "string", "enum": ["full", "partial"]}, "express": {"type": "boolean"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, properties",
    [
        ({"how": "Partial", "express": None}, CHOICES),
        ({"how": None, "express": "yes"}, CHOICES),
        ({}, CHOICES),
        ({"how": "a  b"}, {"how": {"enum": ["x", "a  b"]}}),
        ({"text": "Dear Ann,\nyours"}, {"text": {"type": "string"}}),
        ({"text": "\nDear Ann,\nyours\n"}, {"text": {"type": "string"}}),
        ({"text": "Dear\r\nAnn\rBob"}, {"text": {"type": "string"}}),
        ({"text": "Dear\rAnn"}, {"text": {"type": "string"}}),
        ({"text": "Account DE89\nof Ann\n"}, {"text": {"type": "string"}}),
    ],
)
def test_a_call_whose_arguments_are_left_alone_runs_as_the_agent_asked(
    operator, settings, arguments, properties
):
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    session = asking(arguments, **properties)
    fields = sent_by_browser(operator.get(f"/sessions/{session.pk}/").content.decode())
    assert fields.keys() == {f"arg-{name}" for name in properties}
    answer = operator.post(address(session, "approve"), typed(session, "approve") | fields)
    assert answer.status_code == 302
    approval = Approval.objects.get(session=session)
    assert (approval.decision, approval.edited) == ("approved", None)


@pytest.mark.parametrize(
    "text, edited",
    [
        ("Dear Ann,\nyours", "Dear Ann,\n\nyours"),
        ("Dear Ann,\r\nyours", "Dear Ann,\r\n\r\nyours"),
    ],
)
def test_a_text_that_is_changed_keeps_its_kind_of_line_end(operator, text, edited):
    session = asking({"text": text}, text={"type": "string"})
    fields = typed(session, "approve") | {"arg-text": "Dear Ann,\r\n\r\nyours"}
    assert operator.post(address(session, "approve"), fields).status_code == 302
    assert Approval.objects.get(session=session).edited == {"text": edited}


@pytest.mark.parametrize(
    "amount, said",
    [
        ("1_0", "must be a number"),
        ("\uff11", "must be a number"),
        ("a lot", "must be a number"),
        ("5000", "do not fit issue_refund"),
        ("", "do not fit issue_refund"),
    ],
)
def test_wrong_arguments_are_refused_and_kept(operator, amount, said):
    session = builders.waiting_for_approval()
    fields = typed(session, "approve") | {"arg-claim": "CLM-9", "arg-amount": amount}
    answer = operator.post(address(session, "approve"), fields)
    text = answer.content.decode()
    assert answer.status_code == 400
    assert said in text
    assert 'value="CLM-9"' in text
    assert Approval.objects.get(session=session).decision == ""


def test_a_fingerprint_of_other_arguments_is_a_conflict(operator):
    session = builders.waiting_for_approval()
    answer = operator.post(address(session, "approve"), typed(session, "approve", fingerprint="0" * 64))
    assert answer.status_code == 409
    assert Approval.objects.get(session=session).decision == ""


@pytest.mark.slow
def test_who_decides_second_is_told_who_was_first(operator):
    session = builders.waiting_for_approval()
    Approval.objects.update(decision="rejected", decided_at=timezone.now(), decided_by="berta")
    answer = operator.post(address(session, "approve"), typed(session, "approve"))
    assert answer.status_code == 409
    assert "already rejected by berta" in answer.content.decode()


@pytest.mark.slow
@pytest.mark.parametrize("decision, status", [("result", "done"), ("again", "planned"), ("skip", "skipped")])
def test_a_call_in_doubt_is_decided_in_one_dialog(operator, decision, status):
    session = builders.in_doubt()
    call = ToolCall.objects.get(branch=session.branch, status="doubt")
    entrance = f"/sessions/{session.pk}/decide/?call={call.pk}&amp;decision={decision}"
    assert f'href="{entrance}"' in operator.get(f"/sessions/{session.pk}/").content.decode()
    assert (
        operator.post(address(session, "decide"), typed(session, "decide", decision=decision)).status_code
        == 302
    )
    assert ToolCall.objects.filter(branch__session=session).latest("position").status == status


def test_a_fork_leads_to_the_new_session(operator):
    session = builders.done()
    answer = operator.post(address(session, "fork"), typed(session, "fork") | {"message": "Try POL-8"})
    fork = Session.objects.exclude(pk=session.pk).get()
    assert answer["Location"] == f"/sessions/{fork.pk}/"
    assert fork.status == "queued"


def test_a_session_is_started_from_the_desk(operator):
    builders.agent()
    assert "Claims desk" in operator.get("/start/").content.decode()
    answer = operator.post(
        "/start/",
        {
            "agent": "claims",
            "message": "Is it covered?",
            "tags": "Glass, VIP ,",
            "state": '{"policy": "POL-7"}',
        },
    )
    session = Session.objects.get()
    assert answer["Location"] == f"/sessions/{session.pk}/"
    assert session.title == "Is it covered?"
    assert session.inputs["state"] == {"policy": "POL-7"}
    assert sorted(session.tags.values_list("name", flat=True)) == ["glass", "vip"]


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"message": ""}, "This field is required."),
        ({"agent": "nobody"}, "Select a valid choice"),
        ({"state": "{"}, "This is not JSON"),
        ({"state": "[1]"}, "Write a JSON object"),
        ({"tags": "x" * 60}, "at most 50 are allowed"),
    ],
)
def test_a_wrong_start_says_what_is_wrong_and_keeps_the_rest(operator, wrong, said):
    builders.agent()
    answer = operator.post(
        "/start/", {"agent": "claims", "message": "Is it covered?", "title": "Kept", **wrong}
    )
    text = answer.content.decode()
    assert answer.status_code == 400
    assert said in text
    assert 'value="Kept"' in text
    assert not Session.objects.exists()


def test_where_no_agent_can_run_the_start_page_says_what_is_wrong(operator):
    builders.agent(problem="shop/agents.py, line 6: SyntaxError: invalid syntax.")
    page = operator.get("/start/").content.decode()
    assert "No agent can run." in page
    assert "shop/agents.py, line 6: SyntaxError: invalid syntax." in page
    assert "No worker has published an agent" not in page


def test_nobody_is_asked_for_the_working_memory_of_the_agent(operator):
    names = ("policy_number", "working_memory")
    values = [{"name": name, "schema": {"type": "string"}, "required": False} for name in names]
    builders.agent(inputs={"values": values})
    page = operator.get("/start/").content.decode()
    assert "Policy number (optional)" in page
    assert "working_memory (optional" not in page


def test_a_viewer_cannot_start_a_session(client):
    builders.agent()
    client.force_login(builders.user("viewer"))
    page = client.get("/start/").content.decode()
    assert "Starting a session needs the operator or supervisor role." in page
    assert '<form class="card dialog"' not in page
    assert client.post("/start/", {"agent": "claims", "message": "Hello"}).status_code == 403
    assert not Session.objects.exists()


def test_acting_from_a_queue_returns_to_it(operator):
    session = builders.paused()
    answer = operator.post(f"{address(session, 'resume')}?queue=paused", typed(session, "resume"))
    assert answer["Location"] == f"/sessions/{session.pk}/?queue=paused"


def test_a_lapsed_approval_is_not_given(operator):
    session = builders.waiting_for_approval()
    Approval.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    answer = operator.post(address(session, "approve"), typed(session, "approve"))
    assert answer.status_code == 409
    assert "The approval has expired." in answer.content.decode()


def _unchanged(session: Session) -> None:
    now = Session.objects.get(pk=session.pk)
    assert (now.status, now.position, now.branch_id) == (session.status, session.position, session.branch_id)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["/sessions/{session}/", "/sessions/{session}/approve/?call={call}", "/inbox/"]
)
def test_the_stored_fingerprint_is_on_no_page_and_its_keyed_one_only_for_who_decides(client, page):
    session = builders.waiting_for_approval()
    approval = Approval.objects.get(session=session)
    keyed = shown_fingerprint(approval)
    address = page.format(session=session.pk, call=approval.call_id)
    for role, times in (("viewer", 0), ("operator", 1)):
        client.force_login(builders.user(role))
        text = client.get(address).content.decode()
        assert approval.fingerprint not in text
        assert approval.fingerprint[:4] + "…" not in text
        assert bool(text.count(f'name="fingerprint" value="{keyed}"')) == bool(times), role
        assert (keyed in text) == bool(times), role


def test_a_stored_fingerprint_is_no_proof_of_what_was_shown(operator):
    session = builders.waiting_for_approval()
    stored = Approval.objects.get(session=session).fingerprint
    answer = operator.post(address(session, "approve"), typed(session, "approve", fingerprint=stored))
    assert answer.status_code == 409
    _unchanged(session)


def test_the_keyed_fingerprints_of_equal_calls_differ():
    one, other = (Approval.objects.get(session=builders.waiting_for_approval()) for _ in range(2))
    Approval.objects.update(fingerprint="a" * 64)
    one.refresh_from_db()
    other.refresh_from_db()
    assert shown_fingerprint(one) != shown_fingerprint(other)


def give_policy(**policy: Any) -> None:
    """To the refunds of the agent."""
    agent = RegisteredAgent.objects.get()
    for tool in agent.tools:
        if tool["name"] == "issue_refund":
            tool["policy"] |= policy
    agent.save()


MONEY: dict[str, Any] = {"summary": "Refund {amount} on {claim}", "formats": {"amount": "money:EUR"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy, name",
    [({}, "Before issue refund Claim CLM-1042, Amount 120"), (MONEY, "Before refund €120.00 on CLM-1042")],
)
def test_the_places_before_calls_with_an_effect_come_first_and_say_what_these_did(operator, policy, name):
    history = builders.refunding()
    give_policy(**policy)
    history.finish(history.calls[-1], "refunded")
    history.checkpoint("step")
    history.lookup("POL-8")
    session = history.rest("paused")
    for action in ("rewind", "fork"):
        text = operator.get(address(session, action)).content.decode()
        places = re.findall(r"<b>([^<]+)</b>", text[text.index('<ul class="choices">') :])
        assert places[0] == f"{name}, the last use of issue_refund" or places[0] == name
        assert 2 <= len(places) <= 6


def changed_by_a_person() -> Session:
    history = builders.looked_up()
    give_policy(**MONEY)
    ran = {"claim": "CLM-1042", "amount": 80}
    history.reply("I refund it.", [("issue_refund", {"claim": "CLM-1042", "amount": 100.0})])
    [call] = history.calls
    approval = history.ask(call, decision="approved", edited=ran, decided_at=history.now, decided_by="anna")
    history.event("approved", call=approval.call_id, tool=call.tool)
    history.finish(call, "refunded", sent=ran)
    history.user(f"{STAFF_NOTE} A person changed the arguments of 'issue_refund' to {ran}.")
    origin = {"tool_name": call.tool, "arguments": ran, "id": call.call_id, "extra": None}
    history.message("assistant", "I refund it.", [{"text": "I refund it."}, {"tool_call": origin}])
    history.checkpoint("step")
    return history.rest("paused")


@pytest.mark.slow
def test_money_that_a_person_changed_is_shown_as_money_everywhere(operator):
    session = changed_by_a_person()
    call = ToolCall.objects.get(branch=session.branch, tool="issue_refund")
    first, last = Checkpoint.objects.earliest("position"), Checkpoint.objects.latest("position")
    here = f"/sessions/{session.pk}/"
    pages = [
        here,
        f"{here}audit/",
        f"{here}conversation/",
        f"{here}calls/{call.pk}/",
        f"/compare/?a={first.pk}&b={last.pk}",
    ]
    for page in pages:
        text = unescape(operator.get(page).content.decode())
        assert "amount €100.00 -> €80.00" in text, page
        assert "100.0 ->" not in text
        if page in (here, pages[-1]):
            assert "amount=€80.00" in text


@pytest.mark.slow
def test_a_note_of_staff_is_no_last_message(operator):
    session = changed_by_a_person()
    text = operator.get(address(session, "fork")).content.decode()
    here = address(session, "fork")
    [query] = re.findall(
        rf'href="{here}(\?checkpoint=\d+&amp;replace=\d+)"[^>]*>\s*<b>The last message', text
    )
    form = operator.get(here + query.replace("&amp;", "&")).content.decode()
    assert "Is my windscreen covered by POL-7?</textarea>" in form
    assert "A person changed" not in form


@pytest.mark.parametrize(
    "decision, focused", [("result", "text"), ("skip", "message"), ("again", "reason"), ("", "decision")]
)
def test_the_dialog_of_a_call_in_doubt_opens_where_one_goes_on(operator, decision, focused):
    session = builders.in_doubt()
    call = ToolCall.objects.filter(branch=session.branch).latest("position")
    form = operator.get(f"{address(session, 'decide')}?call={call.pk}&decision={decision}").content.decode()
    assert re.findall(r'<(?:input|textarea)[^>]*name="(\w+)"[^>]*\sautofocus', form) == [focused]


@pytest.mark.slow
def test_a_queued_session_that_no_worker_takes_leads_to_the_workers_first(operator):
    session = builders.queued()
    Session.objects.filter(pk=session.pk).update(next_run_at=timezone.now() - timedelta(minutes=5))
    text = operator.get(f"/sessions/{session.pk}/").content.decode()
    assert re.search(r'<a class="button first" href="/workers/">See the workers</a>', text)
    assert 'href="/workers/">See the workers</a>' in operator.get("/inbox/").content.decode()


def test_who_may_not_release_a_stuck_session_is_told_who_may_and_may_assign_it(operator):
    session = builders.lost()
    text = operator.get("/inbox/").content.decode()
    assert "Releasing a session needs the supervisor role." in text
    assert f'href="/sessions/{session.pk}/assign/?back=' in text
    assert f"/sessions/{session.pk}/release/" not in text


@pytest.mark.slow
def test_the_failures_of_an_agent_that_cannot_run_are_not_tried_again_together(operator):
    for number in range(2):
        builders.failed(title=f"Claim {number}")
    assert "Try all 2 again…" in operator.get("/inbox/").content.decode()
    RegisteredAgent.objects.update(problem="ImportError: no module shop")
    text = operator.get("/inbox/").content.decode()
    assert "Try all 2 again…" not in text
    assert re.search(
        r'aria-disabled="true" title="Its agent cannot be built: ImportError[^>]*>\s*Try all 2 again', text
    )


@pytest.mark.slow
@pytest.mark.parametrize("action, field", [("resume", "reason"), ("note", "text")])
def test_a_line_end_counts_as_one_character_as_it_does_in_the_browser(operator, action, field):
    session = builders.paused()
    where = address(session, action)
    text = "\n".join(["a" * 1_980] + ["b"] * 10)
    assert len(text) == 2_000
    form = operator.get(where).content.decode()
    sent = dict(re.findall(r'<input type="hidden" name="([\w-]+)"[^>]* value="([^"]*)"', form))
    sent |= {field: text.replace("\n", "\r\n")}
    answer = operator.post(where, sent)
    assert answer.status_code == 302, answer.content.decode()
    assert Event.objects.latest("pk").reason == text


@pytest.mark.slow
def test_a_session_is_assigned_only_to_people_who_can_see_it(operator):
    builders.user(None, "without-role")
    builders.user("viewer", "vera")
    closed = builders.user("viewer", "closed")
    closed.is_active = False
    closed.save()
    User.objects.create_superuser("root")
    session = builders.paused()
    form = operator.get(address(session, "assign")).content.decode()
    offered = re.findall(r'<option value="([^"]+)"', form)
    assert offered == ["anna", "root", "vera"]
    fields = {"version": session.version, "assignee": "without-role"}
    answer = operator.post(address(session, "assign"), fields)
    assert answer.status_code == 400
    assert "without-role cannot see sessions" in answer.content.decode()


@pytest.mark.slow
def test_calls_in_doubt_are_decided_with_a_resume_only_by_who_may_do_both(client):
    session = builders.in_doubt()
    user = builders.user(None, "dora")
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_session", "decide_call"]))
    client.force_login(User.objects.get(pk=user.pk))
    assert Permission.objects.filter(codename="decide_call").exists()
    session = Session.objects.get(pk=session.pk)
    page = client.get(f"/sessions/{session.pk}/").content.decode()
    lacking = "Resuming needs the permission"
    assert f'href="{address(session, "resume")}"' not in page
    answer = client.get(address(session, "resume"))
    assert lacking in unescape(answer.content.decode())
    assert "Decide" not in re.findall(r"<button[^>]*>([^<]*)</button>", answer.content.decode())


@pytest.mark.slow
def test_a_session_stays_with_whoever_has_it_where_the_form_is_sent_unchanged(operator):
    gone = builders.user("viewer", "gone")
    session = builders.paused(assignee=gone)
    gone.groups.clear()
    form = operator.get(address(session, "assign")).content.decode()
    [chosen] = re.findall(r'<option value="([^"]+)" selected', form)
    assert chosen == "gone"
    answer = operator.post(address(session, "assign"), {"version": session.version, "assignee": chosen})
    assert answer.status_code == 400
    session.refresh_from_db()
    assert session.assignee == gone
