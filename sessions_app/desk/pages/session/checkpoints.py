"""Checkpoints: the list of them, and those to which a person most likely wants to rewind."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from agentstate.names import STEP_KINDS
from sessions_app.access.action import Action
from sessions_app.access.availability import shows
from sessions_app.action_list import REPLACE_MESSAGE
from sessions_app.desk.pages.session import repairs
from sessions_app.desk.pages.session.consequences import effects_among
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.summary import summary_of
from sessions_app.history import restore
from sessions_app.models import (
    Branch,
    CallStatus,
    Checkpoint,
    Message,
    ModelCall,
    Phase,
    Session,
    Status,
    ToolCall,
)
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import BranchRowQuerySet, Ranges, visible

PAGE = 100
_LISTED = ("position", "kind", "step", "phase", "created_at")
_BIG_FIELDS = ("context", "keys", "counters", "tools", "totals")
# Of so many last calls, the tools are suggested.
_LAST_CALLS = 100
# Among the calls of so many positions before the last call, those with an effect are suggested: of some 800 steps.
_EFFECTS_WITHIN = 5_000
# The dialog offers so many places by name, so many of them before effects; all others are one click further.
_MOST_SUGGESTIONS = 5
_MOST_EFFECTS = 3
# Of so many branches the discarded checkpoints are listed.
_MOST_BRANCHES = 200
OTHER_WORDS = "the last message, reworded"


@dataclass(frozen=True, slots=True)
class CheckpointsPage:
    """``earlier`` is the ``before`` of the page before this one, None on the first."""

    checkpoints: Sequence[Checkpoint]
    earlier: int | None


def read_page(context: SessionContext, *, before: int | None = None, limit: int = PAGE) -> CheckpointsPage:
    """The newest checkpoints before a position, newest first, each with its ``fork_count``. One query."""
    upto = None if before is None else before - 1
    checkpoints = context.mask.rows(_newest(visible(context.branch, upto=upto), most=limit + 1))
    earlier = checkpoints[limit - 1].position if len(checkpoints) > limit else None
    return CheckpointsPage(checkpoints[:limit], earlier)


@compiled
def _newest(where: Ranges, *, most: int) -> QuerySet[Checkpoint]:
    # A subquery is asked for the rows of the page only; a join would be grouped before it is cut.
    of_checkpoint = Session.objects.filter(forked_from=OuterRef("pk")).order_by().values("forked_from")
    forks = of_checkpoint.annotate(number=Count("*")).values("number")
    rows = Checkpoint.objects.only(*_LISTED).annotate(fork_count=Coalesce(Subquery(forks), 0))
    return rows.newest_within(where, most)


def read_discarded(context: SessionContext, limit: int = PAGE) -> list[Checkpoint]:
    """The newest checkpoints of the session that its current history does not show, newest first, of the last
    `_MOST_BRANCHES` branches. Two queries.
    """
    shown = dict(context.branch.segments())
    others = Branch.objects.filter(session=context.session).exclude(pk=context.branch.pk)
    newest = others.order_by("-number").values_list("pk", flat=True)[:_MOST_BRANCHES]
    ranges = tuple((pk, shown.get(pk) or 0, None) for pk in newest)
    rows = Checkpoint.objects.select_related("branch").defer("context", "keys", "tools")
    rows = rows.newest_of_each(ranges, limit)
    return context.mask.rows(rows.order_by("-branch__number", "-position")[:limit])


def find(context: SessionContext, pk: int) -> Checkpoint | None:
    """The checkpoint, if it lies on a branch of this session, or in the history that it was forked with.

    At most two queries. Nothing is hidden in it.
    """
    checkpoint = Checkpoint.objects.select_related("branch").filter(pk=pk).first()
    if checkpoint is None:
        return None
    if shows(context.branch, checkpoint) or checkpoint.branch.session_id == context.session.pk:
        return checkpoint
    root = Branch.objects.filter(session=context.session, number=1).first()
    return checkpoint if root is not None and shows(root, checkpoint) else None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A checkpoint to choose.

    replace: the position of the message that a fork from there replaces, if any.
    action: the action whose dialog does it, where that is another than the one that asks.
    """

    what: str
    checkpoint: Checkpoint
    replace: int | None = None
    action: Action | None = None


