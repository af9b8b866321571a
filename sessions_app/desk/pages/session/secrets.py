"""Detects text that looks like a secret: keys and passwords do not belong in a session's history. No queries."""

import re
from functools import lru_cache

_KINDS: tuple[tuple[str, str], ...] = (
    ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    ("an AWS access key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})"),
    ("a Slack token", r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"),
    ("a Stripe key", r"\b[sr]k_live_[0-9A-Za-z]{16,}"),
    ("an API key", r"\bsk-[A-Za-z0-9_-]{20,}"),
    ("a Google API key", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("a signed token", r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    ("a bearer token", r"(?i)\bbearer\s+[a-z0-9._~+/-]{20,}"),
    ("a password in an address", r"\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@\"]+:[^\s/:@\"]{3,}@"),
    (
        "a password",
        r"(?i)[\"'](?:password|passwd|secret|api[_-]?key|access[_-]?token|client[_-]?secret)\\?[\"']"
        r"\s*:\s*\\?[\"'][^\"'\\]{6,}",
    ),
)
_PATTERNS = [(what, re.compile(pattern)) for what, pattern in _KINDS]
# The page of a running session is drawn with each step, and all but the newest of its texts are those of before.
_SHORT, _KEPT = 500, 5_000


def looks_like(text: str) -> str:
    """``a private key``, ``a password``, ...: what the first secret in the text seems to be; "" for none."""
    return _of_short_text(text) if len(text) <= _SHORT else _found(text)


def _found(text: str) -> str:
    return next((what for what, pattern in _PATTERNS if pattern.search(text)), "")


_of_short_text = lru_cache(maxsize=_KEPT)(_found)
