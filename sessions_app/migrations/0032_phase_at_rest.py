from django.db import migrations, models
from django.db.models import Case, F, Q, When


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
    ]
