"""Calls that an open page keeps when their step is drawn again: those that it shows ended."""

import html
import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from django.test import Client

from sessions_app.models import Session
from tests import builders
from tests.pages import text_at
from tests.test_desk_live import ask, poll_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(client: Client) -> Client:
    client.force_login(builders.user("operator"))
    return client


def fields(page: str) -> list[str]:
    return [html.unescape(value) for value in re.findall(r'name="ended" value="([^"]*)"', page)]


def asked_by(page: str, *ended: str) -> str:
    """What a page asks, as htmx does: with the fields that it has, or with these instead."""
    return poll_of(page) + "".join(f"&ended={quote(field)}" for field in ended or fields(page))


def placeholders(answer: str) -> list[int]:
    return [int(position) for position in re.findall(r'<div id="c(\d+)" hx-preserve></div>', answer)]


def with_an_ended_call(result: str = "refunded 120 EUR") -> builders.History:
    """A running session whose newest step has a call that has ended, and has not ended itself."""
    history = builders.refunding()
    history.begin(history.calls[-1])
    history.finish(history.calls[-1], result)
    history.rest("running")
    return history


def test_a_call_that_the_page_shows_ended_is_not_sent_again_with_its_step(desk: Client) -> None:
    history = with_an_ended_call()
    call = history.calls[-1]
    page = text_at(desk, f"/sessions/{history.session.pk}/")
    assert "refunded 120 EUR" in page
    step = history.checkpoint("step")
    answer = ask(desk, asked_by(page)).content.decode()
    assert placeholders(answer) == [call.position]
    assert "refunded 120 EUR" not in answer
    assert f'id="k{step.position}"' in answer
    # Who does not say what it shows is sent it.
    answer = ask(desk, poll_of(page)).content.decode()
    assert placeholders(answer) == []
    assert "refunded 120 EUR" in answer


def test_of_calls_at_the_same_time_those_that_have_ended_are_kept(desk: Client) -> None:
    history = builders.looked_up()
    history.reply("Both.", [("lookup_policy", {"policy": "POL-8"}), ("lookup_policy", {"policy": "POL-9"})])
    first, second = history.calls[-2:]
    history.begin(first)
    history.begin(second)
    history.finish(second, "the second")
    session = history.rest("running")
    page = text_at(desk, f"/sessions/{session.pk}/")
    history.finish(first, "the first")
    answer = ask(desk, asked_by(page)).content.decode()
    assert placeholders(answer) == [second.position]
    assert "the first" in answer
    # From then on the page has both.
    history.checkpoint("step")
    answer = ask(desk, asked_by(answer)).content.decode()
    assert sorted(placeholders(answer)) == [first.position, second.position]
    assert "the first" not in answer


def test_only_the_newest_step_of_a_running_session_says_which_calls_have_ended(desk: Client) -> None:
    history = with_an_ended_call()
    history.event("noted", reason="Call back")
    address = f"/sessions/{history.session.pk}/"
    event = history.session.events.order_by("-position").first()
    assert event is not None
    assert fields(text_at(desk, address)) == [f"{event.position} {history.calls[-1].position}"]
    history.checkpoint("step")
    assert fields(text_at(desk, address)) == []
    history.reply("And again.", [("lookup_policy", {"policy": "POL-8"})])
    history.begin(history.calls[-1])
    assert fields(text_at(desk, address)) == []
    history.finish(history.calls[-1], "active")
    assert fields(text_at(desk, address)) == [f"{event.position} {history.calls[-1].position}"]
    history.rest("paused")
    assert fields(text_at(desk, address)) == []


def note(history: builders.History) -> None:
    history.event("noted", reason="Call back")


def pause(history: builders.History) -> None:
    history.rest("paused")


def end(history: builders.History) -> None:
    history.rest("idle")


@pytest.mark.parametrize("change", [note, pause, end])
def test_what_may_show_a_call_differently_has_it_sent_again(
    desk: Client, change: Callable[[builders.History], object]
) -> None:
    history = with_an_ended_call()
    page = text_at(desk, f"/sessions/{history.session.pk}/")
    history.checkpoint("step")
    change(history)
    answer = ask(desk, asked_by(page)).content.decode()
    assert placeholders(answer) == []
    assert "refunded 120 EUR" in answer


def test_a_page_of_a_history_that_was_discarded_is_sent_all_of_the_present_one(desk: Client) -> None:
    history = with_an_ended_call()
    page = text_at(desk, f"/sessions/{history.session.pk}/")
    history.checkpoint("step")
    answer = ask(desk, asked_by(page).replace("branch=1", "branch=0")).content.decode()
    assert placeholders(answer) == []
    assert "refunded 120 EUR" in answer


@pytest.mark.parametrize(
    "field", ["", " ", "x", "0", "0 ", "0 x", "0 ²", "0 1.5", "0 -1", "0 " + "9" * 5000, "1 " * 9000]
)
def test_a_field_that_no_page_has_keeps_nothing(desk: Client, field: str) -> None:
    history = with_an_ended_call()
    page = text_at(desk, f"/sessions/{history.session.pk}/")
    history.checkpoint("step")
    answer = ask(desk, asked_by(page, field)).content.decode()
    assert placeholders(answer) == []
    assert "refunded 120 EUR" in answer


def test_a_step_of_very_many_calls_says_it_of_some(desk: Client) -> None:
    history = builders.looked_up()
    history.reply("All.", [("lookup_policy", {"policy": f"POL-{number}"}) for number in range(60)])
    calls = history.calls[-60:]
    for call in calls:
        history.begin(call)
        history.finish(call, "active")
    session: Session = history.rest("running")
    page = text_at(desk, f"/sessions/{session.pk}/")
    history.checkpoint("step")
    answer = ask(desk, asked_by(page)).content.decode()
    assert placeholders(answer) == [call.position for call in calls[:50]]
    assert all(f'id="c{call.position}"' in answer for call in calls)
