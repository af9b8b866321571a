"""Indexes by which PostgreSQL looks for words in the newest messages and calls (`sessions_app.finding.search_words`).

They are small: of each range of pages they have the first and the last key.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_INDEXES = {
    "message_words_by_age": "sessions_app_message_words",
    "call_words_by_age": "sessions_app_call_words",
}


def _create(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for name, table in _INDEXES.items():
            schema_editor.execute(f"CREATE INDEX {name} ON {table} USING brin (rowid) WITH (autosummarize = on)")


def _drop(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"DROP INDEX {', '.join(_INDEXES)}")


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0041_spaces_of_titles")]

    operations = [migrations.RunPython(_create, _drop)]
