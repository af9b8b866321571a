"""Haystack's strategies that ask a person on a console: in a durable run they ask the journal instead.

A `BlockingConfirmationStrategy` runs as it is, with the rules that a subclass has in its own `run`, and with its own
texts for the model. Only its user interface is replaced, by one that answers with what people have decided. Where
nobody has, the strategy ends there, and its call waits for approval.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from haystack.components.agents.state import State
from haystack.core.serialization import default_to_dict
from haystack.hooks.human_in_the_loop import (
    BlockingConfirmationStrategy,
    ConfirmationHook,
    ConfirmationUIResult,
    ToolExecutionDecision,
)
from haystack.hooks.human_in_the_loop.types import ConfirmationPolicy, ConfirmationStrategy, ConfirmationUI

from agentstate.durable import run_context
from agentstate.durable.approvals import (
    JournalConfirmationStrategy,
    asks_once,
    is_allowed,
    note_of_change,
    policy_of_session,
    with_unchanged,
)
from agentstate.durable.interruptions import Interruption
from agentstate.durable.records import ApprovalRecord
from agentstate.durable.run_context import RunContext
from agentstate.durable.state.keys import same_json
from agentstate.names import ENDED_CALL_STATES, Decision

_T = TypeVar("_T")


@dataclass
class _Question:
    """A call about which a strategy is asked.

    :param is_allowed: Whether its tool is pre-approved; None where that is not known yet.
    :param is_changed: A person has set the arguments with which the strategy lets it run.
    """

    run: RunContext
    tool: str
    call_id: str | None
    is_allowed: bool | None = None
    is_changed: bool = False
    _policies: dict[int, ConfirmationPolicy] = field(default_factory=dict)

    @property
    def approval(self) -> ApprovalRecord | None:
        record = self.run.call(self.call_id)
        return record.approval if record is not None else None

    def needs_nobody(self) -> bool:
        """Whether the call runs without a decision about it, or does not run, since it has ended."""
        record = self.run.call(self.call_id)
        if record is None or record.status in ENDED_CALL_STATES:
            return True
        if self.is_allowed is None:
            self.is_allowed = is_allowed(self.run, self.tool)
        return self.is_allowed

    def policy(self, own: ConfirmationPolicy) -> ConfirmationPolicy:
        """The strategy's policy as it is to be asked in this session."""
        if id(own) not in self._policies:
            self._policies[id(own)] = policy_of_session(self.run, own, self.tool)
        return self._policies[id(own)]

    def read(self, policies: Iterable[ConfirmationPolicy]) -> None:
        """Read of the journal what a strategy with these may need, which must not be done on the event loop."""
        self.needs_nobody()
        for policy in policies:
            self.policy(policy)


