"""A live page: its polls get 204 while nothing happens, and only what is new when something does."""

import html
import re
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as LoginSession
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.utils import timezone

from sessions_app import actions
from sessions_app.access.masking import Mask
from sessions_app.desk.context import session_row
from sessions_app.desk.pages.session import timeline
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.views import live
from sessions_app.models import Allowance, Checkpoint, RegisteredAgent, Session, StateValue, ToolCall
from sessions_app.watching import partial_replies
from sessions_app.watching.partial_replies import Written
from tests import builders
from tests.pages import text_at, without_random

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(client: Client) -> Client:
    client.force_login(builders.user("operator"))
    return client


def poll_of(text: str) -> str:
    poll = re.search(r'id="sentinel"\s+hx-get="([^"]+)"', text)
    assert poll is not None
    return poll[1].replace("&amp;", "&")


def watched(desk: Client, session: Session) -> str:
    """The address that the session's page polls."""
    return poll_of(text_at(desk, f"/sessions/{session.pk}/"))


def ask(desk: Client, address: str):
    return desk.get(address, headers={"HX-Request": "true", "HX-Current-URL": "http://testserver/"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "state, seconds",
    [
        ("running", 1),
        ("queued", 1),
        ("waiting_for_approval", 10),
        ("paused", 10),
        ("done", 0),
        ("cancelled", 0),
        ("failed", 0),
    ],
)
def test_how_often_a_page_asks_depends_on_the_state_and_a_closed_one_never_asks(desk, state, seconds):
    text = text_at(desk, f"/sessions/{builders.STATES[state]().pk}/")
    trigger = re.search(r'id="sentinel".*?hx-trigger="every (\d+)s, network"', text, re.DOTALL)
    assert (int(trigger[1]) if trigger else 0) == seconds


@pytest.mark.slow
def test_nothing_new_is_204_and_one_small_query(desk, django_assert_num_queries):
    address = watched(desk, builders.running())
    with django_assert_num_queries(1) as queries:
        answer = ask(desk, address)
    assert answer.status_code == 204
    assert answer.content == b""
    assert "change" in queries.captured_queries[0]["sql"]
    assert "totals" not in queries.captured_queries[0]["sql"]


@pytest.mark.slow
def test_a_new_step_is_appended_and_the_present_one_is_drawn_again_in_place(desk):
    history = builders.refunding()
    history.begin(history.calls[-1])
    session = history.rest("running")
    address = watched(desk, session)
    call = history.finish(history.calls[-1], "refunded")
    step = history.checkpoint("step")
    text = ask(desk, address).content.decode()
    before, _, after = text.partition('id="sentinel"')
    # New items come first, to take the sentinel's place, with a new sentinel after them.
    assert f'id="k{step.position}"' in before
    assert "hx-swap-oob" not in before
    # The step that was there already is replaced where it stands.
    assert re.search(r'<li\s+class="step[^"]*"\s+id="k\d+"\s+hx-swap-oob="true"', after)
    assert f'id="c{call.position}"' in after
    for part in ("session-head", "banner", "phases", "inbox", "side"):
        assert re.search(rf'id="{part}"[^>]*hx-swap-oob="true"', after), part
    # And asked again, there is nothing.
    assert ask(desk, poll_of(text)).status_code == 204


TIMES = re.compile(r'<section[^>]*id="times"[^>]*hx-swap-oob="true"')


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, stopped_clock: None):
    """Lets so many seconds pass; none pass by themselves."""
    passed = [timezone.now()]
    monkeypatch.setattr("django.utils.timezone.now", lambda: passed[-1])
    return lambda seconds: passed.append(passed[-1] + timedelta(seconds=seconds))


