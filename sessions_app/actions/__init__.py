"""Every write that a person can request: one action, one function.

All take keywords only, and refuse an `actor` that is no `Actor` with a TypeError. Each write is one transaction; if it
raises one of `sessions_app.access.errors`, nothing has changed.

An action on a session takes the `actor` and the `session_id`, and returns the session as it is then; `start` makes the
session, and `fork` returns the new one. Its audit event is in its transaction. A worker is woken after the commit if
the action made the session due; to pause or assign it, or to add a note, wakes nobody. A `reason` is required or
optional, as the action says; a note has only its text. All but `start`, `note` and `reveal` take an `expected_version`,
the version of the session that the person saw. `start`, `send_message` and `note` take a `request_id`: a
request that comes twice is carried out once.

Views and bulk actions are no actions on a session, and write no audit event: `save_view`, `delete_view`, `bulk_start`,
`bulk_stop`. `bulk_start` wakes a worker, which does the action to each session, with the event of that.
`bulk_chosen`, `bulk_fitting` and `bulk_estimate` only read.
"""

from sessions_app.actions.approvals import approve, reject, reuse, withdraw
from sessions_app.actions.base import BY_FIELDS, BY_REASON
from sessions_app.actions.breakpoints import change_arguments, remove_breakpoint, set_breakpoint
from sessions_app.actions.bulk import bulk_chosen, bulk_estimate, bulk_fitting, bulk_start, bulk_stop
from sessions_app.actions.domain_state import write_state
from sessions_app.actions.doubts import decide, decide_all
from sessions_app.actions.fork import fork
from sessions_app.actions.history import rewind, undo
from sessions_app.actions.memory_entries import edit_entry, erase_entry
from sessions_app.actions.messages import send_message, start
from sessions_app.actions.notes import note, reveal
from sessions_app.actions.repair import answer_call, answer_step, edit_memory, edit_state, replace_message
from sessions_app.actions.saved_views import delete_view, save_view
from sessions_app.actions.steer import assign, cancel, pause, release, resume, resume_as_shown
