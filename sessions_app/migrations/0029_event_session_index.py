import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """The constraint `event_position_once` has an index that begins with the session."""

    dependencies = [("sessions_app", "0028_values_of_calls")]

    operations = [
        migrations.AlterField(
            model_name="event",
            name="session",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="events",
                to="sessions_app.session",
            ),
        ),
    ]
