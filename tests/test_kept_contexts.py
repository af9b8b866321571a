"""What a run had read and built of a session when it gave way is not read again by the next run of the same process."""

import threading
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from enum import Enum, StrEnum
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ReasoningContent, TextContent, ToolCall
from haystack.hooks import hook

from agentstate import ToolPolicy
from agentstate.durable.definition import tools_of
from agentstate.durable.state.chat_messages import as_message
from agentstate.durable.state.conversation import Context
from sessions_app import actions
from sessions_app.history import restore
from sessions_app.history.restore import CheckpointKey
from sessions_app.models import Checkpoint, Message, Session
from sessions_app.runtime import kept_contexts as module
from sessions_app.runtime import process as process_module
from sessions_app.runtime.kept_contexts import KEPT_SECONDS, Kept, KeptContexts, kept_contexts, memory_of
from sessions_app.runtime.leases import Heartbeat
from tests import sample_agents
from tests.builders import SYSTEM
from tests.driving import Desk

MUCH = 1_000_000
ALL_KINDS = sample_agents.KINDS | sample_agents.ASYNC_KINDS


class Process:
    """A worker's process: what it keeps is lost with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.begins()

    def begins(self, kept: KeptContexts | None = None) -> KeptContexts:
        """
        :param kept: Of a process that goes on.
        """
        kept = kept or KeptContexts(MUCH)
        self._monkeypatch.setattr("sessions_app.runtime.worker.kept_contexts", lambda: kept)
        return kept


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def give_way(desk: Desk, session: Session) -> str:
    """Run the session until it gives way, at its next step."""
    return desk.drive(desk.due(session), slice_seconds=0, others_wait=lambda: True)


def messages_read(desk: Desk, session: Session) -> int:
    """How many queries of the session's next slice read messages of the conversation."""
    with CaptureQueriesContext(connection) as queries:
        give_way(desk, session)
    table = f'"{Message._meta.db_table}"'
    return sum(query["sql"].startswith("SELECT") and f"FROM {table}" in query["sql"] for query in queries)


@pytest.mark.parametrize("build", [sample_agents.long_run, sample_agents.awaited])
def test_the_process_in_which_a_session_gave_way_reads_none_of_its_messages_again(
    build: Callable[[], Agent], desk: Desk, process: Process
) -> None:
    desk.agent(build)
    session = desk.start()
    give_way(desk, session)
    assert messages_read(desk, session) == 0


def test_another_process_reads_them(desk: Desk, process: Process) -> None:
    desk.agent(sample_agents.long_run)
    session = desk.start()
    give_way(desk, session)
    process.begins()
    assert messages_read(desk, session) > 0
    assert messages_read(desk, session) == 0


def to_the_letter(value: Any) -> Any:
    """With the types of all values, without the order of keys, which PostgreSQL does not keep."""
    if isinstance(value, dict):
        items = sorted(value.items())
        return type(value), [(to_the_letter(key), to_the_letter(each)) for key, each in items]
    if isinstance(value, list):
        return type(value), [to_the_letter(each) for each in value]
    if hasattr(value, "__dict__") and not isinstance(value, Enum):
        return type(value), to_the_letter(vars(value))
    return type(value), value


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_KINDS)
def test_what_is_kept_is_what_would_be_read(name: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step of each sample agent."""
    build, state = ALL_KINDS[name]
    desk.agent(build, policies={tool.name: ToolPolicy(idempotent=True) for tool in tools_of(build())})
    session = desk.start(state=state)
    taken = 0
    take = KeptContexts.take

    def take_and_compare(self: KeptContexts, session_id: UUID, *, epoch: int) -> Kept | None:
        nonlocal taken
        kept = take(self, session_id, epoch=epoch)
        if kept is not None:
            taken += 1
            branch = desk.fresh(session).current_branch
            checkpoint = restore.last_visible(Checkpoint, branch)
            assert checkpoint is not None
            assert kept.checkpoint == (checkpoint.position, checkpoint.created_at)
            stored = restore.stored_context(branch, checkpoint)
            assert kept.context.positions == [message.position for message in stored]
            assert kept.context.bytes > sum(message.size for message in stored)
            read = [as_message(message) for message in stored]
            assert list(map(to_the_letter, kept.context.messages)) == list(map(to_the_letter, read))
        return kept

    monkeypatch.setattr(KeptContexts, "take", take_and_compare)
    slices = 1
    while give_way(desk, session) == "queued":
        slices += 1
    assert taken == slices - 1


class _Own:
    """What JSON does not have."""


class _Reason(StrEnum):
    STOP = "stop"


class _Message(ChatMessage):
    """With methods of its own."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: ChatMessage.from_user("see", meta={"own": _Own()}),
        lambda: ChatMessage.from_user("see", meta={"reason": _Reason.STOP}),
        lambda: ChatMessage.from_user("see", meta={"reasons": [{_Reason.STOP: 1}]}),
        lambda: _Message(**vars(ChatMessage.from_user("see"))),
    ],
    ids=["object", "enum", "enum as a key", "subclass"],
)
def test_messages_that_are_stored_in_another_form_are_read_again(
    make: Callable[[], ChatMessage], desk: Desk, process: Process
) -> None:
    """The run that continues sees what is stored, in whichever process."""

    @hook
    def add_message(state: State) -> None:
        state.set("messages", [make()])

    desk.agent(lambda: sample_agents.long_run(hooks={"before_llm": [add_message]}))
    session = desk.start()
    give_way(desk, session)
    give_way(desk, session)
    assert messages_read(desk, session) > 0


