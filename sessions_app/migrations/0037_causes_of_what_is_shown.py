import re
from typing import Any
from uuid import UUID

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import OuterRef, Q, QuerySet, Subquery

from sessions_app.access.masking import Mask
from sessions_app.history.failures import cause_key

BATCH = 500
# What a link has in place of the key of a cause that no session has any more.
NO_CAUSE = UUID(int=0)
_KEY = re.compile(r"(?<=\bfailure=)[0-9a-fA-F-]{32,36}")


def _name_causes_again(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The keys of causes that were made of hidden values are made of what is shown, in sessions and in stored links.

    Does nothing where nothing is hidden.
    """
    if not Mask.configured().hides_anything:
        return
    renamed: dict[UUID, UUID] = {}
    sessions = apps.get_model("sessions_app", "Session").objects
    failed = Q(status="idle", phase="error")
    parked = Q(status="waiting", waiting_for__in=("retries", "changed"))
    events = apps.get_model("sessions_app", "Event").objects.filter(session=OuterRef("pk"), kind="failed")
    rows: QuerySet[Any] = sessions.filter(failed | parked, failure__isnull=False).only(
        "pk", "agent", "status", "why", "error", "failure"
    )
    rows = rows.annotate(event=Subquery(events.order_by("-position").values("data")[:1])).order_by("pk")
    after = UUID(int=0)
    while batch := list(rows.filter(pk__gt=after)[:BATCH]):
        after = batch[-1].pk
        others = []
        for session in batch:
            is_parked = session.status == "waiting"
            data = session.event if isinstance(session.event, dict) and not is_parked else {}
            text = session.why if is_parked else session.error
            key = cause_key(session.agent, str(data.get("tool") or ""), text)
            if key != session.failure:
                renamed[session.failure] = session.failure = key
                others.append(session)
        sessions.bulk_update(others, ["failure"])

    def present(match: re.Match[str]) -> str:
        try:
            key = UUID(match[0])
        except ValueError:
            return match[0]
        key = renamed.get(key, key)
        return str(key if sessions.filter(failure=key).exists() else NO_CAUSE)

    for name in ("SavedView", "BulkAction"):
        links = apps.get_model("sessions_app", name).objects.filter(query__contains="failure=").only("query")
        for link in list(links):
            link.query = _KEY.sub(present, link.query)
            link.save(update_fields=["query"])


class Migration(migrations.Migration):
    """The keys of the causes of failures hold nothing that is hidden."""

    dependencies = [("sessions_app", "0036_shown_names")]

    operations = [
        migrations.RunPython(_name_causes_again, migrations.RunPython.noop, elidable=True),
    ]
