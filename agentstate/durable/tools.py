"""The ledger around each tool: a call is committed as started, then as ended; an ended one is replayed.

`attach` wraps the `invoke` of a tool once; the wrapper does nothing outside a durable run. It runs in Haystack's
tool threads.
"""

import contextvars
import queue
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.tools import Tool
from haystack.tools.errors import ToolInvocationError

from agentstate.domain.phases import AgentPhase
from agentstate.durable import run_context
from agentstate.durable.cache import cache_key
from agentstate.durable.idempotency import current_key
from agentstate.durable.records import CallEnd, CallRecord, Stop
from agentstate.durable.run_context import Parked, RunContext
from agentstate.durable.state.encoding import NotStorable, clean_text, decode, encode_lossy, encode_result
from agentstate.durable.state.keys import apply, difference
from agentstate.names import ENDED_CALL_STATES

_NOT_ARGUMENTS = frozenset({"streaming_callback"})


class _TimedOut(BaseException):
    pass


def attach(tool: Tool) -> None:
    """Put the ledger around a tool's `invoke`. The tool stays the same object: class, signature and schema too."""
    if getattr(tool.invoke, "ledger", False):
        return
    inner = tool.invoke

    def invoke(**kwargs: Any) -> Any:
        run = run_context.current()
        record = claim(run, tool.name, kwargs) if run is not None else None
        if run is None or record is None:
            return inner(**kwargs)
        try:
            return _invoke(run, record, tool, inner, kwargs)
        finally:
            if threading.get_ident() != run.thread:
                run.journal.thread_done()

    invoke.ledger = True  # type: ignore[attr-defined]
    tool.invoke = invoke  # type: ignore[method-assign]


def claim(run: RunContext, tool: str, kwargs: dict[str, Any]) -> CallRecord | None:
    """The pending call that is being executed: `invoke` is given no call id, so match by tool and arguments.

    Identical calls are interchangeable. The most arguments win, so that a call without any does not take the place
    of one with some.
    """
    with run.lock:
        fitting = [
            record
            for record in run.unclaimed
            if record.tool == tool
            and all(key in kwargs and _equal(kwargs[key], value) for key, value in _arguments(record).items())
        ]
        if not fitting:
            return None
        best = max(fitting, key=lambda record: len(_arguments(record)))
        run.unclaimed.remove(best)
        return best


def _invoke(
    run: RunContext, record: CallRecord, tool: Tool, inner: Callable[..., Any], kwargs: dict[str, Any]
) -> Any:
    state = next((value for value in kwargs.values() if isinstance(value, State)), None)
    if record.status in ENDED_CALL_STATES:
        return _replay(run, record, tool, state)

    policy = run.policy(tool.name)
    key = None
    if run.cache is not None and policy.cache_ttl is not None and state is None:
        told, lossy = encode_lossy(
            {name: value for name, value in kwargs.items() if name not in _NOT_ARGUMENTS}
        )
        key = None if lossy else cache_key(run.agent_key, tool.name, told)
        hit = run.cache.get(key) if key else None
        if hit is not None:
            _end(run, record, CallEnd("done", run.now(), result=hit["result"], cached=True), None)
            return decode(hit["result"])

    started = run.now()
    run.signals = run.journal.start_call(record.position, sent=record.sent, at=started)
    record = run.update_call(record, status="started", attempt=record.attempt + 1)
    before = run.keys.encoded(state.data) if state is not None else {}
    outside = run_context._current.set(None)
    token = current_key.set(record.idempotency_key)
    try:
        if policy.timeout is None:
            result = inner(**kwargs)
        else:
            result = _within(policy.timeout, inner, kwargs, run)
    except (ToolInvocationError, SystemExit) as raised:
        error = raised
        if isinstance(error, SystemExit):  # as a command line's parser does; it must not end the worker
            text = f"Tool `{tool.name}` failed: SystemExit: {raised}"
            error = ToolInvocationError(text, tool_name=tool.name)
        written = _written(run, state, before)
        _end(run, record, CallEnd("failed", run.now(), error=clean_text(str(error)), state=written), started)
        raise error from raised.__cause__
    except _TimedOut:
        late = f"Tool `{tool.name}` did not answer within {policy.timeout:g} seconds."
        if policy.idempotent:
            _end(run, record, CallEnd("failed", run.now(), error=late), started)
            raise ToolInvocationError(late, tool_name=tool.name) from None
        raise Parked(
            Stop(
                "waiting",
                "in_doubt",
                waiting_for="doubt",
                why=f"{late} Nobody knows whether it took effect.",
                doubts=(record.position,),
            )
        ) from None
    finally:
        current_key.reset(token)
        run_context._current.reset(outside)

    data, lossy = encode_result(result)
    end = CallEnd("done", run.now(), result=data, lossy=lossy, state=_written(run, state, before))
    _end(run, record, end, started)
    if key is not None and run.cache is not None and policy.cache_ttl is not None and not lossy:
        run.cache.set(key, {"result": data}, policy.cache_ttl)
    # What could not be stored as it is must not live on in this process either, or a resumed run would differ.
    return decode(data) if lossy else result


def _replay(run: RunContext, record: CallRecord, tool: Tool, state: State | None) -> Any:
    if state is not None and record.state:
        known = run.keys.encoded(state.data)
        for name, change in record.state.items():
            state.set(name, decode(apply(known.get(name), change)), handler_override=replace_values)
    if record.status == "done":
        return decode(record.result)
    raise ToolInvocationError(record.error, tool_name=tool.name)


def _end(run: RunContext, record: CallRecord, end: CallEnd, started: datetime | None) -> None:
    with run.lock:
        run.meter.add("tool_calls", 1)
        if started is not None:
            run.meter.add("tool_seconds", max(0.0, (end.ended_at - started).total_seconds()))
        if end.cached or end.status == "failed":
            run.meter.add("cached" if end.cached else "tool_errors", 1)
    with run.lock:
        run.progressed = True
        run.update_call(record, status=end.status, result=end.result, error=end.error, state=end.state)
        if all(call.status in ENDED_CALL_STATES for call in run.calls.values()):
            run.to(AgentPhase.REFLECTING)
        run.signals = run.journal.finish_call(record.position, end, run.meter.progress())


def _written(run: RunContext, state: State | None, before: dict[str, Any]) -> dict[str, Any] | None:
    """What the tool itself wrote to the State it was handed: a replay has to write it again."""
    if state is None:
        return None
    try:
        after = run.keys.encoded(state.data)
    except NotStorable:
        return None  # the checkpoint names the key
    changes = {name: difference(before.get(name), value) for name, value in after.items()}
    return {name: change for name, change in changes.items() if change is not None} or None


def _within(seconds: float, inner: Callable[..., Any], kwargs: dict[str, Any], run: RunContext) -> Any:
    """Run the tool in a thread of its own and stop waiting after `seconds`; a thread cannot be stopped itself."""
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((True, inner(**kwargs)))
        except BaseException as error:
            answers.put((False, error))
        finally:
            run.journal.thread_done()

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name="agentstate-timed-tool", daemon=True).start()
    try:
        ended, answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise _TimedOut from None
    if ended:
        return answer
    raise answer


def _arguments(record: CallRecord) -> dict[str, Any]:
    return record.arguments if record.sent is None else record.sent


def _equal(given: Any, recorded: Any) -> bool:
    return bool(given == recorded) or encode_lossy(given)[0] == recorded
