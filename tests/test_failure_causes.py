"""Sessions that failed for one reason have the key of one cause: written with the failure, gone once they continue."""

from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator

from sessions_app import actions
from sessions_app.finding import search_masking
from sessions_app.history.failures import cause_key, exception_type, failure_of, http_status
from sessions_app.models import Checkpoint, Session
from tests import builders, driving
from tests.builders import SYSTEM
from tests.migrating import migrate

pytestmark = pytest.mark.django_db


class BadRequestError(Exception):
    pass


@pytest.mark.parametrize(
    "first, second, same",
    [
        ("E: no order CLM-1042", "E: no order CLM-7", True),
        ("E: took 12.5 s", "E: took 3 s", True),
        ("E: request 7f3a-11 of deadbeefcafe failed", "E: request 9b-2 of aabbccddeeff failed", True),
        ("E: no  order\n", "E: no order", True),
        ("BadRequestError: status 400 no", "BadRequestError: status 422 no", False),
        ("E: no order", "F: no order", False),
        ("E: no order", "E: no customer", False),
    ],
)
def test_numbers_and_ids_do_not_tell_causes_apart_but_everything_else_does(first, second, same):
    assert (cause_key("claims", "", first) == cause_key("claims", "", second)) is same


def test_the_agent_and_the_tool_tell_causes_apart():
    keys = {cause_key(agent, tool, "E: no") for agent in ("claims", "shop") for tool in ("", "pay")}
    assert len(keys) == 4


@pytest.mark.parametrize(
    "first, second",
    [
        ("E: secret apple", "E: secret pear"),
        (
            "The tool pay failed with DE893704: account is blocked",
            "The tool pay failed with DE551122: account is blocked",
        ),
        ("E: status: pin code 455", "E: status: pin code 472"),
    ],
    ids=["text", "type of the exception", "HTTP status"],
)
def test_a_hidden_value_does_not_enter_the_key(settings, first, second):
    settings.AGENTSTATE_MASK_PATTERNS = ["secret [a-z]+", r"DE\d+", r"pin code \d+"]
    assert cause_key("a", "", first) == cause_key("a", "", second)


@pytest.mark.parametrize("name", ["error", "why"])
def test_a_text_that_is_hidden_as_a_whole_does_not_enter_the_key(settings, name):
    settings.AGENTSTATE_MASK_KEYS = [name]
    assert cause_key("a", "", "E: apple") == cause_key("a", "", "F: pear")


@pytest.mark.parametrize(
    "setting, hidden",
    [
        ("AGENTSTATE_MASK_KEYS", "error"),
        ("AGENTSTATE_MASK_KEYS", "why"),
        ("AGENTSTATE_MASK_PATTERNS", "(?s).+"),
    ],
)
def test_sessions_whose_agent_has_changed_have_a_cause_of_their_own_though_the_texts_are_hidden(
    client, settings, setting, hidden
):
    setattr(settings, setting, [hidden])
    builds = [builders.changed, builders.retries_used_up, builders.failed, builders.changed]
    sessions = [build() for build in builds]
    call_command("rebuild_search")
    again = [Session.objects.get(pk=session.pk).failure for session in sessions]
    assert again == [session.failure for session in sessions]
    client.force_login(builders.user("viewer"))
    for address in ("/inbox/", "/inbox/?agent=claims"):
        lines = client.get(address).context["page"].lines
        assert {line.kind: line.item.number.number for line in lines} == {"changed": 2, "failed": 2}


def test_a_run_that_finds_its_agent_changed_gives_the_key_that_is_made_again_later(desk, settings):
    settings.AGENTSTATE_MASK_KEYS = ["why"]
    desk.agent(lambda: Agent(chat_generator=MockChatGenerator("Hello")))
    session = desk.start()
    desk.agent(lambda: Agent(chat_generator=None))  # type: ignore[arg-type]
    desk.drive(session)
    session = desk.fresh(session)
    assert session.waiting_for == "changed"
    before = session.failure
    call_command("rebuild_search")
    assert desk.fresh(session).failure == before == failure_of(session)


