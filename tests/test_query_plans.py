"""What PostgreSQL reads for a page of the desk does not grow with the number of sessions, nor with a session's length.

Each query of a page is run again under EXPLAIN ANALYZE on a database in which the tables are large: a prepared one as
such, so that the plan is the one that serves all values. On a copy of it there are more sessions in each state that a
queue, a count or a filter is about than a page may read rows: one that reads all of them fails.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Q
from django.test import Client
from django.utils import timezone

from agentstate.domain.words import words_of
from benchmarks.page_list import polled_address, since
from benchmarks.session_pages import TABS
from sessions_app import actions, models
from sessions_app.access.masking import Mask
from sessions_app.admin.base import UncountedPaginator
from sessions_app.desk.pages.session import samples
from sessions_app.finding import (
    causes,
    counting,
    hits,
    inbox,
    inbox_condition,
    inbox_rows,
    newest,
    search,
    search_masking,
    search_sessions,
    search_tables,
    search_words,
    shown_names,
)
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.inbox_rows import KINDS
from sessions_app.finding.inbox_states import Condition
from sessions_app.finding.queues import PAGE_OF_FOUND, QUEUES, select
from sessions_app.finding.search_words import call_text
from sessions_app.history.log import PageRequest, Place, read_pages
from sessions_app.management import synth
from sessions_app.mirror.sessions import TOGETHER
from sessions_app.models import Checkpoint, Message, Session, SessionTag, Status, ToolCall, WaitingFor
from sessions_app.runtime import recovery
from tests import builders, crowd
from tests.databases import NewDatabases, connected
from tools.services import Postgres

pytestmark = pytest.mark.slow

SESSIONS = 6_000
STEPS = 12_000
# A page shows at most 100 rows, and reads a few rows for each. Of 51 failed sessions, one in twenty of all, 1,020.
MOST_ROWS = 1_500
# So many rows all parts of a statement may look at together.
MOST_IN_ALL = 8_000
# Of the history of a session that was rewound, which has more rows of each kind.
MOST_OF_REWOUND = 600
# A search looks at the newest 300 messages that match, and at the session of each.
MOST_FOUND = 1_500
SESSIONS_TABLE = Session._meta.db_table
# Those whose rows grow with the sessions or with their steps.
LARGE = {
    model._meta.db_table
    for model in (
        models.Approval,
        models.Branch,
        models.BulkItem,
        models.Checkpoint,
        models.Event,
        models.MemoryEntry,
        models.Message,
        models.ModelCall,
        models.Session,
        models.SessionTag,
        models.ShownName,
        models.StateValue,
        models.ToolCall,
    )
} | {search_words.MESSAGES, search_words.CALLS}


def large_tables(*written: str) -> None:
    """PostgreSQL knows what is in the tables, or in those that were written, and reads them as from a disk without
    moving heads.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM ANALYZE {', '.join(written)}")
        # The server is this test's own.
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        cursor.execute(f"ALTER DATABASE {name} SET random_page_cost = 1.1")
    # For the next connection. To a database that is copied nobody is connected.
    connection.close()


@contextmanager
def only_rows_are_written() -> Iterator[None]:
    """The indexes are made behind the rows, and no reference is checked: both would take longer than the rows do.

    Of the triggers only those of the tags run.
    """
    with connection.cursor() as cursor:
        for table, trigger in (
            (SESSIONS_TABLE, "session_tag_names"),
            (models.SessionTag._meta.db_table, "tag_of_session"),
        ):
            cursor.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}")
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'sessions_app_%%' AND indexname NOT IN "
            "(SELECT conname FROM pg_constraint) AND tablename <> %s",
            # The triggers look tags up.
            [models.SessionTag._meta.db_table],
        )
        indexes = dict(cursor.fetchall())
        cursor.execute(f"DROP INDEX {', '.join(map(connection.ops.quote_name, indexes))}")
        yield
        for definition in indexes.values():
            cursor.execute(definition)
        cursor.execute("SET session_replication_role = origin")


@pytest.fixture(scope="session")
def large_database(new_database: NewDatabases, django_db_blocker: Any) -> str:
    """With a session of many steps, among many sessions. It is made once for all parts of this module that a worker of
    xdist takes over.
    """
    url = new_database("postgres")
    with django_db_blocker.unblock(), connected(url):
        builders.agent()
        anna, robin = builders.user("supervisor", "anna"), builders.user("operator", "robin")
        with only_rows_are_written():
            synth.write(sessions=SESSIONS, steps=STEPS, seed=1, now=timezone.now())
            with connection.cursor() as cursor:
                # The words of messages, faster than the sweep adds them.
                cursor.execute("SELECT id, text FROM sessions_app_message WHERE role <> 'tool'")
                docs = [(key, words_of(text)) for key, text in cursor.fetchall()]
            index = search_tables.Postgres()
            index.add(Message, 0, 0, index.prepared(docs), index.prepared([]))
            mask = Mask.configured()
            texts = [(call.pk, words_of(call_text(call, mask))) for call in ToolCall.objects.iterator()]
            index.add(ToolCall, 0, 0, index.prepared(texts), index.prepared([]))
        search_masking.store()
        # What is assigned to a person does not grow with the data.
        keys = [*Session.objects.order_by("pk").values_list("pk", flat=True)]
        Session.objects.filter(pk__in=keys[::600]).update(assignee=anna)
        Session.objects.filter(pk__in=keys[1::200]).update(assignee=robin)
        large_tables()
    return url


