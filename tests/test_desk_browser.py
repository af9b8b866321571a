"""What only a real browser shows: pages that grow by themselves, dialogs, keys, narrow screens, no errors."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, BrowserContext, Page, expect

from sessions_app.models import Approval, Checkpoint, Event, ModelCall, Session
from tests import builders
from tests.browsing import log_in, log_in_by_the_form, problems

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
# Each width and each scheme; `make test-long` tries the other pairs too.
every_screen = pytest.mark.parametrize(
    "width, scheme",
    [
        (1280, "light"),
        (390, "dark"),
        pytest.param(1280, "dark", marks=pytest.mark.long),
        pytest.param(390, "light", marks=pytest.mark.long),
    ],
)


@pytest.fixture
def context(browser: Browser, live_server) -> Iterator[BrowserContext]:
    """Somebody who is logged in as an operator."""
    made = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page on which nothing may go wrong: no error on the console, nothing blocked by the CSP."""
    page = log_in(context)
    wrong: list[str] = []
    page.on(
        "console",
        lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    assert wrong == []


def test_a_watched_session_grows_by_itself_and_stops_asking_when_it_is_done(page):
    history = builders.refunding()
    history.begin(history.calls[-1])
    session = history.rest("running")
    page.goto(f"/sessions/{session.pk}/")
    expect(page.locator(".call.running")).to_have_count(1)
    page.evaluate("window.sameDocument = true")

    history.finish(history.calls[-1], "refunded 120 EUR")
    history.checkpoint("step")
    expect(page.locator("#timeline")).to_contain_text("refunded 120 EUR")
    expect(page.locator(".call.running")).to_have_count(0)
    expect(page.get_by_text("Step 3", exact=True)).to_be_visible()

    history.reply("Your money is on its way.")
    history.end("Your money is on its way.")
    expect(page.locator("#session-head .pill")).to_have_text("Done")
    expect(page.locator("#timeline")).to_contain_text("Your money is on its way.")
    expect(page.locator("#sentinel")).to_have_count(0)
    expect(page.locator("svg.phases.wide .node.now .name")).to_have_text("done")
    assert page.evaluate("window.sameDocument") is True
    # Each step once, in order.
    assert page.locator("#timeline .step b:first-child").filter(has_text="Step").all_inner_texts() == [
        "Step 1",
        "Step 2",
        "Step 3",
    ]


def test_what_happened_before_a_step_began_moves_above_it_while_the_page_is_open(page):
    history = builders.looked_up()
    history.event("paused")
    session = history.rest("running")
    page.goto(f"/sessions/{session.pk}/")
    lines = page.locator("#timeline > li:not([hidden])")
    expect(lines.nth(-2)).to_contain_text("paused it")
    history.event("resumed")
    history.lookup("POL-8")
    history.rest("running")
    expect(page.locator("#timeline")).to_contain_text("POL-8")
    shown = [" ".join(text.split()) for text in lines.all_inner_texts()]
    order = [
        next(i for i, text in enumerate(shown) if what in text)
        for what in ("paused it", "resumed it", "POL-8")
    ]
    assert order == sorted(order)
    assert sum("paused it" in text for text in shown) == 1


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "step by step"])
def test_an_open_page_shows_idle_time_where_a_page_that_is_loaded_later_does(page, at_once):
    """Before a step that began after an event, whether the page learns of the two at once or one after the other."""
    history = builders.looked_up(created_at=timezone.now() - timedelta(hours=1))
    session = history.rest("running")
    page.goto(f"/sessions/{session.pk}/")
    lines = page.locator("#timeline > li[id]:not(#sentinel)")
    step = f"k{history.last_checkpoint.position}"
    expect(page.locator("#sentinel")).to_have_count(1)
    if at_once:
        page.route("**/live/**", lambda route: route.fulfill(status=204))
    history.now += timedelta(minutes=2)
    resumed = f"e{history.event('resumed').position}"
    history.rest("running")
    if not at_once:
        expect(lines.last).to_have_id(resumed)
    history.now += timedelta(minutes=3)
    history.lookup("POL-8")
    history.rest("running")
    page.unroute_all()
    expect(page.locator("#timeline")).to_contain_text("POL-8")
    history.now += timedelta(minutes=4)
    history.lookup("POL-9")
    history.rest("running")
    expect(page.locator("#timeline")).to_contain_text("POL-9")

    def ids() -> list[str]:
        found: list[str] = lines.evaluate_all("lines => lines.map(line => line.id)")
        return found

    watched = ids()
    page.reload()
    assert watched == ids()
    place = watched.index(step)
    assert watched[place - 3 : place] == [f"g{resumed[1:]}", resumed, f"g{step[1:]}"]


