"""How the calls of a tool are run. Pure Python, so that an agent's module can import it anywhere."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """How one tool's calls are run, retried and approved.

    :param idempotent: Running the same call twice has the same effect as running it once. A call found started but
        not ended is then run again automatically, with the same idempotency key; otherwise a person decides.
    :param approval: Each call waits for a person's approval.
    :param approval_ttl: Seconds after which an open approval request expires and the call is rejected. None: never.
    :param cache_ttl: Seconds for which a result is reused for the same arguments. None: not cached.
    :param timeout: Seconds that one call may take. A call over its limit is an error for the model if the tool is
        idempotent, and in doubt if it is not, since nobody knows whether it took effect.
    :param effect: What a call changes outside the session, in a few words for the person who approves ("moves money").
    :raises ValueError: for a time that is not positive.
    """

    idempotent: bool = False
    approval: bool = False
    approval_ttl: float | None = None
    cache_ttl: float | None = None
    timeout: float | None = None
    effect: str = ""

    def __post_init__(self) -> None:
        for name in ("approval_ttl", "cache_ttl", "timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(
                    f"ToolPolicy: {name} must be more than 0 seconds, not {value!r}. Leave it out for none."
                )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Policies = Mapping[str, ToolPolicy]
DEFAULT = ToolPolicy()


def fingerprint(tool: str, arguments: Mapping[str, Any]) -> str:
    """The SHA-256, in hex, that binds a person's decision to exactly these arguments (plain JSON) of this tool."""
    text = json.dumps([tool, arguments], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()
