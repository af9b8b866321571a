"""The state of one agent, as a value.

Everything here is immutable: a transition returns a new state and leaves the old one unchanged. Each transition is
checked against the state machine, raises `iteration` by one and sets `updated_at`. Time is timezone-aware UTC, read
from the `clock` that is passed in.
"""

import re
import uuid
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from agentstate.domain.frozen import Clock, as_utc, require, set_fields, tuple_of, utc_now
from agentstate.domain.messages import Message, Role, ToolCall
from agentstate.domain.phases import AgentPhase, check
from agentstate.domain.reading import bodies_of, calls_of, messages_of, readable
from agentstate.domain.working_memory import WorkingMemory
from agentstate.names import WORKING_MEMORY_KEY

_SESSION_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?")


def check_session_id(session_id: object) -> str:
    """The id, if it is valid, and so safe as a file name.

    :raises ValueError: for any other value.
    """
    if not isinstance(session_id, str) or not _SESSION_ID.fullmatch(session_id):
        raise ValueError(
            f"{session_id!r} is not a session id: use up to 128 of A-Z, a-z, 0-9, '-', '_' and '.', "
            "beginning with a letter or digit and not ending with '.'."
        )
    return session_id


@dataclass(frozen=True, slots=True)
class AgentState:
    """One session: phase, conversation, working memory, outcome. Without arguments it is fresh and idle."""

    session_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    phase: AgentPhase = AgentPhase.IDLE
    history: tuple[Message, ...] = ()
    memory: WorkingMemory = field(default_factory=WorkingMemory)
    iteration: int = 0
    final_answer: str | None = None
    error_message: str | None = None
    created_at: datetime = field(default_factory=utc_now)
    updated_at: datetime = field(default_factory=utc_now)

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        require(WorkingMemory, memory=self.memory)
        require(str | None, final_answer=self.final_answer, error_message=self.error_message)
        require(int, iteration=self.iteration)
        if self.iteration < 0:
            raise ValueError(f"iteration is {self.iteration}: it counts up from 0.")
        set_fields(self, phase=AgentPhase(self.phase), history=tuple_of(Message, self.history, "history"))
        set_fields(self, created_at=as_utc(self.created_at), updated_at=as_utc(self.updated_at))

    @classmethod
    def from_user_input(
        cls,
        user_input: str,
        session_id: str | None = None,
        *,
        system_prompt: str | None = None,
        clock: Clock = utc_now,
    ) -> Self:
        """A session that starts in planning, with the user's message as its goal."""
        now = clock()
        prompt = () if system_prompt is None else (Message(Role.SYSTEM, system_prompt, now),)
        return cls(
            session_id=uuid.uuid4().hex if session_id is None else session_id,
            phase=AgentPhase.PLANNING,
            history=(*prompt, Message(Role.USER, user_input, now)),
            memory=WorkingMemory(current_goal=user_input),
            created_at=now,
            updated_at=now,
        )

    @classmethod
    def of(cls, session: Any, session_id: str | None = None) -> Self:
        """The state of a durable session at its last checkpoint, with the messages that were not read yet.

        :param session: A journal of the session, a `DurableAgent`, or a session of the desk. Nothing of it is changed.
        :param session_id: For an id of the session that would not be valid here, or another one.
        :raises TypeError: for what is no durable session.
        """
        journal = readable(session)
        snapshot = journal.load()
        checkpoint, at = snapshot.checkpoint, snapshot.progress.since
        bodies = bodies_of(snapshot)
        history = tuple(messages_of(bodies, at))
        stored = (checkpoint.state if checkpoint else {}).get(WORKING_MEMORY_KEY)
        memory = WorkingMemory.from_stored(stored, calls_of(bodies, at))
        phase = AgentPhase(snapshot.progress.phase)
        answers = [message.content for message in history if message.role is Role.ASSISTANT]
        return cls(
            session_id=session_id or journal.session_id or uuid.uuid4().hex,
            phase=phase,
            history=history,
            memory=memory,
            iteration=checkpoint.step if checkpoint else 0,
            final_answer=answers[-1] if phase is AgentPhase.DONE and answers else None,
            error_message=(journal.error or None) if phase is AgentPhase.ERROR else None,
            created_at=at,
            updated_at=at,
        )

    def to_planning(self, message: str | None = None, *, clock: Clock = utc_now) -> Self:
        """Plan: again after reflecting, for a follow-up message, or because a person resumes after an error.

        A message joins the conversation; to an idle or done agent it is the new goal. The answer or error of the last
        turn is cleared.
        """
        now = clock()
        history, memory = self.history, self.memory
        if message is not None:
            history = (*history, Message(Role.USER, message, now))
            if self.phase in (AgentPhase.IDLE, AgentPhase.DONE):
                memory = memory.pursue(message)
        return self._to(
            AgentPhase.PLANNING, now, history=history, memory=memory, final_answer=None, error_message=None
        )

    def to_executing(self, *, clock: Clock = utc_now) -> Self:
        return self._to(AgentPhase.EXECUTING, clock())

    def to_reflecting(self, *, clock: Clock = utc_now) -> Self:
        return self._to(AgentPhase.REFLECTING, clock())

    def to_done(self, answer: str, *, clock: Clock = utc_now) -> Self:
        """The answer becomes the last message too, so that a follow-up can refer to it."""
        now = clock()
        history = (*self.history, Message(Role.ASSISTANT, answer, now))
        return self._to(AgentPhase.DONE, now, history=history, final_answer=answer)

    def to_error(self, message: str, *, clock: Clock = utc_now) -> Self:
        return self._to(AgentPhase.ERROR, clock(), error_message=message)

    def record_observation(
        self, thought: str, call: ToolCall, *more: ToolCall, clock: Clock = utc_now
    ) -> Self:
        """Add one reply of the model: its thought, the tools it called, and their results. The phase stays.

        :raises ValueError: if two of the calls have the same id.
        """
        calls = (call, *more)
        ids = [call.call_id for call in calls]
        if len(set(ids)) < len(ids):
            raise ValueError(f"Each call of one reply needs an id of its own; these are {', '.join(ids)}.")
        now = clock()
        added = (Message.asking(thought, calls, now), *(Message.answering(call, now) for call in calls))
        memory = replace(self.memory, tool_calls=(*self.memory.tool_calls, *calls))
        return self._next(now, history=self.history + added, memory=memory)

    def remember(self, memory: WorkingMemory, *, clock: Clock = utc_now) -> Self:
        """Replace the working memory: a plan made, a step completed, a note taken. The phase stays."""
        return self._next(clock(), memory=memory)

    def _to(self, phase: AgentPhase, now: datetime, **changes: Any) -> Self:
        check(self.phase, phase)
        return self._next(now, phase=phase, **changes)

    def _next(self, now: datetime, **changes: Any) -> Self:
        return replace(self, iteration=self.iteration + 1, updated_at=now, **changes)
