"""What a reader sees of a whole database, as plain JSON: the same before an upgrade and after it.

`tests/upgrade/make_dump.py` calls `read_all` with the version that made a stored database, `tests/upgrade/check.py`
with the present one. All reads are in this file, so that only this file has to follow when models or modules are
renamed. A value that is read by a new name must still be returned by its old one.

Keys of rows, times of the day and durations are left out, since they differ from one database to the next.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from django.contrib.auth.models import User
from django.http import QueryDict

from agentstate.durable.records import CallRecord, ReplyRecord
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.session.discarded import discarded_branches
from sessions_app.finding import search, search_index
from sessions_app.finding.filters import SessionFilter
from sessions_app.history import restore
from sessions_app.history.export import session_json
from sessions_app.history.message_rows import answered_calls, fill_texts, unpack
from sessions_app.models import (
    Branch,
    BulkAction,
    Checkpoint,
    Event,
    Message,
    ModelCall,
    RegisteredAgent,
    SavedView,
    Session,
    ToolCall,
    ToolResult,
    Worker,
)
from tests import builders

Json = Any
# Later versions may have other rights besides these of version 0.1.
RIGHTS = (
    "view_session",
    "start_session",
    "message_session",
    "pause_session",
    "resume_session",
    "cancel_session",
    "rewind_session",
    "fork_session",
    "approve_call",
    "decide_call",
    "assign_session",
    "repair_session",
    "reveal_values",
    "delete_savedview",
)
# All sessions are searched for these.
WORDS = ("CLM-1042", "posted", "world", "nothing-of-the-kind", "deductible", "read q5")
# In the data of events these are keys of rows, which differ from one database to the next.
KEYS = ("call", "calls", "checkpoint", "inbox", "bulk")


def read_all() -> Json:
    sessions = list(Session.objects.select_related("branch", "assignee").order_by("created_at", "id"))
    names = {str(session.pk): session.title for session in sessions}
    while search_index.update():
        pass
    return {
        "agents": [
            {
                "key": row.key,
                "title": row.title,
                "description": row.description,
                "model": row.model,
                "problem": row.problem,
                "tools": row.tools,
            }
            for row in RegisteredAgent.objects.order_by("key")
        ],
        "users": [
            {
                "name": user.username,
                "groups": sorted(user.groups.values_list("name", flat=True)),
                "staff": user.is_staff,
                "superuser": user.is_superuser,
                "may": [right for right in RIGHTS if user.has_perm(f"sessions_app.{right}")],
            }
            for user in User.objects.order_by("username")
        ],
        "workers": [[row.name, row.stopped_at is not None] for row in Worker.objects.order_by("name")],
        "views": [
            [row.owner.get_username(), row.name, row.query, row.shared, _number(row.query, row.owner)]
            for row in SavedView.objects.select_related("owner").order_by("owner__username", "name")
        ],
        "bulk actions": [_bulk(row) for row in BulkAction.objects.select_related("assignee").order_by("pk")],
        "kept results": [[row.key, row.value["result"]] for row in ToolResult.objects.order_by("key")],
        "search": {words: _titles(words) for words in WORDS},
        "sessions": {session.title: read_session(session, names) for session in sessions},
    }


def read_session(session: Session, names: Mapping[str, str]) -> Json:
    """:param names: The titles of all sessions by their keys, to be told in place of keys."""
    branch = session.branch
    assert branch is not None
    branches = list(session.branches.select_related("parent__session", "undo_to").order_by("number"))
    numbers = {each.pk: each.number for each in branches}
    source = session.forked_from
    tip = restore.last_visible(Checkpoint, branch)
    told = session_json(session, mask=Mask.none())
    return {
        **{
            name: getattr(session, name)
            for name in (
                "agent",
                "customer",
                "status",
                "phase",
                "previous_phase",
                "waiting_for",
                "why",
                "error",
                "final_answer",
                "exit_reason",
                "stop_request",
                "attempt",
                "position",
                "inputs",
                "definition",
                "worker",
            )
        },
        "tags": sorted(session.tags.values_list("name", flat=True)),
        "assignee": session.assignee.get_username() if session.assignee else "",
        "days": {
            name: _day(getattr(session, name))
            for name in ("created_at", "updated_at", "phase_since", "lease_expires_at", "next_run_at")
        },
        "totals": _counts(session.totals),
        "inbox": [
            [item.text, item.author.get_username() if item.author else ""] for item in session.inbox.all()
        ],
        "forked from": [names[str(source.branch.session_id)], source.position] if source else None,
        "branch": branch.number,
        "branches": [
            {
                "number": each.number,
                "parent": [each.parent.session.title, each.parent.number] if each.parent else None,
                "undo to": each.undo_to.number if each.undo_to else None,
                "left at": each.left_at,
                "reason": each.reason,
                "by": each.created_by.get_username() if each.created_by else "",
                "left": _left(each.left_state),
            }
            for each in branches
        ],
        "history": _history(branch, names, own=False),
        "left behind": {
            str(each.number): _history(each, names, own=True) for each in branches if each.pk != branch.pk
        },
        "state": restore.state_of(branch, tip) if tip else {},
        "goes on from": _goes_on_from(session, branch, names),
        "events": [
            {
                "position": event.position,
                "branch": numbers[event.branch_id] if event.branch_id else None,
                "kind": event.kind,
                "actor": event.actor_name,
                "has account": event.actor_id is not None,
                "reason": event.reason,
                "day": _day(event.created_at),
                "data": _named({key: each for key, each in event.data.items() if key not in KEYS}, names),
            }
            for event in Event.objects.filter(session=session).order_by("position")
        ],
        "allowances": [[each.tool, each.granted_by] for each in session.allowances.order_by("tool")],
        # This is what `manage.py agent show` prints.
        "shown": {
            "messages": len(told["messages"]),
            "inbox": told["inbox"],
            "calls": [[call["position"], call["tool"], call["status"]] for call in told["tool_calls"]],
            "checkpoints": [[point["position"], point["kind"]] for point in told["checkpoints"]],
        },
    }


def made_with() -> Json:
    """The libraries by which an agent's definition is told."""
    return {name: version(name) for name in ("haystack-ai", "pydantic")}


