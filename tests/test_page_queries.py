"""The desk's pages ask the database as often for many rows as for few: exact numbers, no timing.

Those of the inbox, a list, a search, the tabs of a session and news are in the tests of these.
"""

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from sessions_app.models import BulkAction, SavedView, Session, Worker
from tests import builders
from tests.builders import History

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

LISTS = {
    "/inbox/?agent=claims": 30,
    "/inbox/?tag=glass": 30,
    "/inbox/?customer=Lindqvist": 29,
    "/inbox/?since=7d": 29,
    "/inbox/?status=waiting": 30,
    "/inbox/?phase=executing": 29,
    "/inbox/?assignee=me": 29,
    "/inbox/?kind=approval": 19,
    "/inbox/?kind=failed": 16,
    "/inbox/?kind=stuck": 14,
    "/inbox/?kind=doubt": 14,
    "/?queue=running": 16,
    "/?queue=waiting": 16,
    "/?queue=stuck": 16,
    "/?queue=paused": 16,
    "/?queue=failed": 16,
    "/?queue=done": 16,
    "/?queue=all&agent=claims": 17,
    "/?queue=all&status=failed": 16,
    "/?queue=all&phase=done": 17,
    "/?queue=all&since=7d": 17,
    "/?queue=all&tag=glass": 17,
    "/?queue=all&customer=Lindqvist": 17,
    "/?queue=all&assignee=me": 17,
    "/?queue=all&tag=glass&customer=Lindqvist": 17,
    "/?queue=failed&tag=glass": 17,
    "/start/": 8,
    "/keys/": 6,
    "/agents/": 7,
    "/agents/claims/": 10,
    "/workers/": 9,
    "/views/": 7,
    "/bulk/?queue=failed&tag=glass": 9,
    "/bulk/?queue=all": 9,
    "/bulk/actions/": 8,
}
SESSION_PAGES = {
    "?show=errors": 23,
    "?show=tools": 26,
    "?show=people": 22,
    "?tool=lookup_policy": 26,
    "?phase=planning": 28,
    "memories/": 11,
    "find/?q=policy": 12,
    "resume/": 12,
    "pause/": 7,
    "cancel/": 7,
    "rewind/": 19,
    "fork/": 19,
    "undo/": 8,
    "message/": 7,
    "breakpoint/": 7,
    "assign/": 8,
    "note/": 7,
}


@pytest.fixture
def supervisor(client: Client) -> Client:
    client.force_login(builders.user("supervisor", "anna"))
    return client


def write(times: int) -> None:
    """So many sessions of each state, with all that a list can filter by, and rows of all else that has a list."""
    anna = User.objects.get(username="anna")
    for number in range(times):
        name = f"{times}-{number}"
        builders.agent(name)
        Worker.objects.create(name=name)
        SavedView.objects.create(owner=anna, name=name, query=f"queue=all&tag=n{number}")
        BulkAction.objects.create(kind="pause", reason="To see", actor=anna, actor_name="anna")
        for make in builders.STATES.values():
            made = make(tags=["glass", f"n{number}"], customer="Greta Lindqvist")
            Session.objects.filter(pk=made.pk, assignee=None).update(assignee=anna)


def queries_of(client: Client, address: str) -> int:
    """The number for a second request, as what a process has read once is kept."""
    client.get(address)
    with CaptureQueriesContext(connection) as captured:
        assert client.get(address).status_code == 200, address
    return len(captured)


def test_lists_are_as_cheap_for_many_sessions_as_for_few(supervisor: Client) -> None:
    numbers = []
    for times in (1, 12):
        write(times)
        numbers.append({address: queries_of(supervisor, address) for address in LISTS})
    assert numbers[0] == numbers[1]
    # PostgreSQL is asked for estimates besides.
    assert numbers[0] == LISTS or connection.vendor != "sqlite"


def test_pages_of_a_session_are_as_cheap_for_a_long_history_as_for_a_short_one(supervisor: Client) -> None:
    numbers = []
    for steps in (3, 130):
        history: History = builders.asked()
        for number in range(steps):
            history.lookup(f"POL-{number}")
            builders.memory_entry(history.session, f"Has the policy {number}.")
        history.rest("paused")
        numbers.append(
            {page: queries_of(supervisor, f"/sessions/{history.session.pk}/{page}") for page in SESSION_PAGES}
        )
    assert numbers[0] == numbers[1]
    assert numbers[0] == SESSION_PAGES
