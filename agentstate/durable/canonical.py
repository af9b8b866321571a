"""The digest of plain JSON, which does not depend on the order of keys. Pure Python."""

import json
from hashlib import sha256
from typing import Any


def digest_of(value: Any) -> str:
    """The SHA-256 of the value, in hex: the same in every process, and as stored."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()
