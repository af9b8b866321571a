"""Every write that a person can ask for: one action, one function.

Each is one transaction with its audit event in it, and wakes a worker once it is committed. All take keywords only:
the `actor`, the `session_id`, a `reason`, and optionally the `expected_version` of the session that the person saw.
They return the session as it is then, or raise one of `sessions_app.access.errors` and change nothing.
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
