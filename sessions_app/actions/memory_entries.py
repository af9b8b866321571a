"""Editing and erasing what agents remember: an action on the session from which the entry was learned.

The event names the entry by its number only, never its text: what was erased is in no row of this desk, except in the
history of the session, which shows the call that remembered it. A hash is kept of it, by which that call knows it.
"""

from uuid import UUID

from django.utils import timezone

from agentstate.durable.long_term import LONGEST_ENTRY
from sessions_app.access.action import Action
from sessions_app.access.errors import Invalid, NotFound
from sessions_app.access.roles import Actor
from sessions_app.action_list import EDIT_ENTRY, ERASE_ENTRY
from sessions_app.actions.base import (
    check,
    commit,
    in_one_transaction,
    lock,
    require,
    required_reason,
    required_text,
)
from sessions_app.models import ErasedEntry, MemoryEntry, Session


@in_one_transaction
def edit_entry(
    *,
    actor: Actor,
    session_id: UUID | str,
    entry_id: int,
    text: str,
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Put another text in place of the entry's. A worker embeds it when it is next compared.

    :raises Invalid: if nothing was changed.
    """
    require(actor, EDIT_ENTRY)
    text = required_text("The memory", text, LONGEST_ENTRY)
    session, reason = _begin(EDIT_ENTRY, session_id, reason, expected_version)
    entry = _entry(session, entry_id)
    if entry.text.strip() == text:
        raise Invalid("Nothing was changed.")
    entry.text, entry.edited_at = text, timezone.now()
    entry.vector, entry.embedder = None, ""
    entry.save()
    return commit(session, EDIT_ENTRY.event, actor, reason, {"entry": entry_id})


@in_one_transaction
def erase_entry(
    *,
    actor: Actor,
    session_id: UUID | str,
    entry_id: int,
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Delete the entry with its vector. A call that runs again does not store it again."""
    require(actor, ERASE_ENTRY)
    session, reason = _begin(ERASE_ENTRY, session_id, reason, expected_version)
    entry = _entry(session, entry_id)
    entry.delete()
    ErasedEntry.objects.get_or_create(key=entry.key, defaults={"session": session})
    return commit(session, ERASE_ENTRY.event, actor, reason, {"entry": entry_id})


def _begin(
    action: Action, session_id: UUID | str, reason: str, expected_version: int | None
) -> tuple[Session, str]:
    reason = required_reason(reason)
    session = lock(session_id, expected_version)
    check(session, action)
    return session, reason


def _entry(session: Session, entry_id: int) -> MemoryEntry:
    entry = MemoryEntry.objects.filter(pk=entry_id, session=session).first()
    if entry is None:
        raise NotFound(f"There is no entry {entry_id} that was learned from this session.")
    return entry