@pytest.fixture(scope="module")
def long_session(large_database: str, django_db_blocker: Any) -> Iterator[Session]:
    """Most of a module works on the large database."""
    with django_db_blocker.unblock(), connected(large_database):
        yield Session.objects.latest("position")


def client_of_anna() -> Client:
    client = Client()
    client.force_login(User.objects.get(username="anna"))
    return client


@pytest.fixture
def desk(long_session: Session, django_db_blocker: Any) -> Iterator[Client]:
    with django_db_blocker.unblock():
        yield client_of_anna()


@pytest.fixture(scope="session")
def crowded(large_database: str, postgres_server: Postgres, django_db_blocker: Any) -> str:
    """A copy of the database, with `crowd.COPIES` more sessions in each state."""
    with django_db_blocker.unblock():
        connection.close()
        url = postgres_server.new_database(large_database)
        with connected(url):
            crowd.write(User.objects.get(username="anna"))
            large_tables(*crowd.TABLES)
    return url


@pytest.fixture
def crowded_desk(crowded: str, django_db_blocker: Any) -> Iterator[Client]:
    with django_db_blocker.unblock(), connected(crowded):
        # What is expected of the other database says nothing of this one.
        counting.estimate.cache_clear()
        yield client_of_anna()
    counting.estimate.cache_clear()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All parts of the plan; of indexes whose entries are compared with each other, the one with the fewest. PostgreSQL
    reads more entries of another one only where that costs less than the rows of this one, so it is bounded by these.
    """
    yield plan
    children = plan.get("Plans", [])
    if plan["Node Type"] == "BitmapAnd":
        children = [min(children, key=rows_read)]
    for child in children:
        yield from nodes(child)


def rows_read(node: dict[str, Any]) -> float:
    """The rows that a node of a plan looked at, in all its loops."""
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return float((node["Actual Rows"] + removed) * node["Actual Loops"])


@dataclass(frozen=True, slots=True)
class Query:
    """
    sql: bytes for a statement that is prepared, whose plan is made without its values.
    """

    sql: str | bytes
    values: Any

    @property
    def text(self) -> str:
        return self.sql.decode() if isinstance(self.sql, bytes) else self.sql

    def reads(self) -> bool:
        return self.text.lstrip().startswith(("SELECT", "WITH"))

    def plan(self, *, run: bool = True) -> dict[str, Any]:
        """What PostgreSQL did for the query, when it is run again.

        :param run: If not, what it would do if it read a table as a whole only where no index serves.
        """
        explain = "EXPLAIN (ANALYZE, FORMAT JSON) " if run else "EXPLAIN (FORMAT JSON) "
        execute = self.text
        with connection.cursor() as cursor, ExitStack() as after:
            if not run:
                # Where one of the tables of a join is small here, PostgreSQL would read all of it.
                after.enter_context(never("seqscan", "hashjoin", "mergejoin"))
            if isinstance(self.sql, bytes):
                cursor.execute(f"PREPARE plan_of AS {self.text}")
                places = ", ".join(["%s"] * len(self.values))
                execute = f"EXECUTE plan_of({places})" if places else "EXECUTE plan_of"
            cursor.execute(explain + execute, self.values)
            answer = cursor.fetchone()[0]
            if isinstance(self.sql, bytes):
                cursor.execute("DEALLOCATE plan_of")
        plan: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
        return plan


@contextmanager
def never(*ways: str) -> Iterator[None]:
    """PostgreSQL reads and joins tables in one of these ways only where there is no other."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(f"current_setting('enable_{way}')" for way in ways))
        before = cursor.fetchone()
        for way in ways:
            cursor.execute(f"SET enable_{way} = off")
        try:
            yield
        finally:
            for way, setting in zip(ways, before, strict=True):
                cursor.execute(f"SET enable_{way} = {setting}")


@contextmanager
def undone(*tables: str) -> Iterator[None]:
    """What is written inside is undone, and leaves no dead rows in the tables nor statistics of them, by which the
    plans of other tests would depend on the order of the tests.
    """
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
    with connection.cursor() as cursor:
        for table in tables:
            # In a table that has grown, rows are read in other ways.
            cursor.execute(f"VACUUM FULL {table}")
            cursor.execute(f"VACUUM ANALYZE {table}")


