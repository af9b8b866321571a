"""What every test may use: a database like the real one, throwaway servers, a browser.

A test that asks for a server which is not installed is left out, and listed at the end of the run; with
AGENTSTATE_TEST_REQUIRE_ALL=1 nothing may be left out, for whatever reason.
"""

import gc
import os
import shutil
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone
from pytest_django.plugin import DjangoDbBlocker

from tools import services
from tools.processes import PROJECT

if TYPE_CHECKING:
    from django.test import Client
    from playwright.sync_api import Browser

    from tests.databases import NewDatabases
    from tests.driving import Desk
    from tests.migrating import Older, OlderDatabases

REQUIRE_ALL = os.environ.get("AGENTSTATE_TEST_REQUIRE_ALL") == "1"
MARK_OF_FIXTURE = {"redis_server": "redis", "postgres_server": "postgres", "chromium_path": "browser"}
COMMITTING_FIXTURES = {"transactional_db", "django_db_reset_sequences", "live_server"}
DATABASE_FIXTURES = {"db", "admin_user", "admin_client"} | COMMITTING_FIXTURES

# How long an example takes depends on what else this machine does. A landing is judged by the same examples each time;
# everywhere else new ones are looked for.
hypothesis.settings.register_profile(
    "agentstate", deadline=None, print_blob=True, derandomize=os.environ.get("CI") == "true"
)
hypothesis.settings.load_profile("agentstate")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[services.Redis]:
    """A redis-server of this session, to be stopped, restarted and flushed at will; leave it running."""
    with _or_left_out(), services.running_redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: services.Redis) -> str:
    """The URL of an empty Redis."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[services.Postgres]:
    """A PostgreSQL cluster of this session."""
    with _or_left_out(), services.running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: services.Postgres) -> str:
    """The DATABASE_URL of an empty PostgreSQL database, for processes of one's own."""
    return postgres_server.new_database()


def _postgres_of(request: pytest.FixtureRequest) -> Callable[[], services.Postgres]:
    """Gives the server of the session, which starts when it is asked for."""

    def server() -> services.Postgres:
        started: services.Postgres = request.getfixturevalue("postgres_server")
        return started

    return server


@pytest.fixture(scope="session")
def new_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated_database: Path | None
) -> "NewDatabases":
    """Makes databases with all tables, for connections and processes of one's own."""
    from tests.databases import NewDatabases

    return NewDatabases(tmp_path_factory.mktemp("databases"), migrated_database, _postgres_of(request))


@pytest.fixture(scope="module")
def migrated_postgres_url(postgres_server: services.Postgres, new_database: "NewDatabases") -> str:
    """The DATABASE_URL of a PostgreSQL database of this module with all tables, for connections of one's own."""
    return new_database("postgres")


@pytest.fixture(scope="session")
def older_databases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> "OlderDatabases":
    """Makes databases as they were after any migration."""
    from tests.migrating import OlderDatabases

    return OlderDatabases(tmp_path_factory.mktemp("older"), _postgres_of(request))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def older(
    request: pytest.FixtureRequest, older_databases: "OlderDatabases", django_db_blocker: DjangoDbBlocker
) -> Iterator["Older"]:
    """Lets this thread work on a database without rows, as it was after the migration of that name; returns its models.

    It may be called again, for another one.
    """
    from tests.databases import connected
    from tests.migrating import models_at

    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())

        def begin(name: str) -> Any:
            stack.enter_context(connected(older_databases(request.param, name)))
            return models_at(name)

        yield begin


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The DATABASE_URL of an SQLite file that does not exist yet, for processes of one's own."""
    return f"sqlite:///{tmp_path / 'db.sqlite3'}"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def own_database(
    request: pytest.FixtureRequest, new_database: "NewDatabases", django_db_blocker: DjangoDbBlocker
) -> Iterator[str]:
    """The DATABASE_URL of a database of this module, on which this thread works: no transaction of a test is around its
    commits, and other connections can lock it. To use it, a test unblocks the database.
    """
    from tests.databases import connected

    url = new_database(request.param)
    with django_db_blocker.unblock(), connected(url):
        yield url


@pytest.fixture
def already_migrated(sqlite_url: str, migrated_database: Path | None) -> None:
    """The database at `sqlite_url` is there and empty, for processes whose migrating is not what the test is about."""
    if migrated_database is not None and migrated_database.exists():
        shutil.copyfile(migrated_database, sqlite_url.removeprefix("sqlite:///"))


