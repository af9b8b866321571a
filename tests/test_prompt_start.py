"""Calls that nothing stands before are started by the commit of the reply; all others by a commit of their own."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from haystack import component
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks import hook
from haystack.tools import Tool

from agentstate import ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.durable.breakpoints import Breakpoint
from agentstate.durable.records import Signals
from agentstate.durable.run import Options, Outcome, run
from agentstate.journals import MemoryJournal
from sessions_app import actions
from sessions_app.models import CallStatus, Session
from tests import sample_agents
from tests.builders import SYSTEM
from tests.driving import Desk
from tests.driving import desk as driving
from tests.dying import Died
from tests.sample_agents import count, fast, fetch, note, refund, scripted, slow

pytestmark = pytest.mark.usefixtures("no_effects")

FAST, SLOW = ToolCall("fast", {"q": "a"}, id="c1"), ToolCall("slow", {"q": "b"}, id="c2")
FETCH, NOTE = ToolCall("fetch", {"q": "d"}, id="c3"), ToolCall("note", {"text": "n"}, id="c4")
REFUND, UNKNOWN = ToolCall("refund", {"order": "7", "amount": 5}, id="c5"), ToolCall("missing", {}, id="c6")
Shared = State
NOTES = {"docs": {"type": list}, "notes": {"type": list}}


class CountingJournal(MemoryJournal):
    """Counts the calls that a commit of their own has started, and dies before the commit of a call's result."""

    started = 0
    dies = False

    @classmethod
    def asked(cls) -> "CountingJournal":
        journal = cls.open(say="hi")
        assert isinstance(journal, cls)
        return journal

    def start_call(self, *arguments: Any, **options: Any) -> Signals:
        self.started += 1
        return super().start_call(*arguments, **options)

    def finish_call(self, *arguments: Any, **options: Any) -> Signals:
        if self.dies:
            raise Died
        return super().finish_call(*arguments, **options)


def asking(*calls: ToolCall, **options: Any) -> Agent:
    tools = [fast, slow, fetch, note, count, refund]
    return Agent(
        chat_generator=scripted(list(calls), "Done."), tools=tools, state_schema=dict(NOTES), **options
    )


@component
class TwoReplies:
    """Gives two replies each time: at first each with a call of its own, and then two answers."""

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
        if messages[-1].tool_call_results:
            return {"replies": [ChatMessage.from_assistant("Paid."), ChatMessage.from_assistant("Done.")]}
        return {"replies": [ChatMessage.from_assistant(tool_calls=[call]) for call in (FAST, REFUND)]}


def run_once(agent: Agent, journal: MemoryJournal, **policies: ToolPolicy) -> Outcome:
    return run(make_durable(agent, policies=policies), journal)


def counting(agent: Agent, options: Options | None = None, **policies: ToolPolicy) -> int:
    """How many calls have a commit of their own for their start, in a turn that ends."""
    journal = CountingJournal.asked()
    outcome = run(make_durable(agent, policies=policies), journal, options)
    assert outcome.status == "idle", outcome.why
    return journal.started


def test_a_call_before_which_nothing_stands_needs_no_commit_to_start() -> None:
    assert counting(asking(FAST)) == 0
    assert sample_agents.effects == ["model(0)", "fast(a)", "model(1)"]


def test_calls_that_run_at_the_same_time_start_together() -> None:
    assert counting(asking(FAST, SLOW)) == 0


def test_a_call_that_has_the_state_for_itself_starts_with_the_reply() -> None:
    assert counting(asking(FETCH)) == 0


@pytest.mark.parametrize(
    "calls, options, commits",
    [
        pytest.param((FAST, SLOW), {"tool_concurrency_limit": 1}, 2, id="more calls than run at once"),
        pytest.param((FETCH, FAST), {}, 2, id="one of several writes the State"),
        pytest.param((NOTE, FAST), {}, 2, id="one of several takes the State"),
        pytest.param((FAST, UNKNOWN), {}, 1, id="an unknown tool"),
    ],
)
def test_calls_that_may_not_run_at_once_start_one_by_one(
    calls: tuple[ToolCall, ...], options: dict[str, Any], commits: int
) -> None:
    assert counting(asking(*calls, **options)) == commits


def test_of_calls_that_take_the_state_under_another_name_each_starts_by_a_commit_of_its_own() -> None:
    def peek(text: str, state: "Shared") -> str:
        return text

    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    agent = Agent(
        chat_generator=scripted(
            [ToolCall("peek", {"text": "a"}, id="c1"), ToolCall("peek", {"text": "b"}, id="c2")], "Done."
        ),
        tools=[Tool("peek", "Peeks.", parameters, peek)],
    )
    assert counting(agent) == 2


def test_after_a_hook_a_call_starts_by_a_commit_of_its_own() -> None:
    @hook
    def look(state: State) -> None:
        """Only looks."""

    assert counting(asking(FAST, hooks={"before_tool": [look]})) == 1


def test_a_call_that_may_be_answered_from_the_cache_starts_by_a_commit_of_its_own() -> None:
    assert counting(asking(FAST), fast=ToolPolicy(cache_ttl=60)) == 1