def test_replies_that_are_stored_in_another_form_are_read_again(desk: Desk, process: Process) -> None:
    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        call = ToolCall("fast", {"q": f"q{len(messages)}"}, id=f"c{len(messages)}")
        return _Message(**vars(ChatMessage.from_assistant(tool_calls=[call])))

    desk.agent(
        lambda: Agent(chat_generator=MockChatGenerator(response_fn=reply), tools=[sample_agents.fast]),
        policies={"fast": ToolPolicy(idempotent=True)},
    )
    session = desk.start()
    kept = process.begins()
    assert [give_way(desk, session) for _ in range(2)] == ["queued"] * 2
    assert kept.sessions == []


def test_a_message_that_takes_the_place_of_an_equal_one_is_read_again(desk: Desk, process: Process) -> None:
    """It may be equal and have other types: what is stored is the one before it."""

    @hook
    def copy_messages(state: State) -> None:
        if len(messages := state.data["messages"]) > 2:
            state.set("messages", deepcopy(messages[1:]), handler_override=replace_values)

    desk.agent(lambda: sample_agents.long_run(hooks={"before_llm": [copy_messages]}))
    session = desk.start()
    kept = process.begins()
    assert [give_way(desk, session) for _ in range(3)] == ["queued"] * 3
    assert kept.sessions == []


def test_a_message_that_was_sent_meanwhile_is_read_in_addition(desk: Desk, process: Process) -> None:
    desk.agent(sample_agents.long_run)
    session = desk.start()
    give_way(desk, session)
    desk.say(session, "And hurry.")
    give_way(desk, session)
    assert messages_read(desk, session) == 0
    session = desk.run(desk.due(session))
    texts = desk.texts(session)
    assert texts.count(("user", "And hurry.")) == 1
    assert texts[-1] == ("assistant", "Long done.")


def test_another_history_is_read_though_the_process_has_the_former(desk: Desk, process: Process) -> None:
    desk.agent(sample_agents.long_run)
    session = desk.start()
    for _ in range(3):
        give_way(desk, session)
    earlier = Checkpoint.objects.filter(branch=desk.fresh(session).branch, kind="step").earliest("position")
    actions.rewind(
        actor=SYSTEM, session_id=session.pk, checkpoint_id=earlier.pk, run=True, reason="Once more."
    )
    assert messages_read(desk, session) > 0


def test_what_another_process_has_done_since_is_read(desk: Desk, process: Process) -> None:
    desk.agent(sample_agents.long_run)
    session = desk.start()
    first = process.begins()
    give_way(desk, session)
    process.begins()
    give_way(desk, session)
    assert first.take(session.pk, epoch=desk.fresh(session).epoch + 1) is None


def test_a_session_that_comes_to_rest_leaves_nothing_in_memory(desk: Desk, process: Process) -> None:
    desk.agent(sample_agents.long_run)
    session = desk.start()
    kept = process.begins()
    give_way(desk, session)
    assert kept.sessions == [session.pk]
    desk.run(desk.due(session))
    assert kept.sessions == []


def test_a_session_that_is_stopped_where_it_gives_way_leaves_nothing_in_memory(
    desk: Desk, process: Process
) -> None:
    @hook
    def cancel(state: State) -> None:
        actions.cancel(actor=SYSTEM, session_id=session.pk, reason="no more")

    desk.agent(lambda: sample_agents.long_run(hooks={"after_tool": [cancel]}))
    session = desk.start()
    kept = process.begins()
    assert give_way(desk, session) == "cancelled"
    assert kept.sessions == []