@contextmanager
def captured() -> Iterator[list[Query]]:
    queries: list[Query] = []

    def note(execute: Any, sql: str | bytes, values: Any, many: bool, context: Any) -> Any:
        queries.append(Query(sql, values))
        return execute(sql, values, many, context)

    with connection.execute_wrapper(note):
        yield queries


def without_index(query: Query) -> set[str]:
    """The large tables that the query can only read as a whole: row by row, or by an index of all rows, whose first
    column is compared with nothing, to its last entry.
    """
    found = set()
    for node, ends_early in _nodes_of_tables(query.plan(run=False)):
        if node["Node Type"] == "Seq Scan":
            found.add(node["Relation Name"])
        elif "Index Name" in node and not ends_early:
            table, first_column, is_whole = _index(node["Index Name"])
            condition = node.get("Index Cond", "")
            if is_whole and not (condition and re.search(rf"(?<!\w){re.escape(first_column)}", condition)):
                found.add(table)
    return found & LARGE


def _nodes_of_tables(plan: dict[str, Any], ends_early: bool = False) -> Iterator[tuple[dict[str, Any], bool]]:
    """Each node, and whether a limit may end it early."""
    yield plan, ends_early
    sorts = plan["Node Type"] in (
        "Sort",
        "Aggregate",
        "Hash",
        "WindowAgg",
        "Bitmap Heap Scan",
        "Incremental Sort",
    )
    for child in plan.get("Plans", ()):
        yield from _nodes_of_tables(child, (ends_early and not sorts) or plan["Node Type"] == "Limit")


