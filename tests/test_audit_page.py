"""The audit tab of a session: every event, whole, in either order."""

import re

import pytest
from django.test import Client

from sessions_app.access.roles import Actor
from sessions_app.models import Session, ToolCall
from tests import builders
from tests.pages import text_at

pytestmark = pytest.mark.django_db

ANNA = Actor.system("anna")


@pytest.fixture
def desk(client: Client) -> Client:
    client.force_login(builders.user("supervisor"))
    return client


def rows(desk: Client, session: Session, query: str = "") -> list[str]:
    """The entries as text, in the order of the page."""
    page = text_at(desk, f"/sessions/{session.pk}/audit/{query}")
    found = re.findall(r'<tr id="e.*?</tr>', page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in found]


@pytest.mark.slow
def test_events_of_the_same_moment_are_read_in_the_order_that_the_page_names(desk: Client) -> None:
    history = builders.asked()
    history.event("paused", ANNA, "Lunch")
    history.event("resumed", ANNA, "Back")
    session = history.rest("paused")
    newest, oldest = rows(desk, session), rows(desk, session, "?order=oldest")
    assert "Resumed it" in newest[0]
    assert "Paused it" in newest[1]
    assert oldest == newest[::-1]
    assert "Newest first" in desk.get(f"/sessions/{session.pk}/audit/").content.decode()
    assert "Oldest first" in desk.get(f"/sessions/{session.pk}/audit/?order=oldest").content.decode()


@pytest.mark.slow
@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_pages_follow_each_other_without_a_gap_in_both_orders(desk: Client, order: str) -> None:
    history = builders.asked()
    for number in range(230):
        history.event("noted", ANNA, f"Note {number}.")
    session = history.rest("paused")
    query, seen = f"?order={order}", []
    while query:
        page = desk.get(f"/sessions/{session.pk}/audit/{query}").content.decode()
        seen += re.findall(r"Note (\d+)\.", page)
        following = re.search(r'href="([^"]*)" rel="next"', page)
        query = following[1].replace("&amp;", "&") if following else ""
    numbers = [str(number) for number in range(230)]
    assert seen == (numbers if order == "oldest" else numbers[::-1])


def test_what_was_recorded_with_an_event_is_told_in_words(desk: Client) -> None:
    history = builders.asked()
    history.event("revealed", ANNA, what="the customer of the session")
    history.event("decided", ANNA, tool="send_letter", decision="again")
    history.event("approved", ANNA, tool="issue_refund", for_session=True)
    history.event("stop_requested", ANNA, request="pause")
    history.event("released", ANNA, worker="vm:7", attempt=2)
    history.event("rewound", ANNA, from_branch=1, to_branch=2)
    history.event("breakpoint_set", ANNA, tool="issue_refund", when=None, once=True, number=1)
    history.event("resumed", ANNA, bulk=3)
    texts = rows(desk, history.rest("paused"), "?order=oldest")[-8:]
    for text, sentence in zip(
        texts,
        (
            "Revealed: the customer of the session.",
            "It did not take effect: run again.",
            "Pre-approved for the rest of this session.",
            "To pause.",
            "Worker vm:7, attempt 2.",
            "From branch 1 to branch 2.",
            "Before issue_refund, once.",
            "Bulk action 3.",
        ),
        strict=True,
    ):
        assert text.endswith(sentence)


def test_the_arguments_of_a_decided_call_are_listed_by_their_titles_and_formats(desk: Client) -> None:
    properties = {"claim": {"type": "string", "title": "Claim number"}, "amount": {"type": "number"}}
    pay = builders.tool("pay", properties=properties, approval=True, formats={"amount": "money:EUR"})
    builders.agent(tools=[pay])
    history = builders.asked()
    history.reply(calls=[("pay", {"claim": "CLM-1", "amount": 450})])
    call = ToolCall.objects.get()
    history.event("approved", ANNA, call=call.pk, tool=call.tool)
    [entry] = rows(desk, history.rest("paused"))[:1]
    assert "Approved pay open call Claim number CLM-1 Amount €450.00" in entry
    assert "{" not in entry


def test_branches_and_checkpoints_of_an_entry_stand_in_its_details(desk: Client) -> None:
    session = builders.rewound()
    page = desk.get(f"/sessions/{session.pk}/audit/").content.decode()
    outside = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
    assert "From branch 1 to branch 2." in page
    assert "branch" not in outside[outside.index("<tbody>") : outside.index("</tbody>")]


def test_long_arguments_of_a_decided_call_are_shown_whole(desk: Client) -> None:
    history = builders.asked()
    history.reply(calls=[("send_letter", {"text": "The roofer comes on Thursday. " * 20 + "Please be in."})])
    call = ToolCall.objects.get()
    history.event("approved", ANNA, call=call.pk, tool=call.tool)
    assert "Please be in." in rows(desk, history.rest("paused"))[0]


def test_an_event_without_a_reason_has_no_label_for_one(desk: Client) -> None:
    history = builders.asked()
    history.event("paused", ANNA, "Lunch")
    history.event("noted", ANNA)
    page = desk.get(f"/sessions/{history.rest('paused').pk}/audit/").content.decode()
    assert page.count('data-label="Why"') == 1
    assert "<td></td>" in page


@pytest.mark.parametrize("data", [[], "text", {"call": "x"}, {"when": 5, "tool": 3}, {"worker": {}}])
def test_an_event_with_data_of_an_unknown_form_is_listed(desk: Client, data: object) -> None:
    history = builders.asked()
    event = history.event("decided", ANNA, "As ever")
    event.data = data
    event.save()
    assert "As ever" in rows(desk, history.rest("paused"))[0]
