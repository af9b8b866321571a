"""What each action answers in each state of a session, where it is offered and who may do it, written down by hand.

An answer is the sentence of the refusal, or "" where the action is possible.

`tests.builders.STATES` names the states. A state that is not listed for an action allows it. The rows that an action is
about (a call, an approval, a checkpoint) are not looked at here; `tests/test_availability.py` has those.
"""

NOT_WAITING = "It is not waiting for a decision."
CANCELLED = "It was cancelled. Rewind or fork it to continue."
PAUSE_FIRST = "It is running: pause it first."

_ANSWERS = {
    "queued": NOT_WAITING,
    "retrying": NOT_WAITING,
    "running": NOT_WAITING,
    "pausing": NOT_WAITING,
    "cancelling": NOT_WAITING,
    "lost": NOT_WAITING,
    "cancelled": CANCELLED,
    "done": NOT_WAITING,
    "failed": NOT_WAITING,
}
_REPAIRS = {
    "running": PAUSE_FIRST,
    "pausing": PAUSE_FIRST,
    "cancelling": PAUSE_FIRST,
    "lost": PAUSE_FIRST,
    "cancelled": CANCELLED,
}

_NOT_AT_BREAKPOINT = dict.fromkeys(
    (
        "queued", "retrying", "running", "pausing", "cancelling", "lost", "waiting_for_approval", "in_doubt",
        "retries_used_up", "changed", "paused", "cancelled", "done", "failed", "rewound", "forked",
    ),
    "It is not stopped at a breakpoint before a tool.",
)  # fmt: skip

REFUSALS: dict[str, dict[str, str]] = {
    "resume": {
        "queued": "It is already queued and starts as soon as a worker is free.",
        "running": "It is already running.",
        "cancelling": "It is being cancelled.",
        "lost": "It is already running.",
        "waiting_for_approval": "It waits for an approval: approve or reject the call first.",
        "in_doubt": "It waits for a decision on a call in doubt: decide it first.",
        "cancelled": CANCELLED,
        "done": "It has finished. Send it a message to continue.",
    },
    "pause": {
        "pausing": "It is already pausing: it stops when the current call ends.",
        "cancelling": "It is being cancelled.",
        "waiting_for_approval": "It is already waiting for a person.",
        "in_doubt": "It is already waiting for a person.",
        "retries_used_up": "It is already waiting for a person.",
        "changed": "It is already waiting for a person.",
        "paused": "It is already paused.",
        "cancelled": "It was cancelled.",
        "done": "It is not running.",
        "failed": "It is not running.",
        "rewound": "It is already paused.",
        "forked": "It is already paused.",
    },
    "rewind": {},
    "undo": {
        "queued": "There is no rewind to undo.",
        "retrying": "There is no rewind to undo.",
        "running": "There is no rewind to undo.",
        "pausing": "There is no rewind to undo.",
        "cancelling": "There is no rewind to undo.",
        "lost": "There is no rewind to undo.",
        "waiting_for_approval": "There is no rewind to undo.",
        "in_doubt": "There is no rewind to undo.",
        "retries_used_up": "There is no rewind to undo.",
        "changed": "There is no rewind to undo.",
        "paused": "There is no rewind to undo.",
        "cancelled": "There is no rewind to undo.",
        "done": "There is no rewind to undo.",
        "failed": "There is no rewind to undo.",
        "forked": "There is no rewind to undo.",
    },
    "fork": {},
    "cancel": {
        "cancelling": "It is already being cancelled.",
        "cancelled": "It was already cancelled.",
        "done": "It has finished; there is nothing to end.",
    },
    "message": {"cancelling": "It is being cancelled.", "cancelled": CANCELLED},
    "breakpoint": {"cancelling": "It is being cancelled.", "cancelled": CANCELLED},
    "remove-breakpoint": {},
    "arguments": _NOT_AT_BREAKPOINT,
    "approve": _ANSWERS,
    "reject": _ANSWERS,
    "reuse": _ANSWERS,
    "withdraw": {},
    "decide": _ANSWERS,
    "assign": {},
    "note": {},
    "edit-entry": {},
    "erase-entry": {},
    "release": {
        "queued": "No worker is running it.",
        "retrying": "No worker is running it.",
        "waiting_for_approval": "No worker is running it.",
        "in_doubt": "No worker is running it.",
        "retries_used_up": "No worker is running it.",
        "changed": "No worker is running it.",
        "paused": "No worker is running it.",
        "cancelled": "No worker is running it.",
        "done": "No worker is running it.",
        "failed": "No worker is running it.",
        "rewound": "No worker is running it.",
        "forked": "No worker is running it.",
    },
    "memory": _REPAIRS,
    "state-value": _REPAIRS,
    "message-text": _REPAIRS,
    "answer": _REPAIRS,
    "step": _REPAIRS,
}