def discarded_numbers(session: Session) -> list[int]:
    """The numbers of the discarded branches."""
    assert session.branch is not None
    return [item.branch for item in discarded_branches(builders.context_of(session))]


def definitions(keys: Sequence[str]) -> Json:
    """What tells a published agent from the same one with another prompt, model or tool."""
    return dict(RegisteredAgent.objects.filter(key__in=keys).values_list("key", "definition"))


def _history(branch: Branch, names: Mapping[str, str], *, own: bool) -> Json:
    """What the branch shows; with `own`, only the rows that lie on it itself."""

    def rows(model: Any) -> Any:
        found = model.objects.filter(branch=branch) if own else model.objects.visible_on(branch)
        return found.order_by("position")

    messages = list(rows(Message))
    calls = answered_calls(branch, messages)
    bodies = {message.position: unpack(message, calls) for message in messages}
    return {
        # The last value is a digest of the whole message, as a model is given it.
        "messages": [
            [row.position, row.role, row.text, row.author, _digest(bodies[row.position])]
            for row in fill_texts(branch, messages)
        ],
        "calls": [
            _call(row, names) for row in rows(ToolCall).select_related("approval__repeats__branch__session")
        ],
        "model calls": [
            {
                "position": row.position,
                "name": row.name,
                "seq": row.seq,
                "replies": row.replies,
                "aside": _digest(row.side_replies) if row.side_replies is not None else None,
                "model": row.model,
                "tokens": [row.prompt_tokens, row.completion_tokens],
                "error": row.error,
            }
            for row in rows(ModelCall)
        ],
        "checkpoints": [_checkpoint(branch, row) for row in rows(Checkpoint)],
    }


def _call(row: ToolCall, names: Mapping[str, str]) -> Json:
    approval = getattr(row, "approval", None)
    return {
        "position": row.position,
        "id": _id(row.call_id),
        "tool": row.tool,
        "arguments": row.arguments,
        "ran with": row.arguments if row.sent is None else row.sent,
        "status": row.status,
        "result": row.result,
        "error": row.error,
        "state": row.state,
        "lossy": row.lossy,
        "cached": row.cached,
        "attempt": row.attempt,
        "key": _named(row.idempotency_key, names),
        "decided by": row.decided_by,
        "days": [_day(row.asked_at), _day(row.started_at), _day(row.ended_at)],
        "approval": approval
        and {
            "arguments": approval.arguments,
            "fingerprint": approval.fingerprint,
            "decision": approval.decision,
            "edited": approval.edited,
            "message": approval.message,
            "by": approval.decided_by,
            "days": [_day(approval.asked_at), _day(approval.decided_at), _day(approval.expires_at)],
            "repeats": approval.repeats
            and [approval.repeats.branch.session.title, approval.repeats.position, approval.repeats.result],
        },
    }


