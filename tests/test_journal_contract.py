"""What every journal guarantees: what was written is read back by the next epoch, and an old epoch writes nothing."""

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentstate.durable.policy import EffectScope
from agentstate.durable.port import Journal, LeaseLost
from agentstate.durable.records import (
    AnsweredCall,
    ApprovalRecord,
    CallEnd,
    NewCall,
    NewCheckpoint,
    NewMessage,
    NewReply,
    Progress,
    Signals,
    Snapshot,
)
from agentstate.durable.run_end import (
    ApprovalRequest,
    Cancelled,
    Failed,
    FailedModelCall,
    Finished,
    GaveUp,
    InDoubt,
    NeedsApproval,
    Paused,
    RetryLater,
    RunEnd,
    Yielded,
)
from agentstate.durable.state.encoding import decode, encode, encode_result
from agentstate.journals.valkey import ValkeyJournal
from agentstate.names import CallState, Decision
from sessions_app.models import InboxMessage, Message
from sessions_app.runtime.journal import OrmJournal
from tests.adapters import Adapter, FileAdapter, MemoryAdapter, OrmAdapter, ValkeyAdapter

Json = Any
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PLANNING = Progress("planning", "idle", AT, {"edges": {"idle>planning": 1}})
EXECUTING = Progress("executing", "planning", AT, {"steps": 1, "model_seconds": 0.5})
DONE = Progress("done", "reflecting", AT, {"steps": 2})
FOLLOWUP = Progress("planning", "done", AT, {"steps": 2, "edges": {"done>planning": 1}})
Make = Callable[..., Adapter]


