"""In a real browser: search, bulk actions, saved views, repairs, revealing. Also without JavaScript, where forms do."""

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from sessions_app.actions import bulk
from sessions_app.finding import search_index
from sessions_app.models import BulkAction, SavedView, Session, StateValue, ToolCall
from tests import builders
from tests.browsing import log_in, problems
from tests.test_desk_browser import every_screen

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nothing_runs"),
]
both = pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without JavaScript"])


def roofs(number: int = 3) -> list[Session]:
    found = []
    for index in range(number):
        history = builders.asked(title=f"Roof {index}")
        history.user("The roof leaks.")
        found.append(history.rest("queued"))
    while search_index.update():
        pass
    return found


@both
def test_find_what_was_said_and_go_there(browser, live_server, javascript):
    roofs(1)
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)
    page = log_in(context, "operator")
    page.goto("/")
    page.get_by_role("searchbox", name="Search sessions").fill("roof leaks")
    page.get_by_role("searchbox", name="Search sessions").press("Enter")
    expect(page.locator("mark")).to_have_text(["roof", "leaks"])
    page.locator(".hit a").click()
    expect(page.locator("article:has-text('The roof leaks.')").first).to_be_visible()
    assert "#m" in page.url
    context.close()


@both
def test_pause_many_and_watch(browser, live_server, javascript):
    roofs()
    builders.done()
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)
    page = log_in(context, "operator")
    page.goto("/?queue=all")
    page.get_by_role("link", name="Bulk actions on all of these…").click()
    expect(page.locator(".outcome")).to_contain_text("3 of 4 sessions")
    page.get_by_label("Reason").fill("The provider is down")
    page.get_by_role("button", name="Pause (3)").click()
    expect(page.locator("#progress")).to_contain_text("0 %")
    bulk_action = BulkAction.objects.get()
    while bulk.run_batch(bulk_action.pk):
        pass
    if not javascript:
        page.get_by_role("link", name="Refresh").click()
    expect(page.locator("#progress")).to_contain_text("Finished: 3 done, 1 refused, of 4.")
    expect(page.locator("#progress td")).to_contain_text(["Windscreen of POL-7", "It is not running."])
    assert Session.objects.filter(status="paused").count() == 3
    context.close()


@both
def test_take_one_of_many(browser, live_server, javascript):
    roofs()
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)
    page = log_in(context, "operator")
    page.goto("/?queue=all&order=oldest")
    page.get_by_role("button", name="Take Roof 1", exact=True).click()
    expect(page.get_by_role("row").filter(has_text="Roof 1")).to_contain_text("operator")
    assert "/?queue=all&order=oldest" in page.url
    expect(page.get_by_role("button", name="Take Roof 0")).to_be_visible()
    assert Session.objects.get(title="Roof 1").assignee == User.objects.get(username="operator")
    assert Session.objects.filter(assignee=None).count() == 2
    context.close()


@both
def test_keep_a_view(browser, live_server, javascript):
    roofs(1)
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)
    page = log_in(context, "operator")
    page.goto("/?queue=running&agent=claims")
    page.get_by_role("link", name="Save this view…").click()
    page.get_by_role("textbox", name="Name").fill("Claims at work")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("link", name="Claims at work")).to_have_attribute("aria-current", "page")
    assert SavedView.objects.get().query == "queue=running&agent=claims"
    context.close()


@both
def test_replace_a_result_and_undo_it(browser, live_server, javascript):
    session = builders.looked_up().rest("paused")
    call = ToolCall.objects.get()
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)
    page = log_in(context, "supervisor", "supervisor")
    page.goto(f"/sessions/{session.pk}/")
    page.get_by_role("link", name="correct its result").click()
    page.get_by_label("What the model reads instead").fill("The policy has lapsed.")
    page.get_by_label("Reason").fill("The system was stale")
    page.get_by_role("button", name="Save correction").click()
    expect(page.locator(f"#c{call.position} .replaced")).to_contain_text("The policy has lapsed.")
    page.locator("header.session").get_by_role("button", name="Undo").click()
    page.get_by_label("Reason").fill("It was right")
    page.get_by_role("button", name="Undo the repair").click()
    expect(page.locator(".replaced")).to_have_count(0)
    context.close()


@both
def test_look_at_what_is_hidden(browser, live_server, javascript, settings):
    settings.AGENTSTATE_MASK_PATTERNS = [r"POL-\d+"]
    session = builders.paused()
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)
    page = log_in(context, "supervisor", "supervisor")
    page.goto(f"/sessions/{session.pk}/conversation/")
    expect(page.locator(".bubble").first).to_contain_text("covered by ••••?")
    page.locator(".bubble").first.get_by_role("button", name="reveal").click()
    expect(page.locator("section.card")).to_contain_text("covered by POL-7?")
    page.goto(f"/sessions/{session.pk}/audit/")
    expect(page.locator("tbody")).to_contain_text("Revealed masked values")
    context.close()


@pytest.mark.slow
@every_screen
def test_these_pages_are_accessible_and_fit_the_screen(browser, live_server, width, scheme, settings):
    settings.AGENTSTATE_MASK_PATTERNS = [r"POL-\d+"]
    roofs()
    history = builders.refunding(title="Repair me")
    checkpoint = history.last_checkpoint
    values = {"limit": 500, "vip": True, "name": "Ada", "offers": [1], "working_memory": {"goal": "x"}}
    for key, value in values.items():
        StateValue.objects.create(branch=history.branch, position=checkpoint.position, key=key, value=value)
        checkpoint.keys[key] = checkpoint.position
    checkpoint.save()
    session = history.rest("paused")
    call = history.calls[-1]
    context = browser.new_context(
        base_url=live_server.url,
        viewport={"width": width, "height": 844},
        color_scheme=scheme,
        bypass_csp=True,
    )
    page = log_in(context, "supervisor", "supervisor")
    owner = User.objects.get(username="supervisor")
    SavedView.objects.create(owner=owner, name="Mine", query="queue=all&tag=glass", shared=True)
    bulk_action = BulkAction.objects.create(kind="pause", reason="x", actor=owner, actor_name="supervisor")
    bulk_action.items.create(session=session)
    here = f"/sessions/{session.pk}/"
    for address in (
        "/?q=roof",
        "/bulk/?queue=all",
        "/bulk/?queue=all&kind=assign",
        "/bulk/actions/",
        f"/bulk/actions/{bulk_action.pk}/",
        "/views/",
        "/views/save/?queue=all",
        here,
        f"{here}find/?q=windscreen",
        f"{here}state/",
        f"{here}conversation/",
        f"{here}memory/",
        *(f"{here}state-value/?key={key}" for key in values if key != "working_memory"),
        f"{here}message-text/?position=3",
        f"{here}answer/?call={call.pk}",
        f"{here}step/",
    ):
        answer = page.goto(address)
        assert answer
        assert answer.ok, address
        assert problems(page) == "", address
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{address} is {wide} px too wide"
    context.close()
