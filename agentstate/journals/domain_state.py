"""A state of the value model as the beginning of a durable session; `AgentState.of` is the way back."""

from typing import Any

from agentstate.domain import AgentState, Message, Role
from agentstate.domain.reading import bodies_from
from agentstate.durable.port import Journal
from agentstate.durable.records import NewCheckpoint, NewMessage, Progress
from agentstate.durable.state.tags import with_order
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
    bodies = bodies_from(history, state.memory.tool_calls)
    if history or memory:
        _checkpoint(
            journal, state, bodies, memory=memory, ended=bool(following) or not _is_within_a_turn(history)
        )
    if following:
        ask(journal.store, bodies_from(following, ()))


def _checkpoint(
    journal: Journal, state: AgentState, bodies: list[dict[str, Json]], *, memory: bool, ended: bool
) -> None:
    stored = {WORKING_MEMORY_KEY: {"set": with_order(state.memory.to_stored())}} if memory else {}
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