def test_what_somebody_is_typing_is_not_taken_from_them(page):
    history = builders.refunding()
    history.ask(history.calls[-1])
    session = history.rest("waiting", waiting_for="approval")
    page.goto(f"/sessions/{session.pk}/")
    page.evaluate("document.querySelector('#sentinel').setAttribute('hx-trigger', 'now')")
    page.evaluate("htmx.process(document.querySelector('#sentinel'))")
    page.locator("details.edit > summary").click()
    page.get_by_label("Amount", exact=True).fill("99")
    expect(page.get_by_role("button", name="Approve edited")).to_be_visible()
    history.event("noted", reason="Something else happened")
    page.evaluate("htmx.trigger('#sentinel', 'now')")
    expect(page.locator("#side")).to_contain_text("Something else happened")
    expect(page.get_by_label("Amount", exact=True)).to_have_value("99")


def test_a_sheet_opens_over_the_page_and_closes_again(page):
    session = builders.paused()
    page.goto(f"/sessions/{session.pk}/")
    page.get_by_role("button", name="Resume…").click()
    dialog = page.get_by_role("dialog", name="Resume")
    expect(dialog).to_contain_text("What will happen")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Resume…").click()
    dialog.get_by_label("Reason").fill("Lunch is over")
    dialog.get_by_role("button", name="Resume").click()
    expect(page.locator(".toast")).to_contain_text("Resumed.")
    expect(page.locator("#session-head .pill")).to_have_text("Queued")


@pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without JavaScript"])
def test_find_the_stuck_session_and_resume_it(browser, live_server, javascript):
    builders.done(title="Fine")
    builders.retries_used_up(title="Stuck")
    builders.user("operator", "anna")
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)
    page = log_in_by_the_form(context, "anna")
    page.get_by_role("link", name="Stuck", exact=True).click()
    page.get_by_role("button", name="Resume…").click()
    page.get_by_label("Reason").fill("The provider is back")
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator("#session-head .pill")).to_have_text("Queued")
    assert Session.objects.get(title="Stuck").status == "queued"
    context.close()


@pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without JavaScript"])
def test_approve_with_other_arguments(browser, live_server, javascript):
    session = builders.waiting_for_approval()
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)
    page = log_in(context)
    page.goto("/")
    page.get_by_role("link", name="Inbox").click()
    page.locator("details.edit > summary").click()
    page.get_by_label("Amount", exact=True).fill("99.5")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
    assert Approval.objects.get(session=session).edited == {"claim": "CLM-1042", "amount": 99.5}
    context.close()


@pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without JavaScript"])
def test_rewind_look_at_the_tail_and_undo(browser, live_server, javascript):
    session = builders.done()
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)
    page = log_in(context)
    page.goto(f"/sessions/{session.pk}/")
    page.locator("header.session").get_by_role("button", name="Rewind…").click()
    page.get_by_role("link", name="The last use of lookup_policy").click()
    page.get_by_label("Reason").fill("Wrong policy")
    page.get_by_role("button", name="Rewind", exact=True).click()
    expect(page.locator("#session-head .pill")).to_have_text("Paused")
    expect(page.locator(".rewound")).to_contain_text("2 steps rewound by anna")
    page.locator(".rewound").get_by_role("link", name="show").click()
    expect(page.locator(".timeline.discarded")).to_contain_text("Yes, POL-7 covers your windscreen.")
    page.locator(".rewound").get_by_role("link", name="undo").click()
    page.get_by_label("Reason").fill("It was right")
    page.get_by_role("button", name="Undo the rewind").click()
    expect(page.locator("#session-head .pill")).to_have_text("Done")
    context.close()


@pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without JavaScript"])
def test_fork_with_another_message_and_compare(browser, live_server, javascript):
    session = builders.done()
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)
    page = log_in(context)
    page.goto(f"/sessions/{session.pk}/")
    page.locator("header.session").get_by_role("button", name="Fork…").click()
    page.get_by_role("link", name="The last step").click()
    page.get_by_label("Message (optional)").fill("And POL-8?")
    page.get_by_label("Reason").fill("Another question")
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.locator("main h1")).to_contain_text("(fork)")
    expect(page.locator("#inbox")).to_contain_text("And POL-8?")
    page.get_by_role("link", name="Checkpoints").click()
    page.get_by_role("button", name="Compare A with B").click()
    expect(page.locator("h1")).to_have_text("Compare")
    expect(page.locator("tr.added")).not_to_have_count(0)
    context.close()


def test_keys_move_and_open(page):
    builders.failed(title="One")
    page.goto("/?queue=all")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="One", exact=True)).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.locator("body").click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()


@pytest.mark.slow
@every_screen
def test_pages_are_accessible_and_fit_the_screen(browser, live_server, width, scheme):
    session = builders.waiting_for_approval(title="Approval", tags=["glass"])
    doubt = builders.in_doubt(title="Doubt")
    rewound = builders.rewound(title="Rewound")
    context = browser.new_context(
        base_url=live_server.url,
        viewport={"width": width, "height": 844},
        color_scheme=scheme,
        bypass_csp=True,
    )
    page = log_in(context)
    first = Checkpoint.objects.filter(branch__session=rewound).earliest("position").pk
    model_call = ModelCall.objects.filter(branch__session=rewound).earliest("position").pk
    for address in (
        "/?queue=all",
        "/start/",
        "/inbox/",
        "/agents/",
        "/agents/claims/",
        "/workers/",
        f"/sessions/{session.pk}/",
        f"/sessions/{doubt.pk}/",
        f"/sessions/{rewound.pk}/",
        f"/sessions/{rewound.pk}/branches/1/",
        f"/sessions/{rewound.pk}/model-calls/{model_call}/",
        f"/sessions/{rewound.pk}/rewind/",
        f"/sessions/{rewound.pk}/rewind/?checkpoint={first}",
        f"/sessions/{rewound.pk}/checkpoints/",
        f"/sessions/{rewound.pk}/state/",
        f"/sessions/{rewound.pk}/audit/",
        f"/sessions/{rewound.pk}/conversation/",
        f"/compare/?a={first}&b={first + 1}",
    ):
        page.goto(address)
        assert problems(page) == "", address
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{address} is {wide} px too wide"
    context.close()


def test_ctrl_enter_sends_a_message_and_a_dialog_but_only_brings_a_decision_to_its_button(page):
    session = builders.done()
    page.goto(f"/sessions/{session.pk}/")
    page.get_by_label("Message to the agent").fill("And my wing mirror?")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".toast")).to_be_visible()
    assert session.inbox.get().text == "And my wing mirror?"

    paused = builders.paused()
    page.goto(f"/sessions/{paused.pk}/")
    page.get_by_role("button", name="Resume…").click()
    page.get_by_role("dialog", name="Resume").get_by_label("Reason").fill("Lunch is over")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".toast")).to_be_visible()
    assert Session.objects.get(pk=paused.pk).status == "queued"

    builders.waiting_for_approval()
    page.goto("/inbox/")
    page.locator("details.edit > summary").click()
    page.get_by_label("Amount", exact=True).focus()
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-key=a]")).to_be_focused()
    assert Approval.objects.get().decision == ""