@pytest.mark.parametrize(
    "text, kind, status",
    [
        ("BadRequestError: Error code: 400 - {'error': 'too long'}", "BadRequestError", 400),
        ("openai.RateLimitError: 429 Too Many Requests", "openai.RateLimitError", 429),
        (
            "The model failed 5 times without progress, at last with TimeoutError: no answer",
            "TimeoutError",
            None,
        ),
        ("HTTPStatusError: Client error '404 Not Found' for url", "HTTPStatusError", 404),
        ("ValueError: no order 450", "ValueError", None),
        ("no message", "", None),
    ],
)
def test_the_type_and_the_http_status_are_read_from_the_text(text, kind, status):
    assert (exception_type(text), http_status(text)) == (kind, status)


def failing(messages):
    raise BadRequestError(f"Error code: 400 - request {len(messages)} of {messages[-1].text} refused")


def test_two_sessions_that_fail_alike_get_one_key_and_lose_it_when_they_are_resumed():
    with driving.desk() as desk:
        desk.agent(lambda: Agent(chat_generator=MockChatGenerator(response_fn=failing)))
        first, second = desk.run(desk.start("CLM-1")), desk.run(desk.start("CLM-2"))
        assert first.failure is not None
        assert first.failure == second.failure
        assert desk.resume(first).failure is None
        assert Session.objects.get(pk=first.pk).failure is None


def test_undoing_a_rewind_of_a_failed_session_restores_its_cause():
    session = builders.failed()
    cause = session.failure
    start = Checkpoint.objects.filter(branch__session=session).earliest("position")
    rewound = actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="Try again")
    assert rewound.failure is None
    assert actions.undo(actor=SYSTEM, session_id=session.pk, reason="It was right").failure == cause


@pytest.mark.parametrize("build", [builders.retries_used_up, builders.changed])
def test_a_parked_session_has_a_cause_too(build):
    assert build().failure == build().failure is not None
    assert builders.waiting_for_approval().failure is None


@pytest.mark.slow
def test_sessions_of_earlier_versions_get_their_causes_by_0016(older):
    apps = older("0015_long_term_memory")
    sessions = apps.get_model("sessions_app", "Session").objects
    failed = {"phase": "error", "status": "idle"}
    tool = sessions.create(agent="a", error="E: no order 7", **failed)
    apps.get_model("sessions_app", "Event").objects.create(
        session_id=tool.pk, position=1, kind="failed", data={"tool": "pay"}
    )
    model = sessions.create(agent="a", error="E: no order 7", **failed)
    parked = sessions.create(agent="a", status="waiting", waiting_for="retries", why="Failed 5 times")
    done = sessions.create(agent="a", phase="done")

    sessions = migrate("0016_failure_causes").get_model("sessions_app", "Session").objects
    causes: dict[UUID, UUID | None] = dict(sessions.values_list("pk", "failure"))
    assert causes == {
        tool.pk: cause_key("a", "pay", "E: no order 8"),
        model.pk: cause_key("a", "", "E: no order 9"),
        parked.pk: cause_key("a", "", "Failed 3 times"),
        done.pk: None,
    }


@pytest.mark.slow
def test_a_list_of_one_cause_and_the_attempt_at_all_of_it_say_the_cause_in_words_and_what_helps(client):
    session = builders.failed(title="Order 7")
    Session.objects.filter(pk=session.pk).update(
        error="BadRequestError: Error code: 400 - bad", failure=UUID(int=7)
    )
    client.force_login(builders.user("operator"))
    for page in (f"/?queue=all&failure={UUID(int=7)}", f"/bulk/?queue=all&failure={UUID(int=7)}&kind=resume"):
        text = client.get(page).content.decode()
        assert '<span class="tag">failure: HTTP 400 from the model, Claims desk</span>' in text
    assert "Asking the model again does not help with HTTP 400: fork with the message reworded" in text
    assert "does not help with" in client.get(f"/sessions/{session.pk}/resume/").content.decode()
    text = client.get(f"/?queue=all&failure={UUID(int=8)}").content.decode()
    assert "failure: a cause that no session has any more" in text


