"""The semantic cache of replies: off by default; a hit costs nothing, is shown as one, and is as durable as a reply."""

import html
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from haystack import component
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall

from agentstate import DurableAgent, SemanticCache, agent
from agentstate.domain import AgentState
from sessions_app import actions, tasks
from sessions_app.models import Checkpoint, Message, ReusableReply, Session
from sessions_app.runtime.journal import OrmJournal
from tests import builders, driving, sample_agents
from tests.dying import Died

pytestmark = pytest.mark.django_db

CACHE = SemanticCache(min_similarity=0.9, ttl=600)
embedded: list[str] = []


@component
class Topics:
    """An embedder with three meanings. Hail and storms are the same to it, and deductibles are near them."""

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        embedded.append(text)
        lower = text.lower()
        if "fails" in lower:
            raise RuntimeError("no vector here")
        weather = float("hail" in lower or "storm" in lower)
        money = float("deductible" in lower)
        return {"embedding": [weather, money, float(not weather and not money)]}


@pytest.fixture
def desk(transactional_db: None) -> Iterator[driving.Desk]:
    """A run opens and commits transactions of its own."""
    embedded.clear()
    with driving.desk() as made:
        yield made


def adviser() -> Agent:
    """Numbers its answers, so that each tells whether the model was asked."""

    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        sample_agents.effect("model")
        return ChatMessage.from_assistant(
            f"Answer {sample_agents.effects.count('model')}",
            meta={"model": "m-1", "usage": {"prompt_tokens": 100, "completion_tokens": 7}},
        )

    return Agent(chat_generator=MockChatGenerator(response_fn=reply), system_prompt="You advise.")


def register(desk: driving.Desk, build: Callable[[], Agent] = adviser, **options: Any) -> None:
    desk.agent(build, **{"embedder": Topics, "semantic_cache": CACHE, **options})


def asked(desk: driving.Desk, text: str, customer: str = "Ada") -> Session:
    return desk.run(desk.start(text, customer=customer))


def answers(desk: driving.Desk, session: Session) -> list[str]:
    return [text for role, text in desk.texts(session) if role == "assistant"]


def rewind_to_start(session: Session) -> Session:
    start = Checkpoint.objects.filter(branch__session=session, kind="start").get()
    return actions.rewind(
        actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="Wrong"
    )


def text_of(response: Any) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", response.content.decode())).split())


def test_it_is_off_by_default_and_then_nothing_is_embedded_or_stored(desk: driving.Desk) -> None:
    register(desk, semantic_cache=None)
    session = asked(desk, "Is hail covered?")
    assert embedded == []
    assert not ReusableReply.objects.exists()
    assert answers(desk, asked(desk, "Is hail covered?")) == ["Answer 2"]
    assert not desk.model_calls(session)[0].cached


@pytest.mark.slow
def test_a_question_that_means_the_same_is_answered_without_asking_the_model_and_costs_nothing(
    desk: driving.Desk,
) -> None:
    register(desk)
    first = asked(desk, "Is hail covered?")
    second = asked(desk, "Does the policy cover storms?")
    assert sample_agents.effects == ["model"]
    assert answers(desk, second) == ["Answer 1"]
    assert second.final_answer == "Answer 1"
    [paid], [hit] = desk.model_calls(first), desk.model_calls(second)
    assert (paid.cached, paid.source, paid.prompt_tokens) == (False, None, 100)
    assert (hit.cached, hit.source, hit.prompt_tokens, hit.completion_tokens) == (True, first.pk, 0, 0)
    assert hit.model == "m-1"
    assert hit.similarity == pytest.approx(1.0)
    assert second.totals["cached_replies"] == 1
    assert "model_calls" not in second.totals
    assert second.totals["prompt_tokens"] == 0
    end = Checkpoint.objects.filter(branch__session=second).latest("position")
    assert end.counters["token_usage"] == {}
    reply = Message.objects.get(branch=second.branch, role="assistant")
    assert "usage" not in str(reply.body)
    # A reply from the cache is not stored again.
    assert ReusableReply.objects.count() == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "question, customer",
    [
        ("Is hail covered?", "Bob"),
        ("Which deductible is there?", "Ada"),  # another meaning
        ("Is hail on 12 May covered?", "Ada"),  # the embedder does not see the number
        ("Is hail covered? It fails.", "Ada"),  # nor this at all
        ("Hail, storm, and the deductible", "Ada"),  # a similarity of 0.71
    ],
)
def test_the_model_is_asked_for_another_customer_meaning_or_number(
    desk: driving.Desk, question: str, customer: str
) -> None:
    register(desk)
    asked(desk, "Is hail covered?")
    assert answers(desk, asked(desk, question, customer)) == ["Answer 2"]


