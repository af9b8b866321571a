"""Every action that a person can take on a session, each declared once.

From a declaration derive: who may do it, the rule that says when it is possible, its dialog with title, button and
success message, its button on the session's page, its verb on the command line, its place in the admin and among the
bulk actions. What an action does is a function in `sessions_app.actions`; the events that it writes are members of
`EventKind`, which decide how the timeline, the audit trail and the People filter show it.

CONTRIBUTING.md shows how to add one.
"""

from sessions_app.access import availability, explanations
from sessions_app.access.action import ACTIONS, Action
from sessions_app.access.availability import Rule
from sessions_app.models import EventKind, StaffPermission

__all__ = ["ACTIONS"]  # filled by what is declared here

RESUME = Action(
    key="resume",
    permission=StaffPermission.RESUME,
    rule=availability.resume,
    event=EventKind.RESUMED,
    title="Resume",
    button="Resume",
    done="Resumed.",
    label="Resume",
    command="Resume a session.",
    admin="Resume…",
    bulk=True,
    participle="resumed",
)
PAUSE = Action(
    key="pause",
    permission=StaffPermission.PAUSE,
    rule=availability.pause,
    event=EventKind.PAUSED,
    title="Pause",
    button="Pause",
    done="Paused.",
    done_asked="Asked to pause. The session stops when its current call ends.",
    label="Pause",
    explain=explanations.pause,
    command="Stop a session for now.",
    admin="Pause…",
    bulk=True,
    participle="paused",
)
REWIND = Action(
    key="rewind",
    permission=StaffPermission.REWIND,
    rule=availability.leave_from_checkpoint,
    event=EventKind.REWOUND,
    title="Rewind",
    button="Rewind",
    done="Rewound. The later steps stay readable, and you can undo the rewind.",
    label="Rewind",
)
UNDO = Action(
    key="undo",
    permission=StaffPermission.REWIND,
    rule=availability.undo,
    event=EventKind.UNDONE,
    title="Undo the rewind",
    button="Undo the rewind",
    done="Undone. The session is back where it was.",
    label="Undo",
    only_if_possible=True,
    explain=explanations.undo,
    command="Undo the last rewind.",
    doing="Undoing",
)
FORK = Action(
    key="fork",
    permission=StaffPermission.FORK,
    rule=availability.leave_from_checkpoint,
    event=EventKind.FORKED,
    title="Fork",
    button="Fork",
    done="Forked. The fork is independent of its source from here.",
    label="Fork",
)
CANCEL = Action(
    key="cancel",
    permission=StaffPermission.CANCEL,
    rule=availability.cancel,
    event=EventKind.CANCELLED,
    title="End session",
    button="End session",
    done="Ended.",
    done_asked="Asked to end. The session stops when its current call ends.",
    label="End session",
    explain=explanations.cancel,
    command="End a session's work.",
    admin="End session…",
    bulk=True,
    participle="ended",
)
MESSAGE = Action(
    key="message",
    permission=StaffPermission.MESSAGE,
    rule=availability.send_message,
    event=EventKind.MESSAGE,
    title="Send a message",
    button="Send",
    done="Sent.",
)
APPROVE = Action(
    key="approve",
    permission=StaffPermission.APPROVE,
    rule=availability.approve,
    event=EventKind.APPROVED,
    title="Approve a call",
    button="Approve",
    done="Approved. The call runs with the arguments shown.",
    done_later="Approved. The call runs with the arguments shown once {when}.",
)
REJECT = Action(
    key="reject",
    permission=StaffPermission.APPROVE,
    rule=availability.reject,
    event=EventKind.REJECTED,
    title="Reject a call",
    button="Reject",
    done="Rejected. The agent reads your message next.",
    done_later="Rejected. The agent reads your message once {when}.",
)
REUSE = Action(
    key="reuse",
    permission=StaffPermission.APPROVE,
    rule=availability.approve,
    event=EventKind.REUSED,
    title="Use the recorded result",
    button="Use the recorded result",
    done="The recorded result is used; the call does not run.",
    done_later="The recorded result is used once {when}; the call does not run.",
)
CHANGE_ARGUMENTS = Action(
    key="arguments",
    permission=StaffPermission.APPROVE,
    rule=availability.change_arguments,
    event=EventKind.ARGUMENTS_CHANGED,
    title="Change the arguments",
    button="Change the arguments",
    done="Changed. The call runs with these arguments when the session is resumed.",
    doing="Changing the arguments of a call",
)
WITHDRAW = Action(
    key="withdraw",
    permission=StaffPermission.APPROVE,
    rule=availability.always,
    event=EventKind.WITHDRAWN,
    title="Require approval again",
    button="Require approval",
    done="Approval is required again from the next step.",
    doing="Requiring approval again",
)
DECIDE = Action(
    key="decide",
    permission=StaffPermission.DECIDE,
    rule=availability.decide,
    event=EventKind.DECIDED,
    title="Decide a call in doubt",
    button="Record outcome",
    done="Decided. The session continues.",
    done_later="Decided. The session continues once {when}.",
)
SET_BREAKPOINT = Action(
    key="breakpoint",
    permission=StaffPermission.PAUSE,
    rule=availability.send_message,
    event=EventKind.BREAKPOINT_SET,
    title="Set a breakpoint",
    button="Set the breakpoint",
    done="Set. The session stops there until it is resumed.",
    doing="Setting a breakpoint",
)
REMOVE_BREAKPOINT = Action(
    key="remove-breakpoint",
    permission=StaffPermission.PAUSE,
    rule=availability.always,
    event=EventKind.BREAKPOINT_REMOVED,
    title="Remove a breakpoint",
    button="Remove the breakpoint",
    done="Removed.",
    doing="Removing a breakpoint",
)
ASSIGN = Action(
    key="assign",
    permission=StaffPermission.ASSIGN,
    rule=availability.always,
    event=EventKind.ASSIGNED,
    title="Assign",
    button="Assign",
    done="Assigned.",
    bulk=True,
    participle="assigned",
    bulk_fields=("assignee",),
)
NOTE = Action(
    key="note",
    permission=StaffPermission.MESSAGE,
    rule=availability.always,
    event=EventKind.NOTED,
    title="Add a note",
    button="Add note",
    done="Note added.",
    doing="Adding a note",
)
RELEASE = Action(
    key="release",
    permission=StaffPermission.REPAIR,
    rule=availability.release,
    event=EventKind.RELEASED,
    title="Release from its worker",
    button="Release",
    done="Released. Another worker may take it.",
    explain=explanations.release,
    admin="Release from the worker…",
    doing="Releasing a session",
)


