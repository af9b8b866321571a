"""Indexes by which PostgreSQL finds a text of several words in the titles of sessions (`sessions_app.finding.pairs`).

They have the characters around spaces. The trigrams do not say in which order the words of a title are. Entries are
not kept in a list of pending ones (`fastupdate`): with some megabytes of these PostgreSQL prefers the trigrams.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_AROUND_SPACES = (
    r"string_to_array(regexp_replace(UPPER(title::text), ' *[^ ]*([^ ] +[^ ])', '\1' || chr(31), 'g'), chr(31))"
)
_INDEXES = {"session_title_spaces": "sessions_app_session", "shown_title_spaces": "sessions_app_shownname"}


def _create(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for name, table in _INDEXES.items():
            sql = f"CREATE INDEX {name} ON {table} USING gin (({_AROUND_SPACES})) WITH (fastupdate = off)"
            schema_editor.execute(sql, params=None)


def _drop(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"DROP INDEX {', '.join(_INDEXES)}")


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0040_session_facets")]

    operations = [migrations.RunPython(_create, _drop)]
