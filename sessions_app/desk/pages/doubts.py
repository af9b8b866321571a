"""Calls in doubt as a person decides them: what they do, when and where they started, and whether they may still end.

One query for the workers, and one for the agents if they are not loaded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from agentstate.durable.run_end import late_sentence
from sessions_app.access.availability import agent_cannot_run
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.pages.from_state import FromState
from sessions_app.desk.pages.from_state import shown as shown_from_state
from sessions_app.desk.pages.session_agents import agent_title, load_agents
from sessions_app.desk.pages.summary import (
    ShownArgument,
    changes_of,
    published_tool,
    shown_arguments,
    summary,
)
from sessions_app.history import from_state
from sessions_app.models import Session, ToolCall, Worker, online_since
from sessions_app.models.compiled import compiled
from sessions_app.wording import ago


@dataclass(frozen=True, slots=True)
class Doubt:
    """A call in doubt, masked.

    arguments: those that it ran with, by their titles and formats.
    late: that the call took longer than its tool may, as a sentence; "" where its worker did not report back.
    worker: what is known of the worker that started it, as a sentence; "" where it was not recorded.
    may_still_end: why that worker may still finish the call, as a sentence; "" where it is known to have stopped.
    from_state: what it was given from the State, where it was approved with that.
    changes: how the arguments that it ran with differ from those that the agent asked for; "" where they do not.
    tools_inside: the tools of an agent that runs inside the call, any of which may have taken effect.
    """

    call: ToolCall
    session: Session
    agent_title: str
    summary: str
    effect: str
    arguments: list[ShownArgument]
    late: str
    worker: str
    may_still_end: str
    agent_problem: str
    new_definition: str
    tools_inside: tuple[str, ...]
    changes: str
    from_state: tuple[FromState, ...] = ()

    @property
    def started(self) -> datetime:
        return self.call.started_at or self.call.asked_at


def read_doubts(context: PageContext, keys: Iterable[int]) -> dict[int, Doubt]:
    """The calls with these keys. Three queries, if there are any."""
    found = tuple(set(keys))
    calls = context.mask.rows(_calls(found)) if found else []
    if not calls:
        return {}
    sessions = [call.branch.session for call in calls]
    load_agents(sessions, context.agents)
    doubts = of_calls(list(zip(calls, sessions, strict=True)), context.now, context.mask)
    return {doubt.call.pk: doubt for doubt in doubts}


@compiled
def _calls(keys: tuple[int, ...]) -> QuerySet[ToolCall]:
    rows = ToolCall.objects.filter(pk__in=keys).select_related("branch__session__branch", "approval")
    return rows.defer("result", "state")


def of_calls(calls: Sequence[tuple[ToolCall, Session]], now: datetime, mask: Mask) -> list[Doubt]:
    """Each call with its session, masked. One query; reads the registered agents of the sessions."""
    names = {call.worker for call, _ in calls if call.worker}
    known = {worker.name: worker for worker in Worker.objects.filter(name__in=names)} if names else {}
    return [_doubt(call, session, known.get(call.worker), now, mask) for call, session in calls]


def _doubt(call: ToolCall, session: Session, worker: Worker | None, now: datetime, mask: Mask) -> Doubt:
    agent = session.registered_agent
    tool = published_tool(agent, call.tool, mask)
    policy: dict[str, Any] = tool.get("policy") or {}
    sentence, may_still_end = _state_of(call.worker, worker, now)
    return Doubt(
        call=call,
        session=session,
        agent_title=agent_title(session),
        summary=summary(agent, call.tool, call.ran_with, mask),
        effect=str(policy.get("effect") or ""),
        arguments=shown_arguments(tool, call.ran_with),
        late=late_sentence(call.tool, session.why),
        worker=sentence,
        may_still_end=may_still_end,
        agent_problem=agent_cannot_run(session),
        new_definition=session.new_definition,
        tools_inside=tuple(tool.get("tools_inside") or ()),
        changes=changes_of(agent, call),
        from_state=shown_from_state(tool, from_state.of_call(call)),
    )


def _state_of(name: str, worker: Worker | None, now: datetime) -> tuple[str, str]:
    """What is known of the worker, and why it may still finish the call."""
    if worker is None:
        known = f"Worker {name} is unknown." if name else ""
        return known, "Its worker may still be running, so it may still finish the call."
    if worker.stopped_at is not None:
        return f"Worker {name} stopped {ago(worker.stopped_at, now)}: it cannot finish the call.", ""
    if worker.beat_at >= online_since(now):
        return f"Worker {name} is online.", "Its worker is online, so it may still finish the call."
    offline = f"Worker {name} is offline: its last heartbeat was {ago(worker.beat_at, now)}."
    return offline, "Its worker may only have lost its connection, so it may still finish the call."
