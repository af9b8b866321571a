from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("sessions_app", "0007_earlier_effects"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="session",
            options={
                "ordering": ["-created_at"],
                "permissions": [
                    ("start_session", "Can start a session"),
                    ("message_session", "Can send a message to the agent"),
                    ("pause_session", "Can pause a session"),
                    ("resume_session", "Can resume a session"),
                    ("cancel_session", "Can cancel a session"),
                    ("rewind_session", "Can rewind a session and undo it"),
                    ("fork_session", "Can fork a session"),
                    ("approve_call", "Can approve or reject a tool call"),
                    ("decide_call", "Can decide a tool call in doubt"),
                    ("assign_session", "Can assign a session"),
                    ("share_view", "Can share a saved view"),
                    ("repair_session", "Can repair a session's state"),
                    ("reveal_values", "Can see masked values"),
                ],
            },
        ),
    ]
