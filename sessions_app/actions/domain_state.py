"""Writing a state of the value model (`agentstate.domain`) into a session of the desk, as a repair."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from agentstate.domain import AgentState, Message, Role, WorkingMemory
from agentstate.domain.reading import bodies_from, messages_of
from agentstate.domain.working_memory import keeps_working_memory
from agentstate.durable.records import user_body
from agentstate.durable.state.tags import without_order
from agentstate.names import WORKING_MEMORY_KEY
from sessions_app.access.errors import Invalid
from sessions_app.access.roles import Actor
from sessions_app.action_list import EDIT_STATE
from sessions_app.actions import repair_branch
from sessions_app.actions.base import in_one_transaction, require
from sessions_app.actions.repair_branch import RepairDraft
from sessions_app.history import restore
from sessions_app.history.message_rows import answered_calls, fill_texts, unpack
from sessions_app.models import InboxMessage, Session
from sessions_app.models import Message as MessageRow


@in_one_transaction
def write_state(
    *,
    actor: Actor,
    session_id: UUID | str,
    state: AgentState,
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Let the agent see the state's conversation and working memory: `AgentState.of` of the session is the way there.

    Where the conversation is another one, the unfinished step begins again, in the phase in which it began: what its
    calls did stays done, and a call that would do it again needs approval. Messages of the user behind the end of a
    turn are unread.

    :raises Invalid: if nothing was changed, or for a memory where the agent keeps none.
    """
    require(actor, EDIT_STATE)
    draft = repair_branch.begin(EDIT_STATE, actor, session_id, reason, expected_version)
    is_changed = _write_memory(draft, state.memory)
    is_changed |= _write_history(draft, state)
    if not is_changed:
        raise Invalid("Nothing was changed.")
    return draft.commit("value", {"keys": sorted(draft.state)})


def _write_memory(draft: RepairDraft, memory: WorkingMemory) -> bool:
    state = restore.state_of(draft.repaired, draft.checkpoint, only=WORKING_MEMORY_KEY)
    before = without_order(state.get(WORKING_MEMORY_KEY))
    after = memory.to_stored()
    if after == (before or WorkingMemory().to_stored()):
        return False
    if before is None and not keeps_working_memory(restore.tools_of(draft.repaired, draft.checkpoint)):
        raise Invalid("This agent keeps no working memory.")
    # Keys that an agent's own code has put beside these are kept.
    draft.state = {WORKING_MEMORY_KEY: {**before, **after} if isinstance(before, dict) else after}
    return bool(draft.state[WORKING_MEMORY_KEY] != before)


def _write_history(draft: RepairDraft, state: AgentState) -> bool:
    """Store what differs from what the model sees: the messages that it saw before keep their rows."""
    rows = restore.context_of(draft.repaired, draft.checkpoint)
    inbox = draft.session.inbox.all()
    unread = list(messages_of([row.whole for row in inbox], draft.now))
    history = list(state.history)
    if unread and _now(history[-len(unread) :], draft) == unread:
        history = history[: -len(unread)]  # they are unread as before
    kept, seen = _kept(draft, rows, history)
    if kept == len(rows) and seen == len(history):
        return False
    try:
        new = list(zip(history, bodies_from(history, state.memory.tool_calls), strict=True))[seen:]
    except ValueError as error:
        raise Invalid(str(error)) from error
    if draft.turn_has_ended:
        following: list[tuple[Message, dict[str, Any]]] = []
        while new and new[-1][0].role is Role.USER:
            following.insert(0, new.pop())
        if unread and _now([message for message, _ in following[: len(unread)]], draft) == unread:
            del following[: len(unread)]
        for message, body in following:
            whole = None if body == user_body(message.content) else body
            InboxMessage.objects.create(
                session=draft.session, text=message.content, body=whole, author=draft.actor.user
            )
    if kept < len(rows) or new:
        if draft.turn_has_ended:
            draft.final_answer = _answer(draft, list(rows[:kept]), new)
        draft.context = [row.position for row in rows[:kept]]
        draft.context += [draft.add_body(body).position for _, body in new]
        draft.copies_step = False
    return True


def _answer(draft: RepairDraft, kept: list[MessageRow], new: Sequence[tuple[Message, dict[str, Any]]]) -> str:
    """What the conversation ends with, as far as it is an answer: these rows, and these messages behind them."""
    if new:
        last, _ = new[-1]
        return last.content if last.role is Role.ASSISTANT else ""
    message = restore.answering(fill_texts(draft.repaired, kept), draft.checkpoint)
    return message.text if message is not None else ""


def _kept(draft: RepairDraft, rows: Sequence[MessageRow], history: Sequence[Message]) -> tuple[int, int]:
    """The number of rows from the first on that the history begins with, and of its messages that they are."""
    calls = answered_calls(draft.repaired, rows)
    seen = 0
    for number, row in enumerate(rows):
        messages = list(messages_of([unpack(row, calls)], draft.now))
        if _now(history[seen : seen + len(messages)], draft) != messages:
            return number, seen
        seen += len(messages)
    return len(rows), seen


def _now(messages: Sequence[Message], draft: RepairDraft) -> list[Message]:
    """The messages with the time of the repair, since those of stored bodies have no times to compare."""
    return [replace(message, timestamp=draft.now) for message in messages]
