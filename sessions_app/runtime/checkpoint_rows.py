"""The rows of a run's checkpoints: each holds what changed since the one before, and refers to it for the rest."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from agentstate.durable.records import NewCheckpoint
from agentstate.durable.run_end import Finished
from agentstate.names import CheckpointKind
from sessions_app.history import restore, value_rows
from sessions_app.history.message_rows import AnsweredCall
from sessions_app.models import Branch, Checkpoint, StateValue
from sessions_app.runtime import statements

Json = Any


@dataclass(frozen=True, slots=True)
class CheckpointRows:
    """Inserts the checkpoints of one run. It is what the next checkpoint refers to of the last one.

    keys: the position of each state key's last whole value.
    context_at: the position of the checkpoint whose context holds.
    tools: the names of the tools.
    last: the one that this run has inserted last.
    """

    branch_id: int
    keys: Mapping[str, int]
    context_at: int
    tools: tuple[str, ...]
    last: restore.CheckpointKey | None = None

    @classmethod
    def behind(cls, branch: Branch, restored: restore.Restored) -> Self:
        """What follows the checkpoint from which the run continues."""
        tools = restored.checkpoint.tools if restored.checkpoint else ()
        return cls(branch.id, restored.keys, restored.context_at, tools)

    def insert(
        self,
        new: NewCheckpoint,
        position: int,
        messages: Sequence[int],
        read: Sequence[int],
        answered: Collection[AnsweredCall],
        at: datetime,
    ) -> "CheckpointRows":
        """Insert the checkpoint at `position`; returns what the next one refers to once this one is committed.

        :param messages: The positions of its new messages.
        :param read: The positions of the unread messages that it reads.
        :param answered: The calls of its step that are done.
        """
        context, context_at = None, self.context_at
        if new.context is not None:
            seen = [messages[-p - 1] if p < 0 else p for p in new.context] + [*read]
            context, context_at = restore.ranges(seen), position
        keys = {**self.keys, **{key: position for key, change in new.state.items() if "set" in change}}
        self._insert_values(position, new.state, answered)
        tools = list(new.tools) if new.tools != self.tools or new.kind == CheckpointKind.START else None
        outcome = None
        if new.kind == CheckpointKind.END and isinstance(new.run_end, Finished):
            outcome = {"final_answer": new.run_end.final_answer, "exit_reason": new.run_end.exit_reason}
        statements.insert(
            Checkpoint,
            [
                {
                    "branch_id": self.branch_id,
                    "position": position,
                    "kind": new.kind,
                    "step": new.step,
                    "phase": new.progress.phase,
                    "context": context,
                    "context_at": context_at,
                    "keys": keys,
                    "counters": new.counters,
                    "tools": tools,
                    "outcome": outcome,
                    "totals": new.progress.totals,
                    "definition": new.definition,
                    "created_at": at,
                }
            ],
        )
        key = restore.CheckpointKey(position, at)
        return CheckpointRows(self.branch_id, keys, context_at, new.tools, key)

    def _insert_values(
        self, position: int, changes: Mapping[str, Mapping[str, Json]], answered: Collection[AnsweredCall]
    ) -> None:
        """The changed state keys of a checkpoint: ``{"set": value}`` or ``{"extend": items}``."""
        rows = []
        for key, change in changes.items():
            extends, call_at = "extend" in change, None
            value = change["extend"] if extends else change["set"]
            # Of a list that grows each part is read, of other keys the last value: for it a result may be read.
            if not extends and (place := value_rows.place_of(value, answered)) is not None:
                call_at, value = place
            rows.append(
                {
                    "branch_id": self.branch_id,
                    "position": position,
                    "key": key,
                    "extends": extends,
                    "value": value,
                    "call_at": call_at,
                }
            )
        statements.insert(StateValue, rows)


def positions_of(new: NewCheckpoint) -> int:
    """How many positions it takes: its own, those of its messages, and that of the event of what it lost."""
    return 1 + len(new.messages) + bool(new.lost)


def is_rows_only(new: NewCheckpoint) -> bool:
    """Whether the checkpoint is stored by inserts alone."""
    return not (new.answered or new.run_end or new.lost or read_ids(new))


def read_ids(new: NewCheckpoint) -> list[int]:
    """The ids of the unread messages that the checkpoint names, as stored or as replaced."""
    return [*(m.unread_id for m in new.messages if m.unread_id is not None), *new.replaced_unread]
