"""What the desk and the runs ask again and again PostgreSQL parses and plans once for a connection."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import NotSupportedError, ProgrammingError, connection, transaction
from django.db.models import F, Q, QuerySet
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentstate.postgresql.base import PREPARED_AFTER
from sessions_app.actions.base import lock
from sessions_app.finding import inbox_counts
from sessions_app.finding.inbox_states import Condition, Matches
from sessions_app.finding.keys import in_list, listed
from sessions_app.models import Event, Session, SessionTag
from sessions_app.models.compiled import compiled, planned_anew
from tests import builders
from tests.databases import connected

ENOUGH = PREPARED_AFTER + 2


pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def on_postgresql(migrated_postgres_url: str, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), connected(migrated_postgres_url):
        yield
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE sessions_app_session CASCADE")


def prepared(beginning: str) -> list[tuple[str, int, int]]:
    """The prepared statements of this connection that begin so: the text, and how often each was executed by the plan
    for all values, and by one for its own.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT statement, generic_plans, custom_plans FROM pg_prepared_statements"
            " WHERE starts_with(statement, %s)",
            [beginning],
        )
        return list(cursor.fetchall())


def change_title(length: int) -> None:
    """As a migration does it, on another connection."""
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute(f"ALTER TABLE sessions_app_session ALTER COLUMN title TYPE varchar({length})")
    finally:
        other.close()


def test_a_compiled_query_is_planned_once_for_all_values() -> None:
    @compiled
    def titled(title: str, since: datetime, pks: tuple[UUID, ...]) -> QuerySet[Session]:
        return Session.objects.filter(title=title, created_at__gte=since, pk__in=pks)

    sessions = [builders.paused(title=f"100 % {number} ''") for number in range(ENOUGH)]
    others = (UUID(int=0), UUID(int=1))
    for session in sessions:
        assert titled(session.title, session.created_at, (session.pk, *others)) == [session]
        assert titled("another", session.created_at, (session.pk, *others)) == []
    [(text, by_one_plan, by_own_plan)] = [row for row in prepared("SELECT") if "IN ($2, $3, $4)" in row[0]]
    assert by_one_plan > 0
    assert by_own_plan == 0
    assert "%s" not in text


def test_a_query_whose_plan_depends_on_its_values_is_compiled_once_and_not_prepared() -> None:
    @planned_anew
    def named(keys: str, since: datetime) -> QuerySet[Session]:
        return Session.objects.filter(in_list(keys, kind="uuid"), created_at__gte=since, title__endswith="%!")

    sessions = [builders.paused(title=f"{number} %!") for number in range(ENOUGH)]
    for session in sessions:
        with CaptureQueriesContext(connection) as queries:
            assert named(listed([session.pk]), session.created_at) == [session]
        [query] = queries
        assert str(session.pk) in query["sql"]
    assert len(named._kept) == 1
    assert not [row for row in prepared("SELECT") if "%!" in row[0]]


def test_the_lines_of_ones_own_sessions_are_counted_by_one_statement_whichever_these_are_and_of_any_tool() -> (
    None
):
    anna = builders.user("supervisor", "anna")
    now = timezone.now()
    for number in range(ENOUGH):
        builders.in_doubt(assignee=anna)
        for tool, lines in (("issue_refund", number + 1), ("never_called", 0)):
            condition = Condition.of(Q(assignee=anna), Matches.FEW)
            found = inbox_counts.count_together(now, condition, tool, kinds=("doubt",), assignee=anna.pk)
            assert found.number == lines
    assert len([row for row in prepared("SELECT count(*)") if "'doubt'" in row[0]]) == 1


def test_a_constant_is_part_of_the_statement_so_that_an_index_with_a_condition_is_used() -> None:
    @compiled
    def failed(since: datetime) -> QuerySet[Session, UUID]:
        rows = Session.objects.filter(has_failed=True, updated_at__gte=since, title__contains="100 % sure")
        return rows.order_by("-updated_at", "-id").values_list("pk", flat=True)[:3]

    session = builders.failed(title="I am 100 % sure'")
    for _ in range(ENOUGH):
        assert failed(datetime(2000, 1, 1, tzinfo=UTC)) == [session.pk]
    [(text, *_)] = [row for row in prepared("SELECT") if "sure%" in row[0]]
    assert "$1" in text
    assert "$2" not in text
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute("SET enable_sort = off")
        try:
            cursor.execute(f"PREPARE failed AS {text.replace('%', '%%')}", [])
            cursor.execute("EXPLAIN EXECUTE failed('2000-01-01')")
            plan = "\n".join(line for (line,) in cursor.fetchall())
            cursor.execute("DEALLOCATE failed")
        finally:
            cursor.execute("RESET enable_seqscan")
            cursor.execute("RESET enable_sort")
    assert "session_failed" in plan


