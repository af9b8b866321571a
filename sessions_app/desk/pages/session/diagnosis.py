"""What may be wrong with a session: named rules, each with a sentence and the row that it is about.

The rules look at the last few calls and at the last checkpoint only, so a diagnosis costs the same however long the
history is. Nothing is stored: a hint disappears as soon as its rule no longer applies.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import takewhile

from django.conf import settings

from agentstate.names import AGENT_GENERATOR
from sessions_app.desk.pages import workers
from sessions_app.desk.pages.session import secrets
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.diagnosis_facts import (
    LAST_MODEL_CALLS,
    Facts,
    LastCall,
    facts_of,
    window_of,
)
from sessions_app.finding import stuck
from sessions_app.models import CallStatus, Checkpoint, Phase, Status, WaitingFor, policies_of
from sessions_app.wording import age, duration

ERROR, WARNING, NOTE = TONES = ("error", "waiting", "idle")
REPEATS = 3
LONG_CALL = timedelta(minutes=5)
FULL = 0.8
MODEL_FAILURES = 2
TOOL_FAILURES = 3
_SAYS_WHAT_REPEATING_DOES = ("idempotent", "approval", "effect", "identity")
_ANCHORS = {"call": "c", "checkpoint": "k", "state": ""}


@dataclass(frozen=True, slots=True)
class Hint:
    """One finding. ``tone`` is one of `TONES`, of which the first is the most severe.

    ``kind`` and ``position`` name what it is about: a call, a checkpoint, the state; "" and 0 for the whole session.
    """

    rule: str
    tone: str
    text: str
    kind: str = ""
    position: int = 0

    @property
    def anchor(self) -> str:
        """The id of its element on the timeline, "" for none."""
        prefix = _ANCHORS.get(self.kind, "")
        return f"{prefix}{self.position}" if prefix else ""


def diagnose(context: SessionContext, newest: Checkpoint | None) -> list[Hint]:
    """What the rules find, the most severe first. At most nine queries, one of them for the session's agent.

    :param newest: The branch's newest checkpoint; None where it has none.
    """
    facts = facts_of(context, newest)
    hints = [replace(hint, text=context.mask.text(hint.text)) for rule in RULES for hint in rule(facts)]
    return sorted(hints, key=lambda hint: TONES.index(hint.tone))


def in_doubt(facts: Facts) -> Iterator[Hint]:
    ended = facts.session.status == Status.CANCELLED
    then = (
        "It is not known whether it took effect."
        if ended
        else "The session continues once its outcome is recorded."
    )
    for call in facts.open_calls:
        if call.status == CallStatus.DOUBT:
            text = f"{call.tool} is in doubt. {then}"
            yield Hint("in doubt", ERROR, text, "call", call.position)


def old_approval(facts: Facts) -> Iterator[Hint]:
    for call in facts.open_calls:
        if not call.waits_for_approval or call.asked_at is None:
            continue
        if call.expires_at is not None and call.expires_at <= facts.now:
            text = f"The approval of {call.tool} has expired; the next sweep rejects it."
            yield Hint("old approval", ERROR, text, "call", call.position)
        elif call.asked_at <= facts.now - stuck.LONG_WAIT:
            text = f"{call.tool} has waited for an approval for {age(call.asked_at, facts.now)}."
            yield Hint("old approval", WARNING, text, "call", call.position)


def stale_heartbeat(facts: Facts) -> Iterator[Hint]:
    session = facts.session
    seconds = session.heartbeat_age(facts.now, settings.AGENTSTATE_LEASE_SECONDS)
    if seconds is None or seconds <= 2 * settings.AGENTSTATE_HEARTBEAT_SECONDS:
        return
    lost = session.lease_expires_at is not None and session.lease_expires_at < facts.now
    then = "the next sweep hands the session to another" if lost else "it may be lost"
    text = f"The last heartbeat of worker {session.worker} was {duration(round(seconds))} ago; {then}."
    yield Hint("stale heartbeat", ERROR if lost else WARNING, text)


def not_taken(facts: Facts) -> Iterator[Hint]:
    due = facts.session.next_run_at
    if due is None or due > facts.now - workers.LATE:
        return
    if workers.no_worker_for_due_sessions(facts.now):
        text = f"It has been due for {age(due, facts.now)}, but no worker is online. Start one."
        yield Hint("not taken", ERROR, text)
    elif why := stuck.why_not_moving(facts.session, facts.now):
        yield Hint("not taken", WARNING, f"{why} The workers are busy, or are not receiving messages.")


def many_attempts(facts: Facts) -> Iterator[Hint]:
    session, most = facts.session, settings.AGENTSTATE_MAX_ATTEMPTS
    if session.waiting_for == WaitingFor.RETRIES:
        yield Hint("many attempts", ERROR, "All attempts are used up.", *_step(facts))
    elif session.status in (Status.QUEUED, Status.RUNNING) and session.attempt >= max(2, most - 1):
        text = f"Attempt {session.attempt} of {most}; after the last one it waits for a person."
        yield Hint("many attempts", WARNING, text, *_step(facts))


def failing_model(facts: Facts) -> Iterator[Hint]:
    failed = []
    for call in facts.model_calls:
        if not call.error:
            break
        failed.append(call)
    if len(failed) >= MODEL_FAILURES:
        number = f"{len(failed)} or more" if len(failed) == LAST_MODEL_CALLS else str(len(failed))
        text = f"The last {number} model calls failed."
        yield Hint("failing model", WARNING, text, *_step(facts))


def failing_tool(facts: Facts) -> Iterator[Hint]:
    """The last calls of a tool all failed."""
    newest: dict[str, list[LastCall]] = {}
    for call in facts.calls:
        if call.status in (CallStatus.DONE, CallStatus.FAILED):
            newest.setdefault(call.tool, []).append(call)
    for tool, calls in newest.items():
        failed = list(takewhile(lambda call: call.status == CallStatus.FAILED, calls))
        if len(failed) >= TOOL_FAILURES:
            text = f"The last {len(failed)} calls of {tool} failed."
            yield Hint("failing tool", ERROR, text, "call", failed[0].position)


def same_call(facts: Facts) -> Iterator[Hint]:
    repeated: dict[tuple[str, str, int], list[LastCall]] = {}
    for call in facts.calls:
        repeated.setdefault((call.tool, call.arguments, call.size), []).append(call)
    for (tool, _, _), calls in repeated.items():
        if len(calls) >= REPEATS:
            text = f"{tool} was called {len(calls)} times with the same arguments."
            yield Hint("same call", WARNING, text, "call", calls[0].position)


def missing_policy(facts: Facts) -> Iterator[Hint]:
    """A call needed approval for its arguments alone: the tool's policy does not say what repeating a call does."""
    policies = policies_of(facts.agent)
    repeated: dict[str, LastCall] = {}
    for call in facts.calls:
        if call.repeats is not None and call.tool in policies:
            repeated.setdefault(call.tool, call)
    for tool, call in repeated.items():
        if not any(policies[tool].get(name) for name in _SAYS_WHAT_REPEATING_DOES):
            text = (
                f"{tool} needed approval because it ran with the same arguments before, and has no policy. "
                "Declare its effect, or declare it idempotent."
            )
            yield Hint("no policy", NOTE, text, "call", call.position)


