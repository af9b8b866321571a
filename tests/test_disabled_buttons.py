"""A button that does not work now can be focused, and says why by pointer, finger and key, on every page."""

from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from django.test import Client

from tests import builders

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

LISTS = ("/inbox/", "/?queue=all", "/start/", "/agents/", "/workers/", "/bulk/?queue=all", "/views/")
TABS = ("", "conversation/", "state/", "memories/", "checkpoints/", "audit/")
DIALOGS = ("resume/", "pause/", "cancel/", "message/", "release/", "memory/", "step/", "breakpoint/")


class Buttons(HTMLParser):
    """The buttons of a page that do not work, and the texts of its popovers by their ids."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.off: list[dict[str, str]] = []
        self.disabled: list[str] = []
        self.popovers: dict[str, str] = {}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if "disabled" in attributes:
            self.disabled.append(tag)
        if attributes.get("aria-disabled") == "true":
            self.off.append(attributes | {"tag": tag})
        self._open = attributes["id"] if "popover" in attributes else ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.popovers[self._open] = self.popovers.get(self._open, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


def pages(client: Client, state: str) -> Iterator[tuple[str, str]]:
    session = builders.STATES[state]()
    for address in [*LISTS, *(f"/sessions/{session.pk}/{part}" for part in (*TABS, *DIALOGS))]:
        answer = client.get(address)
        assert answer.status_code in (200, 403, 409), address
        yield address, answer.content.decode()


@pytest.mark.parametrize("role", ["viewer", "operator", "supervisor"])
@pytest.mark.parametrize(
    "state", ["running", "waiting_for_approval", "in_doubt", "failed", "done", "cancelled"]
)
def test_each_says_why_by_pointer_finger_and_key(client: Client, role: str, state: str) -> None:
    client.force_login(builders.user(role))
    seen = 0
    for address, page in pages(client, state):
        buttons = Buttons(page)
        # The browser's own would be skipped by Tab, and say nothing to a finger.
        assert buttons.disabled == [], address
        for button in buttons.off:
            seen += 1
            assert (button["tag"], button["type"]) == ("button", "button"), address
            assert button["popovertarget"] == button["aria-describedby"], address
            why = buttons.popovers[button["popovertarget"]]
            assert why == button["title"], address
            assert why.endswith("."), (address, why)
    assert seen
