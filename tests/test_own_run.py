"""An agent with a `run` of its own, around the agent's loop or without it, gives what it gives plainly."""

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import LLM, MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall

from agentstate import Answered, DurableAgent, Failed, ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.durable.port import LeaseLost
from agentstate.durable.run import Options, run
from agentstate.journals import MemoryJournal
from tests.dying import Died
from tests.sample_agents import effect, effects, fast, scripted
from tests.test_durable_run import DyingJournal, comparable

pytestmark = pytest.mark.usefixtures("no_effects")

IDEMPOTENT = {"fast": ToolPolicy(idempotent=True)}


def like_run(method: Callable[..., Any]) -> Any:
    """With the signature of `Agent.run`: Haystack wants that of `run_async`."""
    return wraps(Agent.run)(method)


class Guarded(Agent):
    """Answers some questions by itself."""

    @like_run
    def run(self, messages: list[ChatMessage], *args: Any, **options: Any) -> dict[str, Any]:
        if "secret" in (messages[-1].text or ""):
            refusal = ChatMessage.from_assistant("I will not.")
            return {"messages": [*messages, refusal], "last_message": refusal, "exit_reason": "refused"}
        return super().run(messages, *args, **options)

    @like_run
    async def run_async(self, *args: Any, **options: Any) -> Any:
        return self.run(*args, **options)


class Signing(Agent):
    """Adds to what its loop has answered, in the conversation and in its state."""

    @like_run
    def run(self, *args: Any, **options: Any) -> dict[str, Any]:
        effect("begins")
        result = super().run(*args, **options)
        effect("signs")
        signature = ChatMessage.from_assistant("Yours, the desk.")
        return {
            **result,
            "messages": [*result["messages"], signature],
            "last_message": signature,
            "signed": "yes",
        }


class Strict(Agent):
    @like_run
    def run(self, *args: Any, **options: Any) -> dict[str, Any]:
        result = super().run(*args, **options)
        raise ValueError(f"Not good enough: {result['last_message'].text}")


class Insisting(Agent):
    @like_run
    def run(self, messages: list[ChatMessage], *args: Any, **options: Any) -> dict[str, Any]:
        first = super().run(messages, *args, **options)
        return super().run([*first["messages"], ChatMessage.from_user("As JSON.")], *args, **options)


class Consoling(Agent):
    @like_run
    def run(self, messages: list[ChatMessage], *args: Any, **options: Any) -> dict[str, Any]:
        try:
            return super().run(messages, *args, **options)
        except Exception:
            return {"last_message": ChatMessage.from_assistant("Sorry.")}


def looks_up(kind: type[Agent], **options: Any) -> Agent:
    generator = scripted([ToolCall("fast", {"q": "a"}, id="c1")], "Found.")
    return kind(chat_generator=generator, tools=[fast], **options)


def signing() -> Agent:
    return looks_up(Signing, state_schema={"signed": {"type": str}}, system_prompt="You write letters.")


def talk(journal: Any) -> list[str]:
    """The texts of the answers to three questions, of which the agent answers the second by itself."""
    shop = DurableAgent(Guarded(chat_generator=MockChatGenerator("Hello.")), journal)
    return [shop.run(text, key=text).text for text in ("hi", "the secret", "hi again")]


def test_an_answer_without_the_loop_ends_its_turn_and_stays_in_the_conversation() -> None:
    journal = MemoryJournal.open()
    assert talk(journal) == ["Hello.", "I will not.", "Hello."]
    shop = DurableAgent(Guarded(chat_generator=MockChatGenerator("Hello.")), journal)
    assert [message.text for message in shop.history()] == [
        "hi", "Hello.", "the secret", "I will not.", "hi again", "Hello.",
    ]  # fmt: skip
    assert shop.run("the secret", key="the secret").result["exit_reason"] == "refused"
    assert talk(journal) == ["Hello.", "I will not.", "Hello."]


