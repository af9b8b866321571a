"""In a real browser: pages that follow an answer, tell of new steps, and say when the connection is lost."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.utils import timezone
from playwright.sync_api import Page, expect

from sessions_app import actions
from sessions_app.access.roles import Actor
from sessions_app.models import Session
from tests import builders, driving
from tests.browsing import log_in, problems
from tests.slow_models import SlowModel, talking
from tests.test_desk_browser import context, page  # noqa: F401

SECONDS = 60

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nothing_runs"),
]


def poll(watched: Page) -> None:
    """Ask for what is new at once."""
    watched.evaluate(
        "const live = document.querySelector('#sentinel');"
        "live.setAttribute('hx-trigger', 'now'); htmx.process(live); htmx.trigger(live, 'now')"
    )


def test_after_send_the_page_shows_where_the_answer_will_be_and_follows_it(page):  # noqa: F811
    history = builders.looked_up()
    for number in range(12):
        history.lookup(f"POL-{number}")
    history.reply("Yes.")
    history.end("Yes.")
    session = history.rest("idle")
    page.goto(f"/sessions/{session.pk}/")
    page.get_by_label("Message to the agent").fill("And my wing mirror?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#inbox")).to_contain_text("And my wing mirror?")
    expect(page.locator("#inbox")).to_be_in_viewport()
    assert page.evaluate("window.scrollY") > 500


def test_a_message_sent_from_the_conversation_stays_there_and_the_answer_appears(page):  # noqa: F811
    history = builders.looked_up()
    session = history.rest("running")
    page.goto(f"/sessions/{session.pk}/conversation/")
    page.get_by_label("Message to the agent").fill("And my wing mirror?")
    page.get_by_role("button", name="Send").click()
    expect(page).to_have_url(f"/sessions/{session.pk}/conversation/#inbox")
    expect(page.locator("#talk")).to_contain_text("And my wing mirror?")
    history.session.refresh_from_db()
    history.reply("It is covered too.")
    history.end("It is covered too.")
    expect(page.locator("#talk")).to_contain_text("It is covered too.")
    expect(page.locator("#session-head .pill")).to_have_text("Done")


@pytest.mark.parametrize("moves", ["as it can", "like older browsers"])
def test_a_call_stays_open_and_focused_while_its_step_is_drawn_again(page, moves):  # noqa: F811
    if moves == "like older browsers":
        page.add_init_script("delete Element.prototype.moveBefore")
    history = builders.refunding()
    history.begin(history.calls[-1])
    history.finish(history.calls[-1], "refunded 120 EUR")
    session = history.rest("running")
    page.goto(f"/sessions/{session.pk}/")
    call = page.locator(f"#c{history.calls[-1].position}")
    call.locator("details.more > summary").click()
    expect(call.get_by_text("Idempotency key")).to_be_visible()
    history.enter("reflecting")
    history.checkpoint("step")
    poll(page)
    step = page.locator(".step.done", has=call)
    expect(step).to_have_count(1)
    expect(step.locator(".foot")).to_contain_text("reflecting")
    expect(call.get_by_text("Idempotency key")).to_be_visible()
    expect(call.locator("details.more > summary")).to_be_focused()
    expect(call).to_contain_text("refunded 120 EUR")
    # Another answer, to which the step does not belong any more, leaves it as it is.
    history.lookup("POL-8")
    poll(page)
    expect(page.locator(".step")).to_have_count(6)
    expect(call.get_by_text("Idempotency key")).to_be_visible()


def test_new_steps_below_is_said_only_where_a_step_came(page):  # noqa: F811
    history = builders.looked_up()
    for number in range(12):
        history.lookup(f"POL-{number}")
    session = history.rest("waiting", waiting_for="approval")
    page.goto(f"/sessions/{session.pk}/")
    history.event("noted", reason="Something else happened")
    poll(page)
    expect(page.locator("#side")).to_contain_text("Something else happened")
    expect(page.locator("#fresh")).to_be_hidden()
    history.lookup("POL-99")
    history.rest("waiting", waiting_for="approval")
    poll(page)
    expect(page.get_by_role("button", name="New steps below")).to_be_visible()


def test_the_title_of_the_window_says_how_the_session_is_now(page):  # noqa: F811
    history = builders.looked_up()
    session = history.rest("running")
    page.goto(f"/sessions/{session.pk}/")
    expect(page).to_have_title(f"{session} · Running · AgentState")
    history.session.refresh_from_db()
    history.reply("It is covered.")
    history.end("It is covered.")
    history.rest("idle")
    poll(page)
    expect(page).to_have_title(f"{session} · Done · AgentState")


@pytest.mark.parametrize("tab", ["audit", "checkpoints"])
def test_the_contents_of_a_tab_stay_until_its_reader_loads_it_again(page, tab):  # noqa: F811
    history = builders.looked_up()
    session = history.rest("running")
    page.goto(f"/sessions/{session.pk}/{tab}/")
    contents = page.locator("#main table").first
    before, place = contents.inner_text(), contents.bounding_box()
    history.reply("It is covered.")
    history.end("It is covered.")
    expect(page.locator("#session-head .pill")).to_have_text("Done")
    newer = page.get_by_role("link", name="The session has changed: reload this page")
    expect(newer).to_be_in_viewport()
    assert (contents.inner_text(), contents.bounding_box()) == (before, place)
    assert problems(page) == ""
    newer.click()
    expect(newer).to_have_count(0)
    expect(contents).not_to_have_text(before)


@pytest.mark.parametrize(
    "seconds, passed, left",
    [
        (3600, 301, "expires in 54 min"),
        (60 * 3600, 11 * 3600, "expires in 2 d"),
        (60 * 3600, 13 * 3600, "expires in 47 h"),
        (180, 70, "expires in 1 min 50 s"),
        (180, 140, "expires in 40 s"),
        (60, 75, "expired"),
    ],
)
def test_the_time_left_to_approve_a_call_goes_down_on_an_open_page(page, seconds, passed, left):  # noqa: F811
    at = timezone.now().replace(microsecond=0)
    history = builders.refunding(created_at=at - timedelta(seconds=60))
    history.ask(history.calls[-1], expires_at=at + timedelta(seconds=seconds))
    session = history.rest("waiting", waiting_for="approval")
    page.clock.install(time=at)
    page.goto(f"/sessions/{session.pk}/")
    # Nothing is asked meanwhile, so that the page is as it was drawn, but for the script.
    page.route("**/live/**", lambda route: route.fulfill(status=204))
    page.clock.pause_at(at + timedelta(seconds=passed))
    times = page.locator("#banner time, .ask .line time")
    requested, until = page.locator("#banner time").all_inner_texts()
    assert (requested.endswith(" ago"), until) == (True, left)
    # The card says the same as the banner.
    assert times.all_inner_texts() == [requested, until] * 2


def test_how_long_ago_a_call_in_doubt_was_started_goes_up_on_an_open_page(page):  # noqa: F811
    session = builders.in_doubt(created_at=timezone.now() - timedelta(minutes=5, seconds=30))
    page.clock.install()
    page.goto(f"/sessions/{session.pk}/")
    expect(page.locator("#banner time")).to_have_text("5 min ago")
    page.clock.fast_forward(15 * 60_000)
    expect(page.locator("#banner time")).to_have_text("20 min ago")


def test_a_bar_says_that_the_connection_is_lost_and_when_it_is_back(browser, live_server):
    session = builders.running()
    made = browser.new_context(base_url=live_server.url)
    watching = log_in(made)
    watching.goto(f"/sessions/{session.pk}/")
    made.set_offline(True)
    expect(watching.get_by_role("status").filter(has_text="Connection lost.")).to_be_visible()
    made.set_offline(False)
    expect(watching.get_by_role("status").filter(has_text="Reconnected.")).to_be_visible()
    expect(watching.locator("#connection")).to_be_hidden()
    made.close()


def told_and_silent(watching: Page, text: str) -> None:
    """It says this, with the way to the sessions, and asks for nothing more, whatever happens."""
    said = watching.get_by_role("status").filter(has_text=text)
    expect(said.get_by_role("link", name="Go to the sessions")).to_have_attribute("href", "/")
    asked: list[str] = []
    watching.on("request", lambda request: asked.append(request.url))
    watching.clock.run_for(30_000)
    watching.evaluate("window.dispatchEvent(new Event('online'))")
    watching.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    assert asked == []
    expect(said).to_be_visible()
    assert problems(watching, ["color-contrast"]) == ""


@pytest.mark.parametrize("tab", ["", "conversation/", "audit/"])
def test_a_page_whose_session_is_gone_says_so_and_asks_no_more(context, tab):  # noqa: F811
    session = builders.running()
    watching = log_in(context)
    watching.clock.install()
    watching.goto(f"/sessions/{session.pk}/{tab}")
    Session.objects.get(pk=session.pk).delete()
    watching.clock.run_for(2000)
    told_and_silent(watching, "This session no longer exists, or you may no longer see it.")


@pytest.mark.parametrize(
    "address, status", [("/?queue=all", 403), ("/inbox/", 404), ("/workers/", 403), ("/bulk/actions/", 404)]
)
def test_a_list_that_its_reader_may_no_longer_see_says_so_and_asks_no_more(context, address, status):  # noqa: F811
    watching = log_in(context)
    if address == "/bulk/actions/":
        builders.running()
        paused = actions.bulk_start(
            actor=Actor.of(User.objects.get()),
            kind="pause",
            sessions=Session.objects.all(),
            reason="Provider",
        )
        address += f"{paused.pk}/"
    watching.clock.install()
    watching.goto(address)
    watching.route("**/*", lambda route: route.fulfill(status=status, body="Refused."))
    watching.clock.run_for(11_000)
    told_and_silent(watching, "This page no longer exists, or you may no longer see it.")


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_page_that_is_put_off_goes_on_asking(context, status):  # noqa: F811
    watching = log_in(context)
    watching.clock.install()
    watching.goto(f"/sessions/{builders.running().pk}/")
    watching.route("**/live/**", lambda route: route.fulfill(status=status))
    watching.clock.run_for(2000)
    expect(watching.get_by_role("status").filter(has_text="Connection lost.")).to_be_visible()
    watching.unroute_all()
    watching.clock.run_for(2000)
    expect(watching.get_by_role("status").filter(has_text="Reconnected.")).to_be_visible()


def test_the_bar_goes_where_the_first_answer_takes_the_place_of_what_asked(browser, live_server):
    session = builders.done()
    made, of_ada = (browser.new_context(base_url=live_server.url) for _ in range(2))
    watching = log_in(made)
    watching.goto(f"/sessions/{session.pk}/")
    made.set_offline(True)
    watching.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(watching.get_by_role("status").filter(has_text="Connection lost.")).to_be_visible()
    log_in(of_ada, "ada").goto(f"/sessions/{session.pk}/")
    made.set_offline(False)
    watching.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(watching.locator(".also-open")).to_have_text("Also open: ada")
    expect(watching.get_by_role("status").filter(has_text="Reconnected.")).to_be_visible()
    made.close()
    of_ada.close()


def test_a_reply_streams_into_the_open_pages_and_becomes_the_stored_one(page):  # noqa: F811
    written = threading.Semaphore(0)

    def between(number: int) -> None:
        assert written.acquire(timeout=SECONDS)

    def work(session: Session) -> Session:
        try:
            return agents.run(session)
        finally:
            connections.close_all()

    model = SlowModel(["Your windscreen ", "is covered."], between)
    with driving.desk() as agents, ThreadPoolExecutor(1) as worker:
        agents.agent(lambda: talking(model), stream=True)
        session = agents.start("Is it covered?")
        page.goto(f"/sessions/{session.pk}/")
        conversation = page.context.new_page()
        conversation.goto(f"/sessions/{session.pk}/conversation/")
        running = worker.submit(work, session)
        try:
            for open_page in (page, conversation):
                reply = open_page.get_by_label("Reply being written")
                expect(reply).to_contain_text("Your windscreen", timeout=SECONDS * 1000)
                expect(reply).not_to_contain_text("is covered.")
                expect(open_page.get_by_text("Waiting for the model.")).to_be_hidden()
            written.release()
            for open_page in (page, conversation):
                reply = open_page.get_by_label("Reply being written")
                expect(reply).to_contain_text("Your windscreen is covered.", timeout=SECONDS * 1000)
        finally:
            written.release(2)
        assert running.result(SECONDS).final_answer == "Your windscreen is covered."
        for open_page, place in ((page, "#timeline"), (conversation, "#talk")):
            expect(open_page.get_by_label("Reply being written")).to_have_count(0, timeout=SECONDS * 1000)
            expect(open_page.locator(place)).to_contain_text("Your windscreen is covered.")
            expect(open_page.locator("#session-head .pill")).to_have_text("Done")


@pytest.mark.parametrize("width", [390, 1280])
def test_a_second_person_on_the_page_is_named_and_nothing_moves(page, browser, live_server, width):  # noqa: F811
    session = builders.paused()
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(f"/sessions/{session.pk}/?queue=paused")
    expect(page.locator(".also-open")).to_have_text("")
    place = page.locator("#session-head").bounding_box()
    made = browser.new_context(base_url=live_server.url)
    other = log_in(made, "ada")
    other.goto(f"/sessions/{session.pk}/")
    expect(other.locator(".also-open")).to_have_text("Also open: anna")
    # A page asks every 20 seconds, and when its tab comes to the front again.
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator(".also-open")).to_have_text("Also open: ada")
    assert page.locator("#session-head").bounding_box() == place
    made.close()
