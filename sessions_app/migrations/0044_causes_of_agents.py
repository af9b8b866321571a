from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0043_pending_entries")]

    operations = [
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                fields=["agent", "failure", "updated_at", "id"],
                condition=models.Q(failure__isnull=False),
                name="session_agent_failure",
            ),
        ),
    ]