@pytest.mark.slow
def test_keys_that_earlier_versions_made_of_hidden_values_are_made_again_by_0037(older, settings):
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    apps = older("0036_shown_names")
    sessions = apps.get_model("sessions_app", "Session").objects
    error = "The tool pay failed with DE893704: account is blocked"
    failed = {"agent": "a", "phase": "error", "status": "idle"}
    tool = sessions.create(error=error, failure=UUID(int=1), **failed)
    apps.get_model("sessions_app", "Event").objects.create(
        session_id=tool.pk, position=1, kind="failed", data={"tool": "pay"}
    )
    parked = sessions.create(
        agent="a", status="waiting", waiting_for="retries", why=error, failure=UUID(int=2)
    )
    no = cause_key("a", "", "E: no")
    shown = sessions.create(error="E: no", failure=no, **failed)
    times = dict(sessions.values_list("pk", "updated_at"))
    bulk_actions = apps.get_model("sessions_app", "BulkAction").objects
    queries = [f"queue=all&failure={key}" for key in (UUID(int=1), no, UUID(int=4))]
    for query in queries:
        bulk_actions.create(kind="resume", query=query)

    apps = migrate("0037_causes_of_what_is_shown")
    sessions = apps.get_model("sessions_app", "Session").objects
    hidden = "The tool pay failed with DE1: account is blocked"
    assert dict(sessions.values_list("pk", "failure")) == {
        tool.pk: cause_key("a", "pay", hidden),
        parked.pk: cause_key("a", "", hidden),
        shown.pk: no,
    }
    assert dict(sessions.values_list("pk", "updated_at")) == times
    links = (
        apps.get_model("sessions_app", "BulkAction").objects.order_by("pk").values_list("query", flat=True)
    )
    assert list(links) == [
        f"queue=all&failure={cause_key('a', 'pay', hidden)}",
        queries[1],
        f"queue=all&failure={UUID(int=0)}",
    ]


@pytest.mark.slow
def test_a_migration_without_the_settings_of_the_desk_has_the_search_index_made_again(older, settings):
    older("0036_shown_names")
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    search_masking.store()
    settings.AGENTSTATE_MASK_PATTERNS = []
    migrate("0037_causes_of_what_is_shown")
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    assert search_masking.outdated()


@pytest.mark.django_db
def test_keys_that_another_masking_made_are_made_again_with_the_search_index(settings):
    error = "LookupError: no account DE893704 here"
    failed = builders.failed()
    paused = builders.STATES["paused"]()
    before = cause_key(failed.agent, "", error)
    Session.objects.filter(pk=failed.pk).update(error=error, failure=before)
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+ here"]
    call_command("rebuild_search")
    after = cause_key(failed.agent, "", error)
    assert before != after
    assert dict(Session.objects.values_list("pk", "failure")) == {failed.pk: after, paused.pk: None}


@pytest.mark.django_db
@pytest.mark.parametrize("killed_in", ["name_causes_again", "search_index.update"])
def test_a_killed_rebuild_leaves_the_warning_or_has_named_every_cause_again(settings, monkeypatch, killed_in):
    search_masking.store()
    failed = builders.failed()
    error = "LookupError: no account DE893704 here"
    before = cause_key(failed.agent, "", error)
    Session.objects.filter(pk=failed.pk).update(error=error, failure=before)
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+ here"]
    connection.check_constraints()  # else PostgreSQL cannot empty the tables in the transaction of this test

    def killed(*args, **kwargs):
        raise SystemExit(9)

    monkeypatch.setattr(f"sessions_app.management.commands.rebuild_search.{killed_in}", killed)
    with pytest.raises(SystemExit, match="9"):
        call_command("rebuild_search")
    assert search_masking.outdated() == (Session.objects.get(pk=failed.pk).failure == before)
