"""Who else has a session open: one line on its pages, for less than a minute, and the buffer that holds it."""

import html
import math
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client

from sessions_app.models import Session
from sessions_app.watching import buffer, open_pages
from sessions_app.watching.buffer import Buffer, MemoryBuffer
from sessions_app.watching.redis_buffer import RedisBuffer
from tests import builders
from tests.pages import text_at

SCRIPT = Path(__file__).parent.parent / "static" / "desk" / "desk.js"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, time: timedelta) -> None:
        self.now += time.total_seconds()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def held(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> MemoryBuffer:
    held = MemoryBuffer(clock)
    monkeypatch.setattr(buffer, "_in_memory", lambda: held)
    return held


@pytest.fixture(params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> Callable[[Clock], Buffer]:
    if request.param == "memory":
        return MemoryBuffer
    url = request.getfixturevalue("redis_url")
    return lambda clock: RedisBuffer(url, clock)


def user(name: str, first: str = "", last: str = "") -> Client:
    made = builders.user("operator", name)
    User.objects.filter(pk=made.pk).update(first_name=first, last_name=last)
    client = Client()
    client.force_login(made)
    return client


LINE = re.compile(r'<p\s+class="also-open"\s+hx-get="(?P<address>[^"]+)"[^>]*>(?P<text>.*?)</p>', re.DOTALL)


def line(client: Client, session: Session) -> str:
    return line_of(text_at(client, f"/sessions/{session.pk}/also-open/"))["text"]


def line_of(page: str) -> dict[str, str]:
    """The address at which the page asks again, and the text of the line."""
    found = LINE.search(page)
    assert found is not None
    return {name: html.unescape(text) for name, text in found.groupdict().items()}


@pytest.mark.slow
@pytest.mark.django_db
def test_a_page_names_who_else_has_the_session_open(held: MemoryBuffer) -> None:
    ada, bob = user("ada", "Ada", "Lovelace"), user("bob")
    session, other = builders.done(), builders.paused()
    assert "Also open" not in ada.get(f"/sessions/{session.pk}/").content.decode()
    assert "Also open: <b>Ada Lovelace</b>" in bob.get(f"/sessions/{session.pk}/audit/").content.decode()
    assert line(ada, session) == "Also open: <b>bob</b>"
    assert line(bob, other) == ""


@pytest.mark.slow
@pytest.mark.django_db
def test_who_has_left_is_named_no_more_within_a_minute(held: MemoryBuffer, clock: Clock) -> None:
    ada, bob = user("ada", "Ada", "Lovelace"), user("bob")
    session = builders.done()
    ada.get(f"/sessions/{session.pk}/")
    clock.pass_by(timedelta(seconds=20))
    line(ada, session)
    clock.pass_by(timedelta(seconds=49))
    assert line(bob, session) == "Also open: <b>Ada Lovelace</b>"
    clock.pass_by(timedelta(seconds=10))
    assert line(bob, session) == ""


@pytest.mark.slow
@pytest.mark.django_db
def test_a_page_asks_every_twenty_seconds_and_also_where_nothing_can_happen(held: MemoryBuffer) -> None:
    ada = user("ada")
    for session in (builders.done(), builders.running()):
        text = ada.get(f"/sessions/{session.pk}/").content.decode()
        assert line_of(text)["address"].startswith(f"/sessions/{session.pk}/also-open/?")
        assert 'hx-trigger="every 20s, visibilitychange from:document, others"' in text


@pytest.mark.slow
@pytest.mark.django_db
def test_names_are_masked_and_many_are_counted(held: MemoryBuffer, settings: Any) -> None:
    settings.AGENTSTATE_MASK_PATTERNS = ["Lovel[a-z]+"]
    session = builders.done()
    for client in [user("ada", "Ada", "Lovelace"), *(user(f"user-{letter}") for letter in "bcdef")]:
        line(client, session)
    expected = "Also open: <b>Ada ••••, user-b, user-c, user-d, 2 more</b>"
    assert line(user("zoe"), session) == expected


@pytest.mark.django_db
def test_an_account_that_is_deactivated_is_named_no_more(held: MemoryBuffer) -> None:
    ada, bob = user("ada"), user("bob")
    session = builders.done()
    line(ada, session)
    User.objects.filter(username="ada").update(is_active=False)
    assert line(bob, session) == ""


@pytest.mark.django_db
def test_only_who_may_see_sessions_is_told_and_counted(held: MemoryBuffer) -> None:
    session = builders.done()
    outsider = Client()
    outsider.force_login(builders.user(None))
    assert outsider.get(f"/sessions/{session.pk}/also-open/").status_code == 403
    assert Client().get(f"/sessions/{session.pk}/also-open/").status_code == 302
    assert open_pages.users(session.pk) == set()


@pytest.mark.django_db
def test_the_line_costs_one_query_more_where_somebody_else_is_there(
    held: MemoryBuffer, django_assert_num_queries: Any
) -> None:
    ada, bob = user("ada"), user("bob")
    session = builders.done()
    with django_assert_num_queries(3):
        line(ada, session)
    with django_assert_num_queries(4):
        line(bob, session)


@pytest.mark.django_db
def test_a_page_that_shows_who_is_there_is_told_so_by_one_query(
    held: MemoryBuffer, clock: Clock, django_assert_num_queries: Any
) -> None:
    ada, bob = user("ada", "Ada", "Lovelace"), user("bob")
    session = builders.done()
    alone = line_of(ada.get(f"/sessions/{session.pk}/").content.decode())
    with django_assert_num_queries(1):
        assert ada.get(alone["address"]).status_code == 204
    clock.pass_by(timedelta(seconds=40))
    assert ada.get(alone["address"]).status_code == 204
    clock.pass_by(timedelta(seconds=40))
    # Since ada has asked meanwhile, bob sees that she is there; and her next answer names him.
    with_ada = line_of(bob.get(f"/sessions/{session.pk}/").content.decode())
    assert with_ada["text"] == "Also open: <b>Ada Lovelace</b>"
    with_bob = line_of(ada.get(alone["address"]).content.decode())
    assert with_bob["text"] == "Also open: <b>bob</b>"
    for client, shown in ((ada, with_bob), (bob, with_ada)):
        assert client.get(shown["address"]).status_code == 204
    clock.pass_by(timedelta(seconds=60))
    assert line_of(ada.get(with_bob["address"]).content.decode())["text"] == ""


@pytest.mark.django_db
def test_the_address_of_a_page_says_for_nobody_else_that_it_is_open(held: MemoryBuffer) -> None:
    session, other = builders.done(), builders.paused()
    address = line_of(user("ada").get(f"/sessions/{session.pk}/").content.decode())["address"]
    before = open_pages.users(session.pk)
    bob, outsider = user("bob"), Client()
    outsider.force_login(builders.user(None))
    assert bob.get(address).status_code == 200
    assert outsider.get(address).status_code == 403
    assert Client().get(address).status_code == 302
    assert bob.get(address.replace(str(session.pk), str(other.pk))).status_code == 200
    names = {User.objects.get(pk=key).username for key in open_pages.users(session.pk) - before}
    assert names == {"bob"}


@pytest.mark.django_db
def test_who_may_no_longer_see_the_session_counts_for_minutes_at_most(
    held: MemoryBuffer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob, session = user("ada"), user("bob"), builders.done()
    address = line_of(bob.get(f"/sessions/{session.pk}/").content.decode())["address"]
    User.objects.get(username="bob").groups.clear()
    clock.pass_by(timedelta(minutes=1))
    # While somebody else is there his question is not answered by the key, and does not count.
    line(ada, session)
    assert bob.get(address).status_code == 403
    assert line(ada, session) == ""
    clock.pass_by(timedelta(minutes=1))
    monkeypatch.setattr("sessions_app.desk.live_key.VIEWER_SECONDS", -1)
    assert bob.get(address).status_code == 403
    assert open_pages.users(session.pk) == set()


@pytest.mark.django_db
def test_a_key_that_has_run_out_is_replaced_with_the_line(
    held: MemoryBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, session = user("ada"), builders.done()
    address = line_of(ada.get(f"/sessions/{session.pk}/").content.decode())["address"]
    with monkeypatch.context() as late:
        late.setattr("sessions_app.desk.live_key.VIEWER_SECONDS", -1)
        answer = ada.get(address)
    assert answer.status_code == 200
    assert ada.get(line_of(answer.content.decode())["address"]).status_code == 204


def test_values_and_members_are_held_for_their_time(make: Callable[[Clock], Buffer]) -> None:
    clock = Clock()
    held = make(clock)
    held.write("reply", {"version": "1", "text": "It"}, seconds=30)
    held.write("reply", {"version": "2"}, seconds=30)
    assert held.read("reply", "version", "text") == ["2", ""]
    held.remove("reply")
    assert held.read("reply", "version") == [""]
    held.mark([("open", "7", 50)])
    clock.pass_by(timedelta(seconds=40))
    held.mark([("open", "8", 50)])
    assert [sorted(members) for members in held.marked("open", "none")] == [["7", "8"], []]
    clock.pass_by(timedelta(seconds=40))
    assert held.marked("none", "open") == [[], ["8"]]


@pytest.fixture
def anywhere(make: Callable[[Clock], Buffer], clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open pages are held in each kind of buffer, by the clock of the test."""
    held = make(clock)
    monkeypatch.setattr(open_pages, "buffer", lambda: held)


@pytest.mark.usefixtures("anywhere")
def test_each_page_that_is_still_open_counts_and_is_told_of_the_others(clock: Clock) -> None:
    shared, alone = uuid4(), uuid4()
    for session, user in ((shared, 12), (shared, 3), (shared, 7), (alone, 3)):
        open_pages.opened(session, user)
    pages = {(shared, 3), (shared, 7), (alone, 3)}
    assert open_pages.still_open(pages) == {(shared, 3): {7, 12}, (shared, 7): {3, 12}, (alone, 3): set()}
    assert open_pages.still_open([]) == {}
    clock.pass_by(timedelta(seconds=40))
    assert open_pages.still_open({(shared, 3)}) == {(shared, 3): {7, 12}}
    clock.pass_by(timedelta(seconds=40))
    assert open_pages.still_open({(shared, 7)}) == {(shared, 7): {3}}
    assert open_pages.users(alone) == set()
    assert open_pages.as_text({12, 3, 7}) == "3-7-12"


@pytest.mark.usefixtures("anywhere")
def test_a_stream_outlasts_a_page_that_nothing_is_heard_of_any_more_and_then_says_nothing(
    clock: Clock,
) -> None:
    session = uuid4()
    pages = {(session, 3), (session, 7)}
    for user in (3, 7):
        open_pages.opened(session, user)
    # The page asks at the first of its ticks, one every 20 seconds, behind that.
    [here] = re.findall(r"\bHERE = (\d+)", SCRIPT.read_text())
    asks_after = int(here) // 1000 + 20
    for _ in range(math.ceil(asks_after / 20)):
        clock.pass_by(timedelta(seconds=20))
        open_pages.still_open(pages)
    assert open_pages.users(session) == {3, 7}
    open_pages.opened(session, 3)  # its page asks again, the other's network has vanished
    for _ in range(4):
        clock.pass_by(timedelta(seconds=20))
        open_pages.still_open(pages)
    assert open_pages.still_open(pages) == {(session, 3): set(), (session, 7): {3}}


def test_the_memory_forgets_what_is_out_of_date(clock: Clock) -> None:
    held = MemoryBuffer(clock)
    for number in range(100):
        held.write(f"reply {number}", {"text": "It"}, seconds=30)
        held.mark([(f"open {number}", "7", 50)])
        clock.pass_by(timedelta(seconds=60))
    assert held.read("reply 99", "text") == [""]
    assert (len(held._values), len(held._sets)) == (1, 1)


def test_all_that_redis_holds_has_a_time_limit(redis_url: str) -> None:
    import redis

    held = RedisBuffer(redis_url)
    held.write("reply", {"version": "1"}, seconds=30)
    held.mark([("open", "7", 50)])
    server = redis.Redis.from_url(redis_url)
    assert 0 < server.pttl("reply") <= 30_000
    assert 0 < server.pttl("open") <= 50_000


def test_an_unavailable_redis_is_an_empty_buffer_and_is_not_asked_all_the_time(caplog: Any) -> None:
    clock = Clock()
    held = RedisBuffer("redis://127.0.0.1:1/0", clock)
    for _ in range(3):
        held.write("reply", {"version": "1"}, seconds=30)
        assert held.read("reply", "version", "text") == ["", ""]
        assert held.marked("open") == [[]]
    assert len(caplog.records) == 1
    clock.pass_by(timedelta(seconds=6))
    held.mark([("open", "7", 50)])
    assert len(caplog.records) == 2
