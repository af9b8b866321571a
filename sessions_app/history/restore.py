"""Reading back: what a run, or the desk, needs of a session as it was at a checkpoint.

The cost is that of what the model sees and of the state's values, however long the history.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db.models import Q

from agentstate.durable.records import ApprovalRecord, Base, CallRecord, ReplyRecord, StoredMessage
from sessions_app.history.message_rows import RESULT_OF, results_of, unpack
from sessions_app.models import (
    Branch,
    CallStatus,
    Checkpoint,
    Message,
    ModelCall,
    Session,
    StateValue,
    ToolCall,
)
from sessions_app.models.rows import BranchRow

Json = Any
NEVER_RAN = (CallStatus.PLANNED, CallStatus.REJECTED, CallStatus.SKIPPED, CallStatus.FAILED)
# More calls than one reply asks for.
MOST_CALLS = 200
Row = TypeVar("Row", bound=BranchRow)


@dataclass(frozen=True, slots=True)
class Restored:
    base: Base | None = None
    keys: dict[str, int] = field(default_factory=dict)
    context_at: int = 0
    tools: tuple[str, ...] = ()
    replies: tuple[ReplyRecord, ...] = ()
    calls: tuple[CallRecord, ...] = ()


def read(session: Session, branch: Branch) -> Restored:
    """What there is to go on from at the tip of the branch."""
    checkpoint = last_visible(Checkpoint, branch)
    if checkpoint is None:
        return Restored()
    start = checkpoint
    if checkpoint.kind == Checkpoint.Kind.PREPARED:
        start = last_visible(Checkpoint, branch, without=Q(kind=Checkpoint.Kind.PREPARED)) or checkpoint
    context = context_of(branch, checkpoint)
    results = results_of(branch, context)
    tools = tools_of(branch, checkpoint)
    base = Base(
        position=checkpoint.position,
        kind=checkpoint.kind,  # type: ignore[arg-type]
        step=checkpoint.step,
        context=tuple(StoredMessage(message.position, unpack(message, results)) for message in context),
        state=state_of(branch, checkpoint),
        counters=checkpoint.counters,
        tools=tools,
        definition=checkpoint.definition,
    )
    return Restored(
        base=base,
        keys=checkpoint.keys,
        context_at=checkpoint.context_at,
        tools=tools,
        replies=_replies(branch, start.position),
        calls=_calls(branch, start.position),
    )


def last_visible(
    model: type[Row], branch: Branch, *, upto: int | None = None, without: Q | None = None
) -> Row | None:
    """The last row of its kind that the branch shows, looked for from its own segment backwards."""
    for pk, last in reversed(branch.segments()):
        rows = model._default_manager.filter(branch_id=pk)
        bounds = [bound for bound in (last, upto) if bound is not None]
        if bounds:
            rows = rows.filter(position__lte=min(bounds))
        if without is not None:
            rows = rows.exclude(without)
        row = rows.order_by("-position").first()
        if row is not None:
            return row
    return None


def context_of(branch: Branch, checkpoint: Checkpoint, *, only: Sequence[str] = ()) -> list[Message]:
    """The messages that the model sees at the checkpoint, in its order; with ``only``, no more than these fields of
    them."""
    messages = Message.objects.visible_on(branch, upto=checkpoint.position)
    if only:
        messages = messages.only("position", *only)
    if not checkpoint.context_at:
        return list(messages.order_by("position"))
    chosen = checkpoint
    if checkpoint.context_at != checkpoint.position:
        chosen = Checkpoint.objects.visible_on(branch).get(position=checkpoint.context_at)
    spans: list[list[int]] = chosen.context or []
    wanted = Q(pk__in=[])
    for first, last in spans:
        wanted |= Q(position__gte=first, position__lte=last)
    wanted |= Q(position__gt=checkpoint.context_at)
    found = {m.position: m for m in messages.filter(wanted)}
    seen = [found[p] for first, last in spans for p in range(first, last + 1) if p in found]
    return seen + [found[p] for p in sorted(found) if p > checkpoint.context_at]


def state_of(branch: Branch, checkpoint: Checkpoint) -> dict[str, Json]:
    """The encoded value of each state key at the checkpoint."""
    if not checkpoint.keys:
        return {}
    wanted = Q(pk__in=[])
    for key, since in checkpoint.keys.items():
        wanted |= Q(key=key, position__gte=since)
    state: dict[str, Json] = {}
    rows = StateValue.objects.visible_on(branch, upto=checkpoint.position).filter(wanted).order_by("position")
    for row in rows.iterator():
        if row.extends:
            state[row.key] += row.value
        else:
            state[row.key] = row.value
    return state


def tools_of(branch: Branch, checkpoint: Checkpoint) -> tuple[str, ...]:
    """The names of the tools at hand at the checkpoint."""
    row: Checkpoint | None = checkpoint
    if checkpoint.tools is None:
        row = last_visible(Checkpoint, branch, upto=checkpoint.position, without=Q(tools=None))
    return tuple(row.tools or ()) if row is not None else ()


def call_told_by(branch: Branch, message: Message) -> ToolCall | None:
    """The call whose result a tool's message is; None for other messages."""
    calls = ToolCall.objects.visible_on(branch, upto=message.position)
    if (place := message.body.get(RESULT_OF)) is not None:
        return calls.filter(position=place).first()
    call_id = _told(message)
    return calls.filter(call_id=call_id).order_by("-position").first() if call_id is not None else None


