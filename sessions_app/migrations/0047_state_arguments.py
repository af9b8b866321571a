"""What a request for approval shows of the State. Requests of an earlier version show nothing of it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0046_agents_of_workers")]

    operations = [
        migrations.AddField(
            model_name="approval",
            name="from_state",
            field=models.JSONField(
                blank=True,
                help_text="What the tool would be given from the State besides, by the State's key and the argument. "
                "Of a large value the beginning. Empty for a tool that takes nothing from the State.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="approval",
            name="from_state_digests",
            field=models.JSONField(
                blank=True,
                help_text="By argument the State's key, and the digest of the whole value; "
                "an empty digest where the State had none.",
                null=True,
            ),
        ),
    ]
