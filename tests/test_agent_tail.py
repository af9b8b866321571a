"""`manage.py agent tail`: what it prints, that it follows, and how it ends."""

import json
import shlex
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from sessions_app import actions
from sessions_app.management import tail
from sessions_app.mirror.sessions import MirrorSessions
from sessions_app.models import Checkpoint, Session
from tests import builders
from tests.builders import SYSTEM, branch_of
from tools.processes import MANAGE, environment, run, running


def printed(session: Session, *args: str) -> list[str]:
    out = StringIO()
    call_command("agent", "tail", str(session.pk), "--until-rest", *args, stdout=out)
    return out.getvalue().splitlines()


@pytest.mark.django_db
def test_it_prints_each_entry_on_a_readable_line_and_what_the_session_is_doing() -> None:
    history = builders.History(created_at=datetime(2026, 3, 1, 12, tzinfo=UTC))
    history.user("Is my windscreen\ncovered?\x1b[2J")
    history.checkpoint("start")
    history.reply(calls=[("lookup_policy", {"policy": "POL-7"})])
    history.finish(history.calls[-1], {"status": "active"})
    history.checkpoint("step")
    session = history.rest("paused")
    lines = printed(session, "--lines", "100")
    checkpoints = Checkpoint.objects.visible_on(branch_of(session)).values_list("pk", flat=True)
    assert [line.split("  ", 1)[1] for line in lines[:-1]] == [
        "event       started by tests",
        "user        Is my windscreen covered?⟨U+001B⟩[2J",
        f"checkpoint  {checkpoints[0]}, start, step 0, planning",
        "model       scripted demo model 120 + 30 tokens",
        "assistant",
        'call        lookup_policy(policy="POL-7") done: {"status": "active"}',
        'tool        {"status": "active"}',
        f"checkpoint  {checkpoints[1]}, step, step 1, reflecting",
    ]
    assert lines[0].startswith("12:00:01  ")
    assert lines[-1] == f"{session.pk} is paused"


@pytest.mark.django_db
def test_its_json_lines_are_those_of_the_sessions_json_in_order() -> None:
    session = builders.in_doubt()
    lines = [json.loads(line) for line in printed(session, "--json", "--lines", "100")]
    out = StringIO()
    call_command("agent", "show", str(session.pk), "--json", stdout=out)
    shown = json.loads(out.getvalue())
    assert [line["position"] for line in lines] == sorted(line["position"] for line in lines)
    for operation, key in {"message": "messages", "call": "tool_calls", "event": "events"}.items():
        assert [
            {k: v for k, v in line.items() if k != "op"} for line in lines if line["op"] == operation
        ] == shown[key]


@pytest.mark.django_db
def test_it_begins_with_as_many_entries_as_asked_for() -> None:
    session = builders.done()
    assert len(printed(session, "--json")) == 10
    assert [json.loads(line)["kind"] for line in printed(session, "--json", "--lines", "1")] == ["finished"]
    assert printed(session, "--lines", "0") == [f"{session.pk} is idle"]
    with pytest.raises(CommandError, match="give a whole number, 0 or more"):
        printed(session, "--lines=-5")


@pytest.fixture(params=["stream", "database"])
def source(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Brings the mirror up to date, where there is one."""
    if request.param == "database":
        yield lambda session: None
        return
    url = request.getfixturevalue("redis_url")
    mirror = MirrorSessions(url, kept_seconds=60)
    with mirror.client, override_settings(AGENTSTATE_MIRROR=True, AGENTSTATE_MIRROR_URL=url):
        yield lambda session: mirror.update([session.pk])


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("source", ["stream", "database"], indirect=True)
def test_it_follows_commits_and_a_rewind_and_tells_everything_once(source: Any) -> None:
    history = builders.asked()
    source(history.session)
    followed = tail.follow(history.session.pk, last=1, until_rest=False)
    assert next(followed)[0] == "checkpoint"
    history.reply(calls=[("lookup_policy", {"policy": "POL-7"})])
    source(history.save())
    assert [next(followed)[0] for _ in range(3)] == ["reply", "message", "call"]
    history.finish(history.calls[-1], {"status": "active"})
    history.checkpoint("step")
    source(history.rest("paused"))
    told = [next(followed) for _ in range(3)]
    assert [operation for operation, _ in told] == ["call", "message", "checkpoint"]
    assert told[0][1]["status"] == "done"
    start = Checkpoint.objects.visible_on(history.branch).first()
    assert start is not None
    actions.rewind(actor=SYSTEM, session_id=history.session.pk, checkpoint_id=start.pk, reason="again")
    source(history.session)
    assert next(followed)[1]["kind"] == "rewound"
    followed.close()  # type: ignore[attr-defined]


@pytest.mark.django_db
def test_what_the_stream_lacks_when_the_session_comes_to_rest_is_read_from_the_database(
    redis_url: str,
) -> None:
    history = builders.asked()
    with override_settings(AGENTSTATE_MIRROR=True, AGENTSTATE_MIRROR_URL=redis_url):
        followed = tail.follow(history.session.pk, last=1, until_rest=True)
        next(followed)
        history.reply("Yes, it is.")
        history.end("Yes, it is.")
        assert [operation for operation, _ in followed][:3] == ["reply", "message", "checkpoint"]


@pytest.mark.django_db
def test_a_server_of_the_mirror_that_is_away_does_not_matter() -> None:
    with override_settings(AGENTSTATE_MIRROR=True, AGENTSTATE_MIRROR_URL="redis://127.0.0.1:1/0"):
        assert len(printed(builders.done(), "--json")) == 10


@pytest.mark.django_db
def test_a_session_that_is_deleted_meanwhile_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    session = builders.running()
    monkeypatch.setattr("time.sleep", lambda seconds: session.delete())
    pk = session.pk
    with pytest.raises(CommandError, match=f"^The session {pk} was deleted.$"):
        printed(session)


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
def test_ctrl_c_ends_it_at_once_without_a_traceback(sqlite_url: str) -> None:
    env = environment(SECRET_KEY="only for this test", DATABASE_URL=sqlite_url)
    assert run((*MANAGE, "migrate", "-v0"), env).returncode == 0
    session_id = run((*MANAGE, "agent", "start", "claims", "Hello"), env).stdout.strip()
    with running((*MANAGE, "agent", "tail", session_id), env) as process:
        process.wait_for_output("started by")
        process.send(signal.SIGINT)
        try:
            code = process.wait(10)
        except subprocess.TimeoutExpired:
            # Python drops a KeyboardInterrupt that it raises in a destructor: a person would press the keys again.
            process.send(signal.SIGINT)
            code = process.wait()
    assert code == 130
    assert "Traceback" not in process.output


@pytest.mark.slow
@pytest.mark.usefixtures("already_migrated")
def test_it_ends_quietly_with_the_program_that_reads_it(sqlite_url: str) -> None:
    env = environment(SECRET_KEY="only for this test", DATABASE_URL=sqlite_url)
    assert run((*MANAGE, "migrate", "-v0"), env).returncode == 0
    session_id = run((*MANAGE, "agent", "start", "claims", "Hello"), env).stdout.strip()
    for verb in ("tail", "show"):
        command = f"{shlex.join((*MANAGE, 'agent', verb, session_id))} | true"
        done = run(("timeout", "50", "bash", "-o", "pipefail", "-c", command), env)
        assert (done.returncode, done.stderr) == (0, "")