def told_of(branch: Branch, call: ToolCall) -> Message | None:
    """The message by which the model was told of the call's end, at the step boundary after it."""
    rows = Message.objects.visible_on(branch, after=call.position).filter(role=Message.Role.TOOL)
    for message in rows.order_by("position")[:MOST_CALLS]:
        if message.body.get(RESULT_OF) == call.position or _told(message) == call.call_id:
            return message
    return None


def _told(message: Message) -> str | None:
    """The id of the call whose result the message is; None for other messages."""
    for part in message.body.get("content", ()):
        told = part.get("tool_call_result")
        if isinstance(told, dict):
            return str((told.get("origin") or {}).get("id") or "")
    return None


def leaves_calls_behind(branch: Branch) -> bool:
    """Whether `left_behind` may find anything: this does not change while the session stays on the branch."""
    if branch.leaves_something_behind:
        return True
    return Branch.objects.filter(session=branch.session_id).exclude(pk=branch.pk).exists()


def left_behind(branch: Branch, tool: str, arguments: Json) -> ToolCall | None:
    """A call of the tool with these arguments that was started where this branch does not see it.

    That is on a tail that a rewind or an undo left, or, after a fork, in the session that this one was forked from.
    """
    seen = [pk for pk, _ in branch.segments()]
    sessions = Branch.objects.filter(pk__in=seen).values("session")
    calls = ToolCall.objects.filter(branch__session__in=sessions, tool=tool).exclude(status__in=NEVER_RAN)
    for call in calls.filter(cached=False).select_related("branch").order_by("-position"):
        if call.ran_with == arguments and not branch.sees(call.branch_id, call.position):
            return call
    return None


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
    for call in ModelCall.objects.visible_on(branch, after=after).filter(error="").order_by("position"):
        if call.aside is not None:
            messages: Sequence[StoredMessage] = [StoredMessage(call.position, body) for body in call.aside]
        else:
            rows = Message.objects.visible_on(branch, after=call.position, upto=call.position + call.replies)
            messages = [StoredMessage(row.position, unpack(row)) for row in rows.order_by("position")]
        replies.append(ReplyRecord(call.name, call.seq, tuple(messages)))
    return tuple(replies)


def _calls(branch: Branch, after: int) -> tuple[CallRecord, ...]:
    rows = ToolCall.objects.visible_on(branch, after=after).select_related("approval").order_by("position")
    return tuple(
        CallRecord(
            position=row.position,
            call_id=row.call_id,
            tool=row.tool,
            arguments=row.arguments,
            idempotency_key=row.idempotency_key,
            status=row.status,  # type: ignore[arg-type]
            sent=row.sent,
            result=row.result,
            error=row.error,
            state=row.state,
            attempt=row.attempt,
            approval=_approval(row),
        )
        for row in rows
    )


def _approval(row: ToolCall) -> ApprovalRecord | None:
    approval = getattr(row, "approval", None)
    if approval is None:
        return None
    return ApprovalRecord(approval.decision, approval.edited, approval.message)
