"""Where one session is kept: opened at its next epoch for a run or a decision, and read without changing it."""

import os
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from agentstate.articles import an
from agentstate.journals import FileJournal, MemoryJournal
from agentstate.journals.file import FileStore, load
from agentstate.journals.store import Store


class Place(Protocol):
    @property
    def session_id(self) -> str:
        """The session's id."""

    def open(self) -> AbstractContextManager[MemoryJournal]:
        """The session's journal at its next epoch, for as long as the context lasts."""

    def read(self) -> Store:
        """The session as it is."""


class FilePlace:
    """A session in a file that is open only while it is used."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    @property
    def session_id(self) -> str:
        return self._path.stem

    @property
    def identity(self) -> Hashable:
        return self._path.resolve()

    def open(self) -> AbstractContextManager[MemoryJournal]:
        return FileJournal.open(self._path)

    def read(self) -> Store:
        return load(self._path) if self._path.exists() else Store(self.session_id)


class OpenedPlace:
    """A session whose journal the caller has opened, and closes."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    @property
    def session_id(self) -> str:
        return self._journal.session_id

    @property
    def identity(self) -> Hashable:
        store = self._journal.store
        return store.path.resolve() if isinstance(store, FileStore) else id(store)

    @contextmanager
    def open(self) -> Iterator[MemoryJournal]:
        self._journal = self._journal.next_epoch()
        yield self._journal

    def read(self) -> Store:
        return self._journal.store


def identity_of(place: Place) -> Hashable:
    """What two places of one session have in common, as far as that is known in this process."""
    return getattr(place, "identity", id(place))


def place_of(journal: str | os.PathLike[str] | MemoryJournal | Place) -> Place:
    """:raises TypeError: for what is neither a path nor a journal."""
    if isinstance(journal, str | os.PathLike):
        return FilePlace(journal)
    if isinstance(journal, MemoryJournal):
        return OpenedPlace(journal)
    if all(hasattr(journal, name) for name in ("session_id", "open", "read")):
        return journal
    many = hasattr(journal, "path") or hasattr(journal, "session")
    cure = " Give one session of it: folder.path(id), or sessions.session(id)." if many else ""
    raise TypeError(
        f"A DurableAgent needs a journal, or the path of its file as a text or Path, not {an(journal)}.{cure}"
    )
