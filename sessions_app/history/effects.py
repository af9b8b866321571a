"""The effects of a tool that a session's history does not show: on discarded branches and in its forks.

A call *took effect* if it is done, was started, or is in doubt; a result from the tool cache or from another call is no
effect of its own. A repair copies the calls of the unfinished step: a copy and its original are one effect, and a
history that shows one of them shows it. Sessions that forks connect, directly or through others, *share a history by a
fork*; `Session.line` is the same in all of them.

Calls are found by their branch, and on a branch that the history shows in part, by their position: what the history
shows is not read, however long it is. Nothing is locked.
"""

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from agentstate.durable.policy import EffectScope
from agentstate.durable.records import EarlierEffects
from sessions_app.models import Approval, Branch, CallStatus, ToolCall, policies_of

Json = Any

# With so many of the newest effects in its own history a call is compared.
COMPARED = 20
TOOK_EFFECT = (
    (
        Q(status__in=(CallStatus.DONE, CallStatus.STARTED, CallStatus.DOUBT))
        # It was in doubt, and then decided to run again.
        | Q(status=CallStatus.PLANNED, attempt__gt=0)
    )
    & Q(cached=False)
    & ~Q(approval__decision=Approval.Decision.REUSED)
)


def has_discarded_branches(branch: Branch) -> bool:
    """Whether the session has history that the branch does not show. It stays so while the session is on the branch."""
    if branch.left_another_branch:
        return True
    return Branch.objects.filter(session=branch.session_id).exclude(pk=branch.pk).exists()


def earlier_effects(
    branch: Branch,
    line: UUID | None,
    tool: str,
    arguments: dict[str, Json],
    *,
    position: int,
    scope: EffectScope,
) -> EarlierEffects | None:
    """As `Journal.earlier_effects`, for a call on `branch`. At most four queries.

    :param line: The session's `Session.line`.
    """
    calls = (
        ToolCall.objects.filter(_not_shown_by(branch, line), TOOK_EFFECT, tool=tool)
        .order_by("-pk")
        .values_list("pk", "copy_of_id", "arguments", "sent")
    )
    # By the original: of several copies, the oldest names the effect.
    effects: dict[int, tuple[int, dict[str, Json]]] = {}
    for pk, original, requested, sent in calls:
        ran = requested if sent is None else sent
        if scope.covers(ran, arguments):
            effects[original or pk] = (pk, ran)
    for original in _shown_originals(branch, effects):
        del effects[original]
    if not effects:
        return None
    seen, seen_of_call = _seen(branch, line, tool, position)
    return EarlierEffects(
        calls=tuple(pk for pk, _ in effects.values()),
        repeats=next((pk for pk, ran in effects.values() if ran == arguments), None),
        needs_decision=any(
            pk not in seen_of_call and (scope.repeats(ran, arguments) or pk not in seen)
            for pk, ran in effects.values()
        ),
    )


def shown_effects(branch: Branch, tool: str, *, before: int) -> QuerySet[ToolCall]:
    """The calls of the tool that took effect and that `branch` shows before a position, newest first."""
    calls = ToolCall.objects.visible_on(branch, upto=before - 1)
    return calls.filter(TOOK_EFFECT, tool=tool).order_by("-position")


def effects_of_tools(branches: Collection[int], tools: Collection[str]) -> QuerySet[ToolCall]:
    """The calls of the tools on the branches that took effect, shown or not, in no order."""
    return ToolCall.objects.filter(TOOK_EFFECT, branch__in=branches, tool__in=tools).order_by()


def follows_an_effect(approval: Approval) -> bool:
    """Whether to approve the call repeats an effect, or follows one that its history does not show.

    That is an effect which the request shows, or the same effect earlier in the call's own history: one with the same
    arguments, or the same identity where the tool's policy names one. Of these the newest `COMPARED` count, and none of
    an idempotent tool. At most two queries. Reads the call with its branch, and the registered agent of the session.
    """
    if approval.repeats_id is not None or approval.earlier:
        return True
    call = approval.call
    policy = policies_of(approval.session.registered_agent).get(call.tool, {})
    earlier = shown_effects(call.branch, call.tool, before=call.position).values_list("arguments", "sent")
    return any(
        is_same_effect(policy, requested if sent is None else sent, approval.arguments)
        for requested, sent in earlier[:COMPARED]
    )


def is_same_effect(policy: Mapping[str, Any], effect: Mapping[str, Json], call: Mapping[str, Json]) -> bool:
    """Whether a call with these arguments has the effect again that an earlier one had, by the tool's policy."""
    if policy.get("idempotent"):
        return False
    scope = EffectScope(identity=tuple(policy.get("identity") or ()))
    return scope.covers(effect, call)


def _not_shown_by(branch: Branch, line: UUID | None) -> Q:
    """The rows of the session, or of all sessions that share its history by a fork, that the branch does not show."""
    segments = dict(branch.segments())
    branches = Branch.objects.filter(_in_line(branch, line)).exclude(pk__in=segments)
    where = Q(branch_id__in=list(branches.values_list("pk", flat=True)))
    for pk, last in segments.items():
        if last is not None:
            where |= Q(branch_id=pk, position__gt=last)
    return where


def _in_line(branch: Branch, line: UUID | None) -> Q:
    return Q(session=branch.session_id) if line is None else Q(session__line=line)


def _shown_originals(branch: Branch, effects: Mapping[int, tuple[int, Json]]) -> set[int]:
    """Those of the effects, by their originals, of which the branch shows the original or another copy."""
    if not effects:
        return set()
    copied = [original for original, (pk, _) in effects.items() if pk != original]
    same = ToolCall.objects.filter(TOOK_EFFECT).filter(Q(copy_of__in=list(effects)) | Q(pk__in=copied))
    rows = same.values_list("pk", "copy_of_id", "branch_id", "position")
    return {original or pk for pk, original, at, position in rows if branch.sees(at, position)}


def _seen(
    branch: Branch, line: UUID | None, tool: str, position: int
) -> tuple[Collection[int], Collection[int]]:
    """The effects that approved requests of the session, or of one that shares its history by a fork, have shown, and
    those that the request of the call itself has.
    """
    decided = (Approval.Decision.APPROVED, Approval.Decision.REUSED)
    requests = Approval.objects.filter(
        _in_line(branch, line), call__tool=tool, decision__in=decided, earlier__isnull=False
    )
    seen: set[int] = set()
    of_call: set[int] = set()
    for at, place, earlier in requests.values_list("call__branch_id", "call__position", "earlier"):
        seen.update(earlier or ())
        if (at, place) == (branch.pk, position):
            of_call.update(earlier or ())
    return seen, of_call
