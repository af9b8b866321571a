"""The verbs of `manage.py agent` for the long-term memory: listing its entries, editing and erasing one."""

from collections.abc import Callable
from typing import Any

from django.core.management import CommandParser

from agentstate.durable.long_term import MOST_ENTRIES
from sessions_app import actions
from sessions_app.action_list import EDIT_ENTRY, ERASE_ENTRY
from sessions_app.history.memory_entries import discarded_among, entries_about
from sessions_app.models import Session

COLUMNS = ("entry", "learned from", "branch", "text")


def add_verbs(steering: Callable[[str, Callable[..., Session], str], CommandParser]) -> None:
    """
    :param steering: Adds a verb on a session, with its reason.
    """
    edit = steering(EDIT_ENTRY.key, actions.edit_entry, "Edit an entry of the long-term memory.")
    _add_entry(edit)
    edit.add_argument("text", help="what is remembered from now on")
    _add_entry(steering(ERASE_ENTRY.key, actions.erase_entry, "Erase an entry of the long-term memory."))


def rows(session: Session) -> list[list[Any]]:
    """The newest entries about the session's customer, by `COLUMNS`."""
    entries = list(entries_about(session)[:MOST_ENTRIES])
    discarded = discarded_among(entries)
    return [
        [str(entry.pk), str(entry.session_id), "discarded" if entry.pk in discarded else "", entry.text]
        for entry in entries
    ]


def _add_entry(parser: CommandParser) -> None:
    parser.add_argument("entry_id", metavar="ENTRY", type=int, help="the entry's number, see `agent memory`")