@pytest.mark.slow
def test_nothing_is_shared_with_another_agent_an_earlier_definition_or_without_a_customer(
    desk: driving.Desk,
) -> None:
    register(desk)
    for customer in ("", "", "Ada"):
        asked(desk, "Is hail covered?", customer)
    assert sample_agents.effects.count("model") == 3
    ReusableReply.objects.update(agent="another")
    assert answers(desk, asked(desk, "Is hail covered?")) == ["Answer 4"]

    def changed() -> Agent:
        agent = adviser()
        agent.system_prompt = "You advise briefly."
        return agent

    register(desk, changed)
    assert answers(desk, asked(desk, "Is hail covered?")) == ["Answer 5"]


@pytest.mark.slow
def test_a_later_question_is_answered_only_after_an_equal_conversation(desk: driving.Desk) -> None:
    register(desk)
    first = asked(desk, "Is hail covered?")
    desk.run(desk.say(first, "And the deductible?"))
    same = asked(desk, "Is hail covered?")
    desk.run(desk.say(same, "What is the deductible?"))
    assert answers(desk, same) == ["Answer 1", "Answer 2"]
    other = asked(desk, "Do storms count?")
    desk.run(desk.say(other, "What is the deductible?"))
    assert answers(desk, other) == ["Answer 1", "Answer 3"]


def test_replies_that_call_tools_or_follow_them_are_neither_stored_nor_served(desk: driving.Desk) -> None:
    def build() -> Agent:
        calls = [ToolCall("fast", {"q": "hail"}, id="a")]
        return Agent(chat_generator=sample_agents.scripted(calls, "Yes."), tools=[sample_agents.fast])

    register(desk, build)
    for _ in range(2):
        asked(desk, "Is hail covered?")
    assert sample_agents.effects == ["model(0)", "fast(hail)", "model(1)"] * 2
    assert not ReusableReply.objects.exists()


def test_a_reply_that_was_cut_off_is_not_stored(desk: driving.Desk) -> None:
    def build() -> Agent:
        cut = ChatMessage.from_assistant("Hail is", meta={"finish_reason": "length"})
        return Agent(chat_generator=MockChatGenerator(response_fn=lambda messages, tools=None: cut))

    register(desk, build)
    asked(desk, "Is hail covered?")
    assert not ReusableReply.objects.exists()