def test_after_the_database_was_put_back_what_is_there_now_is_read(desk: Desk, process: Process) -> None:
    """Its epochs and positions are given out a second time then."""
    replies = count()

    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        call = ToolCall("fast", {"q": f"reply {next(replies)}"})
        return ChatMessage.from_assistant(tool_calls=[call])

    desk.agent(
        lambda: Agent(chat_generator=MockChatGenerator(response_fn=reply), tools=[sample_agents.fast]),
        policies={"fast": ToolPolicy(idempotent=True)},
    )
    session = desk.start()
    give_way(desk, session)
    kept = process.begins()
    moment = transaction.savepoint()
    give_way(desk, session)
    transaction.savepoint_rollback(moment)
    process.begins()  # another one
    give_way(desk, session)
    process.begins(kept)
    assert messages_read(desk, session) > 0


def test_a_context_that_cannot_be_kept_is_logged_and_the_session_goes_on(
    desk: Desk, process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk.agent(sample_agents.long_run)
    session = desk.start()
    monkeypatch.setattr(module, "memory_of", lambda message: 1 / 0)
    assert give_way(desk, session) == "queued"
    assert f"The context of the session {session.pk} was not kept." in caplog.text
    assert give_way(desk, session) == "queued"


@pytest.mark.parametrize("arguments", ["{}", ["a"], None])
def test_arguments_that_are_no_object_are_kept_too(arguments: Any, desk: Desk, process: Process) -> None:
    @hook
    def add_call(state: State) -> None:
        if len(state.data["messages"]) == 1:
            call = ToolCall("fast", arguments, id="x")
            state.set("messages", [ChatMessage.from_assistant(tool_calls=[call])])
            state.set("messages", [ChatMessage.from_tool("done", call)])

    desk.agent(lambda: sample_agents.long_run(hooks={"before_llm": [add_call]}))
    session = desk.start()
    kept = process.begins()
    give_way(desk, session)
    give_way(desk, session)
    assert kept.sessions == [session.pk]
    assert messages_read(desk, session) == 0


def said(*texts: str) -> Context:
    return Context([ChatMessage.from_user(text) for text in texts], list(range(len(texts))))


def size_of(context: Context) -> int:
    kept = KeptContexts(MUCH)
    kept.keep(uuid4(), epoch=1, checkpoint=HERE, context=context)
    return kept.bytes


def measuring(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The messages that are measured, each of them with ten bytes."""
    measured: list[object] = []

    def memory_of(message: object) -> int:
        measured.append(message)
        return 10

    monkeypatch.setattr(module, "memory_of", memory_of)
    return measured


SESSION = uuid4()
HERE = CheckpointKey(9, datetime(2026, 1, 1, tzinfo=UTC))


def one() -> int:
    """What a message of one character takes, with its position."""
    size_of(said("a"))  # the first object of a class takes more
    return size_of(said("a"))


def keep(kept: KeptContexts, context: Context, session_id: UUID | None = None) -> UUID:
    session_id = session_id or uuid4()
    kept.keep(session_id, epoch=1, checkpoint=HERE, context=context)
    return session_id


def are_kept(kept: KeptContexts, *sessions: UUID) -> list[bool]:
    return [kept.take(session, epoch=2) is not None for session in sessions]


def test_the_oldest_make_room_for_the_newest() -> None:
    kept = KeptContexts(3 * one())
    first, second, third = keep(kept, said("a")), keep(kept, said("b")), keep(kept, said("c", "d"))
    assert are_kept(kept, first, second, third) == [False, True, True]
    assert kept.bytes == 0


def test_what_is_kept_of_a_session_takes_the_place_of_what_was() -> None:
    kept = KeptContexts(2 * one())
    first = keep(kept, said("a"))
    for text in "bcd":
        second = keep(kept, said(text), first)
    assert kept.bytes == one()
    second = keep(kept, said("e"))
    assert are_kept(kept, first, second) == [True, True]


def test_what_is_too_large_alone_is_not_kept_and_leaves_the_others() -> None:
    kept = KeptContexts(2 * one())
    small, large = keep(kept, said("a")), keep(kept, said("b" * 2 * one()))
    assert are_kept(kept, small, large) == [True, False]


def test_without_room_nothing_is_kept(settings: Any) -> None:
    settings.AGENTSTATE_KEEP_MB = 0
    kept_contexts.cache_clear()
    kept = kept_contexts()
    kept_contexts.cache_clear()
    assert are_kept(kept, keep(kept, said("a"))) == [False]


def test_the_setting_is_in_megabytes(settings: Any) -> None:
    settings.AGENTSTATE_KEEP_MB = 1
    kept_contexts.cache_clear()
    kept = kept_contexts()
    kept_contexts.cache_clear()
    small, large = keep(kept, said("a" * 900_000)), keep(kept, said("a" * 1_100_000))
    assert are_kept(kept, small, large) == [True, False]


def test_what_nobody_has_taken_for_long_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    kept = KeptContexts(MUCH)
    first = keep(kept, said("a"))
    now += KEPT_SECONDS / 2
    second = keep(kept, said("b"))
    now += KEPT_SECONDS / 2
    assert are_kept(kept, first, second) == [False, True]


@pytest.mark.django_db
def test_the_heartbeat_of_a_process_drops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what was said in a session that is deleted does not stay where no other session gives way."""
    kept = KeptContexts(MUCH)
    dropped = threading.Event()
    monkeypatch.setattr(kept, "drop_old", dropped.set)
    monkeypatch.setattr(process_module, "kept_contexts", lambda: kept)
    monkeypatch.setattr(process_module, "_heartbeats", {})
    monkeypatch.setattr(Heartbeat, "beat", lambda self: None)
    heartbeat = process_module.heartbeat()
    assert dropped.wait(60)
    heartbeat.__exit__(None, None, None)


def test_it_is_taken_once_and_in_the_next_epoch_only() -> None:
    kept = KeptContexts(MUCH)
    session = keep(kept, said("a"))
    assert kept.take(session, epoch=3) is None
    assert kept.take(session, epoch=2) is None  # the first question has dropped it
    again = keep(kept, said("a"))
    assert are_kept(kept, again, again) == [True, False]


def test_of_a_context_that_goes_on_only_what_is_new_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measuring(monkeypatch)
    kept = KeptContexts(MUCH)
    began = said("a", "b", "c")._replace(bytes=500)
    longer = Context([*began.messages, *said("d").messages], [*range(4)])
    shorter = Context(longer.messages[1:], [*range(3)])
    changed = Context([began.messages[0], *said("x").messages, *longer.messages[2:]], [*range(4)])
    for context, new, size in (longer, 1, 510), (shorter, 3, 30), (changed, 4, 40):
        measured.clear()
        kept.keep(SESSION, epoch=1, checkpoint=HERE, context=context, began=began)
        assert (len(measured), kept.bytes) == (new, size)


def test_a_list_that_a_hook_has_changed_in_place_is_measured_anew() -> None:
    kept = KeptContexts(MUCH)
    began = said("a", "b", "c")._replace(bytes=500)
    context = Context([*began.messages], [*range(3)])
    del began.messages[1:]
    kept.keep(SESSION, epoch=1, checkpoint=HERE, context=context, began=began)
    assert kept.bytes == size_of(context)


def test_nothing_is_measured_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measuring(monkeypatch)
    kept = KeptContexts(25)
    keep(kept, said(*"abcdefgh"))
    assert len(measured) == 3
    assert kept.sessions == []


ROWS = {"rows": [{"text": "x" * 1_000 + str(number)} for number in range(1_000)]}


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage.from_user("x" * 1_000_000),
        ChatMessage.from_user("ж" * 500_000),
        ChatMessage.from_user("😀" * 250_000),
        ChatMessage.from_assistant(tool_calls=[ToolCall("t", ROWS, id="i")]),
        ChatMessage.from_assistant("", reasoning=ReasoningContent("r", extra={"encrypted": "x" * 1_000_000})),
        ChatMessage.from_assistant("", meta={"logprobs": ROWS}),
        ChatMessage.from_tool([TextContent("x" * 1_000_000)], ToolCall("t", {})),
        ChatMessage.from_tool("r", ToolCall("t", {"content": "x" * 1_000_000})),
    ],
    ids=["text", "Cyrillic", "emoji", "arguments", "reasoning", "meta", "result in parts", "origin"],
)
def test_what_a_message_takes_is_counted_wherever_it_is_in_it(message: ChatMessage) -> None:
    assert 1_000_000 <= memory_of(message) < 1_300_000