def suggestions(context: SessionContext) -> list[Suggestion]:
    """Before the last calls with an effect, then the last step, the last failure, the last turn and other tools.

    At most ten queries, and one more for each of the first `_MOST_EFFECTS` effects and of the tools.
    """
    where = visible(context.branch)
    calls = ToolCall.objects.newest_within(where, _LAST_CALLS)
    last_calls = list(calls.values_list("tool", "position"))
    suggested = _before_effects(context, last_calls[0][1]) if last_calls else []
    suggested.append(_suggestion(context, "the last step", None))
    failures = [
        _last_position(ToolCall.objects.filter(status=CallStatus.FAILED), where),
        _last_position(ModelCall.objects.exclude(error=""), where),
    ]
    if any(failures):
        last_failure = max(position or 0 for position in failures)
        suggested.append(_suggestion(context, "the last failure", last_failure))
    ends = Checkpoint.objects.filter(kind=Checkpoint.Kind.END).defer(*_BIG_FIELDS)
    for end in ends.newest_within(where, 1):
        suggested.append(Suggestion("the end of the last turn", context.mask.row(end)))
    last_use: dict[str, int] = {}
    for tool, position in last_calls:
        last_use.setdefault(tool, position)
    for tool, position in last_use.items():
        if len({place.checkpoint.pk for place in suggested if place is not None}) >= _MOST_SUGGESTIONS:
            break
        suggested.append(_suggestion(context, f"the last use of {context.mask.tool(tool)}", position))
    return _by_checkpoint([suggestion for suggestion in suggested if suggestion is not None])


def _before_effects(context: SessionContext, last: int) -> list[Suggestion | None]:
    """Where the steps began of the last calls that took effect, or may have: ``before refund €100.00 on CLM-1045``.

    :param last: The position of the last call.
    """
    calls = ToolCall.objects.visible_on(context.branch, after=max(0, last - _EFFECTS_WITHIN))
    effects = effects_among(calls, context.session)
    effects = effects.select_related("approval").defer("result", "state").order_by("-position")
    agent = context.session.registered_agent
    summaries = [summary_of(agent, call, context.mask) for call in context.mask.rows(effects[:_MOST_EFFECTS])]
    return [
        _suggestion(context, f"before {_within_a_sentence(summary.in_words)}", summary.call.position)
        for summary in summaries
    ]


def _within_a_sentence(text: str) -> str:
    """Without the capital of the first word, unless that is a name in capitals."""
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _by_checkpoint(suggested: Sequence[Suggestion]) -> list[Suggestion]:
    """The first `_MOST_SUGGESTIONS` checkpoints, each once, with all that is to be said of it."""
    names: dict[int, list[str]] = {}
    for suggestion in suggested:
        names.setdefault(suggestion.checkpoint.pk, []).append(suggestion.what)
    checkpoint_of = {suggestion.checkpoint.pk: suggestion.checkpoint for suggestion in suggested}
    return [Suggestion(", ".join(what), checkpoint_of[pk]) for pk, what in names.items()][:_MOST_SUGGESTIONS]


def replaceable(context: SessionContext) -> Suggestion | None:
    """The last message that the model reads of a user, with the first checkpoint from which a fork can replace it.

    At most six queries.
    """
    message = repairs.last_message_of_user(context.branch)
    start = restore.step_after(context.branch, message) if message is not None else None
    return Suggestion(OTHER_WORDS, context.mask.row(start), message) if start is not None else None


def editable(context: SessionContext) -> Suggestion | None:
    """The last message that the model reads of a user, with the checkpoint to which a correction of it rewinds.

    None for a person who may not correct it. At most six queries.
    """
    if context.why_not.of(REPLACE_MESSAGE):
        return None
    position = repairs.last_message_of_user(context.branch)
    start = restore.step_after(context.branch, position) if position is not None else None
    return Suggestion(OTHER_WORDS, context.mask.row(start), action=REPLACE_MESSAGE) if start else None


def present_place(context: SessionContext) -> int | None:
    """The end of the turn at which a session rests that is done, by its primary key: to rewind there changes nothing.

    None for any other session. One query.
    """
    session = context.session
    if session.status != Status.IDLE or session.phase != Phase.DONE:
        return None
    newest = Checkpoint.objects.only("kind", "branch").newest_within(visible(context.branch), 1).first()
    return newest.pk if newest is not None and newest.kind == Checkpoint.Kind.END else None


def user_text_at(branch: Branch, position: int) -> str:
    """The text of the user's message at the position, nothing hidden; "" if there is none. One query."""
    messages = Message.objects.visible_on(branch).filter(position=position, role=Message.Role.USER)
    return messages.values_list("text", flat=True).first() or ""


def _suggestion(context: SessionContext, what: str, position: int | None) -> Suggestion | None:
    """The start of the step that ``position`` lies in; of the last step for None."""
    start = _last_start.first(visible(context.branch, upto=position))
    return Suggestion(what, context.mask.row(start)) if start else None


@compiled
def _last_start(where: Ranges) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.filter(kind__in=STEP_KINDS).defer(*_BIG_FIELDS).newest_within(where, 1)


def _last_position(rows: BranchRowQuerySet[Any], where: Ranges) -> int | None:
    return rows.newest_within(where, 1).values_list("position", flat=True).first()
