"""Recomputes the stored keys of causes: those that were made with different masking may contain what is hidden now.

Called by a migration and by `manage.py rebuild_search`. May be interrupted, and called again.
"""

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Q, QuerySet, Subquery

from sessions_app.history.failures import cause_key

BATCH = 500
# What a link has in place of the key of a cause that no session has any more.
NO_CAUSE = UUID(int=0)
_KEY = re.compile(r"(?<=\bfailure=)[0-9a-fA-F-]{32,36}")


def name_causes_again(model: Callable[[str], Any]) -> None:
    """In all sessions, and in the links of saved views and bulk actions. The sessions do not count as changed.

    :param model: Gives a model of the app by its name; a migration has models of its own.
    """
    renamed: dict[UUID, UUID] = {}
    sessions = model("Session").objects
    failed = Q(status="idle", phase="error")
    retries = Q(status="waiting", waiting_for__in=("retries", "changed"))
    # As `newest_failure`; an event need not name its branch.
    on_branch = Q(branch=OuterRef("branch")) | Q(branch__isnull=True)
    events = model("Event").objects.filter(on_branch, session=OuterRef("pk"), kind="failed")
    rows: QuerySet[Any] = sessions.filter(failed | retries, failure__isnull=False).only(
        "pk", "agent", "status", "waiting_for", "why", "error", "failure"
    )
    rows = rows.annotate(event=Subquery(events.order_by("-position").values("data")[:1])).order_by("pk")
    after = UUID(int=0)
    while batch := list(rows.filter(pk__gt=after)[:BATCH]):
        after = batch[-1].pk
        for session in batch:
            waits = session.status == "waiting"
            data = session.event if isinstance(session.event, dict) and not waits else {}
            text = session.why if waits else session.error
            changed = waits and session.waiting_for == "changed"
            key = cause_key(session.agent, str(data.get("tool") or ""), text, changed=changed)
            # Unless it has gone on, or has failed for another cause, meanwhile.
            if key != session.failure and sessions.filter(pk=session.pk, failure=session.failure).update(
                failure=key
            ):
                renamed[session.failure] = key

    def present(match: re.Match[str]) -> str:
        try:
            key = UUID(match[0])
        except ValueError:
            return match[0]
        key = renamed.get(key, key)
        return str(key if sessions.filter(failure=key).exists() else NO_CAUSE)

    for name in ("SavedView", "BulkAction"):
        links = model(name).objects
        for pk, query in list(links.filter(query__contains="failure=").values_list("pk", "query")):
            links.filter(pk=pk, query=query).update(query=_KEY.sub(present, query))
