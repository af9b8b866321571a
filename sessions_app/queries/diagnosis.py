"""What is odd about a session: named rules, each with one sentence and the place that it is about."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings

from sessions_app.models import Branch, CallStatus, Session, Status, ToolCall
from sessions_app.queries.header import Header
from sessions_app.queries.queues import OVERDUE
from sessions_app.queries.words import age

LOOKED_AT = 300
REPEATS = 3
FAILURES = 3
APPROVAL_LIMIT = timedelta(minutes=10)
CALL_LIMIT = timedelta(minutes=10)
SECRET = re.compile(
    r"\bsk-[A-Za-z0-9_-]{20,}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{30,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


@dataclass(frozen=True, slots=True)
class Hint:
    """``anchor`` is the position of the call that it is about, None where it is about the session."""

    rule: str
    tone: str
    text: str
    position: int | None = None


class _Call(NamedTuple):
    position: int
    tool: str
    arguments: Any
    status: str
    started_at: datetime | None


class _Facts(NamedTuple):
    session: Session
    header: Header
    calls: Sequence[_Call]
    now: datetime


def hints(session: Session, branch: Branch, header: Header, *, now: datetime) -> list[Hint]:
    """The rules that speak up, over the newest `LOOKED_AT` calls. One query."""
    rows = ToolCall.objects.visible_on(branch).order_by("-position")
    calls = [
        _Call(*row)
        for row in rows.values_list("position", "tool", "arguments", "status", "started_at")[:LOOKED_AT]
    ]
    facts = _Facts(session, header, calls, now)
    return [hint for rule in RULES for hint in rule(facts)]


def same_call(facts: _Facts) -> Iterator[Hint]:
    asked = Counter((call.tool, json.dumps(call.arguments, sort_keys=True)) for call in facts.calls)
    newest = {(call.tool, json.dumps(call.arguments, sort_keys=True)): call for call in reversed(facts.calls)}
    for key, times in asked.most_common(3):
        if times >= REPEATS:
            yield Hint(
                "same call",
                "waiting",
                f"{key[0]} was asked the same thing {times} times.",
                newest[key].position,
            )


def failing_tool(facts: _Facts) -> Iterator[Hint]:
    """The newest calls of a tool all failed."""
    streaks: dict[str, int] = {}
    over: set[str] = set()
    for call in facts.calls:
        if call.status == CallStatus.FAILED and call.tool not in over:
            streaks[call.tool] = streaks.get(call.tool, 0) + 1
        elif call.status == CallStatus.DONE:
            over.add(call.tool)
    for tool, times in streaks.items():
        if times >= FAILURES:
            newest = next(call.position for call in facts.calls if call.tool == tool)
            yield Hint("failing tool", "error", f"The last {times} calls of {tool} failed.", newest)


def stale_heartbeat(facts: _Facts) -> Iterator[Hint]:
    session, lease = facts.session, facts.session.lease_expires_at
    if lease is None:
        return
    quiet = session.heartbeat_age(facts.now, settings.AGENTSTATE_LEASE_SECONDS) or 0
    if lease < facts.now:
        yield Hint(
            "stale heartbeat", "error", f"{session.worker} has not renewed its lease for {quiet:.0f} seconds."
        )


def slow_call(facts: _Facts) -> Iterator[Hint]:
    for call in facts.calls:
        if call.status == CallStatus.STARTED and call.started_at and facts.now - call.started_at > CALL_LIMIT:
            yield Hint(
                "slow call",
                "waiting",
                f"{call.tool} has been running for {age(call.started_at, facts.now)}.",
                call.position,
            )


def old_approval(facts: _Facts) -> Iterator[Hint]:
    for call in facts.header.open_calls:
        approval = getattr(call, "approval", None)
        if approval is None or approval.decision:
            continue
        if facts.now - approval.asked_at > APPROVAL_LIMIT:
            asked = age(approval.asked_at, facts.now)
            yield Hint(
                "old approval",
                "waiting",
                f"{call.tool} has waited for an approval for {asked}.",
                call.position,
            )


def nobody_comes(facts: _Facts) -> Iterator[Hint]:
    due = facts.session.next_run_at
    if facts.session.status == Status.QUEUED and due is not None and facts.now - due > OVERDUE:
        yield Hint(
            "nobody comes", "error", f"It has been due for {age(due, facts.now)} and no worker has taken it."
        )


def many_attempts(facts: _Facts) -> Iterator[Hint]:
    attempt, most = facts.session.attempt, settings.AGENTSTATE_MAX_ATTEMPTS
    if attempt > most // 2 and attempt > 1:
        yield Hint(
            "many attempts", "error", f"Attempt {attempt} of {most}: the ones before made no progress."
        )


def changed_definition(facts: _Facts) -> Iterator[Hint]:
    if facts.header.changed_definition:
        yield Hint("changed definition", "doubt", "The agent's code has changed since this session last ran.")


def looks_like_a_secret(facts: _Facts) -> Iterator[Hint]:
    for call in facts.calls:
        if SECRET.search(json.dumps(call.arguments)):
            yield Hint("secret", "error", f"What {call.tool} was given looks like a secret.", call.position)
            return


RULES: tuple[Callable[[_Facts], Iterator[Hint]], ...] = (
    stale_heartbeat,
    nobody_comes,
    old_approval,
    slow_call,
    failing_tool,
    many_attempts,
    same_call,
    changed_definition,
    looks_like_a_secret,
)
