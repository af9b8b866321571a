"""Many sessions in one folder, one file each.

sessions = SessionFolder("sessions")
shop = DurableAgent(agent, sessions.path("anna"))
"""

import os
from pathlib import Path

from agentstate.domain.state import check_session_id
from agentstate.journals.file import FileJournal, load
from agentstate.journals.store import Record, Store

SUFFIX = ".jsonl"


class SessionFolder:
    """The sessions in a folder, which is made with the first of them and may be read by its owner only."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def path(self, session_id: str) -> Path:
        """The session's file, which need not exist.

        :raises ValueError: for an id that could name a file elsewhere.
        """
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._path / f"{check_session_id(session_id)}{SUFFIX}"

    def ids(self) -> list[str]:
        """The ids of the sessions, sorted."""
        return sorted(path.stem for path in self._path.glob(f"*{SUFFIX}"))

    def open(self, session_id: str, *, say: str = "", inputs: Record | None = None) -> FileJournal:
        """The session's journal at its next epoch; a new session if there is none.

        :raises JournalFileError: for a file that cannot be used.
        """
        return FileJournal.open(self.path(session_id), say=say, inputs=inputs)

    def load(self, session_id: str) -> Store:
        """The session as it is; another process may be running it.

        :raises JournalFileError: for a session that is not there.
        """
        return load(self.path(session_id))
