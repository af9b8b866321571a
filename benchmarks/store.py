"""What was measured, kept as a JSON file for each part, so that parts can be measured at different times."""

import json
from collections.abc import Iterable
from pathlib import Path

from benchmarks.rows import Record

HERE = Path(__file__).parent


def save(record: Record, folder: Path = HERE) -> None:
    _folder(folder).mkdir(parents=True, exist_ok=True)
    _file(folder, record.part).write_text(json.dumps(record.to_dict(), indent=1) + "\n")


def read(part: str, folder: Path = HERE) -> Record | None:
    """What was measured last of the part; None before the first time."""
    file = _file(folder, part)
    return Record.from_dict(json.loads(file.read_text())) if file.exists() else None


def read_all(parts: Iterable[str], folder: Path = HERE) -> list[Record]:
    return [record for part in parts if (record := read(part, folder))]


def _folder(folder: Path) -> Path:
    return folder / "results"


def _file(folder: Path, part: str) -> Path:
    return _folder(folder) / f"{part}.json"
