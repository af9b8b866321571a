"""On PostgreSQL one index finds the sessions that have several properties, as their columns and tags would."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Q
from django.http import QueryDict
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.finding import (
    counting,
    inbox,
    inbox_condition,
    inbox_counts,
    inbox_rows,
    newest,
    queue_numbers,
    queues,
)
from sessions_app.finding.facets import Facets
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.inbox_condition import by_facets
from sessions_app.finding.inbox_states import HAS_CAUSE, IS_MOVING, IS_STOPPED, Condition, Matches
from sessions_app.finding.session_list import read_list
from sessions_app.models import Phase, Session, SessionTag, Status
from tests import builders
from tests.databases import connected
from tools.services import START_SECONDS, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def on_postgresql(migrated_postgres_url: str, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), connected(migrated_postgres_url):
        try:
            yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute("TRUNCATE sessions_app_session CASCADE")
            User.objects.all().delete()


@pytest.fixture
def person() -> User:
    return builders.user("supervisor", "anna")


@pytest.fixture
def sessions(person: User) -> None:
    """One in each state, then some of them again with other properties."""
    now = timezone.now()
    for number, (state, build) in enumerate([*builders.STATES.items()] * 2):
        session = build(
            title=state,
            agent_key=("claims", "letters")[number % 3 == 1],
            customer=("Ada Keller", "Grace Hopper")[number % 5 > 2],
            tags=[["vip"], ["glass", "vip"], []][number % 3],
        )
        # Some changed at the same time.
        changed_at = now - timedelta(minutes=number // 3)
        assignee = person if number % 4 == 0 else None
        Session.objects.filter(pk=session.pk).update(updated_at=changed_at, assignee=assignee)


def keys(where: Q) -> list[UUID]:
    return sorted(Session.objects.filter(where).values_list("pk", flat=True))


def index_is_read(where: Q) -> bool:
    """Whether PostgreSQL can read it, however few rows there are."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_indexscan = off")
        plan = Session.objects.filter(where).order_by().explain()
    return "session_facets" in plan and "Seq Scan" not in plan


@pytest.mark.usefixtures("sessions")
def test_the_index_finds_the_sessions_that_have_the_columns_and_tags(person: User) -> None:
    agents, tags = ("", "claims"), ("", "vip", "glass", "never used")
    people = ("", "nobody", str(person.pk))
    found = 0
    for agent, status, phase, tag, assignee in product(
        agents, ("", *Status.values), ("", *Phase.values), tags, people
    ):
        asked = Facets(
            agent=agent, status=status, phase=phase, tag=tag, assignee=assignee, rest=Q(title__gt="d")
        )
        if not asked.is_any:
            continue
        columns = {"agent": agent, "status": status, "phase": phase, "assignee": assignee}
        expected = Q(title__gt="d") & Q(**{name: value for name, value in columns.items() if value})
        if assignee == "nobody":
            expected = Q(title__gt="d", assignee=None) & Q(
                **{name: value for name, value in columns.items() if value and name != "assignee"}
            )
        if tag:
            expected &= Q(pk__in=SessionTag.objects.filter(name=tag).values("session"))
        assert keys(asked.where) == keys(asked.asked) == keys(expected), asked
        found += len(keys(expected)) > 0
    assert found > 100


def test_what_is_asked_of_the_index_is_found_by_it() -> None:
    for asked in (
        Facets(agent="claims"),
        Facets(tag="vip"),
        Facets(tag="vip", assignee="nobody", status=Status.PAUSED),
        Facets(phase=Phase.DONE, status=Status.IDLE),
        Facets(phase=Phase.PLANNING, tag="vip"),
        Facets(phase=Phase.PLANNING, status=Status.RUNNING),
    ):
        assert index_is_read(asked.where), asked


def tagged(name: str) -> list[str]:
    return [*Session.objects.filter(Facets(tag=name).where).order_by("title").values_list("title", flat=True)]


