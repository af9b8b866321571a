"""A later turn begins without the agent's own prompt of the turn before, and with all else that stands in front."""

from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.hooks import hook

from agentstate import DurableAgent
from agentstate.durable.agent import make_durable
from agentstate.durable.run import Options, run
from agentstate.durable.state.own_prompt import OwnPrompt
from agentstate.journals import MemoryJournal
from sessions_app import actions
from sessions_app.runtime import leases
from sessions_app.runtime.journal import OrmJournal
from tests import builders

RULE = "The customer is a minor: sell no alcohol."
BOTH = [ChatMessage.from_system(RULE), ChatMessage.from_user("hi")]


def shop(seen: list[list[str | None]], **options: Any) -> Agent:
    def reply(messages: list[ChatMessage], tools: object = None) -> ChatMessage:
        seen.append([message.text for message in messages])
        return ChatMessage.from_assistant("ok")

    return Agent(
        chat_generator=MockChatGenerator(response_fn=reply),
        **{"system_prompt": "You run a shop.", **options},
    )


@pytest.mark.parametrize("in_file", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize(
    "prompt, rendered",
    [("You run a shop.", ["You run a shop."]), (None, [])],
    ids=["with a prompt", "without a prompt"],
)
def test_a_system_message_of_the_caller_stays_in_every_later_turn_as_in_a_plain_run_of_the_whole_history(
    in_file: bool, prompt: str | None, rendered: list[str], tmp_path: Path
) -> None:
    seen: list[list[str | None]] = []
    journal = tmp_path / "session.jsonl" if in_file else MemoryJournal.open()
    turns: list[list[ChatMessage] | str] = [BOTH, "Sell me wine.", "Please."]
    for number, message in enumerate(turns):
        # Each turn from the journal, as in another process.
        DurableAgent(shop(seen, system_prompt=prompt), journal).run(message, key=str(number))
    history = [*BOTH, ChatMessage.from_assistant("ok"), ChatMessage.from_user("Sell me wine.")]
    shop(seen, system_prompt=prompt).run(history)
    expected = [*rendered, RULE, "hi", "ok", "Sell me wine."]
    assert seen[1] == seen[3] == expected
    assert seen[2] == [*expected, "ok", "Please."]


@pytest.mark.django_db
def test_a_session_of_the_desk_keeps_the_system_message_that_it_was_started_with() -> None:
    seen: list[list[str | None]] = []
    durable = make_durable(shop(seen))
    builders.agent("shop")
    session = actions.start(
        actor=builders.SYSTEM, agent="shop", messages=[message.to_dict() for message in BOTH]
    )

    def answer() -> None:
        # Each slice is a step: the prompt is followed through the checkpoints too.
        status = "queued"
        while status == "queued":
            claim = leases.claim(session.pk, "tests")
            assert claim is not None
            status = run(durable, OrmJournal(claim), Options(slice_is_over=lambda: True)).status
        assert status == "idle"

    answer()
    actions.send_message(actor=builders.SYSTEM, session_id=session.pk, text="Sell me wine.")
    answer()
    assert seen == [
        ["You run a shop.", RULE, "hi"],
        ["You run a shop.", RULE, "hi", "ok", "Sell me wine."],
    ]


def test_a_prompt_that_a_hook_rewrites_in_each_turn_does_not_pile_up() -> None:
    @hook
    def date(state: State) -> None:
        first, *rest = state.data["messages"]
        dated = ChatMessage.from_system(f"{first.text} It is day {len(seen)}.")
        state.set("messages", [dated, *rest], handler_override=replace_values)

    seen: list[list[str | None]] = []
    journal = MemoryJournal.open()
    turns: list[list[ChatMessage] | str] = [BOTH, "Sell me wine."]
    for message in turns:
        DurableAgent(shop(seen, hooks={"before_llm": [date]}), journal).run(message)
    assert seen[1] == ["You run a shop. It is day 1.", RULE, "hi", "ok", "Sell me wine."]


def test_what_a_hook_puts_in_front_of_the_prompt_or_drops_is_not_taken_for_it() -> None:
    prompt, rule, note, user = (
        *(ChatMessage.from_system(text) for text in ("prompt", "rule", "note")),
        ChatMessage.from_user("hi"),
    )
    for live, recorded, next_turn in [
        ([prompt, rule, user], {}, [rule, user]),
        ([note, prompt, rule, user], {"prompt_places": [1]}, [note, rule, user]),
        ([rule, user], {"prompt_places": []}, [rule, user]),
        ([user], {}, [user]),
    ]:
        turn = OwnPrompt()
        turn.before_turn([rule, user])
        turn.added([prompt, rule, user])
        assert turn.in_counters(live) == recorded
        later = OwnPrompt()
        later.restored(live, recorded)
        assert later.without(live) == next_turn
