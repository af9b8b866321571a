"""The steps in AgentState, and what they are measured by: the plain agent, and one row and commit a step.

    python -m benchmarks.steps VARIANT --url URL --steps N

VARIANT is ``agentstate`` (the agent driven by `sessions_app.runtime.worker.drive`, in a thread as a worker with threads
has them), ``bare`` (the plain Haystack agent, nothing stored) or ``floor`` (one INSERT and COMMIT of the step's data
through Django's connection).
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from benchmarks import workload

if TYPE_CHECKING:
    from sessions_app.models import Session

RECURSION = 10_000


class Stub:
    """How many steps the model asks for, and where each is noted; set again for each run."""

    steps = 0
    report = workload.Report()


def build_agent() -> Any:
    from haystack import component
    from haystack.components.agents import Agent
    from haystack.components.agents.state.state import replace_values
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack.tools import tool

    @tool(outputs_to_state={"notes": {"source": "notes"}}, outputs_to_string={"source": "result"})
    def look_up(number: Annotated[int, "which"], question: Annotated[str, "what"]) -> dict[str, str]:
        """Looks something up."""
        return {"result": workload.result(number), "notes": workload.state(number)}

    @component
    class StubModel:
        """Answers at once, by the last message alone, so that the model costs the same at every step."""

        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage], tools: Any = None, generation_kwargs: Any = None) -> Any:
            Stub.report.step_begins()
            results = messages[-1].tool_call_results
            number = int(str(results[0].result)[:8]) + 1 if results else 0
            if number >= Stub.steps:
                return {"replies": [ChatMessage.from_assistant("Done.")]}
            call = ToolCall("look_up", workload.arguments(number), id=f"call{number}")
            return {"replies": [ChatMessage.from_assistant(tool_calls=[call])]}

        def to_dict(self) -> dict[str, Any]:
            return {"type": "benchmarks.steps.StubModel", "init_parameters": {}}

    return Agent(
        chat_generator=StubModel(),
        tools=[look_up],
        state_schema={"notes": {"type": str, "handler": replace_values}},
        max_agent_steps=100_000,
    )


def bare(options: Any) -> None:
    from haystack.dataclasses import ChatMessage

    Stub.steps = options.steps
    build_agent().run([ChatMessage.from_user("Go.")])


def floor(options: Any) -> None:
    start_django(options.url)
    from django.db import connection

    with connection.cursor() as cursor:
        serial = "SERIAL" if connection.vendor == "postgresql" else "INTEGER"
        cursor.execute(f"CREATE TABLE bench_floor (id {serial} PRIMARY KEY, step INTEGER, data TEXT)")
        before = workload.stored(options.url)
        for step in range(options.steps):
            Stub.report.step_begins()
            data = f"{workload.arguments(step)} {workload.result(step)} {workload.state(step)}"
            cursor.execute("INSERT INTO bench_floor (step, data) VALUES (%s, %s)", [step, data])
        Stub.report.step_begins()
    Stub.report.stored = workload.stored(options.url) - before


def agentstate(options: Any) -> None:
    start_django(options.url)
    from sessions_app import actions
    from sessions_app.access.roles import Actor
    from sessions_app.models import Session
    from sessions_app.runtime.worker import drive

    prepare_desk()
    actor = Actor.system("benchmark")
    start = partial(actions.start, actor=actor, agent="bench", message="Go.")
    drive_it = partial(drive, worker="benchmark", slice_seconds=100_000)
    Stub.steps, Stub.report = 5, workload.Report()
    assert drive_it(start().pk) == "idle"  # warm up
    before = workload.stored(options.url)
    session = start()
    Stub.steps, Stub.report = options.steps, workload.Report()
    if options.count:
        count_statements(Stub.report)
    assert drive_it(session.pk) == "idle"
    report = Stub.report
    report.stored = workload.stored(options.url) - before
    session = Session.objects.get(pk=session.pk)
    assert (session.final_answer, len(report.begun)) == ("Done.", options.steps + 1)
    if options.operations:
        workload.gather_statistics(options.url)
        Stub.report = workload.Report()
        operations(report, session, drive_it)
        Stub.report = report


def operations(report: workload.Report, session: "Session", drive_it: Callable[..., str]) -> None:
    import statistics
    import time

    from django.utils import timezone

    from sessions_app import actions
    from sessions_app.access.masking import Mask
    from sessions_app.access.roles import Actor
    from sessions_app.desk.context import session_row
    from sessions_app.desk.pages.session import checkpoints
    from sessions_app.desk.pages.session.context import SessionContext

    actor = Actor.system("benchmark")

    def newest() -> Any:
        context = SessionContext.of(
            session_row(session.pk), actor=actor, now=timezone.now(), mask=Mask.none()
        )
        return checkpoints.read_page(context, limit=20)

    page = report.operation("newest 20 checkpoints", newest)
    checkpoint = page.checkpoints[10].pk
    chosen = {"actor": actor, "session_id": session.pk, "checkpoint_id": checkpoint, "reason": "benchmark"}
    report.operation("fork", lambda: actions.fork(**chosen))
    Stub.steps = 0
    loads = []
    for _ in range(2 * workload.WARM):
        actions.send_message(actor=actor, session_id=session.pk, text="And now?")
        begun = time.perf_counter()
        assert drive_it(session.pk) == "idle"
        loads.append((Stub.report.begun[-1] - begun) * 1000)
    report.milliseconds["load to go on"] = statistics.median(loads[workload.WARM :])
    report.operation("rewind", lambda: actions.rewind(**chosen))


def count_statements(report: workload.Report) -> None:
    """Count from here on what this thread sends to SQLite."""
    from django.db import connection

    report.counts = {"commits": 0, "statements": 0}

    def sent(statement: str) -> None:
        if statement.startswith("COMMIT"):
            report.counts["commits"] += 1
        elif not statement.startswith("BEGIN"):
            report.counts["statements"] += 1

    connection.ensure_connection()
    connection.connection.set_trace_callback(sent)


def start_django(url: str) -> None:
    os.environ["DATABASE_URL"] = url
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")
    os.environ["AGENTSTATE_AGENTS"] = ""
    os.environ["AGENTSTATE_LEASE_SECONDS"] = "86400"
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def prepare_desk() -> None:
    from agentstate.durable.registry import Registration, registry
    from sessions_app.models import RegisteredAgent

    registry.add(Registration(key="bench", title="Benchmark", factory=build_agent))
    RegisteredAgent.objects.update_or_create(key="bench", defaults={"title": "Benchmark"})


def main() -> None:
    variant = sys.argv.pop(1)
    options = workload.options(__doc__ or "")
    sys.setrecursionlimit(RECURSION)
    workload.prepare(options.url)
    if variant == "agentstate":
        with ThreadPoolExecutor(1) as threads:
            threads.submit(agentstate, options).result()
    else:
        {"bare": bare, "floor": floor}[variant](options)
    Stub.report.print()


if __name__ == "__main__":
    main()
