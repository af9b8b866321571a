"""The admin for stuck sessions: find them, see what the system did with them, and act on them.

Nothing is edited here. What changes a session is one of the actions, with a reason and an audit event, as on the
desk. The admin shows none of the values of a conversation, masked or not: each page links to the desk, which hides what
is configured and records who looks. So every page names the fields that it shows, and can be searched and filtered by
nothing else. Lists never count a big table.
"""

from sessions_app.admin.rows import (
    CheckpointAdmin,
    EventAdmin,
    MessageAdmin,
    ModelCallAdmin,
    RegisteredAgentAdmin,
    ToolCallAdmin,
    WorkerAdmin,
)
from sessions_app.admin.sessions import SessionAdmin

__all__ = [
    "CheckpointAdmin",
    "EventAdmin",
    "MessageAdmin",
    "ModelCallAdmin",
    "RegisteredAgentAdmin",
    "SessionAdmin",
    "ToolCallAdmin",
    "WorkerAdmin",
]
