"""Reads a branch as it was at a checkpoint: for a run that resumes, for the pages and for the repairs.

The cost depends on what the model sees and on the state's values, not on the length of the history. Nothing is locked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from django.db.models import Model, Q, QuerySet

from agentstate.durable.records import (
    ApprovalRecord,
    CallRecord,
    ReplyRecord,
    StoredCheckpoint,
    StoredMessage,
)
from agentstate.durable.shown_state import StateArgument
from agentstate.names import STEP_KINDS, CallState, CheckpointKind
from sessions_app.history import context_rows, value_rows
from sessions_app.history.message_rows import RESULT_OF, unpack
from sessions_app.models import (
    Branch,
    Checkpoint,
    Message,
    ModelCall,
    StateValue,
    ToolCall,
)
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import BranchRow, Ranges, visible

Json = Any
# The answer to a call is looked for in so many tool messages: more than one reply asks for.
MOST_CALLS = 200
Row = TypeVar("Row", bound=BranchRow)
Spans = tuple[tuple[int, int], ...]
Item = TypeVar("Item")


class CheckpointKey(NamedTuple):
    """Which checkpoint of a session it is, also where the database was put back to an earlier moment in between."""

    position: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Restored:
    """The checkpoint to resume from, and what was recorded since. ``keys`` and ``context_at`` are those of its row."""

    checkpoint: StoredCheckpoint | None = None
    keys: dict[str, int] = field(default_factory=dict)
    context_at: int = 0
    replies: tuple[ReplyRecord, ...] = ()
    calls: tuple[CallRecord, ...] = ()


def read(branch: Branch, last: int | None = None, *, known: CheckpointKey | None = None) -> Restored:
    """The state to resume from at the tip of the branch.

    :param last: The last position that the session has given out, if it is known: where it is that of the checkpoint,
        nothing was recorded since, and nothing is looked for.
    :param known: The checkpoint whose context the caller has: that is not read.
    """
    checkpoint = last_visible(Checkpoint, branch)
    if checkpoint is None:
        return Restored()
    step_start = checkpoint
    if checkpoint.kind == Checkpoint.Kind.PREPARED:
        step_start = last_visible(Checkpoint, branch, without=Q(kind=Checkpoint.Kind.PREPARED)) or checkpoint
    key = CheckpointKey(checkpoint.position, checkpoint.created_at)
    stored = StoredCheckpoint(
        position=checkpoint.position,
        kind=CheckpointKind(checkpoint.kind),
        step=checkpoint.step,
        context=() if key == known else stored_context(branch, checkpoint),
        state=state_of(branch, checkpoint),
        counters=checkpoint.counters,
        tools=tools_of(branch, checkpoint),
        definition=checkpoint.definition,
        context_is_known=key == known,
    )
    if step_start.position == last:
        return Restored(stored, checkpoint.keys, checkpoint.context_at)
    return Restored(
        checkpoint=stored,
        keys=checkpoint.keys,
        context_at=checkpoint.context_at,
        replies=_replies(branch, step_start.position),
        calls=_calls(branch, step_start.position),
    )


def last_visible(
    model: type[Row], branch: Branch, *, upto: int | None = None, without: Q | None = None
) -> Row | None:
    """The last row of the model that the branch shows, searched from the branch's own segment backwards."""
    for pk, last in reversed(branch.segments()):
        bounds = [bound for bound in (last, upto) if bound is not None]
        row: Row | None = _last.first(pk, min(bounds, default=None), model=model, without=without)
        if row is not None:
            return row
    return None


@compiled
def _last(branch_id: int, upto: int | None, *, model: type[Model], without: Q | None) -> QuerySet[Any]:
    rows = model._default_manager.filter(branch_id=branch_id)
    if upto is not None:
        rows = rows.filter(position__lte=upto)
    if without is not None:
        rows = rows.exclude(without)
    return rows.order_by("-position")[:1]


def step_after(branch: Branch, position: int) -> Checkpoint | None:
    """The start of the first step after the position; None if none has started since. One query."""
    return _first_start.first(visible(branch, after=position))


@compiled
def _first_start(where: Ranges) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.filter(kind__in=STEP_KINDS).oldest_within(where, 1)


