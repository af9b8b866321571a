"""What will happen: what an action reuses, runs again, leaves in doubt, and which effects it cannot undo."""

from dataclasses import dataclass, field
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet

from agentstate.names import STEP_KINDS
from sessions_app.actions.attempts import call_to_try_again, step_to_begin_again
from sessions_app.desk.pages.session import samples
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.summary import CallSummary, summary_of
from sessions_app.history.effects import TOOK_EFFECT
from sessions_app.models import (
    Branch,
    CallStatus,
    Checkpoint,
    MemoryEntry,
    ModelCall,
    Session,
    ToolCall,
    policies_of,
)
from sessions_app.models.rows import visible
from sessions_app.wording import count

SHOWN = 50


@dataclass(slots=True)
class Consequences:
    """What a resume, a rewind or an undo would do.

    reused: calls that have ended; their results are used. ``runs``: calls that have not started.
    again: calls that had started or ended the turn and run again, being idempotent. ``doubt``: those that had started
    and are not. ``approvals``: the call that ended the turn, if it is not and so runs again with approval only.
    effects: calls with side effects on the steps that are discarded, newest first; ``more`` of them are not shown.
    reply_kept: the model's reply of the unfinished step is reused.
    begins_again: that reply ended the turn before any of its calls started, and the model is asked again.
    discarded_steps: how many steps a rewind or an undo discards.
    inbox: how many messages the agent has not read yet.
    """

    reused: list[CallSummary] = field(default_factory=list)
    runs: list[CallSummary] = field(default_factory=list)
    again: list[CallSummary] = field(default_factory=list)
    doubt: list[CallSummary] = field(default_factory=list)
    approvals: list[CallSummary] = field(default_factory=list)
    effects: list[CallSummary] = field(default_factory=list)
    more: int = 0
    reply_kept: bool = False
    begins_again: bool = False
    discarded_steps: int = 0
    inbox: int = 0

    @property
    def steps(self) -> str:
        return count(self.discarded_steps, "step")


def of_resume(context: SessionContext) -> Consequences:
    """What a run finds in the unfinished step, and does with it. Five queries, and three more after a failed turn."""
    branch = context.branch
    consequences = Consequences(inbox=context.session.inbox.count())
    begun = Checkpoint.objects.exclude(kind=Checkpoint.Kind.PREPARED).newest_within(visible(branch), 1)
    start = begun.values_list("position", flat=True).first()
    if start is None:
        return consequences
    if step_to_begin_again(context.session_row) is not None:
        consequences.begins_again = True
        return consequences
    policies = policies_of(context.session.registered_agent)
    replies = ModelCall.objects.visible_on(branch, after=start).filter(error="", side_replies__isnull=True)
    consequences.reply_kept = replies.exists()
    calls = ToolCall.objects.visible_on(branch, after=start).select_related("approval")
    calls = calls.defer("result", "state").order_by("position")
    attempt = call_to_try_again(context.session_row)
    agent = context.session.registered_agent
    for call in context.mask.rows(calls[:SHOWN]):
        line = summary_of(agent, call, context.mask)
        match call.status:
            case _ if attempt is not None and call.pk == attempt.pk:
                is_idempotent = policies.get(call.tool, {}).get("idempotent")
                (consequences.again if is_idempotent else consequences.approvals).append(line)
            case CallStatus.DOUBT:
                consequences.doubt.append(line)
            case CallStatus.STARTED if policies.get(call.tool, {}).get("idempotent"):
                consequences.again.append(line)
            case CallStatus.STARTED:
                consequences.doubt.append(line)
            case CallStatus.PLANNED:
                consequences.runs.append(line)
            case _:
                consequences.reused.append(line)
    return consequences


def of_rewind(context: SessionContext, checkpoint: Checkpoint) -> Consequences:
    """What lies after the checkpoint in the current history; its side effects are not undone. At most five queries."""
    branch = context.branch
    consequences = Consequences(inbox=context.session.inbox.count())
    consequences.discarded_steps = (
        Checkpoint.objects.visible_on(branch, after=checkpoint.position - 1)
        .filter(kind__in=STEP_KINDS)
        .count()
    )
    effects = effects_among(ToolCall.objects.visible_on(branch, after=checkpoint.position), context.session)
    _show_effects(context, consequences, effects)
    return consequences


def of_undo(context: SessionContext) -> Consequences:
    """What the current history shows and the branch to return to does not. At most five queries."""
    branch, target = context.branch, context.session_row.current_branch.undo_to
    consequences = Consequences(inbox=context.session.inbox.count())
    if target is None:
        return consequences
    shared = branch.shared_until(target)
    replies = ModelCall.objects.visible_on(branch, after=shared).filter(error="", side_replies__isnull=True)
    consequences.discarded_steps = replies.count()
    calls = effects_among(ToolCall.objects.visible_on(branch, after=shared), context.session)
    _show_effects(context, consequences, without_effects_on(target, calls, after=shared))
    return consequences


def details_of_resume(context: SessionContext) -> dict[str, Any]:
    """`of_resume`, and a sample of an earlier result of each tool that is in doubt: at most two more queries each."""
    consequences = of_resume(context)
    tools = dict.fromkeys(line.call.tool for line in consequences.doubt)
    return {"consequences": consequences, "samples": samples.of_tools(context, tools)}


def effects_among(calls: QuerySet[ToolCall], session: Session) -> QuerySet[ToolCall]:
    """Those of the session's calls that took effect, or may have, and whose tool may not be repeated. One query.

    So does a call that stored something in the long-term memory.
    """
    policies = policies_of(session.registered_agent)
    idempotent = [tool for tool, policy in policies.items() if policy.get("idempotent")]
    remembered = Exists(MemoryEntry.objects.filter(call=OuterRef("pk")))
    return calls.filter(TOOK_EFFECT).filter(~Q(tool__in=idempotent) | remembered)


def without_effects_on(branch: Branch, calls: QuerySet[ToolCall], *, after: int) -> QuerySet[ToolCall]:
    """Those of the calls whose effect the branch does not show after a position.

    A repair carries the calls of the unfinished step over: the copy of a call that took effect shows its effect.
    """
    shown = ToolCall.objects.visible_on(branch, after=after).filter(TOOK_EFFECT).order_by()
    return calls.exclude(idempotency_key__in=shown.values("idempotency_key"))


def _show_effects(context: SessionContext, consequences: Consequences, effects: QuerySet[ToolCall]) -> None:
    newest = effects.select_related("approval").defer("result", "state").order_by("-position")
    agent = context.session.registered_agent
    rows = context.mask.rows(newest[: SHOWN + 1])
    consequences.effects = [summary_of(agent, row, context.mask) for row in rows]
    if len(consequences.effects) > SHOWN:
        consequences.more = effects.count() - SHOWN
        consequences.effects = consequences.effects[:SHOWN]
