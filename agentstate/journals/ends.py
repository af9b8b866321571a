"""The records of a run's progress and of its end, as the memory and the file journal write them."""

from dataclasses import asdict
from datetime import datetime

from agentstate.durable.records import Progress
from agentstate.durable.run_end import (
    ApprovalRequest,
    AtBreakpoint,
    Failed,
    Finished,
    InDoubt,
    NeedsApproval,
    RetryLater,
    RunEnd,
)
from agentstate.durable.state_excerpts import excerpt
from agentstate.journals.store import Record


def progress_record(progress: Progress) -> Record:
    return {**asdict(progress), "since": progress.since.isoformat()}


def progress_from(record: Record) -> Progress:
    return Progress(**{**record, "since": datetime.fromisoformat(record["since"])})


def end_record(end: RunEnd, status: str) -> Record:
    """The record of a run's end. `status` is the session's next one."""
    failed_call = end.tool_call if isinstance(end, Failed) else None
    return {
        **({} if failed_call is None else {"failed_call": failed_call}),
        **({"asks_again": True} if isinstance(end, Failed) and end.asks_again else {}),
        **({"breakpoint": end.to_dict()} if isinstance(end, AtBreakpoint) else {}),
        "status": status,
        "event": end.event,
        "waiting_for": end.waiting_for,
        "why": "" if isinstance(end, Failed) else end.reason,
        "error": end.error if isinstance(end, Failed) else "",
        "delay": end.delay if isinstance(end, RetryLater) else 0.0,
        "final_answer": end.final_answer if isinstance(end, Finished) else "",
        "exit_reason": end.exit_reason if isinstance(end, Finished) else "",
        "doubts": list(end.calls) if isinstance(end, InDoubt) else [],
        "asks": [_request_record(request) for request in end.requests]
        if isinstance(end, NeedsApproval)
        else [],
    }


def _request_record(request: ApprovalRequest) -> Record:
    record = asdict(request)
    del record["earlier"]  # always empty here, and not part of the file format
    if request.from_state is None:
        del record["from_state"]
    else:
        for argument in record["from_state"].values():
            argument["value"] = excerpt(argument["value"])
    return record
