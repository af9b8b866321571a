"""The closed lists that the audit trail and the roles draw from: kinds of events, roles, and permissions of staff.

The values are stored, so a member may be added but never renamed or removed.
"""

from enum import StrEnum
from typing import Any

from agentstate.names import RunEvent


class EventKind(StrEnum):
    """What was done to a session. ``by_person`` says that a person did it, or that it carries out what one asked for.

    ``sentence`` is read after the actor's name where a person acted, and by itself where the system did.
    ``{tool}`` in it is the tool of the call that the event is about, ``{assignee}`` the person who got the session.
    """

    by_person: bool
    sentence: str

    def __new__(cls, value: str, by_person: bool = False, sentence: str = "") -> "EventKind":
        member = str.__new__(cls, value)
        member._value_ = value
        member.by_person = by_person
        member.sentence = sentence
        return member

    STARTED = "started", True, "started it"
    MESSAGE = "message", True, "sent a message"
    PAUSED = RunEvent.PAUSED, True, "paused it"
    RESUMED = "resumed", True, "resumed it"
    CANCELLED = RunEvent.CANCELLED, True, "cancelled it"
    STOP_REQUESTED = "stop_requested", True, "asked it to stop"
    REWOUND = "rewound", True, "rewound it"
    # So of an event of an earlier version, which did not record what was undone.
    UNDONE = "undone", True, "returned to the earlier history"
    FORKED = "forked", True, "forked it"
    APPROVED = "approved", True, "approved {tool}"
    REJECTED = "rejected", True, "rejected {tool}"
    REUSED = "reused", True, "answered {tool} with the recorded result"
    WITHDRAWN = "withdrawn", True, "required approval of {tool} again"
    DECIDED = "decided", True, "decided {tool}"
    ASSIGNED = "assigned", True, "assigned it to {assignee}"
    NOTED = "noted", True, "noted"
    REPAIRED = "repaired", True, "repaired it"
    RELEASED = "released", True, "released it from its worker"
    REVEALED = "revealed", True, "revealed masked values"

    BREAKPOINT_SET = "breakpoint_set", True, "set a breakpoint"
    BREAKPOINT_REMOVED = "breakpoint_removed", True, "removed a breakpoint"
    ARGUMENTS_CHANGED = "arguments_changed", True, "changed the arguments of {tool}"
    MEMORY_EDITED = "memory_edited", True, "edited an entry of the long-term memory"
    MEMORY_ERASED = "memory_erased", True, "erased an entry of the long-term memory"

    ASKED = RunEvent.ASKED, False, "Approval requested"
    IN_DOUBT = RunEvent.IN_DOUBT, False, "In doubt"
    CHANGED = RunEvent.CHANGED, False, "The agent's definition changed"
    BREAKPOINT = RunEvent.BREAKPOINT, False, "Stopped at a breakpoint"
    RETRY = RunEvent.RETRY, False, "Retry scheduled"
    GAVE_UP = RunEvent.GAVE_UP, False, "Gave up after repeated attempts"
    FAILED = RunEvent.FAILED, False, "The run failed"
    FINISHED = RunEvent.FINISHED, False, "Finished"
    LOST = RunEvent.LOST, False, "The worker was lost; another continues"
    NOT_STORED = RunEvent.NOT_STORED, False, "A state value could not be stored"
    EXPIRED = RunEvent.EXPIRED, False, "Approval of {tool} expired"


class Role(StrEnum):
    """The roles of staff, from the lowest to the highest: each has the permissions of those before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    SUPERVISOR = "supervisor"


class StaffPermission(StrEnum):
    """A Django permission of this app, by its code name. ``role`` is the lowest role that has it.

    ``doing`` is what it permits, as the subject of the sentence that refuses it: "Editing needs the supervisor role."
    """

    role: Role
    text: str
    doing: str

    def __new__(
        cls, value: str, role: Role = Role.SUPERVISOR, text: str = "", doing: str = "This"
    ) -> "StaffPermission":
        member = str.__new__(cls, value)
        member._value_ = value
        member.role = role
        member.text = text
        member.doing = doing
        return member

    # Django makes this one for every model; the others are listed in `Session.Meta.permissions`.
    VIEW = "view_session", Role.VIEWER, "Can view session", "Seeing sessions"
    START = "start_session", Role.OPERATOR, "Can start a session", "Starting a session"
    MESSAGE = "message_session", Role.OPERATOR, "Can send a message to the agent", "Sending a message"
    PAUSE = "pause_session", Role.OPERATOR, "Can pause a session", "Pausing"
    RESUME = "resume_session", Role.OPERATOR, "Can resume a session", "Resuming"
    CANCEL = "cancel_session", Role.OPERATOR, "Can cancel a session", "Ending a session"
    REWIND = "rewind_session", Role.OPERATOR, "Can rewind a session and undo it", "Rewinding"
    FORK = "fork_session", Role.OPERATOR, "Can fork a session", "Forking"
    APPROVE = "approve_call", Role.OPERATOR, "Can approve or reject a tool call", "Deciding an approval"
    DECIDE = "decide_call", Role.OPERATOR, "Can decide a tool call in doubt", "Deciding a call in doubt"
    ASSIGN = "assign_session", Role.OPERATOR, "Can assign a session", "Assigning"
    SHARE_VIEW = "share_view", Role.OPERATOR, "Can share a saved view", "Sharing a view"
    REPAIR = "repair_session", Role.SUPERVISOR, "Can repair a session's state", "Editing"
    MEMORY = (
        "edit_memory",
        Role.SUPERVISOR,
        "Can edit and erase the long-term memory",
        "Editing the long-term memory",
    )
    REVEAL = "reveal_values", Role.SUPERVISOR, "Can see masked values", "Seeing masked values"

    @classmethod
    def declared(cls) -> list[tuple[str, Any]]:
        """``(code name, text)`` of those that Django does not make by itself."""
        return [(permission.value, permission.text) for permission in cls if permission is not cls.VIEW]
