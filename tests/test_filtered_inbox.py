"""A filtered inbox: how its sessions are found depends on how many match, and what it shows does not."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q, QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from sessions_app.desk.pages.inbox import InboxPage
from sessions_app.finding import (
    causes,
    counting,
    filters,
    inbox,
    inbox_calls,
    inbox_condition,
    inbox_counts,
    inbox_mine,
    queue_numbers,
    queues,
)
from sessions_app.finding.counting import are_about, sessions_about
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.inbox_rows import KINDS
from sessions_app.finding.inbox_states import Condition, Matches
from sessions_app.models import Approval, Branch, Phase, Session, SessionTag, Status, ToolCall
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(client: Client) -> Client:
    client.force_login(builders.user("supervisor", "anna"))
    return client


@pytest.fixture
def sessions() -> list[Session]:
    """Of each kind of line four, every second one tagged, with two customers, and an agent that has changed."""
    made = []
    kinds: list[Callable[..., Session]] = [
        builders.waiting_for_approval,
        builders.in_doubt,
        builders.failed,
        builders.retries_used_up,
        builders.lost,
        builders.done,
    ]
    for number in range(4):
        for place, build in enumerate(kinds):
            minutes = 100 - 10 * number - place
            session = build(
                title=f"{build.__name__} {number}",
                customer=("Greta Lindqvist", "Ada Byron")[number // 2],
                created_at=timezone.now() - timedelta(minutes=minutes),
            )
            if number % 2:
                SessionTag.objects.create(session=session, name="vip")
            made.append(session)
    builders.changed(title="changed", customer="Ada Byron")
    return made


@pytest.fixture
def paused() -> None:
    """One that waited for an approval, and one that has a call in doubt."""
    for build in (builders.waiting_for_approval, builders.in_doubt):
        Session.objects.filter(pk=build(title="paused").pk).update(status="paused", waiting_for="")


STOPPED = ("waiting", "paused")
FILTERS = {
    "agent": Q(agent="claims"),
    "either": Q(title__endswith="1") | Q(customer="Ada Byron", title__gt="f"),
    "tag": Q(pk__in=SessionTag.objects.filter(name="vip").values("session")),
    "tag by a join": Q(tags__name="vip"),
    "part of a customer": Q(customer__icontains="lind"),
    "one of another table and one of its own": Q(tags__name="vip", customer="Ada Byron"),
    "nobody": Q(assignee=None),
    "assignee": Q(assignee__username="anna"),
    "none": Q(pk__in=[]),
    "all": ~Q(pk__in=[]),
    "since": Q(updated_at__gte=timezone.now() - timedelta(days=1)),
}


def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few sessions match, they are not named by their keys."""
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 0)
    monkeypatch.setattr(inbox_condition, "MOST_KEYS_OF_MANY", 0)


def conditions(where: Q) -> list[Condition]:
    """For any number of sessions that meet it, and with the keys of those that may have a line."""
    named = inbox_condition.by_keys(where)
    assert named is not None
    return [*(Condition.of(where, matches) for matches in Matches), named]


@pytest.mark.slow
@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize("where", FILTERS.values(), ids=FILTERS)
def test_causes_are_those_of_the_sessions_that_match(where: Q) -> None:
    matching = Session.objects.filter(where, failure__isnull=False).order_by("updated_at", "pk")
    for changed, kind in ((False, "failed"), (True, "changed")):
        members: dict[object, list[Session]] = {}
        for session in matching:
            failed = session.status == "waiting" or (session.status, session.phase) == ("idle", "error")
            if failed and (session.waiting_for == "changed") is changed:
                members.setdefault(session.failure, []).append(session)
        expected = {key: (found[0].pk, found[-1].pk, str(len(found))) for key, found in members.items()}
        for condition in conditions(where):
            read = causes.read_causes(condition, kinds=(kind,))[kind]
            assert {cause.key: (cause.oldest, cause.newest, str(cause.number)) for cause in read} == expected
            assert causes.read_causes(condition)[kind] == read
            numbers = inbox_counts.counts(timezone.now(), condition)
            assert numbers[kind].number == len(expected)


@pytest.mark.parametrize("where", [Q(assignee=None), Q(assignee=None, updated_at__gte=timezone.now())])
def test_causes_are_looked_for_by_the_columns_of_the_sessions_where_the_condition_has_no_others(
    where: Q,
) -> None:
    """Of a subquery PostgreSQL would read all sessions that meet it, once for each cause."""
    with CaptureQueriesContext(connection) as queries:
        causes.read_causes(Condition.of(where))
    assert len(queries) == 2
    assert all("IN (SELECT" not in query["sql"] for query in queries)


def test_a_session_without_a_cause_is_no_line_by_cause() -> None:
    session = builders.changed()
    where = Q(pk=session.pk)
    for condition in conditions(where):
        assert len(causes.read_causes(condition)["changed"]) == 1
    Session.objects.filter(pk=session.pk).update(failure=None)
    for condition in conditions(where):
        assert causes.read_causes(condition) == {"failed": [], "changed": []}
        assert inbox_counts.counts(timezone.now(), condition)["changed"].number == 0


