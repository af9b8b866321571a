"""Where two pieces of plain JSON differ."""

import json
from typing import Any

Json = Any


def differences(expected: Json, found: Json, path: str = "") -> list[str]:
    """Where the two differ, a line each."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = [f"{path} / {key} is not there any more" for key in expected.keys() - found.keys()]
        lines += [f"{path} / {key} is new" for key in found.keys() - expected.keys()]
        for key in expected.keys() & found.keys():
            lines += differences(expected[key], found[key], f"{path} / {key}")
        return sorted(lines)
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [
            line
            for index, (one, other) in enumerate(zip(expected, found, strict=True))
            for line in differences(one, other, f"{path} / {index}")
        ]
    if isinstance(expected, list) and isinstance(found, list):
        common = min(len(expected), len(found))
        lines = differences(expected[:common], found[:common], path)
        return [f"{path} had {len(expected)} items and has {len(found)}", *lines]
    if type(expected) is type(found) and expected == found:
        return []
    return [f"{path} was {_short(expected)} and is {_short(found)}"]


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"
