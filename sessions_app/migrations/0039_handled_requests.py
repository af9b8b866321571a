import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0038_phase_of_ended")]

    operations = [
        migrations.CreateModel(
            name="HandledRequest",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                (
                    "digest",
                    models.CharField(
                        help_text="Of all that was asked: it tells a repetition from misuse.", max_length=64
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="sessions_app.session",
                    ),
                ),
            ],
        ),
        migrations.AlterField(
            model_name="session",
            name="line",
            field=models.UUIDField(
                blank=True,
                editable=False,
                help_text="The oldest of the sessions that forks connect, directly or through others; empty without a fork.",
                null=True,
            ),
        ),
    ]
