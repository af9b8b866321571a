"""A compiled query finds what its query set finds, for whatever it is asked."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.db import connection, transaction
from django.db.models import (
    BooleanField,
    Case,
    F,
    Func,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Value,
    When,
)
from django.db.models.expressions import RawSQL
from django.db.models.functions import Lower
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.desk import context
from sessions_app.desk.pages.session import header
from sessions_app.finding.keys import are
from sessions_app.finding.parts import NotEstimated, opaque
from sessions_app.models import Checkpoint, Event, Message, Session, Status, ToolCall, conditions
from sessions_app.models.compiled import MOST_SHAPES, MOST_VALUES, CompiledQuery, compiled, planned_anew
from sessions_app.models.constants import with_constants
from sessions_app.models.rows import Ranges, visible
from sessions_app.models.tag import has_tag
from tests import builders, compiling

pytestmark = pytest.mark.django_db


@compiled
def within(where: Ranges) -> QuerySet[Message]:
    return Message.objects.within(where).select_related("branch__session").defer("body")


@compiled
def newest(session_id: UUID, *, most: int, oldest_first: bool = False) -> QuerySet[Event]:
    return Event.objects.filter(session=session_id).order_by("position" if oldest_first else "-position")[
        :most
    ]


@compiled
def since(at: datetime, title: str) -> QuerySet[Session]:
    return Session.objects.filter(created_at__gte=at, title=title).annotate(twice=F("position") * 2)


@planned_anew
def meeting(where: Q, title: str | None = None) -> QuerySet[Session]:
    rows = Session.objects.filter(where).order_by("pk")
    return rows if title is None else rows.filter(title=title)


def kept(query: CompiledQuery[Any, Any]) -> int:
    return len(query._kept)


def test_it_finds_the_rows_of_its_query_set_with_what_is_related_deferred_and_annotated() -> None:
    session = builders.looked_up().rest("idle")
    where = visible(session.current_branch)
    found, expected = within(where), list(within.query_set(where))
    assert found == expected
    assert len(found) > 1
    assert found[0].get_deferred_fields() == {"body"}
    with CaptureQueriesContext(connection) as queries:
        assert found[0].branch.session.title == session.title
    assert not queries.captured_queries
    assert found[0].body == expected[0].body
    [same] = since(session.created_at, session.title)
    assert (same, same.twice) == (session, session.position * 2)  # type: ignore[attr-defined]


def test_a_call_is_one_query_and_is_compiled_once_for_all_values() -> None:
    sessions = [builders.looked_up(title=title).rest("idle") for title in ("A", "B", "C")]
    with CaptureQueriesContext(connection) as queries:
        found = [[row.pk for row in since(session.created_at, session.title)] for session in sessions]
    assert found == [[session.pk] for session in sessions]
    assert len(queries) == 3
    assert since(sessions[0].created_at + timedelta(days=1), "A") == []
    before = dict(since._kept)
    assert since(sessions[1].created_at, "B") == [sessions[1]]
    assert {shape: id(one) for shape, one in since._kept.items()} == {
        shape: id(one) for shape, one in before.items()
    }


def test_no_connection_is_kept() -> None:
    since(datetime.now(UTC), "A")
    assert [one.compiler.connection for one in since._kept.values() if one is not None] == [None] * kept(
        since
    )


@pytest.mark.parametrize("seed", range(20))
def test_any_ranges_are_found_as_django_finds_them(seed: int) -> None:
    branches = [builders.looked_up().rest("idle").current_branch.pk for _ in range(3)]
    dice = Random(seed)
    where = tuple(
        (dice.choice(branches), dice.randrange(9), dice.choice([None, dice.randrange(12)]))
        for _ in range(dice.randrange(5))
    )
    assert within(where) == list(within.query_set(where))
    assert within(((branches[0], 0, None),)) == list(Message.objects.filter(branch=branches[0]).defer("body"))


def test_keywords_choose_the_query_and_are_no_parameters() -> None:
    session = builders.looked_up().rest("idle")
    for position in (901, 902):
        Event.objects.create(session=session, position=position, kind="paused")
    events = list(Event.objects.filter(session=session).order_by("position"))
    assert len(events) > 2
    assert newest(session.pk, most=1) == events[-1:]
    assert newest(session.pk, most=2) == events[::-1][:2]
    assert newest(session.pk, most=1, oldest_first=True) == events[:1]
    assert newest.first(session.pk, most=2) == events[-1]
    assert newest.first(UUID(int=1), most=2) is None


def test_lists_of_values_are_found_as_such() -> None:
    @compiled
    def flat(branch_id: int) -> QuerySet[Checkpoint, int]:
        return (
            Checkpoint.objects.filter(branch=branch_id)
            .order_by("position")
            .values_list("position", flat=True)
        )

    @compiled
    def pairs(branch_id: int) -> QuerySet[Checkpoint, tuple[int, str]]:
        return (
            Checkpoint.objects.filter(branch=branch_id).order_by("position").values_list("position", "kind")
        )

    branch = builders.looked_up().rest("idle").current_branch
    rows = Checkpoint.objects.filter(branch=branch).order_by("position")
    assert flat(branch.pk) == [row.position for row in rows]
    assert pairs(branch.pk) == [(row.position, row.kind) for row in rows]


def test_an_argument_that_is_no_parameter_of_the_sql_is_refused() -> None:
    @compiled
    def cut_off(number: int) -> QuerySet[Session]:
        return Session.objects.all()[:number]

    @compiled
    def containing(text: str) -> QuerySet[Session]:
        return Session.objects.filter(Q(title=text) | Q(title__startswith=text))

    with pytest.raises(ValueError, match=r"Arguments \[0\] of this query are not parameters"):
        cut_off(3)
    with pytest.raises(ValueError, match="has an argument within a text"):
        containing("x")


def test_a_time_may_be_added_to_and_several_times_are_told_apart() -> None:
    @compiled
    def between(first: datetime, last: datetime, title: str) -> QuerySet[Session]:
        after, until = first - timedelta(days=1), last + timedelta(hours=1, microseconds=5)
        return Session.objects.filter(created_at__gt=after, created_at__lte=until, title=title)

    session = builders.looked_up(title="A").rest("idle")
    at = session.created_at
    assert between(at, at, "A") == [session]
    assert between(at + timedelta(hours=23), at, "A") == [session]
    assert between(at + timedelta(days=1), at, "A") == []
    assert between(at, at - timedelta(hours=1, microseconds=5), "A") == [session]
    assert between(at, at - timedelta(hours=1, microseconds=6), "A") == []


def test_related_rows_are_not_prefetched_without_a_word() -> None:
    @compiled
    def with_tags(title: str) -> QuerySet[Session]:
        return Session.objects.filter(title=title).prefetch_related("tags")

    with pytest.raises(ValueError, match="does not prefetch"):
        with_tags("A")


@pytest.mark.parametrize("value", [True, 1.5, ["a"], b"a"])
def test_an_argument_of_another_type_is_refused(value: Any) -> None:
    @compiled
    def anything(value: Any) -> QuerySet[Session]:
        return Session.objects.filter(position=value)

    assert anything(1) == []
    with pytest.raises(TypeError, match="A compiled query takes no"):
        anything(value)


def test_a_time_without_a_time_zone_is_refused() -> None:
    with pytest.raises(TypeError, match="takes no time without a time zone"):
        since(datetime(2026, 1, 1), "A")  # noqa: DTZ001


def test_what_is_compared_is_passed_by_position() -> None:
    with pytest.raises(TypeError, match=r"Pass \['title'\] by position"):
        since(datetime.now(UTC), title="A")


def test_other_lists_of_values_are_refused() -> None:
    @compiled
    def dictionaries(title: str) -> QuerySet[Session, Any]:
        return Session.objects.filter(title=title).values("pk")

    with pytest.raises(ValueError, match="finds rows of its model, or lists of values"):
        dictionaries("A")


def test_a_constant_is_no_argument() -> None:
    @compiled
    def flagged(title: str, position: int) -> QuerySet[Session]:
        rows = Session.objects.filter(title=title, position__gte=position)
        return rows.annotate(flag=Value(True), one=Value(1), text=Value("marker"))

    session = builders.looked_up(title="A").rest("idle")
    for position in (0, 1):
        [row] = flagged("A", position)
        found: Any = row
        assert (row, found.flag, found.one, found.text) == (session, True, 1, "marker")


@pytest.mark.django_db(transaction=True)
def test_rows_are_locked_in_a_transaction_only() -> None:
    @compiled
    def locked(title: str) -> QuerySet[Session]:
        return Session.objects.select_for_update().filter(title=title)

    with transaction.atomic():
        assert locked("A") == []
    refused = connection.features.has_select_for_update  # SQLite locks no rows
    with pytest.raises(transaction.TransactionManagementError) if refused else nullcontext():
        locked("A")


def test_a_query_that_cannot_find_anything_finds_nothing_and_what_is_out_of_range_neither() -> None:
    @compiled
    def none(title: str) -> QuerySet[Session]:
        return Session.objects.none().filter(title=title)

    branch = builders.looked_up().rest("idle").current_branch.pk
    assert none("A") == []
    assert within(()) == []
    everything = within(((branch, 0, None),))
    assert everything
    for number in (2**31, 2**63 - 1, 2**63, 10**30):
        assert within(((branch, number, None),)) == []
        assert within(((branch, 0, number),)) == everything
        assert within(((branch, -number, number),)) == everything


def test_no_more_shapes_are_kept_than_are_likely_to_come_back() -> None:
    for number in range(MOST_SHAPES + 5):
        assert newest(UUID(int=1), most=number + 1) == []
    assert kept(newest) == MOST_SHAPES
    before = kept(within)
    branch = builders.looked_up().rest("idle").current_branch.pk
    many = tuple((branch, number, number + 1) for number in range(MOST_VALUES))
    assert within(many) == list(within.query_set(many))
    assert kept(within) == before


@pytest.mark.django_db(transaction=True)
def test_threads_have_their_own_connections() -> None:
    session = builders.looked_up(title="of all").rest("idle")
    at = datetime(2000, 1, 1, tzinfo=UTC)
    found: list[list[Session]] = []

    def ask() -> None:
        try:
            found.extend(since(at, "of all") for _ in range(50))
        finally:
            connection.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[session]] * 200


def test_conditions_that_differ_in_their_values_only_are_compiled_once() -> None:
    ada = builders.user("operator", "ada")
    made = [
        builders.paused(title="One", tags=["vip"], assignee=ada),
        builders.done(title="Two", tags=["vip", "home"]),
        builders.failed(title="Three"),
    ]
    now = timezone.now()
    of_values: list[Callable[..., Q]] = [
        lambda title, tag, at, key: Q(title=title),
        lambda title, tag, at, key: Q(created_at__lte=at) & (Q(title=title) | has_tag(tag)),
        lambda title, tag, at, key: (
            ~Q(title=title, status__in=(Status.IDLE, Status.PAUSED)) & Q(failure=None)
        ),
        lambda title, tag, at, key: Q(assignee=key) | Q(assignee=None, status=Status.IDLE, title__gt=title),
        lambda title, tag, at, key: Q(opaque(Q(title=title, failure__isnull=True))),
        lambda title, tag, at, key: are([made[0].pk, made[2].pk]) & Q(title__lt=title),
    ]
    values = [
        ("One", "vip", now, ada.pk),
        ("Two", "home", now - timedelta(days=1), ada.pk + 1),
        ("%", "", now + timedelta(days=1), 7),
    ]
    before = kept(meeting)
    for number, where in enumerate(of_values, 1):
        for each in values:
            assert meeting(where(*each)) == list(Session.objects.filter(where(*each)).order_by("pk"))
        assert kept(meeting) == before + number
    assert meeting(Q(title="One"), "One") == [made[0]]
    assert meeting(Q(), "Two") == [made[1]]
    assert kept(meeting) == before + len(of_values) + 2


def test_conditions_that_differ_in_more_than_their_values_have_sql_of_their_own() -> None:
    made = builders.paused(title="One")
    alike = [
        Q(title="One") & Q(customer="One"),
        Q(title="One") | Q(customer="One"),
        ~(Q(title="One") | Q(customer="One")),
        Q(title="One") | Q(customer=None),
        Q(title="One") | Q(agent="One"),
        Q(title__gte="One") | Q(customer="One"),
        Q(title="One") | Q(status=Status.PAUSED),
        Q(title="One") | Q(status=Status.QUEUED),
        Q(title="One") | Q(status__in=(Status.PAUSED, Status.QUEUED)),
        Q(title="One") | has_tag("One"),
        Q(opaque(Q(title="One") | Q(customer="One"))),
    ]
    before = kept(meeting)
    for number, where in enumerate(alike, 1):
        assert meeting(where) == list(Session.objects.filter(where))
        assert kept(meeting) == before + number
    assert meeting(alike[0]) == []
    assert meeting(alike[1]) == [made]


@pytest.mark.parametrize(
    "one, other",
    [
        (Q(title="a"), Q(title=UUID(int=1))),
        (Q(title="a"), Q(title__lt="a")),
        (Q(title=None), Q(title="a")),
        (Q(has_failed=True), Q(has_failed=False)),
        (Q(status=Status.PAUSED), Q(status="paused")),
        (Q(status__in=(Status.PAUSED,)), Q(status__in=(Status.QUEUED,))),
        (Q(pk__in=RawSQL("SELECT %s", [1])), Q(pk__in=RawSQL("SELECT %s + 1", [1]))),
        (Q(pk__in=RawSQL("SELECT %s", [1])), Q(pk__in=RawSQL("SELECT %s", ["1"]))),
        (Q(pk__in=RawSQL("SELECT %s", [Status.PAUSED])), Q(pk__in=RawSQL("SELECT %s", [Status.QUEUED]))),
        (Q(pk__in=RawSQL("SELECT %s", [Status.PAUSED])), Q(pk__in=RawSQL("SELECT %s", ["paused"]))),
        (
            Q(pk__in=RawSQL("SELECT %s", [timedelta(days=1)])),
            Q(pk__in=RawSQL("SELECT %s", [timedelta(days=2)])),
        ),
        (Q(title__icontains="a"), Q(title="a")),
        (Q(opaque(Q(title="a"))), Q(opaque(~Q(title="a")))),
        (
            Q(Case(When(title="a", then=True), default=False)),
            Q(Case(When(title="a", then=False), default=False)),
        ),
        (Q(Func(F("title"), function="f")), Q(Func(F("title"), function="g"))),
        (Q(Func(F("title"), function="f")), Q(Func(F("customer"), function="f"))),
        (Q(Func(Value("a"), function="f")), Q(Func(Value(1), function="f"))),
        (Q(Func(Value(True), function="f")), Q(Func(Value(False), function="f"))),
        (Q(Func(Value("a"), template="x")), Q(Func(Value("a"), template="y"))),
        (
            Q(Func(Value("a"), function="f", output_field=BooleanField())),
            Q(Func(Value("a"), function="f", output_field=IntegerField())),
        ),
    ],
)
def test_conditions_that_may_have_other_sql_are_told_apart(one: Q, other: Q) -> None:
    assert conditions.shape_of(one, []) == conditions.shape_of(one, [])
    assert conditions.shape_of(one, []) != conditions.shape_of(other, [])


@pytest.mark.parametrize(
    "where",
    [
        Q(pk__in=RawSQL("SELECT id FROM t WHERE a = %s OR b = %s", [None, "Ada"])),
        Q(pk__in=RawSQL("SELECT %s", [True])),
        Q(pk__in=RawSQL("SELECT %s", [(1, 2)])),
        Q(pk=RawSQL("SELECT %s", [1])),
        Q(status__in=("paused", Status.QUEUED)),
        Q(Func(Value(None), function="f")),
        Q(Func(OuterRef("title"), function="f")),
        Q(Func(NotEstimated(1), function="f")),
        Q(Func(Value("a"), function="f", arity=[])),
        Q(Lower("title")),
    ],
)
def test_of_other_values_and_expressions_it_is_not_known_what_their_sql_depends_on(where: Q) -> None:
    with pytest.raises(conditions.UnknownConditionError):
        conditions.shape_of(where, [])


@pytest.mark.parametrize(
    "where",
    [
        lambda session: Q(pk=str(session.pk)),
        lambda session: Q(version=str(session.version)),
        lambda session: Q(created_at__gte=session.created_at.isoformat()),
        lambda session: Q(assignee=str(session.assignee_id)),
        lambda session: Q(position=session.position, has_failed="False"),
    ],
)
def test_a_value_that_is_not_of_the_columns_type_is_compared_as_django_compares_it(
    where: Callable[[Session], Q],
) -> None:
    session = builders.paused(assignee=builders.user("operator", "ada"))
    for _ in range(2):
        assert meeting(where(session)) == [session]
    with pytest.raises(ValueError, match="expected a number"):
        meeting(Q(version="three"))


@pytest.mark.parametrize(
    "where",
    [
        Q(title__endswith="e"),
        Q(pk__in=[UUID(int=1), UUID(int=2)]),
        Q(pk__in=Session.objects.filter(title="One").values("pk")),
        Q(title=F("customer")),
        Q(title=Lower("title")),
        Q(created_at__date=date(2026, 5, 4)),
        Q(branch__number=1),
    ],
    ids=["a pattern", "keys", "a query", "a column", "a function", "a part of a time", "another table"],
)
def test_django_compiles_other_conditions_each_time(where: Q) -> None:
    builders.paused(title="One")
    before = kept(meeting)
    for condition in (where, ~where, Q(title="One") & where):
        assert meeting(condition) == list(Session.objects.filter(condition).order_by("pk"))
    assert kept(meeting) == before


def test_texts_that_are_looked_for_in_a_column_have_one_sql_and_mean_only_themselves() -> None:
    titles = ["100 % sure", "100 of 100", "a_b", "aXb", "a\\b", "One"]
    made = {title: builders.paused(title=title) for title in titles}
    before = kept(meeting)
    for text, found in (("0 %", 1), ("A_B", 1), ("\\b", 1), ("%", 1), ("one", 1), ("", 6), ("nobody", 0)):
        expected = [made[title] for title in titles if text.lower() in title.lower()]
        assert len(expected) == found
        assert sorted(meeting(Q(title__icontains=text)), key=titles_of) == sorted(expected, key=titles_of)
    assert kept(meeting) == before + 1
    both = Q(title__icontains="one") & Q(title="One") & Q(customer=made["One"].customer)
    assert meeting(both) == [made["One"]]


def titles_of(session: Session) -> str:
    return session.title


def test_a_condition_of_which_django_leaves_out_a_part_finds_what_the_rest_finds() -> None:
    made = builders.paused(title="One")
    for where in (Q(title="One") | Q(pk__in=()), Q(title="One") & Q(pk__in=())):
        for _ in range(2):
            assert meeting(where) == ([made] if where.connector == "OR" else [])
    for where in (Q(title="One") | (Q(customer="x") & Q(pk__in=())), Q(position=10**30)):
        assert meeting(where) == list(Session.objects.filter(where))


def test_the_check_of_the_tests_finds_a_query_that_depends_on_more_than_its_arguments() -> None:
    least = [0]

    @compiled
    def depending(branch_id: int) -> QuerySet[ToolCall]:
        return ToolCall.objects.filter(branch=branch_id, position__gte=least[0])

    assert depending(1) == []
    least[0] = 1
    for other in (2, 10, 0, -1):
        with pytest.raises(AssertionError):
            depending(other)
    least[0] = 0
    for _ in range(compiling.FIRST):
        depending(3)
    least[0] = 1
    assert sum(is_refused(depending, 4) for _ in range(compiling.EVERY)) == 1


def is_refused(query: Callable[[int], Any], argument: int) -> bool:
    try:
        query(argument)
    except AssertionError:
        return True
    return False


def test_the_check_of_the_tests_compares_so_many_calls_of_a_statement_and_then_a_part_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    least = [0]

    @compiled
    def depending(branch_id: int) -> QuerySet[ToolCall]:
        return ToolCall.objects.filter(branch=branch_id, position__gte=least[0])

    monkeypatch.setattr(compiling, "MOST", 3)
    monkeypatch.setattr(compiling, "EVERY", 16)
    depending(1)
    least[0] = 1
    unlike = [sign * 10**digits for digits in range(9) for sign in (1, -1)]
    refused = [is_refused(depending, number) for number in unlike[: 2 + compiling.EVERY]]
    assert refused == [True] * 2 + [False] * (compiling.EVERY - 1) + [True]


def test_the_check_of_the_tests_compares_a_call_once_more_when_a_setting_has_changed() -> None:
    @compiled
    def depending(branch_id: int) -> QuerySet[ToolCall]:
        return ToolCall.objects.filter(branch=branch_id, position__gte=settings.AGENTSTATE_LEASE_SECONDS)

    with override_settings(AGENTSTATE_LEASE_SECONDS=1):
        for _ in range(compiling.FIRST + 1):
            depending(1)
    with override_settings(AGENTSTATE_LEASE_SECONDS=2):
        with pytest.raises(AssertionError):
            depending(1)
        assert depending(1) == []


def test_the_check_of_the_tests_compares_a_text_that_no_earlier_call_had() -> None:
    @compiled
    def depending(title: str) -> QuerySet[Session]:
        return Session.objects.filter(title=title, position__gte=title == "of old")

    for number in range(compiling.MOST - 1):
        depending(f"of {number}")
    with pytest.raises(AssertionError):
        depending("of old")


def plan_of(query: CompiledQuery[Any, Any], *args: Any) -> str:
    values: list[Any] = []
    kept = query._kept_for(connection, args, {}, values)
    assert kept is not None
    sent = [adapt(values[number]) for _, number, adapt in kept.places]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {kept.statement!s}", sent)
        return str(cursor.fetchall())


def test_on_sqlite_too_the_open_calls_of_a_session_are_found_by_their_own_index() -> None:
    if connection.vendor != "sqlite":
        return  # there the plans of whole pages are read: tests/test_query_plans.py
    session = builders.running()
    for plan in (
        plan_of(header._open_calls, session.branch_id),
        plan_of(context._sessions, session.pk),
    ):
        assert "USING INDEX toolcall_open" in plan or "USING COVERING INDEX toolcall_open" in plan, plan


@pytest.mark.parametrize(
    "values",
    [("it's", "50 %"), ("%s", "%%"), ("", "\\"), ("ü", "'); DROP TABLE x; --"), (True, -3), (2**62, 0)],
)
def test_constants_are_read_as_they_are_written(values: tuple[Any, Any]) -> None:
    sql = with_constants("SELECT %s, %s, %s, '%%'", [values[0], "sent", values[1]], {1})
    assert sql is not None
    with connection.cursor() as cursor:
        cursor.execute(sql, ["sent"])
        assert cursor.fetchone() == (values[0], "sent", values[1], "%")


@pytest.mark.parametrize("value", [None, 1.5, b"x", "\0", UUID(int=1)])
def test_what_is_no_number_and_no_text_is_no_constant(value: Any) -> None:
    assert with_constants("SELECT %s, %s", ["x", value], {0}) is None
    assert with_constants("SELECT %s, %s", ["x", value], {1}) == "SELECT 'x', %s"
