from collections import defaultdict
from typing import Any
from uuid import UUID

import django.db.models.deletion
from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Count

BATCH = 500


def _name_lines(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """All sessions that forks connect get the key of the first one."""
    sessions = apps.get_model("sessions_app", "Session").objects
    forks = sessions.filter(forked_from__isnull=False)
    source_of: dict[UUID, UUID] = dict(forks.values_list("pk", "forked_from__branch__session"))
    lines: dict[UUID, set[UUID]] = defaultdict(set)
    for fork in source_of:
        first = fork
        while first in source_of:
            first = source_of[first]
        lines[first] |= {first, fork}
    for first, members in lines.items():
        sessions.filter(pk__in=members).update(line=first)


def _name_originals(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Calls with the same idempotency key are one call that repairs have copied; the oldest is the original."""
    calls = apps.get_model("sessions_app", "ToolCall").objects
    keys = calls.values("idempotency_key").annotate(number=Count("pk")).filter(number__gt=1)
    rows = calls.filter(idempotency_key__in=keys.values("idempotency_key")).order_by("pk")
    originals: dict[str, Any] = {}
    copies = []
    for call in rows.only("pk", "idempotency_key"):
        original = originals.setdefault(call.idempotency_key, call)
        if original is not call:
            call.copy_of = original
            copies.append(call)
    calls.bulk_update(copies, ["copy_of"], batch_size=BATCH)


def _list_what_requests_showed(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    approvals = apps.get_model("sessions_app", "Approval").objects
    requests = list(approvals.filter(repeats__isnull=False).only("pk", "repeats_id"))
    for approval in requests:
        approval.earlier = [approval.repeats_id]
    approvals.bulk_update(requests, ["earlier"], batch_size=BATCH)


class Migration(migrations.Migration):
    """What a person is shown before a tool takes effect again: the line of forks, copies, and the effects shown."""

    dependencies = [("sessions_app", "0006_demo_users")]

    operations = [
        migrations.AddField(
            model_name="session",
            name="line",
            field=models.UUIDField(
                blank=True,
                editable=False,
                help_text="The first session of its line of forks; empty while it has no fork and is none.",
                null=True,
            ),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=models.Q(("line__isnull", False)), fields=["line"], name="session_line"
            ),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="copy_of",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                help_text="The original, where a repair copied the call: both are the same call.",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="copies",
                to="sessions_app.toolcall",
            ),
        ),
        migrations.AddIndex(
            model_name="toolcall",
            index=models.Index(
                condition=models.Q(("copy_of__isnull", False)), fields=["copy_of"], name="toolcall_copies"
            ),
        ),
        migrations.AddField(
            model_name="approval",
            name="earlier",
            field=models.JSONField(
                blank=True,
                help_text="The keys of the earlier effects of the tool that the request shows, newest first: calls that the history does not show. Empty for none.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="approval",
            name="repeats",
            field=models.ForeignKey(
                blank=True,
                help_text="The newest of `earlier` with the same arguments: it has had its effect already.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="sessions_app.toolcall",
            ),
        ),
        migrations.RunPython(_name_lines, migrations.RunPython.noop),
        migrations.RunPython(_name_originals, migrations.RunPython.noop),
        migrations.RunPython(_list_what_requests_showed, migrations.RunPython.noop),
    ]
