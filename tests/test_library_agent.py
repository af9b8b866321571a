"""`DurableAgent`: a script is killed anywhere and run again, and says and does everything once."""

import asyncio
import json
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall

from agentstate import (
    Answered,
    AtBreakpoint,
    Breakpoint,
    DurableAgent,
    Failed,
    RetryAt,
    ToolPolicy,
    TurnUnfinished,
    Waiting,
    agent,
)
from agentstate.durable.agent import make_durable
from agentstate.durable.records import user_body
from agentstate.durable.registry import AgentModuleMissing, AgentNotRegistered
from agentstate.durable.run import run
from agentstate.journals import FileJournal, MemoryJournal
from agentstate.journals.file import FileStore
from agentstate.journals.store import Store, ask
from agentstate.journals.valkey import ValkeySessions
from agentstate.library.places import place_of
from tests import sample_agents
from tests.driving import unregister
from tests.dying import Died
from tests.sample_agents import effects
from tests.test_durable_run import comparable, plainly
from tools import processes

KEY = "front-door"
REAL_WRITE = FileStore.write
IDEMPOTENT = {"fast": ToolPolicy(idempotent=True)}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    effects.clear()
    yield
    unregister(KEY)
    effects.clear()


@pytest.fixture(params=["memory", "file", "opened file", pytest.param("valkey", marks=pytest.mark.redis)])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Where a session is kept, to be given to each `DurableAgent` of a test."""
    path = tmp_path / "anna.jsonl"
    if request.param == "file":
        yield path
    elif request.param == "valkey":
        with warnings.catch_warnings(action="ignore"):  # this server keeps nothing on disk, as it says
            sessions = ValkeySessions(request.getfixturevalue("redis_url"))
        with sessions.client:
            yield sessions.session("anna")
    elif request.param == "memory":
        yield MemoryJournal.open(session_id="anna")
    else:
        with FileJournal.open(path) as opened:
            yield opened


def turns(store: Store) -> list[str]:
    """The texts of the user messages that were read, in order."""
    bodies = [body for _, body in sorted(store.messages.items()) if body["role"] == "user"]
    return [body["content"][0]["text"] for body in bodies]


def long_run(journal: Any, **options: Any) -> DurableAgent:
    return DurableAgent(sample_agents.long_run(2), journal, policies=IDEMPOTENT, **options)


def asked(durable: DurableAgent) -> list[str]:
    return [message.text or "" for message in durable.history() if message.is_from("user")]


# Turns


def test_a_run_gives_what_the_plain_agent_gives(journal: Any) -> None:
    plain = plainly(sample_agents.everything, {"who": "Ann"})
    outcome = DurableAgent(sample_agents.everything(), journal).run("hi", who="Ann")
    assert isinstance(outcome, Answered)
    assert comparable(outcome.result) == plain.result
    assert Counter(effects) == plain.effects


def test_calling_again_after_the_end_is_the_next_turn_of_the_same_conversation(journal: Any) -> None:
    for _ in range(2):
        assert long_run(journal).run("hi").text == "Long done."
    assert asked(long_run(journal)) == ["hi", "hi"]
    assert long_run(journal).session_id == "anna"


def test_several_messages_and_earlier_history_begin_a_turn_like_in_a_plain_run(journal: Any) -> None:
    messages = [
        ChatMessage.from_user("first"),
        ChatMessage.from_assistant("yes?"),
        ChatMessage.from_user("hi"),
    ]
    plain = sample_agents.plain_talk().run(messages)
    outcome = DurableAgent(sample_agents.plain_talk(), journal).run(messages)
    assert comparable(outcome.result) == comparable(plain)


def test_a_run_without_a_message_is_refused(journal: Any) -> None:
    with pytest.raises(ValueError, match="There is no message to run the agent with"):
        long_run(journal).run([])


def test_a_journal_that_is_none_is_refused() -> None:
    with pytest.raises(
        TypeError, match="needs a journal, or the path of its file as a text or Path, not an int"
    ):
        DurableAgent(sample_agents.plain_talk(), 7)  # type: ignore[arg-type]


# Breakpoints, and going back


def test_it_stops_at_a_breakpoint_goes_on_and_goes_back_on_every_journal(journal: Any) -> None:
    before_second = Breakpoint("fast", when=("q", "=", "q1"))
    stopped = long_run(journal).run("hi", break_point=before_second)
    assert isinstance(stopped, AtBreakpoint)
    assert [call.arguments for call in stopped.pending] == [{"q": "q1"}]
    assert long_run(journal).resume(break_point=before_second).text == "Long done."
    starts = long_run(journal).checkpoints()
    assert [start.step for start in starts] == [0, 1, 2]
    effects.clear()
    assert long_run(journal).resume(at=starts[1]).text == "Long done."
    assert effects == ["model(1)", "fast(q1)", "model(2)"]
    assert len(long_run(journal).history()) == 6


async def _stops(journal: Any) -> None:
    stopped = await long_run(journal).run_async("hi", break_point=Breakpoint("fast"))
    assert isinstance(stopped, AtBreakpoint)
    assert effects == ["model(0)"]
    stopped = await long_run(journal).resume_async(break_point=Breakpoint("fast"))
    assert isinstance(stopped, AtBreakpoint)
    assert effects == ["model(0)", "fast(q0)", "model(1)"]


def test_a_checkpoint_of_another_session_is_refused_and_discards_nothing(journal: Any) -> None:
    other = talk(MemoryJournal.open(session_id="bob"))
    other.run("ho")
    talk(journal).run("hi")
    with pytest.raises(LookupError, match="That checkpoint does not belong to the session 'anna'"):
        talk(journal).resume(at=other.checkpoints()[0])
    assert asked(talk(journal)) == ["hi"]
    assert talk(journal).resume(at=talk(journal).checkpoints()[0]).text == "hi (None)"


def test_an_asynchronous_run_stops_at_the_same_breakpoints(tmp_path: Path) -> None:
    asyncio.run(_stops(tmp_path / "anna.jsonl"))


# Keys


def test_with_a_key_a_message_is_asked_once_and_its_answer_stays_on_record(journal: Any) -> None:
    first = long_run(journal).run("hi", key="m1")
    long_run(journal).run("again", key="m2")
    effects.clear()
    on_record = long_run(journal).run("hi", key="m1")
    assert effects == []
    assert comparable(on_record.result) == comparable(first.result)
    assert on_record.result["last_message"].text == "Long done."
    assert asked(long_run(journal)) == ["hi", "again"]


def test_a_key_stands_for_one_message(journal: Any) -> None:
    long_run(journal).run("hi", key="m1")
    with pytest.raises(ValueError, match="The key 'm1' already belongs to other messages in this session"):
        long_run(journal).run("ho", key="m1")


@component
class Repeating:
    @component.output_types(replies=list[ChatMessage])
    def run(
        self, messages: list[ChatMessage], generation_kwargs: dict[str, Any] | None = None, tools: Any = None
    ) -> dict[str, Any]:
        said = ", ".join(message.text or "" for message in messages if message.is_from("user"))
        effects.append(said)
        temperature = (generation_kwargs or {}).get("temperature")
        return {"replies": [ChatMessage.from_assistant(f"{said} ({temperature})")]}


def repeats_what_was_said() -> Agent:
    """Answers by all that the user said so far, and the temperature of the turn."""
    return Agent(chat_generator=Repeating())


def talk(journal: Any) -> DurableAgent:
    return DurableAgent(repeats_what_was_said(), journal)


def gone_back(journal: Any) -> str:
    """The answer of the first of three turns, corrected: what came after it is discarded."""
    for number, text in enumerate(("one", "two", "three"), 1):
        talk(journal).run(text, key=text, generation_kwargs={"temperature": number})
    corrected = {"messages": [ChatMessage.from_user("ONE")]}
    effects.clear()
    return talk(journal).resume(at=talk(journal).checkpoints()[0], changes=corrected).text


def test_a_key_answers_from_the_present_history_and_is_new_where_its_turn_was_discarded(
    journal: Any,
) -> None:
    assert gone_back(journal) == "ONE (1)"
    assert talk(journal).run("one", key="one").text == "ONE (1)"
    assert effects == ["ONE"]
    assert talk(journal).run("two", key="two", generation_kwargs={"temperature": 2}).text == "ONE, two (2)"
    assert talk(journal).run("three again", key="three").text == "ONE, two, three again (None)"
    assert effects == ["ONE", "ONE, two", "ONE, two, three again"]
    assert talk(journal).run("two", key="two").text == "ONE, two (2)"
    assert asked(talk(journal)) == ["ONE", "two", "three again"]


def test_a_message_that_was_asked_and_not_begun_is_discarded_with_what_came_after_the_checkpoint(
    journal: Any,
) -> None:
    talk(journal).run("one", key="one")
    with place_of(journal).open() as opened:  # a script that is killed now has asked
        ask(opened.store, [user_body("two")], key="two")
    assert talk(journal).resume(at=talk(journal).checkpoints()[0]).text == "one (None)"
    assert asked(talk(journal)) == ["one"]
    assert talk(journal).run("two", key="two").text == "one, two (None)"


# Died and run again


def killed_at_each_write(
    script: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The file of a session whose script was killed at its n-th write, before or after it, for each n."""
    for committed in (False, True):
        number = 0
        while True:
            number += 1
            effects.clear()
            path = tmp_path / f"{number}-{committed}.jsonl"
            writes = 0

            def write(
                self: FileStore, record: Any, number: int = number, committed: bool = committed
            ) -> None:
                nonlocal writes
                writes += 1
                if writes < number:
                    REAL_WRITE(self, record)
                elif writes == number:
                    if committed:
                        REAL_WRITE(self, record)
                    self.epoch += 1  # what still runs in this process may write no more
                    raise Died
                else:
                    raise Died

            with monkeypatch.context() as patch:
                patch.setattr(FileStore, "write", write)
                try:
                    script(path)
                except Died:
                    pass
                else:
                    break
            yield path