@pytest.mark.slow
def test_a_page_of_a_running_session_keeps_its_time_strip_for_ten_seconds(
    desk, clock, django_assert_max_num_queries
):
    history = builders.looked_up()
    address = watched(desk, history.rest("running"))
    history.lookup("POL-8")
    clock(6)
    with django_assert_max_num_queries(15):
        text = ask(desk, address).content.decode()
    assert 'id="phases"' in text
    assert 'id="times"' not in text
    # Nothing happens any more, but what the page shows is ten seconds old.
    address = poll_of(text)
    clock(3)
    assert ask(desk, address).status_code == 204
    clock(1)
    text = ask(desk, address).content.decode()
    assert TIMES.search(text)
    assert ask(desk, poll_of(text)).status_code == 204
    # It counts from then on.
    history.lookup("POL-9")
    clock(6)
    assert 'id="times"' not in ask(desk, poll_of(text)).content.decode()


@pytest.mark.slow
@pytest.mark.parametrize("status", ["paused", "queued", "idle", "waiting"])
def test_once_a_session_stops_its_time_strip_is_drawn_at_once(desk, clock, status):
    history = builders.looked_up()
    address = watched(desk, history.rest("running"))
    history.lookup("POL-8")
    if status == "waiting":
        history.rest(status, waiting_for="approval")
    else:
        history.rest(status)
    clock(1)
    assert TIMES.search(ask(desk, address).content.decode())


@pytest.mark.slow
def test_no_hint_of_the_diagnosis_is_kept(desk, clock):
    history = builders.looked_up()
    session = history.rest("running", lease_expires_at=timezone.now() - timedelta(seconds=1))
    text = desk.get(f"/sessions/{session.pk}/").content.decode()
    assert 'data-rule="stale heartbeat"' in text
    history.rest("running", lease_expires_at=timezone.now() + timedelta(seconds=60))
    history.lookup("POL-8")
    clock(1)
    text = ask(desk, poll_of(text)).content.decode()
    assert TIMES.search(text)
    assert "data-rule" not in text


@pytest.mark.slow
def test_an_open_page_says_that_the_worker_is_lost_and_that_it_is_not(desk, clock):
    """Nothing is committed: the lease runs out, and the worker was only late with its heartbeat."""
    history = builders.looked_up()
    session = history.rest("running", lease_expires_at=timezone.now() + timedelta(seconds=5))
    address = watched(desk, session)
    clock(4)
    assert ask(desk, address).status_code == 204
    clock(2)
    text = ask(desk, address).content.decode()
    assert "The lease of its worker" in text
    assert ask(desk, poll_of(text)).status_code == 204
    Session.objects.filter(pk=session.pk).update(lease_expires_at=timezone.now() + timedelta(seconds=12))
    text = ask(desk, poll_of(text)).content.decode()
    assert "The lease of its worker" not in text
    assert ask(desk, poll_of(text)).status_code == 204


@pytest.mark.slow
def test_a_page_asks_when_its_session_becomes_stuck_also_where_it_listens(desk, clock):
    """Of what happens by the clock alone no stream tells."""
    session = builders.STATES["queued"]()
    Session.objects.filter(pk=session.pk).update(next_run_at=timezone.now() - timedelta(seconds=20))
    text = desk.get(f"/sessions/{session.pk}/").content.decode()
    asks_in = re.search(r'data-asks-in="(\d+)"', text)
    assert asks_in is not None
    assert 40 <= int(asks_in[1]) <= 41
    clock(39)
    assert ask(desk, poll_of(text)).status_code == 204
    clock(2)
    assert "no worker has taken it" in ask(desk, poll_of(text)).content.decode()


def test_a_page_that_is_to_be_drawn_again_at_once_says_so() -> None:
    session, now = builders.paused(), timezone.now().replace(microsecond=1)
    context: Any = SimpleNamespace(session=session, now=now)
    request: Any = RequestFactory().get("/")
    second = int(now.timestamp())
    for until, said in ((None, []), (second, ["0"]), (second + 3, ["3"])):
        polled = live.poll(request, context, until=until)
        text = render_to_string("session/_sentinel.html", {"live": polled, "session": session})
        assert re.findall(r'data-asks-in="(.*?)"', text) == said


