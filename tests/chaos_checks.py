"""What must hold of a session after whatever was done to its workers, and the table of what was done."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from haystack.dataclasses import ChatMessage

from agentstate.durable.state.chat_messages import message_from
from agentstate.durable.state.encoding import decode, encode_lossy
from sessions_app.history import restore
from sessions_app.models import Event, ModelCall, Session, ToolCall
from tests import chaos_agents
from tests.chaos_moments import VARIABLE, moments

Lines = Iterable[Mapping[str, Any]]


@dataclass
class Plain:
    """What an agent does without a worker, a journal or a disturbance.

    `asks` has, for each model call in order, a digest of the conversation that it was given.
    """

    result: str
    effects: Counter[str]
    asks: list[str]


def plainly(agent: str) -> Plain:
    """Run the agent as Haystack runs it."""
    log = Path(os.environ[VARIABLE]) / "plain.log"
    log.unlink(missing_ok=True)
    built = getattr(chaos_agents, agent)()
    result = built.run([ChatMessage.from_user("hi")], **chaos_agents.INPUTS[agent])
    lines = moments("plain")
    asks = [line["digest"] for line in lines if line["what"] == "ask"]
    return Plain(_comparable(result), _effects(lines), asks)


def check(session_id: UUID, plain: Plain, too_late: Iterable[int] = ()) -> None:
    """The session ended as the plain run does; nothing was repeated that must not be.

    :param too_late: The moments of a worker that had lost the session and did not know it yet. It may ask a model or
        enter a tool once more, but nothing of that is stored.
    """
    session = Session.objects.select_related("branch").get(pk=session_id)
    assert session.branch is not None
    assert (session.status, session.phase, session.error) == ("idle", "done", ""), session.title
    assert stored_result(session) == plain.result, session.title
    lines = moments(session_id)
    in_time = [line for line in lines if line["n"] not in set(too_late)]
    _check_effects(session, lines, in_time, plain)
    _check_asks(session, in_time, plain)


def _check_effects(session: Session, lines: Lines, in_time: Lines, plain: Plain) -> None:
    effects = _effects(lines)
    assert effects.keys() == plain.effects.keys(), session.title
    for what, times in effects.items():
        if what.partition(" ")[0] not in chaos_agents.REPEATABLE:
            assert times == plain.effects[what], f"{session.title}: {what} {times} times"
    assert session.branch is not None
    calls = {call.idempotency_key: call for call in ToolCall.objects.visible_on(session.branch)}
    for line in in_time:
        if line["what"] == "enter":
            ended_at = calls[line["key"]].ended_at
            assert ended_at is not None
            assert line["at"] <= ended_at.timestamp(), f"{session.title}: ran again after its end, {line}"


def _check_asks(session: Session, lines: Lines, plain: Plain) -> None:
    assert session.branch is not None
    rows = ModelCall.objects.visible_on(session.branch).order_by("position")
    replies = [row for row in rows if not row.error]
    asks = [line for line in lines if line["what"] == "ask"]
    takeovers = Event.objects.filter(session=session, actor_name="sweep").count()
    assert len(replies) == len(plain.asks), session.title
    assert {line["digest"] for line in asks} == set(plain.asks), session.title
    assert len(asks) <= len(rows) + takeovers, f"{session.title}: {len(asks)} asks, {takeovers} takeovers"
    committed = dict(zip(plain.asks, replies, strict=True))
    for line in asks:
        ended_at = committed[line["digest"]].ended_at
        assert line["at"] <= ended_at.timestamp(), f"{session.title}: called again after its commit, {line}"


def tally(sessions: Iterable[UUID], *others: Mapping[str, int]) -> dict[str, int]:
    """What was done to the sessions, and what became of it: a table's rows."""
    sessions = list(sessions)
    lines = [line for session in sessions for line in moments(session)]
    struck = Counter(f"killed {line['what']} {line['name']}".rstrip() for line in lines if "struck" in line)
    found = Counter(Event.objects.filter(session__in=sessions).values_list("kind", flat=True))
    rows = {"sessions": len(sessions), **dict(sorted(struck.items()))}
    for each in others:
        rows |= dict(sorted(each.items()))
    claims = sum(line["what"] == "claimed" for line in lines)
    called_again = sum(line["what"] == "ask" for line in lines)
    called_again -= ModelCall.objects.filter(branch__session__in=sessions).count()
    return rows | {
        "claims": claims,
        "takeovers": found["lost"],
        "suspended in doubt": found["in_doubt"],
        "called again, no reply being committed": called_again,
    }


def _effects(lines: Lines) -> Counter[str]:
    return Counter(
        f"{line['name']} {json.dumps(line['arguments'], sort_keys=True)}"
        for line in lines
        if line["what"] == "effect"
    )


def _comparable(result: Mapping[str, Any]) -> str:
    data, lossy = encode_lossy({key: value for key, value in result.items() if key != "last_message"})
    assert not lossy
    return json.dumps(data, sort_keys=True, indent=1)


def stored_result(session: Session) -> str:
    """What `Agent.run` would have returned, read from the journal's rows."""
    assert session.branch is not None
    base = restore.read(session.branch).checkpoint
    assert base is not None
    assert base.kind == "end"
    counters = decode(base.counters)
    counters.pop("context_tokens", None)
    return _comparable(
        {
            "messages": [message_from(stored.body) for stored in base.context],
            **{key: decode(value) for key, value in base.state.items()},
            **counters,
            "exit_reason": session.exit_reason,
        }
    )
