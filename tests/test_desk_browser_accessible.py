"""Every page and every dialog in a browser: axe-core finds nothing, light and dark, and the console stays empty.

The addresses are those of the URL table and the dialogs those of the actions, so that a new one is tried by itself.
The console also tells what the Content-Security-Policy blocks.
"""

from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import urlencode

import pytest
from django.urls import resolve
from playwright.sync_api import Browser, Page, expect

from sessions_app.action_list import ACTIONS
from sessions_app.models import Checkpoint
from tests import builders, planting
from tests.browsing import log_in, problems
from tests.test_malformed_requests import ROUTES, session_for
from tests.test_secrets import addresses

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

# The forms of dialogs are tried below; the markup of the admin is Django's.
DIALOGS = tuple(f"/{name}/" for name in ACTIONS)
PAGES = [route for route in ROUTES if not route.endswith(DIALOGS) and not route.startswith("admin/")]
GROUPS = {
    "of a session": [route for route in PAGES if "session_id" in route],
    "of many sessions": [route for route in PAGES if "session_id" not in route],
}
# Dialogs with each kind of field: a reason, checkpoints, arguments, a choice, a breakpoint, a value, an answer.
OF_EACH_KIND = {"rewind", "fork", "approve", "arguments", "decide", "breakpoint", "state-value", "answer"}
# What a page asks for by itself, what only a POST reaches, and old addresses.
NO_PAGES = {
    "live",
    "top",
    "also-open",
    "earlier",
    "reveal",
    "decide-batch",
    "delete_view",
    "bulk_stop",
    "approvals",
    "tails",
}


@pytest.fixture
def page(browser: Browser, live_server: Any, nothing_runs: None) -> Iterator[Page]:
    """A supervisor's page, on which nothing may be blocked or fail."""
    context = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
    page = log_in(context, "sue", "supervisor")
    wrong: list[str] = []
    # The browser itself notes an answer that refuses something.
    page.on(
        "console",
        lambda message: (
            wrong.append(f"{page.url}: {message.text}")
            if message.type in ("error", "warning") and "Failed to load resource" not in message.text
            else None
        ),
    )
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    yield page
    context.close()
    assert wrong == []


def light_and_dark(page: Page, where: str, within: str = "html") -> list[str]:
    """What axe-core finds in the page or a part of it, light and dark; only the colours differ."""
    found = []
    for scheme, rules in (("dark", ["color-contrast"]), ("light", [])):
        page.emulate_media(color_scheme=cast(Any, scheme))
        if what := problems(page, rules, within):
            found.append(f"{where} ({scheme})\n{what}")
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_every_page_is_accessible(page, group):
    rich = planting.desk(builders.user("operator", "olga"))["rich"]
    first, second = Checkpoint.objects.filter(branch__session=rich).order_by("position")[:2]
    queries: dict[str, list[dict[str, Any]]] = {
        "compare": [{"a": first.pk, "b": second.pk}],
        "desk": [{"queue": "all"}, {"q": "windscreen"}],
        "session": [{"queue": "attention"}],
        "bulk": [{"queue": "all"}, {"queue": "all", "kind": "assign"}],
        "find": [{"q": "windscreen"}],
        "state": [{}, {"checkpoint": first.pk}],
    }
    found, visited = [], 0
    for route in GROUPS[group]:
        path = next(addresses(route, [rich]))
        name = resolve(path).url_name or ""
        if name in NO_PAGES:
            continue
        for query in queries.get(name, [{}]):
            where = f"{path}?{urlencode(query)}" if query else path
            answer = page.goto(where)
            if not answer or not answer.headers.get("content-type", "").startswith("text/html"):
                continue
            visited += 1
            found += light_and_dark(page, where)
    assert "\n".join(found) == ""
    assert visited > len(GROUPS[group]) / 2


def query_of(fields: dict[str, Any]) -> str:
    """What a link to the dialog names."""
    named = ("checkpoint", "key", "number", "tool", "position", "entry")
    query: dict[str, Any] = {key: fields[key] for key in named if key in fields}
    if "call_id" in fields:
        query["call"] = fields["call_id"]
    return urlencode(query)


@pytest.mark.parametrize(
    "name", [name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.long) for name in ACTIONS]
)
def test_every_dialog_is_accessible_and_stays_one_with_its_errors(page, name):
    session, fields = session_for(name)
    page.goto(f"/sessions/{session.pk}/")
    address = f"/sessions/{session.pk}/{name}/?{query_of(fields)}"
    page.evaluate("address => htmx.ajax('GET', address, '#dialog-body')", address)
    dialog = page.get_by_role("dialog")
    form = dialog.locator("form.dialog")
    expect(form).to_be_visible()
    assert light_and_dark(page, address, "dialog") == []
    form.locator("input:not([type=hidden], [type=radio], [type=checkbox]), textarea").evaluate_all(
        "fields => fields.forEach((field) => { field.value = '' })"
    )
    with page.expect_response(lambda response: response.request.method == "POST") as answer:
        form.evaluate("form => form.requestSubmit()")
    if answer.value.ok:
        return
    expect(form.locator(".said.error").first).to_be_visible()
    assert light_and_dark(page, f"{address} with an error", "dialog") == []
    if form.locator(".wrong").count():
        expect(form.locator(".wrong :is(input, textarea, select):focus")).to_have_count(1)


def test_with_the_colours_of_the_system_the_open_tab_and_the_chosen_filter_are_told_from_others(page):
    session = builders.looked_up().rest("idle")
    page.emulate_media(forced_colors="active")
    page.goto(f"/sessions/{session.pk}/")
    drawn = """(links) => links.map((link) => {
      const { borderBottomColor, backgroundColor } = getComputedStyle(link);
      return [link.ariaCurrent !== null, borderBottomColor + backgroundColor];
    })"""
    for place in (".tabs a", ".chips a"):
        looks = page.locator(place).evaluate_all(drawn)
        chosen = {look for is_chosen, look in looks if is_chosen}
        assert chosen
        assert chosen.isdisjoint(look for is_chosen, look in looks if not is_chosen)
    assert problems(page) == ""
