"""A journal in one JSON file, for durable agents without a database.

The file is JSON Lines: one record a line, appended and flushed to disk before the call returns, so that a step
costs what it adds. A missing file is a new session; a last line torn by a crash was never committed and is cut off.
One process at a time may have the file open: a second one is told so.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, TextIO

from agentstate.journals.memory import MemoryJournal, Record, Store, _opened

FORMAT = 1


class JournalFileError(Exception):
    """A file that is no journal, is of a newer format, or is in use. The message says what to do."""


class FileStore(Store):
    def __init__(self, path: Path, file: TextIO) -> None:
        super().__init__(path.stem)
        self.path = path
        self._file = file

    def write(self, record: Record) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._apply(record)

    def _apply_format(self, record: Record) -> None:
        if record.get("version") != FORMAT:
            raise JournalFileError(
                f"{self.path} is a journal of version {record.get('version')}; this program reads {FORMAT}. "
                "Update AgentState."
            )

    def close(self) -> None:
        with self.lock:
            self.epoch += 1  # whoever still runs on it in this process has lost it
            self._file.close()


class FileJournal(MemoryJournal):
    """`FileJournal.open(path)` opens or makes the session in `path` at its next epoch.

    Use it as a context manager, or `close` it.
    """

    store: FileStore

    @classmethod
    def open(  # type: ignore[override]
        cls, path: str | os.PathLike[str], *, say: str = "", inputs: Record | None = None
    ) -> "FileJournal":
        """:raises JournalFileError: for a file that cannot be used."""
        place = Path(path)
        file = _locked(place)
        try:
            store = _read(place, file)
        except BaseException:
            file.close()
            raise
        return cls(store, _opened(store, say, inputs))

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> "FileJournal":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _locked(path: Path) -> TextIO:
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise JournalFileError(
            f"{path} is in use by another process. Wait for it to end, or use another file."
        ) from None
    os.chmod(path, 0o600)
    return file


def _read(path: Path, file: TextIO) -> FileStore:
    store = FileStore(path, file)
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    lines = data[:whole].splitlines()
    for number, line in enumerate(lines, 1):
        record = _record(path, number, line)
        if number == 1 and record.get("op") != "format":
            raise JournalFileError(f"{path} is not a journal of AgentState. Name another file.")
        store._apply(record)
    if not lines:
        store.write({"op": "format", "version": FORMAT})
    return store


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise JournalFileError(
            f"{path}, line {number}: this is not a record of a journal. Name another file, or restore it."
        )
    return record
