"""The queues, the filters, and the pages for approvals, agents and workers."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.formats import date_format

from sessions_app import actions
from sessions_app.access.roles import Actor
from sessions_app.desk.pages.approvals import shown_fingerprint
from sessions_app.desk.pages.workers import no_worker_for_due_sessions
from sessions_app.finding import counting, newest, queue_numbers, queues
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.queues import Asked
from sessions_app.models import Approval, Phase, Session, SessionTag, Status, Worker
from sessions_app.times import since_when
from sessions_app.wording import age_or_date, ago, for_how_long
from tests import builders
from tests.pages import poll_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(operator: Client) -> Client:
    return operator


def listed(desk: Client, query: str = "") -> list[str]:
    """The titles of the sessions on a list; without a query, on that of the sessions that need a person."""
    if not query:
        return [row.title for row in queues.read_page("attention", now=timezone.now()).sessions]
    answer = desk.get(f"/?{query}")
    assert answer.status_code == 200
    return re.findall(r"data-row>([^<]+)</a>", answer.content.decode())


def counts(desk: Client) -> dict[str, int]:
    text = re.sub(r"\s+", " ", desk.get("/?queue=all").content.decode())
    nav = text[text.index('aria-label="Queues"') :]
    nav = nav[: nav.index("</nav>")]
    return {
        name.strip(): int(number)
        for name, number in re.findall(r'>\s*([A-Z][a-z ]+) <span class="count[^"]*">(\d+)', nav)
    }


@pytest.mark.slow
def test_each_session_is_in_the_queues_of_its_state(desk):
    for state, build in builders.STATES.items():
        build(title=state)
    # The lost worker is the only thing wrong with this one.
    Session.objects.filter(title="done (fork)").delete()
    assert set(listed(desk, "queue=waiting")) == {
        "waiting_for_approval",
        "in_doubt",
        "retries_used_up",
        "changed",
    }
    assert set(listed(desk, "queue=paused")) >= {"paused", "rewound"}
    assert set(listed(desk, "queue=running")) == {
        "queued",
        "retrying",
        "running",
        "pausing",
        "cancelling",
        "lost",
    }
    assert {"done", "cancelled"} <= set(listed(desk, "queue=done"))
    assert set(listed(desk)) >= {
        "waiting_for_approval",
        "in_doubt",
        "retries_used_up",
        "changed",
        "failed",
        "lost",
    }
    assert not {"done", "paused", "running", "cancelled", "retrying"} & set(listed(desk))


@pytest.mark.slow
@pytest.mark.parametrize("label", ["Failed", "Stuck"])
def test_a_tab_that_is_named_as_the_label_of_rows_has_all_that_are_labelled_so(desk, label):
    for state, build in builders.STATES.items():
        build(title=state)
    Session.objects.filter(title="pausing").update(updated_at=timezone.now() - timedelta(hours=1))
    Session.objects.filter(title="queued").update(next_run_at=timezone.now() - timedelta(hours=1))
    rows = re.split(r'<div class="row" role="row"', desk.get("/?queue=all").content.decode())[1:]
    labelled = [row for row in rows if re.search(rf'<span class="pill error">{label}</span>', row)]
    titles = {match[1] for row in labelled if (match := re.search(r"data-row>([^<]+)</a>", row))}
    assert titles
    assert set(listed(desk, f"queue={label.lower()}")) == titles
    assert counts(desk)[label] == len(labelled)


@pytest.mark.slow
def test_the_counts_are_those_of_the_lists(desk):
    for build in builders.STATES.values():
        build()
    numbers = counts(desk)
    for queue in queues.QUEUES:
        assert numbers[queue.title] == len(listed(desk, f"queue={queue.key}")), queue.title


@pytest.mark.parametrize(
    "state, queue",
    [
        ("queued", "running, stuck"),  # no worker has taken it for minutes
        ("retrying", "running"),
        ("running", "running"),
        ("pausing", "running"),
        ("cancelling", "running"),
        ("lost", "running, stuck"),
        ("waiting_for_approval", "waiting"),
        ("in_doubt", "waiting"),
        ("retries_used_up", "waiting"),
        ("changed", "waiting"),
        ("paused", "paused"),
        ("cancelled", "done"),
        ("done", "done"),
        ("failed", "failed"),
    ],
)
def test_the_queues_that_a_session_is_in_are_those_of_its_state(state, queue):
    session = builders.STATES[state]()
    now = timezone.now()
    found = {each.key for each in queues.QUEUES if queues.select(each.key, now, None).filter(pk=session.pk)}
    assert found == {*queue.split(", "), "all"}


def test_there_is_no_queue_of_another_name():
    with pytest.raises(KeyError):
        queues.select("unassigned", timezone.now(), None)


def numbers_beside(where: Q) -> dict[str, str]:
    return {count.queue.key: str(count.number) for count in queue_numbers.counts(timezone.now(), where)}


@pytest.mark.slow
@pytest.mark.parametrize("where", [Q(), Q(title__contains="e"), Q(status="paused"), Q(tags__name="vip")])
def test_counts_beside_a_filter_of_many_sessions_are_exact_where_the_queues_are_small(where):
    for number, (state, build) in enumerate(builders.STATES.items()):
        session = build(title=state)
        if number % 2:
            session.tags.create(name="vip")
    now = timezone.now()
    expected = [str(queues.select(queue.key, now, where).count()) for queue in queues.QUEUES[:-1]]
    assert sum(map(int, expected)) >= 3
    counted = queue_numbers._count_many(now, where or Q(pk__isnull=False), by_row=False)
    assert [*map(str, counted)] == [*expected, "99+"]


def test_counts_beside_a_filter_of_many_sessions_say_where_a_queue_was_not_looked_through(desk, monkeypatch):
    for module in (queues, queue_numbers):
        monkeypatch.setattr(module, "MOST", 3)
    monkeypatch.setattr(queue_numbers, "LOOKED_AT", 2)
    minutes_ago = [timezone.now() - timedelta(minutes=minutes) for minutes in range(6)]
    for at, title in zip(minutes_ago, ["A", "B", "A", "A"], strict=False):
        builders.paused(title=title, created_at=at)
    for at in minutes_ago[:2]:
        builders.failed(title="A", created_at=at)
    # Of the paused sessions the newest two are looked at, of which one matches; all of those that failed.
    numbers = numbers_beside(Q(title="A"))
    assert (numbers["paused"], numbers["failed"], numbers["done"], numbers["all"]) == ("1+", "2", "0", "3+")
    assert numbers_beside(Q(title="B"))["paused"] == "1"
    assert len(queues.read_page("paused", now=timezone.now(), asked=Asked(Q(title="A"))).sessions) == 3


def test_a_queue_whose_sessions_cannot_match_a_filter_has_none(monkeypatch):
    for module in (queues, queue_numbers):
        monkeypatch.setattr(module, "MOST", 2)
    monkeypatch.setattr(queue_numbers, "LOOKED_AT", 1)
    for _ in range(3):
        builders.paused()
        builders.failed()
        builders.done()
    numbers = numbers_beside(Q(status="paused"))
    assert numbers == {queue.key: "0" for queue in queues.QUEUES} | {"paused": "1+", "all": "2+"}
    numbers = numbers_beside(Q(Q(phase="done"), agent__gt=""))
    assert (numbers["failed"], numbers["done"]) == ("0", "1+")


def test_the_number_of_the_queue_on_a_page_is_no_smaller_than_what_the_page_lists(desk, monkeypatch):
    monkeypatch.setattr(queue_numbers, "LOOKED_AT", 1)
    for module in (queues, queue_numbers):
        monkeypatch.setattr(module, "MOST", 3)
    for title in "AAAB":
        builders.paused(title=title)
    builders.done(title="A")
    text = " ".join(desk.get("/?queue=paused&status=paused").content.decode().split())
    assert (
        '<a href="/?queue=paused&amp;status=paused" aria-current="page" > Paused <span class="count">3+</span>'
        in text
    )
    assert "3+ results" in text


@pytest.mark.slow
@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize("queue", ["all", "paused", "done"])
@pytest.mark.parametrize("walked", [1, 4, 100])
def test_pages_of_several_filters_have_each_session_once_in_order(queue, oldest_first, walked, monkeypatch):
    monkeypatch.setattr(newest, "WALKED_SESSIONS", walked)
    now = timezone.now()
    for number in range(24):
        build = builders.done if number % 2 else builders.paused
        session = build(title=f"{number}", customer="Keller" if number % 3 else "Hopper")
        # Some changed at the same time.
        Session.objects.filter(pk=session.pk).update(updated_at=now - timedelta(minutes=number // 4))
        if number % 4 < 2:
            session.tags.create(name="vip")
    tagged = Session.objects.filter(tags__name="vip").values("pk")
    where = Q(pk__in=tagged) & Q(customer__contains="Keller")
    order = ("updated_at", "pk") if oldest_first else ("-updated_at", "-pk")
    expected = list(queues.select(queue, now, where).order_by(*order))
    listed, after = [], ""
    while True:
        page = queues.read_page(
            queue,
            now=now,
            asked=Asked(where, several=True),
            after=after,
            limit=3,
            oldest_first=oldest_first,
        )
        listed += page.sessions
        if not (after := page.next):
            break
    assert listed == expected
    assert len(expected) > 3
    keys, are_all = queues.keys_of_matching(where, several=True)
    assert (set(keys), are_all) == (set(queues.select("all", now, where).values_list("pk", flat=True)), True)


def test_the_keys_that_stand_for_a_filter_are_enough_for_a_page():
    assert queues.PAGE <= counting.MOST


def test_filters_of_which_one_matches_nothing_list_nothing(desk):
    builders.done(title="Roof", customer="Ada", tags=["vip"])
    for query in (
        "queue=all&customer=%7E&tag=vip",
        "queue=done&customer=%7E&tag=vip",
        "queue=all&customer=zq&tag=vip",
    ):
        assert listed(desk, query) == []
    where = Q(pk__in=[]) & Q(agent="claims")
    assert queues.read_page("done", now=timezone.now(), asked=Asked(where, several=True)).sessions == []
    assert queues.keys_of_matching(where, several=True) == ([], True)


def test_a_queued_session_that_no_worker_takes_needs_attention(desk):
    session = builders.queued(title="Forgotten")
    Session.objects.filter(pk=session.pk).update(next_run_at=timezone.now() - timedelta(minutes=5))
    assert listed(desk) == ["Forgotten"]
    Session.objects.filter(pk=session.pk).update(next_run_at=timezone.now())
    assert listed(desk) == []


def test_who_has_waited_longest_comes_first_where_people_are_needed(desk):
    for minutes in (5, 50, 20):
        builders.failed(title=f"{minutes} minutes", created_at=timezone.now() - timedelta(minutes=minutes))
    assert listed(desk) == ["50 minutes", "20 minutes", "5 minutes"]
    assert listed(desk, "queue=all") == ["5 minutes", "20 minutes", "50 minutes"]


@pytest.mark.slow
@pytest.mark.parametrize("ascending", [True, False])
def test_pages_of_the_stuck_have_each_session_once_however_many_reasons_it_has(ascending):
    """Each reason has an index of its own, and is read by it."""
    now = timezone.now()
    running = {"status": "running", "next_run_at": None}
    for number in range(4):
        for name, values in (
            ("lost", running | {"lease_expires_at": now - timedelta(minutes=1)}),
            ("hangs", running | {"lease_expires_at": now + timedelta(minutes=1)}),
            ("lost and hangs", running | {"lease_expires_at": now - timedelta(minutes=1)}),
            ("overdue", {"status": "queued", "next_run_at": now - timedelta(minutes=5)}),
        ):
            changed = now - timedelta(hours="hangs" in name, seconds=number)
            session = builders.queued(title=f"{name} {number}")
            Session.objects.filter(pk=session.pk).update(updated_at=changed, **values)
    builders.paused(title="not stuck")
    pages, after = [], ""
    while True:
        page = queues.read_page("stuck", now=now, after=after, limit=3, oldest_first=ascending)
        pages.append(page.sessions)
        if not (after := page.next):
            break
    stuck = list(queues.select("stuck", now, None).order_by("updated_at", "pk"))
    assert len(stuck) == 16
    assert [session for page in pages for session in page] == (stuck if ascending else stuck[::-1])
    assert [len(page) for page in pages] == [3, 3, 3, 3, 3, 1]
    [count] = [count.number for count in queue_numbers.counts(now) if count.queue.key == "stuck"]
    assert (count.number, count.more) == (16, False)
    where = Q(title__startswith="lost")
    [count] = [count.number for count in queue_numbers.counts(now, where) if count.queue.key == "stuck"]
    assert count.number == 8
    assert len(queues.read_page("stuck", now=now, asked=Asked(where)).sessions) == 8
    nothing = Q(pk__in=[])
    assert queues.read_page("stuck", now=now, asked=Asked(nothing)).sessions == []
    assert not any(count.number for count in queue_numbers.counts(now, nothing))


def test_pages_follow_each_other_without_loss_or_repetition(desk):
    same = timezone.now() - timedelta(minutes=3)
    made = {builders.paused(created_at=same, title=f"Session {number}").title for number in range(7)}
    now = timezone.now()
    titles: list[str] = []
    after = ""
    while True:
        page = queues.read_page("paused", now=now, after=after, limit=3)
        titles += [session.title for session in page.sessions]
        if not page.next:
            break
        after = page.next
    assert len(titles) == 7
    assert set(titles) == made
    assert queues.read_page("paused", now=now, after="nonsense", limit=3).sessions


@pytest.mark.slow
def test_a_list_is_as_cheap_for_many_sessions_as_for_few(desk, django_assert_num_queries):
    for _ in range(3):
        builders.failed(tags=["glass"])
    with django_assert_num_queries(13):
        desk.get("/?queue=all")
    for _ in range(40):
        builders.failed(tags=["glass", "storm"])
    with django_assert_num_queries(13):
        desk.get("/?queue=all")


@pytest.mark.slow
def test_a_stuck_session_needs_attention_and_says_why_until_it_moves(desk):
    session = builders.lost(title="Stuck")
    text = desk.get("/inbox/").content.decode()
    assert ">Stuck</h2>" in text
    assert "was not renewed" in text
    later = timezone.now() + timedelta(seconds=12)
    Session.objects.filter(pk=session.pk).update(lease_expires_at=later, updated_at=timezone.now())
    assert ">Stuck</h2>" not in desk.get("/inbox/").content.decode()
    Session.objects.filter(pk=session.pk).update(updated_at=timezone.now() - timedelta(minutes=40))
    assert "Running, but nothing has been recorded for 40 min." in desk.get("/inbox/").content.decode()


@pytest.mark.slow
def test_filters_narrow_a_list_and_stay_in_its_links(desk):
    builders.agent("letters", title="Letters desk")
    builders.failed(title="One", tags=["glass"], customer="Keller")
    builders.failed(title="Two", agent_key="letters", customer="Hopper")
    old = builders.failed(title="Three")
    Session.objects.filter(pk=old.pk).update(updated_at=timezone.now() - timedelta(days=3))
    assert listed(desk, "tag=glass") == ["One"]
    assert listed(desk, "agent=letters") == ["Two"]
    assert listed(desk, "customer=hop") == ["Two"]
    assert set(listed(desk, "since=1d")) == {"One", "Two"}
    assert listed(desk, "status=waiting") == []
    assert set(listed(desk, "phase=error")) == {"One", "Two", "Three"}
    assert set(listed(desk, "assignee=nobody")) == {"One", "Two", "Three"}
    assert listed(desk, "assignee=me") == []
    text = desk.get("/?tag=glass").content.decode()
    assert "?queue=all&amp;tag=glass" in text.replace("&tag", "&amp;tag")


def test_an_invalid_filter_shows_its_error_and_the_others_still_filter(desk):
    builders.failed(title="One", tags=["glass"])
    builders.failed(title="Two")
    text = desk.get("/?status=bogus&tag=glass").content.decode()
    assert "Select a valid choice" in text
    assert listed(desk, "status=bogus&tag=glass") == ["One"]
    alone = desk.get("/?status=bogus").content.decode()
    assert '<details class="filter" open>' in alone
    assert "Select a valid choice" in alone


def test_only_fields_that_can_be_filled_in_have_a_label(desk):
    page = desk.get("/?queue=all").content.decode()
    labels = re.findall(r'<label for="id_(\w+)">', page)
    assert labels == ["q", "agent", "status", "phase", "assignee", "tag", "customer", "since"]


@pytest.mark.slow
def test_sessions_are_found_by_title_customer_and_id(desk):
    session = builders.done(title="Windscreen", customer="Keller")
    builders.done(title="Other", customer="Hopper")
    for text in ("windsc", "kell", str(session.pk), str(session.pk)[:30]):
        assert listed(desk, f"queue=all&q={text}") == ["Windscreen"], text
    assert listed(desk, "queue=all&q=%25") == []


@pytest.mark.slow
def test_a_live_list_gets_204_while_nothing_has_changed(desk):
    builders.failed()
    text = desk.get("/?queue=all").content.decode()
    poll = re.search(r'hx-get="([^"]+seen=[^"]+)"', text)
    assert poll is not None
    address = poll[1].replace("&amp;", "&")
    headers = {"HX-Request": "true"}
    assert desk.get(address, headers=headers).status_code == 204
    builders.failed(title="New one", created_at=timezone.now())
    answer = desk.get(address, headers=headers)
    assert answer.status_code == 200
    assert "New one" in answer.content.decode()
    assert "<html" not in answer.content.decode()


@pytest.mark.slow
def test_a_live_list_reads_tags_only_where_it_has_changed(desk):
    SessionTag.objects.create(session=builders.paused(), name="glass")
    page = desk.get("/?queue=paused").content.decode()
    assert ">glass</a>" in page
    headers = {"HX-Request": "true"}
    with CaptureQueriesContext(connection) as unchanged:
        assert desk.get(poll_of(page), headers=headers).status_code == 204
    SessionTag.objects.create(session=builders.paused(), name="water")
    with CaptureQueriesContext(connection) as changed:
        assert ">water</a>" in desk.get(poll_of(page), headers=headers).content.decode()
    table = SessionTag._meta.db_table
    assert [sum(table in query["sql"] for query in queries) for queries in (unchanged, changed)] == [0, 1]


@pytest.mark.slow
def test_of_a_filter_that_no_session_matches_no_number_is_asked_for(desk):
    builders.paused(customer="Keller")
    with CaptureQueriesContext(connection) as queries:
        page = desk.get("/?queue=paused&customer=Nobody").content.decode()
    assert "No session matches." in page
    assert re.findall(r'class="count">([^<]+)<', page) == ["0"] * len(queues.QUEUES)
    assert not [query for query in queries if "FILTER (WHERE" in query["sql"]]


@pytest.mark.slow
def test_a_live_list_gets_204_while_only_sessions_of_other_queues_change(desk):
    paused, running = builders.paused(), builders.running()
    poll = poll_of(desk.get("/?queue=paused").content.decode())
    Session.objects.filter(pk=running.pk).update(updated_at=timezone.now())
    assert desk.get(poll, headers={"HX-Request": "true"}).status_code == 204
    Session.objects.filter(pk=paused.pk).update(updated_at=timezone.now())
    assert desk.get(poll, headers={"HX-Request": "true"}).status_code == 200


@pytest.mark.slow
def test_a_session_that_stops_moving_appears_on_an_open_list_although_no_row_has_changed(desk, monkeypatch):
    Session.objects.filter(pk=builders.queued(title="Forgotten").pk).update(next_run_at=timezone.now())
    poll = poll_of(desk.get("/inbox/").content.decode())
    later = timezone.now() + timedelta(minutes=5)
    monkeypatch.setattr("sessions_app.desk.context.timezone.now", lambda: later)
    answer = desk.get(poll, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert "Forgotten" in answer.content.decode()


@pytest.mark.slow
def test_counts_are_exact_up_to_99_and_follow_the_filter(desk):
    for number in range(100):
        builders.paused(title=f"Claim {number}", customer="Keller" if number < 99 else "Hopper")
    words = " ".join(re.sub(r"<[^>]+>", " ", desk.get("/?queue=paused").content.decode()).split())
    assert "Failed 0 Stuck 0 Paused 99+ Done 0 All 99+" in words
    address = "/?queue=paused&customer=Keller"
    words = " ".join(re.sub(r"<[^>]+>", " ", desk.get(address).content.decode()).split())
    assert "Paused 99 Done 0 All 99" in words
    assert "99+" not in words


@pytest.mark.slow
def test_empty_queues_say_so(desk):
    for queue in queues.QUEUES:
        assert queue.empty in desk.get(f"/?queue={queue.key}").content.decode().replace("&#x27;", "'")


@pytest.mark.slow
def test_pages_need_a_login_and_a_role(client):
    for address in (
        "/",
        "/start/",
        "/inbox/",
        "/approvals/",
        "/agents/",
        "/workers/",
        "/keys/",
        "/compare/?a=1&b=2",
    ):
        answer = client.get(address)
        assert answer.status_code == 302
        assert answer["Location"].startswith("/login/?next=")
    client.force_login(builders.user(None))
    for address in ("/", "/start/", "/inbox/", "/approvals/", "/agents/", "/workers/"):
        assert client.get(address).status_code == 403


def test_a_poll_after_the_login_ended_leads_to_the_login(client):
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/?queue=paused"}
    answer = client.get("/?queue=paused", headers=headers)
    assert answer["HX-Redirect"] == "/login/?next=/%3Fqueue%3Dpaused"


def test_the_login_says_that_a_form_was_not_sent(client):
    answer = client.post("/start/", {"message": "Hello"}, follow=True)
    assert "Nothing was sent: your login had ended." in answer.content.decode()
    answer = client.get("/start/", follow=True)
    assert "Nothing was sent" not in answer.content.decode()


def test_a_page_that_another_user_opened_sends_nothing(client):
    other = builders.user("operator", "berta")
    client.force_login(builders.user("operator", "anna"))
    answer = client.post("/start/", {"message": "Hello"}, headers={"Desk-User": str(other.pk)})
    assert answer.status_code == 403
    assert "You are logged in as anna now" in answer.content.decode()


@pytest.mark.slow
def test_logging_in_and_out(client):
    builders.user("operator", "berta")
    text = client.post("/login/", {"username": "berta", "password": "wrong"}).content.decode()
    assert "The name or the password is wrong" in text
    answer = client.post("/login/", {"username": "berta", "password": "correct horse", "next": "/workers/"})
    assert answer["Location"] == "/workers/"
    assert client.get("/inbox/").status_code == 200
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/").status_code == 302


@pytest.mark.slow
def test_the_inbox_shows_open_approvals_of_the_present_history_only(desk):
    session = builders.waiting_for_approval(title="Refund it")
    lapsed = builders.waiting_for_approval(title="Too late")
    Approval.objects.filter(session=lapsed).update(expires_at=timezone.now() - timedelta(seconds=20))
    text = desk.get("/inbox/").content.decode()
    assert "Refund it" in text
    assert "Too late" not in text
    assert "moves money" in text
    assert re.search(r'Inbox\s*<span class="count">1</span>', text)
    from sessions_app import actions
    from sessions_app.models import Checkpoint

    first = Checkpoint.objects.filter(branch=session.branch).earliest("position")
    actions.rewind(actor=builders.actor(), session_id=session.pk, checkpoint_id=first.pk, reason="No")
    assert "Refund it" not in desk.get("/inbox/").content.decode()


def test_approving_in_the_inbox_returns_to_it(desk):
    session = builders.waiting_for_approval()
    approval = Approval.objects.get(session=session)
    answer = desk.post(
        f"/sessions/{session.pk}/approve/",
        {
            "version": session.version,
            "call_id": approval.call_id,
            "fingerprint": shown_fingerprint(approval),
            "back": "inbox",
        },
    )
    assert answer["Location"] == "/inbox/#inbox-heading"


def test_agents_are_shown_with_tools_policies_and_the_phases_of_all_their_sessions(desk):
    builders.done()
    builders.done()
    assert "Claims desk" in desk.get("/agents/").content.decode()
    text = desk.get("/agents/claims/").content.decode()
    for what in (
        "issue_refund",
        "needs approval",
        "moves money",
        ">idempotent<",
        ">not idempotent<",
        "maximum",
    ):
        assert what in text
    assert (
        "planning to executing, 2 times" in text.replace("Changes: ", "")
        or "planning to executing 2 times" in text
    )
    assert desk.get("/agents/nobody/").status_code == 404


def test_workers_are_shown_with_their_running_sessions(desk):
    Worker.objects.create(name="host:1")
    Worker.objects.create(name="host:2", beat_at=timezone.now() - timedelta(hours=1))
    Worker.objects.create(name="host:3", stopped_at=timezone.now())
    Worker.objects.create(name="host:4", beat_at=timezone.now() - timedelta(days=8))
    builders.running(title="Held")
    text = desk.get("/workers/").content.decode()
    assert re.search(r"host:1</td>\s*<td data-label=\"State\">\s*<span class=\"pill done\">Online", text)
    assert re.search(r"host:2</td>\s*<td data-label=\"State\">\s*<span class=\"pill error\">Offline", text)
    assert re.search(r"host:3</td>\s*<td data-label=\"State\">\s*<span class=\"pill idle\">Stopped", text)
    assert "host:4" not in text
    assert "Held" in text


@pytest.mark.slow
def test_every_page_warns_when_sessions_are_due_and_no_worker_is_online(desk):
    session = builders.queued()
    Session.objects.filter(pk=session.pk).update(next_run_at=timezone.now() - timedelta(minutes=2))
    for address in ("/inbox/", f"/sessions/{session.pk}/", "/workers/"):
        assert "No worker is running." in desk.get(address).content.decode()
    Worker.objects.create(name="host:1")
    assert "No worker is running." not in desk.get("/inbox/").content.decode()
    Worker.objects.update(stopped_at=timezone.now())
    assert "No worker is running." in desk.get("/inbox/").content.decode()


def test_whether_sessions_are_due_and_workers_are_online_is_read_in_no_order(django_assert_num_queries):
    """In an order of time, all that are due would be read and sorted, on every page."""
    session = builders.queued()
    Session.objects.filter(pk=session.pk).update(next_run_at=timezone.now())
    assert not no_worker_for_due_sessions(
        timezone.now() + timedelta(seconds=10)
    )  # a worker may still take it
    with django_assert_num_queries(2) as captured:
        assert no_worker_for_due_sessions(timezone.now() + timedelta(hours=1))
    for query in captured.captured_queries:
        assert "ORDER BY" not in query["sql"]
        assert "LIMIT 1" in query["sql"]


@pytest.mark.slow
def test_a_searched_list_says_how_many_results_there_are_and_can_be_cleared(desk):
    for number in range(3):
        builders.done(title=f"Roof {number}")
    builders.done(title="Cellar")
    text = " ".join(desk.get("/?queue=all&q=Roof").content.decode().split())
    assert "<b>3 results</b> for “Roof”" in text
    assert '<a class="button" href="/?queue=all">Clear</a>' in text
    assert "<b>1 result</b> for “Cellar”" in " ".join(
        desk.get("/?queue=all&q=Cellar").content.decode().split()
    )
    assert "result</b>" not in desk.get("/?queue=all").content.decode()


@pytest.mark.slow
def test_the_filter_is_open_while_a_search_or_a_filter_is_on_and_has_one_way_to_clear_it(desk):
    builders.done(title="Roof")
    for query in ("q=Roof", "agent=claims", "status=idle", "q=nothinglikethis"):
        text = desk.get(f"/?queue=all&{query}").content.decode()
        assert '<details class="filter" open>' in text, query
        assert text.count(">Clear") == 1, query
    for query in ("", "&order=oldest"):
        text = desk.get(f"/?queue=all{query}").content.decode()
        assert '<details class="filter">' in text
        assert ">Clear" not in text


def test_the_address_of_a_filtered_list_has_no_empty_parameters(desk):
    session = builders.done(title="Roof", customer="Ada")
    sent = "/?queue=done&q=Roof&agent=&status=&phase=&assignee=&tag=&customer=&since=&failure=&bulk="
    assert desk.get(sent)["Location"] == "/?queue=done&q=Roof"
    assert desk.get("/?q=")["Location"] == "/?queue=all"
    assert desk.get("/?queue=all&tag=a%26b&q=")["Location"] == "/?queue=all&tag=a%26b"
    for page in ("find", "memories"):
        here = f"/sessions/{session.pk}/{page}/"
        assert desk.get(f"{here}?q=&queue=done")["Location"] == f"{here}?queue=done"
        assert desk.get(f"{here}?q=")["Location"] == here
    # A live list polls the address that it was drawn with.
    assert desk.get("/?queue=all&q=", headers={"HX-Request": "true"}).status_code == 200


def test_the_own_sessions_are_one_chip_that_is_marked_while_it_filters(desk):
    builders.done(title="Roof")
    assert '<a href="/?queue=done&amp;assignee=me">' in desk.get("/?queue=done").content.decode()
    mine = desk.get("/?queue=done&assignee=me").content.decode()
    assert '<a href="/?queue=done" aria-current="true">' in mine


@pytest.mark.slow
def test_the_order_of_a_list_is_said_and_can_be_turned(desk):
    builders.done(title="Old")
    builders.done(title="New")
    text = desk.get("/?queue=all").content.decode()
    assert "Changed most recently first" in " ".join(text.split())
    assert text.index(">New</a>") < text.index(">Old</a>")
    turned = desk.get("/?queue=all&order=oldest").content.decode()
    assert "Changed longest ago first" in " ".join(turned.split())
    assert turned.index(">Old</a>") < turned.index(">New</a>")


@pytest.mark.slow
def test_a_session_that_nobody_has_is_taken_from_the_list(desk):
    session = builders.done(title="Free")
    text = desk.get("/?queue=all").content.decode()
    assert 'aria-label="Take Free"' in text
    assert f'form="take"\n        formaction="/sessions/{session.pk}/assign/' in text
    assert '<form id="take" method="post">' in text
    text = desk.get("/?queue=done&q=Free").content.decode()
    assert '<input type="hidden" name="back" value="desk?queue=done&amp;q=Free">' in text
    sent = {"version": session.version, "assignee": "anna", "back": "desk?queue=done&q=Free"}
    answer = desk.post(f"/sessions/{session.pk}/assign/", sent)
    assert answer["Location"] == f"/?queue=done&q=Free#s{session.pk}"
    session.refresh_from_db()
    assert session.assignee is not None
    assert session.assignee.username == "anna"
    assert 'aria-label="Take Free"' not in desk.get("/?queue=all").content.decode()


def test_who_may_not_assign_is_offered_nothing_to_take(client):
    builders.done(title="Free")
    client.force_login(builders.user("viewer"))
    text = client.get("/?queue=all").content.decode()
    assert "Free" in text
    assert 'id="take"' not in text
    assert "Take Free" not in text


@pytest.mark.slow
def test_the_demo_desk_says_what_to_type_and_a_click_fills_it_in(desk):
    assert "Demo data." not in desk.get("/?queue=all").content.decode()
    builders.agent("letters", model="scripted demo model", description="Sends letters to policy holders.")
    builders.done()
    assert "Demo data." not in desk.get("/?queue=all").content.decode()
    builders.History().event("finished", Actor.system("demo"))
    pages = [desk.get(page).content.decode() for page in ("/?queue=all", "/start/", "/inbox/")]
    links = [re.findall(r'href="(/start/\?agent=letters&amp;message=[^"]+)"', text) for text in pages]
    assert all("Demo data." in text for text in pages)
    assert len(links[0]) == 1
    assert links[0] == links[1] == links[2]
    form = desk.get(links[0][0].replace("&amp;", "&")).content.decode()
    assert "Send a letter to POL-8807 saying that the roofer comes on Thursday.</textarea>" in form
    assert '<option value="letters" selected>' in form
    assert "Sends letters to policy holders." in form


def test_what_changed_more_than_a_day_ago_has_its_date():
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert age_or_date(now - timedelta(minutes=14), now) == "14 min"
    assert age_or_date(now - timedelta(days=3), now) == "18 Nov 12:00"
    assert age_or_date(datetime(2025, 5, 3, tzinfo=UTC), now) == "03 May 2025"
    assert ago(now - timedelta(minutes=14), now) == "14 min ago"
    assert ago(now, now) == for_how_long(now, now) == "just now"
    assert ago(now - timedelta(days=3), now) == "18 Nov 12:00"
    assert for_how_long(now - timedelta(minutes=14), now) == "for 14 min"
    assert for_how_long(now - timedelta(days=3), now) == "since 18 Nov 12:00"


def test_a_relative_time_has_its_date_and_zone_on_hover(desk):
    session = builders.paused()
    Session.objects.filter(pk=session.pk).update(
        updated_at=datetime(2025, 5, 3, 9, tzinfo=UTC), phase_since=timezone.now() - timedelta(minutes=14)
    )
    text = desk.get("/?queue=all").content.decode()
    assert 'title="03 May 2025, 09:00:00 UTC">03 May 2025</time>' in text
    assert re.search(
        r'reflecting <time datetime="[^"]+" title="[^"]+ UTC" data-age="for {}">for 14 min</time>', text
    )


def test_the_date_on_hover_is_written_as_all_dates_of_the_project_are():
    at = datetime(2025, 5, 3, 9, 4, 5, tzinfo=UTC)
    with timezone.override("Europe/Berlin"):
        assert f'title="{date_format(timezone.localtime(at), "DATETIME_FORMAT")}"' in since_when(at)
        assert "03 May 2025, 11:04:05 CEST" in since_when(at)


@pytest.mark.slow
@pytest.mark.parametrize("status", ["", *Status.values])
@pytest.mark.parametrize("phase", Phase.values)
def test_a_filter_by_phase_finds_the_sessions_that_are_in_it_whatever_their_status(
    status: str, phase: str
) -> None:
    for state in builders.STATES.values():
        state()
    for ended in Phase.values:
        session = builders.STATES["cancelled"]()
        Session.objects.filter(pk=session.pk).update(phase=ended, previous_phase="")
    user = builders.user("viewer")
    where = SessionFilter({"phase": phase, "status": status}, user=user).where()
    expected = {row.pk for row in Session.objects.all() if row.phase == phase and status in ("", row.status)}
    assert set(Session.objects.filter(where).values_list("pk", flat=True)) == expected


@pytest.mark.slow
def test_a_later_page_whose_sessions_are_gone_does_not_say_that_there_are_none(desk):
    sessions = [builders.paused(title=f"Session {number}") for number in range(51)]
    first = desk.get("/?queue=paused").content.decode()
    [following] = re.findall(r'href="([^"]+)"\s+rel="next"', first)
    [left] = [session for session in sessions if str(session.pk) not in first]
    actions.cancel(actor=builders.SYSTEM, session_id=left.pk, reason="Gone")
    page = desk.get(unescape(following)).content.decode()
    assert "Nothing is left on this page." in page
    assert '<a href="/?queue=paused">First page</a>' in page
    assert "No session" not in page


@pytest.mark.slow
def test_the_number_of_ones_own_sessions_is_that_of_the_list_to_which_the_chip_leads(desk):
    anna = User.objects.get(username="anna")
    for key in ("claims", "claims", "billing"):
        builders.agent(key)
        builders.paused(agent_key=key, assignee=anna)
    for query, number in {"": "3", "&assignee=me": "3", "&agent=claims": None}.items():
        text = " ".join(re.sub(r"<[^>]+>", " ", desk.get(f"/?queue=paused{query}").content.decode()).split())
        assert re.findall(r"Mine(?: (\d+))?", text) == [number or ""], query