def _repair(key: str, title: str, button: str, rule: Rule = availability.repair) -> Action:
    return Action(
        key=key,
        permission=StaffPermission.REPAIR,
        rule=rule,
        event=EventKind.REPAIRED,
        title=title,
        button=button,
        done="Repaired. The earlier history stays readable, and you can undo the repair.",
        explain=explanations.repair,
    )


EDIT_MEMORY = _repair("memory", "Change the working memory", "Change the memory", availability.repair_state)
EDIT_STATE = _repair("state-value", "Change a state value", "Change the value", availability.repair_state)
REPLACE_MESSAGE = _repair("message-text", "Correct what the model reads", "Save correction")
ANSWER_CALL = _repair("answer", "Set result or skip", "Save")
ANSWER_STEP = _repair("step", "Complete the step manually", "Mark the step as done")

EDIT_ENTRY = Action(
    key="edit-entry",
    permission=StaffPermission.MEMORY,
    rule=availability.always,
    event=EventKind.MEMORY_EDITED,
    title="Edit a memory",
    button="Save",
    done="Saved. Agents recall the new text.",
)
ERASE_ENTRY = Action(
    key="erase-entry",
    permission=StaffPermission.MEMORY,
    rule=availability.always,
    event=EventKind.MEMORY_ERASED,
    title="Erase a memory",
    button="Erase for good",
    done="Erased. Agents no longer recall it.",
    explain=explanations.erase_entry,
)
