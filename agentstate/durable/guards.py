"""The user's hooks, kept from running again on a resumed step where an undisturbed run would not run them.

A guarded hook has the synchronous and the asynchronous function that the user's has, so that Haystack chooses
between them as in a plain run.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

from haystack.components.agents.state import State
from haystack.core.serialization import default_to_dict

from agentstate.durable import run_context
from agentstate.durable.run_context import RunContext
from agentstate.names import AGENT_GENERATOR

# The exit reason of a run that ended at a step boundary, where its turn has not ended.
BOUNDARY = "agentstate:step_boundary"
_LIFECYCLE = ("warm_up", "warm_up_async", "close", "close_async")


def guarded(hook: Any, point: str) -> Any:
    """The user's hook with a guard: of the same type, so that traces name it as it is."""
    guard = GuardedHook(hook, point)
    return standing_in(hook, guard.run, guard.run_async) or guard


def standing_in(
    hook: Any, run: Callable[[State], None], run_async: Callable[[State], Awaitable[None]]
) -> Any:
    """A copy of the hook with other functions; None for one that cannot be copied so. Its resources stay the hook's."""
    try:
        stand_in = copy.copy(hook)
        object.__setattr__(stand_in, "run", run)
        if is_async(hook):
            object.__setattr__(stand_in, "run_async", run_async)
        for name in _LIFECYCLE:
            if hasattr(hook, name):
                object.__setattr__(stand_in, name, getattr(hook, name))
    except (AttributeError, TypeError):
        return None
    replaced = stand_in.run == run and (not is_async(hook) or stand_in.run_async == run_async)
    return stand_in if replaced else None


def is_async(hook: Any) -> bool:
    """Whether an asynchronous run awaits the hook: it runs others in a thread."""
    return callable(getattr(hook, "run_async", None))


class GuardedHook:
    def __init__(self, inner: Any, point: str) -> None:
        self.inner = inner
        self.point = point
        allowed = getattr(inner, "allowed_hook_points", None)
        if allowed is not None:
            self.allowed_hook_points = allowed
        for name in _LIFECYCLE:
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))

    def run(self, state: State) -> None:
        if not self._is_skipped(state):
            self.inner.run(state)

    async def run_async(self, state: State) -> None:
        if self._is_skipped(state):
            return
        if is_async(self.inner):
            await self.inner.run_async(state)
        else:
            await asyncio.to_thread(self.inner.run, state)

    def _is_skipped(self, state: State) -> bool:
        run = run_context.current()
        return run is not None and self._has_run(run, state)

    def _has_run(self, run: RunContext, state: State) -> bool:
        if self.point == "before_run":
            return not run.begins_turn
        if self.point == "before_llm":
            # Where the model's reply is on record, these hooks have run before it.
            has_run = run.context_is_committed or run.recorded_reply(AGENT_GENERATOR, 0) is not None
            return has_run or state.data.get("stop_run") == BOUNDARY
        return bool(state.data.get("exit_reason") == BOUNDARY)

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, point=self.point)
