"""Each session shows the sessions most like it: by words or by meaning, without a word of what is hidden."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client
from haystack.components.agents import Agent

from agentstate.celery import app
from agentstate.queues import LATER_QUEUE
from sessions_app import actions, tasks, wake
from sessions_app.finding import search_index
from sessions_app.models import Checkpoint, Message, Session, SessionDigest, SessionWord, SimilarSession
from sessions_app.runtime import similar
from tests import builders, driving, sample_agents
from tests.test_long_term_memory import Topics

pytestmark = pytest.mark.django_db


def session(text: str, title: str = "x", agent: str = "claims") -> Session:
    history = builders.History(title=title, customer="Ada", agent_key=agent)
    history.user(text)
    return history.rest("paused")


def nearest(row: Session) -> list[str]:
    similar.compare(row.pk)
    return [found.other.title for found in SimilarSession.objects.filter(session=row).select_related("other")]


@pytest.fixture
def embedding_agent() -> Iterator[str]:
    with driving.desk() as desk:
        desk.agent(lambda: Agent(chat_generator=sample_agents.scripted("Done.")), embedder=Topics)
        yield driving.KEY


@pytest.mark.slow
def test_sessions_are_compared_by_their_words_and_the_nearest_ten_are_stored() -> None:
    for number in range(12):
        similar.compare(session("my windscreen is broken", f"glass {number}").pk)
    similar.compare(session("hail on the roof", "hail").pk)
    similar.compare(session("the invoice is wrong", "invoice").pk)
    asked = session("Windscreen broken by hail on the motorway", "new")
    found = nearest(asked)
    assert len(found) == 10
    assert found[0] == "hail"
    assert set(found[1:]) <= {f"glass {number}" for number in range(12)}
    assert nearest(asked) == found


def test_with_an_embedder_sessions_are_compared_by_meaning(embedding_agent: str) -> None:
    for title, text in {"a": "please phone about this matter", "b": "my vehicle about this matter"}.items():
        similar.compare(session(text, title, embedding_agent).pk)
    asked = session("a car, about this matter", "new", embedding_agent)
    assert nearest(asked) == ["b"]
    assert SimilarSession.objects.get(session=asked).by_meaning


def test_two_sessions_that_share_only_a_hidden_value_are_not_found_like_each_other(
    settings: LazySettings,
) -> None:
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    similar.compare(session("DE123", "secret").pk)
    assert nearest(session("DE123", "guess")) == []
    assert not SessionWord.objects.filter(word__startswith="de1").exists()


@pytest.mark.slow
def test_the_page_shows_them_masked_in_one_query_and_none_of_another_masking(
    client: Client, settings: LazySettings
) -> None:
    client.force_login(builders.user("viewer"))
    similar.compare(session("my windscreen is broken", "Glass of DE123").pk)
    asked = session("windscreen", "new")
    similar.compare(asked.pk)
    address = f"/sessions/{asked.pk}/memories/"
    assert "Glass of DE123" in client.get(address).content.decode()
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    assert "Sessions like this one" not in client.get(address).content.decode()
    call_command("rebuild_similar")
    page = client.get(address).content.decode()
    assert "Glass of ••••" in page
    assert "DE123" not in page


def vectors() -> list[bytes | None]:
    stored = SessionDigest.objects.order_by("pk").values_list("vector", flat=True)
    return [None if vector is None else bytes(vector) for vector in stored]


def test_nothing_is_compared_again_where_a_module_of_agents_cannot_be_imported(
    embedding_agent: str, settings: LazySettings, capsys: pytest.CaptureFixture[str]
) -> None:
    similar.compare(session("a car", "a", embedding_agent).pk)
    before = vectors()
    driving.unregister(embedding_agent)
    settings.AGENTSTATE_AGENTS = ["tests.no_such_agents", "agentstate.demo.agents"]
    with pytest.raises(CommandError, match=r"^No session was compared\. .*tests\.no_such_agents"):
        call_command("rebuild_similar")
    assert vectors() == before != [None]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("lack", ["not registered", "cannot be built", "fails"])
def test_a_process_that_cannot_embed_leaves_a_session_its_vector_and_says_so(
    embedding_agent: str, settings: LazySettings, lack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AGENTSTATE_AGENTS = []
    for title, text in {"a": "please phone about this matter", "b": "my vehicle about this matter"}.items():
        similar.compare(session(text, title, embedding_agent).pk)
    asked = session("a car, about this matter", "new", embedding_agent)
    assert nearest(asked) == ["b"]
    before = vectors()

    def fail(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route to host")

    if lack == "not registered":
        driving.unregister(embedding_agent)
    elif lack == "cannot be built":
        monkeypatch.setattr("agentstate.durable.embedding._built", {})
        monkeypatch.setattr(Topics, "__init__", fail)
    else:
        monkeypatch.setattr(Topics, "run", fail)
    told = (
        "^3 sessions could not be compared by meaning as now configured, since the embedder failed or the agent is "
        rf"not registered here \(AGENTSTATE_AGENTS\): {embedding_agent}\."
    )
    with pytest.raises(CommandError, match=told):
        call_command("rebuild_similar")
    assert vectors() == before
    assert SimilarSession.objects.get(session=asked).other.title == "b"
    # What is hidden from now on may be in these.
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    with pytest.raises(CommandError, match=told):
        call_command("rebuild_similar")
    assert vectors() == [None] * 3


def test_sessions_of_an_agent_that_never_had_an_embedder_are_compared_wherever_it_is_registered(
    settings: LazySettings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.AGENTSTATE_AGENTS = []
    session("my windscreen is broken", agent="gone")
    call_command("rebuild_similar")
    assert capsys.readouterr() == ("1 session compared.\n", "")


@pytest.mark.parametrize("command", ["rebuild_similar", "rebuild_search"])
def test_a_database_that_cannot_be_used_is_a_sentence(
    command: str, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AGENTSTATE_AGENTS = []
    session("my windscreen is broken")

    def full(*args: object, **kwargs: object) -> None:
        raise OperationalError("database or disk is full")

    monkeypatch.setattr(similar, "compare", full)
    monkeypatch.setattr(search_index, "update", full)
    with pytest.raises(CommandError, match=r"^The database cannot be used: database or disk is full\.$"):
        call_command(command)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_worker_compares_a_session_that_has_come_to_rest(
    embedding_agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "heartbeat", lambda: None)  # it would outlive the test
    desk = driving.Desk()
    other = desk.start("my windscreen is broken", title="first", customer="Ada")
    tasks.advance(str(other.pk))
    started = desk.start("the windscreen", title="second", customer="Bob")
    tasks.advance(str(started.pk))
    assert [row.other for row in SimilarSession.objects.filter(session=started)] == [other]


def test_what_is_known_of_a_deleted_session_is_deleted() -> None:
    first, second = session("windscreen", "a"), session("windscreen", "b")
    for row in (first, second, first):
        similar.compare(row.pk)
    assert SimilarSession.objects.count() == 2
    Session.objects.filter(pk=first.pk).update(branch=None)
    Session.objects.get(pk=first.pk).delete()
    assert not SimilarSession.objects.exists()
    assert [digest.session_id for digest in SessionDigest.objects.all()] == [second.pk]
    similar.compare(first.pk)


@pytest.mark.slow
def test_a_session_at_rest_is_compared_again_once_its_answer_is_corrected_and_once_that_is_undone(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    def run_compare(name: str, arguments: tuple[str], **options: Any) -> None:
        assert name == tasks.compare.name
        tasks.compare(*arguments)

    monkeypatch.setattr("agentstate.celery.app.send_task", run_compare)
    for title, text in {"glass": "my windscreen is broken", "roof": "hail hit tiles"}.items():
        similar.compare(session(text, title).pk)
    row = builders.done()
    assert nearest(row) == ["glass"]
    answer = Message.objects.filter(branch=row.branch, role=Message.Role.ASSISTANT).latest("position")
    for act, found in (
        (
            partial(actions.replace_message, position=answer.position, text="It was the tiles."),
            {"glass", "roof"},
        ),
        (actions.undo, {"glass"}),
    ):
        with django_capture_on_commit_callbacks(execute=True):
            act(actor=builders.SYSTEM, session_id=row.pk, reason="wrong")
        stored = SimilarSession.objects.filter(session=row).select_related("other")
        assert {other.other.title for other in stored} == found


@pytest.mark.django_db(transaction=True)
def test_a_session_that_goes_on_is_not_compared_by_the_action_and_one_at_rest_behind_other_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[str] = []
    monkeypatch.setattr("agentstate.celery.app.send_task", lambda name, *args, **options: sent.append(name))
    row = builders.done()
    start = Checkpoint.objects.filter(branch=row.branch).earliest("position")
    for run, name in ((False, wake.COMPARE), (True, wake.ADVANCE)):
        actions.rewind(
            actor=builders.SYSTEM, session_id=row.pk, checkpoint_id=start.pk, reason="again", run=run
        )
        assert sent.pop() == name
        assert not sent
    assert app.amqp.router.route({}, wake.COMPARE)["queue"].name == LATER_QUEUE
