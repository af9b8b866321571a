"""What one step writes, as exact numbers: a statement, a commit or a field that is added to every step shows here."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks import hook

from agentstate.durable.agent import make_durable
from agentstate.durable.run import run
from sessions_app.models import Session
from sessions_app.runtime import journal
from tests import sample_agents
from tests.adapters import OrmAdapter
from tests.sample_agents import fast, scripted, slow

pytestmark = pytest.mark.django_db
STEPS = 5
TABLES = r'"sessions_app_(\w+)"'
TIME = re.compile(r"\d{4}-\d\d-\d\d[ T][\d:.]+(\+00:00)?")
KEY = re.compile(r"[0-9a-f-]{32,}")
NUMBER = re.compile(r"\d+(\.\d+)?(e-\d+)?")


def calling(*names: str, **options: Any) -> Agent:
    """Each step calls these tools; all steps are alike."""
    replies: list[str | list[ToolCall]] = [
        [ToolCall(name, {"q": f"{step}{number}"}, id=f"c{step}{number}") for number, name in enumerate(names)]
        for step in range(STEPS)
    ]
    return Agent(chat_generator=scripted(*replies, "Done."), tools=[fast, slow], **options)


@pytest.fixture(autouse=True)
def _lists_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, no step sets the time of the session's last change, which it does at times."""
    monkeypatch.setattr(journal, "UPDATED_AGAIN_AFTER", timedelta(days=1))


class Statements:
    """The statements of a run, on its connection and on those that its tools' threads open, and their values, by the
    step in which they were sent.
    """

    def __init__(self) -> None:
        self.steps: list[list[tuple[str, Sequence[Any]]]] = [[]]

    def __call__(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        self.steps[-1].append((sql, tuple(params or ())))
        return execute(sql, params, many, context)

    def step_begins(self) -> None:
        self.steps.append([])


def size(value: Any) -> int:
    """The bytes of a value as text. Times, keys and numbers count as one each: their length is not always the same."""
    if hasattr(value, "dumps"):  # psycopg's wrapper of JSON
        value = value.dumps(value.obj)
    text = str(value)
    for varies in (TIME, KEY, NUMBER):
        text = varies.sub("0", text)
    return len(text.encode())


def third_step(agent: Agent) -> list[tuple[str, Sequence[Any]]]:
    """The statements from the model's third reply to its fourth, in a run of steps that are alike."""
    statements = Statements()
    model = agent.chat_generator
    reply = model.response_fn  # type: ignore[attr-defined]

    def answer(messages: list[ChatMessage], tools: Any = None) -> Any:
        statements.step_begins()
        return reply(messages)

    model.response_fn = answer  # type: ignore[attr-defined]
    sample_agents.effects.clear()

    def opened(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
        connection.execute_wrappers.append(statements)

    connection_created.connect(opened)
    try:
        with connection.execute_wrapper(statements):
            assert run(make_durable(agent), OrmAdapter().open(say="hi")).status == "idle"
    finally:
        connection_created.disconnect(opened)
    sample_agents.effects.clear()
    assert [len(step) for step in statements.steps[2:-1]] == [len(statements.steps[3])] * (STEPS - 1)
    return statements.steps[3]


def commits(statements: Sequence[tuple[str, Sequence[Any]]]) -> int:
    """The transactions: in a test each is a savepoint in the transaction of the test, or a statement outside of one."""
    return sum(sql.startswith(("SAVEPOINT", "WITH fence")) for sql, _ in statements)


def written(statements: Sequence[tuple[str, Sequence[Any]]]) -> tuple[dict[str, int], dict[str, int]]:
    """How many rows each verb writes or reads, and the size of their values, by its table."""
    rows: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for sql, values in statements:
        rest = list(values)
        # On PostgreSQL one statement writes to several tables.
        for part in re.split(r"(?=INSERT INTO|UPDATE )", sql):
            tables = re.findall(TABLES, part)
            if tables:
                rows[f"{part.split()[0]} {tables[0]}"] += part.count("), (") + 1
                count = part.count("%s")
                sizes[tables[0]] += sum(map(size, rest[:count]))
                rest = rest[count:]
    return dict(rows), dict(sizes)


def test_a_step_with_one_call_is_two_commits_of_few_statements() -> None:
    step = third_step(calling("fast"))
    assert commits(step) == 2
    assert written(step)[0] == {
        "UPDATE session": 2,
        "INSERT checkpoint": 1,
        "INSERT message": 2,
        "INSERT modelcall": 1,
        "INSERT toolcall": 1,
        "UPDATE toolcall": 1,
    }
    # SQLite's with those that begin and end a transaction; PostgreSQL's are as many round trips.
    assert len(step) == {"sqlite": 11, "postgresql": 2}[connection.vendor]


def test_the_values_that_a_step_writes_have_this_size() -> None:
    """A number that falls is an improvement: write it here. One that grows is paid by each step of every session."""
    assert written(third_step(calling("fast")))[1] == {
        # A commit also names the last position that it expects and, on PostgreSQL, the key of the call that it ends.
        "session": {"sqlite": 728, "postgresql": 730}[connection.vendor],
        "checkpoint": 233,
        "message": 379,
        "modelcall": 27,
        "toolcall": 73,
    }


def test_a_step_with_two_calls_adds_one_commit_for_the_end_of_the_second() -> None:
    step = third_step(calling("fast", "slow"))
    assert commits(step) == 3
    assert written(step)[0] == {
        "UPDATE session": 3,
        "INSERT checkpoint": 1,
        "INSERT message": 3,
        "INSERT modelcall": 1,
        "INSERT toolcall": 2,
        "UPDATE toolcall": 2,
    }
    assert len(step) == {"sqlite": 15, "postgresql": 3}[connection.vendor]


def test_a_hook_before_the_tools_costs_one_commit_for_the_start_of_the_call() -> None:
    @hook
    def look(state: State) -> None:
        """Only looks."""

    step = third_step(calling("fast", hooks={"before_tool": [look]}))
    assert commits(step) == 3
    assert written(step)[0]["UPDATE toolcall"] == 2


@pytest.mark.parametrize("seconds, updates", [(5, 0), (0, 1)])
def test_steps_in_quick_succession_leave_the_indexes_of_the_lists_alone(
    seconds: int, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "UPDATED_AGAIN_AFTER", timedelta(seconds=seconds))
    step = third_step(calling("fast"))
    assert sum('"updated_at"' in sql for sql, _ in step) == updates


def test_no_index_of_the_sessions_depends_on_what_each_step_changes() -> None:
    """Where one does, PostgreSQL writes a new entry in every index of the table for each commit."""
    step = third_step(calling("fast"))
    changed = {
        name
        for sql, _ in step
        for sets in re.findall(r'UPDATE "sessions_app_session" SET (.*?) WHERE', sql)
        for name in re.findall(r'"?(\w+)"? = ', sets)
    }
    indexed = {
        field.column
        for field in Session._meta.concrete_fields
        if getattr(field, "db_index", False) or field.unique
    }
    for index in Session._meta.indexes:
        indexed |= {name.lstrip("-") for name in index.fields}
        indexed |= set(index.condition.referenced_base_fields if index.condition else ())
    assert {"position", "change", "phase", "totals"} <= changed
    assert changed & indexed == set()
