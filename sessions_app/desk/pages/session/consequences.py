"""What will happen: what an act reuses, runs again, leaves in doubt, and what it cannot undo."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q

from sessions_app.access.masking import Mask
from sessions_app.models import Branch, CallStatus, Checkpoint, ModelCall, RegisteredAgent, Session, ToolCall
from sessions_app.wording import count

SHOWN = 50


@dataclass(slots=True)
class Consequences:
    """Calls are shown up to `SHOWN` each; ``more`` counts the effects beyond."""

    reused: list[ToolCall] = field(default_factory=list)
    runs: list[ToolCall] = field(default_factory=list)
    again: list[ToolCall] = field(default_factory=list)
    doubt: list[ToolCall] = field(default_factory=list)
    effects: list[ToolCall] = field(default_factory=list)
    more: int = 0
    reply_kept: bool = False
    left_steps: int = 0
    inbox: int = 0

    @property
    def steps(self) -> str:
        return count(self.left_steps, "step")


def of_resume(session: Session, branch: Branch, mask: Mask) -> Consequences:
    """What a run finds in the unfinished step, and does with it."""
    found = Consequences(inbox=session.inbox.count())
    start = (
        Checkpoint.objects.visible_on(branch)
        .exclude(kind=Checkpoint.Kind.PREPARED)
        .order_by("-position")
        .values_list("position", flat=True)
        .first()
    )
    if start is None:
        return found
    policies = policies_of(session)
    found.reply_kept = (
        ModelCall.objects.visible_on(branch, after=start).filter(error="", aside__isnull=True).exists()
    )
    calls = ToolCall.objects.visible_on(branch, after=start).defer("result", "state").order_by("position")
    for call in mask.rows(calls[:SHOWN]):
        match call.status:
            case CallStatus.DOUBT:
                found.doubt.append(call)
            case CallStatus.STARTED:
                (found.again if policies.get(call.tool, {}).get("idempotent") else found.doubt).append(call)
            case CallStatus.PLANNED:
                found.runs.append(call)
            case _:
                found.reused.append(call)
    return found


def of_rewind(session: Session, branch: Branch, checkpoint: Checkpoint, mask: Mask) -> Consequences:
    """What lies after the checkpoint in the present history: its side effects have happened, whatever becomes of it."""
    found = Consequences(inbox=session.inbox.count())
    found.left_steps = (
        Checkpoint.objects.visible_on(branch, after=checkpoint.position - 1)
        .filter(kind__in=(Checkpoint.Kind.START, Checkpoint.Kind.STEP))
        .count()
    )
    harmless = [tool for tool, policy in policies_of(session).items() if policy.get("idempotent")]
    effects = (
        ToolCall.objects.visible_on(branch, after=checkpoint.position)
        .filter(
            Q(status=CallStatus.DONE, cached=False) | Q(status__in=(CallStatus.STARTED, CallStatus.DOUBT))
        )
        .exclude(tool__in=harmless)
    )
    rows = effects.defer("result", "state").order_by("-position")
    found.effects = mask.rows(rows[: SHOWN + 1])
    if len(found.effects) > SHOWN:
        found.more = effects.count() - SHOWN
        found.effects = found.effects[:SHOWN]
    return found


def policies_of(session: Session) -> Mapping[str, Mapping[str, Any]]:
    """The policies of the session's agent by tool, as its workers published them."""
    tools = RegisteredAgent.objects.filter(key=session.agent).values_list("tools", flat=True).first() or []
    return {tool["name"]: tool.get("policy") or {} for tool in tools}