@pytest.mark.slow
def test_a_reply_that_is_being_written_does_not_keep_what_is_to_be_drawn_again(desk, clock):
    history = builders.looked_up()
    session = history.rest("running")
    address = watched(desk, session)
    history.lookup("POL-8")
    session.refresh_from_db()
    clock(1)
    text = ask(desk, address).content.decode()
    asks_in = re.search(r'data-asks-in="(\d+)"', text)
    assert asks_in is not None
    assert 8 <= int(asks_in[1]) <= 9

    def asked_after(seconds: int, address: str) -> str:
        clock(seconds)
        calls = session.totals.get("model_calls", 0)
        partial_replies.write(session.pk, Written(f"1.2.{seconds}", session.epoch, calls, f"For {seconds} s"))
        answer: str = ask(desk, address).content.decode()
        return answer

    only_reply = asked_after(7, poll_of(text))
    assert "For 7 s" in only_reply
    assert 'id="sentinel"' not in only_reply
    text = asked_after(2, poll_of(text))
    assert "For 2 s" in text
    assert TIMES.search(text)
    assert 'id="sentinel"' not in asked_after(3, poll_of(text))


@pytest.mark.slow
@pytest.mark.parametrize("drawn", ["", "x", "99999999999999999999", "9223372036854775807", "0"])
def test_a_page_that_says_nonsense_about_when_it_was_drawn_gets_all_or_is_told(desk, drawn):
    history = builders.looked_up()
    address = watched(desk, history.rest("running"))
    history.lookup("POL-8")
    answer = ask(desk, re.sub(r"drawn=\d*", f"drawn={drawn}", address))
    if drawn.startswith(("x", "9" * 20)):
        assert answer.status_code == 400
    else:
        assert TIMES.search(answer.content.decode())


@pytest.mark.slow
def test_a_new_step_does_not_bring_the_steps_before_it_again(desk):
    history = builders.asked()
    for number in range(30):
        history.lookup(f"POL-{number}")
    address = watched(desk, history.rest("running"))
    history.lookup("POL-30")
    text = ask(desk, address).content.decode()
    assert re.findall(r"<b>Step (\d+)</b>", text) == ["32", "31"]


@pytest.mark.slow
def test_what_happened_before_a_step_began_moves_above_it_on_an_open_page(desk):
    history = builders.looked_up()
    paused = history.event("paused")
    address = watched(desk, history.rest("running"))
    resumed = history.event("resumed")
    history.lookup("POL-8")
    history.rest("running")
    text = ask(desk, address).content.decode()
    step = [row.position for row in history.branch.checkpoints.order_by("position")][-2]
    above = rf'<ol hx-swap-oob="beforebegin:#k{step}">\s*<li[^>]* id="e{{}}"'.replace(" id", r"\s+id")
    assert re.search(above.format(paused.position), text)
    assert re.search(above.format(resumed.position), text)
    assert re.findall(r'id="e(\d+)" hx-swap-oob="delete"', text) == [str(paused.position)]
    # Neither is drawn a second time: below the step, or in its old place.
    assert len(re.findall(rf'id="e{resumed.position}"', text)) == 1
    # From then on they stand where they belong.
    history.event("paused")
    text = ask(desk, poll_of(text)).content.decode()
    assert "beforebegin" not in text


@pytest.mark.slow
def test_the_last_answer_ends_the_polling(desk):
    history = builders.looked_up()
    address = watched(desk, history.rest("running"))
    history.reply("Yes.")
    history.end("Yes.")
    text = ask(desk, address).content.decode()
    assert "Yes." in text
    assert "sentinel" not in text


@pytest.mark.slow
def test_after_a_rewind_the_whole_timeline_is_replaced(desk):
    session = builders.waiting_for_approval()
    address = watched(desk, session)
    checkpoint = Checkpoint.objects.filter(branch=session.branch).earliest("position")
    actions.rewind(actor=builders.actor(), session_id=session.pk, checkpoint_id=checkpoint.pk, reason="Again")
    answer = ask(desk, address)
    assert answer["HX-Retarget"] == "#timeline"
    assert answer["HX-Reswap"] == "outerHTML"
    assert 'id="t1"' in answer.content.decode()