@cache
def _index(name: str) -> tuple[str, str, bool]:
    """Its table, the first of its columns if they have an order, and whether it has all rows."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indrelid::regclass::text,"
            " CASE amname WHEN 'btree' THEN pg_get_indexdef(indexrelid, 1, false) ELSE '' END, indpred IS NULL"
            " FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam"
            " WHERE indexrelid = %s::regclass",
            [name],
        )
        row: tuple[str, str, bool] = cursor.fetchone()
        return row


def wasteful(queries: list[Query], most: int = MOST_ROWS) -> list[str]:
    """The queries that looked at more rows than a page can need, or that no index serves."""
    found = []
    for query in filter(Query.reads, queries):
        plan = query.plan()
        worst = max(nodes(plan), key=rows_read)
        found += [f"no index of {table}: {query.text[:1500]}" for table in without_index(query)]
        if rows_read(worst) > most:
            found.append(f"{worst['Node Type']}, {rows_read(worst):.0f} rows: {query.text[:1500]}")
        in_all = sum(rows_read(node) for node in nodes(plan) if "Relation Name" in node)
        if in_all > MOST_IN_ALL:
            found.append(f"{in_all:.0f} rows in all: {query.text[:1500]}")
    return found


def one_filter() -> list[str]:
    """Each value of each field that filters lists, as a part of an address."""
    fields: Any = SessionFilter.base_fields
    values = {name: [value for value, _ in fields[name].choices] for name in ("status", "phase", "since")}
    values |= {"assignee": ["me", "nobody", "robin"], "agent": ["claims"], "tag": ["vip"]}
    values["customer"] = ["Lindqvist"]
    return [f"{name}={value}" for name, each in values.items() for value in each if value]


QUEUE_ADDRESSES = [f"/?queue={queue.key}" for queue in QUEUES]
INBOX_ADDRESSES = ["/inbox/", *(f"/inbox/?kind={kind}" for kind in KINDS)]
LISTS_BY_ONE = [f"/?queue=all&{each}" for each in one_filter()]
LISTS_BY_QUERY = [f"queue={queue}&agent=claims" for queue in ("waiting", "failed", "paused", "done")]
# No index has the phase of most sessions: a test of its own has it.
LISTS_BY_ONE.remove("/?queue=all&phase=done")
INBOXES_BY_ONE = [f"/inbox/?{each}" for each in one_filter()]
OTHER_PAGES = ["/workers/", "/agents/", "/agents/claims/", "/views/", "/bulk/actions/", "/start/"]


def answer_of(client: Client, address: str) -> str:
    """The page, on which all fields of the filter are valid ones: others are left out, so that all would be listed."""
    answer = client.get(address)
    assert answer.status_code == 200
    page = answer.content.decode()
    assert "errorlist" not in page
    return page


@pytest.mark.parametrize(
    "address",
    [
        *QUEUE_ADDRESSES,
        *INBOX_ADDRESSES,
        *LISTS_BY_ONE,
        *INBOXES_BY_ONE,
        *OTHER_PAGES,
        "/inbox/?kind=failed&agent=claims",
        "/inbox/?assignee=nobody&since=30d",
        "/inbox/?tag=vip&since=30d",
        "/inbox/?phase=executing&tag=vip",
        "/inbox/?phase=error&tag=vip",
        "/inbox/?agent=letters&tag=vip",
        "/inbox/?tag=vip&since=7d",
        "/?queue=all&customer=zq",
        "/?queue=waiting&tag=vip",
        "/?queue=failed&agent=claims",
        "/?queue=failed&status=idle&phase=planning",
        "/?queue=all&status=cancelled&phase=executing",
        "/?queue=all&phase=error&tag=vip",
        "/?queue=all&phase=planning&assignee=nobody",
        "/?queue=all&agent=letters&tag=vip",
        "/?queue=all&tag=vip&since=7d",
        "/?queue=all&since=7d&order=oldest",
        "/?queue=done&since=7d&order=oldest",
        "/?queue=all&tag=vip&since=7d&order=oldest",
        "/?queue=done&agent=letters&since=7d&order=oldest",
        "/?queue=done&agent=letters&tag=vip",
        "/?queue=done&phase=done&tag=vip",
        "/?queue=paused&agent=letters&phase=planning",
        "/bulk/?queue=paused",
        "/bulk/?queue=failed&tag=vip",
    ],
)
@pytest.mark.usefixtures("few_are_near")
def test_a_list_reads_no_more_rows_than_it_needs_among_many_sessions(desk: Client, address: str) -> None:
    with captured() as queries:
        answer_of(desk, address)
    assert wasteful(queries) == []


# Of those that are stuck all are read and put in order: an index in the order of their list has all that run.
ALL_STUCK = crowd.COPIES * 5 // 4


# Not the inbox by a filter, nor lists by a phase: PostgreSQL is right to read these tables as a whole where each state
# has a twelfth of all sessions.
@pytest.mark.parametrize(
    "address, most",
    [
        *((address, MOST_ROWS) for address in QUEUE_ADDRESSES if "stuck" not in address),
        ("/?queue=stuck", ALL_STUCK),
        *((address, MOST_ROWS) for address in (*INBOX_ADDRESSES, *OTHER_PAGES)),
        *((address, MOST_ROWS) for address in LISTS_BY_ONE if "status=" in address or "since=" in address),
    ],
)
@pytest.mark.usefixtures("few_are_near")
def test_a_queue_and_a_count_read_no_more_rows_where_many_sessions_are_in_each_state(
    crowded_desk: Client, address: str, most: int
) -> None:
    with captured() as queries:
        answer_of(crowded_desk, address)
    assert wasteful(queries, most) == []


@pytest.mark.parametrize("address", ["/inbox/", *QUEUE_ADDRESSES])
def test_the_poll_of_an_open_queue_reads_no_more_rows_where_many_sessions_are_in_it(
    crowded_desk: Client, address: str
) -> None:
    poll = polled_address(crowded_desk, address, "/")
    with captured() as queries:
        assert crowded_desk.get(poll, headers={"HX-Request": "true"}).status_code in (200, 204)
    assert queries
    assert wasteful(queries, ALL_STUCK if "stuck" in address else MOST_ROWS) == []


@pytest.mark.parametrize(
    "address", ["session/", "session/?q=01", "session/?status=waiting", "toolcall/", "event/"]
)
def test_a_list_of_the_admin_reads_no_more_rows_than_it_counts(
    desk: Client, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(UncountedPaginator, "MOST", MOST_ROWS // 2)
    with captured() as queries:
        assert desk.get(f"/admin/sessions_app/{address}").status_code == 200
    assert wasteful(queries) == []


@pytest.mark.usefixtures("few_are_near")
def test_of_the_phase_that_most_sessions_are_in_and_no_index_has_few_are_read(desk: Client) -> None:
    with captured() as queries:
        answer_of(desk, "/?queue=all&phase=done")
    plans = [query.plan() for query in queries if query.reads()]
    assert max(rows_read(node) for plan in plans for node in nodes(plan)) <= MOST_ROWS


PARTS = [
    *TABS,
    "?phase=reflecting",
    "?edge=reflecting-planning",
    "resume/",
    "rewind/",
    "fork/",
    "undo/",
    "find/?q=nothinglikethis",
    "message/",
    "cancel/",
    "pause/",
    "breakpoint/",
    "note/",
    "assign/",
]


@pytest.mark.parametrize("part", PARTS)
def test_a_page_of_a_session_reads_no_more_rows_than_it_needs_in_a_long_history(
    desk: Client, long_session: Session, part: str
) -> None:
    with captured() as queries:
        assert desk.get(f"/sessions/{long_session.pk}/{part}").status_code == 200
    assert any(isinstance(query.sql, bytes) for query in queries)
    assert wasteful(queries) == []


@pytest.fixture(scope="session")
def rewound_session(large_database: str, django_db_blocker: Any) -> Session:
    """A session of fewer steps, which are still many, with forks and a branch that it has left."""
    here: Any
    with django_db_blocker.unblock(), connected(large_database):
        long_session, session = Session.objects.order_by("-position")[:2]
        ended = session.current_branch.checkpoints.filter(kind="step").order_by("-position")
        here = {"session_id": session.pk, "reason": "once more"}
        actions.rewind(actor=builders.SYSTEM, checkpoint_id=ended[1].pk, **here)
        for checkpoint in ended[1:40]:
            actions.fork(actor=builders.SYSTEM, checkpoint_id=checkpoint.pk, **here)
        # A small table would be read as a whole.
        models.MemoryEntry.objects.bulk_create(
            models.MemoryEntry(
                session=long_session, agent="claims", customer="Ada", text="Likes tea", key=f"{number}"
            )
            for number in range(4_000)
        )
        large_tables()
    return session


# To find a text, all of a history of that length may be read.
@pytest.mark.parametrize(
    "part",
    [*(part for part in PARTS if not part.startswith("find/")), "branches/1/", "earlier/?before=3000"],
)
def test_a_page_of_a_session_that_was_rewound_and_forked_reads_no_more_rows(
    rewound_session: Session, desk: Client, part: str
) -> None:
    with captured() as queries:
        assert desk.get(f"/sessions/{rewound_session.pk}/{part}").status_code == 200
    # Of a table as small as that of memories here, PostgreSQL may read all where it is to ask many calls.
    found = [each for each in wasteful(queries, MOST_OF_REWOUND) if "of sessions_app_memoryentry" not in each]
    assert found == []


def test_a_search_does_not_compare_sessions_that_forks_connect_with_each_other(
    rewound_session: Session, desk: Client
) -> None:
    assert Session.objects.filter(line=rewound_session.pk).count() == 40
    with captured() as queries:
        assert desk.get("/?queue=all&q=Lindqvist").status_code == 200
    removed = [
        node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"]
        for query in queries
        if query.reads()
        for node in nodes(query.plan())
    ]
    assert max(removed) <= MOST_FOUND


@pytest.mark.parametrize("form", ["decide/", "resume/"])
def test_what_a_tool_returned_before_is_not_looked_for_among_all_its_calls(
    desk: Client, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 200 sessions are so large a part of all here that PostgreSQL may read all.
    monkeypatch.setattr(samples, "RECENT", 10)
    call = ToolCall.objects.filter(status="doubt").latest("pk")
    with captured() as queries:
        answer_of(desk, f"/sessions/{call.branch.session_id}/{form}?call={call.pk}")
    assert wasteful(queries) == []


def test_the_numbers_of_saved_views_read_no_more_rows_than_each_view_shows(desk: Client) -> None:
    anna = User.objects.get(username="anna")
    views = [models.SavedView(owner=anna, name=query, query=query) for query in LISTS_BY_QUERY]
    models.SavedView.objects.bulk_create(views)
    try:
        with captured() as queries:
            answer = desk.get("/views/numbers/?queue=all", headers={"HX-Request": "true"})
    finally:
        models.SavedView.objects.filter(owner=anna).delete()
    assert answer.content.count(b'class="num"') == len(views)
    assert wasteful(queries) == []


@pytest.mark.parametrize(
    "address, news",
    [("/inbox/", False), ("/?queue=all", False), ("/?queue=all", True), ("/?queue=running", True)],
)
def test_the_poll_of_an_open_list_reads_no_more_rows_than_it_needs(
    desk: Client, address: str, news: bool
) -> None:
    poll = polled_address(desk, address, "/")
    with undone(SESSIONS_TABLE):
        if news:
            shown = Session.objects.filter(status="running") if "running" in address else Session.objects
            changed = shown.latest("updated_at")
            Session.objects.filter(pk=changed.pk).update(title="It has changed", updated_at=timezone.now())
        with captured() as queries:
            answer = desk.get(poll, headers={"HX-Request": "true"})
            # A minute that ends is news, too: less time is left to decide.
            assert answer.status_code in ((200,) if news else (200, 204))
        found = wasteful(queries)
    assert queries
    assert found == []


@pytest.mark.parametrize("steps", [0, 1, 20])
def test_the_open_page_of_a_session_reads_no_more_rows_than_it_needs_for_its_news(
    desk: Client, long_session: Session, steps: int
) -> None:
    page = f"/sessions/{long_session.pk}/"
    tick = polled_address(desk, page, f"{page}live/")
    assert len(re.findall("(after|from|shown)=", tick)) == 3
    with captured() as queries:
        asked = since(tick, long_session, steps) if steps else tick
        answer = desk.get(asked, headers={"HX-Request": "true"})
    assert answer.status_code == (200 if steps else 204)
    assert wasteful(queries) == []


def test_a_sweep_reads_what_is_lost_and_due_among_many_sessions(
    long_session: Session, django_db_blocker: Any
) -> None:
    with django_db_blocker.unblock(), undone(SESSIONS_TABLE):
        at_rest = [*Session.objects.filter(status="idle").order_by("pk").values_list("pk", flat=True)[:60]]
        past = timezone.now() - timedelta(minutes=1)
        Session.objects.filter(status__in=("queued", "running")).update(
            status="idle", next_run_at=None, lease_expires_at=None
        )
        # Of neither may all be read.
        others = Session.objects.filter(status="idle").exclude(pk__in=at_rest)
        keys, later = [*others.values_list("pk", flat=True)], timezone.now() + timedelta(days=1)
        running, queued = keys[: MOST_ROWS + 100], keys[-MOST_ROWS - 100 :]
        Session.objects.filter(pk__in=running).update(status="running", lease_expires_at=later)
        Session.objects.filter(pk__in=queued).update(
            status="queued", lease_expires_at=None, next_run_at=later
        )
        Session.objects.filter(pk__in=at_rest[:20]).update(status="running", lease_expires_at=past)
        Session.objects.filter(pk__in=at_rest[20:]).update(status="queued", next_run_at=past)
        with captured() as queries:
            assert set(recovery.sweep(timezone.now())) >= {*at_rest}
        found = wasteful(queries)
    assert found == []


def test_what_the_mirror_reads_of_sessions_is_what_is_new(
    long_session: Session, django_db_blocker: Any
) -> None:
    with django_db_blocker.unblock():
        others = Session.objects.filter(position__gte=12, branch__isnull=False).select_related("branch")
        wanted = [
            PageRequest(session, Place(session.position - 6), session.position - 12)
            for session in (long_session, *others.order_by("pk")[: TOGETHER - 1])
        ]
        with captured() as queries:
            pages = read_pages(wanted)
        assert all(page.messages for page in pages)
        assert wasteful(queries) == []


def test_the_search_looks_for_calls_that_have_ended_among_the_open_ones_only(
    long_session: Session, django_db_blocker: Any
) -> None:
    with django_db_blocker.unblock():
        with captured() as queries:
            search_tables.Postgres().ended_calls()
        assert wasteful(queries) == []


def test_the_search_looks_at_no_other_calls_where_many_are_open(
    long_session: Session, django_db_blocker: Any
) -> None:
    calls = ToolCall._meta.db_table
    with django_db_blocker.unblock(), undone(search_words.CALLS, calls):
        newest_keys = [*ToolCall.objects.order_by("-pk").values_list("pk", flat=True)[:1_000]]
        ToolCall.objects.filter(pk__in=newest_keys).update(status="planned", ended_at=None)
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {search_words.CALLS} SET ended = false WHERE rowid = ANY(%s)", [newest_keys]
            )
            cursor.execute(f"ANALYZE {search_words.CALLS}, {calls}")
        with captured() as queries:
            assert search_tables.Postgres().ended_calls() == []
        assert wasteful(queries) == []


def test_the_few_members_of_a_large_cause_that_meet_a_filter_are_found_without_the_others(
    long_session: Session, django_db_blocker: Any
) -> None:
    cause = uuid4()
    failed = {"failure": cause, "status": "idle", "phase": "error", "waiting_for": "", "next_run_at": None}
    with django_db_blocker.unblock(), undone(SESSIONS_TABLE):
        ended = Session.objects.filter(phase="done", failure=None)
        few = [*ended.filter(agent="letters").values_list("pk", flat=True)[:20]]
        others = [*ended.exclude(agent="letters").values_list("pk", flat=True)[:3_000]]
        assert len(others) == 3_000
        Session.objects.filter(pk__in=[*few, *others]).update(**failed)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE sessions_app_session")
        with captured() as queries:
            found = causes.read_causes(Condition.of(Q(agent="letters")), kinds=("failed",))["failed"]
        assert [each.number.number for each in found if each.key == cause] == [20]
        assert wasteful(queries) == []


@pytest.fixture
def few_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of the newest rows are read first, so that what is read beyond them shows."""
    monkeypatch.setattr(newest, "NEAR_SESSIONS", 300)
    monkeypatch.setattr(newest, "WIDE_SESSIONS", 1_000)
    monkeypatch.setattr(newest, "WALKED_SESSIONS", 500)
    monkeypatch.setattr(newest, "WALKED_WITH_FACETS", 150)
    monkeypatch.setattr(newest, "MOST_WALKED_WITH_FACETS", 1_000)
    # So few keys as this database is small: of all sessions of an agent that may have a line PostgreSQL would read the
    # whole table, and not look up each.
    monkeypatch.setattr(inbox_condition, "MOST_KEYS", 150)
    monkeypatch.setattr(inbox_condition, "MOST_KEYS_OF_MANY", 50)
    monkeypatch.setattr(inbox_condition, "MOST_SOME", 1_500)
    monkeypatch.setattr(search_words, "NEAR_ROWS", 300)
    monkeypatch.setattr(search_words, "WIDE_ROWS", 1_000)