@pytest.mark.slow
def test_a_run_that_was_killed_after_a_hit_ends_with_the_same_reply_though_the_source_is_erased(
    desk: driving.Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(desk)
    first = asked(desk, "Is hail covered?")
    session = desk.start("Are storms?", customer="Ada")
    real = OrmJournal.reply

    def dies(self: OrmJournal, *args: Any) -> Any:
        real(self, *args)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(OrmJournal, "reply", dies)
        with pytest.raises(Died):
            desk.drive(session)
    Session.objects.filter(pk=first.pk).delete()
    assert not ReusableReply.objects.exists()
    Session.objects.filter(pk=session.pk).update(lease_expires_at="2020-01-01T00:00:00Z")
    assert answers(desk, desk.run(session)) == ["Answer 1"]
    assert sample_agents.effects == ["model"]
    [hit] = desk.model_calls(session)
    assert (hit.cached, hit.source) == (True, first.pk)


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_hit_was_stored_pays_nothing_when_it_continues(
    desk: driving.Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(desk)
    asked(desk, "Is hail covered?")
    session = desk.start("Are storms?", customer="Ada")

    def dies(self: OrmJournal, *args: Any) -> Any:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(OrmJournal, "reply", dies)
        with pytest.raises(Died):
            desk.drive(session)
    Session.objects.filter(pk=session.pk).update(lease_expires_at="2020-01-01T00:00:00Z")
    assert answers(desk, desk.run(session)) == ["Answer 1"]
    assert sample_agents.effects == ["model"]


@pytest.mark.slow
def test_a_reply_of_a_discarded_branch_is_not_served_until_an_undo(desk: driving.Desk) -> None:
    register(desk)
    first = rewind_to_start(asked(desk, "Is hail covered?"))
    assert answers(desk, asked(desk, "Are storms?", customer="Ada")) == ["Answer 2"]
    ReusableReply.objects.exclude(session=first).delete()
    actions.undo(actor=builders.SYSTEM, session_id=first.pk, reason="Right after all")
    assert answers(desk, asked(desk, "Are storms?", customer="Ada")) == ["Answer 1"]


@pytest.mark.slow
@pytest.mark.parametrize("replaced", ["system", "user", "assistant", "conversation"])
def test_a_reply_is_not_served_once_a_person_has_corrected_what_its_session_says_until_an_undo(
    desk: driving.Desk, replaced: str
) -> None:
    register(desk)
    first = asked(desk, "Is hail covered?")
    by: dict[str, Any] = {"actor": builders.SYSTEM, "session_id": first.pk, "reason": "It was wrong"}
    if replaced == "conversation":
        state = AgentState.of(first)
        corrected = replace(state.history[-1], content="No.")
        actions.write_state(**by, state=replace(state, history=(*state.history[:-1], corrected)))
    else:
        position = Message.objects.get(branch=first.branch, role=replaced).position
        actions.replace_message(**by, position=position, text="No.")
    assert answers(desk, asked(desk, "Are storms?")) == ["Answer 2"]
    ReusableReply.objects.exclude(session=first).delete()
    # A rewind to the repair's own checkpoint keeps it, and an undo takes it back.
    tip = Checkpoint.objects.filter(branch=desk.fresh(first).branch).latest("position")
    actions.rewind(**by, checkpoint_id=tip.pk)
    assert answers(desk, asked(desk, "Are storms?")) == ["Answer 3"]
    ReusableReply.objects.exclude(session=first).delete()
    for _ in range(2):
        actions.undo(**by)
    assert answers(desk, asked(desk, "Are storms?")) == ["Answer 1"]


@pytest.mark.slow
def test_the_reply_after_a_correction_and_one_of_a_session_whose_state_was_edited_are_served(
    desk: driving.Desk,
) -> None:
    def build() -> Agent:
        made = adviser()
        return Agent(
            chat_generator=made.chat_generator,
            system_prompt=made.system_prompt,
            state_schema={"tone": {"type": str}},
        )

    register(desk, build)
    first = desk.run(desk.start("Is hail covered?", customer="Ada", state={"tone": "short"}))
    by: dict[str, Any] = {"actor": builders.SYSTEM, "session_id": first.pk, "reason": "It was wrong"}
    actions.edit_state(**by, values={"tone": "long"})
    assert answers(desk, asked(desk, "Are storms?")) == ["Answer 1"]
    position = Message.objects.get(branch__session=first, role="user").position
    actions.replace_message(**by, position=position, text="Is it?", rewind=True)
    asked_again = desk.run(desk.fresh(first))
    assert answers(desk, asked_again) == ["Answer 2"]
    assert answers(desk, asked(desk, "Is it?")) == ["Answer 2"]


@pytest.mark.slow
def test_a_session_that_was_rewound_or_forked_asks_the_model(desk: driving.Desk) -> None:
    register(desk)
    first = asked(desk, "Is hail covered?")
    rewound = rewind_to_start(asked(desk, "Are storms?"))
    desk.run(desk.resume(rewound))
    assert answers(desk, rewound) == ["Answer 2"]
    start = Checkpoint.objects.filter(branch__session=first, kind="start").get()
    fork = actions.fork(actor=builders.SYSTEM, session_id=first.pk, checkpoint_id=start.pk, reason="Try")
    desk.run(desk.resume(fork))
    assert answers(desk, fork) == ["Answer 3"]


@pytest.mark.slow
def test_a_reply_is_used_for_its_time_and_then_deleted_by_the_sweep(desk: driving.Desk) -> None:
    register(desk)
    asked(desk, "Is hail covered?")
    [row] = ReusableReply.objects.all()
    assert timedelta(0) < row.expires_at - timezone.now() <= timedelta(seconds=600)
    tasks.sweep()
    assert ReusableReply.objects.exists()
    ReusableReply.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert answers(desk, asked(desk, "Are storms?")) == ["Answer 2"]
    ReusableReply.objects.exclude(pk=row.pk).delete()
    tasks.sweep()
    assert not ReusableReply.objects.exists()


@pytest.mark.slow
def test_a_question_with_a_hidden_value_is_neither_embedded_nor_answered_from_the_cache(
    desk: driving.Desk, settings: Any
) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["pin"]
    register(desk)
    for number in (1, 2):
        session = asked(desk, "Is hail covered? pin: 4711")
        assert answers(desk, session) == [f"Answer {number}"]
        # Neither what follows it.
        desk.run(desk.say(session, "And storms?"))
        sample_agents.effects.pop()
    assert embedded == []
    assert not ReusableReply.objects.exists()


@pytest.mark.slow
def test_an_embedder_or_a_store_that_fails_is_a_miss_and_said_in_the_log(
    desk: driving.Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_embedder() -> Any:
        raise RuntimeError("no model here")

    caplog.set_level(logging.WARNING)
    register(desk, embedder=no_embedder)
    assert answers(desk, asked(desk, "Is hail covered?")) == ["Answer 1"]
    assert "The embedder of the agent made-for-a-test cannot be built" in caplog.text
    register(desk)
    assert answers(desk, asked(desk, "It fails.")) == ["Answer 2"]
    assert "A text cannot be embedded" in caplog.text
    asked(desk, "Is hail covered?")
    monkeypatch.setattr("sessions_app.runtime.semantic_cache.unpack", None)
    assert answers(desk, asked(desk, "Are storms?")) == ["Answer 4"]
    assert "The semantic cache fails, so the model is asked." in caplog.text
    monkeypatch.setattr("sessions_app.runtime.semantic_cache.ModelCall", None)
    assert answers(desk, asked(desk, "Are storms?", "Bob")) == ["Answer 5"]
    assert "A reply cannot be stored in the semantic cache." in caplog.text


@pytest.mark.slow
def test_an_asynchronous_agent_is_answered_from_it_too(desk: driving.Desk) -> None:
    register(desk, run_async=True)
    asked(desk, "Is hail covered?")
    [hit] = desk.model_calls(asked(desk, "Are storms?"))
    assert hit.cached
    assert sample_agents.effects == ["model"]


@pytest.mark.slow
def test_the_desk_shows_a_hit_as_a_hit_and_where_it_comes_from(desk: driving.Desk, client: Client) -> None:
    register(desk)
    first = asked(desk, "Is hail covered?")
    session = asked(desk, "Are storms?")
    [hit] = desk.model_calls(session)
    client.force_login(builders.user("viewer"))
    timeline = text_of(client.get(f"/sessions/{session.pk}/"))
    assert "· from the semantic cache" in timeline
    assert "cached reply" in timeline
    assert "Model calls 0 Cached replies 1" in timeline
    address = f"/sessions/{session.pk}/model-calls/{hit.pk}/"
    page = client.get(address)
    assert f'href="/sessions/{first.pk}/"' in page.content.decode()
    text = text_of(page)
    assert "Answered from the semantic cache; the model was not called." in text
    assert "where it answered a question with a similarity of 1.000." in text
    assert "Tokens 0 in, 0 out" in text
    Session.objects.filter(pk=first.pk).delete()
    assert "The session that the reply comes from has been deleted." in text_of(client.get(address))
    assert "semantic cache" not in text_of(client.get(f"/sessions/{builders.done().pk}/"))
    on_agents_page = text_of(client.get(f"/agents/{driving.KEY}/"))
    assert (
        "Semantic cache replies to questions with a similarity of at least 0.9, for 10 min" in on_agents_page
    )


def test_in_a_script_the_model_is_asked_and_the_log_says_why(
    desk: driving.Desk, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    register(desk)
    assert DurableAgent.of(driving.KEY, tmp_path / "session.jsonl").run("Is hail covered?").text == "Answer 1"
    assert (
        "The agent made-for-a-test has a semantic_cache, for which only the desk has a store: "
        "its model is always asked here." in caplog.text
    )


def test_what_cannot_work_is_refused_at_registration() -> None:
    with pytest.raises(ValueError, match="has a semantic_cache, which needs an embedder too"):
        agent("never", semantic_cache=CACHE)(adviser)
    for options, why in (
        ({"min_similarity": 0}, "min_similarity must be above 0 and at most 1, not 0"),
        ({"min_similarity": 1.1}, "min_similarity must be above 0 and at most 1, not 1.1"),
        ({"ttl": 0}, "ttl must be more than 0 seconds and at most ten years"),
        ({"ttl": float("inf")}, "ttl must be more than 0 seconds and at most ten years"),
        ({"ttl": 1e15}, "ttl must be more than 0 seconds and at most ten years"),
    ):
        with pytest.raises(ValueError, match=why):
            SemanticCache(**options)
