from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Exists, OuterRef, Subquery


def mark_first_messages(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """What a session was started with is the customer's, whoever of the staff typed it in."""
    Message = apps.get_model("sessions_app", "Message")
    Event = apps.get_model("sessions_app", "Event")
    of_user = Message.objects.filter(role="user", branch=OuterRef("branch")).order_by("position")
    started = Event.objects.filter(branch=OuterRef("branch"), kind="started", actor_name=OuterRef("author"))
    first = Message.objects.filter(
        Exists(started), role="user", position=Subquery(of_user.values("position")[:1])
    )
    first.exclude(author="").update(from_customer=True)


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0024_failed_sessions")]

    operations = [
        migrations.AddField(
            model_name="inboxmessage",
            name="from_customer",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="The customer's words, which the author typed in.",
            ),
        ),
        migrations.AddField(
            model_name="message",
            name="from_customer",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="The customer's words, which the author typed in.",
            ),
        ),
        migrations.AlterField(
            model_name="message",
            name="author",
            field=models.CharField(
                blank=True,
                default="",
                help_text="The person who typed it in, if one of the staff did.",
                max_length=150,
            ),
        ),
        migrations.RunPython(mark_first_messages, migrations.RunPython.noop),
    ]
