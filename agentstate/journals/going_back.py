"""Going back to a checkpoint of a session in a file, in memory or on a server, and changing what the run finds there.

Nothing is deleted: a new checkpoint repeats the earlier one, with the changes, and what came after that is discarded.
What discarded calls did stays done, so a call that would do it again needs approval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentstate.durable.policy import EffectScope
from agentstate.durable.records import CallRecord, EarlierEffects, NewCheckpoint, NewMessage
from agentstate.journals.ends import progress_from
from agentstate.journals.store import Store
from agentstate.names import STEP_KINDS, CallState, CheckpointKind, Decision

Json = Any
Body = dict[str, Json]


@dataclass(frozen=True, slots=True)
class SessionCheckpoint:
    """The start of a step, as it is stored: ``messages`` are bodies of `ChatMessage`, ``state`` is encoded."""

    position: int
    step: int
    messages: tuple[Body, ...]
    state: dict[str, Json]


def checkpoints(store: Store) -> list[SessionCheckpoint]:
    """The starts of the steps of the current history, oldest first."""
    return [
        SessionCheckpoint(
            row["position"],
            row["step"],
            tuple(store.messages[p] for p in store.context_at(row)),
            row["state"],
        )
        for row in store.checkpoints
        if row["kind"] in STEP_KINDS
    ]


def again(
    store: Store, at: int | None, state: Mapping[str, Json], messages: Sequence[Body] | None
) -> tuple[NewCheckpoint, int]:
    """The checkpoint that repeats the one at the position, or the newest start of a step; and the position of that.

    :param messages: What the model sees there instead. Messages that it saw in their place keep their positions.
    :raises LookupError: if no step of the current history starts there, or for None if the last turn has ended.
    """
    if at is None and store.checkpoints and store.checkpoints[-1]["kind"] == CheckpointKind.END:
        raise LookupError("The last turn has ended: name the checkpoint to which the session goes back.")
    starts = [row for row in store.checkpoints if row["kind"] in STEP_KINDS and at in (None, row["position"])]
    if not starts:
        where = "yet" if at is None else f"at the position {at}"
        raise LookupError(f"No step of this session starts {where}.")
    row = starts[-1]
    context: list[int] = store.context_at(row)
    new: list[Body] = []
    if messages is not None:
        same = 0
        while same < min(len(context), len(messages)) and store.messages[context[same]] == messages[same]:
            same += 1
        new = list(messages[same:])
        context = [*context[:same], *(-1 - index for index in range(len(new)))]
    return NewCheckpoint(
        kind=CheckpointKind(row["kind"]),
        step=row["step"],
        progress=progress_from(row["progress"]),
        messages=[NewMessage(body) for body in new],
        context=context,
        state={key: {"set": value} for key, value in {**row["state"], **state}.items()},
        counters=row["counters"],
        tools=tuple(row["tools"]),
        definition=row["definition"],
        read_unread=False,
    ), row["position"]


def discarded_effects(
    store: Store, call: CallRecord, arguments: Mapping[str, Json], scope: EffectScope
) -> EarlierEffects | None:
    """As `Journal.earlier_effects`. A call that was approved itself needs no other decision."""
    approval = call.approval
    is_approved = approval is not None and approval.decision == Decision.APPROVED and not approval.carried
    effects = [
        other
        for other in store.discarded_calls()
        if other.tool == call.tool and _took_effect(other) and scope.covers(other.run_arguments, arguments)
    ]
    if not effects:
        return None
    return EarlierEffects(
        calls=tuple(other.position for other in reversed(effects)),
        repeats=next((o.position for o in reversed(effects) if o.run_arguments == arguments), None),
        needs_decision=not is_approved,
    )


def approved_arguments(store: Store, tool: str) -> tuple[dict[str, Json], ...]:
    """As `Journal.approved`."""
    discarded = {call.position for call in store.discarded_calls()}
    return tuple(
        call.run_arguments
        for call in store.calls.values()
        if call.tool == tool
        and call.position not in discarded
        and call.approval is not None
        and call.approval.decision == Decision.APPROVED
        and call.approval.arguments is None
    )


def _took_effect(call: CallRecord) -> bool:
    started = call.status in (CallState.DONE, CallState.STARTED, CallState.DOUBT)
    return started or (call.status == CallState.PLANNED and call.attempt > 0)