@pytest.fixture(scope="session")
def chromium_path() -> str:
    with _or_left_out():
        return services.chromium()


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator["Browser"]:
    """A headless Chromium driven by Playwright; make a context of your own in it.

    One for each module: while it is open, the event loop of Playwright runs in this thread, and no other can.
    """
    from playwright.sync_api import sync_playwright

    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright keeps an event loop in this thread, which Django takes for a program that must not block.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        # Chromium's sandbox refuses root, which is what a container usually runs as.
        browser = playwright.chromium.launch(
            executable_path=chromium_path, chromium_sandbox=os.geteuid() != 0
        )
        yield browser
        browser.close()


@pytest.fixture
def no_effects() -> Iterator[None]:
    """What the tools of `tests.sample_agents` record is empty before and after the test."""
    from tests.sample_agents import effects

    effects.clear()
    yield
    effects.clear()


@pytest.fixture(scope="session", autouse=True)
def _compiled_queries_are_what_django_makes_of_them() -> Iterator[None]:
    """A compiled query has the SQL and the parameters that Django makes for it, in whatever test it is called."""
    from tests import compiling

    with compiling.checked():
        yield


@pytest.fixture(scope="session", autouse=True)
def _only_tables_with_rows_are_flushed() -> Iterator[None]:
    """Behind a test that commits. Django flushes all tables, and makes the permissions and roles anew."""
    from tests import flushing

    with flushing.only_tables_with_rows():
        yield


@pytest.fixture(autouse=True)
def _an_estimate_is_kept_for_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one, and for all of it: else the statements of a page depend on when a minute ends."""
    from sessions_app.finding import counting

    counting.estimate.cache_clear()
    monkeypatch.setattr(counting, "time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.fixture(autouse=True)
def _the_search_index_is_flushed_too(
    request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """Its tables are no models: the flush behind a test that commits leaves them to tests with another masking."""
    yield
    marker = request.node.get_closest_marker("django_db")
    commits = marker is not None and bool(marker.kwargs.get("transaction"))
    if not commits and COMMITTING_FIXTURES.isdisjoint(request.fixturenames):
        return
    from sessions_app.finding import search_index, search_masking

    with django_db_blocker.unblock():
        search_index.rebuild()
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM sessions_app_search_mark WHERE name = %s", [search_masking.NAME])


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two answers name the same times. It is noon, so that what was a quarter of an hour ago has today's date at
    whatever hour the tests run."""
    noon = timezone.localtime().replace(hour=12, minute=0, second=0).astimezone(UTC)
    monkeypatch.setattr("django.utils.timezone.now", lambda: noon)


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry of agents is empty, and what this test registers is gone after it.

    A module is imported once in a process: those with the agents of other tests have registered them before.
    """
    from agentstate.durable.registry import registry

    registry.load(["agentstate.demo.agents", "tests.sample_registry"])
    monkeypatch.setattr(registry, "_by_key", {})


@pytest.fixture
def desk(db: None) -> Iterator["Desk"]:
    """A worker's part of the desk, driven in this process."""
    from tests import driving

    with driving.desk() as desk:
        yield desk


@pytest.fixture
def operator(db: None, client: "Client") -> "Client":
    """The web client of the operator anna."""
    from tests import builders

    client.force_login(builders.user("operator", "anna"))
    return client


@pytest.fixture
def supervisor(db: None, client: "Client") -> "Client":
    """The web client of the supervisor sue."""
    from tests import builders

    client.force_login(builders.user("supervisor", "sue"))
    return client


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions for which an action asks for a wake-up, in order."""
    asked: list[str] = []
    monkeypatch.setattr("sessions_app.actions.base.wake", lambda pk: asked.append(str(pk)))
    return asked


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is sent to a worker."""
    monkeypatch.setattr("agentstate.celery.app.send_task", lambda *args: None)


