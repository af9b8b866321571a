"""Storing a step costs what is new in it, however long the session is; going back stores no history again."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from haystack import Document
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall as Call
from haystack.hooks.compaction import CompactionHook, SlidingWindowCompactor

from agentstate.durable.agent import make_durable
from agentstate.durable.run import run
from sessions_app import actions
from sessions_app.models import Checkpoint, Message, ModelCall, StateValue, ToolCall
from tests import sample_agents
from tests.adapters import FileAdapter, OrmAdapter
from tests.builders import SYSTEM

STEPS = 40
HISTORY = (Message, ModelCall, ToolCall, Checkpoint, StateValue)


def fetching(steps: int = STEPS) -> Agent:
    """Each step adds a document to the state, and messages of the same size to the conversation."""
    replies: list[str | list[Call]] = [
        [Call("fetch", {"q": f"q{n:03}"}, id=f"f{n:03}")] for n in range(steps)
    ]
    return Agent(
        chat_generator=sample_agents.scripted(*replies, "Fetched."),
        tools=[sample_agents.fetch],
        state_schema={"docs": {"type": list[Document]}},
    )


def windowed() -> Agent:
    hook = CompactionHook(SlidingWindowCompactor(), context_window=400, compact_at=0.5, compact_to=0.2)
    return Agent(
        chat_generator=sample_agents.counting(STEPS), tools=[sample_agents.fast], hooks={"before_llm": [hook]}
    )


def measure(text: str) -> int:
    """Its length, where every number counts as one digit: counters and times differ from step to step."""
    return len(re.sub(r"\d+(\.\d+)?(e-\d+)?", "0", text))


def per_step(adapter: OrmAdapter) -> tuple[list[Counter[str]], list[int]]:
    """The rows that each step stored, by table, and their size."""
    branch = adapter.fresh().branch
    assert branch is not None
    ends = list(Checkpoint.objects.filter(branch=branch, kind="step").values_list("position", flat=True))
    rows: list[Counter[str]] = [Counter() for _ in ends]
    sizes = [0 for _ in ends]
    for model in HISTORY:
        for row in model.objects.filter(branch=branch).values():
            step = sum(end < row["position"] for end in ends)
            if step < len(ends):
                rows[step][model.__name__] += 1
                kept = {name: value for name, value in row.items() if name not in ("id", "idempotency_key")}
                sizes[step] += measure(json.dumps(kept, default=str))
    return rows, sizes


@pytest.mark.slow
@pytest.mark.django_db
def test_the_last_step_stores_what_the_second_stored() -> None:
    adapter = OrmAdapter()
    assert run(make_durable(fetching()), adapter.open(say="hi")).status == "idle"
    rows, sizes = per_step(adapter)
    assert len(rows) == STEPS
    assert rows[1] == {"Message": 2, "ModelCall": 1, "ToolCall": 1, "Checkpoint": 1, "StateValue": 1}
    assert all(step == rows[1] for step in rows[1:])
    assert set(sizes[1:]) == {sizes[1]}


@pytest.mark.slow
@pytest.mark.django_db
def test_a_context_that_is_cut_short_again_and_again_stores_its_ranges_not_its_messages() -> None:
    adapter = OrmAdapter()
    assert run(make_durable(windowed()), adapter.open(say="hi")).status == "idle"
    rows, sizes = per_step(adapter)
    assert max(sum(step.values()) for step in rows[STEPS // 2 :]) <= max(
        sum(step.values()) for step in rows[:6]
    )
    assert max(sizes[STEPS // 2 :]) <= max(sizes[:6])


@pytest.mark.slow
def test_the_file_grows_by_what_is_new_in_each_step(tmp_path: Path) -> None:
    adapter = FileAdapter(tmp_path / "session.jsonl")
    assert run(make_durable(fetching()), adapter.open(say="hi")).status == "idle"
    steps: list[int] = []
    for line in adapter.path.read_text().splitlines():
        if json.loads(line).get("op") == "reply":
            steps.append(0)
        if steps:
            steps[-1] += measure(line)
    adapter.close()
    assert len(steps) == STEPS + 1
    assert set(steps[2:-1]) == {steps[2]}


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("action", [actions.rewind, actions.fork])
def test_going_back_adds_the_same_few_rows_to_any_history(action: Callable[..., Any]) -> None:
    added = []
    for steps in (3, STEPS):
        adapter = OrmAdapter()
        run(make_durable(fetching(steps)), adapter.open(say="hi"))
        checkpoint = Checkpoint.objects.filter(branch=adapter.fresh().branch, step=2).latest("position")
        before = rows_in_all()
        action(actor=SYSTEM, session_id=adapter.pk, checkpoint_id=checkpoint.pk, reason="another way")
        added.append(rows_in_all() - before)
    assert added[0] == added[1]
    assert not any(model.__name__ in added[0] for model in HISTORY)
    assert sum(added[0].values()) <= 4


def rows_in_all() -> Counter[str]:
    return Counter(
        {
            model.__name__: model._default_manager.count()
            for model in apps.get_app_config("sessions_app").get_models()
        }
    )
