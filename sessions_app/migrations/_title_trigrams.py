"""Indexes by which PostgreSQL finds a part of a title or of a customer's name, where the extension pg_trgm is to be had.

Without it the search works too, and reads every session. SQLite always does.
"""

from django.apps.registry import Apps
from django.db import Error, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_INDEXES = {"session_title_trigrams": "title", "session_customer_trigrams": "customer"}


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


def drop(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for name in _INDEXES:
            schema_editor.execute(f"DROP INDEX IF EXISTS {name}")