@pytest.mark.slow
def test_a_script_of_keyed_messages_that_is_killed_anywhere_and_run_again_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(path: Path) -> list[str]:
        durable = long_run(path)
        return [durable.run(text, key=text).text for text in ("one", "two")]

    assert script(tmp_path / "plain.jsonl") == ["Long done.", "Long done."]
    undisturbed = Counter(effect for effect in effects if effect.startswith("model"))
    killed = 0
    for path in killed_at_each_write(script, tmp_path, monkeypatch):
        killed += 1
        assert script(path) == ["Long done.", "Long done."]
        assert asked(long_run(path)) == ["one", "two"]
        models = Counter(effect for effect in effects if effect.startswith("model"))
        # At most the one reply that was lost with the process is asked for again.
        assert sum((models - undisturbed).values()) <= 1, path
    assert killed >= 36


@pytest.mark.slow
def test_without_keys_a_killed_turn_is_resumed_by_equal_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = 0
    for path in killed_at_each_write(lambda path: long_run(path).run("hi"), tmp_path, monkeypatch):
        killed += 1
        ended = path.exists() and b'"event":"finished"' in path.read_bytes()
        assert long_run(path).run("hi").text == "Long done."
        assert asked(long_run(path)) == (["hi", "hi"] if ended else ["hi"]), path
    assert killed >= 20


