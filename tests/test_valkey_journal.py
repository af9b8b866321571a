"""A session on Valkey or Redis: the documented structures, one writer, and how long they are kept."""

import json
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import tool

from agentstate import Answered, AtBreakpoint, Breakpoint, DurableAgent, ToolPolicy, Waiting, agent
from agentstate.durable.port import JournalUnavailable, LeaseLost
from agentstate.journals.server import JournalServerError
from agentstate.journals.valkey import ValkeySessions, ValkeyStore
from tests import sample_agents
from tests.sample_agents import effects
from tools import services

IDEMPOTENT = {"fast": ToolPolicy(idempotent=True)}


@pytest.fixture
def sessions(redis_url: str) -> Iterator[ValkeySessions]:
    effects.clear()
    with warnings.catch_warnings(action="ignore"):  # this server keeps nothing on disk, as it says
        sessions = ValkeySessions(redis_url)
    with sessions.client:
        yield sessions
    effects.clear()


def durable(sessions: ValkeySessions, **labels: str) -> DurableAgent:
    session = sessions.session("anna", **labels)
    return DurableAgent(sample_agents.long_run(2), session, policies=IDEMPOTENT)


def state(sessions: ValkeySessions) -> dict[str, str]:
    stored: Any = sessions.client.hgetall("agent:state:anna")
    return {name.decode(): value.decode() for name, value in stored.items()}


def ttls(sessions: ValkeySessions) -> set[Any]:
    return {sessions.client.ttl(f"agent:{kind}:anna") for kind in ("state", "messages", "log")}


def test_the_hash_tells_the_steps_with_their_results_and_what_the_session_is_about(
    sessions: ValkeySessions,
) -> None:
    durable(sessions, agent="shop", customer="Anna", title="Order 1042").run("hi")
    stored = state(sessions)
    assert {name: stored[name] for name in ("current_step", "status", "agent", "customer", "title")} == {
        "current_step": "3",
        "status": "complete",
        "agent": "shop",
        "customer": "Anna",
        "title": "Order 1042",
    }
    results = {name: json.loads(text) for name, text in stored.items() if name.startswith("result_step_")}
    assert {name: [body["role"] for body in bodies] for name, bodies in results.items()} == {
        "result_step_1": ["assistant", "tool"],
        "result_step_2": ["assistant", "tool"],
        "result_step_3": ["assistant"],
    }
    assert results["result_step_3"][0]["content"] == [{"text": "Long done."}]
    assert stored["updated_at"].endswith("+00:00")


def test_the_list_is_the_conversation_in_order_and_the_stream_the_whole_log(sessions: ValkeySessions) -> None:
    durable(sessions).run("hi")
    listed: Any = sessions.client.lrange("agent:messages:anna", 0, -1)
    assert [json.loads(text)["role"] for text in listed] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    entries: Any = sessions.client.xrange("agent:log:anna")
    assert [fields[b"op"].decode() for _, fields in entries][:4] == ["open", "ask", "checkpoint", "reply"]
    assert [record["op"] for _, record in sessions.follow("anna", timeout=0.01)] == [
        fields[b"op"].decode() for _, fields in entries
    ]


def test_what_a_session_has_gone_back_behind_is_in_neither_the_list_nor_the_hash(
    sessions: ValkeySessions,
) -> None:
    def listed() -> list[dict[str, Any]]:
        texts: Any = sessions.client.lrange("agent:messages:anna", 0, -1)
        return [json.loads(text) for text in texts]

    def results() -> dict[str, str]:
        return {name: text for name, text in state(sessions).items() if name.startswith("result_step_")}

    durable(sessions).run("hi")
    messages, before = listed(), results()
    durable(sessions).run("and again?")
    outcome = durable(sessions).resume(
        at=durable(sessions).checkpoints()[3], changes={}, break_point=Breakpoint()
    )
    assert isinstance(outcome, AtBreakpoint)
    assert [body["content"] for body in listed()] == [
        *(body["content"] for body in messages),
        [{"text": "and again?"}],
    ]
    assert (results(), state(sessions)["current_step"]) == (before, "3")
    durable(sessions).resume(at=durable(sessions).checkpoints()[1])
    assert [body["role"] for body in listed()] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [json.loads(text)[0]["content"] for _, text in sorted(results().items())] == [
        json.loads(text)[0]["content"] for _, text in sorted(before.items())
    ]
    durable(sessions).resume(
        at=durable(sessions).checkpoints()[0], changes={"messages": [ChatMessage.from_user("hello")]}
    )
    assert [body["role"] for body in listed()] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert listed()[0]["content"] == [{"text": "hello"}]
    assert results().keys() == {"result_step_1", "result_step_2", "result_step_3"}


