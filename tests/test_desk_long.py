"""A session of 10,000 steps: each of its pages costs the queries of one of ten steps, and shows as little at once."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from sessions_app.models import Checkpoint, Message, ModelCall, Session, ToolCall
from tests import builders

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

TABS = ("", "conversation/", "state/", "checkpoints/", "audit/", "json/", "rewind/", "fork/", "live/")


def session_of(steps: int) -> Session:
    """The rows of one step, so many times."""
    history = builders.asked()
    before = history.session.position
    history.lookup()
    period = history.session.position - before
    for model in (ModelCall, Message, ToolCall, Checkpoint):
        rows = list(model._default_manager.filter(branch=history.branch, position__gt=before))
        copies: list[Any] = []
        for number in range(1, steps):
            for row in rows:
                fields = {f.attname: getattr(row, f.attname) for f in row._meta.concrete_fields}
                fields |= {"id": None, "position": row.position + number * period}
                if isinstance(row, ToolCall):
                    fields |= {"call_id": f"{row.call_id}-{number}", "idempotency_key": f"key-{number}"}
                if isinstance(row, Checkpoint):
                    fields |= {"step": row.step + number}
                copies.append(model(**fields))
        model._default_manager.bulk_create(copies, batch_size=1000)
    history.session.position += (steps - 1) * period
    return history.rest("paused")


def test_every_page_costs_the_same_queries_for_10_and_for_10_000_steps(client: Client) -> None:
    client.force_login(builders.user("supervisor"))
    short, long = session_of(10), session_of(10_000)
    assert Checkpoint.objects.filter(branch=long.branch).count() == 10_001
    for tab in TABS:
        cost, size = [], []
        for session in (short, long):
            with CaptureQueriesContext(
                connection,
            ) as queries:
                answer = client.get(f"/sessions/{session.pk}/{tab}")
            assert answer.status_code == 200
            cost.append(len(queries))
            size.append(len(answer.content))
        assert cost[0] == cost[1], (
            f"{tab or 'timeline'}: {cost[0]} queries for 10 steps, {cost[1]} for 10,000"
        )
        # 100 steps, or as many of whatever the page shows, at once; never all of them.
        assert size[1] < 20 * size[0], f"{tab or 'timeline'}: {size[1]} bytes"
