"""Three patterns on a Valkey or Redis server: checkpoints of each step, a cache of tool results, and a log to follow.

    python -m examples.valkey_patterns redis://localhost --die    # killed in its third step, as by a power cut
    python -m examples.valkey_patterns redis://localhost          # goes on with the third step

The second run shows what is on the server by then: the HASH with the result of each step, and the STREAM with
everything that happened. Then another session asks the same, and its first two tools do not run: their results are
still in the cache.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.tools import tool

from agentstate import DurableAgent, ToolPolicy, agent
from agentstate.journals.valkey import ValkeySessions
from examples.scripted import call, chat_model, results, say

SESSION = "report-on-tides"
QUESTION = "Write a report on tides."
MINUTE, HOUR = 60, 60 * 60


@tool
def search_web(topic: Annotated[str, "what to search for"]) -> str:
    """Search the web."""
    print("    searching the web")
    return f"Two floods a day are the rule for {topic}."


@tool
def query_database(table: Annotated[str, "the table to read"]) -> str:
    """Read our measurements."""
    print("    querying the database")
    return f"The mean of {table} is 3.4 m."


@tool
def write_report(text: Annotated[str, "the text of the report"]) -> str:
    """Write the report, in place of an earlier one."""
    if "--die" in sys.argv:
        print("    dying while it writes the report", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    print("    writing the report")
    return f"a report of {len(text.split())} words"


POLICIES = {
    "search_web": ToolPolicy(idempotent=True, cache_ttl=5 * MINUTE),
    "query_database": ToolPolicy(idempotent=True, cache_ttl=HOUR),
    "write_report": ToolPolicy(idempotent=True),
}


def reply(messages: Sequence[ChatMessage]) -> ChatMessage:
    """One tool after the other, each with what the one before has found: also where another process ran that one."""
    known = results(messages)
    if "search_web" not in known:
        return call("search_web", topic="tides")
    if "query_database" not in known:
        return call("query_database", table="tides")
    if "write_report" not in known:
        return call("write_report", text=f"{known['search_web']} {known['query_database']}")
    return say(f"Done: {known['write_report']}.")


# Registered, so that its results are in the cache by this name, for all of its sessions.
@agent("tide-reports", policies=POLICIES)
def researcher() -> Agent:
    return Agent(chat_generator=chat_model(reply), tools=[search_web, query_database, write_report])


def answer(sessions: ValkeySessions, session_id: str) -> str:
    durable = DurableAgent.of("tide-reports", sessions.session(session_id, title=QUESTION))
    return str(durable.run(QUESTION, key="report").text)


def show(sessions: ValkeySessions, session_id: str) -> None:
    state: Any = sessions.client.hgetall(f"agent:state:{session_id}")
    fields = {name.decode(): value.decode() for name, value in state.items()}
    steps = ", ".join(sorted(name for name in fields if name.startswith("result_step_")))
    print(f"HASH    status {fields['status']}, current step {fields['current_step']}, {steps}")
    operations = [record["op"] for _, record in sessions.follow(session_id, timeout=0.1)]
    print(f"STREAM  {' '.join(operations)}")


def main(url: str) -> None:
    sessions = ValkeySessions(url)
    print(SESSION)
    print(f"  {answer(sessions, SESSION)}")
    show(sessions, SESSION)
    print("another session")
    print(f"  {answer(sessions, 'another-report')}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1])