def test_a_log_of_more_than_a_page_is_read_whole(
    sessions: ValkeySessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable(sessions).run("hi")
    monkeypatch.setattr("agentstate.journals.valkey.PAGE", 3)
    assert sessions.load("anna").position == sessions.open("anna").store.position
    assert [message.text for message in durable(sessions).history()][-1] == "Long done."


def test_following_the_stream_sees_a_record_when_it_is_written(sessions: ValkeySessions) -> None:
    seen = threading.Event()

    def follow() -> None:
        for _, record in sessions.follow("anna", timeout=20):
            if record["op"] == "checkpoint" and record["kind"] == "end":
                seen.set()
                return

    thread = threading.Thread(target=follow)
    thread.start()
    durable(sessions).run("hi")
    thread.join(20)
    assert seen.is_set()


def test_following_goes_on_where_the_client_waits_for_a_shorter_time_than_the_server(
    sessions: ValkeySessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    xread, reads = sessions.client.xread, 0

    def impatient(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise redis.TimeoutError("Timeout reading from socket")
        return xread(*arguments)

    monkeypatch.setattr(sessions.client, "xread", impatient)
    sessions.open("anna", say="hi")
    records = sessions.follow("anna")
    assert [next(records)[1]["op"], next(records)[1]["op"]] == ["open", "say"]


def test_a_session_that_has_ended_expires_and_an_unfinished_one_does_not(sessions: ValkeySessions) -> None:
    waiting = sample_agents.refunds()
    paying = DurableAgent(
        waiting, sessions.session("anna"), policies={"refund": ToolPolicy(approval=True), **IDEMPOTENT}
    )
    outcome = paying.run("hi")
    assert isinstance(outcome, Waiting)
    assert (state(sessions)["status"], ttls(sessions)) == ("waiting", {-1})
    for call in outcome.pending:
        paying.decide(call.call_id, approve=False)
    assert state(sessions)["status"] == "waiting"
    assert isinstance(paying.resume(), Answered)
    [ttl] = ttls(sessions)
    assert 86390 < ttl <= 86400
    sessions.open("anna", say="and now?")
    assert ttls(sessions) == {-1}


@pytest.mark.parametrize("ttl", [0, -1, 0.0001, float("nan"), float("inf"), 1e17, "60"])
def test_a_time_to_keep_that_is_none_is_refused_before_a_session_could_vanish(ttl: Any) -> None:
    with pytest.raises(ValueError, match="a number of seconds above 0 and at most ten years"):
        ValkeySessions("redis://localhost", ttl=ttl)


@pytest.mark.parametrize("session_id", ["", None, 5, "an/na", " "])
def test_what_is_no_session_id_is_refused_before_two_customers_share_a_session(
    sessions: ValkeySessions, session_id: Any
) -> None:
    for make in (sessions.session, sessions.open):
        with pytest.raises(ValueError, match=r"is not a session id: use up to 128 of A-Z, a-z, 0-9"):
            make(session_id)
    assert not sessions.client.keys("agent:*")


def test_an_unfinished_session_can_be_marked_complete(sessions: ValkeySessions) -> None:
    sessions.open("anna", say="hi")
    sessions.mark_complete("anna")
    assert state(sessions)["status"] == "complete"
    assert all(0 < ttl <= 86400 for ttl in ttls(sessions) - {-2})


def test_a_second_writer_takes_the_session_over_and_the_first_can_write_no_more(
    sessions: ValkeySessions,
) -> None:
    first = sessions.open("anna", say="hi")
    second = sessions.open("anna")
    before = sessions.client.xlen("agent:log:anna")
    with pytest.raises(LeaseLost, match="anna has another writer now: it was opened again"):
        first.say("too late")
    sessions.open("anna")
    with pytest.raises(LeaseLost):
        second.load()
    assert sessions.client.xlen("agent:log:anna") == before + 1


@pytest.mark.parametrize("lost", ["state", "log"])
def test_a_session_of_which_the_server_has_lost_a_part_is_refused(
    sessions: ValkeySessions, lost: str
) -> None:
    durable(sessions).run("hi")
    sessions.client.delete(f"agent:{lost}:anna")
    with pytest.raises(ValueError, match="The server has lost a part of the session anna: its log has "):
        durable(sessions).run("and?")


@pytest.mark.parametrize("lost", [["state"], ["log"], ["state", "messages", "log"]])
def test_a_run_whose_session_loses_a_part_on_the_server_stops_at_its_next_write_and_says_so(
    sessions: ValkeySessions, lost: list[str]
) -> None:
    @tool
    def lose() -> str:
        """Loses it."""
        sessions.client.delete(*[f"agent:{kind}:anna" for kind in lost])
        return "lost"

    agent = Agent(
        chat_generator=sample_agents.scripted([ToolCall("lose", {}, id="1")], "done"),
        tools=[lose],
    )
    run = DurableAgent(agent, sessions.session("anna"))
    with pytest.raises(LeaseLost, match="The server has lost a part of the session anna while it was run"):
        run.run("hi")


def test_a_log_that_lacks_its_beginning_is_refused_before_it_is_read(sessions: ValkeySessions) -> None:
    durable(sessions).run("hi")
    sessions.client.xtrim("agent:log:anna", maxlen=2, approximate=False)
    for use in (sessions.load, sessions.open):
        with pytest.raises(ValueError, match="The server has lost a part of the session anna: its log has 2"):
            use("anna")


def test_a_write_that_is_sent_again_because_its_answer_was_lost_is_written_once(
    sessions: ValkeySessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = sessions.open("anna")
    script = journal.store._script

    def twice(keys: Any, arguments: Any) -> Any:
        script(keys, arguments)
        return script(keys, arguments)

    monkeypatch.setattr(journal.store, "_script", twice)
    journal.say("hi")
    assert len(sessions.load("anna").unread) == 1


def test_a_server_with_an_ipv6_address_is_named_with_it_in_brackets() -> None:
    port = services.free_port()
    with pytest.raises(JournalServerError, match=rf"journal at \[::1\]:{port} cannot be reached"):
        ValkeySessions(f"redis://[::1]:{port}")


def test_a_server_that_is_away_at_opening_is_named_without_its_password_and_with_the_cure() -> None:
    port = services.free_port()
    with pytest.raises(JournalServerError) as refused:
        ValkeySessions(f"redis://anna:sesame@127.0.0.1:{port}")
    said = str(refused.value)
    assert said.startswith(f"The server of the journal at 127.0.0.1:{port} cannot be reached: ")
    assert said.endswith(
        ". Start it, or correct the address, and run this again: the session continues from what the server has."
    )
    assert "sesame" not in said


@pytest.mark.parametrize(
    "error, cure",
    [
        (redis.ConnectionError("gone"), "cannot be reached: gone. Start it, or correct the address"),
        (redis.TimeoutError("late"), "cannot be reached: late. Start it, or correct the address"),
        (
            redis.AuthenticationError("invalid password."),
            "refuses this program: invalid password. Give a user",
        ),
        (redis.ResponseError("WRONGTYPE"), "failed: WRONGTYPE."),
    ],
)
def test_a_server_that_fails_when_a_session_is_opened_or_read_is_said(
    sessions: ValkeySessions, monkeypatch: pytest.MonkeyPatch, error: redis.RedisError, cure: str
) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(sessions.client, "execute_command", broken)
    for use in (
        lambda: durable(sessions).run("hi"),
        lambda: durable(sessions).history(),
        lambda: next(sessions.follow("anna")),
        lambda: sessions.mark_complete("anna"),
    ):
        with pytest.raises(JournalServerError) as refused:
            use()
        assert cure in str(refused.value)


def test_a_server_that_fails_when_a_run_begins_is_said(
    sessions: ValkeySessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise redis.ConnectionError("gone")

    journal = sessions.open("anna", say="hi")
    monkeypatch.setattr(sessions.client, "hget", broken)
    with pytest.raises(
        JournalUnavailable,
        match=r"The server of the journal at 127\.0\.0\.1:\d+ failed: gone\. When it answers",
    ):
        journal.load()


def test_a_server_that_fails_stops_the_run_which_goes_on_when_it_is_back(
    sessions: ValkeySessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, writes = ValkeyStore.write, 0

    def failing(self: ValkeyStore, record: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == 5:
            monkeypatch.setattr(self, "_script", broken)
        real(self, record)

    def broken(*args: Any) -> Any:
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(ValkeyStore, "write", failing)
    with pytest.raises(
        JournalUnavailable,
        match=r"The server of the journal at 127\.0\.0\.1:\d+ failed: gone\. When it answers",
    ):
        durable(sessions).run("hi", key="m1")
    assert durable(sessions).run("hi", key="m1").text == "Long done."
    assert [effect for effect in effects if effect.startswith("fast")] in (
        ["fast(q0)", "fast(q1)"],
        ["fast(q0)", "fast(q0)", "fast(q1)"],
    )


def test_results_are_cached_on_the_server_under_the_documented_key_with_the_tools_time_limit(
    sessions: ValkeySessions,
) -> None:
    session = sessions.session("anna")
    DurableAgent(sample_agents.long_run(1), session, policies={"fast": ToolPolicy(cache_ttl=300)}).run("hi")
    [key] = sessions.client.keys("tool:cache:fast:*")
    assert 290 < sessions.client.ttl(key) <= 300


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("registered", [False, True])
def test_cached_results_are_shared_by_the_sessions_of_a_registered_agent_and_of_no_other(
    sessions: ValkeySessions, registered: bool
) -> None:
    policies = {"fast": ToolPolicy(cache_ttl=300)}
    build = agent("shop", policies=policies)(lambda: sample_agents.long_run(1))
    for customer in ("anna", "bob"):
        made = build() if registered else sample_agents.long_run(1)
        DurableAgent(made, sessions.session(customer), policies=policies).run("hi")
    assert effects.count("fast(q0)") == (1 if registered else 2)


def test_opening_warns_of_a_server_that_confirms_before_it_has_written(
    redis_url: str, redis_server: services.Redis
) -> None:
    with pytest.warns(UserWarning, match="needs appendonly yes and appendfsync always"):
        ValkeySessions(redis_url).client.close()
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("appendfsync", "always")
        client.config_set("appendonly", "yes")
        try:
            ValkeySessions(redis_url).client.close()
        finally:
            client.config_set("appendonly", "no")
