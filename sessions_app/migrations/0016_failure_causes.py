from typing import Any

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import OuterRef, Q, QuerySet, Subquery

from sessions_app.history.failures import cause_key

BATCH = 500


def _name_causes(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The sessions that failed or were parked before this version get the keys of their causes."""
    sessions = apps.get_model("sessions_app", "Session").objects
    failed = Q(status="idle", phase="error")
    parked = Q(status="waiting", waiting_for__in=("retries", "changed"))
    events = apps.get_model("sessions_app", "Event").objects.filter(session=OuterRef("pk"), kind="failed")
    rows: QuerySet[Any] = sessions.filter(failed | parked, failure=None).only(
        "pk", "agent", "status", "why", "error"
    )
    rows = rows.annotate(event=Subquery(events.order_by("-position").values("data")[:1]))
    while batch := list(rows.order_by("pk")[:BATCH]):
        for session in batch:
            is_parked = session.status == "waiting"
            data = session.event if isinstance(session.event, dict) and not is_parked else {}
            text = session.why if is_parked else session.error
            session.failure = cause_key(session.agent, str(data.get("tool") or ""), text)
        sessions.bulk_update(batch, ["failure"])


class Migration(migrations.Migration):
    """The cause of each failure, so that like failures are found together, and the worker that started each call."""

    dependencies = [("sessions_app", "0015_long_term_memory")]

    operations = [
        migrations.AddField(
            model_name="session",
            name="failure",
            field=models.UUIDField(
                blank=True,
                editable=False,
                help_text="Names the cause why it failed or was parked: the same for all sessions with that cause.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="worker",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The worker that started it last.",
                max_length=200,
            ),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=models.Q(("failure__isnull", False)),
                fields=["failure", "updated_at", "id"],
                name="session_failure",
            ),
        ),
        migrations.AddIndex(
            model_name="toolcall",
            index=models.Index(
                condition=models.Q(("status", "doubt")), fields=["started_at", "id"], name="toolcall_doubt"
            ),
        ),
        migrations.RunPython(_name_causes, migrations.RunPython.noop, elidable=True),
    ]
