"""The page of a model call: its input is rebuilt from the history, and is what the model was given."""

import html
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage

from agentstate.durable.agent import make_durable
from agentstate.durable.run import Options, run
from agentstate.prices import Price, price_of, read_prices
from sessions_app.desk.pages.session import model_call
from sessions_app.models import AgentDefinition, ModelCall, Session
from tests import builders, sample_agents
from tests.adapters import OrmAdapter

pytestmark = pytest.mark.django_db


def text_of(response: Any) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", response.content.decode())).split())


def spoken(message: ChatMessage) -> str:
    """The text of a message, or of the tool's result that it is."""
    results = message.tool_call_results
    return str(results[0].result) if results else message.text or ""


@pytest.mark.slow
@pytest.mark.parametrize("each_step_alone", [False, True])
@pytest.mark.parametrize(
    "build",
    [sample_agents.three_steps, sample_agents.compacting, sample_agents.redacting, sample_agents.hooked],
)
def test_the_input_is_what_the_model_was_given(build: Callable[[], Agent], each_step_alone: bool) -> None:
    sample_agents.effects.clear()
    agent, given = build(), []
    inner = agent.chat_generator.run

    def recording(messages: list[ChatMessage], **kwargs: Any) -> Any:
        given.append([spoken(message) for message in messages])
        return inner(messages=messages, **kwargs)

    agent.chat_generator.run = recording  # type: ignore[method-assign]
    adapter, durable = OrmAdapter(agent="claims"), make_durable(agent)
    options = Options(slice_is_over=lambda: each_step_alone)
    outcome = run(durable, adapter.open(say="Hello, look it up."), options)
    while outcome.status == "queued":
        outcome = run(durable, adapter.open(), options)
    assert outcome.status == "idle", outcome.why
    context = builders.context_of(Session.objects.get(pk=adapter.pk))
    calls = ModelCall.objects.filter(name="agent").order_by("position")
    pages = [model_call.read_page(context, call.pk) for call in calls]
    assert given == [[message.text for message in page.messages] for page in pages if page is not None]
    sample_agents.effects.clear()


@pytest.mark.slow
def test_the_page_shows_output_tokens_tools_and_cost_and_is_linked_from_the_timeline(
    operator: Client, settings: Any
) -> None:
    settings.AGENTSTATE_PRICES = {"mock-model": Price(Decimal(2), Decimal(10))}
    settings.AGENTSTATE_CURRENCY = "EUR"
    agent = Agent(
        chat_generator=MockChatGenerator("It is covered."),
        tools=[sample_agents.fast],
        system_prompt="You decide claims.",
    )
    adapter, durable = OrmAdapter(agent="claims"), make_durable(agent)
    parts = {"tools": {"fast": {"description": "Answers at once.", "parameters": {"type": "object"}}}}
    AgentDefinition.objects.create(agent="claims", definition=durable.definition, parts=parts)
    run(durable, adapter.open(say="Is it covered?"))
    call = ModelCall.objects.get()
    ModelCall.objects.update(prompt_tokens=1000, completion_tokens=500)
    address = f"/sessions/{adapter.pk}/model-calls/{call.pk}/"
    assert f'href="{address}"' in operator.get(f"/sessions/{adapter.pk}/").content.decode()
    text = text_of(operator.get(address))
    for shown in (
        "Tokens 1,000 in, 500 out",
        "Cost EUR 0.007 at the configured prices",
        "Output assistant It is covered.",
        "Input rebuilt",
        "system You decide claims. user Is it covered?",
        "fast Answers at once.",
    ):
        assert shown in text
    assert operator.get(f"/sessions/{builders.done().pk}/model-calls/{call.pk}/").status_code == 404


@pytest.mark.slow
def test_values_that_are_hidden_stay_hidden_in_a_rebuilt_input(operator: Client, settings: Any) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["iban"]
    history = builders.asked()
    history.reply(calls=[("lookup_policy", {"policy": "POL-7", "iban": "DE89370400440532013000"})])
    history.finish(history.calls[-1], '{"iban": "DE02120300000000202051"}')
    history.checkpoint("step")
    history.reply("Done.")
    history.rest("paused")
    for call in ModelCall.objects.all():
        page = operator.get(f"/sessions/{history.session.pk}/model-calls/{call.pk}/").content.decode()
        assert "POL-7" in page
        assert "DE89370400440532013000" not in page
        assert "DE02120300000000202051" not in page


def test_a_call_that_failed_and_one_of_a_hook_say_so(operator: Client) -> None:
    history = builders.asked()
    history.model_fails()
    session = history.rest("paused")
    failed = ModelCall.objects.get()
    text = text_of(operator.get(f"/sessions/{session.pk}/model-calls/{failed.pk}/"))
    assert "None: the call failed." in text
    assert failed.error in text
    ModelCall.objects.update(name="CompactionHook:1", error="", side_replies=[{"role": "assistant"}])
    text = text_of(operator.get(f"/sessions/{session.pk}/model-calls/{failed.pk}/"))
    assert "What the hook passed to its generator is not on record." in text


@pytest.mark.slow
def test_the_page_costs_the_same_for_a_long_history(operator: Client, django_assert_num_queries: Any) -> None:
    for steps in (2, 80):
        history = builders.asked()
        for number in range(steps):
            history.lookup(f"POL-{number}")
        session = history.rest("paused")
        call = ModelCall.objects.filter(branch__session=session).latest("position")
        with django_assert_num_queries(13):
            operator.get(f"/sessions/{session.pk}/model-calls/{call.pk}/")


def test_prices_are_read_by_model_and_hold_for_dated_names() -> None:
    prices = read_prices(["gpt-5=1.25/10", "gpt-5-mini=0.25/2"])
    assert price_of("gpt-5-mini-2025-08-07", prices) == Price(Decimal("0.25"), Decimal(2))
    assert price_of("gpt-5", prices) == Price(Decimal("1.25"), Decimal(10))
    assert price_of("gpt-50", prices) is None
    assert Price(Decimal("0.25"), Decimal(2)).of(2_000_000, 500_000) == Decimal("1.5")
    for wrong in ("gpt-5", "gpt-5=1", "=1/2", "gpt-5=1/x", "gpt-5=-1/2", "gpt-5=1/NaN"):
        with pytest.raises(ValueError, match="it must be MODEL=IN/OUT"):
            read_prices([wrong])