def test_the_index_has_the_tags_whenever_and_however_they_are_written() -> None:
    one, two = builders.queued(title="one", tags=["early"]), builders.queued(title="two")
    assert tagged("early") == ["one"]
    SessionTag.objects.bulk_create([SessionTag(session=each, name="late") for each in (one, two)])
    assert (tagged("early"), tagged("late")) == (["one"], ["one", "two"])
    two.tags.filter(name="late").update(name="changed")
    assert (tagged("late"), tagged("changed")) == (["one"], ["two"])
    one.tags.filter(name="early").update(session=two)
    assert tagged("early") == ["two"]
    one.tags.all().delete()
    assert (tagged("late"), tagged("early")) == ([], ["two"])
    with connection.cursor() as cursor:
        cursor.execute("SELECT id::text, tag_names FROM sessions_app_session ORDER BY title")
        assert cursor.fetchall() == [(str(one.pk), []), (str(two.pk), ["changed", "early"])]


def test_the_tags_of_a_session_may_be_written_before_it() -> None:
    session = builders.queued(title="one", tags=["vip"])
    columns = [each.column for each in Session._meta.concrete_fields if not each.generated]
    names = ", ".join(column for column in columns if column and column != "id")
    new = UUID("01a1b55b-b8ad-7df3-b860-c8388d63cc90")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO sessions_app_sessiontag (session_id, name) VALUES (%s, 'before')", [new])
        cursor.execute(
            f"INSERT INTO sessions_app_session (id, {names}) SELECT %s, {names} FROM sessions_app_session "
            "WHERE id = %s",
            [new, session.pk],
        )
    assert (keys(Facets(tag="before").where), keys(Facets(tag="vip").where)) == ([new], [session.pk])


def test_a_tag_is_found_that_was_written_without_the_schema_in_the_search_path() -> None:
    """As pg_restore writes it."""
    session = builders.queued(title="one")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path = ''")
        cursor.execute(
            "INSERT INTO public.sessions_app_sessiontag (session_id, name) VALUES (%s, 'restored')",
            [session.pk],
        )
    assert tagged("restored") == ["one"]


def test_tags_that_two_transactions_write_to_one_session_are_both_found(migrated_postgres_url: str) -> None:
    session = builders.queued(title="one")

    def second() -> None:
        with connected(migrated_postgres_url):
            SessionTag.objects.create(session=session, name="second")

    def waits() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_locks WHERE NOT granted")
            return cursor.fetchone() is not None

    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            SessionTag.objects.create(session=session, name="first")
            written = thread.submit(second)
            wait_for(waits, "the second transaction to wait for the first")
        written.result(START_SECONDS)
    assert (tagged("first"), tagged("second")) == (["one"], ["one"])


def listed(queue: str, session_filter: SessionFilter, *, oldest_first: bool = False) -> list[Session]:
    """The sessions of all pages."""
    found: list[Session] = []
    after = ""
    for _ in range(1_000):
        page = read_list(
            queue, now=timezone.now(), session_filter=session_filter, after=after, oldest_first=oldest_first
        )
        found += page.sessions
        if not (after := page.next):
            return found
    raise AssertionError("There is always another page.")


@pytest.mark.parametrize(
    "queue, build, other",
    [("done", builders.done, builders.cancelled), ("running", builders.running, builders.queued)],
)
def test_a_session_comes_before_older_ones_of_another_part_of_its_queue(
    person: User,
    queue: str,
    build: Callable[..., Session],
    other: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newest, "WALKED_WITH_FACETS", 3)
    monkeypatch.setattr(newest, "MOST_WALKED_WITH_FACETS", 4)
    for module in (queues, queue_numbers):
        monkeypatch.setattr(module, "MOST", 2)
    monkeypatch.setattr(queues, "PAGE", 2)
    now = timezone.now()
    made = [build() for _ in range(5)]
    made += [build(title="newer", tags=["vip"]) for _ in range(2)]
    made += [other(title="older", tags=["vip"]) for _ in range(6)]
    for place, session in enumerate(made):
        Session.objects.filter(pk=session.pk).update(updated_at=now - timedelta(minutes=place))
    session_filter = SessionFilter(QueryDict("tag=vip"), user=person)
    assert [session.title for session in listed(queue, session_filter)] == ["newer"] * 2 + ["older"] * 6


