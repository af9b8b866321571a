"""The rows of a run's checkpoints: each holds what changed since the one before, and refers to it for the rest."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agentstate.durable.records import NewCheckpoint
from agentstate.durable.run_end import Finished
from agentstate.names import CheckpointKind
from sessions_app.history import restore
from sessions_app.models import Branch, Checkpoint, StateValue
from sessions_app.runtime import statements

Json = Any


class CheckpointRows:
    """Inserts the checkpoints of one run, in the transaction that holds the fence.

    Of the last checkpoint it keeps the position of each state key's last whole value, the position of the checkpoint
    whose context holds, and the names of the tools.
    """

    def __init__(self, branch: Branch, restored: restore.Restored) -> None:
        self._branch = branch
        self._keys = dict(restored.keys)
        self._context_at = restored.context_at
        self._tools = restored.checkpoint.tools if restored.checkpoint else ()

    def insert(
        self, new: NewCheckpoint, position: int, messages: Sequence[int], read: Sequence[int], at: datetime
    ) -> None:
        """Insert the checkpoint at `position`.

        :param messages: The positions of its new messages.
        :param read: The positions of the unread messages that it reads.
        """
        context = None
        if new.context is not None:
            seen = [messages[-p - 1] if p < 0 else p for p in new.context] + [*read]
            context, self._context_at = restore.ranges(seen), position
        for key, change in new.state.items():
            if "set" in change:
                self._keys[key] = position
        self._insert_values(position, new.state)
        tools = list(new.tools) if new.tools != self._tools or new.kind == CheckpointKind.START else None
        self._tools = new.tools
        outcome = None
        if new.kind == CheckpointKind.END and isinstance(new.run_end, Finished):
            outcome = {"final_answer": new.run_end.final_answer, "exit_reason": new.run_end.exit_reason}
        statements.insert(
            Checkpoint,
            [
                {
                    "branch_id": self._branch.id,
                    "position": position,
                    "kind": new.kind,
                    "step": new.step,
                    "phase": new.progress.phase,
                    "context": context,
                    "context_at": self._context_at,
                    "keys": self._keys,
                    "counters": new.counters,
                    "tools": tools,
                    "outcome": outcome,
                    "totals": new.progress.totals,
                    "definition": new.definition,
                    "created_at": at,
                }
            ],
        )

    def _insert_values(self, position: int, changes: Mapping[str, Mapping[str, Json]]) -> None:
        """The changed state keys of a checkpoint: ``{"set": value}`` or ``{"extend": items}``."""
        statements.insert(
            StateValue,
            [
                {
                    "branch_id": self._branch.id,
                    "position": position,
                    "key": key,
                    "extends": "extend" in change,
                    "value": change["extend"] if "extend" in change else change["set"],
                }
                for key, change in changes.items()
            ],
        )