@pytest.mark.slow
def test_without_a_valid_key_a_login_is_needed_even_to_hear_that_nothing_is_new(desk):
    address = watched(desk, builders.running())
    stranger = Client()
    forged = re.sub(r"key=[^&]+", "key=forged", address)
    assert ask(stranger, forged)["HX-Redirect"].startswith("/login/")
    other = watched(desk, builders.running())
    key = re.search(r"key=([^&]+)", other)
    assert key is not None
    assert ask(stranger, re.sub(r"key=[^&]+", key[0], address))["HX-Redirect"].startswith("/login/")


def test_content_is_given_to_those_who_are_logged_in_only(desk):
    history = builders.looked_up()
    address = watched(desk, history.rest("running"))
    history.user("A secret")
    answer = ask(Client(), address)
    assert answer["HX-Redirect"].startswith("/login/")
    assert "A secret" not in answer.content.decode()


@pytest.mark.slow
def test_news_are_as_cheap_for_a_long_history_as_for_a_short_one(desk, django_assert_num_queries):
    for steps in (2, 120):
        history = builders.asked()
        for number in range(steps):
            history.lookup(f"POL-{number}")
        address = watched(desk, history.rest("running"))
        history.lookup("POL-new")
        with django_assert_num_queries(8):
            assert 'id="times"' not in ask(desk, address).content.decode()
        with django_assert_num_queries(13):
            assert 'id="times"' in ask(desk, re.sub(r"drawn=\d+", "", address)).content.decode()


@pytest.mark.slow
@pytest.mark.parametrize("tab, queries", [("", 9), ("conversation/", 6)])
def test_news_cost_nothing_for_what_only_the_top_of_the_page_shows(
    desk, tab, queries, django_assert_num_queries
):
    """The queue from which it was opened, and who else has it open."""
    history = builders.asked()
    session = history.rest("running")
    other = Client()
    other.force_login(builders.user("operator", "bob"))
    other.get(f"/sessions/{session.pk}/")
    page = desk.get(f"/sessions/{session.pk}/{tab}?queue=running").content.decode()
    assert "Also open: <b>bob</b>" in page
    history.user("Are you there?")
    polled = re.search(r'id="(?:sentinel|talk)"\s+hx-get="([^"]+)"', page)
    assert polled is not None
    with django_assert_num_queries(queries):
        assert "Are you there?" in ask(desk, html.unescape(polled[1])).content.decode()


SIDE, FACTS = ('<aside id="side" hx-swap-oob="true">', '<section class="card" id="facts" hx-swap-oob="true">')


@pytest.mark.slow
def test_the_cards_beside_the_steps_are_sent_when_they_have_changed_and_not_with_each_step(desk):
    history = builders.looked_up()
    history.event("noted", builders.actor(), reason="She called")
    session = history.rest("running")
    text = desk.get(f"/sessions/{session.pk}/").content.decode()
    assert "She called" in text
    for _ in range(2):
        history.lookup("POL-8")
        text = ask(desk, poll_of(text)).content.decode()
        assert SIDE not in text
        assert FACTS in text

    def changes(what: Callable[[], object], shown: str) -> None:
        nonlocal text
        what()
        history.lookup("POL-9")
        text = ask(desk, poll_of(text)).content.decode()
        assert SIDE in text
        assert FACTS not in text
        assert shown in text.partition(SIDE)[2]
        history.lookup("POL-9")
        text = ask(desk, poll_of(text)).content.decode()
        assert SIDE not in text

    def allow() -> None:
        Allowance.objects.create(session=session, tool="issue_refund", granted_by="anna")
        history.event("approved", builders.actor(), reason="As often as it takes")

    changes(lambda: history.event("noted", builders.actor(), reason="She called again"), "She called again")
    changes(allow, "Pre-approved tools")
    changes(
        lambda: setattr(history.session, "breakpoints", [{"number": 1, "tool": "issue_refund"}]),
        "Breakpoints",
    )
    changes(lambda: history.event("noted", reason=""), "Audit")
    changes(lambda: setattr(history.session, "final_answer", "It is covered."), "It is covered.")
    agents_own = {"breakpoints": [{"number": 1, "tool": "send_letter"}]}
    agent = RegisteredAgent.objects.filter(key=session.agent)
    assert agent.exists()
    changes(lambda: agent.update(options=agents_own), "set by the agent's registration")
    user = User.objects.get(pk=desk.session["_auth_user_id"])
    changes(lambda: user.groups.set(builders.user("viewer").groups.all()), "It is covered.")
    # Without what the page shows, and where it shows another branch, all of it is sent.
    history.lookup("POL-10")
    assert SIDE in ask(desk, re.sub(r"&beside=[^&]+", "", poll_of(text))).content.decode()
    assert SIDE in ask(desk, re.sub(r"beside=[^&]+", "beside=9-0", poll_of(text))).content.decode()
    assert SIDE in ask(desk, poll_of(text).replace("branch=1", "branch=7")).content.decode()


