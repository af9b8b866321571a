"""The policies of tools are applied: idempotence, approval, cache and time limit."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Annotated, Any

import pytest
from django.test import Client
from django.utils import timezone
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage
from haystack.dataclasses import ToolCall as Call
from haystack.tools import tool

import agentstate
from agentstate import ToolPolicy
from agentstate.durable import tool_function
from agentstate.durable.agent import make_durable
from agentstate.durable.cache import MemoryToolCache, cache_key
from agentstate.durable.long_term_tools import long_term_tools
from agentstate.durable.registry import AgentBuildFailed
from agentstate.durable.run import Options, run
from agentstate.durations import LONGEST_SECONDS
from agentstate.journals import MemoryJournal
from agentstate.names import STAFF_NOTE
from sessions_app import actions
from sessions_app.models import Approval, CallStatus, Phase, Session, Status, ToolCall, ToolResult, WaitingFor
from sessions_app.runtime import recovery
from sessions_app.runtime.worker import drive
from tests import builders, sample_agents
from tests.builders import SYSTEM
from tests.driving import Desk
from tests.dying import Died
from tests.sample_agents import effect, effects, scripted

pytestmark = pytest.mark.django_db


def dying_once(then: Callable[[], Any] = lambda: "paid") -> Callable[[], Any]:
    """A tool's function: the process dies in it the first time."""
    lives = iter([False])

    def pay() -> Any:
        effect(f"pay {agentstate.idempotency_key()}")
        if not next(lives, True):
            raise Died
        return then()

    return pay


