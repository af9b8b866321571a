"""`manage.py update_search`: what the sweep has not added yet is found at once, and with --follow from then on."""

import signal
from collections.abc import Callable, Iterator

import pytest
from django.core.management import call_command
from django.db import Error, InterfaceError, InternalError, OperationalError, connection

from sessions_app import tasks
from sessions_app.finding import search, search_follower, search_index
from sessions_app.management.commands import update_search
from sessions_app.models import Session
from tests import builders
from tools.processes import MANAGE, environment, run, running

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
    """Follows, does something before each round but the first, and is stopped after the last. Returns the pauses."""

    def follow(*before: Callable[[], object]) -> list[float]:
        pauses: list[float] = []
        actions = iter(before)

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            action = next(actions, None)
            if action is None:
                signal.raise_signal(signal.SIGTERM)
            else:
                action()

        monkeypatch.setattr(update_search, "sleep", pause)
        with pytest.raises(SystemExit) as ended:
            call_command("update_search", "--follow")
        assert ended.value.code == 0
        return pauses

    return follow


def silent_for(seconds: int) -> None:
    """It last said so long ago that it follows."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE sessions_app_search_mark SET upto = upto + %s WHERE name = %s",
            [seconds, search_follower.NAME],
        )


def test_it_follows_until_it_is_stopped(rounds) -> None:
    seen: list[set[Session]] = []

    def crack() -> None:
        seen.append(found("windscreen"))
        said("The windscreen is cracked.")

    assert rounds(crack, crack) == [update_search.PAUSE_SECONDS] * 3
    seen.append(found("windscreen"))
    assert [len(sessions) for sessions in seen] == [0, 1, 2]


def test_it_goes_on_at_once_while_there_is_more(rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    more = [True, False]
    monkeypatch.setattr(search_index, "update", lambda seconds: more.pop(0))
    assert rounds(lambda: None) == [0, update_search.PAUSE_SECONDS]


def test_the_sweep_leaves_the_search_to_a_process_that_follows(rounds) -> None:
    def sweep() -> None:
        said("The windscreen is cracked.")
        tasks.sweep()
        assert not found("windscreen")

    rounds(sweep)
    assert len(found("windscreen")) == 1


def test_it_says_again_and_again_that_it_follows(rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [0.0]
    monkeypatch.setattr(update_search, "monotonic", lambda: passed[0])

    def later() -> None:
        silent_for(search_follower.SILENT_SECONDS)
        assert not search_follower.follows()
        passed[0] += update_search.SAID_SECONDS

    rounds(later)
    assert search_follower.follows()


@pytest.mark.parametrize("seconds, number", [(17, 0), (20, 1)])
def test_the_sweep_adds_again_once_the_process_that_follows_was_silent_for_20_seconds(
    seconds: int, number: int
) -> None:
    search_follower.say_that_it_follows()
    silent_for(seconds)
    said("The windscreen is cracked.")
    tasks.sweep()
    assert len(found("windscreen")) == number


def test_a_process_whose_rounds_fail_is_silent(rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(seconds: float) -> bool:
        raise OperationalError("the database system is shutting down")

    monkeypatch.setattr(search_index, "update", away)
    monkeypatch.setattr(connection, "close", lambda: None)
    rounds(lambda: None)
    assert not search_follower.follows()


def test_a_search_that_is_made_again_forgets_no_process_that_follows() -> None:
    search_follower.say_that_it_follows()
    search_index.rebuild()
    assert search_follower.follows()


def test_the_search_is_not_made_again_for_a_process_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    search_follower.say_that_it_follows()
    rebuilt: list[None] = []
    monkeypatch.setattr(search_index, "rebuild", lambda: rebuilt.append(None))
    search_index.update()
    assert not rebuilt


@pytest.mark.parametrize("error", [OperationalError, InterfaceError, InternalError])
def test_a_process_that_follows_goes_on_after_a_database_was_away(
    rounds, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Error]
) -> None:
    update, errors = search_index.update, [error("the database system is shutting down")]
    closed: list[None] = []

    def updated(seconds: float) -> bool:
        if errors:
            raise errors.pop()
        return update(seconds)

    monkeypatch.setattr(search_index, "update", updated)
    # This test's transaction would end with it.
    monkeypatch.setattr(connection, "close", lambda: closed.append(None))
    said("The windscreen is cracked.")
    pauses = rounds(lambda: None)
    assert pauses == [update_search.AWAY_SECONDS, update_search.PAUSE_SECONDS]
    assert len(found("windscreen")) == len(closed) == 1
    assert (
        "the next begins in 5 s: The database cannot be used: the database system is shutting" in caplog.text
    )


@pytest.fixture
def _may_be_interrupted() -> Iterator[None]:
    """Also where a shell has started the tests in the background, which ignore SIGINT then."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_may_be_interrupted")
@pytest.mark.parametrize("options, signum", [(["--follow"], signal.SIGINT), ([], signal.SIGTERM)])
def test_what_is_interrupted_ends_with_130(
    options: list[str], signum: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "update", lambda seconds: signal.raise_signal(signum))
    with pytest.raises(SystemExit) as ended:
        call_command("update_search", *options)
    assert ended.value.code == 130


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite_url", "postgres_url"])
def test_before_the_database_is_migrated_one_that_follows_waits_and_any_other_says_why_it_ends(
    url: str, request: pytest.FixtureRequest
) -> None:
    env = environment(SECRET_KEY="only for this test", DATABASE_URL=request.getfixturevalue(url))
    once = run((*MANAGE, "update_search"), env)
    assert (once.returncode, "Traceback" in once.stderr) == (1, False)
    assert "The database cannot be used: " in once.stderr
    with running((*MANAGE, "update_search", "--follow"), env) as follower:
        follower.wait_for_output("WARNING .*the next begins in 5 s: .*Is it migrated", 60)
        follower.send(signal.SIGTERM)
        assert follower.wait() == 0
    assert "Traceback" not in follower.output


@pytest.mark.parametrize("read, enough", [(2, 1), (2, 100), (100, 1)])
def test_all_is_added_however_much_one_transaction_adds(
    monkeypatch: pytest.MonkeyPatch, read: int, enough: int
) -> None:
    monkeypatch.setattr(search_index, "_READ_AT_ONCE", read)
    monkeypatch.setattr(search_index, "_ENOUGH_CHARACTERS", enough)
    histories = [builders.asked() for _ in range(7)]
    for number, history in enumerate(histories):
        history.user(f"The windscreen of POL-{number} is cracked.")
        history.reply(calls=[("lookup_policy", {"policy": f"POL-{number}"})])
    sessions = {history.session for history in histories}
    call_command("update_search")
    assert found("windscreen cracked") == found("lookup policy") == sessions
    for history in histories:
        history.finish(history.calls[-1], "in arrears")
    call_command("update_search")
    assert found("arrears") == sessions
