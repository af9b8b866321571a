"""The start of a turn reads its messages once, whatever a `before_run` hook makes of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.dataclasses import ChatMessage
from haystack.hooks import hook

from agentstate.durable.agent import make_durable
from agentstate.durable.run import Options, run
from sessions_app.models import InboxMessage, Message, StopRequest
from tests import sample_agents
from tests.adapters import Adapter, FileAdapter, MemoryAdapter, OrmAdapter
from tests.sample_agents import effects, scripted

ADAPTERS = ["memory", "file", pytest.param("orm", marks=pytest.mark.django_db)]


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Adapter]:
    sample_agents.effects.clear()
    adapters: dict[str, Callable[[], Adapter]] = {
        "memory": MemoryAdapter,
        "file": lambda: FileAdapter(tmp_path / "session.jsonl"),
        "orm": OrmAdapter,
    }
    adapter = adapters[request.param]()
    yield adapter
    adapter.close()
    sample_agents.effects.clear()


def seen(adapter: Adapter) -> list[str]:
    """The texts that the model sees from here on."""
    checkpoint = adapter.open().load().checkpoint
    assert checkpoint is not None
    return [message.body["content"][0]["text"] for message in checkpoint.context]


def answering(*hooks: Any) -> Agent:
    return Agent(chat_generator=scripted("Hello."), hooks={"before_run": list(hooks)})


def test_a_message_that_a_hook_rewrites_makes_one_turn(adapter: Adapter) -> None:
    outcome = run(make_durable(answering(sample_agents.redact)), adapter.open(say="secret"))
    assert outcome.status == "idle"
    assert effects == ["model(0)"]
    assert adapter.open().load().unread == ()
    assert seen(adapter) == ["******", "Hello."]


def test_what_a_hook_redacted_is_stored_nowhere_and_does_not_come_back_in_a_later_turn(
    adapter: Adapter,
) -> None:
    durable = make_durable(answering(sample_agents.redact))
    slices = Options(slice_is_over=lambda: True)
    run(durable, adapter.open(say="secret"), slices)
    while run(durable, adapter.open(), slices).status == "queued":
        pass
    assert run(durable, adapter.open(say="word")).status == "idle"
    assert seen(adapter) == ["******", "Hello.", "****", "Hello."]
    if isinstance(adapter, OrmAdapter):
        assert not InboxMessage.objects.exists()
        assert "secret" not in str(list(Message.objects.values_list("body", "text")))


def test_a_message_that_a_hook_leaves_out_is_not_read_again(adapter: Adapter) -> None:
    @hook
    def only_greet(state: State) -> None:
        state.set("messages", [ChatMessage.from_user("Be kind.")], handler_override=replace_values)

    assert run(make_durable(answering(only_greet)), adapter.open(say="never mind")).status == "idle"
    assert seen(adapter) == ["Be kind.", "Hello."]


def test_the_outcome_is_queued_where_an_unread_message_begins_the_next_turn(adapter: Adapter) -> None:
    @hook
    def meanwhile(state: State) -> None:
        if not said:
            said.append(True)
            adapter.say("One more thing.")

    said: list[bool] = []
    agent = Agent(chat_generator=scripted("Hello."), hooks={"after_run": [meanwhile]})
    outcome = run(make_durable(agent), adapter.open(say="hi"))
    assert (outcome.status, adapter.fields()["status"]) == ("queued", "queued")
    assert outcome.result is not None
    assert outcome.result["last_message"].text == "Hello."
    outcome = run(make_durable(agent), adapter.open())
    assert (outcome.status, adapter.fields()["status"]) == ("idle", "idle")


@pytest.mark.django_db
def test_the_outcome_is_what_a_person_requested_where_that_overrules_the_end_of_the_run() -> None:
    adapter = OrmAdapter()

    def fails(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        type(adapter.session).objects.filter(pk=adapter.pk).update(stop_request=StopRequest.CANCEL)
        raise TimeoutError("too slow")

    from haystack.components.generators.chat import MockChatGenerator

    agent = Agent(chat_generator=MockChatGenerator(response_fn=fails))
    outcome = run(make_durable(agent), adapter.open(say="hi"))
    assert (outcome.status, adapter.fields()["status"]) == ("cancelled", "cancelled")