def lost(desk: Desk, session: Session) -> Session:
    """Drive until the worker dies; then its lease runs out."""
    with pytest.raises(Died):
        desk.drive(session)
    assert desk.fresh(session).status == Status.RUNNING
    Session.objects.filter(pk=session.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    return desk.fresh(session)


def paid() -> list[str]:
    return [each for each in effects if each.startswith("pay")]


def tool_messages(desk: Desk, session: Session) -> list[str]:
    """The texts of the tools' messages, as the model reads them."""
    return [text for role, text in desk.texts(session) if role == "tool"]


# Idempotent or in doubt


def test_an_idempotent_call_that_lost_its_worker_runs_again_with_the_same_key(desk: Desk) -> None:
    desk.agent(lambda: sample_agents.one_tool(dying_once()), policies={"it": ToolPolicy(idempotent=True)})
    session = desk.run(lost(desk, desk.start()))
    assert (session.status, session.final_answer) == (Status.IDLE, "Over.")
    [call] = desk.calls(session)
    assert paid() == [f"pay {call.idempotency_key}"] * 2
    assert (call.status, call.result, call.attempt) == (CallStatus.DONE, "paid", 2)
    assert tool_messages(desk, session) == ["paid"]
    assert len(desk.model_calls(session)) == 2


@pytest.mark.slow
def test_the_worker_that_ran_a_call_is_recorded_and_shown(desk: Desk, client: Client) -> None:
    desk.agent(lambda: sample_agents.one_tool(dying_once()), policies={"it": ToolPolicy(idempotent=True)})
    session = lost(desk, desk.start())
    assert [call.worker for call in desk.calls(session)] == ["w1"]
    while drive(session.pk, worker="host-2:17") == "queued":
        desk.due(session)
    [call] = desk.calls(session)
    assert call.worker == "host-2:17"
    client.force_login(builders.user("viewer"))
    for address in (f"/sessions/{session.pk}/", f"/sessions/{session.pk}/calls/{call.pk}/"):
        assert "on <b>host-2:17</b>" in client.get(address).content.decode()


def test_a_call_that_is_not_waits_for_a_person(desk: Desk) -> None:
    desk.agent(lambda: sample_agents.one_tool(dying_once()))
    session = desk.run(lost(desk, desk.start()))
    assert (session.status, session.waiting_for, session.phase) == (
        Status.WAITING,
        WaitingFor.DOUBT,
        Phase.EXECUTING,
    )
    assert session.why == "it was started and did not report back. It may or may not have taken effect."
    assert (session.worker, session.lease_expires_at, session.next_run_at) == ("", None, None)
    assert desk.events(session)[-2:] == ["lost", "in_doubt"]
    [call] = desk.doubts(session)
    assert (call.attempt, call.ended_at) == (1, None)
    assert len(paid()) == 1
    assert desk.drive(session) == "busy"


@pytest.mark.slow
@pytest.mark.parametrize(
    "how, answer, status, times",
    [
        ({"result": "it was paid"}, "it was paid", CallStatus.DONE, 1),
        ({"again": True}, "paid", CallStatus.DONE, 2),
        ({"skip": "Leave it, please."}, "Leave it, please.", CallStatus.SKIPPED, 1),
    ],
    ids=["result", "again", "skip"],
)
def test_a_person_decides_a_call_in_doubt_and_the_model_is_told(
    desk: Desk, how: dict[str, Any], answer: str, status: CallStatus, times: int
) -> None:
    desk.agent(lambda: sample_agents.one_tool(dying_once()))
    session = desk.run(lost(desk, desk.start()))
    [call] = desk.doubts(session)
    actions.decide(actor=SYSTEM, session_id=session.pk, call_id=call.pk, reason="looked it up", **how)
    session = desk.run(session)
    assert (session.status, session.final_answer) == (Status.IDLE, "Over.")
    [call] = desk.calls(session)
    assert call.status == status
    assert len(paid()) == times
    assert len(set(paid())) == 1
    [text] = tool_messages(desk, session)
    assert answer in text
    assert len(desk.model_calls(session)) == 2


@pytest.mark.slow
def test_calls_beside_the_one_in_doubt_run_once(desk: Desk) -> None:
    def build() -> Agent:
        calls = [
            Call("fast", {"q": "a"}, id="c1"),
            Call("it", {}, id="c2"),
            Call("slow", {"q": "b"}, id="c3"),
        ]
        agent = sample_agents.one_tool(dying_once())
        return Agent(
            chat_generator=scripted(calls, "Over."),
            tools=[*agent.tools, sample_agents.fast, sample_agents.slow],
        )

    desk.agent(build)
    session = desk.run(lost(desk, desk.start()))
    assert session.waiting_for == WaitingFor.DOUBT
    assert [call.call_id for call in desk.doubts(session)] == ["c2"]
    actions.decide(actor=SYSTEM, session_id=session.pk, call_id="c2", reason="looked", result="it was paid")
    session = desk.run(session)
    assert tool_messages(desk, session) == ["fast:a", "it was paid", "slow:b"]
    assert did() == ["fast(a)", paid()[0], "slow(b)"]


@pytest.mark.slow
def test_keys_are_unique_and_only_a_running_call_has_one(desk: Desk) -> None:
    desk.agent(sample_agents.everything)
    keys = [call.idempotency_key for call in desk.calls(desk.run(desk.start(state={"who": "Ann"})))]
    assert len(set(keys)) == len(keys) > 8
    with pytest.raises(RuntimeError, match=r"agentstate\.idempotency_key"):
        agentstate.idempotency_key()


# Approval


REFUND_FIRST = {"refund": ToolPolicy(approval=True, approval_ttl=3600, effect="moves money")}


def asking(desk: Desk) -> Session:
    desk.agent(sample_agents.refunds, policies=REFUND_FIRST)
    return desk.run(desk.start())


def open_approvals(session: Session) -> list[Approval]:
    return list(Approval.objects.filter(session=session, decision="").order_by("call__position"))


def did() -> list[str]:
    return sorted(each for each in effects if not each.startswith("model"))


def test_a_call_that_needs_approval_suspends_the_session_without_a_worker(desk: Desk) -> None:
    session = asking(desk)
    assert (session.status, session.waiting_for, session.phase) == (
        Status.WAITING,
        WaitingFor.APPROVAL,
        Phase.EXECUTING,
    )
    assert (session.worker, session.lease_expires_at, session.attempt) == ("", None, 0)
    assert session.why == "refund needs approval."
    assert desk.last_event(session).kind == "asked"
    # All of the step are asked for at once, and none of it runs before all are answered.
    assert [approval.arguments for approval in open_approvals(session)] == [
        {"order": "A1", "amount": 100},
        {"order": "B2", "amount": 7},
    ]
    assert did() == []
    assert all(call.status == CallStatus.PLANNED for call in desk.calls(session))
    for approval in open_approvals(session):
        assert approval.expires_at is not None
        assert timedelta(minutes=59) < approval.expires_at - timezone.now() <= timedelta(hours=1)


@pytest.mark.slow
def test_approved_calls_run_with_exactly_those_arguments_and_the_model_is_not_asked_again(desk: Desk) -> None:
    session = asking(desk)
    for approval in open_approvals(session):
        assert desk.drive(session) == "busy"
        actions.approve(
            actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, fingerprint=approval.fingerprint
        )
    session = desk.run(session)
    assert (session.phase, session.final_answer) == (Phase.DONE, "Refund handled.")
    assert did() == ["fast(look)", "refund(A1,100)", "refund(B2,7)"]
    assert len(desk.model_calls(session)) == 2
    assert tool_messages(desk, session) == ["fast:look", "refunded 100 for A1", "refunded 7 for B2"]


def test_changed_arguments_reach_the_tool_and_the_conversation(desk: Desk) -> None:
    session = asking(desk)
    first, second = open_approvals(session)
    edited = {"order": "A1", "amount": 55}
    actions.approve(
        actor=SYSTEM, session_id=session.pk, call_id=first.call_id, edited=edited, reason="too much"
    )
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=second.call_id)
    session = desk.run(session)
    assert session.phase == Phase.DONE
    assert did() == ["fast(look)", "refund(A1,55)", "refund(B2,7)"]
    call = ToolCall.objects.get(pk=first.call_id)
    assert (call.arguments, call.sent) == ({"order": "A1", "amount": 100}, edited)
    assert "refunded 55 for A1" in tool_messages(desk, session)
    conversation = "\n".join(text for _, text in desk.texts(session))
    note = "A person changed the arguments of 'refund' to "
    assert f'{STAFF_NOTE} {note}{{"order": "A1", "amount": 55}}' in conversation


