"""The earlier effects of a tool that an approval request shows: what the history does not show, and what it does.

Two queries for any number of requests, or three where their branches have more than `FEW` effects; and one more for
each request of which the history shows more than `SHOWN`. Values are masked; what ran is shown, not what was asked.
Reads the registered agents of the requests' sessions.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import F, IntegerField, QuerySet, TextField, Value
from django.db.models.functions import Cast, Length, Substr

from sessions_app.access import shown
from sessions_app.access.masking import Mask
from sessions_app.desk.pages import excerpts
from sessions_app.desk.pages.summary import CallSummary, style_of_result, summary_of
from sessions_app.finding.keys import in_list, listed
from sessions_app.history import effects
from sessions_app.models import Approval, Branch, CallStatus, Session, ToolCall, policies_of
from sessions_app.models.compiled import compiled
from sessions_app.wording import took_effect

SHOWN = effects.COMPARED
RESULT_LENGTH = 240
# Up to so many effects are read for all requests by one simple query. The other one has a part for each request, which
# reads only its newest effects, and which takes Django longer to build than the database to run.
FEW = 1000
# A longer result, as JSON text, is not read whole.
LONGEST_READ = 20_000


@dataclass(frozen=True, slots=True)
class Effect:
    """One call that took effect, or of which that is not known: see `reported_back`.

    ``result`` is it in a few words, "" where there is none. ``session`` is set for another one than the request's.
    """

    call: ToolCall
    summary: CallSummary
    at: datetime
    result: str
    branch: int
    session: Session | None

    @property
    def reported_back(self) -> bool:
        return self.call.status == CallStatus.DONE


@dataclass(frozen=True, slots=True)
class EffectList:
    """The newest effects, newest first, and how many there are besides."""

    effects: list[Effect] = field(default_factory=list)
    more: int = 0

    @property
    def total(self) -> int:
        return len(self.effects) + self.more

    @property
    def certain(self) -> int:
        """Of how many it is known that they took effect. Those that are not listed are taken to have."""
        return self.more + sum(effect.reported_back for effect in self.effects)


@dataclass(frozen=True, slots=True)
class Earlier:
    """``discarded`` are those that the history of the request's session does not show, ``shown`` those that it does.

    ``same`` are those of ``shown`` that the request would have again: see `effects.follows_an_effect`.
    """

    discarded: EffectList = field(default_factory=EffectList)
    shown: EffectList = field(default_factory=EffectList)
    same: list[Effect] = field(default_factory=list)

    @property
    def what_happened(self) -> str:
        """``already took effect in discarded steps``, or may have."""
        known = took_effect(self.discarded.total, certain=self.discarded.certain, already=True)
        return f"{known} {self._where}"

    @property
    def _where(self) -> str:
        """Where the effects are that this history does not show: ``in discarded steps``."""
        own = any(effect.session is None for effect in self.discarded.effects)
        others = any(effect.session is not None for effect in self.discarded.effects)
        return " and ".join(
            ["in discarded steps"] * own + ["in another session that shares this history"] * others
        )


@dataclass(frozen=True, slots=True)
class Request:
    """An approval request as it is shown: with its call and its session, each masked."""

    approval: Approval
    call: ToolCall
    session: Session


def of_requests(requests: Sequence[Request], mask: Mask) -> dict[int, Earlier]:
    """The earlier effects that each request shows, by the key of its approval.

    The call that a request repeats is left out: it is shown by itself.
    """
    if not requests:
        return {}
    discarded = {
        request.approval.pk: [
            pk for pk in request.approval.earlier or [] if pk != request.approval.repeats_id
        ]
        for request in requests
    }
    visible = _visible(requests)
    keys = {pk for keys in (*discarded.values(), *visible.values()) for pk in keys[:SHOWN]}
    rows = {row.pk: row for row in _rows(listed(keys))} if keys else {}

    def effect_list(request: Request, keys: Sequence[int], total: int) -> EffectList:
        effects_shown = [_effect(rows[pk], request, mask) for pk in keys[:SHOWN] if pk in rows]
        return EffectList(effects_shown, total - len(keys[:SHOWN]))

    def earlier(request: Request) -> Earlier:
        key = request.approval.pk
        shown = effect_list(request, visible[key], _count_visible(request, visible[key]))
        policy = policies_of(request.session.registered_agent).get(request.call.tool, {})
        return Earlier(
            discarded=effect_list(request, discarded[key], len(discarded[key])),
            shown=shown,
            # Both are masked: what is hidden counts as the same.
            same=[
                effect
                for effect in shown.effects
                if effects.is_same_effect(policy, effect.call.ran_with, request.approval.arguments)
            ],
        )

    return {request.approval.pk: earlier(request) for request in requests}


def _visible(requests: Sequence[Request]) -> dict[int, list[int]]:
    """The keys of the newest effects that the history of each request shows, one more than are shown."""
    keys = _of_few(requests)
    return keys if keys is not None else _of_many(requests)


def _of_few(requests: Sequence[Request]) -> dict[int, list[int]] | None:
    """By all effects of the tools on the branches of the requests; None where these are more than `FEW`."""
    branches = {request.approval.pk: _branch(request) for request in requests}
    keys = {pk for branch in branches.values() for pk, _ in branch.segments()}
    tools = {request.call.tool for request in requests}
    rows = _effects_of_tools(tuple(keys), tuple(tools), most=FEW + 1)
    if len(rows) > FEW:
        return None
    rows.sort(key=lambda row: row[2], reverse=True)
    return {
        request.approval.pk: [
            pk
            for branch, tool, position, pk in rows
            if tool == request.call.tool
            and position < request.call.position
            and branches[request.approval.pk].sees(branch, position)
        ][: SHOWN + 1]
        for request in requests
    }


@compiled
def _effects_of_tools(
    branches: tuple[int, ...], tools: tuple[str, ...], *, most: int
) -> QuerySet[ToolCall, tuple[int, str, int, int]]:
    rows = effects.effects_of_tools(branches, tools)
    return rows.values_list("branch_id", "tool", "position", "pk")[:most]


def _of_many(requests: Sequence[Request]) -> dict[int, list[int]]:
    """By the newest effects that each request's own history shows."""
    keys: dict[int, list[int]] = {request.approval.pk: [] for request in requests}
    parts = [
        ToolCall.objects.filter(pk__in=_shown_effects(request).values("pk")[: SHOWN + 1])
        .annotate(request=Value(request.approval.pk, IntegerField()))
        .order_by()
        .values_list("request", "position", "pk")
        for request in requests
    ]
    if parts:
        for key, _, pk in sorted(parts[0].union(*parts[1:], all=True), reverse=True):
            keys[key].append(pk)
    return keys


