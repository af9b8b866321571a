from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Case, F, Q, When

_INDEX = "session_phase_at_rest"


def _count_together(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The statistics of migration 0034 went with the column."""
    if schema_editor.connection.vendor == "postgresql":
        columns = "status, phase, phase_at_rest"
        schema_editor.execute("DROP STATISTICS IF EXISTS session_states")
        schema_editor.execute(f"CREATE STATISTICS session_states (mcv) ON {columns} FROM sessions_app_session")
        schema_editor.execute("ANALYZE sessions_app_session")


class Migration(migrations.Migration):
    """Sessions that were ended in a phase, or are in one in which hardly any is, are found by an index.

    Both databases write the table of the sessions anew.
    """

    dependencies = [("sessions_app", "0037_causes_of_what_is_shown")]

    operations = [
        migrations.RunPython(migrations.RunPython.noop, _count_together),
        migrations.RemoveIndex(model_name="session", name=_INDEX),
        migrations.RemoveField(model_name="session", name="phase_at_rest"),
        migrations.AddField(
            model_name="session",
            name="phase_at_rest",
            field=models.GeneratedField(
                db_persist=True,
                expression=Case(
                    When(
                        ~Q(status="running") & ~Q(status="idle", phase__in=["done", "error"]),
                        then=F("phase"),
                    )
                ),
                output_field=models.CharField(max_length=12),
            ),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=Q(phase_at_rest__isnull=False),
                fields=["phase_at_rest", "status", "id", "branch", "failure"],
                name=_INDEX,
            ),
        ),
        migrations.RunPython(_count_together, migrations.RunPython.noop),
    ]
