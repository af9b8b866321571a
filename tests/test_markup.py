"""Nothing that a customer, an agent or a colleague wrote becomes part of a page, on any page and in any state."""

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client

from sessions_app.models import Session
from tests import builders, planting
from tests.corpora import secrets, xss
from tests.test_secrets import ADMIN, PAGES, addresses

pytestmark = pytest.mark.django_db

# Elements that no page of the desk has.
FOREIGN = {"iframe", "object", "embed", "base", "style", "math", "mglyph", "applet", "frame", "link-injected"}
# Payloads that make no element wherever they stand unescaped: they are for other readers than an HTML parser.
NO_ELEMENTS = {"a template", "broken Unicode"}
ADDRESSES = {"href", "src", "action", "formaction", "srcdoc", "xlink:href"}


class Elements(HTMLParser):
    """What is wrong with the elements of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in FOREIGN or (tag == "script" and "src" not in attributes):
            self.wrong.append(f"<{tag}>")
        for name, value in attrs:
            target = "".join((value or "").split()).lower()
            if name.startswith("on") or (name in ADDRESSES and target.startswith(("javascript:", "data:"))):
                self.wrong.append(f"<{tag} {name}={value!r}>")
            if name in ADDRESSES and "example.com" in (value or "") and tag != "a":
                self.wrong.append(f"<{tag} {name}={value!r}>")
        if tag == "b" and "hx-get" in attributes:
            self.wrong.append("<b hx-get>")


def wrong_elements(text: str) -> list[str]:
    parser = Elements()
    parser.feed(text)
    return parser.wrong


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> dict[str, Session]:
    """A desk whose every field holds the corpus."""
    for name in ("TEXT", "SHORT", "OBJECT"):
        monkeypatch.setattr(secrets, name, getattr(xss, name))
    monkeypatch.setattr(secrets, "BY_KEY", {"password": xss.TEXT})
    return planting.desk(builders.user("operator", "olga"))


def pages(client: Client, routes: list[str], chosen: list[Session]) -> Iterator[tuple[str, Any]]:
    for route in routes:
        for address in addresses(route, chosen):
            answer = client.get(address)
            if answer.headers.get("Content-Type", "").startswith("text/html") and not answer.streaming:
                yield address, answer


def check(answer: Any, address: str) -> None:
    text = answer.content.decode()
    assert wrong_elements(text) == [], address
    for name, payload in xss.PAYLOADS.items():
        if "<" in payload:
            assert payload not in text, (address, name)


@pytest.mark.parametrize("payload", [name for name in xss.PAYLOADS if name not in NO_ELEMENTS])
def test_the_check_finds_what_it_looks_for(payload: str) -> None:
    inside = xss.PAYLOADS[payload]
    drawn = [f"<p>{inside}</p>", f'<a href="{inside}">', f"<a title='{inside}'>", f'<p title="{inside}">']
    drawn += [f"<title>{inside}</title>", f"<img title={inside}>"]
    assert any(wrong_elements(page) for page in drawn)


@pytest.mark.slow
def test_what_people_and_agents_write_is_text_on_every_page(
    client: Client, sessions: dict[str, Session]
) -> None:
    client.force_login(builders.user("supervisor"))
    seen = 0
    for address, answer in pages(client, PAGES, [sessions["rich"]]):
        check(answer, address)
        seen += "alert(1)" in answer.content.decode()
    assert seen > 20


@pytest.mark.slow
def test_it_is_text_on_every_page_of_the_admin(client: Client, sessions: dict[str, Session]) -> None:
    client.force_login(builders.user("supervisor"))
    seen = 0
    for address, answer in pages(client, ADMIN, [sessions["rich"]]):
        check(answer, address)
        seen += "alert(1)" in answer.content.decode()
    assert seen > 10


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sweep(on="sqlite")
@pytest.mark.parametrize("state", builders.STATES)
def test_it_is_text_in_every_state(client: Client, sessions: dict[str, Session], state: str) -> None:
    client.force_login(builders.user("supervisor"))
    seen = 0
    for address, answer in pages(client, [page for page in PAGES if "session_id" in page], [sessions[state]]):
        check(answer, address)
        seen += "alert(1)" in answer.content.decode()
    assert seen > 20
