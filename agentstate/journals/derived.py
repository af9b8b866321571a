"""What a record of a session changes in the HASH and the LIST, which are derived from its log on a server."""

from collections.abc import Sequence
from typing import Any

from agentstate.journals import layout
from agentstate.journals.store import Record, Store
from agentstate.names import RunEvent


def messages(record: Record) -> list[Record]:
    """The messages that the record adds to the conversation, in order, each with its position and body."""
    before = record.get("before")
    return [*(own_messages(before) if before else []), *own_messages(record)]


def own_messages(record: Record) -> list[Record]:
    if record["op"] not in ("checkpoint", "reply") or record.get("aside"):
        return []
    own: list[Any] = record["messages"]
    return own


def listed_after_going_back(store: Store, listed: Sequence[int], record: Record) -> list[int]:
    """The positions of the messages that remain in the LIST where the record, not applied yet, goes back.

    What came after the checkpoint is discarded, and what the model saw there and does not see any more.
    """
    back_to = record["back_to"]
    checkpoint = next(row for row in store.checkpoints if row["position"] == back_to)
    replaced = set(store.context_at(checkpoint)) - set(record["context"])
    return [position for position in listed if position <= back_to and position not in replaced]


def discarded_steps(store: Store, record: Record) -> list[str]:
    """The fields of the HASH with the results of the steps that are discarded where the record goes back."""
    last_step = max(row["step"] for row in store.checkpoints)
    return [layout.result_field(step) for step in range(record["step"] + 1, last_step + 1)]


def status(record: Record) -> str:
    """What the HASH says of a session after this record; "" where it says what it said before."""
    end = record.get("stop")
    if end:
        return layout.status_at_rest(end["status"], failed=end["event"] == RunEvent.FAILED)
    if record["op"] == "call" and "at" not in record:
        return ""  # a person's decision: the session waits until it is resumed
    return "running" if record["op"] in ("ask", "reply", "plan", "call", "checkpoint") else ""
