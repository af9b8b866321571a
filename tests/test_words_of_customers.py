"""What a customer says is labelled as the customer's, whoever of the staff typed it in; what staff says as theirs."""

import re

import pytest
from django.test import Client

from sessions_app import actions
from sessions_app.access.roles import Actor
from sessions_app.desk.pages import compare
from sessions_app.history import export
from sessions_app.models import Checkpoint, Message, Session
from tests import builders
from tests.pages import text_at

pytestmark = pytest.mark.django_db

AGE = r"[\w ]+"


def words(client: Client, address: str) -> str:
    page = text_at(client, address)
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def answered() -> Session:
    """A customer's question that olga typed in, and a message of her own."""
    history = builders.History()
    history.user("Is my windscreen covered?", author="olga")
    Message.objects.update(from_customer=True)
    history.user("Be brief", author="olga")
    history.checkpoint("step")
    return history.rest("queued")


def test_what_a_session_is_started_with_is_the_customers_and_says_who_entered_it(client: Client) -> None:
    builders.agent()
    user = builders.user("operator", "olga")
    session = actions.start(actor=Actor.of(user), agent="claims", message="Is my windscreen covered?")
    actions.send_message(actor=Actor.of(user), session_id=session.pk, text="Be brief")
    client.force_login(user)
    client.post(f"/sessions/{session.pk}/message/", {"text": "And the mirror?", "from_customer": "on"})
    said = [(row.text, row.staff, row.entered_by) for row in session.inbox.all()]
    assert said == [
        ("Is my windscreen covered?", "", "olga"),
        ("Be brief", "olga", ""),
        ("And the mirror?", "", "olga"),
    ]
    for tab in ("", "conversation/"):
        page = words(client, f"/sessions/{session.pk}/{tab}")
        assert re.search(
            rf"Customer unread {AGE} Is my windscreen covered\? Details entered by olga", page
        ), tab
        assert re.search(rf"olga staff unread {AGE} Be brief", page), tab


def test_the_timeline_and_the_conversation_name_who_says_it(client: Client) -> None:
    session = answered()
    client.force_login(builders.user("operator"))
    for tab in ("", "conversation/"):
        page = words(client, f"/sessions/{session.pk}/{tab}")
        assert re.search(rf"Customer {AGE} # Is my windscreen covered\? Details entered by olga", page), tab
        assert re.search(rf"olga staff {AGE} # Be brief", page), tab


def test_the_comparison_the_export_and_the_people_filter_name_who_says_it() -> None:
    session = answered()
    context = builders.context_of(session)
    rows = list(Message.objects.order_by("position"))
    assert [row.who for row in rows] == ["Customer", "olga"]
    sides = compare._sides(context.branch, [row.pk for row in rows], context.mask, context.mask)
    assert [side.who for side in sides.values()] == ["Customer", "olga"]
    exported = export.session_json(context.session_row, mask=context.mask, keys=["messages"])["messages"]
    assert [(row["author"], row["from_customer"]) for row in exported] == [("olga", True), ("olga", False)]
    assert Checkpoint.objects.exists()