# Of each filter PostgreSQL expects that as many of the sessions which meet it meet the other, too. None does.
@pytest.mark.usefixtures("few_are_near")
@pytest.mark.parametrize(
    "address, others",
    [
        ("/?queue=all&tag=vip&agent=claims", Q(agent="claims")),
        ("/?queue=done&tag=vip", Q(phase="done")),
        ("/?queue=done&tag=vip&order=oldest", Q(phase="done")),
    ],
)
def test_filters_that_are_never_met_together_are_not_asked_of_all_sessions(
    desk: Client, address: str, others: Q
) -> None:
    tagged = SessionTag.objects.filter(name="vip")
    with undone(SessionTag._meta.db_table, SESSIONS_TABLE):
        tagged.filter(session__in=Session.objects.filter(others)).delete()
        spread = Session.objects.exclude(others).filter(tags=None).order_by("pk")
        SessionTag.objects.bulk_create([SessionTag(session=each, name="vip") for each in spread[:3_000]])
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE sessions_app_sessiontag, sessions_app_session")
        with captured() as queries:
            assert desk.get(address).status_code == 200
        found = wasteful(queries)
    assert found == []


@pytest.fixture
def as_in_larger_tables(long_session: Session) -> Iterator[None]:
    """For some hundred hits PostgreSQL would read all of 6,000 sessions."""
    with never("seqscan"):
        yield


