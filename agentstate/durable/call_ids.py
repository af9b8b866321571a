"""The ids of tool calls: some servers send none (Ollama), some repeat them, and a hook may send any text."""

import uuid
from typing import TypeGuard

MAX_CALL_ID = 200


def is_usable_id(call_id: str | None) -> TypeGuard[str]:
    return bool(call_id) and len(str(call_id)) <= MAX_CALL_ID


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:16]}"
