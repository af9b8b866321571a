"""The journal port's adapters that need no Django."""

from agentstate.journals.file import FileJournal
from agentstate.journals.memory import MemoryJournal

__all__ = ["FileJournal", "MemoryJournal"]