@pytest.mark.parametrize(
    "address, field, button, kind",
    [
        ("/start/", "Message", "Start", "started"),
        ("/sessions/{}/", "Message to the agent", "Send", "message"),
        ("/sessions/{}/conversation/", "Message to the agent", "Send", "message"),
        ("/sessions/{}/message/", "Message", "Send", "message"),
        ("/sessions/{}/note/", "Note", "Add note", "noted"),
    ],
)
def test_a_form_that_is_sent_again_after_going_back_is_carried_out_again_only_if_the_person_says_so(
    context, address, field, button, kind
):
    page = log_in(context)

    def send() -> int:
        # Not any navigation: before it is sent, the form's id is written into the history of the page.
        with page.expect_event("load"):
            page.get_by_role("button", name=button, exact=True).click()
        return Event.objects.filter(kind=kind).count() - before

    builders.agent()
    page.goto(address.format(builders.done().pk))
    before = Event.objects.filter(kind=kind).count()
    for number, text in enumerate(("Is my roof covered?", "Is my garage covered?"), start=1):
        page.get_by_label(field, exact=True).fill(text)
        assert send() == number
        with page.expect_navigation():
            # `go_back` of Playwright fails now and then: it may ask the page that the navigation has just replaced.
            page.evaluate("setTimeout(() => history.back())")
        expect(page.get_by_label(field, exact=True)).to_have_value(text)
    assert send() == 2
    expect(page.get_by_text("This was already sent exactly as it is here")).to_be_visible()
    assert page.locator("main textarea").first.input_value() == "Is my garage covered?"
    assert send() == 3


def test_a_note_does_not_take_the_message_that_somebody_is_typing(page):
    session = builders.paused()
    page.goto(f"/sessions/{session.pk}/")
    page.get_by_label("Message to the agent").fill("Half of a")
    page.get_by_role("link", name="add note").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Note").fill("Called back")
    with page.expect_navigation():
        dialog.get_by_role("button", name="Add note").click()
    expect(page.locator("#side")).to_contain_text("Called back")
    expect(page.get_by_label("Message to the agent")).to_have_value("Half of a")


@pytest.mark.parametrize("by", ["a dialog", "a form"])
def test_a_message_and_whose_words_it_has_are_kept_while_something_else_is_done(page, by):
    session = builders.queued()
    page.goto(f"/sessions/{session.pk}/{'conversation/' if by == 'a dialog' else ''}")
    page.get_by_label("Message to the agent").fill("Half of a")
    page.get_by_label("These are the customer's words").check()
    if by == "a dialog":
        page.get_by_role("button", name="Pause…").click()
        page.get_by_role("dialog").get_by_label("Reason").fill("Lunch")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".toast")).to_be_visible()
    else:
        page.get_by_role("button", name="take").click()
        expect(page.locator("#facts")).to_contain_text("anna")
    expect(page.get_by_label("Message to the agent")).to_have_value("Half of a")
    expect(page.get_by_label("These are the customer's words")).to_be_checked()
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_label("Message to the agent")).to_have_value("")
    assert session.inbox.filter(text="Half of a").count() == 1


def test_who_goes_back_to_the_start_of_a_session_finds_the_agent_that_they_chose(page):
    builders.agent("claims", title="Claims")
    value = {"name": "ids", "required": False, "type": "str", "schema": {"type": "string"}}
    builders.agent("letters", title="Letters", inputs={"prompt": False, "values": [value]})
    page.goto("/start/")
    page.get_by_label("Agent", exact=True).select_option("Letters")
    page.get_by_label("Ids").fill("7, 8")
    page.get_by_label("Message", exact=True).fill("Write to them")
    with page.expect_event("load"):
        page.get_by_role("button", name="Start", exact=True).click()
    page.go_back()
    expect(page.get_by_label("Agent", exact=True)).to_have_value("letters")
    expect(page.get_by_label("Ids")).to_have_value("7, 8")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Write to them")
