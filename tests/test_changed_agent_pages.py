"""Where the pages say that an agent has changed: once, in plain words, and only where a session is to go on."""

import html
import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app.finding import causes, inbox
from sessions_app.models import Checkpoint, RegisteredAgent, Session
from tests import builders
from tests.pages import text_at

pytestmark = pytest.mark.django_db

NEW = "e" * 64
ENGINE = (
    "The agent has changed since the last checkpoint (4543189d is now b6ba5fdc). Resume to go on with it."
)


def change_agent() -> None:
    RegisteredAgent.objects.update(definition=NEW)


def parked(**fields: object) -> Session:
    """A session that waits since its agent has changed, with the reason as earlier versions wrote it."""
    session = builders.changed(**fields)
    Session.objects.filter(pk=session.pk).update(why=ENGINE)
    return Session.objects.get(pk=session.pk)


def text_of(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def banners(client: Client, session: Session) -> list[str]:
    page = text_at(client, f"/sessions/{session.pk}/")
    return [text_of(text) for text in re.findall(r'<div class="banner [a-z]+">(.*?)</div>', page, re.DOTALL)]


@pytest.mark.slow
def test_a_session_that_waits_for_it_has_one_banner_in_plain_words_with_what_changed(operator):
    session = parked()
    change_agent()
    assert banners(operator, session) == [
        "The agent has changed since this session last ran. "
        "It continues with the new definition once it is resumed. See what changed"
    ]
    page = text_of(operator.get(f"/sessions/{session.pk}/definition-changes/").content.decode())
    assert "Since this session last ran, its agent has been changed as follows." in page


@pytest.mark.slow
@pytest.mark.parametrize(
    "build, said",
    [
        (builders.paused, "Paused. lunch The agent has changed since this session last ran. It continues"),
        (builders.retries_used_up, "Gave up retrying. 5 attempts without progress. The agent has changed"),
        (
            builders.failed,
            "another attempt runs with the new definition, and may end differently. See what changed",
        ),
        (builders.in_doubt, "issue_refund is in doubt."),
        (builders.waiting_for_approval, "issue_refund needs approval:"),
    ],
)
def test_other_sessions_that_are_to_go_on_say_it_in_the_banner_that_they_have(operator, build, said):
    session = build()
    change_agent()
    [banner] = banners(operator, session)
    assert said in banner
    assert text_of(operator.get(f"/sessions/{session.pk}/").content.decode()).count("See what changed") == 1


@pytest.mark.slow
@pytest.mark.parametrize("build", [builders.done, builders.cancelled])
def test_a_session_that_is_over_says_nothing_of_it_but_in_the_dialog_that_lets_it_go_on(operator, build):
    session = build()
    change_agent()
    assert "The agent has changed" not in text_of(text_at(operator, f"/sessions/{session.pk}/"))
    step = Checkpoint.objects.filter(branch__session=session, kind="step").earliest("position")
    for action in ("rewind", "fork"):
        dialog = operator.get(f"/sessions/{session.pk}/{action}/?checkpoint={step.pk}").content.decode()
        assert (
            "The agent has changed since that step, so the session will wait until a person resumes it with the new "
            "definition. See what changed"
        ) in text_of(dialog)


def test_from_the_end_of_a_turn_the_next_one_runs_with_the_new_definition_without_a_question(operator):
    session = builders.done()
    change_agent()
    end = Checkpoint.objects.get(branch__session=session, kind="end")
    dialog = text_at(operator, f"/sessions/{session.pk}/fork/?checkpoint={end.pk}")
    assert "The agent has changed" not in text_of(dialog)


@pytest.mark.slow
def test_an_agent_that_cannot_be_built_is_said_in_one_banner(operator):
    session = parked()
    RegisteredAgent.objects.update(problem="SyntaxError: invalid syntax (claims.py, line 3)")
    cannot = "Its agent cannot be built: SyntaxError: invalid syntax (claims.py, line 3)."
    assert banners(operator, session) == [f"It cannot continue. {cannot}"]
    card = text_of(operator.get("/inbox/").content.decode())
    assert re.search(
        rf"The agent cannot run Claims desk .{{1,20}} {re.escape(cannot)} It can be resumed once that is corrected\. "
        rf"Open the session {re.escape(str(session))}",
        card,
    )


@pytest.mark.slow
def test_the_inbox_counts_changed_agents_as_a_kind_of_their_own_with_a_link_to_what_changed(operator):
    failed, session = builders.failed(), parked(title="Parked")
    change_agent()
    page = operator.get("/inbox/").content.decode()
    assert "All 2 Approvals 0 In doubt 0 Failed 1 Agent changed 1 Stuck 0" in text_of(page)
    assert f'href="/sessions/{session.pk}/definition-changes/"' in page
    assert "4543189d" not in page
    only = operator.get("/inbox/?kind=changed").content.decode()
    assert "1 to decide" in text_of(only)
    assert f'id="line-changed-{session.pk}"' in only
    assert f"line-failed-{failed.pk}" not in only
    RegisteredAgent.objects.update(definition=builders.DEFINITION)
    Session.objects.filter(pk=session.pk).delete()
    assert "Failed 1 Stuck 0" in text_of(operator.get("/inbox/").content.decode())


@pytest.mark.slow
def test_many_sessions_of_a_changed_agent_are_one_line_that_is_paged_with_the_other_kinds(operator):
    now = timezone.now()
    for number in range(4):
        parked(
            agent_key="claims" if number < 3 else "letters", created_at=now - timedelta(minutes=9 - number)
        )
    builders.failed(created_at=now - timedelta(minutes=7))
    change_agent()
    assert [cause.number.number for cause in causes.read_causes()["changed"]] in ([3, 1], [1, 3])
    assert [cause.number.number for cause in causes.read_causes()["failed"]] == [1]
    whole = [(entry.kind, entry.key) for entry in inbox.read_page(now).entries]
    assert sorted(kind for kind, _ in whole) == ["changed", "changed", "failed"]
    paged, after = [], ""
    while True:
        page = inbox.read_page(now, after=after, limit=1)
        paged += [(entry.kind, entry.key) for entry in page.entries]
        if not page.next:
            break
        after = page.next
    assert paged == whole
    assert "3 sessions: The agent has changed" in text_of(operator.get("/inbox/").content.decode())