@pytest.mark.slow
def test_a_rejection_reaches_the_model_in_place_of_a_result(desk: Desk) -> None:
    session = asking(desk)
    first, second = open_approvals(session)
    actions.reject(actor=SYSTEM, session_id=session.pk, call_id=first.call_id, message="Not this customer.")
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=second.call_id)
    session = desk.run(session)
    assert session.phase == Phase.DONE
    assert did() == ["fast(look)", "refund(B2,7)"]
    assert any("Not this customer." in text for text in tool_messages(desk, session))
    call = ToolCall.objects.get(pk=first.call_id)
    assert (call.status, call.attempt, call.started_at) == (CallStatus.REJECTED, 0, None)
    assert "Not this customer." in call.error


@pytest.mark.slow
def test_an_approval_that_is_not_given_in_time_expires_and_the_model_is_told(desk: Desk) -> None:
    session = asking(desk)
    assert recovery.sweep(timezone.now() + timedelta(hours=2)) == [session.pk]
    session = desk.run(desk.due(session))
    assert session.phase == Phase.DONE
    assert did() == ["fast(look)"]
    assert sum(recovery.EXPIRED in text for text in tool_messages(desk, session)) == 2
    assert {call.status for call in desk.calls(session) if call.tool == "refund"} == {CallStatus.REJECTED}


