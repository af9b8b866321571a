"""The user's hooks, kept from running again on a resumed step where an undisturbed run would not run them.

The agent is given its hooks as lists that leave out, while the agent iterates them, what is not to run. So the hooks
themselves are the user's objects, traces name them as they are, and a hook that does not run has no span.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from agentstate.durable import run_context
from agentstate.durable.run_context import RunContext
from agentstate.names import AGENT_GENERATOR

# The exit reason of a run that ended at a step boundary, where its turn has not ended.
BOUNDARY = "agentstate:step_boundary"


class HooksOfPoint(list[Any]):
    """Our own hooks and the user's of one hook point, in the order in which they run.

    Before each of the user's hooks it is asked anew whether they run, since our own hook before them may end the run.
    Outside the loop of a durable run, as where hooks are warmed up or closed, all of them are listed.
    """

    def __init__(
        self, point: str, *, before: Iterable[Any] = (), users: Iterable[Any], after: Iterable[Any] = ()
    ) -> None:
        self._users = list(users)
        self._point = point
        super().__init__([*before, *self._users, *after])

    def __iter__(self) -> Iterator[Any]:
        for hook in super().__iter__():
            run = run_context.current()
            is_users = any(hook is users for users in self._users)
            if not (is_users and run is not None and run.loop_has_begun and _has_run(run, self._point)):
                yield hook


def _has_run(run: RunContext, point: str) -> bool:
    """Whether the user's hooks of this point have run before, or are to run when the turn is continued."""
    if point == "before_run":
        return not run.begins_turn
    if point == "before_llm":
        # Where the model's reply is on record, these hooks have run before it.
        has_run = run.context_is_committed or run.recorded_reply(AGENT_GENERATOR, 0) is not None
        return has_run or run.end is not None
    return run.end is not None
