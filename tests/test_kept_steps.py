"""Steps that an open page keeps as it shows them: those of which only the colour and the phases are new."""

import html
import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from django.test import Client

from sessions_app import actions
from tests import builders
from tests.pages import text_at
from tests.test_desk_live import ask, poll_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(client: Client) -> Client:
    client.force_login(builders.user("operator"))
    return client


def marks(page: str) -> list[str]:
    return [html.unescape(value) for value in re.findall(r'name="mark" value="([^"]*)"', page)]


def asked_by(page: str, *others: str) -> str:
    """What a page asks, as htmx does: with the marks that it has, or with these instead."""
    return poll_of(page) + "".join(f"&mark={quote(mark)}" for mark in others or marks(page))


def kept(answer: str) -> list[int]:
    """The positions of the steps for which the answer has a placeholder."""
    return [int(position) for position in re.findall(r'<article id="a(\d+)" hx-preserve></article>', answer)]


def with_an_ended_call(result: str = "refunded 120 EUR") -> builders.History:
    """A running session whose newest step has a call that has ended, and has not ended itself."""
    history = builders.refunding()
    history.begin(history.calls[-1])
    history.finish(history.calls[-1], result)
    history.rest("running")
    return history


def test_of_a_step_that_the_page_shows_only_colour_and_phases_are_sent(desk: Client) -> None:
    history = with_an_ended_call()
    shown = history.last_checkpoint
    page = text_at(desk, f"/sessions/{history.session.pk}/")
    assert "refunded 120 EUR" in page
    history.enter("reflecting")
    step = history.checkpoint("step")
    answer = ask(desk, asked_by(page)).content.decode()
    assert kept(answer) == [shown.position]
    assert re.search(rf'<li\s+class="step done"\s+id="k{shown.position}"\s+hx-swap-oob="true"', answer)
    assert re.search(rf'<span id="p{shown.position}" hx-swap-oob="true">[^<]*→ reflecting</span>', answer)
    assert "refunded 120 EUR" not in answer
    assert f'id="k{step.position}"' in answer
    # Who does not say what it shows is sent it.
    answer = ask(desk, poll_of(page)).content.decode()
    assert kept(answer) == []
    assert "refunded 120 EUR" in answer


def test_a_step_that_is_still_the_newest_is_kept_with_its_mark(desk: Client) -> None:
    history = with_an_ended_call()
    page = text_at(desk, f"/sessions/{history.session.pk}/")
    history.save(title="Another title")
    answer = ask(desk, asked_by(page)).content.decode()
    assert kept(answer) == [history.last_checkpoint.position]
    assert marks(answer) == marks(page)


def test_only_the_newest_step_of_a_running_session_has_a_mark_once_its_calls_have_ended(desk: Client) -> None:
    history = with_an_ended_call()
    history.event("noted", reason="Call back")
    address = f"/sessions/{history.session.pk}/"
    [mark] = marks(text_at(desk, address))
    assert mark.startswith(f"{history.last_checkpoint.position}-")
    history.checkpoint("step")
    assert marks(text_at(desk, address)) == []
    history.reply("And again.", [("lookup_policy", {"policy": "POL-8"})])
    history.begin(history.calls[-1])
    assert marks(text_at(desk, address)) == []
    history.finish(history.calls[-1], "active")
    assert len(marks(text_at(desk, address))) == 1
    history.rest("paused")
    assert marks(text_at(desk, address)) == []


def note(history: builders.History) -> None:
    history.event("noted", reason="Call back")


def pause(history: builders.History) -> None:
    history.rest("paused")


def end(history: builders.History) -> None:
    history.rest("idle")


def call_the_model(history: builders.History) -> None:
    history.model_fails()


@pytest.mark.parametrize("change", [note, pause, end, call_the_model])
def test_what_may_show_a_step_differently_has_it_sent_again(
    desk: Client, change: Callable[[builders.History], object]
) -> None:
    history = with_an_ended_call()
    page = text_at(desk, f"/sessions/{history.session.pk}/")
    change(history)
    history.checkpoint("step")
    answer = ask(desk, asked_by(page)).content.decode()
    assert kept(answer) == []
    assert "refunded 120 EUR" in answer


def test_a_call_that_ends_is_sent_though_others_of_its_step_had_ended(desk: Client) -> None:
    history = builders.looked_up()
    history.reply("Both.", [("lookup_policy", {"policy": "POL-8"}), ("lookup_policy", {"policy": "POL-9"})])
    first, second = history.calls[-2:]
    history.begin(first)
    history.begin(second)
    history.finish(second, "the second")
    page = text_at(desk, f"/sessions/{history.rest('running').pk}/")
    history.finish(first, "the first")
    answer = ask(desk, asked_by(page)).content.decode()
    assert kept(answer) == []
    assert "the first" in answer
    history.checkpoint("step")
    answer = ask(desk, asked_by(answer)).content.decode()
    assert len(kept(answer)) == 1
    assert "the first" not in answer


def test_a_page_of_a_history_that_was_discarded_is_sent_all_of_the_present_one(desk: Client) -> None:
    history = with_an_ended_call()
    page = text_at(desk, f"/sessions/{history.session.pk}/")
    history.checkpoint("step")
    answer = ask(desk, asked_by(page).replace("branch=1", "branch=0")).content.decode()
    assert kept(answer) == []
    assert "refunded 120 EUR" in answer


@pytest.mark.parametrize("mark", [" ", "x", "0", "-", "0-0-0", "²", "9" * 5000])
def test_a_mark_that_no_step_has_keeps_nothing(desk: Client, mark: str) -> None:
    history = with_an_ended_call()
    page = text_at(desk, f"/sessions/{history.session.pk}/")
    history.checkpoint("step")
    answer = ask(desk, asked_by(page, mark)).content.decode()
    assert kept(answer) == []
    assert "refunded 120 EUR" in answer


def test_a_discarded_step_opened_in_place_is_no_target_of_what_is_sent_for_the_present_one(
    desk: Client,
) -> None:
    """Both begin at one checkpoint."""
    history = builders.looked_up()
    left = history.last_checkpoint
    history.lookup("POL-8")
    history.rest("paused")
    session = history.session
    actions.rewind(actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=left.pk, reason="Again")
    session.refresh_from_db()
    history.lookup("POL-9")
    address = f"/sessions/{history.rest('running').pk}"
    page = text_at(desk, f"{address}/")
    found = re.search(r'href="([^"]+/branches/(\d+)/)"', page)
    assert found is not None
    discarded = desk.get(found[1], headers={"HX-Request": "true"}).content.decode()
    assert "POL-8" in discarded
    present, opened = (re.findall(r'\bid="([^"]+)"', text) for text in (page, discarded))
    assert f"k{left.position}" in present
    assert set(present) & set(opened) == {f"t{found[2]}"}  # the line that the opened steps replace
    assert len(opened) == len(set(opened))
    # On a page of their own links lead to their checkpoints.
    assert f'id="k{left.position}"' in text_at(desk, found[1])
