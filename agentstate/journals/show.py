"""A session as text for people: the conversation with its calls, and what it waits for. Needs no Haystack."""

import json
from typing import Any

from agentstate.durable.records import CallRecord
from agentstate.durable.state.tags import stand_ins, without_tags
from agentstate.durable.state_excerpts import values_of
from agentstate.journals.store import Store
from agentstate.names import CallState

Json = Any


def show(store: Store) -> str:
    """The session as lines of text, all messages in the order in which they were recorded."""
    lines = [f"Session {store.session_id}: {_status(store)}"]
    for _, body in sorted(store.messages.items()):
        lines += _message(body)
    for key, value in store.state.items():
        if types := stand_ins(value):
            lines.append(_clean(f"  {'state':<12}{key}: stored in place of {', '.join(types)}"))
    lines += [f"  {'unread':<12}{_clean(_texts(message.body))}" for message in store.unread]
    for call in store.step_calls():
        if need := _need(call):
            lines.append(f"  {call.call_id} {need}: {_call(call.tool, call.shown_arguments)}")
            taken = values_of(call.approval.from_state) if call.approval is not None else {}
            lines += [f"  {'':<12}from the State: {_values(taken)}"] if taken else []
    return "\n".join(lines) + "\n"


def _status(store: Store) -> str:
    end = store.last_end
    why = _clean((end.get("why") or end.get("error") or "") if end else "")
    status = "failed" if end and end["error"] else store.status
    if store.turns.unfinished is not None and status == "idle":
        status = "unfinished"
    return f"{status}. {why}".rstrip(" .") + "."


def _message(body: dict[str, Json]) -> list[str]:
    lines = []
    if text := _texts(body):
        lines.append(f"  {body['role']:<12}{_clean(text)}")
    for part in body["content"]:
        if call := part.get("tool_call"):
            lines.append(f"  {'calls':<12}{_call(call['tool_name'], call['arguments'])}")
        if answer := part.get("tool_call_result"):
            failed = " failed" if answer["error"] else ""
            result = answer["result"]
            text = result if isinstance(result, str) else json.dumps(without_tags(result), ensure_ascii=False)
            lines.append(f"  {'result':<12}{_clean(answer['origin']['tool_name'])}{failed}: {_clean(text)}")
    return lines


def _texts(body: dict[str, Json]) -> str:
    """The texts, and in their place that there are images and files."""
    shown = {"image": "[image]", "file": "[file]"}
    lines = [part.get("text", shown.get(next(iter(part)))) for part in body["content"]]
    return "\n".join(line for line in lines if isinstance(line, str))


def _need(call: CallRecord) -> str:
    if call.approval is not None and call.approval.decision == "":
        return "needs approval"
    return "is in doubt" if call.status in (CallState.DOUBT, CallState.STARTED) else ""


def _call(tool: str, arguments: dict[str, Json]) -> str:
    return f"{_clean(tool)}({_values(arguments)})"


def _values(values: dict[str, Json]) -> str:
    return _clean(
        ", ".join(
            f"{name}={json.dumps(without_tags(value), ensure_ascii=False)}" for name, value in values.items()
        )
    )


def _clean(text: str) -> str:
    """The text with its lines indented, and without what a terminal would obey."""
    printable = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
    return printable.replace("\n", "\n" + " " * 14)
