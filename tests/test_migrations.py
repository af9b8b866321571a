"""A database of an earlier version keeps its data when it is migrated, and can be migrated back."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from pytest_django.plugin import DjangoDbBlocker

from sessions_app.finding import search, search_index, search_masking
from tests.databases import connected
from tests.migrating import Older, OlderDatabases, migrate

AT = datetime(2026, 1, 2, tzinfo=UTC)
REPLIES: list[dict[str, Any]] = [
    {"role": "assistant", "meta": {}, "name": None, "content": [{"text": "They talked."}]}
]


def new_branch(apps: Any) -> Any:
    """The first branch of a new session."""
    session = apps.get_model("sessions_app", "Session").objects.create(agent="a")
    return apps.get_model("sessions_app", "Branch").objects.create(session=session, number=1)


@pytest.mark.slow
def test_replies_to_side_calls_and_tool_calls_are_kept_by_0004(older: Older) -> None:
    apps = older("0003_tool_results")
    branch = new_branch(apps)
    calls = apps.get_model("sessions_app", "ModelCall").objects
    times = {"started_at": AT, "ended_at": AT}
    calls.create(branch=branch, position=1, name="summary", aside=REPLIES, **times)
    calls.create(branch=branch, position=2, replies=1, **times)
    apps.get_model("sessions_app", "ToolCall").objects.create(
        branch=branch, position=3, call_id="c1", ordinal=4, tool="pay", idempotency_key="k"
    )

    apps = migrate("0004_side_replies")
    calls = apps.get_model("sessions_app", "ModelCall").objects.order_by("position")
    assert list(calls.values_list("side_replies", flat=True)) == [REPLIES, None]
    [call] = apps.get_model("sessions_app", "ToolCall").objects.all()
    assert (call.call_id, call.tool, call.status) == ("c1", "pay", "planned")

    apps = migrate("0003_tool_results")
    calls = apps.get_model("sessions_app", "ModelCall").objects.order_by("position")
    assert list(calls.values_list("aside", flat=True)) == [REPLIES, None]
    assert apps.get_model("sessions_app", "ToolCall").objects.get().ordinal == 0


@pytest.mark.slow
def test_agents_instructions_are_taken_out_of_the_search_by_0022(older: Older) -> None:
    apps = older("0021_filter_by_people")
    branch = new_branch(apps)
    said = [("system", ""), ("system", "sue"), ("user", "")]
    for place, (role, author) in enumerate(said, 1):
        message = apps.get_model("sessions_app", "Message").objects.create(
            branch=branch, position=place, role=role, author=author, text="Refund", body={}
        )
        with connection.cursor() as cursor:
            for key in (message.pk, -message.pk):
                cursor.execute(
                    "INSERT INTO sessions_app_message_words (rowid, words) VALUES (%s, 'refund')", [key]
                )
            cursor.execute(
                "UPDATE sessions_app_search_mark SET upto = %s WHERE name = 'message'", [message.pk]
            )
    migrate("0022_search_without_instructions")
    with connection.cursor() as cursor:
        cursor.execute("SELECT rowid FROM sessions_app_message_words ORDER BY rowid")
        indexed = [key for (key,) in cursor.fetchall()]
        cursor.execute("SELECT upto FROM sessions_app_search_mark WHERE name = 'message'")
        [(mark,)] = cursor.fetchall()
    # SQLite adds all messages again, by the next sweeps.
    assert (indexed, mark) == (([], 0) if connection.vendor == "sqlite" else ([-3, -2, 2, 3], 3))
    migrate("0021_filter_by_people")


@pytest.mark.slow
def test_on_postgresql_everything_is_added_to_the_search_again_after_0033(older: Older) -> None:
    apps = older("0032_phase_at_rest")
    branch = new_branch(apps)
    message = apps.get_model("sessions_app", "Message").objects.create(
        branch=branch, position=1, role="user", text="The roof leaks", body={}
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sessions_app_message_words (rowid, words) VALUES (%s, 'roof:2 leaks:3')",
            [message.pk],
        )
        cursor.execute("UPDATE sessions_app_search_mark SET upto = %s WHERE name = 'message'", [message.pk])
        search_masking.store()
    migrate("0033_marks_of_pairs")
    assert search_masking.stored() is None or connection.vendor == "sqlite"
    assert search_index.update() is False
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM sessions_app_message_words")
        assert cursor.fetchone()[0] == 1
    assert not search_masking.outdated()
    if connection.vendor == "postgresql":
        assert search.newest_sessions('"roof leaks"', whole=True)[0] == [branch.session_id]
    migrate("0032_phase_at_rest")


@pytest.mark.slow
def test_what_sessions_were_started_with_is_marked_as_the_customers_by_0025(older: Older) -> None:
    apps = older("0024_failed_sessions")
    branch = new_branch(apps)
    apps.get_model("sessions_app", "Event").objects.create(
        session=branch.session, branch=branch, position=1, kind="started", actor_name="sue"
    )
    for position, (role, author) in enumerate([("system", ""), ("user", "sue"), ("user", "sue")], 2):
        apps.get_model("sessions_app", "Message").objects.create(
            branch=branch, position=position, role=role, author=author, text="Refund", body={}
        )
    apps = migrate("0025_words_of_customers")
    messages = apps.get_model("sessions_app", "Message").objects.order_by("position")
    assert list(messages.values_list("from_customer", flat=True)) == [False, True, False]
    migrate("0024_failed_sessions")


MODELS_OF_0006 = ("Session", "Branch", "Checkpoint", "ToolCall", "Approval")


@pytest.mark.slow
def test_postgresql_estimates_how_many_sessions_have_a_name_by_more_of_them_since_0026(
    older_databases: OlderDatabases, django_db_blocker: DjangoDbBlocker
) -> None:
    def statistics() -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT coalesce(attstattarget, -1) FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
                " WHERE relname LIKE 'session_%_trigrams'"
            )
            return [int(number) for (number,) in cursor.fetchall()]

    with django_db_blocker.unblock(), connected(older_databases("postgres", "0026_large_lists")):
        assert statistics() == [300, 300]
        migrate("0025_words_of_customers")
        assert 300 not in statistics()
        migrate("0026_large_lists")
        assert statistics() == [300, 300]


@pytest.mark.slow
def test_lines_copies_and_what_requests_showed_are_found_by_0006(older: Older) -> None:
    apps = older("0005_bulk_actions")
    models = {name: apps.get_model("sessions_app", name).objects for name in MODELS_OF_0006}
    sources: dict[str, Any] = {}
    for name, source in (("first", None), ("fork", "first"), ("grandchild", "fork"), ("alone", None)):
        session = models["Session"].create(
            agent="a",
            forked_from=models["Checkpoint"].get(branch__session=sources[source]) if source else None,
        )
        branch = models["Branch"].create(session=session, number=1)
        models["Checkpoint"].create(branch=branch, position=1, kind="start", step=0, phase="planning")
        sources[name] = session
    branch = models["Branch"].get(session=sources["first"])
    rows = [
        models["ToolCall"].create(
            branch=branch, position=2 + place, call_id="c", tool="pay", idempotency_key=key
        )
        for place, key in enumerate(("k1", "k2", "k1", "k1"))
    ]
    for call, repeats in ((rows[1], rows[0]), (rows[2], None)):
        models["Approval"].create(session=sources["first"], call=call, fingerprint="f", repeats=repeats)

    apps = migrate("0007_earlier_effects")
    lines = {
        name: apps.get_model("sessions_app", "Session").objects.get(pk=session.pk).line
        for name, session in sources.items()
    }
    first = sources["first"].pk
    assert lines == {"first": first, "fork": first, "grandchild": first, "alone": None}
    calls = apps.get_model("sessions_app", "ToolCall").objects.order_by("pk")
    assert list(calls.values_list("copy_of", flat=True)) == [None, None, rows[0].pk, rows[0].pk]
    approvals = apps.get_model("sessions_app", "Approval").objects.order_by("pk")
    assert list(approvals.values_list("repeats", "earlier")) == [(rows[0].pk, [rows[0].pk]), (None, None)]

    apps = migrate("0005_bulk_actions")
    assert apps.get_model("sessions_app", "Approval").objects.filter(repeats=rows[0].pk).count() == 1


def tables() -> dict[str, Any]:
    """Of each table of the desk: its columns, indexes and constraints, with the names that the models give them.

    A table that was renamed keeps the other names, which the database or Django made of what it was called.
    """
    models = apps.get_app_config("sessions_app").get_models()
    given = {rule.name for model in models for rule in (*model._meta.indexes, *model._meta.constraints)}
    described = {}
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            if table.startswith("sessions_app_"):
                columns = connection.introspection.get_table_description(cursor, table)
                constraints = connection.introspection.get_constraints(cursor, table)
                described[table] = (
                    sorted(map(repr, columns)),
                    sorted(
                        (name if name in given else "", repr(sorted(constraint.items())))
                        for name, constraint in constraints.items()
                    ),
                )
    return described


def what_no_model_has() -> list[list[Any]]:
    """What only migrations make: the marks of the search and, on PostgreSQL, indexes, statistics and triggers.

    Names of indexes are left out: Django makes them of what a table or a field was called.
    """
    found: list[list[Any]] = []
    statements = ["SELECT name, upto FROM sessions_app_search_mark ORDER BY name"]
    if connection.vendor == "postgresql":
        statements += [
            "SELECT regexp_replace(indexdef, 'INDEX .* ON', 'INDEX ON') FROM pg_indexes"
            " WHERE tablename LIKE 'sessions_app_%' ORDER BY 1",
            "SELECT attrelid::regclass::text, attname, attstattarget FROM pg_attribute"
            " WHERE attstattarget > 0 ORDER BY 1, 2",
            "SELECT pg_get_statisticsobjdef(oid) FROM pg_statistic_ext ORDER BY 1",
            "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1",
            "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'sessions_app_%' ORDER BY 1",
        ]
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            rows = cursor.fetchall()
            assert rows, statement
            found.append(rows)
    return found


@pytest.mark.slow
def test_a_new_database_gets_the_tables_that_one_of_an_earlier_version_has(older: Older) -> None:
    older("0043_pending_entries")
    migrated, rest = tables(), what_no_model_has()

    older("zero")
    at_once = [("sessions_app", "0001_squashed_0043_pending_entries")]
    MigrationExecutor(connection).migrate(at_once)
    assert set(tables()) == set(migrated)
    for table, described in tables().items():
        assert described == migrated[table]
    assert what_no_model_has() == rest
    MigrationExecutor(connection).migrate([("sessions_app", None)])
    assert tables() == {}

    MigrationExecutor(connection).migrate(at_once)
    assert set(tables()) == set(migrated)
    assert what_no_model_has() == rest


@pytest.mark.slow
def test_the_totals_of_checkpoints_are_kept_by_0027_and_back(older: Older) -> None:
    stored: list[dict[str, Any]] = [
        {"steps": 1, "edges": {"idle>planning": 1}},
        {},
        {"steps": 1},
        {"other": "x"},
    ]
    apps = older("0026_large_lists")
    branch = new_branch(apps)
    values = {"kind": "step", "step": 0, "phase": "planning"}

    def add(apps: Any, first: int) -> None:
        checkpoints = apps.get_model("sessions_app", "Checkpoint").objects
        for position, totals in enumerate(stored, first):
            checkpoints.create(**values, branch_id=branch.pk, position=position, totals=totals)

    def totals(apps: Any) -> list[dict[str, Any]]:
        rows = apps.get_model("sessions_app", "Checkpoint").objects.order_by("position")
        return list(rows.values_list("totals", flat=True))

    add(apps, 1)
    apps = migrate("0027_totals_without_names")
    assert totals(apps) == stored
    add(apps, 11)
    assert totals(apps) == stored * 2
    assert totals(migrate("0026_large_lists")) == stored * 2
    assert totals(migrate("0027_totals_without_names")) == stored * 2


@pytest.mark.slow
def test_what_calls_hold_is_stored_with_its_row_when_0028_is_undone(older: Older) -> None:
    apps = older("0028_values_of_calls")
    session = apps.get_model("sessions_app", "Session").objects.create(agent="a")
    branches = apps.get_model("sessions_app", "Branch").objects
    old = branches.create(session=session, number=1)
    new = branches.create(session=session, number=2, lineage=[[old.pk, 10]])
    call: dict[str, Any] = {"call_id": "c1", "tool": "look", "arguments": {"q": 1}, "idempotency_key": "k"}
    calls = apps.get_model("sessions_app", "ToolCall").objects
    ordered = {"$type": "ordered", "keys": ["b", "a"], "value": {"a": ["x"], "b": 1}}
    calls.create(**call, branch=old, position=3, result={"text": "first"})
    calls.create(**call, branch=old, position=12, result="not in the new branch")
    calls.create(**call, branch=new, position=12, result=ordered)
    values = apps.get_model("sessions_app", "StateValue").objects
    values.create(branch=new, position=11, key="text", value="text", call_at=3)
    values.create(branch=new, position=14, key="a", value="a", call_at=12)
    values.create(branch=new, position=14, key="whole", value=None, call_at=12)
    values.create(branch=new, position=14, key="own", value={"own": 1})
    messages = apps.get_model("sessions_app", "Message").objects
    messages.create(branch=new, position=13, role="tool", text="", body={"result_of": 12})
    messages.create(branch=new, position=4, role="tool", text="t", body={"content": [{"text": None}]})
    messages.create(branch=new, position=15, role="tool", text="by hand", body={})

    apps = migrate("0027_totals_without_names")
    rows = apps.get_model("sessions_app", "StateValue").objects.values_list("key", "value")
    assert dict(rows) == {"text": "first", "a": ["x"], "whole": ordered, "own": {"own": 1}}
    kept, whole, by_hand = apps.get_model("sessions_app", "Message").objects.order_by("position")
    assert kept.body == {"content": [{"text": None}]}
    origin = {"tool_name": "look", "arguments": {"q": 1}, "id": "c1", "extra": None}
    answer = {"tool_call_result": {"result": None, "origin": origin, "error": False}}
    assert (whole.body, by_hand.body) == ({"content": [answer], "result_of": 12}, {})
