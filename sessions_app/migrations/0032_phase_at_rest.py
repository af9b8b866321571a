from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Case, F, Q, When


def analyze(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Of a new column and a new index PostgreSQL knows nothing until the table is analyzed, and a table that is written
    anew does not count as changed.
    """
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("ANALYZE sessions_app_session")


class Migration(migrations.Migration):
    """The inbox of sessions in one phase reads these by an index. Both databases write the table of the sessions anew."""

    dependencies = [("sessions_app", "0031_open_customers")]

    operations = [
        migrations.AddField(
            model_name="session",
            name="phase_at_rest",
            field=models.GeneratedField(
                db_persist=True,
                expression=Case(When(Q(status__in=["waiting", "paused", "queued"]), then=F("phase"))),
                output_field=models.CharField(max_length=12),
            ),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=Q(phase_at_rest__isnull=False),
                fields=["phase_at_rest", "status"],
                name="session_phase_at_rest",
            ),
        ),
        migrations.RunPython(analyze, migrations.RunPython.noop),
    ]
