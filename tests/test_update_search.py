"""`manage.py update_search`: what the sweep has not added yet is found at once, and with --follow from then on."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.utils import timezone

from sessions_app import tasks
from sessions_app.finding import search, search_follower, search_index
from sessions_app.management.commands import update_search
from sessions_app.models import Session
from tests import builders

pytestmark = pytest.mark.django_db


def said(text: str) -> Session:
    history = builders.History()
    history.user(text)
    return history.rest("paused")


def found(text: str) -> set[Session]:
    keys, _ = search.newest_sessions(text, whole=True)
    return set(Session.objects.filter(pk__in=keys))


def test_what_is_missing_is_found_at_once() -> None:
    early = said("The windscreen is cracked.")
    call_command("update_search")
    late = said("The windscreen is gone.")
    assert found("windscreen") == {early}
    call_command("update_search")
    assert found("windscreen") == {early, late}


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Follows, does something before each round but the first, and is stopped behind the last. Returns the pauses."""

    def follow(*before: Callable[[], object]) -> list[float]:
        pauses: list[float] = []
        actions = iter(before)

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            action = next(actions, None)
            if action is None:
                raise KeyboardInterrupt
            action()

        monkeypatch.setattr(update_search, "sleep", pause)
        with pytest.raises(SystemExit) as ended:
            call_command("update_search", "--follow")
        assert ended.value.code == 130
        return pauses

    return follow


def test_it_follows_until_it_is_stopped(rounds) -> None:
    seen: list[set[Session]] = []

    def crack() -> None:
        seen.append(found("windscreen"))
        said("The windscreen is cracked.")

    rounds(crack, crack)
    seen.append(found("windscreen"))
    assert [len(sessions) for sessions in seen] == [0, 1, 2]


def test_the_sweep_leaves_the_search_to_a_process_that_follows(rounds) -> None:
    def sweep() -> None:
        said("The windscreen is cracked.")
        tasks.sweep()
        assert not found("windscreen")

    rounds(sweep)
    assert len(found("windscreen")) == 1
    # It has said that it ends.
    said("The windscreen is gone.")
    tasks.sweep()
    assert len(found("windscreen")) == 2


@pytest.mark.parametrize("skew", [0, 3_600], ids=["its clock is right", "its clock is an hour ahead"])
def test_the_sweep_adds_to_the_search_again_where_the_process_that_follows_was_killed(
    monkeypatch: pytest.MonkeyPatch, skew: int
) -> None:
    now = timezone.now()
    monkeypatch.setattr("django.utils.timezone.now", lambda: now + timedelta(seconds=skew))
    search_follower.say_that_it_follows()
    later = now + timedelta(seconds=search_follower.SILENT_SECONDS)
    monkeypatch.setattr("django.utils.timezone.now", lambda: later)
    said("The windscreen is cracked.")
    tasks.sweep()
    assert len(found("windscreen")) == 1


def test_a_search_that_is_made_again_forgets_no_process_that_follows() -> None:
    search_follower.say_that_it_follows()
    search_index.rebuild()
    assert search_follower.follows()


def test_a_process_that_follows_outlasts_a_database_that_is_away(
    rounds, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    update, errors = search_index.update, [OperationalError("the database system is shutting down")]

    def updated(seconds: float) -> bool:
        if errors:
            raise errors.pop()
        return update(seconds)

    monkeypatch.setattr(search_index, "update", updated)
    # This test's transaction would end with it.
    monkeypatch.setattr(connection, "close", lambda: None)
    said("The windscreen is cracked.")
    pauses = rounds(lambda: None)
    assert pauses == [update_search.AWAY_SECONDS, update_search.PAUSE_SECONDS]
    assert len(found("windscreen")) == 1
    assert "tried again in 5 s: the database system is shutting down" in caplog.text
