"""Names in stored data that both the engine and the web processes read, each defined once.

Pure Python, and imports nothing of this project: every other package may import it. The values are in databases and
journal files, so a name may be added but never changed or given another meaning.
"""

from enum import StrEnum
from typing import Final

TYPE_TAG: Final = "$type"
"""The key that marks an encoded value which is not plain JSON: ``{"$type": name, "value": ...}``."""

OUTPUTS_TAG: Final = "outputs"
"""The tag of a tool's result that could not be stored as it is, with what the model was shown of it as ``outputs``."""

STAND_IN_TAG: Final = "stand_in"
"""The tag of plain data, or of a text, stored in the place of a value whose type cannot be; ``of`` is its name."""

CHANGED_TEXT: Final = "str"
"""Among the types of which a tool returned what cannot be stored: texts do, but for a character, which was replaced."""

PROMPT_PLACES: Final = "prompt_places"
"""The key among a checkpoint's counters that says where the agent's own prompt stands in the conversation."""

WORKING_MEMORY_KEY: Final = "working_memory"
"""The state key in which an agent keeps its working memory."""

MEMORY_TOOLS: Final = ("make_plan", "complete_step", "take_note")
"""The tools of `agentstate.durable.memory`. An agent that has one of them keeps a working memory."""

AGENT_GENERATOR: Final = "agent"
"""The name under which the replies of the agent's own chat generator are recorded."""

SCRIPTED_MODEL: Final = "scripted demo model"
"""The name of the model that the demo agents talk to where there is no real one."""

LATE: Final = "did not answer within"
"""Behind the name of a tool, what the reason of a session in doubt says of a call that took longer than its limit."""

DEMO_WORKER: Final = "demo"
"""The name of the worker that runs the sessions of the demo while they are made."""


class SessionStatus(StrEnum):
    """What the system does with a session."""

    IDLE = "idle"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class Need(StrEnum):
    """What a waiting session needs from a person. One that does not wait has "" in its place."""

    APPROVAL = "approval"
    DOUBT = "doubt"
    RETRIES = "retries"
    CHANGED = "changed"


class CallState(StrEnum):
    """The state of a tool call."""

    PLANNED = "planned"
    STARTED = "started"
    DOUBT = "doubt"
    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    SKIPPED = "skipped"


ENDED_CALL_STATES: Final = (CallState.DONE, CallState.FAILED, CallState.REJECTED, CallState.SKIPPED)
"""The states of a tool call that has ended. Such a call never runs again and is never changed."""

FAILED_CALL_STATES: Final = (CallState.FAILED, CallState.REJECTED)
"""The states of a tool call that has ended without a result."""

OPEN_CALL_STATES: Final = (CallState.PLANNED, CallState.STARTED, CallState.DOUBT)
"""The states of a tool call that has not ended."""


class Decision(StrEnum):
    """The answer to an approval request. An open request has "" in its place."""

    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    REUSED = "reused"


class CheckpointKind(StrEnum):
    """What a checkpoint is taken at. `PREPARED` is inside a step: what hooks before the model made of the context."""

    START = "start"
    STEP = "step"
    PREPARED = "prepared"
    END = "end"


STEP_KINDS: Final = (CheckpointKind.START, CheckpointKind.STEP)
"""The kinds of checkpoints with which a step begins: the first of a turn, and each later one."""

STEP_END_KINDS: Final = (CheckpointKind.STEP, CheckpointKind.END)
"""The kinds of checkpoints with which a step ends: each but the last of a turn, and the last."""


STOP_REQUESTS: Final = {"pause": SessionStatus.PAUSED, "cancel": SessionStatus.CANCELLED}
"""What a person can request of a running session, each with the status that the session gets when its run obeys."""


class RunEvent:
    """The kinds of the events that a run, or the sweep in place of a lost worker, adds to the audit trail."""

    ASKED: Final = "asked"
    BREAKPOINT: Final = "breakpoint"
    CANCELLED: Final = "cancelled"
    CHANGED: Final = "changed"
    EXPIRED: Final = "expired"
    FAILED: Final = "failed"
    FINISHED: Final = "finished"
    GAVE_UP: Final = "gave_up"
    IN_DOUBT: Final = "in_doubt"
    LOST: Final = "lost"
    NOT_STORED: Final = "not_stored"
    PAUSED: Final = "paused"
    RETRY: Final = "retry"


# A message that staff sent as the user begins with this, so that the model knows.
STAFF_NOTE = "[Note from staff, not from the customer]"
