"""What helps against a failure: said once, with the button that does it; another attempt only where it can help."""

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app.access.roles import Actor
from sessions_app.desk.pages.advice import advice
from sessions_app.desk.pages.causes import advice_for
from sessions_app.history import restore
from sessions_app.models import RegisteredAgent, Session
from tests import builders
from tests.pages import text_at

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
            "Asking the model again does not help with HTTP 400",
            "Edit the message",
        ),
        ("BadRequestError: maximum context length is 8192", "BadRequestError", "does not fit into", "Rewind"),
        (
            "AuthenticationError: 401 Invalid",
            "HTTP 401 from the model",
            "refuses the workers' credentials",
            "Try again",
        ),
        ("APIError: Error code: 503", "HTTP 503 from the model", "may be temporary", "Try again"),
        ("ValueError: no such claim", "ValueError", "will fail again unless the cause is gone", "Try again"),
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
        ("operator", "BadRequestError: Error code: 400 - wrong field", "Fork with another message"),
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_who_may_not_edit_a_refused_message_is_told_what_they_can_do(client: Client):
    client.force_login(builders.user("operator"))
    session = failed("BadRequestError: Error code: 400 - wrong field")
    for address in (f"/sessions/{session.pk}/", "/inbox/"):
        page = client.get(address).content.decode()
        assert "fork with the message reworded, or ask a supervisor to edit the message here." in page, (
            address
        )
        assert "Edit the message" not in page, address
        assert f"/sessions/{session.pk}/message-text/" not in page, address
        assert f'href="/sessions/{session.pk}/fork/?reword=last' in page, address
    form = client.get(f"/sessions/{session.pk}/fork/?reword=last").content.decode()
    assert "Is my windscreen covered by POL-7?</textarea>" in form
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    sent = fields | {"message": "Is my roof covered?", "reason": "The provider refused it"}
    assert client.post(f"/sessions/{session.pk}/fork/", sent).status_code == 302
    fork = Session.objects.select_related("branch").exclude(pk=session.pk).get()
    assert fork.status == "queued"
    base = restore.read(builders.branch_of(fork)).checkpoint
    assert base is not None
    assert [message.body["content"][0]["text"] for message in base.context[1:2]] == ["Is my roof covered?"]


def tool_failed() -> Session:
    history = builders.refunding()
    history.finish(history.calls[-1], error="no such claim")
    history.enter("error")
    history.event("failed", reason="no such claim", tool="issue_refund")
    return history.rest("idle", error="no such claim")


def gave_up() -> Session:
    session = builders.retries_used_up()
    Session.objects.filter(pk=session.pk).update(why="APIError: Error code: 503 - busy")
    return session


def cannot_run(build: Callable[[], Session]) -> Session:
    session = build()
    RegisteredAgent.objects.update(problem="ImportError: no module shop")
    return session


def changed() -> Session:
    session = builders.changed()
    RegisteredAgent.objects.update(definition="e" * 64)
    return session


ADVISED: dict[str, Callable[[], Session]] = {
    "refused message": lambda: failed("BadRequestError: Error code: 400 - no"),
    "too long": lambda: failed("BadRequestError: maximum context length is 8192"),
    "refused key": lambda: failed("AuthenticationError: 401 Invalid"),
    "unknown model": lambda: failed("NotFoundError: 404 no such model"),
    "busy": lambda: failed("APIError: Error code: 503"),
    "other": lambda: failed("ValueError: no such claim"),
    "tool": tool_failed,
    "gave up": gave_up,
    "agent changed": changed,
    "failed, and the agent cannot run": lambda: cannot_run(builders.failed),
    "parked, and the agent cannot run": lambda: cannot_run(builders.changed),
}
# What an advice may tell a person to do, by what it says, with the lowest role that may do it.
NAMED = {
    r"(?<!ask a supervisor to )edit the message": "supervisor",
    r"(?<!ask a supervisor to )set its result": "supervisor",
    "shorten the message": "supervisor",
}


@pytest.mark.slow
@pytest.mark.parametrize("role", ["viewer", "operator", "supervisor"])
@pytest.mark.parametrize("build", ADVISED.values(), ids=ADVISED)
def test_every_advice_can_be_followed_by_who_reads_it(client: Client, build, role):
    session = build()
    user = builders.user(role)
    client.force_login(user)
    given = advice_for(Session.objects.get(pk=session.pk))
    assert given is not None
    given = given.for_actor(Actor.of(user))
    for words, lowest in NAMED.items():
        assert lowest == role or not re.search(words, given.text), given.text
    pages = {
        address: unescape(text_at(client, address))
        for address in ("/inbox/", f"/sessions/{session.pk}/", f"/sessions/{session.pk}/resume/")
    }
    assert given.text in pages["/inbox/"]
    if given.action is None:
        if "once that is corrected" not in given.text:
            assert role == "viewer"
            assert given.text.endswith("needs the operator or supervisor role.")
        return
    assert role != "viewer"
    [link] = re.findall(
        rf'<a class="button first" role="button" href="([^"]*)"[^>]*>{given.label}…', pages["/inbox/"]
    )
    dialog = client.get(link)
    assert dialog.status_code == 200
    text = dialog.content.decode()
    assert 'aria-disabled="true"' not in text
    assert re.search(r'<button class="button first"|<ul class="choices">', text)


@pytest.mark.slow
def test_a_session_that_gave_up_on_a_refused_message_offers_to_edit_it_too(client: Client):
    client.force_login(builders.user("supervisor"))
    session = failed("x")
    why = "BadRequestError: Error code: 400 - wrong field"
    Session.objects.update(status="waiting", waiting_for="retries", phase="planning", error="", why=why)
    page = client.get(f"/sessions/{session.pk}/").content.decode()
    assert re.findall(r'<a class="button first"[^>]*>([^<]+)…</a>', page) == ["Edit the message"]


@pytest.mark.slow
def test_the_header_of_a_failed_session_says_when_it_failed(client: Client):
    client.force_login(builders.user("viewer"))
    session = failed("ValueError: no such claim")
    Session.objects.update(phase_since=timezone.now() - timedelta(minutes=3, seconds=5))
    page = client.get(f"/sessions/{session.pk}/").content.decode()
    assert re.search(r"<b>Failed</b>\s*<time[^>]*>3 min ago</time>", page)
    assert "<b>error</b>" not in page
