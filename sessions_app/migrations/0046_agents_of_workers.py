"""When a worker last said that it has an agent, and what the agent is in it.

Workers of an earlier version say nothing: what they have counts as an agent that no worker has.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0045_room_for_updates")]

    operations = [
        migrations.AddField(
            model_name="agentdefinition",
            name="beat_at",
            field=models.DateTimeField(
                blank=True, help_text="When a worker last said that it has this agent.", null=True
            ),
        ),
    ]