@pytest.mark.slow
def test_other_messages_after_a_kill_are_the_turn_behind_the_unfinished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in killed_at_each_write(lambda path: long_run(path).run("one"), tmp_path, monkeypatch):
        was_asked = path.exists() and b'"op":"ask"' in path.read_bytes()
        assert long_run(path).run("two").text == "Long done."
        assert asked(long_run(path)) == (["one", "two"] if was_asked else ["two"]), path


SCRIPT = """
import json, os, signal, sys
from agentstate import DurableAgent, ToolPolicy
from tests import sample_agents

if len(sys.argv) > 2:
    sample_agents.effect = lambda what: what == "fast(q1)" and os.kill(os.getpid(), signal.SIGKILL)
shop = DurableAgent(sample_agents.long_run(2), sys.argv[1], policies={"fast": ToolPolicy(idempotent=True)})
print(json.dumps([shop.run(text, key=text).text for text in ("one", "two")]))
"""


@pytest.mark.slow
def test_a_process_that_was_killed_in_a_tool_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    command = (sys.executable, "-c", SCRIPT, str(tmp_path / "session.jsonl"))
    env = processes.environment(HAYSTACK_TELEMETRY_ENABLED="false")
    assert processes.run((*command, "die"), env).returncode == -signal.SIGKILL
    again = processes.run(command, env)
    assert json.loads(again.stdout) == ["Long done.", "Long done."], again.stderr
    assert os.path.exists(tmp_path / "session.jsonl")