@pytest.mark.usefixtures("few_are_near", "as_in_larger_tables")
@pytest.mark.parametrize("words", ["nothinglikethis", "Lindqvist", "Greta Lindqvist"])
def test_a_search_for_a_rare_word_or_a_name_reads_no_more_rows_than_it_needs(
    desk: Client, words: str
) -> None:
    with captured() as queries:
        assert desk.get("/", {"q": words}).status_code == 200
    assert wasteful(queries, most=MOST_FOUND) == []


@pytest.mark.usefixtures("few_are_near", "as_in_larger_tables")
def test_a_search_for_the_beginning_of_each_id_reads_the_newest_sessions_only(desk: Client) -> None:
    with captured() as queries:
        assert desk.get("/", {"q": "01"}).status_code == 200
    # The words are looked for in the newest messages and calls of the sessions that are shown. The part of the query
    # that looks at older sessions is not run, whichever index would list them all.
    found = wasteful(queries, most=hits.NEAR * PAGE_OF_FOUND)
    assert [why for why in found if not why.startswith("no index of sessions_app_session:")] == []


@pytest.mark.usefixtures("few_are_near", "as_in_larger_tables")
@pytest.mark.parametrize(
    "address",
    [
        "/?queue=done&q=deductible",
        "/?queue=failed&q=deductible",
        "/?queue=paused&q=deductible",
        "/?queue=stuck&q=deductible",
        "/?queue=all&q=deductible&tag=vip",
        "/?queue=all&q=deductible&since=30d",
        "/?queue=waiting&q=deductible&agent=claims",
        "/inbox/?q=deductible",
        "/inbox/?q=deductible&tag=vip",
    ],
)
def test_a_search_in_a_list_reads_a_part_of_its_first_sessions_however_long_these_are(
    desk: Client, long_session: Session, address: str
) -> None:
    assert long_session.position > 4 * search_sessions.MOST_POSITIONS
    with captured() as queries:
        answer_of(desk, address)
    assert any("segment.after" in query.text for query in queries)
    assert wasteful(queries, most=search_sessions.MOST_POSITIONS) == []


