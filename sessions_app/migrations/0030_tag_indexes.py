import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """The sessions of a tag are read from its index; the constraint `tag_once` has one that begins with the session."""

    dependencies = [("sessions_app", "0029_event_session_index")]

    operations = [
        migrations.AddIndex(
            model_name="sessiontag",
            index=models.Index(fields=["name", "session"], name="tag_sessions"),
        ),
        migrations.RemoveIndex(model_name="sessiontag", name="tag_name"),
        migrations.AlterField(
            model_name="sessiontag",
            name="session",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="tags",
                to="sessions_app.session",
            ),
        ),
    ]
