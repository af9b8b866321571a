"""The steps in LangGraph, checkpointed after every node (durability "sync").

    python -m benchmarks.rivals.langgraph_steps VARIANT --url URL --steps N

VARIANT is ``delta-1`` (a delta channel; a step is one node), ``delta-2`` (model and tool are nodes of their own, each
committed, as with a ledger of the calls) or ``messages`` (its default reducer `add_messages`; model and tool in one
node).
"""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.pregel._messages import _messages_delta_reducer

from benchmarks import workload


class Growing(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]
    notes: str


class Whole(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: str


def ask_model(number: int) -> AIMessage:
    call = {"name": "look_up", "args": workload.arguments(number), "id": f"call{number}"}
    return AIMessage("", tool_calls=[call])


def run_tool(message: AIMessage) -> dict[str, Any]:
    call = message.tool_calls[0]
    number = call["args"]["number"]
    result = ToolMessage(workload.result(number), tool_call_id=call["id"])
    return {"messages": [result], "notes": workload.state(number)}


def build(variant: str, steps: int, report: workload.Report, saver: Any) -> Any:
    def number_of(state: Any) -> int:
        last = state["messages"][-1]
        return int(last.content[:8]) + 1 if isinstance(last, ToolMessage) else 0

    def model(state: Any) -> dict[str, Any]:
        report.step_begins()
        number = number_of(state)
        return {"messages": [ask_model(number) if number < steps else AIMessage("Done.")]}

    def tool(state: Any) -> dict[str, Any]:
        return run_tool(state["messages"][-1])

    def step(state: Any) -> dict[str, Any]:
        reply = model(state)["messages"][0]
        if not reply.tool_calls:
            return {"messages": [reply]}
        ran = run_tool(reply)
        return {"messages": [reply, *ran["messages"]], "notes": ran["notes"]}

    graph = StateGraph(Whole if variant == "messages" else Growing)
    if variant == "delta-2":
        graph.add_node("model", model)
        graph.add_node("tool", tool)
        graph.add_edge(START, "model")
        graph.add_conditional_edges(
            "model", lambda state: "tool" if getattr(state["messages"][-1], "tool_calls", ()) else END
        )
        graph.add_edge("tool", "model")
    else:
        graph.add_node("step", step)
        graph.add_edge(START, "step")
        graph.add_conditional_edges(
            "step", lambda state: "step" if isinstance(state["messages"][-1], ToolMessage) else END
        )
    return graph.compile(checkpointer=saver)


@contextmanager
def saver_for(url: str) -> Iterator[Any]:
    path = workload.sqlite_path(url)
    if path is None:
        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            yield saver
    else:
        with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            saver = SqliteSaver(connection)
            saver.setup()
            yield saver


def main() -> None:
    variant = sys.argv.pop(1)
    options = workload.options(__doc__ or "")
    workload.prepare(options.url)
    report = workload.Report()
    with saver_for(options.url) as saver:
        graph = build(variant, options.steps, report, saver)
        before = workload.stored(options.url)
        config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": 2 * options.steps + 10}
        graph.invoke({"messages": [HumanMessage("Go.")]}, config, durability="sync")
        assert len(report.begun) == options.steps + 1
        report.stored = workload.stored(options.url) - before
        if options.operations:
            workload.gather_statistics(options.url)
            thread: Any = {"configurable": {"thread_id": "1"}}
            newest = report.operation(
                "newest 20 checkpoints", lambda: list(graph.get_state_history(thread, limit=20))
            )
            report.operation("load to go on", lambda: graph.get_state(thread))
            report.operation(
                "fork", lambda: graph.update_state(newest[10].config, {"messages": [HumanMessage("Else.")]})
            )
    report.print()


if __name__ == "__main__":
    main()
