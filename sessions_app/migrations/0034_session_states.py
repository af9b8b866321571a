"""How PostgreSQL finds the lines of the inbox for sessions in one phase, and short texts in titles and names.

The indexes of sessions at rest, of open requests and of calls in doubt have all that is asked of them, so that nothing
else is read. And it counts how often each status and phase occur together: by itself it takes them for independent of each other, and
expected 18 sessions that are paused while they plan where there were 10,581.

A text of two characters, or of other characters than the locale of the database knows, is found by the pairs of
characters in a title or a name (`sessions_app.finding.pairs`).
"""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Q

_INDEX = "session_phase_at_rest"


_PAIRS = (
    r"string_to_array(regexp_replace(UPPER({0}::text), '..', '\&' || chr(31), 'g') || chr(31) || "
    r"regexp_replace(substr(UPPER({0}::text), 2), '..', '\&' || chr(31), 'g'), chr(31))"
)


def _add_pairs(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for column in ("title", "customer"):
            schema_editor.execute(
                f"CREATE INDEX session_{column}_pairs ON sessions_app_session USING gin (({_PAIRS.format(column)}))",
                params=None,
            )


def _drop_pairs(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP INDEX session_title_pairs, session_customer_pairs")


def _count_together(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        columns = "status, phase, phase_at_rest"
        schema_editor.execute(f"CREATE STATISTICS session_states (mcv) ON {columns} FROM sessions_app_session")
        schema_editor.execute("ANALYZE sessions_app_session")


def _count_each(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP STATISTICS session_states")


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0033_marks_of_pairs")]

    operations = [
        migrations.RemoveIndex(model_name="session", name=_INDEX),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=Q(phase_at_rest__isnull=False),
                fields=["phase_at_rest", "status", "id", "branch", "failure"],
                name=_INDEX,
            ),
        ),
        migrations.RunPython(_add_pairs, _drop_pairs),
        migrations.RunPython(_count_together, _count_each),
        migrations.RemoveIndex(model_name="toolcall", name="toolcall_doubt"),
        migrations.AddIndex(
            model_name="toolcall",
            index=models.Index(
                condition=Q(status="doubt"), fields=["started_at", "id", "branch"], name="toolcall_doubt"
            ),
        ),
        migrations.RemoveIndex(model_name="approval", name="approval_open"),
        migrations.AddIndex(
            model_name="approval",
            index=models.Index(
                condition=Q(decision=""),
                fields=["asked_at", "id", "session", "call", "expires_at"],
                name="approval_open",
            ),
        ),
    ]