@pytest.mark.slow
def test_a_worker_lost_while_an_approved_call_runs_leaves_it_in_doubt_not_unapproved(desk: Desk) -> None:
    desk.agent(lambda: sample_agents.one_tool(dying_once()), policies={"it": ToolPolicy(approval=True)})
    session = desk.run(desk.start())
    [approval] = open_approvals(session)
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id)
    session = desk.run(lost(desk, session))
    assert session.waiting_for == WaitingFor.DOUBT
    actions.decide(actor=SYSTEM, session_id=session.pk, call_id="x1", reason="nothing happened", again=True)
    session = desk.run(session)
    assert (session.phase, len(paid())) == (Phase.DONE, 2)
    assert Approval.objects.filter(session=session).count() == 1


@pytest.mark.slow
def test_haystacks_own_confirmation_suspends_the_session_too(desk: Desk) -> None:
    desk.agent(sample_agents.confirmed)
    session = desk.run(desk.start())
    assert (session.status, session.waiting_for) == (Status.WAITING, WaitingFor.APPROVAL)
    first, second = open_approvals(session)
    actions.approve(
        actor=SYSTEM, session_id=session.pk, call_id=first.call_id, edited={"order": "A1", "amount": 1}
    )
    actions.reject(actor=SYSTEM, session_id=session.pk, call_id=second.call_id, message="No.")
    session = desk.run(session)
    assert session.phase == Phase.DONE
    assert did() == ["fast(look)", "refund(A1,1)"]


def test_a_call_that_both_want_confirmed_is_requested_once(desk: Desk) -> None:
    desk.agent(sample_agents.confirmed, policies=REFUND_FIRST)
    session = desk.run(desk.start())
    approvals = open_approvals(session)
    assert len(approvals) == 2
    for approval in approvals:
        assert approval.expires_at is not None
        actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id)
    assert desk.run(session).phase == Phase.DONE
    assert did() == ["fast(look)", "refund(A1,100)", "refund(B2,7)"]


@pytest.mark.slow
def test_an_approval_for_the_whole_session_is_not_asked_for_again(desk: Desk) -> None:
    session = asking(desk)
    first, second = open_approvals(session)
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=first.call_id, for_session=True)
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=second.call_id)
    session = desk.run(session)
    desk.say(session, "and again")
    session = desk.run(session)
    assert session.phase == Phase.DONE
    assert did().count("refund(A1,100)") == 2


@pytest.mark.slow
def test_an_approval_for_the_session_does_not_count_in_another(desk: Desk) -> None:
    session = asking(desk)
    for approval in open_approvals(session):
        actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, for_session=True)
    desk.run(session)
    assert desk.run(desk.start()).waiting_for == WaitingFor.APPROVAL


# Cache


@tool
def look(q: Annotated[str, "what"]) -> dict[str, Any]:
    """Looks something up."""
    effect(f"look({q})")
    return {"zebra": q, "ant": [1, None]}


@tool
def nothing(q: Annotated[str, "what"]) -> None:
    """Finds nothing."""
    effect(f"nothing({q})")


@tool
def fails(q: Annotated[str, "what"]) -> str:
    """Raises."""
    effect(f"fails({q})")
    raise ValueError("not today")


@tool
def odd(q: Annotated[str, "what"]) -> Any:
    """Returns what cannot be stored."""
    effect(f"odd({q})")
    return {"it": object()}


@tool
def writes(q: Annotated[str, "what"], state: State) -> str:
    """Writes to the State."""
    effect(f"writes({q})")
    state.set("notes", [q])
    return "written"


def looking(*calls: tuple[str, str], one_step: bool = False) -> Callable[[], Agent]:
    made = [Call(name, {"q": q}, id=f"c{number}") for number, (name, q) in enumerate(calls)]
    replies: list[str | list[Call]] = [made] if one_step else [[call] for call in made]

    def build() -> Agent:
        return Agent(
            chat_generator=scripted(*replies, "Looked."),
            tools=[look, nothing, fails, odd, writes],
            state_schema={"notes": {"type": list[str]}},
            tool_concurrency_limit=1,
        )

    return build


