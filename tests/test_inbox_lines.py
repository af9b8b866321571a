"""What the lines of the inbox about failures and stuck sessions say, and which buttons they offer."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.http import QueryDict
from django.template import Context, Template
from django.utils import timezone

from sessions_app.action_list import FORK, RESUME
from sessions_app.desk.pages.advice import Advice
from sessions_app.desk.pages.approvals import SentencePart
from sessions_app.desk.pages.arguments import fields
from sessions_app.desk.pages.inbox import Failed, Line, Stuck
from sessions_app.finding.counting import Count
from sessions_app.finding.inbox_rows import FAILED, STUCK
from sessions_app.models import Session
from sessions_app.templatetags import cards, drawn
from tests import builders

pytestmark = pytest.mark.django_db
ADVICE = Advice("HTTP 400 from the model", "Fork it with other words.", FORK, "Fork with another message")


@pytest.fixture(autouse=True)
def nothing_drawn() -> None:
    drawn.parts.clear()


@pytest.fixture
def session() -> Session:
    return builders.failed(title="Roof")


def failed(session: Session, **changes: Any) -> Failed:
    two = Failed(
        session=session,
        number=Count(2, more=False),
        key="cause",
        last=session.updated_at,
        agent_title="Claims desk",
        error="BadRequest: too long",
        advice=None,
        refusal="",
        cannot_run="",
    )
    return replace(two, **changes)


def line(kind: str, item: Failed | Stuck, *, now: datetime | None = None) -> str:
    context = {
        "line": Line(kind, item.session.updated_at, item, id="line-1"),
        "why_not": dict.fromkeys(("resume", "assign", "release"), ""),
        "now": now or timezone.now(),
        "back": "",
        "sessions_query": QueryDict("queue=all"),
    }
    return Template("{% load cards %}{% drawn_line line %}").render(Context(context))


def test_what_failed_is_said_once_and_is_an_error_where_nothing_more_is_known(session: Session) -> None:
    unknown = line(FAILED, failed(session))
    assert "2 sessions: An error" in unknown
    assert "BadRequest: too long" in unknown
    known = line(FAILED, failed(session, advice=ADVICE))
    assert "2 sessions: HTTP 400 from the model" in known
    assert "BadRequest: too long" in known
    same = line(FAILED, failed(session, advice=ADVICE, error=ADVICE.what))
    assert same.count(ADVICE.what) == 1


def test_all_are_tried_again_only_where_that_may_help(session: Session) -> None:
    tried = "Try all 2 again…"
    assert tried in line(FAILED, failed(session))
    assert tried in line(FAILED, failed(session, advice=replace(ADVICE, action=RESUME)))
    assert tried not in line(FAILED, failed(session, advice=ADVICE))
    off = line(FAILED, failed(session, cannot_run="Its agent cannot run."))
    assert tried not in off
    assert "Its agent cannot run." in off


def test_what_is_refused_is_a_button_that_says_why(session: Session) -> None:
    one = failed(session, number=Count(1, more=False), advice=ADVICE)
    dialog = f"/sessions/{session.pk}/fork/"
    assert dialog in line(FAILED, one)
    refused = line(FAILED, replace(one, refusal="Its branch is empty."))
    assert dialog not in refused
    assert "Its branch is empty." in refused
    assert "Open the session" in refused


@pytest.mark.parametrize("definition", ["", "f" * 64])
def test_what_has_changed_of_an_agent_can_be_looked_at_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch, definition: str
) -> None:
    changed = builders.changed()
    monkeypatch.setattr(Session, "new_definition", definition)
    page = f"/sessions/{changed.pk}/definition-changes/"
    assert (page in line(FAILED, failed(changed))) == bool(definition)


def test_a_stuck_line_names_the_agent_by_its_title_and_its_age(session: Session) -> None:
    stuck = Stuck(session, "Claims desk", "Its worker is gone.", "Only a supervisor can release it.")
    text = line(STUCK, stuck)
    assert ">Claims desk<" in text
    assert "Its worker is gone." in text
    assert "Only a supervisor can release it." in text
    assert line(STUCK, stuck, now=timezone.now() + timedelta(days=3)) != text


def test_the_sentence_of_a_card_has_the_inputs_of_its_own_form() -> None:
    def sentence(prefix: str) -> str:
        [amount] = fields({"amount": "5"}, {}, prefix=prefix)
        parts = [SentencePart("Pay "), SentencePart("5", amount)]
        return cards.shown_sentence(Mock(summary="Pay 5", sentence=parts))

    assert sentence("a-") == sentence("a-")
    assert 'data-of="a-amount"' in sentence("a-")
    assert 'data-of="b-amount"' in sentence("b-")
