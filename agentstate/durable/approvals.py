"""Approvals: a tool call suspends its session until a person has decided, and occupies no worker meanwhile.

Haystack's own `ConfirmationHook` carries a decision out and tells the model of it; the strategy here reads the
decisions from the journal instead of blocking on a prompt. `CheckPendingCalls` suspends the run once the requests of a
step are collected.
"""

import copy
import json
from functools import partial
from typing import Any

from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.core.serialization import component_to_dict, default_from_dict, default_to_dict
from haystack.dataclasses import ToolCall
from haystack.hooks.human_in_the_loop import (
    AlwaysAskPolicy,
    AskOncePolicy,
    ConfirmationHook,
    ConfirmationUIResult,
    ToolExecutionDecision,
)
from haystack.hooks.human_in_the_loop.types import ConfirmationPolicy, ConfirmationStrategy
from haystack.utils.deserialization import deserialize_component_inplace

from agentstate.durable import run_context
from agentstate.durable.run_context import RunContext
from agentstate.durable.state.chat_messages import with_calls
from agentstate.durable.state.encoding import decode, encode_lossy
from agentstate.durable.state.keys import same_json
from agentstate.names import ENDED_CALL_STATES, STAFF_NOTE, Decision


class JournalConfirmationStrategy(ConfirmationStrategy):
    """A `ConfirmationStrategy` for `ConfirmationHook` that takes its decisions from the journal.

    Outside a durable run every call is allowed. Its name is part of the definition of agents that use it.

    :param policy: Haystack's policy of when to ask.
    """

    def __init__(self, policy: ConfirmationPolicy | None = None) -> None:
        self.policy = policy or AlwaysAskPolicy()

    def run(
        self,
        *,
        tool_name: str,
        tool_description: str,
        tool_params: dict[str, Any],
        tool_call_id: str | None = None,
        confirmation_strategy_context: dict[str, Any] | None = None,
    ) -> ToolExecutionDecision:
        allow = ToolExecutionDecision(
            tool_name=tool_name, execute=True, tool_call_id=tool_call_id, final_tool_params=tool_params
        )
        run = run_context.current()
        if run is None:
            return allow
        record = run.call(tool_call_id)
        approval = record.approval if record is not None else None
        edited = approval.edited if approval is not None else None
        arguments = tool_params if edited is None else with_unchanged(edited, tool_params)
        if approval is None or approval.carried:
            # A call that has ended does not run: a person may have entered its result.
            has_ended = record is not None and record.status in ENDED_CALL_STATES
            may_run = has_ended or is_allowed(run, tool_name)
            policy = self.policy if may_run else policy_of_session(run, self.policy, tool_name)
            asks = not may_run and policy.should_ask(tool_name, tool_description, arguments)
        else:
            asks = approval.decision == ""
        if asks and record is not None:
            run.request_approval(record, tool_name, arguments)
        if approval is None or approval.decision == Decision.REUSED:
            return allow
        if approval.decision in ("", Decision.APPROVED):
            if arguments is tool_params or same_json(arguments, tool_params):
                return allow
            return ToolExecutionDecision(
                tool_name=tool_name,
                execute=True,
                tool_call_id=tool_call_id,
                final_tool_params=arguments,
                feedback=note_of_change(tool_name, arguments, approval.message),
            )
        return ToolExecutionDecision(
            tool_name=tool_name,
            execute=False,
            tool_call_id=tool_call_id,
            feedback=approval.message or f"A person rejected this call of '{tool_name}'.",
        )

    async def run_async(self, **inputs: Any) -> ToolExecutionDecision:
        run = run_context.current()
        if run is None or not (inputs["tool_name"] in run.allowed or asks_once(self.policy)):
            return self.run(**inputs)
        return await run.journal_thread.run(partial(self.run, **inputs))  # which reads the journal

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, policy=component_to_dict(self.policy, "policy"))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "JournalConfirmationStrategy":
        deserialize_component_inplace(data["init_parameters"], key="policy")
        strategy: JournalConfirmationStrategy = default_from_dict(cls, data)
        return strategy


