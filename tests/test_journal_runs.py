"""On persistent journals a durable agent does what the plain one does: in slices, and when it dies at any commit."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ToolCall as CalledTool
from haystack.tools import tool

from agentstate.durable.agent import WrappedAgent, make_durable
from agentstate.durable.port import Journal, LeaseLost
from agentstate.durable.run import Options, run
from agentstate.durable.state.chat_messages import message_from
from agentstate.durable.state.encoding import decode
from agentstate.journals.file import FileStore
from agentstate.journals.store import Record
from sessions_app.models import CallStatus, Event, Session, Status, ToolCall
from sessions_app.runtime.connection import RunConnection
from sessions_app.runtime.journal import OrmJournal
from tests import sample_agents
from tests.adapters import Adapter, FileAdapter, MemoryAdapter, OrmAdapter, ValkeyAdapter
from tests.dying import Died
from tests.test_durable_run import Kind, Run, comparable, kinds

T = TypeVar("T")

pytestmark = pytest.mark.usefixtures("no_effects")

Json = Any
Make = Callable[[dict[str, Json]], Adapter]
# On the journal in memory `test_durable_run` proves the same.
ADAPTERS = [
    "file",
    pytest.param("valkey", marks=pytest.mark.redis),
    pytest.param("orm", marks=pytest.mark.django_db),
]


@tool
def put(state: State) -> str:
    """Put a value into the State."""
    state.set("config", {"name": "b", "id": 1, "a": 2})
    return "put"


@tool(inputs_from_state={"config": "config"})
def render(config: dict[str, Any]) -> str:
    """Show the value as text."""
    return str(config)


@pytest.fixture(params=ADAPTERS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    made: list[Adapter] = []
    url = request.getfixturevalue("redis_url") if request.param == "valkey" else ""

    def one(inputs: dict[str, Json]) -> Adapter:
        kinds: dict[str, Callable[[], Adapter]] = {
            "file": lambda: FileAdapter(tmp_path / f"{len(made)}.jsonl", inputs),
            "valkey": lambda: ValkeyAdapter(url, f"s{len(made)}", inputs),
            "orm": lambda: OrmAdapter(inputs),
        }
        made.append(kinds[request.param]())
        return made[-1]

    yield one
    for adapter in made:
        adapter.close()


ALL_KINDS = kinds()


@pytest.fixture(params=list(ALL_KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return ALL_KINDS[request.param]


def stored(adapter: Adapter) -> str:
    """The result of the turn that has ended, as the journal holds it, in the form of `comparable`."""
    base = adapter.open().load().checkpoint
    assert base is not None
    assert base.kind == "end"
    counters = decode(base.counters)
    del counters["context_tokens"]
    return comparable(
        {
            "messages": [message_from(message.body) for message in base.context],
            **{key: decode(value) for key, value in base.state.items()},
            **counters,
            "exit_reason": adapter.fields()["exit_reason"],
        }
    )


@pytest.mark.slow
def test_a_run_in_slices_of_one_step_gives_what_the_plain_agent_gives(kind: Kind, make: Make) -> None:
    plain = kind.plainly()
    durable = make_durable(kind.build())
    adapter = make({"state": kind.inputs})

    outcome = kind.run(durable, adapter.open(say="hi"), Options(slice_is_over=lambda: True))
    while outcome.status == "queued":
        outcome = kind.run(durable, adapter.open(), Options(slice_is_over=lambda: True))

    assert outcome.result is not None, outcome.why
    assert comparable(outcome.result) == plain.result
    assert stored(adapter) == plain.result
    assert Counter(sample_agents.effects) == plain.effects


def test_a_value_of_the_state_keeps_the_order_of_its_keys(make: Make) -> None:
    replies = [CalledTool("put", {}, id="1")], [CalledTool("render", {}, id="2")]

    def agent() -> Agent:
        return Agent(
            chat_generator=sample_agents.scripted(*replies, "done"),
            tools=[put, render],
            state_schema={"config": {"type": dict[str, Any]}},
        )

    adapter = make({})
    outcome = run(make_durable(agent()), adapter.open(say="hi"), Options(slice_is_over=lambda: True))
    while outcome.status == "queued":
        outcome = run(make_durable(agent()), adapter.open(), Options(slice_is_over=lambda: True))

    assert outcome.result is not None, outcome.why
    results = [found.result for row in outcome.result["messages"] for found in row.tool_call_results]
    assert results == ["put", "{'name': 'b', 'id': 1, 'a': 2}"]


@dataclass
class Death:
    """The process dies at its n-th commit: just before it, or just after."""

    adapter: Adapter
    number: int
    committed: bool
    commits: int = 0

    def comes(self) -> bool:
        self.commits += 1
        return self.commits == self.number


class DyingConnection(RunConnection):
    """Dies in the transaction, when all its statements were executed, or after it."""

    def __init__(self, death: Death) -> None:
        super().__init__()
        self.death = death

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.lock:
            dies = self.death.comes()
            with suppress(Died), super().transaction():
                yield
                if dies and not self.death.committed:
                    raise Died
            if dies:
                with super().transaction():
                    self.death.adapter.fence()  # what still runs in this process may write no more
                raise Died

    def whole_commit(self, commit: Callable[[], T]) -> T:
        with self.transaction():
            return commit()


def dying_journal(adapter: Adapter, death: Death, say: str = "hi") -> Journal:
    """The session's journal, whose process will die."""
    if isinstance(adapter, OrmAdapter):
        if say:
            adapter.say(say)
        journal = OrmJournal(adapter.claim())
        journal.connection = DyingConnection(death)
        return journal
    opened = adapter.open(say=say)
    store = adapter.store
    write = store.write

    def dying(record: Record) -> None:
        dies = death.comes()
        if not dies or death.committed:
            write(record)
        elif isinstance(store, FileStore):
            store._file.write(b'{"op": "rep')  # torn in the middle
        if dies:
            adapter.fence()
            raise Died

    store.write = dying  # type: ignore[method-assign]
    return opened