def test_a_row_is_inserted_and_updated_by_its_key_by_statements_that_are_prepared() -> None:
    session = builders.paused(title="First")
    for number in range(ENOUGH):
        SessionTag.objects.create(session=session, name=f"tag {number} %s")
        session.title = f"100 % of {number}"
        session.save(update_fields=["title"])
    assert sorted(session.tags.values_list("name", flat=True)) == [f"tag {n} %s" for n in range(ENOUGH)]
    assert Session.objects.get(pk=session.pk).title == f"100 % of {ENOUGH - 1}"
    [(_, inserted, again)] = prepared('INSERT INTO "sessions_app_sessiontag"')
    assert (inserted > 0, again) == (True, 0)
    [(_, updated, again)] = prepared('UPDATE "sessions_app_session" SET "title"')
    assert (updated > 0, again) == (True, 0)


def test_what_depends_on_more_than_the_key_is_planned_for_its_values() -> None:
    builders.paused(title="A")
    for number in range(ENOUGH):
        Session.objects.filter(title__in=["A", f"{number}"]).update(customer="B")
        assert Session.objects.filter(title="A", customer="B").exists()
    assert not prepared('UPDATE "sessions_app_session" SET "customer"')
    assert not prepared("SELECT 1")


def test_an_update_may_calculate_with_a_percent_sign() -> None:
    session = builders.paused(title="50 %s of it")
    for _ in range(ENOUGH):
        Session.objects.filter(pk=session.pk).update(attempt=17)
        Session.objects.filter(pk=session.pk).update(attempt=F("attempt") % 5, title="50 %s of it")
    assert Session.objects.values_list("attempt", "title").get(pk=session.pk) == (2, "50 %s of it")


def test_a_column_that_an_upgrade_changes_makes_the_server_plan_again() -> None:
    @compiled
    def titled(title: str) -> QuerySet[Session]:
        return Session.objects.filter(title=title)

    session = builders.paused(title="A")
    lengths = [210, 220, 200]
    for length in lengths:
        for _ in range(ENOUGH):
            assert titled("A") == [session]
            session.save(update_fields=["title"])
        change_title(length)
        assert titled("A") == [session]
        session.save(update_fields=["title"])
    assert [row for row in prepared("SELECT") if '"title" = $1' in row[0]] == []


def test_a_transaction_in_which_a_column_has_changed_fails_and_the_next_one_does_not() -> None:
    session = builders.paused(title="A")
    for _ in range(ENOUGH):
        with transaction.atomic():
            assert lock(session.pk) == session
    change_title(210)
    with pytest.raises(NotSupportedError), transaction.atomic():
        lock(session.pk)
    with transaction.atomic():
        assert lock(session.pk) == session
    change_title(200)


@pytest.mark.parametrize("at_once", [True, False], ids=["by itself", "in a transaction"])
def test_a_statement_that_was_deallocated_without_psycopg_is_prepared_again(at_once: bool) -> None:
    @compiled
    def titled(title: str) -> QuerySet[Session]:
        return Session.objects.filter(title=title)

    session = builders.paused(title="A")
    for _ in range(ENOUGH):
        assert titled("A") == [session]
    with connection.cursor() as cursor:
        cursor.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
    if not at_once:
        with pytest.raises(ProgrammingError, match="does not exist"), transaction.atomic():
            titled("A")
    for _ in range(ENOUGH):
        assert titled("A") == [session]


def test_a_log_of_queries_has_what_was_executed_also_where_it_was_prepared() -> None:
    @compiled
    def titled(title: str) -> QuerySet[Session]:
        return Session.objects.filter(title=title)

    with CaptureQueriesContext(connection) as queries:
        session = builders.paused(title="A")
        for _ in range(ENOUGH):
            assert titled("A") == [session]
            session.tags.all().delete()
            session.tags.create(name="100 % vip")
    texts = [query["sql"] for query in queries]
    assert [text.endswith("-- 'A'") for text in texts if '"title" = $1' in text] == [True] * ENOUGH
    assert [
        "'100 % vip'" in text for text in texts if text.startswith('INSERT INTO "sessions_app_sessiontag')
    ] == [True] * ENOUGH


@pytest.mark.parametrize("number", [0, 2**15, 2**31 - 1, 2**40])
def test_numbers_of_any_size_find_the_same_plan(number: int) -> None:
    @compiled
    def at(session_id: UUID, position: int) -> QuerySet[Event]:
        return Event.objects.filter(session=session_id, position=position)

    session = builders.paused()
    event = Event.objects.create(
        session=session, position=number + 10_000, kind="note", created_at=timezone.now()
    )
    for _ in range(ENOUGH):
        assert at(session.pk, number + 10_000) == [event]
        assert at(session.pk, 5) == list(Event.objects.filter(session=session, position=5))
