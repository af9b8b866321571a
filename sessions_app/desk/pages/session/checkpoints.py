"""Checkpoints: the list of them, and those that a person most likely wants to go back to."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count

from sessions_app.access import availability
from sessions_app.models import Branch, CallStatus, Checkpoint, Message, ModelCall, Session, ToolCall

PAGE = 100
_HEAVY = ("context", "keys", "counters", "tools", "totals")


@dataclass(frozen=True, slots=True)
class Page:
    checkpoints: Sequence[Checkpoint]
    earlier: int | None


def page(branch: Branch, *, before: int | None = None, limit: int = PAGE) -> Page:
    """The newest checkpoints before a position, newest first. One query."""
    upto = None if before is None else before - 1
    rows = (
        Checkpoint.objects.visible_on(branch, upto=upto)
        .select_related("branch")
        .defer("context", "keys", "tools")
    )
    found = list(rows.annotate(fork_count=Count("forks")).order_by("-position")[: limit + 1])
    return Page(found[:limit], found[limit - 1].position if len(found) > limit else None)


def find(session: Session, branch: Branch, pk: int) -> Checkpoint | None:
    """The checkpoint, if it lies on any branch of this session, or in the history that it was forked with."""
    checkpoint = Checkpoint.objects.select_related("branch").filter(pk=pk).first()
    if checkpoint is None:
        return None
    if availability.shows(branch, checkpoint) or checkpoint.branch.session_id == session.pk:
        return checkpoint
    root = Branch.objects.filter(session=session, number=1).first()
    return checkpoint if root is not None and availability.shows(root, checkpoint) else None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """``replace`` is the position of the message that is to be said in other words, where it is about that."""

    what: str
    checkpoint: Checkpoint
    replace: int | None = None


def suggestions(session: Session, branch: Branch) -> list[Suggestion]:
    """Where the last step, the last failure and the last uses of tools began, and the last turn's end."""
    found = [Suggestion("the last step", cp) if (cp := _start(branch, None)) else None]
    failures = [
        _last(ToolCall.objects.visible_on(branch).filter(status=CallStatus.FAILED)),
        _last(ModelCall.objects.visible_on(branch).exclude(error="")),
    ]
    if any(failures):
        found.append(_at("the last failure", branch, max(position or 0 for position in failures)))
    lately = ToolCall.objects.visible_on(branch).order_by("-position").values_list("tool", "position")[:100]
    last_use: dict[str, int] = {}
    for tool, position in lately:
        last_use.setdefault(tool, position)
    found += [
        _at(f"the last use of {tool}", branch, position) for tool, position in list(last_use.items())[:5]
    ]
    end = (
        Checkpoint.objects.visible_on(branch)
        .filter(kind=Checkpoint.Kind.END)
        .defer(*_HEAVY)
        .order_by("-position")
        .first()
    )
    if end is not None:
        found.append(Suggestion("the end of the last turn", end))
    return [suggestion for suggestion in found if suggestion is not None]


def replaceable(branch: Branch) -> Suggestion | None:
    """The last thing that a user said, with the first place from which it can be said differently."""
    said = _last(Message.objects.visible_on(branch).filter(role=Message.Role.USER))
    if said is None:
        return None
    start = (
        Checkpoint.objects.visible_on(branch, after=said)
        .filter(kind__in=(Checkpoint.Kind.START, Checkpoint.Kind.STEP))
        .defer(*_HEAVY)
        .order_by("position")
        .first()
    )
    return Suggestion("the last message, in other words", start, said) if start else None


def words_at(branch: Branch, position: int) -> str:
    """What the user said there; "" if it was nobody."""
    said = Message.objects.visible_on(branch).filter(position=position, role=Message.Role.USER)
    return said.values_list("text", flat=True).first() or ""


def _at(what: str, branch: Branch, position: int) -> Suggestion | None:
    start = _start(branch, position)
    return Suggestion(what, start) if start else None


def _start(branch: Branch, position: int | None) -> Checkpoint | None:
    """The start of the step that ``position`` lies in; of the last step for None."""
    return (
        Checkpoint.objects.visible_on(branch, upto=position)
        .filter(kind__in=(Checkpoint.Kind.START, Checkpoint.Kind.STEP))
        .defer(*_HEAVY)
        .order_by("-position")
        .first()
    )


def _last(rows) -> int | None:  # type: ignore[no-untyped-def]
    position: int | None = rows.order_by("-position").values_list("position", flat=True).first()
    return position