@pytest.mark.slow
def test_the_cards_beside_the_steps_are_sent_once_an_hour_since_ages_beyond_a_day_are_dates(desk, clock):
    history = builders.looked_up()
    session = history.rest("running")
    text = desk.get(f"/sessions/{session.pk}/").content.decode()
    clock(3600)
    history.rest("running", lease_expires_at=timezone.now() + timedelta(seconds=60))
    sent = []
    for _ in range(2):
        history.lookup("POL-8")
        text = ask(desk, poll_of(text)).content.decode()
        sent.append(SIDE in text)
    assert sent == [True, False]


@pytest.mark.slow
def test_the_times_of_a_call_have_their_date_from_the_next_day_on(desk, clock):
    history = builders.looked_up()
    session = history.rest("paused")
    asked_at = timezone.localtime(ToolCall.objects.get(branch__session=session).asked_at)
    with_date = f">{asked_at:%d %b %H:%M}<"
    assert with_date not in desk.get(f"/sessions/{session.pk}/").content.decode()
    clock(86_400)
    assert with_date in desk.get(f"/sessions/{session.pk}/").content.decode()


@pytest.mark.slow
def test_the_working_memory_beside_the_steps_follows(desk):
    history = builders.looked_up()
    session = history.rest("running")
    text = desk.get(f"/sessions/{session.pk}/").content.decode()
    for goal, is_sent in (("Find the policy", True), ("Find the policy", False), ("Refund it", True)):
        history.lookup("POL-8")
        checkpoint = history.last_checkpoint
        value = {"key": "working_memory", "value": {"goal": goal}}
        StateValue.objects.create(branch=checkpoint.branch, position=checkpoint.position, **value)
        checkpoint.keys = {"working_memory": checkpoint.position}
        checkpoint.save()
        text = ask(desk, poll_of(text)).content.decode()
        assert (SIDE in text) == is_sent
        assert (f"<b>{goal}</b>" in text) == is_sent


def end_of_login(client: Client, how: str) -> None:
    user = User.objects.get(pk=client.session["_auth_user_id"])
    if how == "log out":
        client.post("/logout/")
    elif how == "login runs out":
        LoginSession.objects.update(expire_date=timezone.now() - timedelta(seconds=1))
    elif how == "new password":
        user.set_password("a new one")
        user.save()
    elif how == "deactivated":
        user.is_active = False
        user.save()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["log out", "login runs out", "new password", "deactivated"])
def test_a_key_is_worth_nothing_once_the_login_it_was_made_for_has_ended(desk, how):
    history = builders.looked_up()
    address = watched(desk, history.rest("running"))
    cookie = desk.cookies["sessionid"].value
    assert ask(desk, address).status_code == 204
    end_of_login(desk, how)
    desk.cookies["sessionid"] = cookie
    for has_news in (False, True):
        if has_news:
            history.user("A secret")
        answer = ask(desk, address)
        assert answer.status_code == 200
        assert answer["HX-Redirect"].startswith("/login/")
        assert "A secret" not in answer.content.decode()


