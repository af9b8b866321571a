"""An action writes of a locked session what it has changed, and nothing else."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import JSONField
from django.db.models.signals import post_save
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.actions.base import lock
from sessions_app.models import Session
from tests import builders

pytestmark = pytest.mark.django_db

VALUES: dict[str, Any] = {
    "title": "another",
    "assignee_id": None,
    "why": "for a reason",
    "epoch": 7,
    "next_run_at": timezone.now() + timedelta(days=1),
    "attempt": 3,
    "line": None,
    "totals": {"steps": 5},
    "breakpoint_hit": {"passed": True},
    "inputs": {"state": {"a": 1}},
}


def row_of(session: Session) -> dict[str, Any]:
    return dict(Session.objects.filter(pk=session.pk).values().get())


@pytest.mark.parametrize("name", VALUES)
def test_what_has_changed_is_written(name: str) -> None:
    session = builders.queued()
    before = row_of(session)
    with transaction.atomic():
        locked = lock(session.pk)
        setattr(locked, name, VALUES[name])
        locked.save_changes()
    assert row_of(session) == before | {name: VALUES[name]}


def test_json_that_was_changed_in_place_is_written() -> None:
    session = builders.paused()
    with transaction.atomic():
        locked = lock(session.pk)
        locked.totals["steps"] = 99
        locked.save_changes()
    assert row_of(session)["totals"]["steps"] == 99


def test_what_has_not_changed_is_not_written() -> None:
    session = builders.paused(title="A", customer="B")
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        locked = lock(session.pk)
        Session.objects.filter(pk=session.pk).update(customer="C")
        locked.title = "D"
        locked.save_changes()
        locked.error = "E"
        locked.save_changes()
    assert (row_of(session)["title"], row_of(session)["customer"], row_of(session)["error"]) == (
        "D",
        "C",
        "E",
    )
    [update] = [query["sql"] for query in queries if '"title" = ' in query["sql"]]
    assert '"customer"' not in update


def test_a_new_row_is_inserted_whole_and_its_later_changes_are_written() -> None:
    session = Session(agent="claims", title="new", totals={"steps": 1})
    session.save_changes()
    assert row_of(session)["title"] == "new"
    session.customer = "B"
    session.save_changes()
    assert (row_of(session)["title"], row_of(session)["customer"]) == ("new", "B")


def test_what_is_written_is_told_of_as_of_any_row_that_is_saved() -> None:
    told: list[tuple[Any, ...]] = []

    def listen(instance: Any, created: bool, update_fields: Any, using: str, **others: Any) -> None:
        told.append((instance, created, update_fields, using, others["raw"]))

    session = builders.paused()
    post_save.connect(listen, sender=Session)
    try:
        with transaction.atomic():
            locked = lock(session.pk)
            locked.title = "another"
            locked.save_changes()
        new = Session(agent="claims", title="new")
        new.save_changes()
    finally:
        post_save.disconnect(listen, sender=Session)
    json = {field.attname for field in Session._meta.concrete_fields if isinstance(field, JSONField)}
    assert told == [
        (session, False, frozenset({"title"} | json), "default", False),
        (new, True, None, "default", False),
    ]