CACHED = {name: ToolPolicy(cache_ttl=60) for name in ("look", "nothing", "fails", "odd", "writes")}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def looked(
    cache: MemoryToolCache | None, *calls: tuple[str, str], key: str = "agent", **how: Any
) -> list[str]:
    effects.clear()
    journal = MemoryJournal.open(say="hi")
    outcome = run(
        make_durable(looking(*calls, **how)(), key=key, policies=CACHED), journal, Options(cache=cache)
    )
    assert outcome.status == "idle", outcome.why
    return [each for each in effects if not each.startswith("model")]


def test_a_result_is_reused_for_the_same_arguments_and_for_no_others() -> None:
    cache = MemoryToolCache()
    assert looked(cache, ("look", "a"), ("look", "b"), ("look", "a")) == ["look(a)", "look(b)"]
    assert looked(cache, ("look", "a")) == []
    assert looked(cache, ("look", "A")) == ["look(A)"]
    assert looked(cache, ("look", "a"), key="another agent") == ["look(a)"]
    assert looked(None, ("look", "a"), ("look", "a")) == ["look(a)", "look(a)"]


def test_a_result_is_reused_until_its_time_is_over() -> None:
    clock = Clock()
    cache = MemoryToolCache(clock)
    assert looked(cache, ("look", "a")) == ["look(a)"]
    clock.now = 59.9
    assert looked(cache, ("look", "a")) == []
    clock.now = 60.0
    assert looked(cache, ("look", "a")) == ["look(a)"]


def test_that_nothing_was_found_is_a_result_too() -> None:
    cache = MemoryToolCache()
    assert looked(cache, ("nothing", "a"), ("nothing", "a")) == ["nothing(a)"]


@pytest.mark.parametrize("name", ["fails", "odd", "writes"])
def test_what_failed_or_was_lost_or_wrote_to_the_state_is_not_reused(name: str) -> None:
    cache = MemoryToolCache()
    assert looked(cache, (name, "a"), (name, "a")) == [f"{name}(a)"] * 2


def test_the_key_is_a_whole_hash_of_canonical_arguments() -> None:
    one = cache_key("claims", "look", {"a": 1, "b": [None]})
    assert one == cache_key("claims", "look", {"b": [None], "a": 1})
    assert one.startswith("tool:cache:look:")
    assert len(one.rpartition(":")[2]) == 64
    others = [("claims", "look", {"a": 1, "b": []}), ("other", "look", {"a": 1, "b": [None]})]
    assert one not in [cache_key(*other) for other in others]


def test_a_hit_is_recorded_as_a_hit_and_costs_nothing(desk: Desk) -> None:
    desk.agent(looking(("look", "a"), ("look", "a"), ("look", "b")), policies=CACHED)
    session = desk.run(desk.start())
    first, hit, other = desk.calls(session)
    assert [each for each in effects if each.startswith("look")] == ["look(a)", "look(b)"]
    assert (hit.status, hit.cached, hit.attempt, hit.started_at) == (CallStatus.DONE, True, 0, None)
    assert hit.result == first.result
    assert hit.ended_at is not None
    assert not first.cached
    assert not other.cached
    assert (session.totals["tool_calls"], session.totals["cached"]) == (3, 1)
    # The model sees the same text for it, to the order of the keys.
    assert (
        tool_messages(desk, session)[0]
        == tool_messages(desk, session)[1]
        == '{"zebra": "a", "ant": [1, null]}'
    )


@pytest.mark.slow
def test_the_cache_is_shared_by_sessions_and_lasts_as_long_as_its_policy_says(desk: Desk) -> None:
    desk.agent(looking(("look", "a")), policies=CACHED)
    desk.run(desk.start())
    desk.run(desk.start())
    assert [each for each in effects if each.startswith("look")] == ["look(a)"]
    ToolResult.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    desk.run(desk.start())
    assert [each for each in effects if each.startswith("look")] == ["look(a)"] * 2


