"""What a tool returned before is found in the customer's last sessions, and not among all calls of the tool."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.desk.pages.session import samples
from sessions_app.models import Session
from tests import builders

pytestmark = pytest.mark.django_db


def returned(result: dict[str, str], **fields: str) -> Session:
    history = builders.History(**fields)
    history.checkpoint("start")
    history.reply(calls=[("send_letter", {"text": "Hello"})])
    history.finish(history.calls[-1], result)
    history.checkpoint("step")
    history.reply("Sent.")
    return history.end("Sent.")


def sample_for(session: Session) -> samples.Sample | None:
    found = samples.of_tools(builders.context_of(session), ["send_letter"])
    return found[0] if found else None


def test_a_result_of_the_same_session_or_customer_is_shown_and_of_another_customer_only_its_form():
    ada = builders.in_doubt()
    assert sample_for(ada) is None
    returned({"letter": "L-1"}, customer="Grace Hopper")
    of_another = sample_for(ada)
    assert of_another is not None
    assert (of_another.is_form, "text" in of_another.text, "L-1" in of_another.text) == (True, True, False)
    returned({"letter": "L-2"}, customer=ada.customer)
    of_customer = sample_for(ada)
    assert of_customer is not None
    assert (of_customer.is_form, "L-2" in of_customer.text) == (False, True)
    # With another agent the tool may be another one.
    other = returned({"letter": "L-3"}, customer=ada.customer)
    Session.objects.filter(pk=other.pk).update(agent="letters")
    assert sample_for(ada) == of_customer


def test_only_the_last_sessions_of_the_customer_are_looked_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(samples, "RECENT", 2)
    ada = builders.in_doubt()
    old = returned({"letter": "L-1"}, customer=ada.customer)
    Session.objects.filter(pk=old.pk).update(updated_at=timezone.now() - timedelta(days=9))
    assert "L-1" in str(sample_for(ada))
    builders.done(customer=ada.customer)
    assert sample_for(ada) is None


def test_however_many_sessions_there_are_a_sample_takes_at_most_four_queries():
    ada = builders.in_doubt()
    for _ in range(3):
        returned({"letter": "L-1"}, customer="Grace Hopper")
    context = builders.context_of(ada)
    with CaptureQueriesContext(connection) as queries:
        assert samples.of_tools(context, ["send_letter"])
    assert len(queries) == 4
