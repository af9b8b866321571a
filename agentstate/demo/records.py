"""The records of the insurance company: policies, claims, articles and research sources, as dictionaries."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

Record = dict[str, Any]
_DATA = Path(__file__).parent / "data"

_COMMON = re.compile(
    r"\b(a|an|and|are|as|at|be|by|do|does|for|from|how|i|in|is|it|my|of|on|or|that|the|to|was|what|when|with)\b"
)


@cache
def _file(name: str) -> tuple[Record, ...]:
    return tuple(json.loads((_DATA / f"{name}.json").read_text(encoding="utf-8")))


def policy(number: str) -> Record:
    """:raises LookupError: for an unknown number."""
    return _one("policies", "policy", number)


def claim(number: str) -> Record:
    """:raises LookupError: for an unknown number."""
    return _one("claims", "claim", number)


def claims_on(policy_number: str) -> list[Record]:
    return [dict(row) for row in _file("claims") if row["policy_number"] == policy_number]


def sources() -> list[Record]:
    return [dict(row) for row in _file("sources")]


def names() -> dict[str, list[str]]:
    """First and last names, for customers that are made up."""
    read: dict[str, list[str]] = json.loads((_DATA / "names.json").read_text(encoding="utf-8"))
    return read


def articles(query: str, limit: int = 3) -> list[tuple[Record, float]]:
    """The knowledge base's best articles for a query, best first, each with its score between 0 and 1.

    The score is the share of the query's words that the article has; a word in the title counts as two.
    """
    query_words = _words(query)
    scored = []
    for row in _file("articles"):
        title, text = _words(row["title"]), _words(row["text"])
        hits = sum(2 if word in title else word in text for word in query_words)
        if hits:
            scored.append((dict(row), round(hits / (2 * len(query_words)), 3)))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]["id"]))[:limit]


def _one(file: str, kind: str, number: str) -> Record:
    for row in _file(file):
        if row["number"] == number.strip().upper():
            return dict(row)
    raise LookupError(f"There is no {kind} {number.strip()} on file.")


def _words(text: str) -> set[str]:
    """The words of the text in the singular, without common ones."""
    return {word.removesuffix("s") for word in re.findall(r"[a-z]+", _COMMON.sub(" ", text.lower()))}
