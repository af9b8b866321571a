"""A durable agent is the plain agent, also when its process dies at any commit."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage

from agentstate import ToolPolicy
from agentstate.durable.agent import DurableAgent, make_durable
from agentstate.durable.port import LeaseLost
from agentstate.durable.run import Options, Outcome, run
from agentstate.durable.state.encoding import decode, encode_lossy, message_from
from agentstate.journals import MemoryJournal
from agentstate.journals.store import Store
from tests import sample_agents
from tests.sample_agents import KINDS

Json = Any


@pytest.fixture(autouse=True)
def _no_effects() -> Iterator[None]:
    sample_agents.effects.clear()
    yield
    sample_agents.effects.clear()


def comparable(result: dict[str, Any]) -> str:
    """The result as text; ids that were missing in the model's reply are made up anew by each run."""
    data, _ = encode_lossy({key: value for key, value in result.items() if key != "last_message"})
    return re.sub(r'"id": (null|"call_[0-9a-f]{16}")', '"id": "?"', json.dumps(data, sort_keys=True))


@dataclass
class Plain:
    result: str
    effects: Counter[str]
    raw: dict[str, Any] = field(default_factory=dict)


def plainly(build: Callable[[], Agent], inputs: dict[str, Any], say: str = "hi") -> Plain:
    sample_agents.effects.clear()
    result = build().run([ChatMessage.from_user(say)], **inputs)
    plain = Plain(comparable(result), Counter(sample_agents.effects), result)
    sample_agents.effects.clear()
    return plain


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> tuple[Callable[[], Agent], dict[str, Any]]:
    return KINDS[request.param]


def test_a_durable_agent_gives_the_same_result_and_effects_as_a_plain_one(kind):
    build, inputs = kind
    plain = plainly(build, inputs)

    outcome = run(make_durable(build()), MemoryJournal.open(say="hi", inputs={"state": inputs}))

    assert outcome.status == "idle", outcome.why
    assert outcome.result is not None
    assert comparable(outcome.result) == plain.result
    assert Counter(sample_agents.effects) == plain.effects


