"""The journal port's adapters that need no Django, and what reads a session without running it."""

from agentstate.journals.file import FileJournal, load
from agentstate.journals.folder import SessionFolder
from agentstate.journals.long_term import MemoryFile
from agentstate.journals.memory import MemoryJournal
from agentstate.journals.show import show

__all__ = ["FileJournal", "MemoryFile", "MemoryJournal", "SessionFolder", "load", "show"]
