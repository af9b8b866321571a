"""Several like approvals decided at once: one decision wins for each, and the page says what became of each."""

import re
from html import unescape

import pytest
from django.utils import timezone

from sessions_app.access.typed import REASON_CHARACTERS, REJECTION_CHARACTERS
from sessions_app.desk.pages.approvals import prefix_of, shown_fingerprint
from sessions_app.models import Approval, Session
from tests import builders

pytestmark = pytest.mark.django_db
ADDRESS = "/approvals/batch/"


@pytest.fixture
def three() -> list[Approval]:
    sessions = [builders.waiting_for_approval(title=f"Refund {n}") for n in range(3)]
    return [Approval.objects.get(session=session) for session in sessions]


def ticks(approvals, decision="approve", **more):
    return {
        "call": [f"{approval.pk}:{shown_fingerprint(approval)}" for approval in approvals],
        "decision": decision,
        "tool": "issue_refund",
        **more,
    }


def decisions():
    return list(Approval.objects.order_by("pk").values_list("decision", flat=True))


@pytest.mark.slow
def test_like_calls_can_be_ticked(operator, three):
    assert 'form="batch"' not in operator.get("/inbox/").content.decode()
    text = operator.get("/inbox/?tool=issue_refund").content.decode()
    assert len(re.findall(r'type="checkbox"\s+name="call"\s+form="batch"', text)) == 3
    assert "Approve selected" in text


@pytest.mark.slow
def test_a_single_one_that_could_be_ticked_is_approved_by_its_own_button(operator, three):
    decided = {"decision": "rejected", "decided_at": timezone.now()}
    Approval.objects.filter(pk__in=[three[1].pk, three[2].pk]).update(**decided)
    page = operator.get("/inbox/?tool=issue_refund").content.decode()
    assert 'form="batch"' not in page
    assert 'id="batch"' not in page
    assert f'id="approve-{three[0].call_id}"' in page


@pytest.mark.slow
def test_one_that_cannot_be_ticked_says_why(operator, three):
    Session.objects.filter(pk=three[1].session_id).update(definition="e" * 64)
    Approval.objects.filter(pk=three[2].pk).update(earlier=[three[0].call_id])
    page = operator.get("/inbox/?tool=issue_refund").content.decode()
    assert 'form="batch"' not in page  # the only one left needs none
    builders.waiting_for_approval(title="Refund 3")
    page = operator.get("/inbox/?tool=issue_refund").content.decode()
    assert len(re.findall(r'name="call"\s+form="batch"', page)) == 2
    assert page.count("Decide it on its own: the agent has changed.") == 1
    assert page.count("Decide it on its own: it may repeat an earlier effect.") == 1


@pytest.mark.slow
def test_the_ticked_ones_are_approved_and_no_other(operator, three):
    answer = operator.post(ADDRESS, ticks(three[:2], text="All three are known"), follow=True)
    assert decisions() == ["approved", "approved", ""]
    assert list(Session.objects.order_by("created_at").values_list("status", flat=True)) == [
        "queued",
        "queued",
        "waiting",
    ]
    place = f"/sessions/{three[0].session_id}/#c{three[0].call.position}"
    assert f'Approved: <a href="{place}">Issue refund</a> and 1 more' in answer.content.decode()
    event = three[0].session.events.get(kind="approved")
    assert (event.actor_name, event.reason) == ("anna", "All three are known")


def test_the_ticked_ones_are_rejected_with_a_message(operator, three):
    assert operator.post(ADDRESS, ticks(three, "reject", text="Not today")).status_code == 302
    assert set(Approval.objects.values_list("decision", "message")) == {("rejected", "Not today")}


def test_the_message_to_several_agents_may_be_as_long_as_that_to_one_and_a_note_as_that_of_one(
    operator, three
):
    page = operator.get("/inbox/?tool=issue_refund").content.decode()
    assert f'name="text"\n      maxlength="{REJECTION_CHARACTERS}"' in page
    session = three[2].session
    single = operator.get(f"/sessions/{session.pk}/reject/", {"call": three[2].call_id}).content.decode()
    assert f'maxlength="{REJECTION_CHARACTERS}"' in single
    long = "x" * (REASON_CHARACTERS + 1)
    refused = operator.post(ADDRESS, ticks(three, text=long))
    assert refused.status_code == 400
    assert "at most 2000 characters (it has 2001)" in refused.content.decode()
    assert decisions() == ["", "", ""]
    longest = "x" * REJECTION_CHARACTERS
    refused = operator.post(ADDRESS, ticks(three, "reject", text=longest + "x"))
    assert "at most 4000 characters (it has 4001)" in refused.content.decode()
    assert operator.post(ADDRESS, ticks(three, "reject", text=longest)).status_code == 302
    assert set(Approval.objects.values_list("message", flat=True)) == {longest}


@pytest.mark.slow
def test_one_that_somebody_else_has_decided_does_not_hold_up_the_others(operator, three):
    Approval.objects.filter(pk=three[1].pk).update(
        decision="rejected", decided_by="berta", decided_at=timezone.now()
    )
    answer = operator.post(ADDRESS, ticks(three))
    text = answer.content.decode()
    assert answer.status_code == 409
    assert decisions() == ["approved", "rejected", "approved"]
    assert "already rejected by berta" in text
    assert len(re.findall(r"</span>:\s+approved", text)) == 2