@pytest.fixture(scope="session")
def migrated_database(pytestconfig: pytest.Config) -> Path | None:
    """Where an empty SQLite database lies, or is to lie, that was migrated by the sources as they are now."""
    cache = getattr(pytestconfig, "cache", None)
    if cache is None or "sqlite" not in settings.DATABASES["default"]["ENGINE"]:
        return None
    sources = [PROJECT / "requirements/dev.txt"]
    for folder in ("sessions_app", "agentstate/sqlite"):
        sources += sorted((PROJECT / folder).rglob("*.py"))
    made_from = sha256(f"{sys.version} {sqlite3.sqlite_version}".encode())
    for path in sources:
        made_from.update(f"{path} ".encode() + path.read_bytes())
    return Path(cache.mkdir("migrated")) / f"{made_from.hexdigest()}.sqlite3"


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None,
    tmp_path_factory: pytest.TempPathFactory,
    migrated_database: Path | None,
) -> None:
    """SQLite in a file: in memory, threads would share one connection's locks and nothing would be proven.

    No thread keeps its connection behind a request: a database with open connections could not be removed.
    """
    settings.DATABASES["default"]["CONN_MAX_AGE"] = 0
    if "sqlite" in settings.DATABASES["default"]["ENGINE"]:
        path = tmp_path_factory.mktemp("database") / "test.sqlite3"
        if migrated_database is not None and migrated_database.exists():
            shutil.copyfile(migrated_database, path)
        settings.DATABASES["default"]["TEST"]["NAME"] = str(path)


@pytest.fixture(scope="session")
def django_db_keepdb(migrated_database: Path | None, django_db_keepdb: bool) -> bool:
    """The copy of a migrated database is taken as it is; its folder is removed with the others of the run."""
    return django_db_keepdb or migrated_database is not None


@pytest.fixture(scope="session")
def django_db_setup(
    django_db_setup: None, migrated_database: Path | None, django_db_blocker: DjangoDbBlocker
) -> None:
    """Migrating takes some seconds of each worker: what it made is copied next time, while the sources are the same."""
    if migrated_database is None or migrated_database.exists():
        return
    draft = migrated_database.with_suffix(f".of-{os.getpid()}")
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(draft)])
    for other in set(migrated_database.parent.glob("*.sqlite3")) - {migrated_database}:
        other.unlink(missing_ok=True)
    draft.replace(migrated_database)


@contextmanager
def _or_left_out() -> Iterator[None]:
    try:
        yield
    except services.Missing as missing:
        pytest.skip(str(missing))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database-only",
        action="store_true",
        help="Run only tests that use the database; for another DATABASE_URL.",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for fixture, mark in MARK_OF_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
    if config.getoption("database_only"):
        rest = [item for item in items if not _uses_database(item)]
        items[:] = [item for item in items if _uses_database(item)]
        config.hook.pytest_deselected(items=rest)
    # What takes longest begins first, or one worker would end long after the others: what kills processes, and of the
    # other long tests those that start servers, and those with the fewest cases.
    cases = Counter(_name(item) for item in items)

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        is_long = item.get_closest_marker("long") is not None
        starts_servers = not MARK_OF_FIXTURE.keys().isdisjoint(getattr(item, "fixturenames", ()))
        return (
            item.get_closest_marker("chaos") is None,
            not (is_long and starts_servers),
            cases[_name(item)] if is_long else len(items),
        )

    items.sort(key=place)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """The modules and tests that are there by now stay: the collector need not walk through them again and again.

    It runs less often, too: most of what it walks through is still needed.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _name(item: pytest.Item) -> str:
    """The test, whatever its parameters are."""
    return item.nodeid.partition("[")[0]


def _uses_database(item: pytest.Item) -> bool:
    return bool(
        item.get_closest_marker("django_db") or DATABASE_FIXTURES & set(getattr(item, "fixturenames", ()))
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # What tests log of broken text must get from a worker of xdist to its master.
    report.sections = [(title, text.encode("utf-8", "replace").decode()) for title, text in report.sections]
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"Left out, which AGENTSTATE_TEST_REQUIRE_ALL forbids: {_reason(report)}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        left_out[_reason(report)].append(report.nodeid)
    if left_out:
        terminalreporter.section("LEFT OUT", yellow=True)
    for reason, tests in sorted(left_out.items()):
        terminalreporter.line(f"{len(tests)} {'test' if len(tests) == 1 else 'tests'}: {reason}")
        for test in sorted(tests):
            terminalreporter.line(f"  {test}")
    for report in terminalreporter.getreports(""):
        for name, table in getattr(report, "user_properties", ()):
            if name == "table" and report.when == "teardown":
                terminalreporter.section(report.nodeid)
                for row, number in table.items():
                    terminalreporter.line(f"{number:>8}  {row}")


def _reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")