# Policies of registered agents


def registered() -> Callable[[], Agent]:
    @agent(KEY, policies={"refund": ToolPolicy(approval=True, effect="moves money")})
    def build() -> Agent:
        return sample_agents.refunds()

    return build


def test_an_agent_that_a_registered_factory_built_brings_its_policies_wherever_it_runs(journal: Any) -> None:
    outcome = run(make_durable(registered()()), MemoryJournal.open(say="hi"))
    assert outcome.status == "waiting"
    assert isinstance(DurableAgent(registered()(), journal).run("hi"), Waiting)
    assert [effect for effect in effects if effect.startswith("refund")] == []


def test_an_agent_can_be_named_by_its_key(journal: Any) -> None:
    registered()
    durable = DurableAgent.of(KEY, journal)
    assert isinstance(durable.run("hi"), Waiting)
    assert {call.effect for call in durable.pending()} == {"moves money"}


def test_policies_that_are_given_add_to_those_of_the_registration(journal: Any) -> None:
    durable = DurableAgent(registered()(), journal, policies=IDEMPOTENT)
    assert [call.tool for call in durable.run("hi").pending] == ["refund", "refund"]  # type: ignore[union-attr]


def test_the_modules_of_the_environment_are_imported_for_an_unknown_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "door_agents.py").write_text(
        "from agentstate import agent\n"
        "from tests import sample_agents\n"
        f"agent({KEY!r})(sample_agents.plain_talk)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AgentNotRegistered):
        DurableAgent.of(KEY, tmp_path / "a.jsonl")
    monkeypatch.setenv("AGENTSTATE_AGENTS", "door_agents")
    assert DurableAgent.of(KEY, tmp_path / "a.jsonl").run("hi").finished


def test_a_module_that_cannot_be_imported_hides_no_agent_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_registry: None
) -> None:
    register = "from agentstate import agent\nfrom tests import sample_agents\nagent({!r})(sample_agents.plain_talk)\n"
    broken = register.format("half") + "import nothing_of_that_name\n"
    modules = {
        "first_door": broken,
        "second_door": register.format(KEY),
        "third_door": "raise RuntimeError('it was imported')",
    }
    for name, code in modules.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("AGENTSTATE_AGENTS", "first_door, second_door, third_door")
    assert DurableAgent.of(KEY, MemoryJournal.open()).run("hi").finished
    for _ in range(2):
        with pytest.raises(AgentModuleMissing) as refused:
            DurableAgent.of("another", MemoryJournal.open())
    assert str(refused.value).startswith(
        "No agent is registered as 'another' by the modules that can be imported. The agent module 'first_door' cannot "
        "be imported: "
    )
    assert "nothing_of_that_name" in str(refused.value)
    assert "The agent module 'third_door' cannot be imported: " in str(refused.value)