def is_allowed(run: RunContext, tool: str) -> bool:
    """Whether the tool is pre-approved for the rest of the session. A person may withdraw that while the session runs,
    so the journal is asked about each call of a tool that was; nobody can grant it meanwhile.
    """
    if tool in run.allowed:
        run.allowed = run.journal.allowed()
    return tool in run.allowed


def with_unchanged(edited: dict[str, Any], requested: dict[str, Any]) -> dict[str, Any]:
    """The edited arguments, of which those that nobody has changed are the requested values themselves.

    People see and send back the stored form of the others as well, which is another value where that has a tag.
    """
    stored, _ = encode_lossy(requested)
    return {
        name: requested[name] if name in stored and same_json(stored[name], value) else value
        for name, value in edited.items()
    }


def note_of_change(tool: str, arguments: dict[str, Any], message: str, *, told: str = "") -> str:
    """What the model is told of arguments that a person changed, marked as coming from staff.

    :param told: What the user's own strategy tells it.
    """
    if told:
        return f"{STAFF_NOTE} A person changed the arguments of '{tool}'. {told}"
    ran = json.dumps(arguments, ensure_ascii=False, default=str)
    end = f": {message}" if message else "."
    return f"{STAFF_NOTE} A person changed the arguments of '{tool}' to {ran}{end}"


def asks_once(policy: object) -> bool:
    """Whether it is an `AskOncePolicy`, also of a subclass that remembers nothing else."""
    remembers = getattr(type(policy), "update_after_confirmation", None)
    return isinstance(policy, AskOncePolicy) and remembers is AskOncePolicy.update_after_confirmation


def policy_of_session(run: RunContext, policy: ConfirmationPolicy, tool: str) -> ConfirmationPolicy:
    """The policy as it is to be asked about a call of the tool.

    What an `AskOncePolicy` remembers is that of one process, for all of its sessions. So it is given what people have
    approved in this session instead, as the current history shows it.
    """
    if not asks_once(policy):
        return policy
    policy = copy.copy(policy)
    AskOncePolicy.__init__(policy)  # type: ignore[arg-type]
    for arguments in run.journal.approved(tool):
        policy.update_after_confirmation(tool, "", decode(arguments), ConfirmationUIResult("confirm"))
    return policy


class ApprovalHook:
    """Requests approval for the tools whose policy needs it, and carries out what people decided about any call."""

    def __init__(self) -> None:
        self._strategy = JournalConfirmationStrategy(_ToolPolicies())

    def run(self, state: State) -> None:
        run = run_context.current()
        messages = state.data.get("messages")
        if run is None or not messages:
            return
        tools = {call.tool_name for call in messages[-1].tool_calls if _has_to_be_confirmed(run, call)}
        if not tools:
            return
        ConfirmationHook(dict.fromkeys(tools, self._strategy)).run(state)
        # Haystack makes another message of the calls that run, with only one text of the model's.
        asked, confirmed = messages[-1], state.data["messages"][-1]
        if len(confirmed.tool_calls) != len(asked.tool_calls):
            return
        pairs = zip(asked.tool_calls, confirmed.tool_calls, strict=True)
        is_same = all(same_json(before.arguments, after.arguments) for before, after in pairs)
        whole = asked if is_same else with_calls(asked, confirmed.tool_calls)
        state.set("messages", [*state.data["messages"][:-1], whole], handler_override=replace_values)

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self)


def _has_to_be_confirmed(run: RunContext, call: ToolCall) -> bool:
    """Whether the call needs approval, or is not yet as people decided: the user's own confirmation comes first."""
    record = run.call(call.id)
    approval = record.approval if record is not None else None
    if approval is None or (approval.carried and run.policy(call.tool_name).approval):
        return run.policy(call.tool_name).approval
    if approval.decision == Decision.REUSED:
        return False
    is_as_decided = approval.arguments is None or same_json(approval.arguments, call.arguments)
    return approval.decision != Decision.APPROVED or not is_as_decided


class _ToolPolicies(ConfirmationPolicy):
    """A `ConfirmationPolicy` that asks where the tool's `ToolPolicy` says so."""

    def should_ask(self, tool_name: str, tool_description: str, tool_params: dict[str, Any]) -> bool:
        run = run_context.current()
        return run is not None and run.policy(tool_name).approval

    def update_after_confirmation(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to remember: decisions are in the journal."""

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self)