@pytest.fixture
def viewer(long_session: Session, django_db_blocker: Any, settings: Any) -> Iterator[Client]:
    """A person from whom something is hidden. They find by what they are shown."""
    settings.AGENTSTATE_MASK_KEYS = ["iban"]
    with django_db_blocker.unblock(), undone(models.ShownName._meta.db_table):
        search_masking.store()
        while shown_names.add(2_000, late=0):
            pass
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE sessions_app_shownname")
            for name in ("title_trigrams", "title_pairs", "customer_trigrams", "customer_pairs"):
                # As by a vacuum: what is pending makes an index look expensive.
                cursor.execute(f"SELECT gin_clean_pending_list('shown_{name}')")
        client = Client()
        client.force_login(builders.user("viewer", "vera"))
        yield client


@pytest.mark.usefixtures("few_are_near", "as_in_larger_tables")
@pytest.mark.parametrize(
    "address",
    [
        "/?q=nothinglikethis",
        "/?q=zq",
        "/?queue=all&customer=nobodyslikethis",
        "/?queue=all&customer=zq",
        "/?queue=all&customer=Lindqvist",
    ],
)
def test_what_somebody_finds_from_whom_something_is_hidden_reads_no_more_rows_than_it_needs(
    viewer: Client, address: str
) -> None:
    with captured() as queries:
        assert viewer.get(address).status_code == 200
    assert any("shown" in query.text for query in queries)
    assert wasteful(queries, most=MOST_FOUND) == []


# The words of each are frequent. PostgreSQL takes it for granted that they are as frequent where the others are.
@pytest.mark.usefixtures("few_are_near")
@pytest.mark.parametrize("text", ["hello damage", "became status", '"policy the"', '"status of claim"', "zq"])
def test_words_that_never_stand_together_are_not_looked_for_in_all_messages_or_titles(
    desk: Client, text: str
) -> None:
    with captured() as queries:
        answer = desk.get("/", {"q": text}).content.decode()
    assert "No session" in answer
    assert wasteful(queries, most=MOST_FOUND) == []


