"""How a script's calls become the turns of its session: what is resumed, what is asked, and what is on record.

Each rule is a generator (`agentstate.durable.steps`) that yields the journal with which the agent is to be run. It
holds the session's lock, and its place open, until it ends. Needs no Haystack until a rule runs.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentstate.articles import an
from agentstate.durable.long_term import SharedMemory
from agentstate.durable.steps import Rule
from agentstate.library.given import check_key, check_mapping, messages_of
from agentstate.library.nesting import held
from agentstate.library.outcomes import Answered, Outcome
from agentstate.library.unfinished import unfinished_outcome
from agentstate.names import RunEvent

if TYPE_CHECKING:
    from haystack.components.agents import Agent
    from haystack.dataclasses import ChatMessage

    from agentstate.durable import agent as wrapping
    from agentstate.durable import run as running
    from agentstate.journals import MemoryJournal
    from agentstate.journals.going_back import SessionCheckpoint
    from agentstate.journals.store import Store
    from agentstate.journals.turns import Turn
    from agentstate.library.places import Place

    TurnRule = Rule[MemoryJournal, running.Outcome, Outcome]

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TurnRules:
    wrapped: "wrapping.WrappedAgent"
    place: "Place"
    memory: SharedMemory | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def asked(self, messages: Any, key: str, given: Mapping[str, Any]) -> "TurnRule":
        """As `DurableAgent.run`.

        :param given: The `state`, `generation_kwargs` and `tools` of the turn.
        """
        check_key(key or "")
        check_mapping("generation_kwargs", given["generation_kwargs"])
        bodies, inputs = _checked(self.wrapped.agent, messages, given)
        with held(self.lock, self.place.session_id), self.place.open() as journal:
            store = journal.store
            self._tell_memory(store)
            earlier_turn = store.turns.by_key(key) if key else None
            if earlier_turn is not None:
                if earlier_turn.messages != bodies:
                    raise ValueError(f"The key {key!r} already belongs to other messages in this session.")
                if earlier_turn is not store.turns.unfinished:
                    return self._on_record(store, earlier_turn)
                return (yield from self._continued(journal))
            unfinished = store.turns.unfinished
            if unfinished is not None and not key and unfinished.messages == bodies:
                return (yield from self._continued(journal))
            if unfinished is not None and not unfinished.failed:
                earlier = yield from self._continued(journal, accepted=False)
                if not earlier.finished:
                    return earlier
            _ask(store, bodies, key, inputs)
            return (yield from self._driven(journal))

    def resumed(self, at: "SessionCheckpoint | None", changes: Mapping[str, Any]) -> "TurnRule":
        """As `DurableAgent.resume`."""
        from agentstate.durable.inputs import encoded_changes

        check_mapping("changes", changes)
        state, messages = encoded_changes(self.wrapped.agent, changes)
        with held(self.lock, self.place.session_id), self.place.open() as journal:
            store = journal.store
            self._tell_memory(store)
            if at is not None or changes:
                back_to = _position(store, at) if at is not None else None
                # The memory is told first. If the process dies between the two, the next run tells it how it is.
                journal.go_back(
                    back_to, state, messages, discarding=lambda position: self._tell_memory(store, position)
                )
            turns = store.turns
            if turns.unfinished is None:
                if not turns.all:
                    raise LookupError("Nothing has been asked in this session yet.")
                return self._on_record(store, turns.all[-1])
            with suppress(LookupError):  # otherwise there is nothing of the kind to be said
                journal.resume()
            return (yield from self._driven(journal))

    def _tell_memory(self, store: "Store", back_to: int | None = None) -> None:
        """Tell it which calls the current history does not show, or will not once the session has gone back."""
        if self.memory is not None:
            calls = store.discarded_calls(back_to)
            self.memory.discard(store.name, [call.idempotency_key for call in calls])

    def _continued(self, journal: "MemoryJournal", *, accepted: bool = True) -> "TurnRule":
        """Go on with the unfinished turn, unless it waits at a breakpoint."""
        store = journal.store
        if store.is_at_breakpoint:
            return self._unfinished(store, store.last_end, accepted)
        return (yield from self._driven(journal, accepted=accepted))

    def _driven(self, journal: "MemoryJournal", *, accepted: bool = True) -> "TurnRule":
        """Run until no turn is unfinished, or a person is needed. Unread messages behind a turn begin another one."""
        store = journal.store
        while True:
            result = (yield journal).result
            end = store.last_end
            if end["event"] != RunEvent.FINISHED:
                return self._unfinished(store, end, accepted)
            if store.turns.unfinished is None:
                return Answered(result) if result is not None else self._on_record(store, store.turns.all[-1])

    def _unfinished(self, store: "Store", end: Record, accepted: bool) -> Outcome:
        return unfinished_outcome(store, end, accepted, self.wrapped.policies)

    def _on_record(self, store: "Store", turn: "Turn") -> Outcome:
        """What `Agent.run` returned at the end of this turn, from the journal."""
        from agentstate.durable.definition import output_names
        from agentstate.durable.state.chat_messages import message_from
        from agentstate.durable.state.encoding import decode

        if not turn.finished:
            return self._unfinished(store, turn.end, accepted=True)
        messages = [message_from(store.messages[position]) for position in turn.context]
        outputs = output_names(self.wrapped.agent)
        counters = {name: value for name, value in decode(turn.counters).items() if name in outputs}
        return Answered(
            {
                **decode(turn.state),
                **counters,
                "exit_reason": turn.end["exit_reason"],
                "messages": messages,
                **({"last_message": messages[-1]} if messages else {}),
            }
        )


def _checked(
    agent: "Agent",
    messages: "str | ChatMessage | Sequence[ChatMessage] | None",
    given: Mapping[str, Any],
) -> tuple[list[Record], Record]:
    """The bodies of the messages, and the inputs of the turn.

    :raises ValueError: without a message or a variable that the agent needs, or for a tool that it lacks.
    :raises NotStorable: for a value that cannot be stored.
    """
    from agentstate.durable.inputs import check_variables, encoded, tool_names

    bodies = _bodies(messages, may_be_empty=agent.user_prompt is not None)
    check_variables(agent, given["state"])
    return bodies, encoded({**given, "tools": tool_names(agent, given["tools"])})


def _bodies(messages: "str | ChatMessage | Sequence[ChatMessage] | None", may_be_empty: bool) -> list[Record]:
    from agentstate.durable.state.chat_messages import message_body

    chat_messages = messages_of(messages)
    if not chat_messages and not may_be_empty:
        raise ValueError("There is no message to run the agent with.")
    return [message_body(message) for message in chat_messages]


def _position(store: "Store", checkpoint: "SessionCheckpoint") -> int:
    """
    :raises LookupError: for a checkpoint of another session.
    :raises TypeError: for what is no checkpoint.
    """
    from agentstate.journals.going_back import SessionCheckpoint, checkpoints

    if not isinstance(checkpoint, SessionCheckpoint):
        raise TypeError(
            f"{an(checkpoint, start=True)} is not a checkpoint to go back to. Give one of checkpoints()."
        )
    same = [row for row in checkpoints(store) if row.position == checkpoint.position]
    if same and same != [checkpoint]:
        raise LookupError(
            f"That checkpoint does not belong to the session {store.session_id!r}: take one of checkpoints()."
        )
    return checkpoint.position


def _ask(store: "Store", bodies: list[Record], key: str, inputs: Record) -> None:
    from agentstate.journals.store import ask

    with store.lock:
        ask(store, bodies, key=key, inputs=inputs)