def listening(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under ASGI, where a page asks when it was told of news."""
    monkeypatch.setattr(live, "is_offered", lambda request: True)


@pytest.mark.slow
@pytest.mark.parametrize("listens", [False, True])
def test_a_permission_that_was_withdrawn_counts_with_the_next_news(desk, monkeypatch, listens):
    if listens:
        listening(monkeypatch)
    history = builders.looked_up()
    address = watched(desk, history.rest("running"))
    User.objects.get(pk=desk.session["_auth_user_id"]).groups.clear()
    history.user("A secret")
    answer = ask(desk, address)
    assert answer.status_code == 403
    assert "A secret" not in answer.content.decode()


@pytest.mark.parametrize("name", ["viewer", "operator", "supervisor"])
def test_who_asks_by_a_key_may_do_what_they_may_do_by_their_login(client, monkeypatch, name):
    client.force_login(builders.user(name))
    history = builders.looked_up()
    address = watched(client, history.rest("running"))
    history.lookup("POL-8")
    answers = [ask(client, re.sub("key=[^&]+", "key=", address)), ask(client, address)]
    listening(monkeypatch)
    answers.append(ask(client, address))
    assert [answer.status_code for answer in answers] == [200] * 3
    by_login, by_key, told = (without_random(answer.content.decode()) for answer in answers)
    offers = re.compile(r'href="[^"]+/(\w+)/[^"]*" hx-get|why-not-(\w+)')
    assert offers.findall(by_key) == offers.findall(told) == offers.findall(by_login)
    assert offers.findall(told)


@pytest.mark.slow
def test_where_a_page_listens_its_user_is_read_with_what_they_may_do(
    desk, monkeypatch, django_assert_num_queries
):
    listening(monkeypatch)
    history = builders.looked_up()
    address = watched(desk, history.rest("running"))
    with django_assert_num_queries(1):
        assert ask(desk, address).status_code == 204
    history.lookup("POL-8")
    with django_assert_num_queries(7):
        assert 'id="times"' not in ask(desk, address).content.decode()


def test_what_happens_while_an_answer_is_made_is_in_the_next_one() -> None:
    history = builders.looked_up()
    session = history.rest("running")
    newest = history.last_checkpoint.position

    def context() -> SessionContext:
        row = session_row(session.pk)
        return SessionContext.of(row, actor=builders.actor(), now=timezone.now(), mask=Mask.none())

    before = context()
    history.event("noted", reason="Call back")
    history.lookup("POL-8")
    assert [item.position for item in timeline.read_since(before, newest).items] == [newest]
    items = timeline.read_since(context(), newest).items
    assert sorted(type(item).__name__ for item in items) == ["EventItem", "StepItem", "StepItem"]


@pytest.mark.slow
def test_a_key_is_worth_nothing_with_another_login(desk):
    address = watched(desk, builders.running())
    assert ask(Client(), address)["HX-Redirect"].startswith("/login/")
    outsider = Client()
    outsider.force_login(builders.user(None))
    assert ask(outsider, address).status_code == 403
    # The same user's other login neither, nor a cookie that nobody was given.
    again = Client()
    again.force_login(User.objects.get(pk=desk.session["_auth_user_id"]))
    assert ask(again, address).status_code == 200
    again.cookies["sessionid"] = "a\x00b" * 8
    assert ask(again, address)["HX-Redirect"].startswith("/login/")


@pytest.mark.slow
def test_a_key_runs_out(desk, monkeypatch):
    address = watched(desk, builders.running())
    monkeypatch.setattr("sessions_app.desk.live_key.SECONDS", -1)
    assert ask(desk, address).status_code == 200


@pytest.mark.slow
def test_the_first_step_takes_the_place_of_the_note_that_nothing_has_happened(desk):
    history = builders.History()
    session = history.rest("running")
    page = desk.get(f"/sessions/{session.pk}/").content.decode()
    assert "No steps yet" in page
    assert 'id="no-items"' in page
    history.system("You help.")
    history.user("Is my windscreen covered?")
    history.checkpoint("start")
    text = ask(desk, poll_of(page)).content.decode()
    assert '<li id="no-items" hx-swap-oob="delete"></li>' in text
    history.lookup()
    assert "no-items" not in ask(desk, poll_of(text)).content.decode()


@pytest.mark.slow
def test_the_counts_on_the_filters_follow(desk):
    history = builders.looked_up()
    address = watched(desk, history.rest("running"))
    history.lookup("POL-8")
    history.event("noted", builders.actor(), reason="She called")
    text = ask(desk, address).content.decode()
    assert re.search(
        r'<a\s+id="chip-people"[^>]*hx-swap-oob="true"[^>]*>People <span class="num">2</span></a>', text
    )
    assert re.search(r'<a\s+id="chip-errors"[^>]*>Errors <span class="num">0</span></a>', text)
    assert re.search(
        r'<a\s+id="chip-tools"[^>]*hx-swap-oob="true"[^>]*>Tools <span class="num">2</span></a>', text
    )


def people_chip(page: str) -> str:
    """How many actions by people it tells of, the start among them; "" where it does not tell."""
    chip = re.search(r'<a\s+id="chip-people"[^>]*>People <span class="num">(\d+)</span></a>', page)
    return chip[1] if chip else ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "act, number",
    [
        (lambda history, by: history.event("noted", by, reason="She called"), "3"),
        (lambda history, by: history.user("Please hurry.", author="sue"), "3"),
        (lambda history, by: (history.model_fails(), history.event("resumed", by)), "3"),
        (lambda history, by: history.user("Are you there?"), "2"),  # a customer's
        (lambda history, by: None, ""),
    ],
    ids=["a note", "a message", "resuming", "a customer", "nobody"],
)
def test_the_count_of_peoples_actions_is_sent_when_it_may_have_changed(desk, act, number):
    history = builders.looked_up()
    history.event("noted", builders.actor(), reason="Before the page was opened")
    address = watched(desk, history.rest("running"))
    act(history, builders.actor())
    history.lookup("POL-8")
    assert people_chip(ask(desk, address).content.decode()) == number
    page = desk.get(f"/sessions/{history.session.pk}/").content.decode()
    assert people_chip(page) == (number or "2")


@pytest.mark.slow
def test_a_failed_model_call_counts_among_the_errors(desk):
    history = builders.looked_up()
    history.model_fails()
    page = desk.get(f"/sessions/{history.rest('idle').pk}/").content.decode()
    assert re.search(r'<a\s+id="chip-errors"[^>]*>Errors <span class="num">1</span></a>', page)


def test_the_conversation_is_live_and_costs_one_query_while_nothing_changes(desk, django_assert_num_queries):
    history = builders.looked_up()
    session = history.rest("running")
    page = desk.get(f"/sessions/{session.pk}/conversation/").content.decode()
    polled = re.search(r'id="talk"\s+hx-get="([^"]+)"', page)
    assert polled is not None
    poll = polled[1].replace("&amp;", "&")
    with django_assert_num_queries(1):
        assert ask(desk, poll).status_code == 204
    history.reply("Yes.")
    history.end("Yes.")
    part = ask(desk, poll).content.decode()
    assert "<html" not in part
    assert "Yes." in part
    assert 'id="session-head" hx-swap-oob="true"' in part
    assert 'id="talk"\n' in part
    assert "hx-trigger" not in part


STAYING = ["state/", "memories/", "checkpoints/", "audit/", "json/", "find/?q=policy", "?show=errors"]


def top_of(page: str) -> str:
    """The address that a tab asks which stays as it was loaded."""
    polled = re.search(r'id="newer"\s+hx-get="([^"]+)"', page)
    assert polled is not None
    return html.unescape(polled[1])


@pytest.mark.slow
@pytest.mark.parametrize("tab", STAYING)
def test_a_tab_that_stays_as_it_was_loaded_has_a_live_top_and_says_that_the_session_has_changed(
    desk, tab, django_assert_num_queries
):
    history = builders.looked_up()
    session = history.rest("running")
    page = desk.get(f"/sessions/{session.pk}/{tab}").content.decode()
    assert 'id="reload"' not in page
    with django_assert_num_queries(1):
        assert ask(desk, top_of(page)).status_code == 204
    history.lookup("POL-8")
    with django_assert_num_queries(4):
        text = ask(desk, top_of(page)).content.decode()
    assert re.search(r'<a [^>]*id="reload" href="">The session has changed: reload this page</a>', text)
    for part in ("session-head", "banner"):
        assert re.search(rf'id="{part}"[^>]*hx-swap-oob="true"', text), part
    assert re.search(rf"<title>\s*{session} · Running · AgentState\s*</title>", text)
    # It says so until it is loaded again, also where nothing more happens.
    assert ask(desk, top_of(text)).status_code == 204
    history.reply("Yes.")
    history.end("Yes.")
    text = ask(desk, top_of(text)).content.decode()
    assert 'id="reload"' in text
    assert "hx-trigger" not in text
    assert "Done" in text
    assert 'id="newer"' not in desk.get(f"/sessions/{session.pk}/{tab}").content.decode()


@pytest.mark.slow
@pytest.mark.parametrize("tab", ["", "conversation/"])
def test_a_tab_that_is_live_itself_asks_for_nothing_else(desk, tab):
    page = text_at(desk, f"/sessions/{builders.running().pk}/{tab}")
    assert 'id="newer"' not in page


@pytest.mark.slow
def test_what_happens_by_the_clock_alone_is_told_at_the_top_of_a_tab_and_is_nothing_newer(desk, clock):
    history = builders.looked_up()
    session = history.rest("running", lease_expires_at=timezone.now() + timedelta(seconds=5))
    page = text_at(desk, f"/sessions/{session.pk}/state/")
    clock(6)
    text = ask(desk, top_of(page)).content.decode()
    assert "The lease of" in text
    assert 'id="reload"' not in text
    assert ask(desk, top_of(text)).status_code == 204


@pytest.mark.slow
def test_a_reply_that_is_being_written_is_no_news_for_a_tab_that_does_not_show_it(
    desk, django_assert_num_queries
):
    session = builders.looked_up().rest("running")
    page = text_at(desk, f"/sessions/{session.pk}/state/")
    calls = session.totals.get("model_calls", 0)
    partial_replies.write(session.pk, Written("1.2.3", session.epoch, calls, "It is"))
    with django_assert_num_queries(1):
        assert ask(desk, top_of(page)).status_code == 204


@pytest.mark.slow
def test_idle_time_that_is_hidden_stays_hidden_while_the_page_is_live(desk):
    history = builders.looked_up(created_at=timezone.now() - timedelta(hours=5))
    history.now += timedelta(hours=2)
    history.user("And my mirror?")
    history.lookup()
    start = Checkpoint.objects.filter(branch__session=history.session).order_by("position")[1]
    session = history.rest("paused")
    page = desk.get(f"/sessions/{session.pk}/?gaps=hide").content.decode()
    assert "idle 2 h</li>" not in page
    poll = poll_of(page)
    actions.rewind(
        actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="again", run=True
    )
    moved = ask(desk, poll).content.decode()
    assert re.search(r'<ol class="timeline nogaps" id="timeline">', moved)
    assert "gaps=hide" in poll_of(moved)


@pytest.mark.slow
def test_earlier_messages_are_asked_for_without_what_the_page_polls_with(desk):
    history = builders.looked_up()
    for number in range(210):
        history.user(f"Question {number}?")
    session = history.rest("running")
    page = desk.get(f"/sessions/{session.pk}/conversation/").content.decode()
    [polled] = re.findall(r'id="talk"\s+hx-get="([^"]+)"', page)
    history.reply("Yes.")
    for text in (page, ask(desk, html.unescape(polled)).content.decode()):
        [link] = re.findall(r'href="([^"]+)">Earlier messages<', text)
        assert re.fullmatch(rf"/sessions/{session.pk}/conversation/\?before=\d+", link)
        assert desk.get(link).status_code == 200
