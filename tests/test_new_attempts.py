"""Where a failed tool call has ended a turn, only a person's Resume lets that call be tried again."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.dataclasses import ToolCall as Call
from haystack.hooks import hook
from haystack.tools import Tool

import agentstate
from agentstate import ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.durable.run import run
from agentstate.journals import MemoryJournal
from sessions_app import actions
from sessions_app.history import restore
from sessions_app.history.message_rows import fill_texts
from sessions_app.models import CallStatus, Phase, Session, Status, WaitingFor
from tests import builders, sample_agents
from tests.adapters import FileAdapter, MemoryAdapter
from tests.builders import SYSTEM
from tests.driving import Desk
from tests.sample_agents import effect, effects, fast, scripted

pytestmark = pytest.mark.usefixtures("no_effects")

IDEMPOTENT = {"pay": ToolPolicy(idempotent=True), "fast": ToolPolicy(idempotent=True)}


def paying(failures: int) -> Callable[[], Agent]:
    """An agent whose tool `pay` fails so many times, and that raises what its tools raise."""
    remaining = [failures]

    def pay(order: str) -> str:
        effect(f"pay({order}) with {agentstate.idempotency_key()}")
        if remaining[0]:
            remaining[0] -= 1
            raise ConnectionError("the bank is away")
        return f"paid {order}"

    parameters = {"type": "object", "properties": {"order": {"type": "string"}}}
    tool = Tool(name="pay", description="Pays.", parameters=parameters, function=pay)
    model = scripted([Call("fast", {"q": "a"}, id="c1"), Call("pay", {"order": "A1"}, id="c2")], "Over.")
    return lambda: Agent(chat_generator=model, tools=[fast, tool], raise_on_tool_invocation_failure=True)


def payments() -> list[str]:
    return [what for what in effects if what.startswith("pay")]


def names() -> list[str]:
    return [what.partition(" ")[0] for what in effects]


@pytest.fixture(params=["memory", "file"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., MemoryJournal]]:
    """Opens the session's journal at its next epoch, as a new process does."""
    adapter = MemoryAdapter() if request.param == "memory" else FileAdapter(tmp_path / "session.jsonl")

    def reopen(say: str = "") -> MemoryJournal:
        adapter.open(say)
        return adapter.journal

    yield reopen
    adapter.close()


@pytest.mark.slow
def test_a_journals_resume_lets_the_call_be_tried_again_with_the_same_key(
    reopen: Callable[..., MemoryJournal],
) -> None:
    durable = make_durable(paying(1)(), policies=IDEMPOTENT)
    outcome = run(durable, reopen("hi"))
    assert "the bank is away" in outcome.why
    assert run(durable, reopen()).why == outcome.why  # by itself it does not run again
    assert len(payments()) == 1

    reopen().resume()
    outcome = run(durable, reopen())

    assert (outcome.status, outcome.why) == ("idle", "")
    assert Counter(names()) == Counter(["model(0)", "fast(a)", "pay(A1)", "pay(A1)", "model(1)"])
    assert len(set(payments())) == 1


def test_a_call_that_is_not_idempotent_is_tried_again_with_approval_only() -> None:
    durable = make_durable(paying(1)())
    journal = MemoryJournal.open(say="hi")
    run(durable, journal)
    journal.resume()

    journal = MemoryJournal.open(journal.store)
    outcome = run(durable, journal)

    assert outcome.status == "waiting"
    assert outcome.why == "pay needs approval. It failed before, and may or may not have taken effect."
    assert len(payments()) == 1
    journal.decide("c2", approve=True)
    assert run(durable, MemoryJournal.open(journal.store)).status == "idle"
    assert Counter(names()) == Counter(["model(0)", "fast(a)", "pay(A1)", "pay(A1)", "model(1)"])


def test_there_is_nothing_to_resume_where_no_call_ended_the_turn() -> None:
    durable = make_durable(paying(0)())
    journal = MemoryJournal.open(say="hi")
    run(durable, journal)
    with pytest.raises(LookupError, match="There is nothing to resume"):
        journal.resume()