def dies(durable: WrappedAgent, adapter: Adapter, number: int, committed: bool, run: Run = run) -> bool:
    """Run until the commit of that number; False if the run ended before it."""
    death = Death(adapter, number, committed)
    try:
        run(durable, dying_journal(adapter, death))
    except (Died, LeaseLost):  # a call beside the one that died may be the first to be heard of
        return True
    finally:
        if isinstance(adapter, MemoryAdapter):
            vars(adapter.store).pop("write")
    return False


# Valkey and the file hold the same records, and differ in how one record is written.
@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        pytest.param("file", marks=pytest.mark.long),
        pytest.param("valkey", marks=[pytest.mark.redis, pytest.mark.long]),
        pytest.param("orm", marks=pytest.mark.django_db),
    ],
    indirect=True,
)
@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_killed_at_any_commit_it_ends_the_same_and_no_committed_reply_is_requested_again(
    kind: Kind, make: Make, committed: bool
) -> None:
    plain = kind.plainly()
    durable = kind.durable()
    number, died = 0, True
    while died:
        number += 1
        sample_agents.effects.clear()
        adapter = make({"state": kind.inputs})
        died = dies(durable, adapter, number, committed, kind.run)
        if died:
            outcome = kind.run(durable, adapter.open())
            assert outcome.status == "idle", f"commit {number}: {outcome.why}"
        assert stored(adapter) == plain.result, f"commit {number}"
        again = Counter(sample_agents.effects) - plain.effects
        called_again = {what: times for what, times in again.items() if what.startswith("model")}
        assert not (committed and called_again), f"commit {number}: {called_again}"
        assert sum(called_again.values()) <= 1, f"commit {number}: {called_again}"
    assert number > 2


@pytest.mark.slow
def test_killed_while_tools_run_no_effect_happens_twice_without_a_persons_decision(make: Make) -> None:
    durable = make_durable(sample_agents.refunds())
    number, died, doubts = 0, True, 0
    while died:
        number += 1
        sample_agents.effects.clear()
        adapter = make({})
        died = dies(durable, adapter, number, committed=True)
        outcome = run(durable, adapter.open())
        while outcome.status == "waiting":
            assert adapter.fields()["waiting_for"] == "doubt"
            for call in _open_calls(adapter):
                doubts += 1
                adapter.decide(call, result="a person looked it up")
            outcome = run(durable, adapter.open())
        assert outcome.status == "idle", outcome.why
        ran = Counter(what for what in sample_agents.effects if what.startswith(("refund", "fast")))
        assert all(times == 1 for times in ran.values()), f"commit {number}: {ran}"
    assert doubts > 0


def _open_calls(adapter: Adapter) -> list[str]:
    if isinstance(adapter, OrmAdapter):
        calls = ToolCall.objects.filter(branch__session=adapter.pk, status=CallStatus.DOUBT)
        return list(calls.values_list("call_id", flat=True))
    return [call.call_id for call in adapter.store.step_calls() if call.status == "doubt"]


@pytest.mark.django_db
def test_a_session_that_lost_its_worker_says_so_and_ends() -> None:
    """End to end: the lease expires, the sweep finds the session, another worker takes it over."""
    adapter = OrmAdapter({})
    durable = Kind(sample_agents.long_run, {}).durable()
    with pytest.raises(Died):
        run(durable, dying_journal(adapter, Death(adapter, 6, committed=True)))
    assert adapter.fresh().status == Status.RUNNING
    assert run(durable, adapter.open()).status == "idle"
    assert [event.kind for event in Event.objects.filter(session_id=adapter.pk)] == ["lost", "finished"]
    assert Session.objects.get(pk=adapter.pk).final_answer == "Long done."
