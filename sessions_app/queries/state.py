"""The agent's state at a checkpoint: its keys, its counters, the tools at hand."""

import json
from dataclasses import dataclass, field
from typing import Any

from sessions_app import restore
from sessions_app.models import Branch, Checkpoint
from sessions_app.queries.values import Shown, show, untagged

MEMORY_KEYS = ("goal", "plan", "completed", "notes")


@dataclass(frozen=True, slots=True)
class Memory:
    """The working memory, where the agent keeps one."""

    goal: str
    plan: list[tuple[str, bool]]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class State:
    checkpoint: Checkpoint | None = None
    values: dict[str, Shown] = field(default_factory=dict)
    counters: list[tuple[str, str]] = field(default_factory=list)
    tools: tuple[str, ...] = ()


def state(branch: Branch, checkpoint: Checkpoint | None = None) -> State:
    """The state at the checkpoint, or at the newest one."""
    at = checkpoint or restore.last_visible(Checkpoint, branch)
    if at is None:
        return State()
    values = restore.state_of(branch, at)
    return State(
        checkpoint=at,
        values={key: show(value) for key, value in sorted(values.items())},
        counters=[
            (key.replace("_", " "), _plain(value))
            for key, value in at.counters.items()
            if value not in (None, {}, [])
        ],
        tools=restore.tools_of(branch, at),
    )


def encoded(branch: Branch, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """The values as plain JSON."""
    at = checkpoint or restore.last_visible(Checkpoint, branch)
    return {key: untagged(value) for key, value in restore.state_of(branch, at).items()} if at else {}


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