def test_an_agent_that_its_module_registered_before_it_failed_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_registry: None
) -> None:
    (tmp_path / "half_door.py").write_text(
        "from agentstate import agent\n@agent('half')\ndef build(): ...\nimport nothing_of_that_name\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("AGENTSTATE_AGENTS", "half_door")
    with pytest.raises(AgentModuleMissing, match="The agent module 'half_door' cannot be imported"):
        DurableAgent.of("half", MemoryJournal.open())


# Why a turn is unfinished


def test_a_call_that_needs_approval_waits_and_goes_on_as_decided(journal: Any) -> None:
    durable = DurableAgent(registered()(), journal)
    outcome = durable.run("hi")
    assert isinstance(outcome, Waiting)
    assert outcome.waiting_for == "approval"
    assert [(call.call_id, call.tool, call.arguments, call.waits_for) for call in outcome.pending] == [
        ("r1", "refund", {"order": "A1", "amount": 100}, "approval"),
        ("r2", "refund", {"order": "B2", "amount": 7}, "approval"),
    ]
    with pytest.raises(TurnUnfinished, match="refund needs approval") as raised:
        _ = outcome.result
    assert raised.value.outcome is outcome

    undecided: list[dict[str, Any]] = [
        {}, {"arguments": {"order": "A1", "amount": 5}}, {"result": "paid"}, {"approve": False, "arguments": {}},
    ]  # fmt: skip
    for wrong in undecided:
        with pytest.raises(
            LookupError, match="'r1' waits for approval: give approve=True, also with other arguments"
        ):
            durable.decide("r1", **wrong)
    unfit = {"zz": 1, "order": "A1", "amount": 5}
    with pytest.raises(ValueError, match="refund has no argument zz"):
        durable.decide("r1", approve=True, arguments=unfit)
    with pytest.raises(ValueError, match="The arguments do not fit refund: amount must be a number"):
        durable.decide("r1", approve=True, arguments={"order": "A1", "amount": "five"})
    durable.decide("r1", approve=True, arguments={"order": "A1", "amount": 5})
    assert [call.call_id for call in durable.pending()] == ["r2"]
    durable.decide("r2", approve=False, message="Not that one.")
    assert DurableAgent(registered()(), journal).resume().text == "Refund handled."
    assert [effect for effect in effects if effect.startswith("refund")] == ["refund(A1,5)"]
    assert durable.pending() == []


def test_other_messages_are_not_taken_while_an_earlier_turn_waits_and_this_is_said(journal: Any) -> None:
    durable = DurableAgent(registered()(), journal)
    assert durable.run("hi", key="a").accepted  # type: ignore[union-attr]
    outcome = durable.run("and now?", key="b")
    assert isinstance(outcome, Waiting)
    assert not outcome.accepted
    assert asked(durable) == ["hi"]
    for call in outcome.pending:
        durable.decide(call.call_id, approve=False)
    assert durable.run("and now?", key="b").finished is False  # its own refunds wait in turn
    assert asked(durable) == ["hi", "and now?"]


def test_a_call_in_doubt_may_have_returned_nothing(journal: Any) -> None:
    def pay() -> str:
        raise Died

    durable = DurableAgent(sample_agents.one_tool(pay), journal)
    with pytest.raises(Died):
        durable.run("hi")
    durable.run("hi")
    durable.decide("x1", result=None)
    assert durable.resume().text == "Over."
    assert [message.tool_call_result.result for message in durable.history() if message.tool_call_result] == [
        "null"
    ]


def test_a_call_in_doubt_waits_until_a_person_says_what_became_of_it(journal: Any) -> None:
    def pay() -> str:
        raise Died

    paying = sample_agents.one_tool(pay)
    with pytest.raises(Died):
        DurableAgent(paying, journal).run("hi")
    durable = DurableAgent(paying, journal)
    outcome = durable.run("hi")
    assert isinstance(outcome, Waiting)
    assert (outcome.waiting_for, [call.waits_for for call in outcome.pending]) == ("doubt", ["doubt"])
    with pytest.raises(LookupError, match="No call 'x9' waits"):
        durable.decide("x9", result="paid")
    undecided: list[dict[str, Any]] = [
        {}, {"arguments": {}}, {"approve": True}, {"result": None, "again": True}, {"message": "Leave it."},
    ]  # fmt: skip
    for wrong in undecided:
        with pytest.raises(LookupError, match="'x1' is in doubt: give its result, again=True, or skip"):
            durable.decide("x1", **wrong)
    durable.decide("x1", result="it was paid")
    assert durable.resume().text == "Over."


def failing_with(errors: list[Exception]) -> Agent:
    """An agent whose model raises the error for as long as the list has one."""
    agent = sample_agents.plain_talk()
    answer = agent.chat_generator.response_fn  # type: ignore[attr-defined]

    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        if errors:
            raise errors[0]
        answered: ChatMessage = answer(messages, tools)
        return answered

    agent.chat_generator.response_fn = reply  # type: ignore[attr-defined]
    return agent


def test_a_model_that_fails_for_a_while_is_a_retry_with_its_time(journal: Any) -> None:
    errors: list[Exception] = [TimeoutError("overloaded")]
    failing = failing_with(errors)
    outcome = DurableAgent(failing, journal).run("hi")
    assert isinstance(outcome, RetryAt)
    assert timedelta() < outcome.at - datetime.now(UTC) < timedelta(minutes=1)
    for _ in range(3):
        assert isinstance(DurableAgent(failing, journal).resume(), RetryAt)
    gave_up = DurableAgent(failing, journal).resume()
    assert isinstance(gave_up, Waiting)
    assert gave_up.waiting_for == "retries"
    errors.clear()
    assert DurableAgent(failing, journal).run("hi").finished


def test_a_turn_that_failed_says_why_and_is_tried_again(journal: Any) -> None:
    errors: list[Exception] = [ValueError("no such model")]
    failing = failing_with(errors)
    outcome = DurableAgent(failing, journal).run("hi")
    assert isinstance(outcome, Failed)
    assert "no such model" in outcome.why
    with pytest.raises(TurnUnfinished, match="no such model"):
        _ = outcome.text
    errors.clear()
    assert DurableAgent(failing, journal).run("hi").finished
    assert asked(DurableAgent(failing, journal)) == ["hi"]


def test_an_agent_that_changed_waits_and_resume_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"

    def dies() -> str:
        raise Died

    idempotent = {"it": ToolPolicy(idempotent=True)}
    with pytest.raises(Died):
        DurableAgent(sample_agents.one_tool(dies), path, policies=idempotent).run("hi")
    other = sample_agents.one_tool(lambda: "done").clone(system_prompt="Be brief.")
    durable = DurableAgent(other, path, policies=idempotent)
    outcome = durable.run("hi")
    assert isinstance(outcome, Waiting)
    assert outcome.waiting_for == "changed"
    assert durable.resume().text == "Over."


def test_resume_without_an_unfinished_turn_returns_the_answer_on_record(journal: Any) -> None:
    durable = long_run(journal)
    with pytest.raises(LookupError, match="Nothing has been asked in this session yet"):
        durable.resume()
    durable.run("hi")
    effects.clear()
    assert durable.resume().text == "Long done."
    assert effects == []


def test_a_failed_tool_that_ended_the_turn_runs_again_by_resume_only(journal: Any) -> None:
    failures = [ConnectionError("the bank is away")]

    def pay() -> str:
        effects.append("pay")
        if failures:
            raise failures.pop()
        return "paid"

    paying = sample_agents.one_tool(pay).clone(raise_on_tool_invocation_failure=True)
    durable = DurableAgent(paying, journal, policies={"it": ToolPolicy(idempotent=True)})
    for _ in range(2):
        assert isinstance(durable.run("hi"), Failed)
        assert effects.count("pay") == 1
    assert durable.resume().text == "Over."
    assert effects.count("pay") == 2


def test_a_cache_ttl_without_a_cache_is_said(caplog: pytest.LogCaptureFixture) -> None:
    run(
        make_durable(sample_agents.long_run(1), policies={"fast": ToolPolicy(cache_ttl=60)}),
        MemoryJournal.open(),
    )
    assert "has tools with a cache_ttl, and runs without a cache" in caplog.text


# Reading


def test_a_session_in_which_nothing_was_asked_has_no_history_and_none_is_made(tmp_path: Path) -> None:
    durable = DurableAgent(sample_agents.plain_talk(), tmp_path / "a.jsonl")
    assert (durable.history(), durable.pending()) == ([], [])
    assert list(tmp_path.iterdir()) == []


def test_history_and_pending_can_be_read_while_the_session_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    seen: list[Any] = []

    def look() -> str:
        reader = DurableAgent(sample_agents.plain_talk(), path)
        seen.append(([message.text for message in reader.history()][:1], reader.pending()))
        return "seen"

    DurableAgent(sample_agents.one_tool(look), path).run("hi")
    assert seen == [(["hi"], [])]


def test_a_cache_ttl_holds_without_a_cache_of_ones_own(journal: Any) -> None:
    script = [[ToolCall("fast", {"q": "a"}, id=f"c{n}")] for n in range(2)]
    caching = Agent(chat_generator=sample_agents.scripted(*script, "Done."), tools=[sample_agents.fast])
    DurableAgent(caching, journal, policies={"fast": ToolPolicy(cache_ttl=60)}).run("hi")
    assert [effect for effect in effects if effect.startswith("fast")] == ["fast(a)"]