class _Undecided(Interruption):
    """Nobody has decided about the call yet, with these arguments."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__("Nobody has decided about the call yet.")
        self.arguments = arguments


def without_blocking(hook: ConfirmationHook, before: Any) -> ConfirmationHook:
    """A copy of the hook, in which each strategy that would block the worker takes its decisions from the journal.

    The hook and its strategies keep their types, by which traces name them.

    :param before: A hook of ours that runs before it, as a part of it.
    """
    hook = copy.copy(hook)
    hook.confirmation_strategies = {
        tools: _not_blocking(strategy) if isinstance(strategy, BlockingConfirmationStrategy) else strategy
        for tools, strategy in hook.confirmation_strategies.items()
    }
    own_run, own_run_async = hook.run, hook.run_async

    def run(state: State) -> None:
        before.run(state)
        own_run(state)

    async def run_async(state: State) -> None:
        await before.run_async(state)
        await own_run_async(state)

    return _with(hook, run=run, run_async=run_async)


def _not_blocking(strategy: BlockingConfirmationStrategy) -> ConfirmationStrategy:
    to_ask = JournalConfirmationStrategy()

    def run(**inputs: Any) -> ToolExecutionDecision:
        context = run_context.current()
        if context is None:
            return strategy.run(**inputs)
        question, given = _asked(context, inputs)
        try:
            return _noted(question, _bound(strategy, question).run(**given))
        except _Undecided as undecided:
            return to_ask.run(**{**inputs, "tool_params": undecided.arguments})

    async def run_async(**inputs: Any) -> ToolExecutionDecision:
        context = run_context.current()
        if context is None:
            return await strategy.run_async(**inputs)
        question, given = _asked(context, inputs)
        policies = list(_policies_that_ask_once(strategy))
        if policies or question.tool in context.allowed:
            await context.journal_thread.run(question.read, policies)
        try:
            return _noted(question, await _bound(strategy, question).run_async(**given))
        except _Undecided as undecided:
            return to_ask.run(**{**inputs, "tool_params": undecided.arguments})

    return _with(copy.copy(strategy), run=run, run_async=run_async)


def _bound(strategy: BlockingConfirmationStrategy, question: _Question) -> BlockingConfirmationStrategy:
    """A copy of the strategy that asks the journal about this call, from whichever thread and under whichever name it
    knows its user interface; and so do the strategies that it passes calls on to.
    """
    asking = copy.copy(strategy)
    own: dict[str, Any] = dict(vars(strategy))
    interface = own.get("confirmation_ui")
    for name, value in own.items():
        if name == "confirmation_ui" or (interface is not None and value is interface):
            _with(asking, **{name: _Decisions(question)})
        elif isinstance(value, BlockingConfirmationStrategy):
            _with(asking, **{name: _bound(value, question)})
        elif asks_once(value):
            _with(asking, **{name: _OncePerSession(question, value)})
    return asking


def _policies_that_ask_once(strategy: BlockingConfirmationStrategy) -> Iterator[ConfirmationPolicy]:
    for value in vars(strategy).values():
        if isinstance(value, BlockingConfirmationStrategy):
            yield from _policies_that_ask_once(value)
        elif asks_once(value):
            yield value


def _asked(context: RunContext, inputs: dict[str, Any]) -> tuple[_Question, dict[str, Any]]:
    """About which call the strategy is asked, and what it is given. A new attempt of a failed call runs with the
    arguments that a person has set for that one, so it is about these.
    """
    call_id = inputs.get("tool_call_id")
    question = _Question(context, inputs["tool_name"], call_id)
    approval = question.approval
    if approval is not None and approval.carried and approval.edited is not None:
        arguments = with_unchanged(approval.edited, inputs["tool_params"])
        question.is_changed = not same_json(arguments, inputs["tool_params"])
        inputs = {**inputs, "tool_params": arguments}
    return question, inputs


def _noted(question: _Question, decision: ToolExecutionDecision) -> ToolExecutionDecision:
    """The strategy's decision. What it says to the model of a person's change is marked as coming from staff."""
    approval = question.approval
    if not (question.is_changed and decision.execute and approval is not None):
        return decision
    arguments = decision.final_tool_params or {}
    note = note_of_change(question.tool, arguments, approval.message, told=decision.feedback or "")
    return replace(decision, feedback=note)


class _Decisions(ConfirmationUI):
    """A user interface that answers with what people have decided.

    :raises _Undecided: where nobody has.
    """

    def __init__(self, question: _Question) -> None:
        self._question = question

    def get_user_confirmation(
        self, tool_name: str, tool_description: str, tool_params: dict[str, Any]
    ) -> ConfirmationUIResult:
        question = self._question
        approval = question.approval
        if approval is None or approval.carried:
            if not question.needs_nobody():
                raise _Undecided(tool_params)
        elif approval.decision == "":
            raise _Undecided(tool_params)
        elif approval.decision == Decision.APPROVED:
            if approval.edited is not None:
                arguments = with_unchanged(approval.edited, tool_params)
                if not same_json(arguments, tool_params):
                    question.is_changed = True
                    return ConfirmationUIResult("modify", approval.message or None, arguments)
        elif approval.decision != Decision.REUSED:
            return ConfirmationUIResult("reject", approval.message or None)
        return ConfirmationUIResult("confirm")

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self)


class _OncePerSession(ConfirmationPolicy):
    """A policy that asks once, where it is asked in a session."""

    def __init__(self, question: _Question, own: ConfirmationPolicy) -> None:
        self._question, self._own = question, own

    def should_ask(self, tool_name: str, tool_description: str, tool_params: dict[str, Any]) -> bool:
        return self._question.policy(self._own).should_ask(tool_name, tool_description, tool_params)

    def update_after_confirmation(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to remember: decisions are in the journal."""

    def to_dict(self) -> dict[str, Any]:
        return self._own.to_dict()


def _with(of: _T, **attributes: Callable[..., Any] | object) -> _T:
    """The object with other attributes, also if it is a frozen dataclass."""
    for name, value in attributes.items():
        object.__setattr__(of, name, value)
    return of
