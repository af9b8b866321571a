"""What helps against a failure: said once, with the button that does it; another attempt only where it can help."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app.desk.pages.advice import advice
from sessions_app.history import restore
from sessions_app.models import RegisteredAgent, Session
from tests import builders

pytestmark = pytest.mark.django_db


def failed(error: str) -> Session:
    history = builders.looked_up()
    history.model_fails(error)
    history.enter("error")
    history.event("failed", reason=error)
    return history.rest("idle", error=error)


@pytest.mark.parametrize(
    "error, what, text, label",
    [
        (
            "BadRequestError: Error code: 400 - no",
            "HTTP 400 from the model",
            "HTTP 400 will not go away by itself",
            "Edit the message",
        ),
        ("BadRequestError: maximum context length is 8192", "BadRequestError", "does not fit into", "Rewind"),
        (
            "AuthenticationError: 401 Invalid",
            "HTTP 401 from the model",
            "refuses the workers' credentials",
            "Try again",
        ),
        ("APIError: Error code: 503", "HTTP 503 from the model", "may pass by itself", "Try again"),
        ("ValueError: no such claim", "ValueError", "fails again unless its cause is gone", "Try again"),
    ],
)
def test_the_advice_fits_the_failure(error, what, text, label):
    given = advice(failed(error))
    assert given is not None
    assert given.what.startswith(what)
    assert text in given.text
    assert given.label == label


def test_a_changed_agent_makes_another_attempt_worth_it():
    session = failed("BadRequestError: Error code: 400 - no")
    RegisteredAgent.objects.update(definition="e" * 64)
    given = advice(Session.objects.get(pk=session.pk))
    assert given is not None
    assert given.label == "Try again"


def test_a_session_that_has_not_failed_gets_none():
    assert advice(builders.paused()) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "role, error, primary",
    [
        # An operator may not change what the model reads.
        ("operator", "BadRequestError: Error code: 400 - wrong field", "Rewind"),
        ("supervisor", "BadRequestError: Error code: 400 - wrong field", "Edit the message"),
        ("operator", "APIError: Error code: 503 - busy", "Try again"),
    ],
)
def test_the_page_says_the_error_once_and_offers_first_what_helps(client: Client, role, error, primary):
    client.force_login(builders.user(role))
    session = failed(error)
    page = client.get(f"/sessions/{session.pk}/").content.decode()
    assert page.count(error) == 1
    [first] = re.findall(r'<a class="button first"[^>]*>([^<]+)…</a>', page)
    assert first == primary
    assert "Try again…" in page
    assert "Try again</h1>" in client.get(f"/sessions/{session.pk}/resume/").content.decode()


def test_a_refused_message_is_edited_and_sent_again_from_where_its_failure_is_shown(client: Client):
    client.force_login(builders.user("supervisor"))
    session = failed("BadRequestError: Error code: 400 - wrong field")
    dialog = f"/sessions/{session.pk}/message-text/"
    assert f'href="{dialog}"' in client.get(f"/sessions/{session.pk}/").content.decode()
    assert f'href="{dialog}?' in client.get("/inbox/").content.decode()
    form = client.get(dialog).content.decode()
    assert "Is my windscreen covered by POL-7?</textarea>" in form
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    [pressed] = re.findall(r'<button class="button first" name="(\w+)" value="on">', form)
    sent = fields | {"text": "Is my roof covered?", "reason": "The provider refused it", pressed: "on"}
    assert client.post(dialog, sent).status_code == 302
    session = Session.objects.select_related("branch").get(pk=session.pk)
    assert (session.status, session.error) == ("queued", "")
    base = restore.read(builders.branch_of(session)).checkpoint
    assert base is not None
    assert base.context[-1].body["content"] == [{"text": "Is my roof covered?"}]


def test_who_may_not_edit_a_refused_message_is_told_what_they_can_do(client: Client):
    client.force_login(builders.user("operator"))
    session = failed("BadRequestError: Error code: 400 - wrong field")
    for address in (f"/sessions/{session.pk}/", "/inbox/"):
        page = client.get(address).content.decode()
        assert "or fork with the last message in other words." in page, address
        assert "Edit the message" not in page, address
        assert f"/sessions/{session.pk}/message-text/" not in page, address


def test_a_session_that_gave_up_on_a_refused_message_offers_to_edit_it_too(client: Client):
    client.force_login(builders.user("supervisor"))
    session = failed("x")
    why = "BadRequestError: Error code: 400 - wrong field"
    Session.objects.update(status="waiting", waiting_for="retries", phase="planning", error="", why=why)
    page = client.get(f"/sessions/{session.pk}/").content.decode()
    assert re.findall(r'<a class="button first"[^>]*>([^<]+)…</a>', page) == ["Edit the message"]


def test_the_header_of_a_failed_session_says_when_it_failed(client: Client):
    client.force_login(builders.user("viewer"))
    session = failed("ValueError: no such claim")
    Session.objects.update(phase_since=timezone.now() - timedelta(minutes=3, seconds=5))
    page = client.get(f"/sessions/{session.pk}/").content.decode()
    assert re.search(r"<b>Failed</b>\s*<time[^>]*>3 min ago</time>", page)
    assert "<b>error</b>" not in page
