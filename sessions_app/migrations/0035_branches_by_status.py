from django.db import migrations, models


class Migration(migrations.Migration):
    """The index by which sessions of one status are listed has their branches, so that the inbox reads no session to see
    which calls in doubt are of those that changed lately."""

    dependencies = [("sessions_app", "0034_session_states")]

    operations = [
        migrations.RemoveIndex(model_name="session", name="session_status_recent"),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                fields=["status", "-updated_at", "-id", "branch"], name="session_status_recent"
            ),
        ),
    ]
