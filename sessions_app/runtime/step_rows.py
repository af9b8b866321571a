"""The rows that each step adds, from the records of the journal. Inserted in the transaction that holds the fence."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Self
from uuid import UUID

from agentstate.durable.records import AnsweredCall as AnsweredUnrun
from agentstate.durable.records import CallEnd, CallRecord, NewReply
from agentstate.durable.state.tags import stand_ins
from agentstate.names import ENDED_CALL_STATES
from sessions_app.access.shown import cut_off
from sessions_app.history.message_rows import AnsweredCall, pack
from sessions_app.models import (
    Branch,
    EventKind,
    InboxMessage,
    LossyResult,
    Message,
    ModelCall,
    Session,
    ToolCall,
    record_event,
)
from sessions_app.runtime import statements

Json = Any
LONGEST_TOOL_NAME = 200


class NewMessageRow(NamedTuple):
    """A message of the conversation, as a run stores it. ``at`` is when it was sent."""

    position: int
    body: dict[str, Json]
    at: datetime
    author: str = ""
    from_customer: bool = False

    @classmethod
    def read(cls, position: int, row: InboxMessage, body: dict[str, Json] | None = None) -> Self:
        """An unread message that the agent has been given, with the body that it was given if that is another."""
        return cls(position, body or row.whole, row.created_at, row.author_name, row.from_customer)


def messages(
    branch: Branch,
    rows: Sequence[NewMessageRow],
    answered: Mapping[str, AnsweredCall],
) -> None:
    """Store the messages.

    :param answered: The calls that they may answer, by their ids.
    """
    values = []
    for row in rows:
        role, text, rest = pack(row.body, answered)
        values.append(
            {
                "branch_id": branch.id,
                "position": row.position,
                "role": role,
                "text": text,
                "body": rest,
                "author": row.author,
                "from_customer": row.from_customer,
                "created_at": row.at,
            }
        )
    statements.insert(Message, values)


def has_model_call(branch: Branch, new: NewReply) -> bool:
    """Whether this reply is stored on the branch."""
    return ModelCall.objects.filter(
        branch=branch, name=new.name, seq=new.seq, started_at=new.started_at
    ).exists()


def model_call(branch: Branch, position: int, new: NewReply, *, replies: int) -> None:
    """A model call that replied, or a reply from the semantic cache.

    :param replies: The number of messages of the conversation that follow it.
    """
    values = {
        "branch_id": branch.id,
        "position": position,
        "name": new.name,
        "seq": new.seq,
        "replies": replies,
        "side_replies": list(new.messages) if new.side_call else None,
        "model": new.model[:200],
        "prompt_tokens": new.prompt_tokens,
        "completion_tokens": new.completion_tokens,
        "error": "",
        "started_at": new.started_at,
        "ended_at": max(new.started_at, new.ended_at),
    }
    if new.similarity is not None:
        values |= {"source": UUID(new.source), "similarity": new.similarity}
    statements.insert(ModelCall, [values])


def planned_calls(branch: Branch, records: Sequence[CallRecord], at: datetime, worker: str) -> None:
    """The calls of a reply. Those that start with it are started by the worker."""
    statements.insert(
        ToolCall,
        [
            {
                "branch_id": branch.id,
                "position": record.position,
                "call_id": record.call_id,
                "tool": cut_off(record.tool, LONGEST_TOOL_NAME),
                "arguments": record.arguments,
                "status": record.status,
                "error": "",
                "lossy": False,
                "cached": False,
                "attempt": record.attempt,
                "idempotency_key": record.idempotency_key,
                "decided_by": "",
                "asked_at": at,
                "started_at": at if record.attempt else None,
                "worker": worker[:200] if record.attempt else "",
            }
            for record in records
        ],
    )


def answered_calls(branch: Branch, answered: Sequence[AnsweredUnrun], at: datetime) -> None:
    """The ends of calls that have an answer in the conversation without having run."""
    for call in answered:
        unended = ToolCall.objects.filter(branch=branch, position=call.position)
        unended = unended.exclude(status__in=ENDED_CALL_STATES)
        unended.update(status=call.status, error=call.error, ended_at=at)


def lost_types(end: CallEnd) -> list[str]:
    """The types of the result, and of what the call wrote to the State, that could not be stored as they are."""
    kinds = [end.lost_type, *stand_ins(end.state)]
    return list(dict.fromkeys(kind[:200] for kind in kinds if kind))


def lossy_results(agent: str, tool: str, kinds: Sequence[str], at: datetime) -> None:
    """Note for the agent's page that values of these types could not be stored as they are."""
    rows = [LossyResult(agent=agent, tool=tool, kind=kind, seen_at=at) for kind in kinds]
    LossyResult.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["agent", "tool", "kind"], update_fields=["seen_at"]
    )


def not_stored(
    session: Session, worker: str, lost: Mapping[str, str], *, position: int, at: datetime
) -> None:
    """An event that names the keys of the State, each with the type that a run which continues does not have."""
    keys = ", ".join(f"{key} ({kind})" for key, kind in sorted(lost.items()))
    reason = f"{keys}. A run that continues has its text or its plain data instead."
    record_event(
        session,
        EventKind.NOT_STORED,
        position=position,
        actor_name=worker,
        reason=cut_off(reason, 4_000),
        at=at,
    )