def test_an_unavailable_cache_is_an_empty_one(
    desk: Desk, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    desk.agent(looking(("look", "a"), ("look", "a")), policies=CACHED)
    session = desk.run(desk.start())
    assert session.phase == Phase.DONE
    assert [each for each in effects if each.startswith("look")] == ["look(a)"] * 2
    assert "The tool cache cannot be read." in caplog.text


@pytest.mark.parametrize("declared", [{"effect": "moves money"}, {"identity": ("claim",)}])
def test_a_cache_for_a_tool_with_an_effect_is_refused(declared: dict[str, Any]) -> None:
    """An approved payment was answered from the cache: not made, and told as made."""
    with pytest.raises(ValueError, match="cache_ttl excludes effect and identity"):
        ToolPolicy(approval=True, cache_ttl=300, **declared)


def test_a_call_that_needs_approval_is_asked_for_also_where_its_result_is_in_the_cache(desk: Desk) -> None:
    desk.agent(looking(("look", "a")), policies={"look": ToolPolicy(cache_ttl=60)})
    desk.run(desk.start())
    desk.agent(looking(("look", "a")), policies={"look": ToolPolicy(cache_ttl=60, approval=True)})
    assert desk.run(desk.start()).waiting_for == WaitingFor.APPROVAL


# Time limit


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Tools that hang do so until the test has ended."""
    event = threading.Event()
    yield event
    event.set()


def hanging(release: threading.Event) -> Callable[[], Agent]:
    def wait() -> str:
        effect("wait")
        release.wait(30)
        return "at last"

    return lambda: sample_agents.one_tool(wait)


@pytest.mark.parametrize("seconds, limit", [(1, "1 second"), (1.5, "1.5 seconds"), (30, "30 seconds")])
def test_of_a_tool_that_takes_too_long_the_limit_is_said_in_words(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, seconds: float, limit: str
) -> None:
    def times_out(*_: Any, **__: Any) -> None:
        raise tool_function.TimedOut

    monkeypatch.setattr(tool_function, "call", times_out)
    desk.agent(lambda: sample_agents.one_tool(lambda: "paid"), policies={"it": ToolPolicy(timeout=seconds)})
    assert desk.run(desk.start()).why.startswith(f"it did not answer within {limit}. It may or may not")


@pytest.mark.slow
def test_an_idempotent_tool_that_takes_too_long_is_an_error_for_the_model(
    desk: Desk, release: threading.Event
) -> None:
    desk.agent(hanging(release), policies={"it": ToolPolicy(idempotent=True, timeout=0.05)})
    session = desk.run(desk.start())
    assert session.phase == Phase.DONE
    [call] = desk.calls(session)
    assert (call.status, call.error) == (CallStatus.FAILED, "it did not answer within 0.05 seconds.")
    assert "did not answer within 0.05 seconds" in tool_messages(desk, session)[0]


@pytest.mark.slow
def test_one_that_is_not_is_in_doubt_and_its_late_result_changes_nothing(
    desk: Desk, release: threading.Event
) -> None:
    desk.agent(hanging(release), policies={"it": ToolPolicy(timeout=0.05)})
    session = desk.run(desk.start())
    assert (session.status, session.waiting_for) == (Status.WAITING, WaitingFor.DOUBT)
    assert session.why == ("it did not answer within 0.05 seconds. It may or may not have taken effect.")
    [call] = desk.doubts(session)
    release.set()
    actions.decide(
        actor=SYSTEM, session_id=session.pk, call_id=call.pk, reason="looked", result="it was done"
    )
    session = desk.run(session)
    assert session.phase == Phase.DONE
    assert tool_messages(desk, session) == ["it was done"]
    assert effects.count("wait") == 1


def test_a_tool_that_is_quick_enough_gives_its_result_its_error_and_its_key(desk: Desk) -> None:
    desk.agent(
        lambda: sample_agents.one_tool(agentstate.idempotency_key),
        policies={"it": ToolPolicy(timeout=30)},
    )
    session = desk.run(desk.start())
    [call] = desk.calls(session)
    assert (call.status, call.result) == (CallStatus.DONE, call.idempotency_key)

    def no() -> str:
        raise ValueError("no money")

    desk.agent(lambda: sample_agents.one_tool(no), policies={"it": ToolPolicy(timeout=30)})
    session = desk.run(desk.start())
    [call] = desk.calls(session)
    assert call.status == CallStatus.FAILED
    assert "no money" in call.error


@pytest.mark.slow
def test_calls_beside_one_that_takes_too_long_keep_their_results(
    desk: Desk, release: threading.Event
) -> None:
    def build() -> Agent:
        inner = hanging(release)()
        calls = [Call("fast", {"q": "a"}, id="c1"), Call("it", {}, id="c2")]
        return Agent(chat_generator=scripted(calls, "Over."), tools=[*inner.tools, sample_agents.fast])

    desk.agent(build, policies={"it": ToolPolicy(timeout=0.05)})
    session = desk.run(desk.start())
    assert [call.status for call in desk.calls(session)] == [CallStatus.DONE, CallStatus.DOUBT]
    actions.decide(actor=SYSTEM, session_id=session.pk, call_id="c2", reason="looked", skip="It hangs.")
    assert desk.run(session).phase == Phase.DONE
    assert effects.count("fast(a)") == 1


# Declared wrongly


@pytest.mark.parametrize("name", ["approval_ttl", "cache_ttl", "timeout"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e10, 10**20])
def test_an_invalid_time_is_refused(name: str, value: float) -> None:
    """One that no clock can add would fail in the run: a `timeout` after the effect."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} must be more than 0 seconds and at most ten years"):
        ToolPolicy(**options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["approval_ttl", "cache_ttl", "timeout"])
