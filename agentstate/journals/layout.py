"""The names and fields under which a session is stored on a Valkey or Redis server. Needs no client.

The journal (`agentstate.journals.valkey`) and the desk's mirror (`sessions_app.mirror`) write the same structures, so
that whoever reads them need not know which of the two wrote them:

    HASH   agent:state:{id}     current_step, status, result_step_N (the messages of step N), updated_at, agent,
                                customer, title
    LIST   agent:messages:{id}  the messages of the conversation, in order
    STREAM agent:log:{id}       what happened, in order: entries with `op` and `record` (JSON)

Each of the two adds fields of its own to the HASH; a mirror has `MIRROR`, by which it can be told from a journal.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = Any
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

KINDS: Final = ("state", "messages", "log")
"""The structures of a session, in the order in which scripts are given their keys."""

KEPT_SECONDS: Final = 24 * 60 * 60
"""How long a session that has ended is kept, unless the installation says otherwise."""

CURRENT_STEP: Final = "current_step"
"""The field of the HASH that has the number of the last step that has ended."""

MIRROR: Final = "mirror"
"""The field of the HASH that only the mirror of a desk's session has. A mirror cannot be run."""

COMPLETE: Final = "complete"
FAILED: Final = "failed"
ENDED: Final = (COMPLETE, "cancelled")
"""The values of `status` with which the time begins for which a session is kept. A failed one can be resumed."""


def key(kind: str, session_id: str) -> str:
    return f"agent:{kind}:{session_id}"


def keys(session_id: str) -> list[str]:
    return [key(kind, session_id) for kind in KINDS]


def status_at_rest(status: str, *, failed: bool) -> str:
    """The `status` of a session whose run has ended; an idle one has failed or is complete."""
    if status != "idle":
        return status
    return FAILED if failed else COMPLETE


def step_fields(step: int, bodies: Sequence[Mapping[str, Json]]) -> dict[str, str]:
    """The fields that tell the result of a step that has ended, and that it was the last."""
    return {result_field(step): dumps(bodies), **current_step(step)}


def result_field(step: int) -> str:
    return f"result_step_{step}"


def current_step(step: int) -> dict[str, str]:
    return {CURRENT_STEP: str(step)}


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def dumps(value: Json) -> str:
    return _encoder.encode(value)


def record_of(fields: Mapping[Any, Any]) -> dict[str, Json]:
    """The record of an entry of the STREAM, as the client returns it."""
    record: dict[str, Json] = json.loads(
        next(value for name, value in fields.items() if text(name) == "record")
    )
    return record


def entries(read: Any) -> list[Any]:
    """The entries in the answer to XREAD of one stream, of which versions of the client make different things."""
    if not read:
        return []
    page = next(iter(read.values())) if isinstance(read, dict) else read[0][1]
    return list(page[0] if isinstance(page[0], list) else page)


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