FILTERS = [
    "tag=vip&agent=claims",
    "tag=glass&customer=keller",
    "phase=planning&tag=vip",
    "phase=done&assignee=nobody",
    "status=waiting&assignee=anna",
    "assignee=me&tag=vip",
    "assignee=unknown&tag=vip",
    "agent=claims&since=7d",
    "agent=letters&since=1h&tag=vip",
    "status=running&phase=executing",
    "tag=never+used&agent=claims",
    "tag=vip",
    "agent=letters",
    "phase=error",
    "phase=executing",
    "assignee=nobody",
]


@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize(
    "walked, are_most",
    [
        (1, False),
        pytest.param(1, True, marks=pytest.mark.long),
        (4, True),
        pytest.param(100, False, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("oldest_first", [False, True])
def test_a_list_has_each_session_that_meets_its_filters_once_and_in_order(
    person: User, walked: int, are_most: bool, oldest_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_are_most", lambda conditions: are_most)
    monkeypatch.setattr(newest, "WALKED_WITH_FACETS", walked)
    monkeypatch.setattr(newest, "MOST_WALKED_WITH_FACETS", 3 * walked)
    # So that few sessions are more than those that stand for a filter by their keys.
    for module in (queues, queue_numbers):
        monkeypatch.setattr(module, "MOST", 2)
    monkeypatch.setattr(queues, "PAGE", 2)
    now = timezone.now()
    order = ("updated_at", "pk") if oldest_first else ("-updated_at", "-pk")
    lengths = []
    for queue, query in product(("all", "running", "failed", "paused", "done", "waiting"), FILTERS):
        session_filter = SessionFilter(QueryDict(query), user=person)
        where = session_filter.where()
        assert session_filter.facets
        expected = [*queues.select(queue, now, where).order_by(*order)]
        assert listed(queue, session_filter, oldest_first=oldest_first) == expected, (queue, query)
        lengths.append(len(expected))
    assert max(lengths) > 6
    assert lengths.count(0) < len(lengths) / 2


def test_the_index_is_asked_for_a_queue_unless_most_sessions_are_in_it_and_few_have_the_other_facets(
    person: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "WALKED_WITH_FACETS", 1)
    monkeypatch.setattr(newest, "MOST_WALKED_WITH_FACETS", 1)
    # So that the filter is asked of the list itself.
    for module in (queues, queue_numbers):
        monkeypatch.setattr(module, "MOST", 1)
    for build in (builders.done, builders.done, builders.cancelled, builders.failed, builders.failed):
        build(tags=["vip"])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    for queue, key, is_asked in (
        ("done", "phase done", False),
        ("done", "status cancelled", False),
        ("failed", "phase error", True),
    ):
        counting.estimate.cache_clear()
        with CaptureQueriesContext(connection) as captured:
            found = listed(queue, SessionFilter(QueryDict("tag=vip&assignee=nobody"), user=person))
        assert len(found) == (3 if queue == "done" else 2)
        assert any(f"'{key}'" in query["sql"] for query in captured) == is_asked, (queue, key)
    # Many that are not in the queue would be read for it.
    monkeypatch.setattr(queues, "ASKED_FOR_QUEUE", 0)
    with CaptureQueriesContext(connection) as captured:
        listed("done", SessionFilter(QueryDict("tag=vip&assignee=nobody"), user=person))
    assert any("'phase done'" in query["sql"] for query in captured)


@pytest.mark.usefixtures("sessions")
def test_the_inbox_asks_the_index_for_nothing_that_most_sessions_have() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    counting.estimate.cache_clear()
    nobodys = Session.objects.filter(assignee=None).count()
    assert nobodys > Session.objects.count() / 2
    # One property is left, or none, of which there are better indexes.
    now = timezone.now()
    for alone in (Facets(agent="letters"), Facets(since=now - timedelta(days=1)), Facets(phase="error")):
        assert by_facets(replace(alone, assignee="nobody")) is None
    # What else is asked for may be few sessions.
    assert by_facets(Facets(assignee="nobody", rest=Q(customer="Ada Keller"))) is not None
    several = Facets(agent="letters", tag="glass", assignee="nobody")
    condition = by_facets(several)
    assert condition is not None
    where = Q(agent="letters", tags__name="glass", assignee=None)
    for state, of_state in (
        (IS_STOPPED, condition.stopped),
        (IS_MOVING, condition.moving),
        (HAS_CAUSE, condition.failed),
    ):
        assert of_state.is_named
        assert {*of_state.sessions(state)} == {*Session.objects.filter(where, state)}
    assert condition.stopped.sessions(IS_STOPPED).exists()


@pytest.mark.usefixtures("sessions")
def test_the_inbox_asks_the_index_for_the_person_whose_sessions_are_few(person: User) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    counting.estimate.cache_clear()
    with CaptureQueriesContext(connection) as queries:
        assert by_facets(Facets(agent="letters", assignee=str(person.pk)))
    assert f"'assignee {person.pk}'" in queries[-1]["sql"]
    # Of a person alone it has those that may have a line, of which there are fewer.
    with CaptureQueriesContext(connection) as queries:
        condition = inbox_condition.prepare(
            SessionFilter(QueryDict("assignee=me"), user=person), timezone.now()
        )
    assert f"'status waiting', 'assignee {person.pk}'" in queries[-1]["sql"]
    assert condition is not None
    for state, of_state in (
        (IS_STOPPED, condition.stopped),
        (IS_MOVING, condition.moving),
        (HAS_CAUSE, condition.failed),
    ):
        assert {*of_state.sessions(state)} == {*Session.objects.filter(state, assignee=person)}
        assert of_state.is_named


@pytest.mark.parametrize("most_some", [100, 0], ids=["few", "many"])
@pytest.mark.parametrize("status", ["", "paused", "idle"])
def test_sessions_of_a_phase_without_calls_are_not_named_where_many_have_the_rest_of_a_filter(
    monkeypatch: pytest.MonkeyPatch, status: str, most_some: int
) -> None:
    """Their calls, of which there are hardly any, are found by the phase, and counted as exactly."""
    monkeypatch.setattr(inbox_condition, "MOST_SOME", most_some)
    for tag in ("vip", "other"):
        for build in (builders.waiting_for_approval, builders.in_doubt):
            waiting, paused = (build(tags=[tag]) for _ in range(2))
            of_phase = {"phase": "reflecting", "previous_phase": "executing"}
            Session.objects.filter(pk=waiting.pk).update(**of_phase)
            Session.objects.filter(pk=paused.pk).update(**of_phase, status="paused", waiting_for="")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    counting.estimate.cache_clear()
    facets = Facets(tag="vip", phase="reflecting", status=status)
    with CaptureQueriesContext(connection) as queries:
        condition = by_facets(facets)
    assert condition is not None
    is_named = most_some > 0 or status == "idle"
    assert condition.stopped.is_named is is_named
    assert any("'status paused', 'phase reflecting'" in query["sql"] for query in queries) is (
        is_named and status != "idle"
    )
    now = timezone.now()
    where = Q(tags__name="vip", phase="reflecting", **({"status": status} if status else {}))
    page = inbox.read_page(now, condition=condition)
    expected = inbox.read_page(now, condition=Condition.of(where, Matches.FEW))
    assert page == expected
    assert len(page.entries) == {"": 4, "paused": 2, "idle": 0}[status]
    assert inbox.counted_up_to("approval", condition) == counting.MOST


@pytest.mark.usefixtures("sessions")
def test_the_lines_of_ones_own_sessions_are_counted_by_the_index(person: User) -> None:
    now = timezone.now()
    for where in (Q(agent="letters"), Q(agent="letters", tags__name="vip"), Q(pk__in=[])):
        lines = inbox_counts.count_together(now, Condition.of(where & Q(assignee=person), Matches.SOME))
        with CaptureQueriesContext(connection) as queries:
            of_person = inbox_counts.count_together(now, Condition.of(where), assignee=person.pk)
        assert of_person == lines
        found_by = [query["sql"] for query in queries.captured_queries[:1]]
        assert len(queries) <= 2
        assert all(f"'assignee {person.pk}'" in sql for sql in found_by)


def test_sessions_of_an_age_are_named_where_few_have_the_rest_of_a_filter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the lines from that time on are asked for theirs: some are soon found."""
    for _ in range(3):
        builders.paused(tags=["vip"])
        builders.paused()
    builders.paused(tags=["rare"])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    counting.estimate.cache_clear()
    monkeypatch.setattr(inbox_condition, "COMMON", 4)
    monkeypatch.setattr(inbox_condition, "MOST_SOME", 2)
    have_changed_few = inbox_condition._have_changed_few
    monkeypatch.setattr(inbox_condition, "_have_changed_few", lambda since: False)
    user = builders.user("supervisor", "anna")

    def prepared(**values: str) -> Matches:
        condition = inbox_condition.prepare(SessionFilter(values, user=user), timezone.now())
        assert condition is not None
        return condition.stopped.matches

    assert prepared(tag="vip", since="30d") is prepared(assignee="nobody", since="1d") is Matches.MANY
    assert prepared(tag="rare", since="30d") is prepared(assignee="me", since="30d") is Matches.FEW
    # Without a time, and where a status leaves some, they are named; of a phase without calls they need not be.
    assert prepared(tag="vip", assignee="nobody") is Matches.FEW
    assert prepared(tag="vip", since="30d", status="paused") is Matches.FEW
    assert prepared(tag="vip", since="30d", phase="executing") is Matches.FEW
    assert prepared(tag="vip", since="30d", phase="reflecting") is Matches.SOME
    monkeypatch.setattr(inbox_condition, "_have_changed_few", have_changed_few)
    assert prepared(tag="vip", since="30d") is Matches.FEW
    monkeypatch.setattr(inbox_condition, "_have_changed_few", lambda since: False)
    monkeypatch.setattr(inbox_condition, "MOST_SOME", 7)
    assert prepared(tag="vip", since="30d") is prepared(assignee="nobody", since="1d") is Matches.FEW


def test_how_the_sessions_of_an_inbox_are_found_depends_on_how_many_of_them_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(6):
        builders.paused(agent_key="letters", tags=["rare"] if number else [], customer="Greta Lindqvist")
    for _ in range(9):
        builders.done()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    counting.estimate.cache_clear()
    user = builders.user("supervisor", "anna")
    monkeypatch.setattr(inbox_condition, "_are_one_in", lambda *_: False)

    def prepared(**values: str) -> tuple[Condition, bool, bool]:
        """And whether keys were looked for, and the index of facets was asked."""
        with CaptureQueriesContext(connection) as queries:
            condition = inbox_condition.prepare(SessionFilter(values, user=user), timezone.now())
        assert condition is not None
        executed = [query["sql"] for query in queries if not query["sql"].startswith("EXPLAIN")]
        return (
            condition,
            any("array_agg" in sql for sql in executed),
            any("tag_names @>" in sql for sql in executed),
        )

    def ways(**values: str) -> tuple[bool, bool]:
        return prepared(**values)[1:]

    keys, no_keys = (True, False), (False, False)
    # An agent of which more sessions wait than can be named, and nothing else that leaves few.
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 5)
    for also in ({}, {"since": "30d"}, {"assignee": "nobody"}):
        assert ways(agent="letters", **also) == no_keys
        assert prepared(agent="letters", **also)[0].stopped.matches is Matches.SOME
    assert ways(agent="letters", status="paused")[0]
    assert ways(agent="letters", tag="rare")[0]
    # A tag that most of them have leaves as many.
    monkeypatch.setattr(inbox_condition, "LOOKED_AT_FOR_TAG", 6)
    for also in ({}, {"since": "30d"}, {"assignee": "nobody"}):
        condition, has_keys, _ = prepared(agent="letters", tag="rare", **also)
        assert not has_keys
        assert condition.stopped.matches is Matches.SOME
    assert ways(agent="letters", tag="rare", status="paused")[0]
    assert ways(agent="letters", tag="other")[0]
    monkeypatch.setattr(inbox_condition, "LOOKED_AT_FOR_TAG", 10)
    assert ways(agent="letters", tag="rare")[0]
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 6)
    assert ways(agent="letters") == keys
    # A tag that few sessions have.
    assert ways(tag="rare") == (True, True)
    monkeypatch.setattr(inbox_condition, "MOST_SOME", 4)
    assert ways(tag="rare") == no_keys
    # The customers of those that may have a line have an index of their own.
    assert ways(customer="Lindqvist", tag="rare") == keys
    assert ways(customer="Lindqvist", agent="letters", tag="rare") == keys
    # A phase and a time, unless few have changed since.
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 14)
    in_phase, _, _ = prepared(phase="reflecting", since="30d")
    assert in_phase.stopped.last
    assert in_phase.stopped.matches is Matches.SOME
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 15)
    named, *_ = prepared(phase="reflecting", since="30d")
    assert named.stopped.is_named
    assert not named.stopped.last


@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize("looked_at", [1, 9, 100])
@pytest.mark.parametrize("tool", ["", "issue_refund"])
def test_pages_of_an_inbox_have_each_call_once_and_in_order_however_many_are_looked_at_first(
    monkeypatch: pytest.MonkeyPatch, oldest_first: bool, looked_at: int, tool: str
) -> None:
    for number in range(30):
        build = builders.in_doubt if number % 2 else builders.waiting_for_approval
        build(
            agent_key="claims" if number % 3 else "letters",
            created_at=timezone.now() - timedelta(minutes=number),
        )
    # So that they are too many to name, and pages are short.
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 0)
    monkeypatch.setattr(inbox_condition, "_are_one_in", lambda *_: False)
    monkeypatch.setattr(inbox, "LOOKED_AT", looked_at)
    monkeypatch.setattr(inbox, "PAGE", 2)
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    counting.estimate.cache_clear()
    kinds = inbox_rows.OF_TOOLS
    some = by_facets(Facets(agent="letters", status="waiting"))
    assert some is not None
    assert some.stopped.may_be_first
    assert some.stopped.matches is Matches.SOME
    every = Condition.of(Q(agent="letters", status="waiting"), Matches.FEW)
    order: dict[str, Any] = {"kinds": kinds, "tool": tool, "oldest_first": oldest_first}
    expected = inbox.read_page(now, condition=every, limit=50, **order).entries
    page = inbox.read_page(now, condition=some, **order)
    found = [*page.entries]
    while page.next:
        page = inbox.read_page(now, condition=some, after=page.next, **order)
        found += page.entries
    assert found == expected
    assert {entry.kind for entry in found} == {*kinds}
    assert len(found) == 10


@pytest.mark.parametrize(
    "facets, is_near",
    [
        (Facets(agent="letters", status="waiting"), True),
        (Facets(tag="glass", phase="executing"), True),
        # The oldest calls are not of the last week, and hardly any is of these sessions.
        (Facets(agent="letters", status="waiting", since=timezone.now() - timedelta(days=7)), False),
        (Facets(agent="letters", status="paused"), False),
        (Facets(agent="letters", phase="reflecting"), False),
    ],
)
@pytest.mark.parametrize("tool", ["", "issue_refund", "never_called"])
def test_sessions_are_searched_for_calls_only_where_too_few_of_the_first_ones_are_of_them(
    monkeypatch: pytest.MonkeyPatch, facets: Facets, is_near: bool, tool: str
) -> None:
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 0)
    monkeypatch.setattr(inbox_condition, "_are_one_in", lambda *_: False)
    monkeypatch.setattr(inbox, "LOOKED_AT", 4)
    for number in range(8):
        builders.waiting_for_approval(agent_key="letters", tags=["glass"], title=str(number))
        builders.waiting_for_approval(agent_key="claims", tags=["vip"])
    builders.done(tags=["vip"])
    builders.done(tags=["vip"])
    paused = builders.paused(agent_key="letters")
    assert paused.phase == "reflecting"
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    counting.estimate.cache_clear()
    condition = by_facets(facets)
    assert condition is not None

    def queries_for(limit: int) -> list[str]:
        with CaptureQueriesContext(connection) as queries:
            inbox.read_page(timezone.now(), kinds=("approval",), condition=condition, tool=tool, limit=limit)
        return [query["sql"] for query in queries]

    monkeypatch.setattr(inbox, "PAGE", 1)
    first = queries_for(1)
    assert any("OFFSET 4" in sql for sql in first) is is_near
    assert len(first) == (2 if is_near else 1)
    if tool:
        assert all(f"'{tool}'" in sql for sql in first)
    # Of the first four calls two are of these sessions; of a tool that was never called, none is behind them.
    monkeypatch.setattr(inbox, "PAGE", 3)
    assert len(queries_for(3)) == (1 if not is_near else 2 if tool == "never_called" else 3)