def test_a_run_can_keep_the_longest_time(desk: Desk, name: str) -> None:
    options: dict[str, Any] = {name: LONGEST_SECONDS}
    desk.agent(
        looking(("look", "a")), policies={"look": ToolPolicy(approval=name == "approval_ttl", **options)}
    )
    session = desk.run(desk.start())
    if name == "approval_ttl":
        assert session.waiting_for == WaitingFor.APPROVAL
        [expires_at] = Approval.objects.values_list("expires_at", flat=True)
        assert expires_at is not None
        assert expires_at > timezone.now() + timedelta(days=3649)
    else:
        assert session.phase == Phase.DONE


def test_the_tools_of_an_agent_that_a_tool_runs_have_the_key_of_that_one_call() -> None:
    keys: list[str] = []

    def pay(amount: Annotated[int, "how much"]) -> str:
        """Pay."""
        keys.append(agentstate.idempotency_key())
        return "paid"

    payer = Agent(
        chat_generator=scripted([Call("pay", {"amount": 1}), Call("pay", {"amount": 2})], "Paid."),
        tools=[tool(pay)],
    )

    def delegate() -> str:
        """Let another agent pay."""
        payer.run([ChatMessage.from_user("pay both")])
        return agentstate.idempotency_key()

    durable = agentstate.DurableAgent(sample_agents.one_tool(delegate), MemoryJournal.open(session_id="anna"))
    durable.run("hi")
    [result] = [result for message in durable.history() for result in message.tool_call_results]
    assert keys == [result.result, result.result]


def test_a_cache_for_the_memory_of_one_customer_is_refused() -> None:
    remembering = Agent(chat_generator=scripted("."), tools=long_term_tools())
    with pytest.raises(AgentBuildFailed, match="what one customer's memory holds would be given to others"):
        make_durable(remembering, policies={"recall": ToolPolicy(cache_ttl=60)})
