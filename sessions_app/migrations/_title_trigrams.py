"""Indexes by which PostgreSQL finds a part of a title or of a customer's name, where the extension pg_trgm is to be had.

Without it the search works too, and reads every session. SQLite always does.
"""

from django.apps.registry import Apps
from django.db import Error, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_INDEXES = {"session_title_trigrams": "title", "session_customer_trigrams": "customer"}
# The statistics target of the indexed values. With the usual 100, PostgreSQL knows too few names to guess how many
# sessions have one: it takes a name that one of forty has for one that next to none has, and reads and sorts all that
# have it. Its ANALYZE samples 300 rows for each, 90,000.
_STATISTICS = 300


def create(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor != "postgresql":
        return
    try:
        with transaction.atomic(using=schema_editor.connection.alias):
            schema_editor.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except Error:  # it is not installed on the server, or this user may not create it
        return
    for name, column in _INDEXES.items():
        # As Django's `icontains` compares.
        schema_editor.execute(
            f"CREATE INDEX {name} ON sessions_app_session USING gin (UPPER({column}::text) gin_trgm_ops)"
        )


def create_of_open(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The customers of the sessions that may have a line in the inbox, of which `finding.inbox_condition` asks."""
    if schema_editor.connection.vendor != "postgresql":
        return
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('session_customer_trigrams') IS NOT NULL")
        [is_to_be_had] = cursor.fetchone()
    if is_to_be_had:
        schema_editor.execute(
            "CREATE INDEX session_customer_open ON sessions_app_session USING gin (UPPER(customer::text) gin_trgm_ops) "
            "WHERE CASE WHEN status IN ('waiting', 'paused', 'running', 'queued') OR failure IS NOT NULL THEN true "
            "ELSE false END"
        )


def drop_of_open(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP INDEX IF EXISTS session_customer_open")


def estimate_well(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Has an effect when PostgreSQL analyzes the table again, which it does by itself when it has changed."""
    _set_statistics(schema_editor, _STATISTICS)


def estimate_as_usual(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    _set_statistics(schema_editor, -1)


def _set_statistics(schema_editor: BaseDatabaseSchemaEditor, number: int) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for name in _INDEXES:
            schema_editor.execute(f"ALTER INDEX IF EXISTS {name} ALTER COLUMN 1 SET STATISTICS {number}")


def drop(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for name in _INDEXES:
            schema_editor.execute(f"DROP INDEX IF EXISTS {name}")
