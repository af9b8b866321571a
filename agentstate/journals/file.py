"""A journal in one JSON file, for durable agents without a database.

The file is JSON Lines: one record a line, appended and flushed to disk before the call returns, so that a step
costs what it adds. A missing file is a new session; a last line torn by a crash was never committed and is cut off.
One process at a time may have the file open: a second one is told so. No file but a journal is ever changed.
"""

import fcntl
import json
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from agentstate.durable.port import JournalUnavailable
from agentstate.journals.memory import MemoryJournal
from agentstate.journals.store import Record, Store, opened

FORMAT = 1


class JournalFileError(Exception):
    """A file that is no journal, is of a newer format, or is in use. The message says what to do."""


class FileStore(Store):
    def __init__(self, path: Path, file: FileIO) -> None:
        super().__init__(path.stem)
        self.path = path
        self._file = file

    def write(self, record: Record) -> None:
        """:raises JournalUnavailable: if the file cannot be written; it is left without the record."""
        end = self._file.seek(0, os.SEEK_END)
        try:
            left = memoryview(_line(record))
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self.epoch += 1  # what runs on it stops here: what it did since is not on record
            with suppress(OSError):
                self._file.truncate(end)
            raise JournalUnavailable(f"{self.path} cannot be written: {error}") from error
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
            return cls(store, opened(store, say, inputs))
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> "FileJournal":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _locked(path: Path) -> FileIO:
    try:
        # Unbuffered: what was written is in the file, or an error.
        file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "a+")
    except OSError as error:
        raise JournalFileError(f"{path} cannot be opened: {error.strerror}.") from error
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise JournalFileError(
            f"{path} is in use by another process. Wait for it to end, or use another file."
        ) from None
    return file


def _read(path: Path, file: FileIO) -> FileStore:
    store = FileStore(path, file)
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    head = _line({"op": "format", "version": FORMAT})
    if whole == 0 and not head.startswith(data):
        raise _no_journal(path)
    for number, line in enumerate(data[:whole].split(b"\n")[:-1], 1):
        record = _record(path, number, line)
        if number == 1 and record.get("op") != "format":
            raise _no_journal(path)
        try:
            store._apply(record)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, number) from error
    if whole < len(data):
        file.truncate(whole)
    if whole == 0:
        _sync_folder(path)
        store.write({"op": "format", "version": FORMAT})
    return store


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise _no_journal(path) if number == 1 else _damaged(path, number)
    return record


def _line(record: Record) -> bytes:
    return (json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def _no_journal(path: Path) -> JournalFileError:
    return JournalFileError(f"{path} is not a journal of AgentState. Name another file.")


def _damaged(path: Path, number: int) -> JournalFileError:
    return JournalFileError(
        f"{path}, line {number}: this is not a record of a journal. Restore the file, or name another."
    )


def _sync_folder(path: Path) -> None:
    """A file that was just made is there after a power cut only once its folder is on disk."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