def context_of(branch: Branch, checkpoint: Checkpoint, *, only: Sequence[str] = ()) -> list[Message]:
    """The messages that the model sees at the checkpoint, in its order.

    :param only: Load no other fields than these and the position.
    """
    spans = _spans(branch, checkpoint)
    messages = _in_context(visible(branch, upto=checkpoint.position), spans, checkpoint.context_at or None)
    if only:
        messages = messages.only("position", *only)
    return _as_seen({message.position: message for message in messages}, checkpoint, spans)


def stored_context(branch: Branch, checkpoint: Checkpoint) -> tuple[StoredMessage, ...]:
    """As `context_of`: the whole messages, for a run. Rows become no objects on the way, since there may be many."""
    spans = _spans(branch, checkpoint)
    where = visible(branch, upto=checkpoint.position)
    rows = context_rows.fetched(
        *_bodies_in_context.sql_with_params(where, spans, checkpoint.context_at or None)
    )
    stored = context_rows.stored_messages(branch, rows)
    return tuple(_as_seen(stored, checkpoint, spans))


def _spans(branch: Branch, checkpoint: Checkpoint) -> Spans:
    """``(first, last)`` position of the messages that the model sees first at the checkpoint, in its order."""
    if not checkpoint.context_at:
        return ()
    with_context = checkpoint
    if checkpoint.context_at != checkpoint.position:
        [with_context] = _checkpoint_at(visible(branch), checkpoint.context_at)
    return tuple([(first, last) for first, last in with_context.context or []])


@compiled
def _checkpoint_at(where: Ranges, position: int) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.within(where).filter(position=position)


def _in_context(where: Ranges, spans: Spans, behind: int | None) -> QuerySet[Message]:
    """The messages that the model sees, by position: those of the spans, and all that come behind a position."""
    messages = Message.objects.within(where)
    if behind is None:
        return messages
    seen = Q(pk__in=[])
    for first, last in spans:
        seen |= Q(position__gte=first, position__lte=last)
    return messages.filter(seen | Q(position__gt=behind))


@compiled
def _bodies_in_context(
    where: Ranges, spans: Spans, behind: int | None
) -> QuerySet[Message, context_rows.MessageColumns]:
    """As `context_rows.fetched` reads them."""
    return _in_context(where, spans, behind).values_list(
        "position", "role", "text", context_rows.as_text("body")
    )


def _as_seen(rows: dict[int, Item], checkpoint: Checkpoint, spans: Spans) -> list[Item]:
    """The rows of a context, given by position, in the order in which the model sees them."""
    chosen = [rows[p] for first, last in spans for p in range(first, last + 1) if p in rows]
    return chosen + [rows[p] for p in sorted(rows) if p > checkpoint.context_at]


def state_of(branch: Branch, checkpoint: Checkpoint, *, only: str | None = None) -> dict[str, Json]:
    """The encoded value of each state key at the checkpoint. At most two queries.

    :param only: Read the value of this key, and no other.
    """
    keys = checkpoint.keys
    if only is not None:
        keys = {only: keys[only]} if only in keys else {}
    if not keys:
        return {}
    rows = _state_rows(visible(branch, upto=checkpoint.position), tuple(keys.items()))
    results = value_rows.results_at(branch, {call_at for *_, call_at in rows if call_at is not None})
    state: dict[str, Json] = {}
    for key, extends, stored, call_at in rows:
        value = stored if call_at is None else value_rows.part_of(results[call_at], stored)
        if extends:
            state[key] += value
        else:
            # What is added to a list is not added to that of the result.
            state[key] = [*value] if isinstance(value, list) else value
    return state


@compiled
def _state_rows(
    where: Ranges, keys: value_rows.Places
) -> QuerySet[StateValue, tuple[str, bool, Json, int | None]]:
    values = Q(pk__in=[])
    for key, since in keys:
        values |= Q(key=key, position__gte=since)
    rows = StateValue.objects.within(where).filter(values).order_by("position")
    return rows.values_list("key", "extends", "value", "call_at")


def tools_of(branch: Branch, checkpoint: Checkpoint) -> tuple[str, ...]:
    """The names of the tools that are available at the checkpoint."""
    row: Checkpoint | None = checkpoint
    if checkpoint.tools is None:
        row = last_visible(Checkpoint, branch, upto=checkpoint.position, without=Q(tools=None))
    return tuple(row.tools or ()) if row is not None else ()


