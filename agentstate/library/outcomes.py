"""How a run of a `DurableAgent` ended: with an answer, or with the reason why there is none yet.

Each outcome is a type. Only `Answered` has a result: asking another one for it raises `TurnUnfinished`, which says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal, NoReturn

from agentstate.durable.breakpoints import Before, Breakpoint
from agentstate.names import Need

Json = Any


class TurnUnfinished(Exception):
    """There is no answer yet. The message says why; `outcome` holds the details."""

    def __init__(self, outcome: "Unfinished") -> None:
        super().__init__(outcome.why)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A tool call about which a person has to decide.

    :param waits_for: "approval"; "doubt": it was started, and may or may not have taken effect; or "breakpoint": it
        runs when the session is resumed, and may be decided about before.
    :param effect: What its policy says that it changes.
    :param from_state: What the tool would be given from the State besides, as plain JSON; of a large value the
        beginning. An argument for which the State has no value is not among them.
    """

    call_id: str
    tool: str
    arguments: dict[str, Json]
    waits_for: Literal["approval", "doubt", "breakpoint"]
    effect: str = ""
    from_state: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answered:
    """The turn has ended. `result` is what `Agent.run` returns."""

    finished: ClassVar[bool] = True
    result: dict[str, Any]

    @property
    def text(self) -> str:
        """The text of the last message; "" where it has none."""
        message = self.result.get("last_message")
        return (message.text if message is not None else None) or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """The turn has no answer. Only the types below are used.

    :param accepted: Whether the messages that were given are part of the session. They are not where an earlier turn
        has to end first: give them again once it has.
    """

    finished: ClassVar[bool] = False
    why: str
    accepted: bool = True

    @property
    def result(self) -> NoReturn:
        """:raises TurnUnfinished: always."""
        raise TurnUnfinished(self)

    @property
    def text(self) -> NoReturn:
        """:raises TurnUnfinished: always."""
        raise TurnUnfinished(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Unfinished):
    """A person is needed.

    :param waiting_for: "approval" or "doubt": decide about the `pending` calls, then resume. "changed": the agent is
        not the one that began the turn; resume to continue with it. "retries": the model failed too often; resume to
        try again.
    """

    waiting_for: Need
    pending: Sequence[PendingCall] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AtBreakpoint(Unfinished):
    """A breakpoint stopped the session: only resuming it goes on.

    :param before: "model": `DurableAgent.resume(changes=...)` may change the state and the messages. "tools":
        `DurableAgent.decide` may change the arguments of the `pending` calls.
    :param pending: The calls that have met a breakpoint. The other calls of the step wait with them.
    """

    before: Before
    breakpoints: Sequence[Breakpoint]
    pending: Sequence[PendingCall] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAt(Unfinished):
    """The model failed in a way that may pass: resume, or run again, at the time `at`."""

    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Unfinished):
    """The turn failed with the error `why`. Resume to try it again; to run it again repeats no call by itself."""


Outcome = Answered | Waiting | AtBreakpoint | RetryAt | Failed
