"""`manage.py agent`: every verb, what it prints, and how it fails."""

import json
import os
import subprocess
from collections.abc import Callable
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection

from sessions_app import actions
from sessions_app.access.masking import Mask
from sessions_app.history.export import session_json
from sessions_app.management.commands import agent as command
from sessions_app.models import (
    Approval,
    CallStatus,
    Checkpoint,
    Message,
    RegisteredAgent,
    Session,
    Status,
    ToolCall,
)
from tests import builders
from tests.builders import branch_of, fresh
from tools.processes import MANAGE, PROJECT, environment

pytestmark = pytest.mark.django_db


def run(*args: object) -> str:
    """What the command prints on stdout."""
    out = StringIO()
    call_command("agent", *map(str, args), stdout=out)
    return out.getvalue()


def shown(session: Session) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run("show", session.pk, "--json"))
    return told


def checkpoints(session: Session) -> list[Checkpoint]:
    return list(Checkpoint.objects.visible_on(branch_of(fresh(session))))


@pytest.fixture(autouse=True)
def publications(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often the agents were published; makes "claims" then."""
    made: list[int] = []

    def publish() -> list[str]:
        builders.agent()
        made.append(1)
        return ["The agent module 'x' cannot be\nimported."]

    monkeypatch.setattr(command, "publish_agents", publish)
    return made


def test_a_name_of_the_account_that_is_no_text_is_recorded_as_well_as_it_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = builders.queued()
    monkeypatch.setenv("LOGNAME", "ann\udcff")
    run("pause", session.pk, "--reason", "He is angry")
    assert session.events.latest("position").actor_name == "command line: ann?"


def test_start_prints_the_id_and_nothing_else() -> None:
    builders.agent()
    printed = run("start", "claims", "Is my windscreen covered?")
    session = Session.objects.get()
    assert printed == f"{session.pk}\n"
    assert session.status == Status.QUEUED


def test_start_takes_title_customer_tags_and_state() -> None:
    builders.agent()
    run(
        *("start", "claims", "Hello", "--title", "Windscreen", "--customer", "Ada"),
        *("--tag", "Glass", "--tag", "motor", "--state", '{"policy": "POL-7"}'),
    )
    session = Session.objects.get()
    assert (session.title, session.customer) == ("Windscreen", "Ada")
    assert sorted(tag.name for tag in session.tags.all()) == ["glass", "motor"]
    assert session.inputs["state"] == {"policy": "POL-7"}


def test_the_actor_is_the_person_at_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    builders.agent()
    monkeypatch.setenv("LOGNAME", "ada")
    run("start", "claims", "Hello")
    event = Session.objects.get().events.get()
    assert (event.actor, event.actor_name) == (None, "command line: ada")


def test_a_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise OSError("no name")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert command._actor().name == f"command line: {os.getuid()}"


def test_an_agent_that_is_not_published_yet_is_published_first(
    publications: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    run("start", "claims", "Hello")
    run("start", "claims", "Hello again")
    assert Session.objects.count() == 2
    assert publications == [1]
    assert capsys.readouterr().err == "The agent module 'x' cannot be imported.\n"


def test_list_shows_each_agent_on_a_line(publications: list[int]) -> None:
    builders.agent()
    builders.agent("letters", title="Letters", model="gpt", problem="The factory\nfailed.")
    lines = run("list").splitlines()
    assert [line.split("  ")[0].strip() for line in lines] == ["key", "claims", "letters"]
    assert lines[1].split("  ")[-1] == "scripted demo model"
    assert lines[2].endswith("The factory failed.")
    assert publications == []


def test_list_publishes_where_nothing_is_published(publications: list[int]) -> None:
    assert "claims" in run("list")
    assert publications == [1]


@pytest.mark.slow
@pytest.mark.parametrize("state", builders.STATES)
def test_every_session_can_be_shown(state: str) -> None:
    session = builders.STATES[state]()
    told = shown(session)
    assert (told["id"], told["status"], told["phase"]) == (str(session.pk), session.status, session.phase)
    text = run("show", session.pk)
    assert session.title in text
    assert session.status in text
    assert session.why in text


def test_show_json_tells_everything() -> None:
    session = builders.in_doubt()
    told = shown(session)
    assert set(told) == {
        *("id", "agent", "title", "version", "branch", "phase", "status", "waiting_for", "why"),
        *(
            "breakpoints",
            "epoch",
            "final_answer",
            "error",
            "messages",
            "inbox",
            "tool_calls",
            "checkpoints",
            "events",
        ),
    }
    assert (told["waiting_for"], told["branch"], told["agent"]) == ("doubt", 1, "claims")
    assert [message["role"] for message in told["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert told["messages"][1]["text"] == "Is my windscreen covered by POL-7?"
    lookup, refund = told["tool_calls"]
    call = ToolCall.objects.get(tool="lookup_policy")
    assert call.ended_at is not None
    assert lookup == {
        "call_id": call.call_id,
        "position": call.position,
        "tool": "lookup_policy",
        "arguments": {"policy": "POL-7"},
        "status": "done",
        "result": {"policy": "POL-7", "status": "active"},
        "error": "",
        "attempts": 1,
        "cached": False,
        "idempotency_key": call.idempotency_key,
        "at": call.ended_at.isoformat(),
    }
    assert (refund["status"], refund["result"], refund["attempts"]) == ("doubt", None, 1)
    assert [(point["kind"], point["complete"], point["phase"]) for point in told["checkpoints"]] == [
        ("start", True, "planning"),
        ("step", True, "reflecting"),
    ]
    assert [(event["kind"], event["actor"]) for event in told["events"]] == [
        ("started", "tests"),
        ("in_doubt", "tests"),
    ]


def test_show_json_tells_values_without_the_tags_of_their_stored_types() -> None:
    history = builders.asked()
    history.reply(calls=[("lookup_policy", {"policy": "POL-7", "$type": "no tag of ours"})])
    document = {"id": "d1", "content": "Covered.", "meta": {"day": {"$type": "date", "value": "2026-03-01"}}}
    result = [{"$type": "document", "value": document}, {"$type": "tuple", "value": [1]}]
    history.finish(
        history.calls[-1], {"$type": "ordered", "keys": ["b", "a"], "value": {"a": 1, "b": result}}
    )
    session = history.rest("paused", inputs={"state": {"limit": {"$type": "decimal", "value": "1.50"}}})
    [call] = shown(session)["tool_calls"]
    plain = [{"id": "d1", "content": "Covered.", "meta": {"day": "2026-03-01"}}, [1]]
    assert call["result"] == {"b": plain, "a": 1}
    assert list(call["result"]) == ["b", "a"]
    assert call["arguments"] == {"policy": "POL-7", "$type": "no tag of ours"}
    assert session_json(session, mask=Mask.none(), keys=["inputs"]) == {
        "inputs": {"state": {"limit": "1.50"}}
    }


def test_show_tells_only_what_the_current_branch_shows() -> None:
    session = builders.done()
    whole = shown(session)
    run("rewind", session.pk, checkpoints(session)[0].pk, "--reason", "again")
    told = shown(session)
    assert told["branch"] == 2
    assert told["messages"] == whole["messages"][:2]
    assert told["tool_calls"] == []
    assert [point["id"] for point in told["checkpoints"]] == [whole["checkpoints"][0]["id"]]


def test_show_tells_of_a_message_that_was_replaced_what_the_model_reads_instead() -> None:
    session = builders.done()
    by: dict[str, Any] = {"actor": builders.SYSTEM, "session_id": session.pk, "reason": "A slip"}
    answer = Message.objects.get(branch=session.branch, text=session.final_answer)
    actions.replace_message(**by, position=answer.position, text="Nothing.")
    first = Message.objects.get(branch__session=session, text="Nothing.")
    actions.replace_message(**by, position=first.position, text="No.")
    repair = Checkpoint.objects.filter(branch__session=session).latest("position")
    for told_of in (session, actions.fork(**by, checkpoint_id=repair.pk)):
        told = shown(told_of)
        assert told["final_answer"] == "No."
        texts = (answer.text, "Nothing.", "No.")
        [old, between, new] = [row for row in told["messages"] if row["text"] in texts]
        assert old["replaced_by"] == between["replaced_by"] == new["position"]
        assert "replaced_by" not in new
        said = f"The model reads {new['position']} instead of {old['position']}."
        assert said in run("show", told_of.pk)


def test_show_tells_what_the_agent_has_not_read_yet() -> None:
    session = builders.queued()
    assert shown(session)["inbox"] == ["Is my windscreen covered by POL-7?"]
    assert "unread: Is my windscreen" in run("show", session.pk)


@pytest.mark.slow
def test_show_reads_a_long_session_in_as_many_queries_as_a_short_one(django_assert_num_queries: Any) -> None:
    history = builders.asked()
    for _ in range(20):
        history.lookup()
    session = history.rest("paused")
    with django_assert_num_queries(6):
        run("show", session.pk, "--json")


def test_message_goes_to_the_inbox() -> None:
    session = builders.paused()
    assert run("message", session.pk, "And my mirror?") == f"{session.pk} is paused\n"
    assert [message.text for message in session.inbox.all()] == ["And my mirror?"]


@pytest.mark.parametrize(
    "verb, build, told",
    [
        ("pause", builders.queued, "paused"),
        ("pause", builders.running, "running, asked to pause"),
        ("resume", builders.paused, "queued"),
        ("cancel", builders.in_doubt, "cancelled"),
        ("undo", builders.rewound, "idle"),
    ],
)
def test_the_steering_verbs_say_what_became_of_it(verb: str, build: Callable[[], Session], told: str) -> None:
    session = build()
    assert run(verb, session.pk, "--reason", "as agreed") == f"{session.pk} is {told}\n"
    event = session.events.last()
    assert event is not None
    assert event.reason == "as agreed"


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "undo", "rewind"])
def test_the_steering_verbs_want_a_reason(verb: str) -> None:
    with pytest.raises(CommandError, match="--reason"):
        run(verb, builders.paused().pk, *([1] if verb == "rewind" else []))


@pytest.mark.parametrize("run_on, status", [([], "paused"), (["--run"], "queued")])
def test_rewind_goes_back_and_on_if_wanted(run_on: list[str], status: str) -> None:
    session = builders.done()
    point = checkpoints(session)[1]
    assert run("rewind", session.pk, point.pk, "--reason", "again", *run_on) == f"{session.pk} is {status}\n"
    assert checkpoints(session)[-1] == point


def test_fork_prints_the_id_of_the_new_session_and_nothing_else() -> None:
    session = builders.done()
    printed = run(
        "fork", session.pk, checkpoints(session)[1].pk, "--message", "Try the other policy", "--title", "B"
    )
    child = Session.objects.get(pk=UUID(printed.strip()))
    assert printed == f"{child.pk}\n"
    assert (child.status, child.title) == (Status.QUEUED, "B")
    assert [message.text for message in child.inbox.all()] == ["Try the other policy"]
    assert child.events.get().reason == "forked on the command line"


def test_fork_replaces_a_message() -> None:
    session = builders.done()
    asked = builders.branch_of(session).messages.get(role="user")
    start = checkpoints(session)[0].pk
    printed = run("fork", session.pk, start, "--replace", asked.position, "--message", "Is my roof covered?")
    child = Session.objects.select_related("branch").get(pk=UUID(printed.strip()))
    assert (child.status, child.inbox.count()) == (Status.QUEUED, 0)
    assert builders.branch_of(child).messages.get().text == "Is my roof covered?"
    with pytest.raises(CommandError, match="Write the new message"):
        run("fork", session.pk, start, "--replace", asked.position)


@pytest.mark.parametrize(
    "how, status",
    [
        (["--result", "paid"], CallStatus.DONE),
        (["--again"], CallStatus.PLANNED),
        (["--skip", "never mind"], CallStatus.SKIPPED),
    ],
)
def test_decide_settles_a_call_in_doubt(how: list[str], status: str) -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(status=CallStatus.DOUBT)
    assert run("decide", session.pk, call.call_id, *how) == f"{session.pk} is queued\n"
    call.refresh_from_db()
    assert call.status == status


@pytest.mark.parametrize("how, decision", [(["--approve"], "approved"), (["--reject", "no"], "rejected")])
def test_decide_answers_a_request_for_approval(how: list[str], decision: str) -> None:
    session = builders.waiting_for_approval()
    approval = Approval.objects.get()
    run("decide", session.pk, approval.call.call_id, *how, "--reason", "I asked the boss")
    approval.refresh_from_db()
    assert approval.decision == decision
    event = session.events.last()
    assert event is not None
    assert event.reason == "I asked the boss"


@pytest.mark.parametrize("how", [["--approve"], ["--again"]])
def test_decide_names_the_option_with_which_a_changed_agent_goes_on(how: list[str]) -> None:
    session = builders.waiting_for_approval() if how == ["--approve"] else builders.in_doubt()
    call = ToolCall.objects.latest("position")
    RegisteredAgent.objects.update(definition="e" * 64)
    with pytest.raises(
        CommandError, match=r"The agent has changed since the session last ran.*--new-definition"
    ):
        run("decide", session.pk, call.call_id, *how)
    run("decide", session.pk, call.call_id, *how, "--new-definition")
    session.refresh_from_db()
    assert session.definition == "e" * 64


def test_decide_names_the_option_for_an_effect_that_has_been_seen() -> None:
    session = builders.waiting_for_approval()
    approval = Approval.objects.get()
    Approval.objects.update(repeats=ToolCall.objects.earliest("position"))
    with pytest.raises(CommandError, match=r"already took effect, or may have.*--effects-seen"):
        run("decide", session.pk, approval.call.call_id, "--approve")
    run("decide", session.pk, approval.call.call_id, "--approve", "--effects-seen")
    approval.refresh_from_db()
    assert approval.decision == "approved"


def test_decide_says_of_a_call_that_is_to_be_approved_that_it_waits_for_that() -> None:
    session = builders.waiting_for_approval()
    with pytest.raises(CommandError, match=r"This call is not in doubt: it waits for approval."):
        run("decide", session.pk, Approval.objects.get().call.call_id, "--result", "paid")


def test_decide_says_that_a_tool_returns_nothing() -> None:
    session = builders.in_doubt()
    call = ToolCall.objects.get(status=CallStatus.DOUBT)
    with pytest.raises(CommandError, match="or choose that it returns nothing"):
        run("decide", session.pk, call.call_id, "--result", "")
    run("decide", session.pk, call.call_id, "--nothing")
    call.refresh_from_db()
    assert (call.status, call.result) == (CallStatus.DONE, None)


@pytest.mark.parametrize("how", [[], ["--again", "--approve"], ["--result", "a", "--skip", "b"]])
def test_decide_wants_exactly_one_decision(how: list[str]) -> None:
    session = builders.in_doubt()
    with pytest.raises(CommandError):
        run("decide", session.pk, ToolCall.objects.get(status=CallStatus.DOUBT).call_id, *how)


@pytest.mark.parametrize(
    "how, option",
    [
        (["--reject", "no", "--effects-seen"], "--effects-seen is only for --approve"),
        (["--again", "--effects-seen"], "--effects-seen is only for --approve"),
        (["--reject", "no", "--new-definition"], "--new-definition cannot be used with --reject"),
    ],
)
def test_an_option_that_the_decision_has_no_use_for_is_wrong_usage(how: list[str], option: str) -> None:
    session = builders.waiting_for_approval()
    approval = Approval.objects.get()
    with pytest.raises(CommandError, match=option) as refused:
        run("decide", session.pk, approval.call.call_id, *how)
    assert refused.value.returncode == 2
    approval.refresh_from_db()
    assert approval.decision == ""


@pytest.mark.parametrize("session_id", ["no-such-session", "00000000-0000-7000-8000-000000000000"])
@pytest.mark.parametrize("verb", ["show", "pause", "message", "fork"])
def test_an_unknown_session_is_a_clear_error(verb: str, session_id: str) -> None:
    more = {"pause": ["--reason", "x"], "message": ["hello"], "fork": ["1"]}.get(verb, [])
    with pytest.raises(CommandError, match=f"^There is no session {session_id}.$"):
        run(verb, session_id, *more)


@pytest.mark.parametrize("state", ["{", "[1]", "5"])
def test_a_state_that_is_no_object_is_wrong_usage(state: str) -> None:
    builders.agent()
    with pytest.raises(CommandError, match="--state"):
        run("start", "claims", "Hello", "--state", state)
    assert not Session.objects.exists()


@pytest.mark.parametrize(
    "statement, asks",
    [
        ("SELECT * FROM not_there", True),
        ("SELECT not_there FROM sessions_app_session", True),
        ("SELECT 1 FROM", False),
    ],
)
def test_only_where_a_table_or_a_column_is_missing_is_it_asked_whether_the_database_is_migrated(
    statement: str, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    monkeypatch.setattr(RegisteredAgent.objects, "exists", fail)
    with pytest.raises(
        CommandError, match=r"^The database cannot be used: .*[^.?]\.( Is it migrated\?)?$"
    ) as told:
        run("list")
    assert str(told.value).endswith(" Is it migrated?") == asks


def test_a_database_that_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: object, **kwargs: object) -> None:
        raise OperationalError("connection refused\nis the server running?")

    monkeypatch.setattr(RegisteredAgent.objects, "exists", away)
    with pytest.raises(CommandError) as refusal:
        run("list")
    assert str(refusal.value) == "The database cannot be used: connection refused is the server running?."


@pytest.mark.slow
@pytest.mark.parametrize(
    "args, code, told",
    [
        (["show", "nothing"], 1, "There is no session nothing."),
        (["list"], 1, "The database cannot be used: no such table"),
        (["pause", "nothing"], 2, "--reason"),
        ([], 2, "VERB"),
        (["dance"], 2, "invalid choice: 'dance'"),
    ],
)
def test_refusals_exit_with_1_and_wrong_usage_with_2_and_neither_shows_a_traceback(
    args: list[str], code: int, told: str, sqlite_url: str
) -> None:
    env = environment(SECRET_KEY="only for this test", DATABASE_URL=sqlite_url)
    done = subprocess.run([*MANAGE, "agent", *args], cwd=PROJECT, env=env, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stdout == ""
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert len(done.stderr.strip().splitlines()) == 1
