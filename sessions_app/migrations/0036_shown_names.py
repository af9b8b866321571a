"""People from whom something is hidden find sessions by a table of what they see of titles and customers.

PostgreSQL finds a part of a text in it by the same two indexes as in the sessions themselves (0017, 0034).
"""

import django.db.models.deletion
from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_TABLE = "sessions_app_shownname"
_PAIRS = (
    r"string_to_array(regexp_replace(UPPER({0}::text), '..', '\&' || chr(31), 'g') || chr(31) || "
    r"regexp_replace(substr(UPPER({0}::text), 2), '..', '\&' || chr(31), 'g'), chr(31))"
)


def _create(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    schema_editor.execute("INSERT INTO sessions_app_search_mark VALUES ('branch', 0)")
    if schema_editor.connection.vendor != "postgresql":
        return
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('session_title_trigrams') IS NOT NULL")
        [has_trigrams] = cursor.fetchone()
    for column in ("title", "customer"):
        if has_trigrams:
            name = f"shown_{column}_trigrams"
            schema_editor.execute(f"CREATE INDEX {name} ON {_TABLE} USING gin (UPPER({column}::text) gin_trgm_ops)")
            schema_editor.execute(f"ALTER INDEX {name} ALTER COLUMN 1 SET STATISTICS 300")
        schema_editor.execute(
            f"CREATE INDEX shown_{column}_pairs ON {_TABLE} USING gin (({_PAIRS.format(column)}))", params=None
        )


def _remove_mark(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    schema_editor.execute("DELETE FROM sessions_app_search_mark WHERE name = 'branch'")


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0035_branches_by_status")]

    operations = [
        migrations.CreateModel(
            name="ShownName",
            fields=[
                (
                    "session",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="shown_name",
                        serialize=False,
                        to="sessions_app.session",
                    ),
                ),
                ("title", models.TextField()),
                ("customer", models.TextField()),
            ],
        ),
        migrations.RunPython(_create, _remove_mark),
    ]