def test_an_answer_without_the_loop_of_an_asynchronous_run_does_too() -> None:
    shop = DurableAgent(Guarded(chat_generator=MockChatGenerator("Hello.")), MemoryJournal.open())
    assert asyncio.run(shop.run_async("the secret")).text == "I will not."


def test_an_answer_in_place_of_a_loop_that_failed_is_the_answer() -> None:
    def fails(messages: list[ChatMessage]) -> str:
        raise ValueError("No.")

    shop = DurableAgent(Consoling(chat_generator=MockChatGenerator(response_fn=fails)), MemoryJournal.open())
    assert shop.run("hi", key="hi").text == "Sorry."
    assert [message.text for message in shop.history()] == ["hi", "Sorry."]


@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_what_follows_the_loop_is_part_of_the_turn_also_after_a_kill_at_any_write(committed: bool) -> None:
    plain = signing().run(messages=[ChatMessage.from_user("hi")])
    number, died = 0, True
    while died:
        number += 1
        effects.clear()
        first = DyingJournal.open(say="hi")
        assert isinstance(first, DyingJournal)
        first.dies_at, first.committed = number, committed
        died = False
        try:
            run(make_durable(signing(), policies=IDEMPOTENT), first)
        except (Died, LeaseLost):
            died = True
            run(make_durable(signing(), policies=IDEMPOTENT), MemoryJournal.open(first.store))
        on_record = DurableAgent(signing(), MemoryJournal.open(first.store), policies=IDEMPOTENT).resume()
        assert comparable(on_record.result) == comparable(plain), f"write {number}"
        assert effects.count("model(0)") <= 2 - committed
    assert number > 4


def test_code_behind_the_loop_does_not_run_where_a_slice_ends_and_the_turn_does_not() -> None:
    durable = make_durable(signing())
    journal = MemoryJournal.open(say="hi")
    while run(durable, journal, Options(slice_is_over=lambda: True)).status == "queued":
        journal = MemoryJournal.open(journal.store)
    assert effects.count("signs") == 1
    assert journal.store.outcome["final_answer"] == "Yours, the desk."


def test_an_error_behind_the_loop_fails_the_turn_as_in_a_plain_run() -> None:
    outcome = DurableAgent(looks_up(Strict), MemoryJournal.open(), policies=IDEMPOTENT).run("hi")
    assert isinstance(outcome, Failed)
    assert outcome.why == "ValueError: Not good enough: Found."


def test_a_second_loop_in_one_run_is_refused_with_what_to_do_instead() -> None:
    outcome = DurableAgent(looks_up(Insisting), MemoryJournal.open(), policies=IDEMPOTENT).run("hi")
    assert isinstance(outcome, Failed)
    assert "runs its loop a second time" in outcome.why
    assert "continue_run" in outcome.why


@pytest.mark.parametrize(
    "result", [None, "Hello.", {"replies": []}, {"messages": "Hello."}], ids=lambda result: str(result)[:20]
)
def test_a_result_that_is_none_of_an_agent_fails_the_turn(result: Any) -> None:
    class Odd(Agent):
        @like_run
        def run(self, *args: Any, **options: Any) -> Any:
            return result

    outcome = DurableAgent(Odd(chat_generator=MockChatGenerator("Hello.")), MemoryJournal.open()).run("hi")
    assert isinstance(outcome, Failed)
    assert outcome.why.startswith("TypeError: The run of Odd returned no messages")


def build_llm() -> LLM:
    return LLM(chat_generator=MockChatGenerator("Hello."), user_prompt="Greet {{ who }}.")


def test_on_record_an_llm_has_the_outputs_that_it_has_plainly() -> None:
    plain = build_llm().run(messages=[ChatMessage.from_user("hi")], who="Ann")
    journal = MemoryJournal.open()
    ask: Callable[[], Any] = lambda: DurableAgent(build_llm(), journal).run("hi", key="k", who="Ann")  # noqa: E731
    assert isinstance(ask(), Answered)
    assert ask().result.keys() == plain.keys()
