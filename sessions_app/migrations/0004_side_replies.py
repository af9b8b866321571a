"""Names the replies to side calls as such, and drops the place of a call in its reply, which nothing reads.

The default makes the removal reversible: a row that is there already gets 0.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0003_tool_results")]

    operations = [
        migrations.RenameField("modelcall", "aside", "side_replies"),
        migrations.AlterField("toolcall", "ordinal", models.PositiveIntegerField(default=0)),
        migrations.RemoveField("toolcall", "ordinal"),
        migrations.AlterField(
            "modelcall",
            "seq",
            models.PositiveIntegerField(
                default=0, help_text="Index of this call of the generator within its step, from 0."
            ),
        ),
    ]
