"""A session as plain JSON, for programs: the JSON tab and its file, the page of a call, `manage.py agent show --json`.

Rows in, plain values out: stored types (``{"$type": ...}``) are left out, see `without_tags`. Everything comes through
a mask, which hides values in it; `Mask.none()` exports all of them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from agentstate.durable.state.tags import without_tags
from sessions_app.access import shown
from sessions_app.access.masking import Mask
from sessions_app.history import from_state, repairs
from sessions_app.history.call_rows import SMALL, without_big_results
from sessions_app.history.message_rows import RESULT_OF, text_in
from sessions_app.history.staff_notes import staff_notes
from sessions_app.models import Branch, Checkpoint, Event, Message, ModelCall, Session, ToolCall

Json = dict[str, Any]
_FIELDS = (
    "agent", "title", "customer", "version", "phase", "phase_since", "status", "waiting_for", "why", "breakpoints",
    "error", "final_answer", "exit_reason", "epoch", "worker", "attempt", "position", "definition", "totals", "inputs",
    "created_at", "updated_at",
)  # fmt: skip
KEYS = (
    "id", *_FIELDS, "branch", "left_at", "lineage", "tags", "inbox", "messages", "model_calls", "tool_calls",
    "checkpoints", "events",
)  # fmt: skip


def session_json(
    session: Session,
    *,
    mask: Mask,
    after: int = 0,
    upto: int | None = None,
    big_results: bool = True,
    keys: Collection[str] = KEYS,
) -> Json:
    """The session, and the rows of its current history with ``after < position <= upto``, oldest first.

    At most seven queries: one for each of the keys from ``tags`` on that is asked for; one more where the session has
    left a branch. Reads ``session.branch``. A message that a person replaced has ``replaced_by``, the position of the
    message that the model reads instead.

    :param big_results: False leaves out results above `SMALL` characters, and the texts of messages that hold them.
    :param keys: The keys to export, of `KEYS`, in their order.
    """
    branch = session.current_branch
    read_calls = "tool_calls" in keys or "messages" in keys
    calls = list(_calls(branch, after, upto, big_results)) if read_calls else []
    readers: Mapping[str, Callable[[], Any]] = {
        "tags": lambda: shown.tags(mask, session.tags.values_list("name", flat=True)),
        "inbox": lambda: [mask.named("text", text) for text in session.inbox.values_list("text", flat=True)],
        "messages": lambda: _with_replacements(
            branch,
            messages_json(list(Message.objects.visible_on(branch, after=after, upto=upto)), calls, mask=mask),
        ),
        "model_calls": lambda: model_calls_json(
            ModelCall.objects.visible_on(branch, after=after, upto=upto).defer("side_replies"), mask=mask
        ),
        "tool_calls": lambda: [call_json(row, mask=mask) for row in calls],
        "checkpoints": lambda: checkpoints_json(
            Checkpoint.objects.visible_on(branch, after=after, upto=upto), mask=mask
        ),
        "events": lambda: events_json(Event.objects.visible_on(branch, after=after, upto=upto), mask=mask),
    }
    facts = _facts(mask.row(session), branch)
    return {key: readers[key]() if key in readers else facts[key] for key in keys}


def call_json(call: ToolCall, *, mask: Mask) -> Json:
    """One tool call. ``arguments`` are those that it ran or would run with. No query.

    ``requested`` is there only if they differ from what the model asked for, ``result_size`` (characters) only if the
    result was too big to be read: ``call`` may be one of `without_big_results`. ``at`` is when it got its status.
    ``from_state`` is what its request for approval showed of the State, where there is any and the request was loaded.
    """
    row: Any = mask.row(call)
    small = "small" in vars(row)
    payload = {
        "call_id": row.call_id,
        "position": row.position,
        "tool": row.tool,
        "arguments": row.ran_with,
        "status": row.status,
        "result": without_tags(row.small if small else row.result),
        "error": row.error,
        "attempts": row.attempt,
        "cached": row.cached,
        "idempotency_key": row.idempotency_key,
        "at": _plain(row.ended_at or row.started_at or row.asked_at),
    }
    if row.changed_arguments:
        payload["requested"] = row.arguments
    if taken := from_state.of_call(row):
        payload["from_state"] = taken
    if small and (row.size or 0) > SMALL:
        payload["result_size"] = row.size
    return payload


def _facts(session: Session, branch: Branch) -> Json:
    fields = {name: _plain(getattr(session, name)) for name in _FIELDS}
    fields["inputs"] = without_tags(fields["inputs"])
    place = {"branch": branch.number, "left_at": branch.left_at, "lineage": branch.lineage}
    return {"id": str(session.pk), **fields, **place}


def _calls(branch: Branch, after: int, upto: int | None, big_results: bool) -> Collection[ToolCall]:
    if big_results:
        return ToolCall.objects.visible_on(branch, after=after, upto=upto).select_related("approval")
    return without_big_results(ToolCall.objects.visible_on(branch, after=after, upto=upto))


def messages_json(rows: Collection[Message], calls: Iterable[ToolCall], *, mask: Mask) -> list[Json]:
    """Messages, each with its text, also where the ledger of calls holds it. At most two queries, for staff's notes.

    A text is None if its call is not among ``calls``, or was read without its result. The role of a note by which the
    model was told of changed arguments is "staff".
    """
    results: dict[int, Any] = {}
    for call in calls:
        result = vars(call).get("small", vars(call).get("result"))
        if result is not None:
            results[call.position] = result
    payload = []
    notes = staff_notes(rows, mask)
    for row in rows:
        note = notes.get((row.branch_id, row.position))
        call_position = row.body.get(RESULT_OF)
        text: str | None = row.text
        if call_position is not None and not text:
            text = text_in(results[call_position], row.body) if call_position in results else None
        payload.append(
            {
                "position": row.position,
                "role": row.role if note is None else "staff",
                "text": note.text if note else None if text is None else mask.message(row.role, text),
                "author": row.author,
                "from_customer": row.from_customer,
                "at": _plain(row.created_at),
            }
        )
    return payload


def _with_replacements(branch: Branch, messages: list[Json]) -> list[Json]:
    replaced = {
        event.data["position"]: event.data["by"]
        for event in repairs.on_each({branch: 0})[branch.pk]
        if event.data.get("what") == repairs.OF_A_MESSAGE
    }
    # A replacement may itself have been replaced, by one behind it.
    for position in sorted(replaced, reverse=True):
        replaced[position] = replaced.get(replaced[position], replaced[position])
    return [
        {**row, "replaced_by": replaced[row["position"]]} if row["position"] in replaced else row
        for row in messages
    ]


def model_calls_json(rows: Iterable[ModelCall], *, mask: Mask) -> list[Json]:
    """Replies of the model. No query."""
    return [
        {
            "position": row.position,
            "name": row.name,
            "model": row.model,
            "prompt_tokens": row.prompt_tokens,
            "completion_tokens": row.completion_tokens,
            "cached": row.cached,
            "at": _plain(row.started_at),
            "seconds": row.seconds,
            "error": row.error,
        }
        for row in mask.rows(rows)
    ]


def checkpoints_json(rows: Iterable[Checkpoint], *, mask: Mask) -> list[Json]:
    """Checkpoints. No query."""
    return [
        {
            "id": row.pk,
            "position": row.position,
            "kind": row.kind,
            "step": row.step,
            "phase": row.phase,
            "complete": row.complete,
            "at": _plain(row.created_at),
            "outcome": row.outcome,
        }
        for row in mask.rows(rows)
    ]


def events_json(rows: Iterable[Event], *, mask: Mask) -> list[Json]:
    """Events, those of people among them. No query."""
    return [
        {
            "position": row.position,
            "kind": row.kind,
            "actor": row.actor_name,
            "reason": row.reason,
            "data": row.data,
            "at": _plain(row.created_at),
        }
        for row in mask.rows(rows)
    ]


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
