"""Whoever has waited for the lock of a session on PostgreSQL decides by the session as it is then."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from sessions_app import actions
from sessions_app.actions.base import commit
from sessions_app.models import Session
from tests import builders
from tests.databases import connected
from tools.services import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def on_postgresql(migrated_postgres_url: str, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), connected(migrated_postgres_url):
        yield


def somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        [number] = cursor.fetchone()
    return bool(number)


@pytest.fixture
def rewound(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Session], None]]:
    """Rewinds a session in another thread, which commits as soon as somebody waits for the session."""
    is_locked = threading.Event()
    place = "sessions_app.actions.history.commit"

    def commit_when_somebody_waits(*args: Any, **kwargs: Any) -> Any:
        is_locked.set()
        wait_for(somebody_waits, "somebody who waits for the lock", 30)
        return commit(*args, **kwargs)

    monkeypatch.setattr(place, commit_when_somebody_waits)
    threads: list[threading.Thread] = []

    def rewind(session: Session) -> None:
        point = session.current_branch.checkpoints.earliest("position").pk

        def run() -> None:
            with connected(migrated_postgres_url):
                actions.rewind(
                    actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=point, reason="First"
                )

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        assert is_locked.wait(30)
        monkeypatch.setattr(place, commit)

    yield rewind
    for thread in threads:
        thread.join()


def test_who_waits_while_the_session_is_rewound_takes_back_that_rewind(
    rewound: Callable[[Session], None],
) -> None:
    session = builders.paused()
    before = session.branch_id
    rewound(session)
    actions.undo(actor=builders.SYSTEM, session_id=session.pk, reason="Not this one")
    now = Session.objects.get(pk=session.pk)
    assert now.branch_id == before
    kinds = list(now.events.order_by("-position").values_list("kind", flat=True)[:2])
    assert kinds == ["undone", "rewound"]


def test_who_waits_while_the_session_is_rewound_forks_the_new_branch(
    rewound: Callable[[Session], None],
) -> None:
    session = builders.paused()
    point = session.current_branch.checkpoints.earliest("position").pk
    rewound(session)
    fork = actions.fork(
        actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=point, reason="Another way"
    )
    event = Session.objects.get(pk=session.pk).events.latest("position")
    assert event.branch_id == Session.objects.get(pk=session.pk).branch_id
    assert fork.current_branch.lineage
