"""The idempotency key where a tool's code runs: in its call, in threads that it starts, and in tests of the tool."""

import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentstate import DurableAgent, idempotency_key, use_idempotency_key
from agentstate.journals import MemoryJournal
from tests import sample_agents

pytestmark = pytest.mark.usefixtures("no_effects")


def result_of(tool: Any) -> str:
    durable = DurableAgent(sample_agents.one_tool(tool), MemoryJournal.open())
    assert durable.run("hi").finished
    [result] = [result for message in durable.history() for result in message.tool_call_results]
    return str(result.result)


def test_a_thread_that_a_tool_starts_is_told_how_to_get_the_key() -> None:
    def fan_out() -> str:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(idempotency_key).result()

    said = result_of(fan_out)
    assert "In a thread that a tool starts itself" in said
    assert "contextvars.copy_context()" in said


def test_a_thread_has_the_key_of_the_call_in_a_copy_of_its_context_or_if_it_is_passed_on() -> None:
    def fan_out() -> str:
        def passed_on(key: str) -> str:
            with use_idempotency_key(key):
                return idempotency_key()

        key = idempotency_key()
        with ThreadPoolExecutor(1) as threads:
            copied = threads.submit(contextvars.copy_context().run, idempotency_key).result()
            passed = threads.submit(passed_on, key).result()
        return str(copied == passed == key)

    assert result_of(fan_out) == "True"


def test_a_tool_can_be_tested_without_a_durable_run() -> None:
    def pay() -> str:
        return f"paid, reference {idempotency_key()}"

    with pytest.raises(RuntimeError, match=r"as in a test of the tool.*use_idempotency_key"):
        pay()
    with use_idempotency_key("test-1"):
        with use_idempotency_key("test-2"):
            assert pay() == "paid, reference test-2"
        assert pay() == "paid, reference test-1"
    with pytest.raises(RuntimeError):
        pay()


@pytest.mark.parametrize("key, error", [(None, TypeError), (5, TypeError), ("", ValueError)])
def test_what_is_no_key_is_refused(key: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="dempotency key"), use_idempotency_key(key):
        pass