@pytest.mark.usefixtures("few_are_near", "as_in_larger_tables")
@pytest.mark.parametrize("person", ["desk", "viewer"])
def test_titles_with_the_words_of_a_phrase_in_another_order_are_not_read(
    person: str, request: pytest.FixtureRequest
) -> None:
    client = request.getfixturevalue(person)
    with captured() as queries:
        assert "No session" in client.get("/", {"q": '"policy the"'}).content.decode()
    with_both = Session.objects.filter(title__icontains="policy").filter(title__icontains=" the")
    assert with_both.count() > newest.NEAR_SESSIONS + 100
    of_names = SESSIONS_TABLE if person == "desk" else models.ShownName._meta.db_table
    plans = [query.plan() for query in queries if "LIKE" in query.text]
    titles = [node for plan in plans for node in nodes(plan) if node.get("Relation Name") == of_names]
    assert titles
    assert max(map(rows_read, titles)) <= newest.NEAR_SESSIONS


def test_a_part_of_a_name_is_looked_up_among_the_sessions_that_may_be_in_the_inbox(desk: Client) -> None:
    with captured() as queries:
        assert desk.get("/inbox/", {"customer": "Lindqvist"}).status_code == 200
    plans = [query.plan() for query in queries if "LIKE" in query.text and "EXPLAIN" not in query.text]
    assert plans
    for plan in plans:
        assert {node["Index Name"] for node in nodes(plan) if "Index Name" in node} == {
            "session_customer_open"
        }


@pytest.mark.usefixtures("desk")
def test_the_call_of_a_request_is_read_only_where_its_session_meets_the_condition() -> None:
    condition = Condition.of(Q(agent="never registered"))
    with captured() as queries:
        found = inbox.read_page(timezone.now(), kinds=("approval",), condition=condition)
    assert not found.entries
    [query] = queries
    loops = {"sessions_app_approval": 0, "sessions_app_toolcall": 0}
    for node in nodes(query.plan()):
        if node.get("Relation Name") in loops:
            loops[node["Relation Name"]] += node["Actual Loops"]
    assert loops == {"sessions_app_approval": 1, "sessions_app_toolcall": 0}
    # In larger tables PostgreSQL takes the index of branches, if it may, and reads the call to look its branch up.
    assert re.search(r'CASE WHEN \(?\w+\."branch_id" = \(SELECT', query.text)
    assert inbox.read_page(timezone.now(), kinds=("approval",)).entries


@pytest.mark.usefixtures("long_session")
def test_the_sessions_of_a_very_common_word_are_found_without_reading_all_messages_that_contain_it(
    django_db_blocker: Any,
) -> None:
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM sessions_app_message_words WHERE words @@ 'policy'")
            assert cursor.fetchone()[0] > 20_000
        with captured() as queries:
            keys, more = search.newest_sessions("policy", whole=True)
        assert keys
        assert more
        plan = queries[0].plan()
    words = [node for node in nodes(plan) if node.get("Relation Name") == "sessions_app_message_words"]
    assert words
    assert max(map(rows_read, words)) <= MOST_FOUND


@pytest.mark.usefixtures("long_session")
def test_what_an_index_finds_has_more_memory_and_nothing_behind_it_has(django_db_blocker: Any) -> None:
    memory = ("SELECT current_setting('work_mem')", ())
    nothing = ("SELECT '' WHERE false", ())
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(*newest.near_or_all(nothing, memory, 1))
        assert cursor.fetchall() == [("32MB",)]
        cursor.execute(*memory)
        assert cursor.fetchall() == [("4MB",)]
        cursor.execute(*newest.near_or_all(memory, nothing, 1))
        assert cursor.fetchall() == [("4MB",)]
        cursor.execute("SET work_mem = '2MB'")
        try:
            cursor.execute(*newest.near_or_all(nothing, memory, 1))
            assert cursor.fetchall() == [("2MB",)]
        finally:
            cursor.execute("RESET work_mem")


def test_the_rows_are_there(long_session: Session, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock():
        assert Session.objects.filter(forked_from=None).count() == SESSIONS
        assert Checkpoint.objects.filter(branch__session=long_session).count() > STEPS


@pytest.mark.usefixtures("crowded_desk")
def test_there_are_more_sessions_in_each_state_than_a_page_may_read() -> None:
    now = timezone.now()
    numbers = {
        **{queue.key: select(queue.key, now, None).count() for queue in QUEUES},
        **{status: Session.objects.filter(status=status).count() for status in Status.values},
        "approval": inbox_rows.open_approvals(now).count(),
        "doubt": inbox_rows.calls_in_doubt().count(),
        "changed": Session.objects.filter(waiting_for=WaitingFor.CHANGED, failure__isnull=False).count(),
        "lost": Session.objects.lost(now).count(),
        "due": Session.objects.due(now).count(),
    }
    assert [name for name, number in numbers.items() if number <= MOST_ROWS] == []