def test_arguments_that_were_edited_for_a_call_that_somebody_else_has_decided_are_shown(operator, three):
    Approval.objects.filter(pk=three[1].pk).update(
        decision="approved", decided_by="berta", decided_at=timezone.now(), edited={"amount": 3}
    )
    edited = {
        f"{prefix_of(approval)}{name}": text
        for approval in three
        for name, text in (("claim", "CLM-1042"), ("amount", "75.5"))
    }
    answer = operator.post(ADDRESS, ticks(three, **edited))
    assert answer.status_code == 409
    unsent = [outcome.unsent for outcome in answer.context["outcomes"]]
    assert unsent == [(), (("Amount", "75.5"),), ()]
    assert answer.content.decode().count("Amount: not sent") == 1


def test_arguments_that_nobody_has_seen_are_not_approved(operator, three):
    sent = ticks(three[:1])
    sent["call"] = [f"{three[0].pk}:{'0' * 64}"]
    answer = operator.post(ADDRESS, sent)
    assert answer.status_code == 409
    assert "arguments have changed since you were shown them" in answer.content.decode()
    assert decisions()[0] == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed, ticked, said",
    [
        ({"call": []}, 0, "Select at least one call."),
        ({"call": ["x:y", "99999:z"]}, 0, "Select at least one call."),
        ({"decision": "reject", "text": " "}, 1, "Tell the agents why"),
    ],
)
def test_what_is_missing_is_said_and_the_ticks_are_kept(operator, three, changed, ticked, said):
    answer = operator.post(ADDRESS, ticks(three[:1]) | changed)
    text = answer.content.decode()
    assert answer.status_code == 400
    assert said in text
    assert len(re.findall(r"\schecked\s*>", text)) == ticked
    assert decisions() == ["", "", ""]


def test_without_a_button_nothing_is_decided_and_what_was_typed_and_ticked_is_kept(operator, three):
    sent = ticks(three[:2], text="Not today", undecided="on") | {"decision": ""}
    answer = operator.post(ADDRESS, sent | {f"arg-{three[2].pk}-amount": "17.25"})
    text = answer.content.decode()
    assert answer.status_code == 400
    assert "Nothing was decided. Choose Approve or Reject." in text
    assert len(re.findall(r"\schecked\s*>", text)) == 2
    assert 'value="Not today"' in text
    assert 'value="17.25"' in text
    assert decisions() == ["", "", ""]


@pytest.mark.slow
def test_the_text_that_a_rejection_lacks_is_marked_and_has_the_focus(operator, three):
    text = operator.post(ADDRESS, ticks(three, "reject")).content.decode()
    [field] = re.findall(r'<input\s+id="batch-text"[^>]*>', text)
    assert 'aria-invalid="true" aria-describedby="batch-text-error" autofocus' in field
    assert "autofocus" not in operator.get("/inbox/?tool=issue_refund").content.decode()
    assert re.search(r'id="batch-text-error"><p[^>]*>Tell the agents why', text)


def test_what_was_typed_is_kept_where_no_call_of_the_tool_is_open(operator):
    answer = operator.post(ADDRESS, ticks([], "reject", text="The policy has lapsed"))
    assert answer.status_code == 400
    assert "Select at least one call." in answer.content.decode()
    assert 'value="The policy has lapsed"' in answer.content.decode()


@pytest.mark.slow
def test_only_calls_of_one_tool_are_decided_together(operator, three):
    history = builders.looked_up()
    history.reply(calls=[("send_letter", {"text": "Dear"})])
    letter = history.ask(history.calls[-1])
    history.rest("waiting", waiting_for="approval")
    answer = operator.post(ADDRESS, ticks([*three, letter]))
    assert answer.status_code == 400
    assert "several tools" in answer.content.decode()
    assert decisions() == ["", "", "", ""]


@pytest.mark.slow
def test_it_needs_a_login_the_permission_and_the_right_method(client, three):
    assert client.post(ADDRESS, ticks(three))["Location"].startswith("/login/")
    client.force_login(builders.user("viewer"))
    answer = client.post(ADDRESS, ticks(three))
    assert answer.status_code == 403
    assert "Deciding an approval needs the operator or supervisor role." in answer.content.decode()
    assert client.get(ADDRESS).status_code == 405
    assert decisions() == ["", "", ""]


@pytest.mark.slow
def test_what_was_ticked_and_edited_on_a_later_page_of_a_filtered_list_is_there_after_a_refusal(operator):
    for number in range(14):
        builders.waiting_for_approval(title=f"Refund {number}")
    first = operator.get("/inbox/?kind=approval&tool=issue_refund&assignee=nobody").content.decode()
    [following] = re.findall(r'href="([^"]+)" rel="next"', first)
    second = operator.get(unescape(following)).content.decode()
    [action] = re.findall(r'<form id="batch"[^>]* action="([^"]+)"', second)
    calls = [unescape(value) for value in re.findall(r'name="call"\s+form="batch"\s+value="([^"]+)"', second)]
    assert 0 < len(calls) < 14
    [amount] = re.findall(rf'name="(c{calls[0].partition(":")[0]}-arg-amount|[^"]*amount)"', second)[:1]
    sent = {"call": calls, "decision": "reject", "tool": "issue_refund", amount: "17.25"}
    answer = operator.post(unescape(action), sent)
    assert answer.status_code == 400
    text = answer.content.decode()
    for call in calls:
        assert re.search(rf'value="{re.escape(call)}"[^>]*\schecked', text), call
    assert 'value="17.25"' in text
    for link in re.findall(r'href="(/inbox/\?[^"]*)"', text):
        if "Mine" not in link and "tool=" in link:
            assert "assignee=" in link


def test_after_deciding_several_the_inbox_is_filtered_as_it_was(operator, three):
    query = "kind=approval&tool=issue_refund&assignee=nobody"
    answer = operator.post(f"{ADDRESS}?{query}&after=x", ticks(three[:1], text="Known"))
    assert answer.status_code == 302
    assert answer["Location"] == f"/inbox/?{query}#inbox-heading"