@pytest.mark.slow
@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize(
    "query, lines",
    [
        ("tag=vip", 8),
        ("customer=lind", 8),
        ("customer=lind&tag=vip", 5),
        ("tag=nosuch", 0),
        ("agent=claims", 15),
        ("agent=claims&tag=vip", 8),
        ("assignee=nobody&tag=vip&since=30d", 8),
        # Two approvals, two calls in doubt, and those whose retries are used up as one.
        ("status=waiting&tag=vip", 5),
        ("phase=error&tag=vip", 1),
        ("phase=done&tag=vip", 0),
    ],
)
def test_the_lines_are_the_same_for_a_filter_of_few_sessions_and_of_many(
    desk: Client, monkeypatch: pytest.MonkeyPatch, query: str, lines: int
) -> None:
    few = desk.get(f"/inbox/?{query}").context["page"]
    assert len(few.lines) == lines
    no_keys(monkeypatch)
    for most_some, most_members in ((inbox_condition.MOST_SOME, causes.MOST_MEMBERS), (30_000, 0), (0, 0)):
        monkeypatch.setattr(inbox_condition, "MOST_SOME", most_some)
        monkeypatch.setattr(causes, "MOST_MEMBERS", most_members)
        more = desk.get(f"/inbox/?{query}").context["page"]
        assert [(line.id, line.since) for line in few.lines] == [(line.id, line.since) for line in more.lines]
        assert (few.chips, few.number) == (more.chips, more.number)
        for kind in KINDS:
            one = desk.get(f"/inbox/?{query}&kind={kind}").context["page"]
            assert [chip.number for chip in one.chips if chip.number] == [
                chip.number for chip in few.chips if chip.number
            ]


@pytest.mark.slow
@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize(
    "query, lines",
    [
        ("agent=claims", 8),
        ("status=waiting", 5),
        ("status=waiting&since=30d", 5),
        ("since=7d", 8),
        ("tag=vip", 8),
        ("phase=executing", 6),
        ("phase=error&since=30d", 1),
        ("phase=planning", 0),
        ("phase=executing&agent=claims", 6),
        ("customer=lind", 5),
    ],
)
def test_the_lines_of_a_person_are_the_same_beside_any_filter_of_few_sessions_and_of_many(
    desk: Client, monkeypatch: pytest.MonkeyPatch, query: str, lines: int
) -> None:
    Session.objects.filter(tags__name="vip").update(assignee=User.objects.get(username="anna"))
    pages: list[InboxPage] = []

    def read(are_many: bool) -> None:
        monkeypatch.setattr(inbox_condition, "_are_one_in", lambda *_: are_many)
        pages.extend(
            desk.get(f"/inbox/?assignee={assignee}&{query}").context["page"] for assignee in ("me", "anna")
        )

    for are_many in (False, True):
        read(are_many)
    no_keys(monkeypatch)
    for are_many, most_some in product((False, True), (inbox_condition.MOST_SOME, 0)):
        monkeypatch.setattr(inbox_condition, "MOST_SOME", most_some)
        read(are_many)
    assert len(pages[0].lines) == lines
    for page in pages:
        assert [line.id for line in page.lines] == [line.id for line in pages[0].lines]
        assert page.chips == pages[0].chips


