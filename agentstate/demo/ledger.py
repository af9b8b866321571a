"""The side effects of the demo's tools, one JSON line each, so that a person can check them.

The files stand in for a bank, a printing service and a model server, which know nothing of sessions. Appending is
safe with any number of threads and processes.
"""

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentstate.durable.idempotency import idempotency_key
from agentstate.installation import data_folder


def folder() -> Path:
    """The folder of the files: `AGENTSTATE_DEMO_DIR`, else `var/demo` where the desk keeps its data."""
    return Path(os.environ.get("AGENTSTATE_DEMO_DIR") or data_folder() / "var" / "demo")


def append(name: str, **entry: Any) -> int:
    """Add one line to the ledger `name`, on the disk when this returns, and return its number, from 1.

    Each line has the time (`at`) and the idempotency key of the tool call (`key`, empty outside a durable run).
    """
    folder().mkdir(parents=True, exist_ok=True)
    line = json.dumps({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "key": _key(), **entry})
    with (folder() / f"{name}.jsonl").open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = sum(1 for _ in file) + 1
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    return number


def entries(name: str) -> list[dict[str, Any]]:
    """The lines of the ledger `name`, oldest first; none if it does not exist."""
    try:
        text = (folder() / f"{name}.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines()]


def written_before(name: str) -> bool:
    """Whether the running tool call has written to the ledger `name` before: then it is a repetition."""
    return bool(_key()) and any(entry["key"] == _key() for entry in entries(name))


def _key() -> str:
    try:
        return idempotency_key()
    except RuntimeError:
        return ""
