"""Takes the agents' instructions out of the search: by their words, each session of an agent was found.

A row of SQLite's table can only be deleted by who knows its words: there, all messages are added again by the sweep.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_POSTGRES = [
    """
    DELETE FROM sessions_app_message_words indexed USING sessions_app_message message
    WHERE message.role = 'system' AND message.author = '' AND abs(indexed.rowid) = message.id
    """,
]
_SQLITE = [
    "INSERT INTO sessions_app_message_words (sessions_app_message_words) VALUES ('delete-all')",
    "UPDATE sessions_app_search_mark SET upto = 0 WHERE name = 'message'",
]


def _forwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for statement in {"postgresql": _POSTGRES, "sqlite": _SQLITE}[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0021_filter_by_people")]

    operations = [migrations.RunPython(_forwards, migrations.RunPython.noop)]