@pytest.fixture(
    params=[
        "memory",
        "file",
        pytest.param("valkey", marks=pytest.mark.redis),
        pytest.param("orm", marks=pytest.mark.django_db),
    ]
)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes sessions in one of the adapters."""
    if request.param == "orm":
        request.getfixturevalue("db")
    url = request.getfixturevalue("redis_url") if request.param == "valkey" else ""
    made: list[Adapter] = []

    def one(inputs: dict[str, Json] | None = None) -> Adapter:
        kinds: dict[str, Callable[[], Adapter]] = {
            "memory": lambda: MemoryAdapter(inputs),
            "file": lambda: FileAdapter(tmp_path / f"{len(made)}.jsonl", inputs),
            "valkey": lambda: ValkeyAdapter(url, f"s{len(made)}", inputs),
            "orm": lambda: OrmAdapter(inputs),
        }
        made.append(kinds[request.param]())
        return made[-1]

    yield one
    for adapter in made:
        adapter.close()


@pytest.fixture
def adapter(make: Make) -> Adapter:
    return make()


def body(role: str, text: str) -> dict[str, Json]:
    return {"role": role, "meta": {}, "name": None, "content": [{"text": text}]}


def message(text: str, role: str = "user") -> NewMessage:
    return NewMessage(body(role, text))


def checkpoint(kind: str = "step", *texts: str, **fields: Any) -> NewCheckpoint:
    options: dict[str, Any] = {"step": 0, "progress": PLANNING, "definition": "d1", **fields}
    return NewCheckpoint(kind=kind, messages=[message(text) for text in texts], **options)  # type: ignore[arg-type]


def reply(*texts: str, calls: tuple[NewCall, ...] = (), seq: int = 0, **fields: Any) -> NewReply:
    options: dict[str, Any] = {"name": "agent", "progress": EXECUTING if calls else PLANNING, **fields}
    return NewReply(
        seq=seq,
        messages=[body("assistant", text) for text in texts],
        started_at=AT,
        ended_at=AT + timedelta(seconds=1),
        calls=calls,
        **options,
    )


def pay(number: int) -> NewCall:
    return NewCall(f"c{number}", "pay", {"n": number})


def seen(snapshot: Snapshot) -> list[str]:
    """The texts of the context."""
    assert snapshot.checkpoint is not None
    return [stored.body["content"][0]["text"] for stored in snapshot.checkpoint.context]


def unread(snapshot: Snapshot) -> list[str]:
    """The texts of the unread messages."""
    return [item.body["content"][0]["text"] for item in snapshot.unread]


def begun(adapter: Adapter, *texts: str, **fields: Any) -> Journal:
    """A journal with a turn begun."""
    journal = adapter.open()
    journal.load()
    journal.checkpoint(checkpoint("start", *(texts or ("hi",)), **fields))
    return journal


def called(adapter: Adapter, *numbers: int) -> tuple[Journal, list[int]]:
    """A journal with a reply that asks for calls, and their positions."""
    journal = begun(adapter)
    commit = journal.reply(reply("I pay.", calls=tuple(map(pay, numbers or (1,)))))
    return journal, [record.position for record in commit.calls]


# Reading back


def test_a_new_session_has_its_inputs_and_its_unread_message_and_nothing_else(make: Make) -> None:
    adapter = make({"state": {"who": "Ann"}})
    snapshot = adapter.open(say="hello").load()
    assert snapshot.inputs == {"state": {"who": "Ann"}}
    assert unread(snapshot) == ["hello"]
    assert (snapshot.checkpoint, snapshot.replies, snapshot.calls, snapshot.allowed) == (
        None,
        (),
        (),
        frozenset(),
    )


@pytest.mark.parametrize("kind", ["start", "step", "prepared", "end"])
def test_a_checkpoint_is_read_back_whole(adapter: Adapter, kind: str) -> None:
    journal = begun(adapter)
    commit = journal.checkpoint(
        checkpoint(
            kind,
            "and",
            step=7,
            progress=replace(PLANNING, totals={"steps": 3, "seconds": {"planning": 0.5}}),
            state={"name": {"set": "Ann"}},
            counters={"step_count": 7, "token_usage": {"prompt_tokens": 12}, "context_tokens": None},
            tools=("pay", "look"),
            definition="d2",
        )
    )
    snapshot = adapter.open().load()
    base = snapshot.checkpoint
    assert base is not None
    assert (base.kind, base.step, base.tools, base.definition) == (kind, 7, ("pay", "look"), "d2")
    assert base.counters == {"step_count": 7, "token_usage": {"prompt_tokens": 12}, "context_tokens": None}
    assert base.state == {"name": "Ann"}
    assert seen(snapshot) == ["hi", "and"]
    assert base.context[-1].position == commit.positions[0] < base.position
    assert snapshot.definition == "d2"
    assert snapshot.progress == replace(PLANNING, totals={"steps": 3, "seconds": {"planning": 0.5}})


def test_tools_that_stay_the_same_are_read_back_at_every_later_checkpoint(adapter: Adapter) -> None:
    journal = begun(adapter, tools=("search",))
    for tools in [("search",), ("search", "found"), ("search", "found"), ("search", "found")]:
        journal.checkpoint(checkpoint("step", tools=tools))
        journal = adapter.open()
        base = journal.load().checkpoint
        assert base is not None
        assert base.tools == tools


@pytest.mark.slow
def test_positions_grow_and_are_never_used_twice(adapter: Adapter) -> None:
    journal = adapter.open()
    journal.load()
    given: list[int] = []
    for number in range(3):
        given += journal.checkpoint(checkpoint("step", f"a{number}", f"b{number}")).positions
        commit = journal.reply(reply("one", "two", calls=(pay(1), pay(2))), checkpoint("step", f"c{number}"))
        assert commit.checkpoint is not None
        given += [*commit.checkpoint.positions, *commit.positions, *(call.position for call in commit.calls)]
        given += [record.position for record in journal.plan([pay(3)])]
        journal = adapter.open()
        base = journal.load().checkpoint
        assert base is not None
        assert base.position not in given
    assert given == sorted(set(given))


def test_without_a_context_the_model_sees_what_it_saw_and_all_that_came_since(adapter: Adapter) -> None:
    journal = begun(adapter)
    journal.reply(reply("hello"))
    journal.checkpoint(checkpoint("step", "and?"))
    journal.reply(reply("well"), checkpoint("step"))
    assert seen(adapter.open().load()) == ["hi", "hello", "and?"]
    journal = adapter.open()
    journal.load()
    journal.checkpoint(checkpoint("step"))
    assert seen(adapter.open().load()) == ["hi", "hello", "and?", "well"]


@pytest.mark.slow
def test_a_context_holds_until_the_next_one(adapter: Adapter) -> None:
    journal = begun(adapter, "one", "two", "three")
    first = journal.load().checkpoint
    assert first is not None
    one, _, three = [stored.position for stored in first.context]
    commit = journal.checkpoint(checkpoint("prepared", "short", "long", context=[three, -2, one, -1]))
    assert seen(adapter.open().load()) == ["three", "long", "one", "short"]
    journal = adapter.open()
    journal.load()
    journal.reply(reply("hello"))
    journal.checkpoint(checkpoint("step", "more"))
    assert seen(adapter.open().load()) == ["three", "long", "one", "short", "hello", "more"]
    journal = adapter.open()
    journal.load()
    journal.checkpoint(checkpoint("step", context=[commit.positions[0]]))
    journal.checkpoint(checkpoint("step", "last"))
    assert seen(adapter.open().load()) == ["short", "last"]


def test_an_empty_context_is_not_the_whole_of_it(adapter: Adapter) -> None:
    journal = begun(adapter, "one")
    journal.checkpoint(checkpoint("step", context=[]))
    assert seen(adapter.open().load()) == []
    journal = adapter.open()
    journal.load()
    journal.checkpoint(checkpoint("step", "two"))
    assert seen(adapter.open().load()) == ["two"]


@pytest.mark.slow
def test_state_is_the_sum_of_what_changed(adapter: Adapter) -> None:
    journal = begun(adapter, state={"docs": {"set": [1]}, "name": {"set": "Ann"}, "gone": {"set": 1}})
    journal.checkpoint(checkpoint("step", state={"docs": {"extend": [2, 3]}, "gone": {"set": None}}))
    journal = adapter.open()
    journal.load()
    journal.checkpoint(checkpoint("prepared", state={"docs": {"extend": [4]}, "late": {"set": []}}))
    journal.checkpoint(checkpoint("step", state={"late": {"extend": ["x"]}}))
    base = adapter.open().load().checkpoint
    assert base is not None
    assert base.state == {"docs": [1, 2, 3, 4], "name": "Ann", "gone": None, "late": ["x"]}
    journal = adapter.open()
    journal.load()
    journal.checkpoint(checkpoint("step", state={"docs": {"set": ["anew"]}}))
    journal.checkpoint(checkpoint("step", state={"docs": {"extend": ["more"]}}))
    base = adapter.open().load().checkpoint
    assert base is not None
    assert base.state["docs"] == ["anew", "more"]


def test_replies_also_to_side_calls_are_read_back_until_the_step_is_over(adapter: Adapter) -> None:
    journal = begun(adapter)
    commit = journal.reply(reply("They talked.", name="summary", side_call=True))
    journal.reply(reply("one", "two"))
    journal.checkpoint(checkpoint("prepared"))
    journal.reply(reply("again", seq=1))
    snapshot = adapter.open().load()
    assert [(r.name, r.seq, [m.body for m in r.messages]) for r in snapshot.replies] == [
        ("summary", 0, [body("assistant", "They talked.")]),
        ("agent", 0, [body("assistant", "one"), body("assistant", "two")]),
        ("agent", 1, [body("assistant", "again")]),
    ]
    # The reply to a side call is not part of the conversation.
    assert seen(snapshot) == ["hi", "one", "two"]
    assert commit.calls == ()
    journal = adapter.open()
    journal.load()
    journal.checkpoint(checkpoint("step"))
    snapshot = adapter.open().load()
    assert snapshot.replies == ()
    assert seen(snapshot) == ["hi", "one", "two", "again"]


def test_a_reply_and_the_checkpoint_of_its_step_are_one_commit(adapter: Adapter) -> None:
    journal = begun(adapter, state={"n": {"set": 1}})
    journal.reply(reply("one"))
    commit = journal.reply(
        reply("two", calls=(pay(1),)), checkpoint("step", "between", step=1, state={"n": {"set": 2}})
    )
    snapshot = adapter.open().load()
    base = snapshot.checkpoint
    assert base is not None
    assert commit.checkpoint is not None
    assert (base.step, base.state, seen(snapshot)) == (1, {"n": 2}, ["hi", "one", "between"])
    assert [r.messages[0].body for r in snapshot.replies] == [body("assistant", "two")]
    assert [call.call_id for call in snapshot.calls] == ["c1"]
    assert commit.checkpoint.positions[0] < base.position < commit.positions[0] < commit.calls[0].position
    assert snapshot.progress == EXECUTING


def test_the_definition_of_a_checkpoint_that_came_with_a_reply_is_the_sessions(adapter: Adapter) -> None:
    journal = begun(adapter, definition="d1")
    journal.reply(reply("one"))
    journal.reply(reply("two"), checkpoint("step", definition="d2"))
    assert adapter.open().load().definition == "d2"


# Tool calls


def test_a_call_is_read_back_in_every_status(adapter: Adapter) -> None:
    journal, places = called(adapter, 0, 1, 2, 3, 4)
    for place in places[1:]:
        journal.start_call(place, sent={"n": 9} if place == places[1] else None, at=AT)
    journal.finish_call(
        places[2], CallEnd(CallState.DONE, AT, result={"paid": True}, state={"n": {"set": 1}}), EXECUTING
    )
    journal.finish_call(places[3], CallEnd(CallState.FAILED, AT, error="no money"), EXECUTING)
    journal.finish_call(places[4], CallEnd(CallState.DONE, AT, result=None, lossy=True, cached=True))
    calls = adapter.open().load().calls
    assert [call.position for call in calls] == places
    assert [call.status for call in calls] == ["planned", "started", "done", "failed", "done"]
    assert [call.attempt for call in calls] == [0, 1, 1, 1, 1]
    assert [call.sent for call in calls] == [None, {"n": 9}, None, None, None]
    assert [call.arguments for call in calls] == [{"n": n} for n in range(5)]
    assert (calls[2].result, calls[2].state) == ({"paid": True}, {"n": {"set": 1}})
    assert (calls[3].error, calls[3].result) == ("no money", None)
    assert len({call.idempotency_key for call in calls}) == 5


def test_a_call_that_is_started_again_keeps_its_key_and_counts_its_attempts(adapter: Adapter) -> None:
    journal, [place] = called(adapter)
    journal.start_call(place, sent=None, at=AT)
    first = adapter.open()
    [before] = first.load().calls
    first.start_call(place, sent=None, at=AT)
    [after] = adapter.open().load().calls
    assert (before.attempt, after.attempt) == (1, 2)
    assert before.idempotency_key == after.idempotency_key


def test_calls_that_a_hook_added_are_read_back_after_the_models(adapter: Adapter) -> None:
    journal, _ = called(adapter, 1)
    [added] = journal.plan([NewCall("extra", "look", {})])
    calls = adapter.open().load().calls
    assert [(call.call_id, call.tool) for call in calls] == [("c1", "pay"), ("extra", "look")]
    assert calls[1] == added


def test_calls_are_read_back_until_the_step_is_over(adapter: Adapter) -> None:
    journal, [place] = called(adapter)
    journal.checkpoint(checkpoint("prepared"))
    assert len(adapter.open().load().calls) == 1
    journal = adapter.open()
    journal.load()
    journal.start_call(place, sent=None, at=AT)
    journal.finish_call(place, CallEnd(CallState.DONE, AT, result="paid"), EXECUTING)
    journal.checkpoint(checkpoint("step"))
    assert adapter.open().load().calls == ()


def test_a_call_that_was_answered_without_running_ends_with_the_checkpoint(adapter: Adapter) -> None:
    journal, [first, second] = called(adapter, 1, 2)
    journal.start_call(first, sent=None, at=AT)
    journal.finish_call(first, CallEnd(CallState.DONE, AT, result="paid"))
    answered = [
        AnsweredCall(first, CallState.FAILED, "too late"),
        AnsweredCall(second, CallState.FAILED, "no such tool"),
    ]
    journal.checkpoint(checkpoint("prepared", answered=answered))
    calls = adapter.open().load().calls
    # What has ended already is not changed again.
    assert [(call.status, call.error) for call in calls] == [("done", ""), ("failed", "no such tool")]


def test_calls_of_many_threads_are_all_recorded(adapter: Adapter) -> None:
    journal, places = called(adapter, *range(8))
    together = threading.Barrier(8, timeout=30)

    def one(place: int) -> None:
        together.wait()
        try:
            journal.start_call(place, sent=None, at=AT)
            journal.finish_call(place, CallEnd(CallState.DONE, AT, result=place), EXECUTING)
        finally:
            journal.thread_done()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, places))
    assert [(call.status, call.result) for call in adapter.open().load().calls] == [
        ("done", p) for p in places
    ]


def test_there_are_no_discarded_calls_without_a_rewind(adapter: Adapter) -> None:
    journal, [place] = called(adapter)
    journal.start_call(place, sent=None, at=AT)
    scope = EffectScope(whole_tool=True)
    assert journal.earlier_effects("pay", {"n": 1}, position=place, scope=scope) is None


# People


def test_no_tool_is_pre_approved_before_a_person_has_approved_it_for_the_session(adapter: Adapter) -> None:
    journal, _ = called(adapter)
    assert journal.allowed() == frozenset()


def request(place: int, number: int = 1) -> ApprovalRequest:
    return ApprovalRequest(place, "pay", {"n": number}, "f" * 64)


def test_approvals_are_requested_and_answered(adapter: Adapter) -> None:
    journal, places = called(adapter, 1, 2, 3)
    requests = tuple(request(place, number) for number, place in enumerate(places, 1))
    journal.end_run(NeedsApproval("pay needs a yes.", requests))
    fields = adapter.fields()
    assert (fields["status"], fields["waiting_for"], fields["why"]) == (
        "waiting",
        "approval",
        "pay needs a yes.",
    )
    adapter.approve("c1")
    adapter.approve("c2", edited={"n": 20})
    adapter.reject("c3", "not that one")
    calls = adapter.open().load().calls
    assert [call.approval for call in calls] == [
        ApprovalRecord(Decision.APPROVED),
        ApprovalRecord(Decision.APPROVED, {"n": 20}),
        ApprovalRecord(Decision.REJECTED, None, "not that one"),
    ]
    assert [call.status for call in calls] == ["planned"] * 3


def test_what_was_approved_as_it_was_requested_is_read_back_while_the_history_shows_it(
    adapter: Adapter,
) -> None:
    journal, places = called(adapter, 1, 2, 3)
    assert journal.approved("pay") == ()
    requests = tuple(request(place, number) for number, place in enumerate(places, 1))
    journal.end_run(NeedsApproval("pay needs a yes.", requests))
    adapter.approve("c1")
    adapter.approve("c2", edited={"n": 20})
    adapter.reject("c3", "not that one")
    journal = adapter.open()
    journal.load()
    assert (journal.approved("pay"), journal.approved("look")) == (({"n": 1},), ())


def test_an_answer_is_not_lost_when_the_others_are_requested_again(adapter: Adapter) -> None:
    journal, [first, second] = called(adapter, 1, 2)
    journal.end_run(NeedsApproval("?", (request(first, 1), request(second, 2))))
    adapter.approve("c1")
    journal = adapter.open()
    calls = journal.load().calls
    assert [call.approval and call.approval.decision for call in calls] == ["approved", ""]
    journal.end_run(NeedsApproval("?", (request(second, 2),)))
    calls = adapter.open().load().calls
    assert [call.approval and call.approval.decision for call in calls] == ["approved", ""]


@pytest.mark.slow
def test_calls_in_doubt_are_decided(adapter: Adapter) -> None:
    journal, places = called(adapter, 1, 2, 3, 4)
    for place in places:
        journal.start_call(place, sent=None, at=AT)
    journal.end_run(InDoubt("?", tuple(places)))
    assert [call.status for call in adapter.open().load().calls] == ["doubt"] * 4
    journal = adapter.open()
    journal.load()
    journal.end_run(InDoubt("?", tuple(places)))
    adapter.decide("c1", result="it was paid")
    adapter.decide("c2", again=True)
    adapter.decide("c3", skip="leave it")
    calls = adapter.open().load().calls
    assert [call.status for call in calls] == ["done", "planned", "skipped", "doubt"]
    assert (calls[0].result, calls[2].error) == ("it was paid", "leave it")


@pytest.mark.slow
def test_unread_messages_are_read_by_their_id_or_all_at_a_step(adapter: Adapter) -> None:
    journal = adapter.open(say="first")
    adapter.say("second")
    first, second = journal.load().unread
    new = replace(checkpoint("start"), messages=[NewMessage(unread_id=first.id), message("mine")])
    commit = journal.checkpoint(new)
    assert commit.signals.unread
    assert commit.read == ()
    snapshot = adapter.open().load()
    assert (seen(snapshot), unread(snapshot)) == (["first", "mine"], ["second"])
    assert snapshot.unread == (second,)

    journal = adapter.open()
    journal.load()
    left = journal.checkpoint(checkpoint("step", read_unread=False))
    assert (left.read, left.signals.unread) == ((), True)
    assert journal.checkpoint(checkpoint("prepared")).read == ()
    taken = journal.checkpoint(checkpoint("step", "before"))
    assert [stored.body for stored in taken.read] == [body("user", "second")]
    assert taken.read[0].position > taken.positions[0]
    assert seen(adapter.open().load()) == ["first", "mine", "before", "second"]
    assert unread(adapter.open().load()) == []


@pytest.mark.django_db
def test_the_desk_shows_of_a_message_when_it_was_sent_not_when_the_agent_read_it() -> None:
    adapter = OrmAdapter()
    journal = adapter.open(say="first")
    adapter.say("second")
    sent = {"first": AT - timedelta(hours=2), "second": AT - timedelta(hours=1)}
    for text, at in sent.items():
        InboxMessage.objects.filter(text=text).update(created_at=at)
    first, _ = journal.load().unread
    journal.checkpoint(
        replace(checkpoint("start"), messages=[NewMessage(unread_id=first.id), message("own")])
    )
    journal.checkpoint(checkpoint("step"))
    times = dict(Message.objects.values_list("text", "created_at"))
    assert {text: times[text] for text in sent} == sent
    assert times["own"] > sent["second"]


def test_unread_messages_are_read_into_the_end_of_a_context_too(adapter: Adapter) -> None:
    journal = begun(adapter, "one", "two")
    base = journal.load().checkpoint
    assert base is not None
    adapter.say("news")
    journal.checkpoint(checkpoint("step", "short", context=[base.context[0].position, -1]))
    assert seen(adapter.open().load()) == ["one", "short", "news"]


def test_every_commit_signals_a_message_that_came_meanwhile(adapter: Adapter) -> None:
    journal, [place] = called(adapter)
    assert journal.start_call(place, sent=None, at=AT) == Signals()
    adapter.say("wait")
    assert journal.finish_call(place, CallEnd(CallState.DONE, AT, result="paid")).unread
    assert journal.reply(reply("ok")).signals.unread


# The end of a run


def end(journal: Journal, **fields: Any) -> None:
    run_end = Finished(final_answer="All done.", exit_reason="text")
    journal.checkpoint(checkpoint("end", progress=DONE, run_end=run_end, next_turn=FOLLOWUP, **fields))


def reflecting(adapter: Adapter) -> Journal:
    journal, [place] = called(adapter)
    journal.start_call(place, sent=None, at=AT)
    journal.finish_call(
        place,
        CallEnd(CallState.DONE, AT, result="paid"),
        replace(EXECUTING, phase="reflecting", previous="executing"),
    )
    return journal


def test_the_end_of_a_turn_ends_the_run_in_the_same_commit(adapter: Adapter) -> None:
    end(reflecting(adapter))
    fields = adapter.fields()
    assert (fields["status"], fields["final_answer"], fields["exit_reason"]) == ("idle", "All done.", "text")
    snapshot = adapter.open(say="and now?").load()
    assert snapshot.checkpoint is not None
    assert (snapshot.checkpoint.kind, snapshot.progress, unread(snapshot)) == ("end", DONE, ["and now?"])


def test_a_turn_that_ends_with_a_message_unread_goes_on_with_it(adapter: Adapter) -> None:
    journal = reflecting(adapter)
    adapter.say("one more thing")
    end(journal)
    fields = adapter.fields()
    assert (fields["status"], fields["final_answer"]) == ("queued", "All done.")
    snapshot = adapter.open().load()
    assert (snapshot.progress, unread(snapshot)) == (FOLLOWUP, ["one more thing"])
    assert snapshot.checkpoint is not None
    assert snapshot.checkpoint.kind == "end"


def test_a_message_that_the_end_itself_reads_is_not_unread(adapter: Adapter) -> None:
    journal = reflecting(adapter)
    adapter.say("by the way")
    [item] = journal.load().unread
    new = checkpoint("end", progress=DONE, run_end=Finished(), next_turn=FOLLOWUP)
    journal.checkpoint(replace(new, messages=[NewMessage(unread_id=item.id)]))
    assert adapter.fields()["status"] == "idle"
    assert adapter.open().load().progress == DONE


FAILED_CALL = FailedModelCall("agent", 0, "TimeoutError: slow", AT, AT)
FAILED = Progress("error", "planning", AT, {})


@pytest.mark.parametrize(
    "run_end, progress",
    [
        (Yielded(), None),
        (RetryLater("The model failed.", delay=30.0, failed_call=FAILED_CALL), None),
        (Paused(), None),
        (GaveUp("5 times", failed_call=FAILED_CALL), None),
        (Failed("ValueError: no", failed_call=FAILED_CALL), FAILED),
        (Failed("ValueError: no"), FAILED),
        (Cancelled(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_end_of_a_run_leaves_the_status_and_why(
    adapter: Adapter, run_end: RunEnd, progress: Progress | None
) -> None:
    journal = begun(adapter)
    journal.end_run(run_end, progress)
    fields = adapter.fields()
    error = run_end.error if isinstance(run_end, Failed) else ""
    assert (fields["status"], fields["waiting_for"]) == (run_end.status, run_end.waiting_for)
    assert (fields["error"], fields["why"]) == (error, "" if error else run_end.reason)
    snapshot = adapter.open().load()
    assert snapshot.progress == (progress or PLANNING)
    # A model call that failed is no reply.
    assert (seen(snapshot), snapshot.replies) == (["hi"], ())


def test_a_slice_ends_with_its_checkpoint(adapter: Adapter) -> None:
    journal = begun(adapter)
    journal.reply(reply("one"))
    journal.checkpoint(checkpoint("step", step=1, run_end=Yielded()))
    assert adapter.fields()["status"] == "queued"
    assert seen(adapter.open().load()) == ["hi", "one"]


# One writer

WRITES: dict[str, Callable[[Journal, int], Any]] = {
    "load": lambda journal, place: journal.load(),
    "checkpoint": lambda journal, place: journal.checkpoint(checkpoint("step", "late")),
    "step that reads messages": lambda journal, place: journal.checkpoint(checkpoint("step")),
    "reply": lambda journal, place: journal.reply(reply("late")),
    "reply with its checkpoint": lambda journal, place: journal.reply(
        reply("late"), checkpoint("step", "late")
    ),
    "plan": lambda journal, place: journal.plan([pay(9)]),
    "start_call": lambda journal, place: journal.start_call(place, sent=None, at=AT),
    "finish_call": lambda journal, place: journal.finish_call(
        place, CallEnd(CallState.DONE, AT, result="late"), EXECUTING
    ),
    "end_run": lambda journal, place: journal.end_run(Failed("late")),
    "end": lambda journal, place: end(journal),
}


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITES)
def test_a_journal_whose_epoch_is_over_changes_nothing(adapter: Adapter, write: str) -> None:
    old, [place] = called(adapter)
    adapter.say("unread")
    before = adapter.open().load()
    with pytest.raises(LeaseLost):
        WRITES[write](old, place)
    new = adapter.open()
    assert new.load() == before
    new.checkpoint(checkpoint("step", "mine", read_unread=False))
    with pytest.raises(LeaseLost):
        WRITES[write](old, place)
    assert seen(adapter.open().load()) == ["hi", "I pay.", "mine"]


def test_right_before_a_tool_is_entered_a_journal_whose_epoch_is_over_says_so(adapter: Adapter) -> None:
    journal, _ = called(adapter)
    if isinstance(journal, OrmJournal):
        journal.claim.lease_end = AT  # until then it need not look
    if isinstance(journal, ValkeyJournal):
        journal.store.written_at = -math.inf  # as if it had stood still since
    journal.check_claim()
    adapter.open()
    with pytest.raises(LeaseLost):
        journal.check_claim()


# Values


ODD = {
    "zebra": 1,
    "ant": {"zz": 1, "b": [], "a": {}},
    "B": None,
    "": "",
    "big": 1e23,
    "large": 1e16,
    "zero": -0.0,
    "one": 1.0,
    "tiny": 5e-324,
    "long": 10**30,
    "text": "\u2028 \U0001f600 \\u0000 \" ' \x7f",
    "tagged": {"$type": "tuple", "value": [1]},
    "pair": (1, {2: b"3"}),
}


def test_odd_values_come_back_as_they_were(adapter: Adapter) -> None:
    data = encode(ODD)
    journal = begun(adapter, state={"odd": {"set": data}}, counters={"z": 1.0, "a": 2})
    body = {"role": "assistant", "meta": {"odd": data}, "name": None, "content": [{"text": "x"}]}
    commit = journal.reply(replace(reply(calls=(NewCall("c1", "pay", data),)), messages=[body]))
    [call] = commit.calls
    journal.start_call(call.position, sent=data, at=AT)
    journal.finish_call(call.position, CallEnd(CallState.DONE, AT, result=data, state={"odd": {"set": data}}))
    snapshot = adapter.open().load()
    [record] = snapshot.calls
    [then] = snapshot.replies
    assert snapshot.checkpoint is not None
    assert record.state is not None
    stored = [
        snapshot.checkpoint.state["odd"],
        record.arguments,
        record.sent,
        record.result,
        record.state["odd"]["set"],
    ]
    for found in [*stored, then.messages[0].body["meta"]["odd"]]:
        assert found == data
        assert {key: repr(value) for key, value in decode(found).items() if key != "ant"} == {
            key: repr(value) for key, value in ODD.items() if key != "ant"
        }
    assert snapshot.checkpoint.counters == {"z": 1.0, "a": 2}


def test_a_result_is_shown_to_the_model_as_the_same_text_when_it_is_replayed(adapter: Adapter) -> None:
    """What the model sees of a result is its JSON, so the order of its keys is part of it."""
    data, _ = encode_result(ODD)
    journal, [place] = called(adapter)
    journal.start_call(place, sent=None, at=AT)
    journal.finish_call(place, CallEnd(CallState.DONE, AT, result=data))
    [record] = adapter.open().load().calls
    assert repr(decode(record.result)) == repr(ODD)


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    ["", "x" * 10_000_000, None, False, 0, [], {}, encode(math.nan), "null", '"', "\\"],
    ids=lambda v: str(v)[:9],
)
def test_any_result_comes_back_as_it_was(adapter: Adapter, value: Json) -> None:
    journal, [place] = called(adapter)
    journal.start_call(place, sent=None, at=AT)
    journal.finish_call(place, CallEnd(CallState.DONE, AT, result=value))
    [record] = adapter.open().load().calls
    assert record.status == "done"
    assert record.result == value
    assert type(record.result) is type(value)


def test_a_tools_result_in_the_conversation_is_the_one_of_its_call(adapter: Adapter) -> None:
    journal, [place] = called(adapter)
    journal.start_call(place, sent=None, at=AT)
    journal.finish_call(place, CallEnd(CallState.DONE, AT, result="a long result"))
    origin = {"tool_name": "pay", "arguments": {"n": 1}, "id": "c1", "extra": None}
    part = {"tool_call_result": {"result": "a long result", "origin": origin, "error": False}}
    body: dict[str, Json] = {"role": "tool", "meta": {}, "name": None, "content": [part]}
    journal.checkpoint(replace(checkpoint("step"), messages=[NewMessage(body)]))
    base = adapter.open().load().checkpoint
    assert base is not None
    assert base.context[-1].body == body
