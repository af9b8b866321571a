"""Makes the stored databases of the present version, which later versions have to be able to migrate.

    python -m tests.upgrade.make_dump 0.1 [--into tests/data/upgrade]

This writes `0.1.sqlite.sql`, `0.1.postgresql.sql` and `expected.json`, which says what a reader has to see of them with
every later version. Run it once for a version, at its commit, and never with the code of a later one: the databases
have to be as that version wrote them. Each database is filled by the real engine and the real actions, see
`tests.upgrade.sessions`, in a process of its own, since Django chooses its database when it starts. The PostgreSQL
server is a temporary one.
"""

import argparse
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

from tests.upgrade.differences import differences
from tools import services

Json = Any
PROJECT = Path(__file__).resolve().parent.parent
BEGAN = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
PAST, FUTURE = datetime(2026, 1, 5, 8, 0, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
VENDORS = ("sqlite", "postgresql")

EVENTS = frozenset({
    "approved", "asked", "assigned", "cancelled", "changed", "decided", "expired", "failed", "finished", "forked",
    "gave_up", "in_doubt", "lost", "message", "noted", "paused", "rejected", "released", "repaired", "resumed",
    "retry", "reused", "revealed", "rewound", "started", "stop_requested", "undone", "withdrawn",
})  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", help="of the present code, such as 0.1")
    parser.add_argument("--into", type=Path, default=PROJECT / "tests" / "data" / "upgrade")
    parser.add_argument("--fill", choices=VENDORS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.fill:
        _fill_and_dump(options.fill, options.version, options.into)
        return 0
    expected = options.into / "expected.json"
    if (
        expected.exists()
        and (made_by := json.loads(expected.read_text())["made by"])["agentstate"] != options.version
    ):
        raise SystemExit(f"{expected} is of version {made_by['agentstate']}: name another folder.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _in_its_own_process("sqlite", options.version, folder, f"sqlite:///{folder / 'db.sqlite3'}")
        with services.running_postgres() as server:
            _in_its_own_process("postgresql", options.version, folder, server.new_database())
        one, other = (json.loads((folder / f"{vendor}.json").read_text()) for vendor in VENDORS)
        if one != other:
            raise SystemExit("The two databases differ:\n" + "\n".join(differences(one, other)))
        options.into.mkdir(parents=True, exist_ok=True)
        for vendor in VENDORS:
            name = f"{options.version}.{vendor}.sql"
            (options.into / name).write_text(_checked((folder / name).read_text()))
        expected.write_text(_checked(_readable(one)) + "\n")
    return 0


def _in_its_own_process(vendor: str, version: str, folder: Path, database_url: str) -> None:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": database_url,
        "PYTHONHASHSEED": "0",
    }
    command = [
        sys.executable,
        "-m",
        "tests.upgrade.make_dump",
        version,
        "--into",
        str(folder),
        "--fill",
        vendor,
    ]
    subprocess.run(command, cwd=PROJECT, env=environment, check=True)


def _fill_and_dump(vendor: str, version: str, folder: Path) -> None:
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    settings.AGENTSTATE_AGENTS = ["agentstate.demo.agents", "tests.upgrade.agents"]
    # This is longer than the filling takes, so that a session that is tried again later is not due before its end.
    settings.AGENTSTATE_RETRY_SECONDS = 300.0
    # The demo's tools write down here what they did.
    os.environ["AGENTSTATE_DEMO_DIR"] = str(folder / f"{vendor}-demo")
    os.environ["AGENTSTATE_DEMO_DELAY"] = "0"
    call_command("migrate", verbosity=0, interactive=False)
    _fill()
    _settle_times()
    _check_that_all_is_there()

    from tests.upgrade.acting import act_on_all
    from tests.upgrade.agents import OURS
    from tests.upgrade.reading import definitions, made_with, read_all

    told = {
        "made by": {"agentstate": version, "with": made_with()},
        "definitions": definitions(OURS),
        # This comes before the dump, since it brings the search index up to date, as the sweep does on a desk.
        "seen": read_all(),
    }
    dump = _sqlite_dump() if vendor == "sqlite" else _postgresql_dump()
    (folder / f"{version}.{vendor}.sql").write_text(dump)
    told["ends"] = act_on_all()
    (folder / f"{vendor}.json").write_text(json.dumps(told))


def _fill() -> None:
    from agentstate.demo import seed
    from sessions_app.models import Session
    from sessions_app.runtime.agents import publish_agents
    from tests.upgrade import sessions

    sessions.people()
    publish_agents()
    # Of the demo's sessions only those are made that none of ours resembles.
    demo = [
        seed.conversation,
        seed.approved_refund,
        seed.letter_in_doubt,
        seed.refund_to_approve,
        seed.rush_hour,
    ]
    with mock.patch.object(seed, "SCENES", [*demo, seed.research]):
        seed.seed()
    for make in sessions.CONDITIONS:
        make()
    titles = list(Session.objects.values_list("title", flat=True))
    assert len(titles) == len(set(titles)), "sessions are told apart by their titles"


def _settle_times() -> None:
    """Move all times, so that no later check depends on when it runs.

    The first session begins at `BEGAN`. What was due or had lapsed did so at `PAST`; what is not due or has not lapsed
    yet will be so only at `FUTURE`.
    """
    from django.db import models
    from django.db.models import F

    from sessions_app.models import Approval, Branch, Session, Status, ToolResult

    now = datetime.now(UTC)
    began = Session.objects.order_by("created_at").values_list("created_at", flat=True)[0]
    late = list(
        Session.objects.filter(status=Status.QUEUED, next_run_at__gt=now).values_list("pk", flat=True)
    )
    gone = list(Session.objects.filter(lease_expires_at__lt=now).values_list("pk", flat=True))
    lapsed = list(Approval.objects.filter(expires_at__lt=now).values_list("pk", flat=True))
    for model in _models():
        times = [field.name for field in model._meta.fields if isinstance(field, models.DateTimeField)]
        if times:
            model._default_manager.update(**{name: F(name) - (began - BEGAN) for name in times})
    for branch in Branch.objects.exclude(left_state=None):
        left: dict[str, Any] = branch.left_state or {}
        since = datetime.fromisoformat(left["phase_since"])
        branch.left_state = left | {"phase_since": (since - (began - BEGAN)).isoformat()}
        branch.save(update_fields=["left_state"])

    Session.objects.filter(status=Status.RUNNING).update(lease_expires_at=FUTURE)
    Session.objects.filter(pk__in=gone).update(lease_expires_at=PAST)
    Session.objects.filter(pk__in=late).update(next_run_at=FUTURE)
    Approval.objects.filter(decision="").exclude(expires_at=None).update(expires_at=FUTURE)
    Approval.objects.filter(pk__in=lapsed, decision="").update(expires_at=PAST)
    # A sweep deletes results that have lapsed. This one stands for those that no sweep has deleted yet.
    ToolResult.objects.update(expires_at=FUTURE)
    ToolResult.objects.create(key="tool:cache:look:past", value={"result": "look:past"}, expires_at=PAST)


def _models() -> list[Any]:
    from django.apps import apps
    from django.db.migrations.recorder import MigrationRecorder

    labels = ("sessions_app", "auth")
    found = [model for label in labels for model in apps.get_app_config(label).get_models()]
    return [*found, MigrationRecorder.Migration]


def _check_that_all_is_there() -> None:
    """Check that each condition was made.

    :raises AssertionError: naming a value that no row has.
    """
    from sessions_app import models
    from sessions_app.action_list import ACTIONS

    session, approval, item = models.Session, models.Approval, models.BulkItem
    checkpoint, call = models.Checkpoint, models.ToolCall
    wanted: list[tuple[Any, str, set[str]]] = [
        (session, "status", set(models.Status.values)),
        (session, "phase", set(models.Phase.values)),
        (session, "waiting_for", {"", *models.WaitingFor.values}),
        (session, "stop_request", {"", *models.StopRequest.values}),
        (call, "status", set(models.CallStatus.values)),
        (checkpoint, "kind", set(checkpoint.Kind.values)),
        (approval, "decision", {"", *approval.Decision.values}),
        (models.BulkAction, "kind", {action.key for action in ACTIONS.values() if action.bulk}),
        (item, "outcome", set(item.Outcome.values)),
        (models.Event, "kind", set(EVENTS)),
        (models.Message, "role", set(models.Message.Role.values)),
    ]
    for model, field, values in wanted:
        found = set(model._default_manager.order_by().values_list(field, flat=True))
        assert found == values, f"{model.__name__}.{field}: {values ^ found}"
    at_least: list[tuple[Any, dict[str, Any]]] = [
        (session, {"forked_from__isnull": False}),
        (session, {"inbox__isnull": False}),
        (session, {"assignee__isnull": False}),
        (session, {"tags__isnull": False}),
        (approval, {"edited__isnull": False}),
        (approval, {"repeats__isnull": False, "decision": ""}),
        (approval, {"repeats__isnull": False, "decision": "approved"}),
        (approval, {"decision": "", "expires_at": PAST}),
        (approval, {"decision": "", "expires_at": FUTURE}),
        (call, {"lossy": True}),
        (call, {"cached": True}),
        (call, {"sent__isnull": False}),
        (call, {"state__isnull": False}),
        (call, {"attempt__gt": 1}),
        (checkpoint, {"context__isnull": False}),
        (checkpoint, {"outcome__isnull": False}),
        (models.StateValue, {"extends": True}),
        (models.ModelCall, {"side_replies__isnull": False}),
        (models.ModelCall, {"error__gt": ""}),
        (models.Message, {"author__gt": ""}),
        (models.Branch, {"undo_to__isnull": False}),
        (models.Branch, {"left_state__isnull": False}),
        (models.Allowance, {}),
        (models.SavedView, {"shared": True}),
        (models.SavedView, {"shared": False}),
        (models.ToolResult, {"expires_at": FUTURE}),
        (models.Worker, {"stopped_at": None}),
        (models.Worker, {"stopped_at__isnull": False}),
        (models.RegisteredAgent, {"problem__gt": ""}),
        (models.Event, {"actor": None, "actor_name": "former"}),
    ]
    for model, having in at_least:
        assert model._default_manager.filter(**having).exists(), f"no {model.__name__} with {having}"
    repairs = models.Event.objects.filter(kind="repaired").values_list("data__what", flat=True)
    assert set(repairs) == {"state", "message", "call", "step"}


def _sqlite_dump() -> str:
    from django.db import connection

    connection.ensure_connection()
    held: sqlite3.Connection = connection.connection
    held.row_factory = None
    return "\n".join(_sqlite_statements(held)) + "\n"


def _sqlite_statements(held: sqlite3.Connection) -> Iterator[str]:
    """Do what `Connection.iterdump` does, which fails on the virtual tables of the search index."""
    schema: list[tuple[str, str, str]] = held.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY name"
    ).fetchall()
    tables = {name: sql for kind, name, sql in schema if kind == "table"}
    virtual = {name for name, sql in tables.items() if sql.startswith("CREATE VIRTUAL")}
    # A virtual table keeps its rows in tables that it makes itself, with some rows in them.
    shadows = {name for name in tables if name not in virtual and name.rpartition("_")[0] in virtual}
    yield "PRAGMA foreign_keys=OFF;"
    yield "BEGIN;"
    for name in sorted(tables.keys() - shadows):
        yield f"{tables[name]};"
    for name in [*sorted(tables.keys() - virtual), "sqlite_sequence"]:
        if name not in tables or name in shadows:
            yield f'DELETE FROM "{name}";'
        columns = [row[1] for row in held.execute(f'PRAGMA table_info("{name}")')]
        quoted = " || ',' || ".join(f'quote("{column}")' for column in columns)
        for (values,) in held.execute(f'SELECT {quoted} FROM "{name}"'):
            yield f'INSERT INTO "{name}" VALUES({values});'
    for kind, _, sql in schema:
        if kind != "table":
            yield f"{sql};"
    yield "COMMIT;"


def _postgresql_dump() -> str:
    """The statements of pg_dump, without its settings and without commands that only psql understands."""
    program = services.postgres_program("pg_dump")
    options = ["--no-owner", "--no-privileges", "--no-comments", "--inserts", "--rows-per-insert=1000"]
    done = subprocess.run(
        [program, *options, os.environ["DATABASE_URL"]], capture_output=True, text=True, check=True
    )
    # The settings stand before the first table. Newer versions write a command for psql at the end.
    text = done.stdout[done.stdout.index("\nCREATE TABLE ") + 1 :]
    text = re.sub(r"\n\\unrestrict .*", "", text)
    return re.sub(r"(?m)^--\n-- .*\n--\n\n", "", text).strip() + "\n"


def _readable(value: Json, indent: str = "") -> str:
    """JSON in which each value that fits on one line stands on one line, so that it is short and can be reviewed."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if len(indent) + len(text) <= 120 or not isinstance(value, dict | list):
        return text
    inner = indent + " "
    if isinstance(value, list):
        items = [_readable(item, inner) for item in value]
        return f"[\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}]"
    items = [
        f"{json.dumps(key, ensure_ascii=False)}: {_readable(value[key], inner)}" for key in sorted(value)
    ]
    return f"{{\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}}}"


def _checked(text: str) -> str:
    """:raises AssertionError: if the text tells of the machine on which it was made."""
    ours = {str(PROJECT), str(Path.home()), tempfile.gettempdir() + "/", socket.gethostname(), "127.0.0.1"}
    told = [each for each in sorted(ours) if len(each) > 2 and each in text]
    assert not told, f"This would be stored with the database: {told}"
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
