"""`manage.py update_search`: what the sweep has not added yet is found at once, and with --follow from then on."""

import pytest
from django.core.management import call_command

from sessions_app.finding import search
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


def test_it_follows_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[set[Session]] = []

    def pause(seconds: float) -> None:
        pauses.append(found("windscreen"))
        if len(pauses) == 3:
            raise KeyboardInterrupt
        said("The windscreen is cracked.")

    monkeypatch.setattr(update_search, "sleep", pause)
    with pytest.raises(SystemExit) as ended:
        call_command("update_search", "--follow")
    assert ended.value.code == 130
    assert [len(sessions) for sessions in pauses] == [0, 1, 2]