@pytest.mark.parametrize(
    "query", ["agent=claims&tag=vip", "assignee=nobody&tag=vip", "agent=claims&assignee=nobody&tag=vip"]
)
def test_beside_a_tag_everything_else_is_asked_of_a_session_too(
    desk: Client, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    shown = builders.in_doubt(tags=["vip"])
    builders.in_doubt(tags=["vip"], agent_key="letters")
    builders.in_doubt(tags=["vip"], assignee=User.objects.get(username="anna"))
    builders.in_doubt()
    no_keys(monkeypatch)
    for most_some in (inbox_condition.MOST_SOME, 0):
        monkeypatch.setattr(inbox_condition, "MOST_SOME", most_some)
        lines = desk.get(f"/inbox/?{query}").context["page"].lines
        assert shown in [line.item.session for line in lines]
        assert len(lines) == (1 if query.count("=") == 3 else 2)


def test_the_lines_of_a_broad_filter_are_counted_up_to_a_page(
    desk: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        builders.failed(title=f"Failed {number}")
        builders.in_doubt(title=f"In doubt {number}")
        builders.lost(title=f"Lost {number}")
    monkeypatch.setattr(inbox, "PAGE", 2)

    def numbers() -> tuple[dict[str, str], str]:
        page = desk.get("/inbox/?agent=claims&kind=failed").context["page"]
        [line] = page.lines
        return {chip.kind: str(chip.number) for chip in page.chips if chip.number}, str(line.item.number)

    assert numbers() == ({"": "7", "failed": "1", "doubt": "3", "stuck": "3"}, "3")
    no_keys(monkeypatch)
    for most_some in (inbox_condition.MOST_SOME, 0):
        monkeypatch.setattr(inbox_condition, "MOST_SOME", most_some)
        assert numbers() == ({"": "5+", "failed": "1", "doubt": "2+", "stuck": "2+"}, "2+")


def test_the_numbers_of_a_broad_filter_are_the_same_on_the_page_of_each_kind(
    desk: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        session = builders.failed(title=f"Failed {number}")
        Session.objects.filter(pk=session.pk).update(failure=uuid4())
        builders.in_doubt(title=f"In doubt {number}")
    monkeypatch.setattr(inbox, "PAGE", 2)
    no_keys(monkeypatch)
    for most_some in (inbox_condition.MOST_SOME, 0):
        monkeypatch.setattr(inbox_condition, "MOST_SOME", most_some)
        for kind in ("", "failed", "doubt", "approval"):
            page = desk.get(f"/inbox/?agent=claims&kind={kind}").context["page"]
            numbers = {chip.kind: str(chip.number) for chip in page.chips if chip.number}
            assert numbers == {"": "5+", "failed": "3", "doubt": "2+"}


@pytest.mark.parametrize("most_keys", [500, 1, 0], ids=["few", "more", "none are looked up"])
def test_the_lines_of_a_person_are_counted_with_any_number_of_sessions(
    desk: Client, monkeypatch: pytest.MonkeyPatch, most_keys: int
) -> None:
    for module in (inbox_condition, inbox_mine):
        monkeypatch.setattr(module, "MOST_KEYS", most_keys)
    anna = User.objects.get(username="anna")
    for assignee in (anna, None):
        builders.in_doubt(assignee=assignee, customer="Greta")
        builders.in_doubt(assignee=assignee)
    assert str(desk.get("/inbox/?customer=Greta").context["number_of_mine"]) == "1"
    assert str(desk.get("/inbox/?tool=issue_refund").context["number_of_mine"]) == "2"
    assert str(desk.get("/inbox/").context["number_of_mine"]) == "2"
    Session.objects.update(assignee=None)
    assert str(desk.get("/inbox/?customer=Greta").context["number_of_mine"]) == "0"


@pytest.mark.slow
@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize("where", FILTERS.values(), ids=FILTERS)
def test_the_lines_of_a_person_are_those_of_their_sessions_that_match(
    monkeypatch: pytest.MonkeyPatch, where: Q
) -> None:
    """Of each kind and tool, with an approval that has expired, and agents that have changed."""
    anna, other = builders.user("supervisor", "anna"), builders.user("operator", "other")
    now = timezone.now()
    for number, session in enumerate(Session.objects.order_by("title", "pk")):
        mine = (anna, other, None)[number % 3]
        Session.objects.filter(pk=session.pk).update(assignee=mine)
    for number in range(4):
        session = builders.waiting_for_approval(assignee=anna, title=f"Expired {number}")
        expired = now - timedelta(minutes=(1, 5)[number % 2])
        Approval.objects.filter(session=session).update(expires_at=expired)
        changed = builders.changed(assignee=anna, title=f"Changed {number}")
        Session.objects.filter(pk=changed.pk).update(failure=uuid4())
    whole = conditions(where)
    mine_only = Condition.of(where & Q(assignee=anna), Matches.SOME)
    found = set()
    for kinds in (*((kind,) for kind in KINDS), KINDS):
        for tool in ("", "issue_refund", "never_called"):
            lines = inbox_counts.count_together(now, mine_only, tool, kinds=kinds)
            found.add((kinds, tool, lines.number > 0))
            for most_keys, condition in product((500, 0), whole):
                monkeypatch.setattr(inbox_mine, "MOST_KEYS", most_keys)
                counted = inbox_counts.count_together(now, condition, tool, kinds=kinds, assignee=anna.pk)
                assert counted == lines
    if where == FILTERS["all"]:
        assert {(kinds, True) for kinds, tool, are_any in found if are_any and not tool} == {
            (kinds, True) for kinds in (*((kind,) for kind in KINDS), KINDS)
        }


def test_the_lines_of_ones_own_sessions_are_not_counted_again(desk: Client) -> None:
    """Nor are those of a kind of which there are none."""
    anna = User.objects.get(username="anna")
    for assignee in (anna, None):
        builders.in_doubt(assignee=assignee)

    def counted(address: str) -> tuple[str, int]:
        with CaptureQueriesContext(connection) as queries:
            number = desk.get(address).context["number_of_mine"]
        return str(number), sum("AS counted" in query["sql"] for query in queries)

    # One is that of the bar.
    assert counted("/inbox/?assignee=me") == ("1", 1)
    assert counted("/inbox/?assignee=me&kind=stuck") == ("0", 1)
    assert counted("/inbox/?agent=claims&kind=stuck") == ("0", 1)
    assert counted("/inbox/?agent=claims&kind=doubt") == ("1", 2)
    assert counted("/inbox/?agent=claims") == ("1", 2)


@pytest.mark.usefixtures("sessions")
def test_a_filter_of_few_sessions_is_asked_of_the_database_once(desk: Client) -> None:
    with CaptureQueriesContext(connection) as queries:
        desk.get("/inbox/?customer=lind")
    asked = [query["sql"] for query in queries if "lind" in query["sql"].lower() and "LIKE" in query["sql"]]
    assert len([sql for sql in asked if not sql.startswith("EXPLAIN")]) == 1


def test_only_so_many_keys_stand_for_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        builders.paused(customer="Ada").tags.create(name="vip")
        builders.paused(customer="Bob", title=str(number))
        # What waits for nobody needs no key.
        builders.done(customer="Ada").tags.create(name="vip")
    user = builders.user("supervisor", "anna")

    def prepared(**values: str) -> tuple[int, Matches]:
        condition = inbox_condition.prepare(SessionFilter(values, user=user), timezone.now())
        assert condition is not None
        paused = Session.objects.filter(condition.stopped.where, status="paused")
        return paused.count(), condition.stopped.matches

    # As PostgreSQL would estimate it, once it has gathered statistics.
    for module in (filters, inbox_condition):
        monkeypatch.setattr(module, "are_about", lambda rows: rows.count())
        monkeypatch.setattr(module, "sessions_about", lambda where: Session.objects.filter(where).count())
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 3)
    assert prepared(customer="Ada") == prepared(tag="vip") == (3, Matches.FEW)
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 2)
    assert prepared(customer="Ada") == prepared(tag="vip") == prepared(tag="VIP") == (3, Matches.SOME)
    # Most of those that are paused.
    assert prepared(agent="claims", assignee="nobody") == (6, Matches.MANY)
    monkeypatch.setattr(inbox_condition, "MOST_SOME", 2)
    assert prepared(customer="Ada") == (3, Matches.SOME)
    assert prepared(tag="vip") == (3, Matches.FEW)
    monkeypatch.setattr(inbox_condition, "MOST_KEYS_OF_MANY", 5)
    assert prepared(tag="vip") == (3, Matches.MANY)
    assert prepared(agent="claims") == (6, Matches.MANY)
    assert prepared(assignee="nobody") == (6, Matches.MANY)
    assert prepared(since="1d") == (6, Matches.MANY)
    Session.objects.filter(customer="Bob").update(updated_at=timezone.now() - timedelta(days=2))
    assert prepared(since="1d") == (3, Matches.SOME)
    assert prepared(assignee="me") == (0, Matches.FEW)
    assert prepared(q="Bob") == (3, Matches.FEW)
    assert prepared(phase="reflecting") == (6, Matches.SOME)
    assert prepared(phase="reflecting", status="waiting") == (0, Matches.FEW)
    assert prepared(phase="executing") == (0, Matches.FEW)
    assert prepared(status="paused") == (6, Matches.SOME)
    assert prepared(status="waiting") == (0, Matches.FEW)
    assert inbox_condition.prepare(SessionFilter({}, user=user), timezone.now()) is None


@pytest.fixture
def aged() -> Callable[..., Session]:
    """Builds one whose call was asked for, and which changed last, so many days ago."""

    def make(build: Callable[..., Session], asked: int, changed: int, **fields: Any) -> Session:
        session = build(created_at=timezone.now() - timedelta(days=asked), **fields)
        Session.objects.filter(pk=session.pk).update(updated_at=timezone.now() - timedelta(days=changed))
        return session

    return make


# Days since the call was asked for and since its session changed, and whether it is a line of the last month.
AGED = [(50, 50, False), (50, 3, True), (50, 20, True), (20, 20, True), (20, 3, True), (3, 3, True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [{}, {"tag": "vip"}, {"assignee": "nobody"}, {"agent": "claims", "tag": "vip"}, {"status": "waiting"}],
    ids="-".join,
)
def test_lines_of_the_last_month_are_of_all_sessions_that_changed_in_it_however_old_their_calls_are(
    monkeypatch: pytest.MonkeyPatch, aged: Callable[..., Session], values: dict[str, str]
) -> None:
    anna, now = builders.user("supervisor", "anna"), timezone.now()
    tools = {}
    for asked, changed, is_line in AGED:
        for kind, build in (("approval", builders.waiting_for_approval), ("doubt", builders.in_doubt)):
            matching, other, *none = (
                aged(build, asked, changed, tags=["vip"] * (number != 1)) for number in range(5)
            )
            Session.objects.filter(pk=other.pk).update(agent="letters", assignee=anna)
            ToolCall.objects.filter(branch__session=other).update(tool="look_up_policy")
            Session.objects.filter(pk=none[0].pk).update(status="idle", waiting_for="", phase="done")
            # Its call is on a branch that it has left.
            branch = Branch.objects.create(session=none[1], number=2, parent=none[1].branch)
            Session.objects.filter(pk=none[1].pk).update(branch=branch)
            Approval.objects.filter(session=none[2]).update(expires_at=now)
            ToolCall.objects.filter(branch__session=none[2]).update(status="done", ended_at=now)
            if is_line:
                tools[kind, matching.pk] = "issue_refund"
                if not {"tag", "assignee", "agent"} & {*values}:
                    tools[kind, other.pk] = "look_up_policy"
    no_keys(monkeypatch)
    monkeypatch.setattr(inbox_condition, "MOST_SOME", 0)
    kinds = ("approval", "doubt")
    for most_calls, are_many, oldest_first in product((1_000, 1), (True, False), (False, True)):
        matches = Matches.MANY if are_many else Matches.SOME
        monkeypatch.setattr(inbox_calls, "MOST_CALLS", most_calls)
        monkeypatch.setattr(inbox_condition, "COMMON", 10**9 if are_many else 0)
        monkeypatch.setattr(inbox_condition, "_are_one_in", lambda *_, answer=are_many: answer)
        condition = inbox_condition.prepare(
            SessionFilter({**values, "since": "30d"}, user=anna), timezone.now()
        )
        assert condition is not None
        if "status" not in values or connection.vendor == "sqlite":
            assert condition.stopped.matches is matches
        how: dict[str, Any] = {
            "kinds": kinds,
            "condition": condition,
            "oldest_first": oldest_first,
            "limit": 2,
        }
        for tool in ("", "issue_refund", "look_up_policy"):
            page = inbox.read_page(now, tool=tool, **how)
            entries = [*page.entries]
            while page.next:
                page = inbox.read_page(now, tool=tool, after=page.next, **how)
                entries += page.entries
            assert entries == sorted(entries, key=lambda entry: entry.order, reverse=not oldest_first)
            found = sorted((entry.kind, _session_of(entry)) for entry in entries)
            expected = sorted(line for line, of_call in tools.items() if tool in ("", of_call))
            assert found == expected
            numbers = inbox_counts.counts(now, condition, tool)
            by_kind = Counter(kind for kind, _ in expected)
            assert {kind: numbers[kind].number for kind in kinds} == {kind: by_kind[kind] for kind in kinds}


@pytest.mark.parametrize("most_calls", [1_000, 0], ids=["few calls", "many calls"])
def test_a_call_is_found_whose_worker_was_hours_behind_the_server_that_made_its_session(
    monkeypatch: pytest.MonkeyPatch, most_calls: int
) -> None:
    now = timezone.now()
    session = builders.waiting_for_approval(created_at=now - timedelta(days=29, hours=22))
    Approval.objects.update(asked_at=now - timedelta(days=30, hours=2))
    monkeypatch.setattr(inbox_calls, "MOST_CALLS", most_calls)
    no_keys(monkeypatch)
    monkeypatch.setattr(inbox_condition, "_are_one_in", lambda *_: True)
    condition = inbox_condition.prepare(
        SessionFilter({"since": "30d"}, user=builders.user("supervisor", "anna")), timezone.now()
    )
    assert condition is not None
    [entry] = inbox.read_page(now, kinds=("approval",), condition=condition).entries
    assert _session_of(entry) == session.pk


@pytest.mark.parametrize("most_calls", [1, 0], ids=["few calls", "many calls"])
@pytest.mark.parametrize("days", [3, 50])
def test_the_sessions_of_old_calls_that_have_changed_since_are_looked_for_once(
    monkeypatch: pytest.MonkeyPatch, aged: Callable[..., Session], days: int, most_calls: int
) -> None:
    """For both kinds of calls, their lines and their numbers."""
    for build in (builders.waiting_for_approval, builders.in_doubt):
        aged(build, 50, days)
    builders.paused()
    anna = builders.user("supervisor", "anna")
    no_keys(monkeypatch)
    monkeypatch.setattr(inbox_calls, "MOST_CALLS", most_calls)
    monkeypatch.setattr(inbox_condition, "_are_one_in", lambda *_: True)
    condition = inbox_condition.prepare(SessionFilter({"since": "30d"}, user=anna), timezone.now())
    now = timezone.now()
    with CaptureQueriesContext(connection) as queries:
        found = inbox.read_page(now, kinds=("approval", "doubt"), condition=condition).entries
        assert len(queries) == 3
        numbers = inbox_counts.counts(now, condition)
    kinds = ["approval", "doubt"] if days < 30 else []
    assert [entry.kind for entry in found] == kinds
    assert [kind for kind, number in numbers.items() if number] == kinds
    assert sum("WITH stopped(" in query["sql"] for query in queries) == 1


@pytest.mark.parametrize("most_calls", [1_000, 1], ids=["few calls", "many calls"])
def test_calls_of_a_phase_that_has_hardly_any_are_looked_for_once(
    monkeypatch: pytest.MonkeyPatch, most_calls: int
) -> None:
    """Of those that are found, the rest of the filter, the branch and the state are asked again."""
    tools = set()
    for number in range(3):
        for build in (builders.waiting_for_approval, builders.in_doubt):
            for tag, status in (("vip", "waiting"), ("other", "waiting"), ("vip", "paused"), ("vip", "idle")):
                session = build(tags=[tag], title=f"{number}")
                waiting_for = session.waiting_for if status == "waiting" else ""
                Session.objects.filter(pk=session.pk).update(
                    phase="reflecting", previous_phase="executing", status=status, waiting_for=waiting_for
                )
                if tag == "vip" and status != "idle":
                    tools.add(session.pk)
    left = Session.objects.get(pk=min(tools))
    branch = Branch.objects.create(session=left, number=2, parent=left.branch)
    Session.objects.filter(pk=left.pk).update(branch=branch)
    no_keys(monkeypatch)
    monkeypatch.setattr(inbox_condition, "MOST_SOME", 0)
    monkeypatch.setattr(inbox_calls, "MOST_CALLS", most_calls)
    session_filter = SessionFilter(
        {"phase": "reflecting", "tag": "vip"}, user=builders.user("supervisor", "anna")
    )
    condition = inbox_condition.prepare(session_filter, timezone.now())
    assert condition is not None
    assert condition.stopped.last
    now = timezone.now()
    for oldest_first in (True, False):
        with CaptureQueriesContext(connection) as queries:
            how: dict[str, Any] = {"condition": condition, "kinds": ("approval", "doubt"), "limit": 2}
            page = inbox.read_page(now, oldest_first=oldest_first, **how)
            entries = [*page.entries]
            while page.next:
                page = inbox.read_page(now, after=page.next, oldest_first=oldest_first, **how)
                entries += page.entries
        assert {_session_of(entry) for entry in entries} == tools - {left.pk}
        assert len(entries) == len(tools) - 1
        assert sum("WITH stopped(" in query["sql"] for query in queries) == oldest_first
    numbers = inbox_counts.counts(now, condition)
    assert numbers["approval"].number + numbers["doubt"].number == len(tools) - 1


def _session_of(entry: inbox.Entry) -> UUID:
    if entry.kind == "approval":
        return Approval.objects.get(pk=str(entry.key)).session_id
    return ToolCall.objects.get(pk=str(entry.key)).branch.session_id


@pytest.mark.usefixtures("sessions", "paused")
@pytest.mark.parametrize("most_keys", [3_000, 1])
def test_a_status_leaves_the_lines_of_sessions_that_have_it(
    desk: Client, monkeypatch: pytest.MonkeyPatch, most_keys: int
) -> None:
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", most_keys)
    lines = {
        status: Counter(line.kind for line in desk.get(f"/inbox/?status={status}").context["page"].lines)
        for status in Status.values
    }
    assert lines == {
        # Failures and sessions whose retries are used up share a cause each.
        "waiting": Counter(approval=4, doubt=4, failed=1, changed=1),
        "idle": Counter(failed=1),
        "running": Counter(stuck=4),
        "queued": Counter(),
        "paused": Counter(approval=1, doubt=1),
        "cancelled": Counter(),
    }


def lines_by_phase(sessions: QuerySet[Session]) -> dict[str, Counter[str]]:
    """How many lines of each kind those of the sessions that are in each phase make."""
    lines: dict[str, Counter[str]] = {phase: Counter() for phase in Phase.values}
    shown = {(session.pk, session.branch_id): session.phase for session in sessions}
    for approval in Approval.objects.filter(decision=""):
        if (
            phase := shown.get((approval.session_id, approval.call.branch_id))
        ) and approval.session.status in STOPPED:
            lines[phase]["approval"] += 1
    for call in ToolCall.objects.filter(status="doubt"):
        session = call.branch.session
        if (phase := shown.get((session.pk, call.branch_id))) and session.status in STOPPED:
            lines[phase]["doubt"] += 1
    causes_seen = set()
    for session in sessions:
        lines[session.phase]["stuck"] += session.status == "running"
        has_cause = session.status == "waiting" or (session.status, session.phase) == ("idle", "error")
        if session.failure and has_cause and (session.phase, session.failure) not in causes_seen:
            causes_seen.add((session.phase, session.failure))
            lines[session.phase]["changed" if session.waiting_for == "changed" else "failed"] += 1
    return {phase: +numbers for phase, numbers in lines.items()}


@pytest.mark.slow
@pytest.mark.usefixtures("sessions", "paused")
@pytest.mark.parametrize("status", ["", *Status.values])
def test_a_phase_leaves_the_lines_of_sessions_that_are_in_it(
    desk: Client, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    # Of each state one in another phase than its sessions are in by themselves.
    for state in (Q(status="waiting"), Q(status="paused"), Q(status="queued"), Q(status="running")):
        session = Session.objects.filter(state).order_by("title").last()
        if session is not None:
            Session.objects.filter(pk=session.pk).update(phase="reflecting", previous_phase="")
    expected = lines_by_phase(Session.objects.filter(**{"status": status} if status else {}))
    assert sum(map(len, expected.values())) > 0 or status in ("queued", "cancelled")
    for most_keys, phase in product((3_000, 1, 0), Phase.values):
        monkeypatch.setattr(inbox_condition, "MOST_KEYS", most_keys)
        page = desk.get("/inbox/", {"phase": phase, "status": status}).context["page"]
        assert Counter(line.kind for line in page.lines) == expected[phase], (most_keys, phase)
        assert {
            chip.kind: chip.number.number for chip in page.chips if chip.kind and chip.number
        } == expected[phase]


@pytest.mark.slow
@pytest.mark.usefixtures("sessions", "paused")
@pytest.mark.parametrize(
    "query, where",
    [
        ("tag=vip", Q(pk__in=SessionTag.objects.filter(name="vip").values("session"))),
        ("since=1d", Q(updated_at__gt=timezone.now() - timedelta(hours=12))),
        ("since=30d&status=waiting", Q(updated_at__gt=timezone.now() - timedelta(days=12), status="waiting")),
        ("since=30d&status=paused", Q(updated_at__gt=timezone.now() - timedelta(days=12), status="paused")),
        ("agent=claims&since=7d", Q(updated_at__gt=timezone.now() - timedelta(days=3))),
        ("assignee=nobody&customer=lind", Q(customer="Greta Lindqvist")),
    ],
)
def test_a_phase_and_another_filter_leave_the_lines_of_sessions_that_meet_both(
    desk: Client, monkeypatch: pytest.MonkeyPatch, query: str, where: Q
) -> None:
    """Also where sessions have calls to decide in a phase in which next to none have."""
    stopped = Session.objects.filter(status__in=STOPPED).order_by("title")
    for number, pk in enumerate([*stopped.values_list("pk", flat=True)]):
        days = 40 if number % 3 == 0 else 0
        changes = {"updated_at": timezone.now() - timedelta(days=days)}
        phase = ("planning", "reflecting", "executing", "error", "done")[number % 5]
        Session.objects.filter(pk=pk).update(phase=phase, previous_phase="", **changes)
    expected = lines_by_phase(Session.objects.filter(where))
    assert sum(bool(numbers["approval"] + numbers["doubt"]) for numbers in expected.values()) > 0
    for most_keys, phase in product((3_000, 0), Phase.values):
        monkeypatch.setattr(inbox_condition, "MOST_KEYS", most_keys)
        monkeypatch.setattr(inbox_condition, "MOST_KEYS_OF_MANY", min(most_keys, 500))
        # On the page of a kind the other kinds are counted, not read.
        for kind in ("", "approval", "doubt"):
            page = desk.get(f"/inbox/?phase={phase}&{query}&kind={kind}").context["page"]
            found = Counter(line.kind for line in page.lines)
            assert found == (+Counter({kind: expected[phase][kind]}) if kind else expected[phase]), phase
            numbers = {chip.kind: chip.number.number for chip in page.chips if chip.kind and chip.number}
            assert numbers == expected[phase]


@pytest.mark.parametrize("most_keys", [3_000, 0])
def test_a_session_in_any_phase_whose_request_has_expired_is_stuck_if_it_meets_the_other_filter(
    desk: Client, monkeypatch: pytest.MonkeyPatch, most_keys: int
) -> None:
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", most_keys)
    monkeypatch.setattr(inbox_condition, "MOST_KEYS_OF_MANY", min(most_keys, 500))
    for title in ("one", "other"):
        session = builders.waiting_for_approval(title=title, tags=["vip"] if title == "one" else [])
        Approval.objects.filter(session=session).update(expires_at=timezone.now() - timedelta(hours=1))
        days = 40 if title == "other" else 0
        at = timezone.now() - timedelta(days=days)
        Session.objects.filter(pk=session.pk).update(phase="planning", previous_phase="", updated_at=at)
    for query in ("tag=vip", "since=30d", "since=30d&status=waiting"):
        [line] = desk.get(f"/inbox/?phase=planning&{query}").context["page"].lines
        assert (line.kind, line.item.session.title) == ("stuck", "one")
    assert len(desk.get("/inbox/?phase=planning").context["page"].lines) == 2


def test_of_each_state_by_itself_the_sessions_are_named_if_they_are_few(
    desk: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        builders.failed(title=f"Failed {number}")
        builders.in_doubt(title=f"In doubt {number}")
    monkeypatch.setattr(inbox, "PAGE", 2)
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 2)
    condition = inbox_condition.of_status(Q(status="waiting"), "waiting")
    assert [part.matches for part in (condition.stopped, condition.moving, condition.failed)] == [
        Matches.MANY,
        Matches.FEW,
        Matches.FEW,
    ]
    for kind in ("", *KINDS):
        page = desk.get(f"/inbox/?status=waiting&kind={kind}").context["page"]
        assert {chip.kind: str(chip.number) for chip in page.chips if chip.number} == {
            "": "2+",
            "doubt": "2+",
        }
        failures = desk.get(f"/inbox/?status=idle&kind={kind}").context["page"]
        assert {chip.kind: str(chip.number) for chip in failures.chips if chip.number} == {
            "": "1",
            "failed": "1",
        }


@pytest.mark.usefixtures("sessions")
def test_a_session_that_moves_on_after_its_key_was_read_is_no_line() -> None:
    condition = inbox_condition.by_keys(Q(customer="Greta Lindqvist"))
    assert condition is not None
    before = inbox_counts.counts(timezone.now(), condition)
    assert [count.number for count in before.values()] == [2, 2, 2, 0, 2]
    Session.objects.update(status="cancelled", waiting_for="", lease_expires_at=None, worker="", failure=None)
    numbers = inbox_counts.counts(timezone.now(), condition)
    assert [count.number for count in numbers.values()] == [0] * 5
    page = inbox.read_page(timezone.now(), condition=condition)
    assert (page.entries, page.causes) == ([], {})


@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize(
    "filtered, later",
    [
        ({"phase": "executing"}, {"phase": "reflecting", "previous_phase": ""}),
        ({"status": "waiting"}, {"status": "paused", "waiting_for": ""}),
        (
            {"status": "running"},
            {
                "status": "queued",
                "worker": "",
                "lease_expires_at": None,
                "next_run_at": datetime(2020, 1, 1, tzinfo=UTC),
            },
        ),
    ],
    ids=["phase", "status", "of those that are stuck"],
)
@pytest.mark.parametrize("beside", [{}, {"agent": "claims"}, {"since": "30d"}], ids=["alone", "agent", "age"])
def test_a_session_that_leaves_its_phase_or_status_after_its_key_was_read_is_no_line(
    filtered: dict[str, str], later: dict[str, str], beside: dict[str, str]
) -> None:
    user = builders.user("supervisor", "anna")
    condition = inbox_condition.prepare(SessionFilter({**filtered, **beside}, user=user), timezone.now())
    assert condition is not None
    assert inbox.read_page(timezone.now(), condition=condition).entries
    Session.objects.filter(**filtered).update(**later)
    numbers = inbox_counts.counts(timezone.now(), condition)
    assert [count.number for count in numbers.values()] == [0] * 5
    page = inbox.read_page(timezone.now(), condition=condition)
    assert (page.entries, page.causes) == ([], {})


def test_few_sessions_are_named_also_where_more_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        builders.paused(customer="Ada", title=str(number))
    monkeypatch.setattr(inbox_condition, "are_about", lambda rows: 1_000_000)
    condition = inbox_condition.by_keys(Q(customer="Ada"))
    assert condition is not None
    assert Session.objects.filter(condition.stopped.where).count() == 3


def test_more_keys_than_are_estimated_do_not_stand_for_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        builders.paused(customer="Ada", title=str(number))
    monkeypatch.setattr(inbox_condition, "are_about", lambda rows: 1)
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 2)
    assert inbox_condition.by_keys(Q(customer="Ada")) is None


def test_how_many_rows_there_are_is_estimated_without_reading_them() -> None:
    sessions = [builders.queued(title=str(number)) for number in range(40)]
    Session.objects.filter(pk__in=[session.pk for session in sessions[:10]]).update(agent="letters")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    assert are_about(Session.objects.filter(agent="claims")) == sessions_about(Q(agent="claims")) == 30
    assert are_about(Session.objects.filter(agent="nobody")) <= 1
    assert sessions_about(Q(agent="nobody")) <= 1
    assert are_about(Session.objects.filter(pk__in=[])) == sessions_about(Q(pk__in=[])) == 0
    assert sessions_about(Q()) == 40


def test_an_estimate_is_asked_for_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    minute = datetime(2026, 11, 1, 12, 30, tzinfo=UTC)
    seconds = 0.0
    monkeypatch.setattr(counting, "time", SimpleNamespace(monotonic=lambda: seconds))
    is_exact = connection.vendor == "sqlite"
    for second, of_minute in ((1.0, 0), (59.0, 1), (61.0, 0)):
        seconds = second
        since = minute + timedelta(seconds=10 * of_minute)
        with django_assert_num_queries(1 if is_exact or not of_minute else 0):
            are_about(Session.objects.filter(updated_at__gte=since))
    with django_assert_num_queries(1):
        are_about(Session.objects.filter(updated_at__gte=minute + timedelta(minutes=1)))


def test_sessions_of_a_person_are_found_by_their_name_and_of_nobody_by_a_name_that_nobody_has(
    desk: Client,
) -> None:
    owner = builders.user("operator", "olga")
    builders.failed(title="Hers", assignee=owner)
    builders.failed(title="Nobody's")
    assert "Hers" in (text := desk.get("/?queue=all&assignee=olga").content.decode())
    assert "Nobody&#x27;s" not in text
    assert not desk.get("/?queue=all&assignee=nemo").context["rows"]
    assert len(desk.get("/inbox/?assignee=olga").context["page"].lines) == 1
    assert not desk.get("/inbox/?assignee=nemo").context["page"].lines


def test_failed_sessions_are_counted_by_the_condition_of_their_index_alone() -> None:
    """Of a second condition PostgreSQL would expect that it holds for few of them, and read the whole index."""
    sql, _ = queue_numbers._part_to_count.sql_with_params(None, key="failed", part=0)
    assert "phase" not in sql.partition("WHERE")[2]


def test_a_list_of_failed_sessions_that_are_in_another_phase_is_empty_without_a_row_being_read(
    desk: Client,
) -> None:
    builders.failed()
    assert len(desk.get("/?queue=failed&phase=error").context["rows"]) == 1
    assert not desk.get("/?queue=failed&phase=planning").context["rows"]
    rows = queues.select("failed", timezone.now(), Q(phase="planning"))
    with CaptureQueriesContext(connection) as queries:
        assert list(rows) == []
    assert not queries


def test_of_stuck_sessions_beside_a_broad_filter_those_are_looked_at_that_have_been_stuck_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (queues, queue_numbers):
        monkeypatch.setattr(module, "MOST", 2)
    monkeypatch.setattr(queue_numbers, "LOOKED_AT", 1)
    now = timezone.now()
    for minutes, title in ((30, "A"), (20, "B"), (10, "A")):
        session = builders.queued(title=title)
        Session.objects.filter(pk=session.pk).update(next_run_at=now - timedelta(minutes=minutes))
    builders.paused(title="B")
    builders.paused(title="B")

    def stuck(title: str) -> str:
        [number] = [c.number for c in queue_numbers.counts(now, Q(title=title)) if c.queue.key == "stuck"]
        return str(number)

    # Those with "A" are few, and counted each; of those with "B" only the first in line is looked at.
    assert (stuck("A"), stuck("B")) == ("2", "0+")