def _checkpoint(branch: Branch, row: Checkpoint) -> Json:
    return {
        "position": row.position,
        "kind": row.kind,
        "step": row.step,
        "phase": row.phase,
        "outcome": row.outcome,
        "holds": _digest(
            [
                row.counters,
                _counts(row.totals),
                restore.tools_of(branch, row),
                restore.state_of(branch, row),
            ]
        ),
        "model sees": [message.position for message in restore.context_of(branch, row, only=["role"])],
    }


def _goes_on_from(session: Session, branch: Branch, names: Mapping[str, str]) -> Json:
    """What a run is given when it goes on at the tip of the branch."""
    found = restore.read(branch)
    base = found.checkpoint
    return {
        "base": base
        and {
            "position": base.position,
            "kind": base.kind,
            "step": base.step,
            "context": [[message.position, _digest(message.body)] for message in base.context],
            "state": _digest(base.state),
            "counters": base.counters,
            "tools": list(base.tools),
        },
        "replies": [_reply(reply) for reply in found.replies],
        "calls": [_record(call, names) for call in found.calls],
    }


def _reply(reply: ReplyRecord) -> Json:
    return [reply.name, reply.seq, [_digest(message.body) for message in reply.messages]]


def _record(call: CallRecord, names: Mapping[str, str]) -> Json:
    answer = call.approval
    return [
        call.position,
        _id(call.call_id),
        call.tool,
        call.status,
        _named(call.idempotency_key, names),
        _digest([call.arguments, call.sent, call.result, call.error, call.state]),
        answer and [answer.decision, answer.arguments, answer.message],
    ]


def _bulk(bulk_action: BulkAction) -> Json:
    return {
        "kind": bulk_action.kind,
        "query": bulk_action.query,
        "reason": bulk_action.reason,
        "assignee": bulk_action.assignee.get_username() if bulk_action.assignee else "",
        "by": bulk_action.actor_name,
        "stopped by": bulk_action.stopped_by,
        "stopped": bulk_action.stopped_at is not None,
        "items": sorted(
            [item.session.title, item.outcome, item.why]
            for item in bulk_action.items.select_related("session")
        ),
    }


def _titles(words: str) -> Json:
    """The sessions in which the words were said."""
    keys, _ = search.newest_sessions(words, whole=True)
    return sorted(Session.objects.filter(pk__in=keys).values_list("title", flat=True))


def _number(query: str, user: User) -> int:
    """How many sessions the filter of a saved view chooses, whatever its queue."""
    return Session.objects.filter(SessionFilter(QueryDict(query), user=user).where()).distinct().count()


def _left(state: Json) -> Json:
    """What a session was doing when it left the branch."""
    if state is None:
        return None
    told = {key: value for key, value in state.items() if key not in ("phase_since", "totals")}
    return told | {"totals": _counts(state["totals"])}


def _counts(totals: Mapping[str, Json]) -> Json:
    """The totals; of durations only which there are."""
    return {
        key: (sorted(value) if isinstance(value, dict) else "some") if key.endswith("seconds") else value
        for key, value in totals.items()
    }


def _day(moment: datetime | None) -> str | None:
    """The date only. It is the same in each stored database, while the time of the day is not."""
    return moment.astimezone(UTC).date().isoformat() if moment is not None else None


def _named(value: Json, names: Mapping[str, str]) -> Json:
    """The value with the titles of sessions in place of their keys."""
    if isinstance(value, dict):
        return {key: _named(item, names) for key, item in value.items()}
    if isinstance(value, str):
        for key, title in names.items():
            value = value.replace(key, title)
    return value


def _digest(value: Json) -> str:
    text = _id(json.dumps(value, sort_keys=True, separators=(",", ":")))
    return sha256(text.encode()).hexdigest()[:12]


def _id(text: str) -> str:
    """The ids of the demo's calls without the part that differs from one database to the other.

    Its model makes them of the messages that it was given, and PostgreSQL gives back the keys of an object in an order
    of its own.
    """
    return re.sub(r"call_[0-9a-f]{12}(?=_\d)", "call", text)