def test_a_run_in_slices_of_one_step_gives_the_same(kind):
    build, inputs = kind
    plain = plainly(build, inputs)
    durable = make_durable(build())
    journal = MemoryJournal.open(say="hi", inputs={"state": inputs})

    outcome = run(durable, journal, Options(slice_is_over=lambda: True))
    while outcome.status == "queued":
        journal = MemoryJournal.open(journal.store)
        outcome = run(durable, journal, Options(slice_is_over=lambda: True))

    assert outcome.result is not None, outcome.why
    assert comparable(outcome.result) == plain.result
    assert Counter(sample_agents.effects) == plain.effects


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs, nothing catches it."""


class Mortal(MemoryJournal):
    """A journal whose process dies at its n-th write: before it is committed, or right after."""

    writes = 0
    dies_at = 0
    committed = False

    def _die(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.writes += 1
        if self.writes == self.dies_at and not self.committed:
            self.store.epoch += 1  # nothing that still runs in this process may write any more
            raise Killed
        answer = getattr(MemoryJournal, method)(self, *args, **kwargs)
        if self.writes == self.dies_at:
            self.store.epoch += 1
            raise Killed
        return answer

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        return self._die("checkpoint", *args, **kwargs)

    def reply(self, *args: Any, **kwargs: Any) -> Any:
        return self._die("reply", *args, **kwargs)

    def start_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._die("start_call", *args, **kwargs)

    def finish_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._die("finish_call", *args, **kwargs)


def killed_at(number: int, committed: bool, durable: DurableAgent, inputs: Json) -> tuple[bool, Outcome]:
    """Run with a death at the given write, then go on as a new process would. False if there were fewer writes."""
    first = Mortal.open(say="hi", inputs={"state": inputs})
    assert isinstance(first, Mortal)
    first.dies_at, first.committed = number, committed
    try:
        return False, run(durable, first)
    except (Killed, LeaseLost):  # a call beside the one that died may be the first to be heard of
        pass
    outcome = run(durable, MemoryJournal.open(first.store))
    if outcome.result is None and first.store.checkpoints[-1]["kind"] == "end":
        outcome = replace(outcome, result=stored_result(first.store))  # it died when all was done
    return True, outcome


def stored_result(store: Store) -> dict[str, Any]:
    """The result of a turn that has ended, as the journal holds it."""
    base = MemoryJournal.open(store).load().checkpoint
    assert base is not None
    counters = decode(base.counters)
    del counters["context_tokens"]
    return {
        "messages": [message_from(stored.body) for stored in base.context],
        **{key: decode(value) for key, value in base.state.items()},
        **counters,
        "exit_reason": store.outcome["exit_reason"],
    }


@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_killed_at_any_write_it_ends_the_same_and_no_reply_is_asked_twice(kind, committed):
    build, inputs = kind
    plain = plainly(build, inputs)
    tools = {"fast", "slow", "fetch", "note", "count", "broken", "upper", "save", "helper"}
    durable = make_durable(build())
    idempotent = {tool.name: ToolPolicy(idempotent=True) for tool in _tools(durable) if tool.name in tools}
    durable = make_durable(build(), policies=idempotent)

    number, died = 0, True
    while died:
        number += 1
        sample_agents.effects.clear()
        died, outcome = killed_at(number, committed, durable, inputs)
        assert outcome.status == "idle", f"write {number}: {outcome.why}"
        assert outcome.result is not None
        assert comparable(outcome.result) == plain.result, f"write {number}"
        again = Counter(sample_agents.effects) - plain.effects
        asked_again = {what: n for what, n in again.items() if what.startswith("model")}
        assert not (committed and asked_again), f"write {number}: {asked_again}"
        assert sum(asked_again.values()) <= 1, f"write {number}: {asked_again}"
    assert number > 2


def _tools(durable: DurableAgent) -> list[Any]:
    from agentstate.durable.agent import _tools

    return list(_tools(durable.agent))


def test_killed_while_tools_run_it_never_runs_one_twice_that_is_not_idempotent():
    durable = make_durable(sample_agents.refunds())
    number, died = 0, True
    doubts = 0
    while died:
        number += 1
        sample_agents.effects.clear()
        first = Mortal.open(say="hi")
        assert isinstance(first, Mortal)
        first.dies_at, first.committed = number, True
        try:
            outcome = run(durable, first)
            died = False
        except (Killed, LeaseLost):
            outcome = run(durable, MemoryJournal.open(first.store))
        while outcome.status == "waiting":
            store = first.store
            journal = MemoryJournal.open(store)
            for call in store.step_calls():
                if call.status == "doubt":
                    doubts += 1
                    journal.decide(call.call_id, result="a person looked it up")
            outcome = run(durable, journal)
        assert outcome.status == "idle", outcome.why
        ran = Counter(what for what in sample_agents.effects if what.startswith(("refund", "fast")))
        assert all(times == 1 for times in ran.values()), f"write {number}: {ran}"
    assert doubts > 0


@pytest.mark.parametrize("dies_at", [None, 1, 2, 3, 4, 5])
def test_generation_kwargs_and_the_choice_of_tools_survive_a_kill(dies_at):
    options: dict[str, Any] = {"generation_kwargs": {"temperature": 0.2, "seed": 7}, "tools": ["fast"]}
    plain = sample_agents.attentive().run([ChatMessage.from_user("hi")], **options)
    sample_agents.effects.clear()
    durable = make_durable(sample_agents.attentive(), policies={"fast": ToolPolicy(idempotent=True)})
    first = Mortal.open(say="hi", inputs=options)
    assert isinstance(first, Mortal)
    first.dies_at, first.committed = dies_at or 0, True

    try:
        outcome = run(durable, first)
    except (Killed, LeaseLost):
        outcome = run(durable, MemoryJournal.open(first.store))

    assert first.store.outcome["final_answer"] == plain["last_message"].text
    assert set(sample_agents.effects) == {"model({'temperature': 0.2, 'seed': 7},fast)", "fast(a)"}
    assert outcome.status == "idle"


def test_a_message_to_a_run_that_stopped_before_the_model_answered_is_read_before_it_is_asked_again():
    seen: list[list[str]] = []

    @component
    class Unwell:
        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
            seen.append([message.text or "" for message in messages])
            if len(seen) == 1:
                raise ValueError("The request was refused.")
            return {"replies": [ChatMessage.from_assistant("Better.")]}

    durable = make_durable(Agent(chat_generator=Unwell()))
    journal = MemoryJournal.open(say="Something forbidden.")
    assert run(durable, journal).why == "ValueError: The request was refused."

    outcome = run(durable, MemoryJournal.open(journal.store, say="Then something else."))

    assert outcome.status == "idle"
    assert seen == [["Something forbidden."], ["Something forbidden.", "Then something else."]]
