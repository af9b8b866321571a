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
    "/inbox/?agent=claims": 28,
    "/inbox/?tag=glass": 28,
    "/inbox/?customer=Lindqvist": 27,
    "/inbox/?since=7d": 27,
    "/inbox/?status=waiting": 28,
    "/inbox/?phase=executing": 27,
    "/inbox/?assignee=me": 25,
    "/inbox/?kind=approval": 17,
    "/inbox/?kind=failed": 14,
    "/inbox/?kind=stuck": 12,
    "/inbox/?kind=doubt": 12,
    "/?queue=running": 14,
    "/?queue=waiting": 14,
    "/?queue=stuck": 14,
    "/?queue=paused": 14,
    "/?queue=failed": 14,
    "/?queue=done": 14,
    "/?queue=all&agent=claims": 14,
    "/?queue=all&status=paused": 14,
    "/?queue=all&status=idle": 14,
    "/?queue=all&phase=done": 14,
    "/?queue=all&since=7d": 14,
    "/?queue=all&tag=glass": 14,
    "/?queue=all&customer=Lindqvist": 14,
    "/?queue=all&assignee=me": 15,
    "/?queue=all&tag=glass&customer=Lindqvist": 14,
    "/?queue=failed&tag=glass": 14,
    "/start/": 7,
    "/keys/": 5,
    "/agents/": 6,
    "/agents/claims/": 9,
    "/workers/": 8,
    "/views/": 6,
    "/bulk/?queue=failed&tag=glass": 8,
    "/bulk/?queue=all": 8,
    "/bulk/actions/": 7,
}
SESSION_PAGES = {
    "?show=errors": 20,
    "?show=tools": 23,
    "?show=people": 19,
    "?tool=lookup_policy": 23,
    "?phase=planning": 25,
    "memories/": 9,
    "find/?q=policy": 10,
    "resume/": 11,
    "pause/": 6,
    "cancel/": 6,
    "rewind/": 18,
    "fork/": 18,
    "undo/": 7,
    "message/": 6,
    "breakpoint/": 6,
    "assign/": 7,
    "note/": 6,
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
        answer = client.get(address)
    assert answer.status_code == 200, address
    # An invalid field of a filter is left out, so that another list would be asked for.
    assert "errorlist" not in answer.content.decode(), address
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
