"""On PostgreSQL a quoted phrase is looked up by marks of its words, so the sweep adds everything to the search again.

Until it has, older messages and calls are not found. `manage.py update_search` does it at once.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_TABLES = ("sessions_app_message_words", "sessions_app_call_words")


def _forwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor != "postgresql":
        return
    schema_editor.execute("TRUNCATE sessions_app_message_words, sessions_app_call_words")
    for table in _TABLES:
        schema_editor.execute(f"ALTER TABLE {table} ADD COLUMN marks smallint[] NOT NULL")
        schema_editor.execute(f"CREATE INDEX {table}_marks ON {table} USING gin (marks)")
    schema_editor.execute("UPDATE sessions_app_search_mark SET upto = 0 WHERE name IN ('message', 'toolcall')")
    # The sweep stores the masking with which it begins again.
    schema_editor.execute("DELETE FROM sessions_app_search_mark WHERE name = 'masking'")


def _backwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for table in _TABLES:
            schema_editor.execute(f"ALTER TABLE {table} DROP COLUMN marks")


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0032_phase_at_rest")]

    operations = [migrations.RunPython(_forwards, _backwards)]
