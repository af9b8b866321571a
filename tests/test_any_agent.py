"""Any Haystack agent can be made durable, also a subclass; one that cannot be is published with its problem."""

from dataclasses import dataclass
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import LLM, MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool, Toolset
from pytest_django import Settings

from agentstate import agent
from agentstate.durable.agent import make_durable
from agentstate.durable.port import LeaseLost
from agentstate.durable.registry import AgentBuildFailed, Registration, registry
from agentstate.durable.run import run
from agentstate.journals import MemoryJournal
from sessions_app.models import RegisteredAgent
from sessions_app.runtime.agents import publish_agents
from tests.dying import Died
from tests.sample_agents import effect, effects, fast, scripted
from tests.test_durable_run import DyingJournal, comparable

pytestmark = pytest.mark.usefixtures("no_effects")


class Shop(Agent):
    """A subclass that builds its own parts and takes none of the agent's options."""

    def __init__(self, city: str) -> None:
        super().__init__(
            chat_generator=scripted([ToolCall("fast", {"q": city}, id="s1")], f"Found in {city}."),
            tools=[fast],
            system_prompt="You run a shop.",
        )
        self.town = city

    def warm_up(self) -> None:
        effect(f"opened in {self.town}")
        super().warm_up()


def test_a_subclass_with_a_constructor_of_its_own_runs_as_it_does_plainly() -> None:
    plain = Shop("Ulm").run([ChatMessage.from_user("hi")])
    outcome = run(make_durable(Shop("Ulm")), MemoryJournal.open(say="hi"))
    assert outcome.result is not None, outcome.why
    assert comparable(outcome.result) == comparable(plain)
    assert effects == ["opened in Ulm", "model(0)", "fast(Ulm)", "model(1)"] * 2


def test_haystacks_llm_runs_as_it_does_plainly() -> None:
    def build() -> LLM:
        return LLM(
            chat_generator=MockChatGenerator("Hello."),
            user_prompt="Greet {{ who }}.",
            system_prompt="You greet.",
        )

    plain = build().run(messages=[ChatMessage.from_user("hi")], who="Ann")
    journal = MemoryJournal.open(say="hi", inputs={"state": {"who": "Ann"}})
    outcome = run(make_durable(build()), journal)
    assert outcome.result is not None, outcome.why
    assert comparable(outcome.result) == comparable(plain)


def test_the_users_agent_is_not_changed() -> None:
    shop = Shop("Ulm")
    hooks, generator = shop.hooks, shop.chat_generator
    make_durable(shop)
    assert shop.chat_generator is generator
    assert shop.hooks is hooks
    assert shop.hooks == {}


def summary(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
    effect("summary")
    return ChatMessage.from_assistant("A summary.")


class Summariser:
    """A hook that asks a model of its own before each step."""

    def __init__(self) -> None:
        self._generator = MockChatGenerator(response_fn=summary)

    @property
    def chat_generator(self) -> Any:
        return self._generator

    def run(self, state: State) -> None:
        self.chat_generator.run(messages=[ChatMessage.from_user("Summarise.")])

    def to_dict(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Summariser":
        return cls()


@dataclass(frozen=True)
class FrozenSummariser:
    chat_generator: Any

    def run(self, state: State) -> None:
        self.chat_generator.run(messages=[ChatMessage.from_user("Summarise.")])

    def to_dict(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "FrozenSummariser":
        return cls(MockChatGenerator(response_fn=summary))


class Forgetful(Summariser):
    """Its generator is new each time, so there is nowhere to put another."""

    @property
    def chat_generator(self) -> Any:
        return MockChatGenerator("A summary.")


@pytest.mark.parametrize(
    "hook", [Summariser, lambda: FrozenSummariser(MockChatGenerator(response_fn=summary))]
)
def test_what_the_model_of_a_hook_replied_is_not_requested_again_where_its_generator_is_read_only(
    hook: Any,
) -> None:
    built = Agent(chat_generator=scripted("Hello."), hooks={"before_llm": [hook()]})
    durable = make_durable(built)
    journal = DyingJournal.open(say="hi")
    assert isinstance(journal, DyingJournal)
    journal.dies_at, journal.committed = 3, True  # the reply to the hook
    with pytest.raises((Died, LeaseLost)):
        run(durable, journal)
    assert run(durable, MemoryJournal.open(journal.store)).status == "idle"
    assert effects == ["summary", "model(0)"]


def test_a_generator_of_a_hook_that_cannot_be_replaced_is_refused_with_the_reason() -> None:
    built = Agent(chat_generator=scripted("Hello."), hooks={"before_llm": [Forgetful()]})
    with pytest.raises(AgentBuildFailed, match="'shop' has a Forgetful whose chat_generator cannot be"):
        make_durable(built, key="shop")


class Unreadable(Agent):
    @property
    def system_prompt(self) -> str:
        raise RuntimeError("not today")

    @system_prompt.setter
    def system_prompt(self, value: Any) -> None:
        pass


class Unreachable(Toolset):
    def get_selectable_tools(self) -> list[Tool]:
        raise ConnectionError("the server is away")


def odd_schema() -> Agent:
    parameters = {"type": "object", "properties": {"at": {"type": "string", "default": {1, 2}}}}
    odd = Tool(name="odd", description="A NUL: \x00.", parameters=parameters, function=len)
    return Agent(chat_generator=scripted("Hello."), tools=[odd])


@pytest.mark.django_db
@pytest.mark.usefixtures("own_registry")
def test_an_agent_that_fails_in_any_way_is_published_with_its_problem_and_the_others_work(
    settings: Settings,
) -> None:
    settings.AGENTSTATE_AGENTS = []
    agent("shop")(lambda: Shop("Ulm"))
    registry.add(Registration("unreadable", "Unreadable", lambda: Unreadable(chat_generator=scripted("."))))
    forgetful = Agent(chat_generator=scripted("."), hooks={"before_llm": [Forgetful()]})
    registry.add(Registration("forgetful", "Forgetful", lambda: forgetful))
    away = Agent(chat_generator=scripted("."), tools=Unreachable([]))
    registry.add(Registration("away", "Away", lambda: away))
    registry.add(Registration("odd", "Odd", odd_schema))
    registry.add(Registration("llm", "LLM", lambda: LLM(chat_generator=MockChatGenerator("Hello."))))
    publish_agents()
    problems = dict(RegisteredAgent.objects.values_list("key", "problem"))
    assert {key for key, problem in problems.items() if not problem} == {"shop", "llm", "odd"}
    assert "RuntimeError: not today" in problems["unreadable"]
    assert "chat_generator cannot be replaced" in problems["forgetful"]
    assert "the server is away" in problems["away"]
