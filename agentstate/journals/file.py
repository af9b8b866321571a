"""A journal in one JSON Lines file, for durable agents without a database.

The file has one JSON record per line, appended and flushed to disk before the call returns, so that a step
costs what it adds. A missing file is a new session; an incomplete last line was never committed and is removed.
One process at a time may have the file open: a second one gets an error. A file that is not a journal is never changed.
Each record names its line, so that a file in which a line is missing or stands twice is refused.
`agentstate.journals.store` describes the records.
"""

import fcntl
import json
import os
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from agentstate.durable.port import JournalUnavailable
from agentstate.journals.memory import MemoryJournal
from agentstate.journals.store import Record, Store, begin_epoch

FORMAT = 1


class JournalFileError(Exception):
    """A file that is not a journal, is of a newer format, or is in use. The message says what to do."""


class FileStore(Store):
    def __init__(self, path: Path, file: FileIO) -> None:
        super().__init__(path.stem)
        self.path = path
        self._file = file
        self._lines = 0
        # It stays so where the file may have another content than this store: part of a line, or a record more.
        self._is_writing = False
        self._operations["format"] = partial(_check_format, path)

    def write(self, record: Record) -> None:
        """Write the record, or else leave the file without it, also where Ctrl+C interrupts this.

        :raises JournalUnavailable: if the file cannot be written, or was left by an interruption in such a way that it
            has to be opened again.
        """
        if self._is_writing:
            raise JournalUnavailable(
                f"A write to {self.path} was interrupted. Close this journal, and open the file again."
            )
        line = _line({**record, "line": self._lines + 1} if self._lines else record)
        end = self._file.seek(0, os.SEEK_END)
        is_written = False
        try:
            self._is_writing = True
            unwritten = memoryview(line)
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
            os.fsync(self._file.fileno())
            is_written = True
            self._lines += 1
            self._apply(record)
        except BaseException as error:
            self.epoch += 1  # a run that still uses the file stops here: this record is missing
            if not is_written:
                self._remove_from(end)
                if isinstance(error, OSError):
                    raise JournalUnavailable(f"{self.path} cannot be written: {error}") from error
            raise
        self._is_writing = False

    def _remove_from(self, end: int) -> None:
        with suppress(OSError):
            self._file.truncate(end)
            self._is_writing = False

    def close(self) -> None:
        with self.lock:
            self.epoch += 1  # a run in this process that still uses the file can write no more
            self._file.close()


class FileJournal(MemoryJournal):
    """`FileJournal.open(path)` opens or creates the session in `path` at its next epoch.

    Use it as a context manager, or `close` it.
    """

    store: FileStore

    @classmethod
    def open(  # type: ignore[override]
        cls, path: str | os.PathLike[str], *, say: str = "", inputs: Record | None = None
    ) -> "FileJournal":
        """:raises JournalFileError: for a file that cannot be used."""
        journal_path = Path(path)
        file = _open_locked(journal_path)
        try:
            store = _read(journal_path, file)
            return cls(store, begin_epoch(store, say, inputs))
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> "FileJournal":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def load(path: str | os.PathLike[str]) -> Store:
    """The session in a file as it is at this moment; another process may be running it. The file is not changed.

    :raises JournalFileError: for a file that is not there, or is not a journal.
    """
    journal_path = Path(path)
    store = Store(journal_path.stem)
    try:
        data = journal_path.read_bytes()
    except OSError as error:
        raise JournalFileError(f"{journal_path} cannot be read: {error.strerror}.") from error
    store._operations["format"] = partial(_check_format, journal_path)
    _apply_lines(journal_path, data, store)
    return store


def _open_locked(path: Path) -> FileIO:
    try:
        # Unbuffered: a write is in the file when it returns, or fails.
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
    except BaseException:  # Ctrl+C: whoever keeps the exception would keep the file open, and locked
        file.close()
        raise
    return file


def _read(path: Path, file: FileIO) -> FileStore:
    store = FileStore(path, file)
    data = path.read_bytes()
    complete = _apply_lines(path, data, store)
    store._lines = data[:complete].count(b"\n")
    if complete < len(data):
        file.truncate(complete)
    if complete == 0:
        _sync_folder(path)
        store.write({"op": "format", "version": FORMAT})
    return store


def _apply_lines(path: Path, data: bytes, store: Store) -> int:
    """Apply the complete lines, and return their length in bytes."""
    complete = data.rfind(b"\n") + 1
    first_line = _line({"op": "format", "version": FORMAT})
    if complete == 0 and not first_line.startswith(data):
        raise _not_a_journal(path)
    for number, line in enumerate(data[:complete].split(b"\n")[:-1], 1):
        record = _record(path, number, line)
        if number == 1 and record.get("op") != "format":
            raise _not_a_journal(path)
        _check_place(path, number, record)
        try:
            store._apply(record)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, number) from error
    return complete


def _check_place(path: Path, number: int, record: Record) -> None:
    """:raises JournalFileError: for a record that stands on another line than the one that it was written to."""
    written = record.get("line", number)  # versions before this one wrote none
    if written == number:
        return
    if isinstance(written, int) and written > number:
        missing = f"line {number} is" if written == number + 1 else f"the lines {number} to {written - 1} are"
        why = f"{missing} missing: the line in its place was written as line {written}"
    else:
        why = f"this was written as line {written}, and was repeated or moved"
    raise JournalFileError(
        f"{path}, line {number}: {why}. Restore the file from a copy, or start another session in another file: "
        "with different records the session would have a different history, and calls could run again."
    )


def _check_format(path: Path, record: Record) -> None:
    if record.get("version") != FORMAT:
        raise JournalFileError(
            f"{path} is a journal of version {record.get('version')}; this program reads {FORMAT}. "
            "Update AgentState."
        )


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise _not_a_journal(path) if number == 1 else _damaged(path, number)
    return record


def _line(record: Record) -> bytes:
    return (json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def _not_a_journal(path: Path) -> JournalFileError:
    return JournalFileError(f"{path} is not a journal of AgentState. Use another file.")


def _damaged(path: Path, number: int) -> JournalFileError:
    return JournalFileError(
        f"{path}, line {number}: this is not a record of a journal. Restore the file, or name another."
    )


def _sync_folder(path: Path) -> None:
    """A new file survives a power failure only once its folder is on disk too."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