def test_before_a_breakpoint_of_the_run_no_call_has_started() -> None:
    journal = MemoryJournal.open(say="hi")
    breakpoints = (Breakpoint(tool="fast"),)
    outcome = run(make_durable(asking(FAST)), journal, Options(breakpoints=breakpoints))
    assert outcome.status == "paused"
    assert [call.status for call in journal.store.step_calls()] == ["planned"]
    assert sample_agents.effects == ["model(0)"]


def test_before_an_approval_no_call_has_started() -> None:
    journal = MemoryJournal.open(say="hi")
    outcome = run_once(asking(REFUND), journal, refund=ToolPolicy(approval=True))
    assert (outcome.status, outcome.why) == ("waiting", "refund needs approval.")
    assert [call.status for call in journal.store.step_calls()] == ["planned"]


def test_a_call_that_was_started_with_its_reply_and_did_not_report_back_is_in_doubt() -> None:
    journal = CountingJournal.asked()
    journal.dies = True
    with pytest.raises(Died):
        run_once(asking(REFUND), journal)
    outcome = run_once(asking(REFUND), MemoryJournal.open(journal.store))
    assert (outcome.status, sample_agents.effects.count("refund(7,5)")) == ("waiting", 1)
    assert "It may or may not have taken effect" in outcome.why


def test_an_idempotent_call_that_was_started_with_its_reply_runs_again_with_its_key() -> None:
    journal = CountingJournal.asked()
    journal.dies = True
    with pytest.raises(Died):
        run_once(asking(FAST), journal, fast=ToolPolicy(idempotent=True))
    [before] = journal.store.step_calls()
    again = MemoryJournal.open(journal.store)
    assert run_once(asking(FAST), again, fast=ToolPolicy(idempotent=True)).status == "idle"
    after = again.store.calls[before.position]
    assert (after.attempt, after.idempotency_key) == (2, before.idempotency_key)


def test_of_several_replies_only_the_calls_that_run_are_recorded() -> None:
    journal = MemoryJournal.open(say="hi")
    outcome = run_once(Agent(chat_generator=TwoReplies(), tools=[fast, refund]), journal)
    assert (outcome.status, sample_agents.effects) == ("idle", ["refund(7,5)"])
    assert [(call.tool, call.status) for call in journal.store.calls.values()] == [("refund", "done")]


# On the desk


@pytest.fixture
def desk(db: None) -> Iterator[Desk]:
    with driving() as made:
        yield made


def while_the_model_is_asked(act: Callable[[Session], object]) -> Callable[[], Agent]:
    """An agent whose first model call is interrupted by a person."""

    def build() -> Agent:
        agent = asking(FAST)
        reply = agent.chat_generator.response_fn  # type: ignore[attr-defined]

        def ask(messages: Any, tools: Any = None) -> Any:
            answer = reply(messages)
            if answer.tool_calls:
                act(Session.objects.get())
            return answer

        agent.chat_generator.response_fn = ask  # type: ignore[attr-defined]
        return agent

    return build


def test_on_the_desk_a_call_starts_with_the_reply(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a commit of its own")

    monkeypatch.setattr("sessions_app.runtime.journal.OrmJournal.start_call", fail)
    desk.agent(lambda: asking(FAST))
    session = desk.run(desk.start())
    [call] = desk.calls(session)
    assert (session.status, call.status, call.attempt) == ("idle", CallStatus.DONE, 1)
    assert call.asked_at == call.started_at <= call.ended_at  # type: ignore[operator]


def test_a_pause_that_was_requested_while_the_model_was_asked_lets_no_call_start(desk: Desk) -> None:
    desk.agent(
        while_the_model_is_asked(
            lambda session: actions.pause(actor=SYSTEM, session_id=session.pk, reason="wait")
        )
    )
    session = desk.run(desk.start())
    assert (session.status, [call.status for call in desk.calls(session)]) == ("paused", ["planned"])
    assert "fast(a)" not in sample_agents.effects


def test_after_a_rewind_a_call_of_a_reply_that_was_not_carried_out_is_no_earlier_effect(desk: Desk) -> None:
    policies = {"fast": ToolPolicy(effect="Looks something up.")}
    desk.agent(lambda: Agent(chat_generator=TwoReplies(), tools=[fast, refund]), policies=policies)
    session = desk.run(desk.start())
    start = session.current_branch.checkpoints.get(kind="start")
    actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="again")
    desk.agent(lambda: asking(FAST), policies=policies)
    actions.resume(actor=SYSTEM, session_id=session.pk, reason="go on")
    session = desk.run(session)
    assert (session.status, session.final_answer) == ("idle", "Done.")
    assert [(call.tool, call.status) for call in desk.calls(session)] == [("fast", CallStatus.DONE)]


@pytest.mark.slow
def test_after_a_rewind_a_call_that_ran_before_is_held_and_not_started(desk: Desk) -> None:
    desk.agent(lambda: asking(REFUND))
    session = desk.run(desk.start())
    start = session.current_branch.checkpoints.get(kind="start")
    actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="again", run=True)
    session = desk.run(session)
    assert (session.status, session.waiting_for) == ("waiting", "approval")
    assert sample_agents.effects.count("refund(7,5)") == 1
