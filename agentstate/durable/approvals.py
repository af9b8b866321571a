"""Approvals: a tool call parks its session until a person has decided, and holds no worker meanwhile.

The decision itself, and what the model is told of it, is Haystack's own `ConfirmationHook`; the strategy here reads the
answers from the journal instead of blocking on a prompt.
"""

from typing import Any

from haystack.components.agents.state import State
from haystack.core.serialization import component_to_dict, default_from_dict, default_to_dict
from haystack.hooks.human_in_the_loop import (
    AlwaysAskPolicy,
    BlockingConfirmationStrategy,
    ConfirmationHook,
    ToolExecutionDecision,
)
from haystack.hooks.human_in_the_loop.types import ConfirmationPolicy, ConfirmationStrategy
from haystack.utils.deserialization import deserialize_component_inplace

from agentstate.durable import run_context
from agentstate.names import ENDED_CALL_STATES


class JournalConfirmationStrategy(ConfirmationStrategy):
    """A `ConfirmationStrategy` for `ConfirmationHook` whose answers are given on the desk.

    :param policy: Haystack's policy of when to ask. Outside a durable run every call is let through.
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
        go_on = ToolExecutionDecision(
            tool_name=tool_name, execute=True, tool_call_id=tool_call_id, final_tool_params=tool_params
        )
        run = run_context.current()
        if run is None:
            return go_on
        record = run.call(tool_call_id)
        if record is not None and record.approval is not None:
            answer = record.approval
        elif record is not None and record.status in ENDED_CALL_STATES:
            return go_on  # somebody has answered for it: it does not run
        elif tool_name in run.allowed or not self.policy.should_ask(tool_name, tool_description, tool_params):
            return go_on
        else:
            answer = None
        if answer is None or answer.decision == "":
            run.ask(tool_call_id, tool_name, tool_params)
            return go_on
        if answer.decision == "reused":
            return go_on
        if answer.decision == "approved":
            if answer.arguments is None or answer.arguments == tool_params:
                return go_on
            return ToolExecutionDecision(
                tool_name=tool_name,
                execute=True,
                tool_call_id=tool_call_id,
                final_tool_params=answer.arguments,
                feedback=f"A person changed the arguments of '{tool_name}' to {answer.arguments}"
                + (f": {answer.message}" if answer.message else "."),
            )
        return ToolExecutionDecision(
            tool_name=tool_name,
            execute=False,
            tool_call_id=tool_call_id,
            feedback=answer.message or f"A person rejected this call of '{tool_name}'.",
        )

    async def run_async(self, **inputs: Any) -> ToolExecutionDecision:
        return self.run(**inputs)

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, policy=component_to_dict(self.policy, "policy"))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "JournalConfirmationStrategy":
        deserialize_component_inplace(data["init_parameters"], key="policy")
        strategy: JournalConfirmationStrategy = default_from_dict(cls, data)
        return strategy


def on_the_desk(hook: Any) -> Any:
    """The hook with strategies that would block the worker replaced by one that parks the session."""
    if not isinstance(hook, ConfirmationHook):
        return hook
    return ConfirmationHook(
        confirmation_strategies={
            tools: JournalConfirmationStrategy(strategy.confirmation_policy)
            if isinstance(strategy, BlockingConfirmationStrategy)
            else strategy
            for tools, strategy in hook.confirmation_strategies.items()
        }
    )


class ApprovalHook:
    """Asks for the tools whose policy wants an approval, and carries out what people decided of any call."""

    def __init__(self) -> None:
        self._hook = ConfirmationHook(
            confirmation_strategies={"*": JournalConfirmationStrategy(_PolicyAsks())}
        )

    def run(self, state: State) -> None:
        run = run_context.current()
        messages = state.data.get("messages")
        if run is None or not messages:
            return
        records = [(call.tool_name, run.call(call.id)) for call in messages[-1].tool_calls]
        if any(run.policy(tool).approval or (record and record.approval) for tool, record in records):
            self._hook.run(state)

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self)


class _PolicyAsks(ConfirmationPolicy):
    """A `ConfirmationPolicy`: ask as the tool's policy says."""

    def should_ask(self, tool_name: str, tool_description: str, tool_params: dict[str, Any]) -> bool:
        run = run_context.current()
        return run is not None and run.policy(tool_name).approval

    def update_after_confirmation(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to remember: answers are in the journal."""

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self)