def failed(desk: Desk, session: Session) -> Session:
    session = desk.run(session)
    assert (session.status, session.phase) == (Status.IDLE, Phase.ERROR)
    assert "the bank is away" in session.error
    return session


def test_resume_starts_a_new_attempt_each_time_and_the_history_shows_them_all(desk: Desk) -> None:
    desk.agent(paying(2), policies=IDEMPOTENT)
    session = failed(desk, desk.start())
    session = failed(desk, desk.resume(session))
    session = desk.run(desk.resume(session))

    assert (session.status, session.final_answer) == (Status.IDLE, "Over.")
    calls = [(call.tool, call.status, call.call_id) for call in desk.calls(session)]
    assert calls == [
        ("fast", CallStatus.DONE, "c1"),
        ("pay", CallStatus.FAILED, "c2"),
        ("pay", CallStatus.FAILED, "c2"),
        ("pay", CallStatus.DONE, "c2"),
    ]
    assert len(payments()) == 3
    assert len(set(payments())) == 1
    assert [role for role, _ in desk.texts(session)] == ["user", "assistant", "tool", "tool", "assistant"]
    assert names().count("model(0)") == 1


@pytest.mark.slow
def test_each_attempt_is_answered_by_the_message_with_the_last_result(desk: Desk) -> None:
    desk.agent(paying(1), policies=IDEMPOTENT)
    session = desk.run(desk.resume(failed(desk, desk.start())))
    branch = session.current_branch
    answers = [(call.status, restore.answer_of(branch, call)) for call in desk.calls(session)]
    told = [
        (status, message.text) for status, message in answers if message and fill_texts(branch, [message])
    ]
    assert told == [
        (CallStatus.DONE, "fast:a"),
        (CallStatus.FAILED, "paid A1"),
        (CallStatus.DONE, "paid A1"),
    ]


@pytest.mark.slow
def test_a_resumed_call_that_is_not_idempotent_waits_for_approval_and_can_be_rejected(desk: Desk) -> None:
    desk.agent(paying(1))
    session = desk.run(desk.resume(failed(desk, desk.start())))
    assert (session.status, session.waiting_for) == (Status.WAITING, WaitingFor.APPROVAL)

    actions.reject(actor=SYSTEM, session_id=session.pk, call_id="c2", message="It was paid by hand.")
    session = desk.run(session)

    assert (session.status, session.final_answer) == (Status.IDLE, "Over.")
    assert len(payments()) == 1


@pytest.mark.slow
def test_an_approved_attempt_runs_once(desk: Desk) -> None:
    desk.agent(paying(1))
    session = desk.run(desk.resume(failed(desk, desk.start())))
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id="c2")
    session = desk.run(session)
    assert (session.status, session.final_answer) == (Status.IDLE, "Over.")
    assert len(payments()) == 2


def test_a_message_starts_no_new_attempt(desk: Desk) -> None:
    desk.agent(paying(1), policies=IDEMPOTENT)
    session = failed(desk, desk.start())
    failed(desk, desk.say(session, "Hello?"))
    assert len(payments()) == 1


def test_a_failed_call_that_did_not_end_the_turn_is_not_tried_again(desk: Desk) -> None:
    def broken_model(messages: Any, tools: Any = None) -> Any:
        if any(message.tool_call_results for message in messages):
            raise ValueError("The request was refused.")
        return ChatMessage.from_assistant(tool_calls=[Call("broken", {"q": "x"}, id="b1")])

    desk.agent(
        lambda: Agent(
            chat_generator=MockChatGenerator(response_fn=broken_model), tools=[sample_agents.broken]
        ),
        policies={"broken": ToolPolicy(idempotent=True)},
    )
    session = desk.run(desk.start())
    assert session.phase == Phase.ERROR
    desk.run(desk.resume(session))
    assert effects.count("broken(x)") == 1