def slow_call(facts: Facts) -> Iterator[Hint]:
    if facts.session.status != Status.RUNNING:
        return
    policies = policies_of(facts.agent)
    for call in facts.open_calls:
        if call.status != CallStatus.STARTED or call.started_at is None:
            continue
        limit = policies.get(call.tool, {}).get("timeout")
        allowed = timedelta(seconds=limit) if limit else LONG_CALL
        if call.started_at < facts.now - allowed:
            limited = f" (its limit is {duration(limit)})" if limit else ""
            text = f"{call.tool} was started {age(call.started_at, facts.now)} ago and is still running{limited}."
            yield Hint("slow call", WARNING, text, "call", call.position)


def full_context(facts: Facts) -> Iterator[Hint]:
    window = window_of(facts.session)
    if not window or facts.checkpoint is None:
        return
    tokens = facts.checkpoint.counters.get("context_tokens") or 0
    # A reply that has arrived since then is more exact.
    for call in facts.model_calls[:1]:
        if call.name == AGENT_GENERATOR and call.position > facts.checkpoint.position:
            tokens = max(tokens, call.prompt_tokens + call.completion_tokens)
    if tokens > FULL * window:
        text = f"The context is {tokens * 100 // window} % full: {tokens:,} of {window:,} tokens."
        severity = ERROR if tokens >= window else WARNING
        yield Hint("full context", severity, text, "checkpoint", facts.checkpoint.position)


def changed_definition(facts: Facts) -> Iterator[Hint]:
    session, agent = facts.session, facts.agent
    if session.status == Status.CANCELLED:
        return
    finished = session.status == Status.IDLE and session.phase == Phase.DONE
    if agent is None or agent.problem:
        yield Hint("no agent", ERROR, "It cannot continue until a worker can run its agent.")
    elif session.new_definition and not finished:
        text = "The agent has changed since this session last ran: see what changed before you resume it."
        yield Hint("changed definition", WARNING, text, *_step(facts))


def looks_like_a_secret(facts: Facts) -> Iterator[Hint]:
    for key, text in facts.state:
        if what := secrets.looks_like(f'"{key}": {text}'):
            yield Hint("secret", WARNING, f"What looks like {what} is in the state, under {key}.", "state")
    for call in facts.calls:
        if what := secrets.looks_like(call.arguments):
            text = f"What looks like {what} is in the arguments of {call.tool}."
            yield Hint("secret", WARNING, text, "call", call.position)


RULES: tuple[Callable[[Facts], Iterator[Hint]], ...] = (
    in_doubt,
    old_approval,
    stale_heartbeat,
    not_taken,
    many_attempts,
    failing_model,
    failing_tool,
    slow_call,
    full_context,
    changed_definition,
    same_call,
    missing_policy,
    looks_like_a_secret,
)


def _step(facts: Facts) -> tuple[str, int]:
    return ("checkpoint", facts.checkpoint.position) if facts.checkpoint else ("", 0)
