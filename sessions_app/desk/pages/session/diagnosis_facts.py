"""What the rules of `diagnosis` look at: the last calls and the last checkpoint, without what may be long.

A page of a running session is drawn with each step, so the calls are read as plain values and not as rows of their
model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast, Length, Substr

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.history import restore, value_rows
from sessions_app.models import CallStatus, Checkpoint, ModelCall, RegisteredAgent, Session, Status, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import Ranges, visible

LAST_CALLS = 60
LAST_MODEL_CALLS = 10
MOST_KEYS = 100
MOST_CHARACTERS = 20_000


class LastCall(NamedTuple):
    """A call, and its approval: ``decision`` is None where it needs none, and "" while it is not decided.

    arguments, size: the beginning of the arguments as JSON text, and the length of the whole text. Not masked.
    """

    position: int
    tool: str
    status: str
    started_at: datetime | None
    arguments: str
    size: int
    decision: str | None
    asked_at: datetime | None
    expires_at: datetime | None
    repeats: int | None

    @property
    def waits_for_approval(self) -> bool:
        return self.decision == "" and self.status == CallStatus.PLANNED


@dataclass(slots=True)
class Facts:
    """Calls are newest first; ``state`` is JSON text by key.

    The session and the model calls are masked, since hints quote them. ``calls`` and ``state`` are not.
    """

    session: Session
    now: datetime
    agent: RegisteredAgent | None
    # The last complete one: the start of the unfinished step.
    checkpoint: Checkpoint | None
    calls: Sequence[LastCall]
    model_calls: list[ModelCall]  # the last ones, if a rule may apply to them
    state: list[tuple[str, str]]

    @property
    def open_calls(self) -> list[LastCall]:
        """The calls of the unfinished step, oldest first."""
        start = self.checkpoint.position if self.checkpoint else 0
        return [call for call in reversed(self.calls) if call.position > start]


def facts_of(context: SessionContext, newest: Checkpoint | None) -> Facts:
    """:param newest: The branch's newest checkpoint; None where it has none."""
    session, branch = context.session, context.branch
    agent = session.registered_agent
    checkpoint = newest
    if newest is not None and not newest.complete:
        checkpoint = restore.last_visible(Checkpoint, branch, without=Q(kind=Checkpoint.Kind.PREPARED))
    calls = [LastCall._make(values) for values in _last_calls(visible(branch), characters=MOST_CHARACTERS)]
    model_calls = [] if _all_replied(session) and not window_of(session) else _model_calls(context)
    state = []
    if checkpoint is not None and checkpoint.keys:
        state = value_rows.beginnings(branch, checkpoint, keys=MOST_KEYS, characters=MOST_CHARACTERS)
    return Facts(session, context.now, agent, checkpoint, calls, model_calls, state)


def _model_calls(context: SessionContext) -> list[ModelCall]:
    return context.mask.rows(_last_model_calls(visible(context.branch)))


@compiled
def _last_calls(where: Ranges, *, characters: int) -> QuerySet[ToolCall, tuple[Any, ...]]:
    as_text = Cast("arguments", TextField())
    calls = ToolCall.objects.annotate(beginning=Substr(as_text, 1, characters), size=Length(as_text))
    approval = ("approval__decision", "approval__asked_at", "approval__expires_at", "approval__repeats")
    return calls.newest_within(where, LAST_CALLS).values_list(
        "position", "tool", "status", "started_at", "beginning", "size", *approval
    )


@compiled
def _last_model_calls(where: Ranges) -> QuerySet[ModelCall]:
    return ModelCall.objects.defer("side_replies").newest_within(where, LAST_MODEL_CALLS)


def _all_replied(session: Session) -> bool:
    """Whether the last model calls of a session that runs have replied, for all that its row says.

    The page of such a session is drawn with each of its steps. An attempt counts until the next reply. Sessions of
    version 0.1 have no total of the failed calls.
    """
    return (
        session.status == Status.RUNNING
        and session.attempt <= 1
        and not session.totals.get("failed_model_calls")
    )


def window_of(session: Session) -> int | None:
    """The tokens that fit into the context of the session's agent; None where that is not configured."""
    windows = settings.AGENTSTATE_CONTEXT_WINDOW
    tokens: int | None = windows.get(session.agent, windows.get(""))
    return tokens