@pytest.mark.parametrize(
    "policies, sentence",
    [
        (IDEMPOTENT, "<span>Runs again:</span> <b>Pay</b> <span>Order A1</span>"),
        ({}, "<span>Needs approval:</span> <b>Pay</b> <span>Order A1</span>"),
    ],
    ids=["idempotent", "not idempotent"],
)
def test_the_dialog_says_what_becomes_of_the_call(
    desk: Desk, client: Client, policies: dict[str, ToolPolicy], sentence: str
) -> None:
    client.force_login(builders.user("operator", "anna"))
    desk.agent(paying(1), policies=policies)
    session = failed(desk, desk.start())
    page = " ".join(client.get(f"/sessions/{session.pk}/resume/").content.decode().split())
    assert sentence in page
    assert "<span>Reused:</span> <b>Fast</b>" in page


# A reply that names a tool which the agent lacks


def misnaming(misnamed: int, **options: Any) -> Agent:
    """An agent whose model names an unknown tool, beside a known one, so many times, and then the right one."""
    remaining = [misnamed]

    def reply(messages: Any, tools: Any = None) -> ChatMessage:
        effect("model")
        if any(message.tool_call_results for message in messages):
            return ChatMessage.from_assistant("Over.")
        remaining[0] -= 1
        other = "slwo" if remaining[0] >= 0 else "slow"
        calls = [Call("fast", {"q": "a"}, id="c1"), Call(other, {"q": "b"}, id="c2")]
        return ChatMessage.from_assistant(tool_calls=calls)

    return Agent(
        chat_generator=MockChatGenerator(response_fn=reply),
        tools=[fast, sample_agents.slow],
        raise_on_tool_invocation_failure=True,
        **options,
    )


def test_a_journals_resume_lets_the_model_be_asked_again_that_named_an_unknown_tool(
    reopen: Callable[..., MemoryJournal],
) -> None:
    durable = make_durable(misnaming(2))
    why = run(durable, reopen("hi")).why
    assert why == "ToolNotFoundException: Tool 'slwo' not found. Available tools: fast, slow"
    assert run(durable, reopen()).why == why  # by itself it is not asked again
    assert effects == ["model"]

    reopen().resume()
    assert run(durable, reopen()).why == why
    reopen().resume()
    outcome = run(durable, reopen())

    assert (outcome.status, outcome.why) == ("idle", "")
    assert Counter(names()) == Counter({"model": 4, "fast(a)": 1, "slow(b)": 1})
    assert outcome.result is not None
    assert [message.role.value for message in outcome.result["messages"]] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]


@pytest.mark.slow
def test_a_hook_that_prepares_the_context_runs_again_with_the_step(desk: Desk) -> None:
    @hook
    def remind(state: State) -> None:
        effect("remind")
        state.set("messages", [ChatMessage.from_user("A person reminds you.")])

    desk.agent(lambda: misnaming(1, hooks={"before_llm": [remind]}))
    session = desk.run(desk.resume(desk.run(desk.start())))
    assert session.final_answer == "Over."
    # One reminder for each of the two steps.
    assert [role for role, _ in desk.texts(session)] == [
        "user",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
    ]


@pytest.mark.slow
def test_resume_asks_the_model_again_that_named_an_unknown_tool_and_undo_returns(
    desk: Desk, client: Client
) -> None:
    client.force_login(builders.user("operator", "anna"))
    desk.agent(lambda: misnaming(1))
    session = desk.run(desk.start())
    assert (session.phase, "slwo" in session.error) == (Phase.ERROR, True)
    page = client.get(f"/sessions/{session.pk}/resume/").content.decode()
    assert "its last reply named a tool that the agent does not have" in page
    assert "<span>Runs:</span>" not in page

    session = desk.run(desk.resume(session))

    assert (session.status, session.final_answer) == (Status.IDLE, "Over.")
    assert Counter(names()) == Counter({"model": 3, "fast(a)": 1, "slow(b)": 1})
    assert [call.tool for call in desk.calls(session)] == ["fast", "slow"]
    assert desk.events(session).count("resumed") == 1
    session = actions.undo(actor=SYSTEM, session_id=session.pk, reason="look at it")
    assert [call.tool for call in desk.calls(session)] == ["fast", "slwo"]


def test_a_message_does_not_ask_the_model_again_that_named_an_unknown_tool(desk: Desk) -> None:
    desk.agent(lambda: misnaming(1))
    session = desk.run(desk.say(desk.run(desk.start()), "Hello?"))
    assert session.phase == Phase.ERROR
    assert names() == ["model"]
