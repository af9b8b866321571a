"""The stored data in the ORM: a session, its branches, and their append-only rows.

Rows (messages, model calls, tool calls, checkpoints, events) carry a ``position`` from their session's
counter. They are inserted once; only a tool call is updated, while it runs, and never after it ended.
"""

from sessions_app.models.agent import (
    AgentDefinition,
    LossyResult,
    RegisteredAgent,
    had_by_workers,
    policies_of,
)
from sessions_app.models.approval import Approval
from sessions_app.models.branch import Branch, newest_number, next_number
from sessions_app.models.checkpoint import Checkpoint, StateValue
from sessions_app.models.demo_user import DemoUser
from sessions_app.models.desk import (
    Allowance,
    BulkAction,
    BulkItem,
    HandledRequest,
    SavedView,
    allowances_of,
    pre_approved_tools,
)
from sessions_app.models.enums import EventKind, Role, StaffPermission
from sessions_app.models.event import Event, insert_events, record_event, record_next_event, unsaved_event
from sessions_app.models.memory import ErasedEntry, MemoryEntry
from sessions_app.models.message import InboxMessage, Message, unread_messages
from sessions_app.models.modelcall import ModelCall
from sessions_app.models.semantic import ReusableReply
from sessions_app.models.session import Session, resting_fields
from sessions_app.models.shown_name import ShownName
from sessions_app.models.similar import SessionDigest, SessionWord, SimilarSession
from sessions_app.models.states import STOPPED, Phase, Status, StopRequest, WaitingFor
from sessions_app.models.tag import SessionTag
from sessions_app.models.toolcall import CallStatus, ToolCall
from sessions_app.models.toolresult import ToolResult
from sessions_app.models.worker import Worker, online_since

__all__ = [
    "STOPPED",
    "AgentDefinition",
    "Allowance",
    "Approval",
    "Branch",
    "BulkAction",
    "BulkItem",
    "CallStatus",
    "Checkpoint",
    "DemoUser",
    "ErasedEntry",
    "Event",
    "EventKind",
    "HandledRequest",
    "InboxMessage",
    "LossyResult",
    "MemoryEntry",
    "Message",
    "ModelCall",
    "Phase",
    "RegisteredAgent",
    "ReusableReply",
    "Role",
    "SavedView",
    "Session",
    "SessionDigest",
    "SessionTag",
    "SessionWord",
    "ShownName",
    "SimilarSession",
    "StaffPermission",
    "StateValue",
    "Status",
    "StopRequest",
    "ToolCall",
    "ToolResult",
    "WaitingFor",
    "Worker",
    "allowances_of",
    "had_by_workers",
    "insert_events",
    "newest_number",
    "next_number",
    "online_since",
    "policies_of",
    "pre_approved_tools",
    "record_event",
    "record_next_event",
    "resting_fields",
    "unread_messages",
    "unsaved_event",
]
