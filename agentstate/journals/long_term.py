"""A long-term memory for scripts: in memory, or in one JSON Lines file for each customer of an agent.

    DurableAgent(agent, "session.jsonl", memory=MemoryFile("anna.jsonl"))

An entry is erased by leaving only the key in its line, `{"key": "..."}`: by that its call knows it if it runs again, as
after a kill. If it does not, the whole line may be deleted. Other lines without a text say which calls a session has
discarded: what these remembered is not recalled.
"""

import json
import os
import threading
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentstate.domain.words import nearest_by_words
from agentstate.durable.long_term import MOST_ENTRIES, Entry, entry_key

if TYPE_CHECKING:
    from agentstate.durable.embedding import Embedder


class MemoryFileError(Exception):
    """A file of which a line was changed so that it cannot be read. Names the line, and what is wrong with it."""


class MemoryFile:
    """The entries of one agent about one customer.

    :param path: The file; None keeps them in this process.
    :param embedder: A Haystack text embedder: entries are then found by meaning. The vectors are not stored.

    Its methods raise MemoryFileError for a file that was edited by hand into something else. A line that is not JSON
    is one that a killed process has not finished, and is passed over.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, embedder: Any = None) -> None:
        self._path = Path(path) if path is not None else None
        self._lines: list[str] = []
        self._component = embedder
        self._embedder: Embedder | None = None
        self._vectors: dict[str, bytes | None] = {}
        self._lock = threading.Lock()

    def remember(self, text: str, *, call: str) -> None:
        key = entry_key(call, text)
        with self._lock:
            if any(record.get("key") == key for record in self._records()):
                return
            learned_at = datetime.now(UTC).isoformat()
            entry = {"key": key, "call": call, "learned_at": learned_at, "text": text}
            self._append(entry)

    def discard(self, session: str, calls: Collection[str]) -> None:
        with self._lock:
            if self._discarded().get(session, set()) != set(calls):
                self._append({"session": session, "discarded": sorted(calls)})

    def recall(self, query: str, *, limit: int) -> list[Entry]:
        with self._lock:
            discarded = set().union(*self._discarded().values())
            offered = [entry for entry in self._entries() if entry["call"] not in discarded]
            entries = offered[-MOST_ENTRIES:][::-1]
            texts = [entry["text"] for entry in entries]
            best = self._nearest_by_meaning(query, texts, limit)
            if best is None:
                best = nearest_by_words(query, texts, limit)
        return [Entry(texts[index], datetime.fromisoformat(entries[index]["learned_at"])) for index in best]

    def _nearest_by_meaning(self, query: str, texts: list[str], limit: int) -> list[int] | None:
        """None without an embedder, and if it fails."""
        if self._component is None:
            return None
        from agentstate.durable.embedding import Embedder, nearest_by_meaning

        self._embedder = self._embedder or Embedder(self._component)
        vector = self._embedder.embed(query)
        if vector is None:
            return None
        for text in texts:
            if self._vectors.get(text) is None:
                self._vectors[text] = self._embedder.embed(text)
        return nearest_by_meaning(vector, [self._vectors[text] for text in texts], limit)

    def _entries(self) -> list[dict[str, Any]]:
        return [record for record in self._records() if "text" in record]

    def _discarded(self) -> dict[str, set[str]]:
        """The discarded calls of each session; of several lines the last one holds."""
        return {
            record["session"]: set(record["discarded"]) for record in self._records() if "discarded" in record
        }

    def _records(self) -> list[dict[str, Any]]:
        lines: Sequence[str | bytes] = self._lines
        if self._path is not None:
            # As bytes: a text may hold other separators of lines, and an unfinished line half a character.
            lines = self._path.read_bytes().split(b"\n") if self._path.exists() else []
        records = []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except ValueError:  # a line that a killed process has not finished
                continue
            if wrong := _what_is_wrong(record):
                raise MemoryFileError(
                    f"{self._path}, line {number}: {wrong}. Correct the line, or delete it to erase what it says."
                )
            records.append(record)
        return records

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False)
        if self._path is None:
            self._lines.append(line)
            return
        with self._path.open("a", encoding="utf-8") as file:
            # A line that a killed process began is ended first.
            file.write(f"\n{line}\n" if self._ends_within_a_line() else f"{line}\n")
            file.flush()
            os.fsync(file.fileno())

    def _ends_within_a_line(self) -> bool:
        if self._path is None or not self._path.exists() or not self._path.stat().st_size:
            return False
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"


def _what_is_wrong(record: Any) -> str:
    """Why the line is none that a memory has written; "" if it is one."""
    if not isinstance(record, dict):
        return "it is not an object of JSON"
    if not {"text", "discarded", "key"} & record.keys():
        return "it has neither a 'text' nor 'discarded'"
    names = ("key", "call", "learned_at", "text") if "text" in record else ("key",) if "key" in record else ()
    for name in (*names, *(("session",) if "discarded" in record else ())):
        if not isinstance(record.get(name), str):
            return f"its {name!r} is {'not a text' if name in record else 'missing'}"
    if "text" in record and not _is_time(record["learned_at"]):
        return "its 'learned_at' is not a time of ISO 8601"
    calls = record.get("discarded", [])
    is_list = isinstance(calls, list) and all(isinstance(call, str) for call in calls)
    return "" if is_list else "its 'discarded' is not a list of texts"


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
