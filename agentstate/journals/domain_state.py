"""A state of the value model as the beginning of a durable session; `AgentState.of` is the way back."""

from collections.abc import Mapping
from typing import Any

from agentstate.domain import AgentState, Message, Role, WorkingMemory
from agentstate.durable.port import Journal
from agentstate.durable.records import NewCheckpoint, NewMessage, Progress
from agentstate.journals.memory import MemoryJournal
from agentstate.journals.store import ask
from agentstate.names import WORKING_MEMORY_KEY, CheckpointKind

Json = Any


def write_state(journal: MemoryJournal, state: AgentState, *, memory: bool = True) -> None:
    """Make the state that of the session, which any agent then continues.

    Messages of the user at the end of the history are the turn that comes next. Times, and the tool calls that are in
    the working memory alone, are not kept.

    :param memory: False for an agent whose state schema has no working memory.
    :raises ValueError: if the session has begun already.
    """
    snapshot = journal.load()
    if snapshot.checkpoint is not None or snapshot.unread:
        raise ValueError(f"The session {journal.session_id!r} has begun already.")
    history = list(state.history)
    following: list[Message] = []
    while history and history[-1].role is Role.USER:
        following.insert(0, history.pop())
    bodies = _bodies(history, {call.call_id: call.error for call in state.memory.tool_calls})
    if history or memory:
        _checkpoint(
            journal, state, bodies, memory=memory, ended=bool(following) or not _is_within_a_turn(history)
        )
    if following:
        ask(journal.store, _bodies(following, {}))


def _checkpoint(
    journal: Journal, state: AgentState, bodies: list[dict[str, Json]], *, memory: bool, ended: bool
) -> None:
    stored = {WORKING_MEMORY_KEY: {"set": _stored(state.memory)}} if memory else {}
    journal.checkpoint(
        NewCheckpoint(
            kind=CheckpointKind.END if ended else CheckpointKind.STEP,
            step=sum(body["role"] == "assistant" for body in bodies),
            progress=Progress(state.phase.value, "", state.updated_at, {}),
            messages=[NewMessage(body) for body in bodies],
            state=stored,
            definition="",
        )
    )


def _is_within_a_turn(history: list[Message]) -> bool:
    return bool(history) and history[-1].role is Role.TOOL


def _stored(memory: WorkingMemory) -> dict[str, Json]:
    return {
        "goal": memory.current_goal,
        "plan": list(memory.plan_steps),
        "completed": list(memory.completed_steps),
        "notes": list(memory.notes),
    }


def _bodies(history: list[Message], errors: Mapping[str, str | None]) -> list[dict[str, Json]]:
    """The messages as those of Haystack, plain JSON."""
    origins: dict[str, Json] = {}
    bodies = []
    for message in history:
        data = message.to_dict()
        content: list[Json] = [{"text": data["content"]}] if data["content"] else []
        if message.role is Role.TOOL:
            call_id = data["metadata"]["tool_call_id"]
            error = errors.get(call_id)
            result = data["content"] if error is None else error
            content = [
                {
                    "tool_call_result": {
                        "result": result,
                        "origin": origins[call_id],
                        "error": error is not None,
                    }
                }
            ]
        for call in data["metadata"].get("tool_calls") or ():
            origin = {
                "tool_name": call["name"],
                "arguments": call["arguments"],
                "id": call["id"],
                "extra": None,
            }
            origins[call["id"]] = origin
            content.append({"tool_call": origin})
        bodies.append({"role": data["role"], "meta": {}, "name": None, "content": content or [{"text": ""}]})
    return bodies
