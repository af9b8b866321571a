"""The steps as a DBOS workflow, with one DBOS step for each model reply and one for each tool call.

python -m benchmarks.rivals.dbos_steps --url URL --steps N
"""

from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID

from benchmarks import workload

report = workload.Report()


@DBOS.step()
def ask_model(number: int, steps: int) -> dict[str, Any]:
    report.step_begins()
    if number >= steps:
        return {"text": "Done."}
    return {
        "tool_calls": [{"name": "look_up", "arguments": workload.arguments(number), "id": f"call{number}"}]
    }


@DBOS.step()
def run_tool(number: int) -> dict[str, str]:
    return {"result": workload.result(number), "notes": workload.state(number)}


@DBOS.workflow()
def agent(steps: int) -> str:
    number = 0
    while True:
        reply = ask_model(number, steps)
        if "text" in reply:
            return str(reply["text"])
        run_tool(reply["tool_calls"][0]["arguments"]["number"])
        number += 1


def main() -> None:
    options = workload.options(__doc__ or "")
    workload.prepare(options.url)
    config: DBOSConfig = {
        "name": "benchmark",
        "system_database_url": options.url,
        "log_level": "ERROR",
        "run_admin_server": False,
    }
    DBOS(config=config)
    DBOS.launch()
    before = workload.stored(options.url)
    with SetWorkflowID("1"):
        assert agent(options.steps) == "Done."
    assert len(report.begun) == options.steps + 1
    report.stored = workload.stored(options.url) - before
    if options.operations:
        workload.gather_statistics(options.url)
        report.operation(
            "newest 20 checkpoints",
            lambda: DBOS.list_workflow_steps("1", limit=20, offset=max(0, 2 * options.steps - 19)),
        )
        report.operation("load to go on", lambda: DBOS.list_workflow_steps("1"))
        report.operation("fork", lambda: DBOS.fork_workflow("1", options.steps))
    DBOS.destroy()
    report.print()


if __name__ == "__main__":
    main()