def call_answered_by(branch: Branch, message: Message) -> ToolCall | None:
    """The call whose result a tool's message is; None for other messages."""
    calls = ToolCall.objects.visible_on(branch, upto=message.position)
    if (position := message.body.get(RESULT_OF)) is not None:
        return calls.filter(position=position).first()
    call_id = _answered_call_id(message)
    return calls.filter(call_id=call_id).order_by("-position").first() if call_id is not None else None


def answer_of(branch: Branch, call: ToolCall) -> Message | None:
    """The message with the call's result, which follows at the step boundary after it; None if there is none yet.

    Where the call was tried again, that is the one with the result of the last attempt. Two queries.
    """
    later = ToolCall.objects.visible_on(branch, after=call.position).filter(call_id=call.call_id)
    attempts = {call.position, *later.order_by("position").values_list("position", flat=True)[:MOST_CALLS]}
    rows = Message.objects.visible_on(branch, after=call.position).filter(role=Message.Role.TOOL)
    for message in rows.order_by("position")[:MOST_CALLS]:
        if message.body.get(RESULT_OF) in attempts or _answered_call_id(message) == call.call_id:
            return message
    return None


def _answered_call_id(message: Message) -> str | None:
    """The id of the call whose result the message is; None for other messages."""
    for part in message.body.get("content", ()):
        result = part.get("tool_call_result")
        if isinstance(result, dict):
            return str((result.get("origin") or {}).get("id") or "")
    return None


def answering(context: Sequence[Message], end: Checkpoint) -> Message | None:
    """The message of the context whose text is the final answer of the turn that ends there, None if there is none.

    It is the agent's, the last one; or the result of the tool that ended the turn, the last one with that text.

    :param context: That of the checkpoint, with its texts.
    """
    if context and context[-1].role == Message.Role.ASSISTANT:
        return context[-1]
    answer = (end.outcome or {}).get("final_answer")
    results = [row for row in context if row.role == Message.Role.TOOL and row.text and row.text == answer]
    return results[-1] if results else None


def ranges(positions: Iterable[int]) -> list[list[int]]:
    """``[[first, last], ...]`` for positions in the order in which the model sees them."""
    spans: list[list[int]] = []
    for position in positions:
        if spans and position == spans[-1][1] + 1:
            spans[-1][1] = position
        else:
            spans.append([position, position])
    return spans


def _replies(branch: Branch, after: int) -> tuple[ReplyRecord, ...]:
    replies = []
    for call in _answered_model_calls(visible(branch, after=after)):
        messages: Sequence[StoredMessage]
        if call.side_replies is not None:
            messages = [StoredMessage(call.position, body) for body in call.side_replies]
        else:
            rows = Message.objects.visible_on(branch, after=call.position, upto=call.position + call.replies)
            messages = [StoredMessage(row.position, unpack(row)) for row in rows.order_by("position")]
        replies.append(ReplyRecord(call.name, call.seq, tuple(messages)))
    return tuple(replies)


@compiled
def _answered_model_calls(where: Ranges) -> QuerySet[ModelCall]:
    return ModelCall.objects.within(where).filter(error="").order_by("position")


@compiled
def _tool_calls(where: Ranges) -> QuerySet[ToolCall]:
    return ToolCall.objects.within(where).select_related("approval").order_by("position")


def _calls(branch: Branch, after: int) -> tuple[CallRecord, ...]:
    return tuple(
        CallRecord(
            position=row.position,
            call_id=row.call_id,
            tool=row.tool,
            arguments=row.arguments,
            idempotency_key=row.idempotency_key,
            status=CallState(row.status),
            sent=row.sent,
            result=row.result,
            error=row.error,
            state=row.state,
            attempt=row.attempt,
            approval=_approval(row),
        )
        for row in _tool_calls(visible(branch, after=after))
    )


def _approval(row: ToolCall) -> ApprovalRecord | None:
    approval = getattr(row, "approval", None)
    if approval is None:
        return None
    digests = approval.from_state_digests
    from_state = None if digests is None else {name: StateArgument(**row) for name, row in digests.items()}
    return ApprovalRecord(
        approval.decision, approval.edited, approval.message, from_state, approval.is_carried
    )