def _count_visible(request: Request, keys: Sequence[int]) -> int:
    return len(keys) if len(keys) <= SHOWN else _shown_effects(request).count()


def _shown_effects(request: Request) -> QuerySet[ToolCall]:
    return effects.shown_effects(_branch(request), request.call.tool, before=request.call.position)


def _branch(request: Request) -> Branch:
    call, session = request.call, request.session
    return session.current_branch if call.branch_id == session.branch_id else call.branch


@compiled
def _rows(keys: str) -> QuerySet[ToolCall]:
    """The calls with their results as JSON text, up to `LONGEST_READ` characters."""
    as_text = Cast(F("result"), TextField())
    return (
        ToolCall.objects.filter(in_list(keys))
        .select_related("branch__session")
        .defer("result", "state")
        .annotate(beginning=Substr(as_text, 1, LONGEST_READ), length=Length(as_text))
    )


def _effect(row: Any, request: Request, mask: Mask) -> Effect:
    is_whole = row.length is not None and row.length <= LONGEST_READ
    row.result = json.loads(row.beginning) if is_whole else None
    call = mask.row(row)
    session = call.branch.session
    if is_whole and call.result is not None:
        style = style_of_result(request.session.registered_agent, call.tool, mask)
        result = excerpts.of_value(call.result, RESULT_LENGTH, style).line
    else:
        result = shown.beginning(mask, row.beginning) if row.beginning and not is_whole else ""
        result = result and f"{result[:RESULT_LENGTH]}…"
    return Effect(
        call=call,
        summary=summary_of(request.session.registered_agent, call, mask),
        at=call.started_at or call.asked_at,
        result=result,
        branch=call.branch.number,
        session=mask.row(session) if session.pk != request.session.pk else None,
    )