_ANSWERABLE = {
    "waiting_for_approval",
    "in_doubt",
    "retries_used_up",
    "changed",
    "paused",
    "rewound",
    "forked",
}
# Where an agent cannot run, these are refused in these states too.
NEEDS_AGENT: dict[str, set[str]] = {
    "resume": {"retrying", "retries_used_up", "changed", "paused", "failed", "rewound", "forked"},
    "approve": _ANSWERABLE,
    "reuse": _ANSWERABLE,
}

PERMISSIONS: dict[str, str] = {
    "resume": "resume_session",
    "pause": "pause_session",
    "rewind": "rewind_session",
    "undo": "rewind_session",
    "fork": "fork_session",
    "cancel": "cancel_session",
    "message": "message_session",
    "approve": "approve_call",
    "reject": "approve_call",
    "reuse": "approve_call",
    "withdraw": "approve_call",
    "decide": "decide_call",
    "breakpoint": "pause_session",
    "remove-breakpoint": "pause_session",
    "arguments": "approve_call",
    "assign": "assign_session",
    "note": "message_session",
    "edit-entry": "edit_memory",
    "erase-entry": "edit_memory",
    "release": "repair_session",
    "memory": "repair_session",
    "state-value": "repair_session",
    "message-text": "repair_session",
    "answer": "repair_session",
    "step": "repair_session",
}


# Where each action is offered: its label on the session's page, a verb on the command line, its label in the
# admin, among the bulk actions; and its event.
OFFERED: dict[str, tuple[str, bool, str, bool, str]] = {
    "resume": ("Resume", True, "Resume…", True, "resumed"),
    "pause": ("Pause", True, "Pause…", True, "paused"),
    "rewind": ("Rewind", False, "", False, "rewound"),
    "undo": ("Undo", True, "", False, "undone"),
    "fork": ("Fork", False, "", False, "forked"),
    "cancel": ("End session", True, "End session…", True, "cancelled"),
    "message": ("", False, "", False, "message"),
    "approve": ("", False, "", False, "approved"),
    "reject": ("", False, "", False, "rejected"),
    "reuse": ("", False, "", False, "reused"),
    "arguments": ("", False, "", False, "arguments_changed"),
    "withdraw": ("", False, "", False, "withdrawn"),
    "decide": ("", False, "", False, "decided"),
    "breakpoint": ("", False, "", False, "breakpoint_set"),
    "remove-breakpoint": ("", False, "", False, "breakpoint_removed"),
    "assign": ("", False, "", True, "assigned"),
    "note": ("", False, "", False, "noted"),
    "edit-entry": ("", False, "", False, "memory_edited"),
    "erase-entry": ("", False, "", False, "memory_erased"),
    "release": ("", False, "Release from the worker…", False, "released"),
    "memory": ("", False, "", False, "repaired"),
    "state-value": ("", False, "", False, "repaired"),
    "message-text": ("", False, "", False, "repaired"),
    "answer": ("", False, "", False, "repaired"),
    "step": ("", False, "", False, "repaired"),
}
# Every permission that staff can have. A supervisor has all of them, an operator all but those that follow.
EVERYTHING = {
    "view_session",
    "start_session",
    "message_session",
    "pause_session",
    "resume_session",
    "cancel_session",
    "rewind_session",
    "fork_session",
    "approve_call",
    "decide_call",
    "assign_session",
    "share_view",
    "repair_session",
    "edit_memory",
    "reveal_values",
}
SUPERVISING = {"repair_session", "edit_memory", "reveal_values"}


def refusal(action: str, state: str) -> str:
    return REFUSALS[action].get(state, "")
