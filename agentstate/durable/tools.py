"""The ledger around each tool: a call is committed as started, then as ended; an ended one is replayed.

`attach` puts it around the `invoke` and `invoke_async` of a tool, where it does nothing outside a durable run. It runs
in the threads of `tool_threads` and in Haystack's tasks. No transaction is open while the tool runs.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

from haystack.components.agents.state import State
from haystack.tools import Tool
from haystack.tools.errors import ToolInvocationError

from agentstate.durable import doubts, effects, run_context, state_arguments, tool_function, tool_outputs
from agentstate.durable.cache import cache_key
from agentstate.durable.call_ends import record_end
from agentstate.durable.idempotency import current_key
from agentstate.durable.interruptions import NotAnException
from agentstate.durable.policy import ToolPolicy
from agentstate.durable.port import EffectElsewhere
from agentstate.durable.records import CallEnd, CallRecord
from agentstate.durable.run_context import RunContext, Suspended
from agentstate.durable.state.encoding import clean_text, decode, encode_lossy, lost_type
from agentstate.durable.state.keys import apply, difference, same_json
from agentstate.durable.state.tags import stand_ins
from agentstate.durable.steps import Rule, complete, complete_async
from agentstate.durable.wrapped_methods import put_around
from agentstate.names import ENDED_CALL_STATES, LATE, CallState

_NOT_ARGUMENTS = frozenset({"streaming_callback"})
_OF_HAYSTACK = Tool.invoke_async


# What runs a call: for so many seconds, or None for as long as it takes. It yields that for the tool itself.
Ledgered = Rule[float | None, Any, Any]


def attach(tool: Tool) -> None:
    """Put the ledger around the `invoke` and `invoke_async` of the tool. The tool itself is not changed."""
    put_around(tool, "invoke", _invoke)
    put_around(tool, "invoke_async", _invoke_async)
    tool_outputs.attach(tool)


def _invoke(tool: Tool, invoke: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    run = run_context.current()
    record = match_call(run, tool.name, kwargs) if run is not None else None
    if run is None or record is None:
        return invoke(**kwargs)

    def answer(seconds: float | None) -> Any:
        with _inside(record):
            return tool_function.call(invoke, kwargs, seconds=seconds, thread_done=run.journal.thread_done)

    try:
        with run.open_calls.call():
            return complete(_noted(run, record, tool, kwargs), answer)
    finally:
        if threading.get_ident() != run.thread:
            run.journal.thread_done()


async def _invoke_async(tool: Tool, invoke_async: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    run = run_context.current()
    if run is None or _calls_invoke(tool, invoke_async):
        return await invoke_async(**kwargs)
    record = await run.journal_thread.run(match_call, run, tool.name, kwargs)
    if record is None:
        return await invoke_async(**kwargs)

    async def answer(seconds: float | None) -> Any:
        with _inside(record):
            return await tool_function.call_async(invoke_async, kwargs, seconds=seconds)

    with run.open_calls.call():
        return await complete_async(_noted(run, record, tool, kwargs), answer, run.journal_thread)


def _calls_invoke(tool: Tool, invoke_async: Callable[..., Any]) -> bool:
    """Whether it calls `invoke`, in a thread: the ledger is around that already."""
    return tool.async_function is None and getattr(invoke_async, "__func__", None) is _OF_HAYSTACK


@contextmanager
def _inside(record: CallRecord) -> Iterator[None]:
    """The call's idempotency key is at hand, and a nested agent does not take this run for its own."""
    run_token = run_context.current_run.set(None)
    key_token = current_key.set(record.idempotency_key)
    try:
        yield
    finally:
        current_key.reset(key_token)
        run_context.current_run.reset(run_token)


def match_call(run: RunContext, tool: str, kwargs: dict[str, Any]) -> CallRecord | None:
    """The pending call that is being executed: `invoke` is given no call id, so match by tool and arguments.

    Identical calls are interchangeable. Of several that match, the one with the most arguments is taken, so that a call
    without any is not taken for one that has some; and of those, one whose arguments are the same as JSON, since to
    Python 1, 1.0 and True are equal.
    """
    with run.lock:
        matches = [
            record
            for record in run.unmatched_calls
            if record.tool == tool
            and all(
                name in kwargs and _is_equal(kwargs[name], value)
                for name, value in record.run_arguments.items()
            )
        ]
        if not matches:
            return None
        best = matches[0] if len(matches) == 1 else max(matches, key=lambda record: _match(record, kwargs))
        run.unmatched_calls.remove(best)
        return best


def _noted(run: RunContext, record: CallRecord, tool: Tool, kwargs: dict[str, Any]) -> Ledgered:
    try:
        return (yield from _ledgered(run, record, tool, kwargs))
    except ToolInvocationError as error:
        run.note_failure(record, error)
        raise


def _ledgered(run: RunContext, record: CallRecord, tool: Tool, kwargs: dict[str, Any]) -> Ledgered:
    """Replay the call, answer it from the cache, or let it run and record how it ends.

    :raises ToolInvocationError: as the tool itself does; Haystack makes a message for the model of it. Also for a call
        that is given something else from the State than the request showed which a person approved.
    :raises Suspended: if the call took too long and may have taken effect, or needs approval because of what
        another session did.
    """
    state = next((value for value in kwargs.values() if isinstance(value, State)), None)
    if record.status in ENDED_CALL_STATES:
        if tool.name in run.search_tools and record.status == CallState.DONE:
            yield None  # the run's toolset has to find the tools, of which the record has only the names
        return _replay(run, record, tool, state)
    if why := state_arguments.why_changed(tool, record, kwargs):
        record_end(run, record, tool, CallEnd(CallState.FAILED, run.now(), error=why), None)
        raise ToolInvocationError(why, tool_name=tool.name)

    policy = run.policy(tool.name)
    key = _key_in_cache(run, tool, policy, kwargs) if state is None else None
    hit = run.cache.get(key) if key is not None and run.cache is not None else None
    if hit is not None:
        record_end(
            run, record, tool, CallEnd(CallState.DONE, run.now(), result=hit["result"], cached=True), None
        )
        return decode(hit["result"])

    started = run.now()
    record = _begin(run, record, policy, started)
    before = run.keys.encoded(state.data) if state is not None else {}
    run.journal.check_claim()
    try:
        result = yield policy.timeout
    except (ToolInvocationError, NotAnException) as raised:
        error = _as_error_of(tool, raised)
        changes = _state_changes(run, state, before)
        end = CallEnd(
            CallState.FAILED, run.now(), error=str(error), state=changes, lossy=bool(stand_ins(changes))
        )
        record_end(run, record, tool, end, started)
        raise error from raised.__cause__
    except tool_function.TimedOut:
        _end_late(run, record, tool, policy, started)

    changes = _state_changes(run, state, before)
    if policy.redacted:
        end = CallEnd(CallState.DONE, run.now(), state=changes, lossy=bool(stand_ins(changes)))
        record_end(run, record, tool, end, started)
        return result
    data, lossy = tool_outputs.encode_outputs(tool, result)
    end = CallEnd(
        CallState.DONE,
        run.now(),
        result=data,
        lossy=lossy or bool(stand_ins(changes)),
        lost_type=lost_type(result) if lossy else "",
        state=changes,
    )
    record_end(run, record, tool, end, started)
    if key is not None and run.cache is not None and policy.cache_ttl is not None and not lossy:
        run.cache.set(key, {"result": data}, policy.cache_ttl)
    # The rest of this run must see what a resumed run would see.
    return tool_outputs.deliver(run, tool, data) if lossy else result


def _begin(run: RunContext, record: CallRecord, policy: ToolPolicy, started: datetime) -> CallRecord:
    """The call as it is recorded once it has started; it may have been started together with the model's reply.

    :raises Suspended: if it needs approval because of what another session did.
    """
    if record.position in run.started_calls:
        return record
    try:
        run.signals = run.journal.start_call(
            record.position, sent=record.sent, at=started, scope=policy.effect_scope
        )
    except EffectElsewhere as elsewhere:
        raise effects.suspended_for(run, record, elsewhere.earlier) from None
    return run.update_call(record, status=CallState.STARTED, attempt=record.attempt + 1)


def _as_error_of(tool: Tool, raised: ToolInvocationError | NotAnException) -> ToolInvocationError:
    """What the tool raised, with a text that is the same in this process and in another one."""
    if isinstance(raised, NotAnException):
        return ToolInvocationError(clean_text(f"Tool `{tool.name}` failed: {raised}"), tool_name=tool.name)
    text = str(raised)
    return raised if clean_text(text) == text else ToolInvocationError(clean_text(text), tool_name=tool.name)


def _end_late(
    run: RunContext, record: CallRecord, tool: Tool, policy: ToolPolicy, started: datetime
) -> NoReturn:
    """End a call that took too long. It has failed if its tool is idempotent and has no effect, else it is in doubt.

    The model may repeat a call that has failed, with another key than that of the one which may still take effect.

    :raises ToolInvocationError: if it has failed.
    :raises Suspended: if it is in doubt.
    """
    late = f"{tool.name} {LATE} {policy.timeout:g} second{'' if policy.timeout == 1 else 's'}."
    if policy.effect_scope is None:
        record_end(run, record, tool, CallEnd(CallState.FAILED, run.now(), error=late), started)
        raise ToolInvocationError(late, tool_name=tool.name) from None
    with run.lock:
        run.late_calls[record.position] = tool, late
        end = doubts.late(run.late_calls)
    raise Suspended(end) from None


def _key_in_cache(run: RunContext, tool: Tool, policy: ToolPolicy, kwargs: dict[str, Any]) -> str | None:
    """The call's key in the tool cache; None if its result is not to be reused."""
    if run.cache is None or policy.cache_ttl is None:
        return None
    arguments, lossy = encode_lossy(
        {name: value for name, value in kwargs.items() if name not in _NOT_ARGUMENTS}
    )
    return None if lossy else cache_key(run.cache_scope, tool.name, arguments)


def _replay(run: RunContext, record: CallRecord, tool: Tool, state: State | None) -> Any:
    if state is not None and record.state:
        values_now = run.keys.encoded(state.data)
        for name, change in record.state.items():
            # Not by `set`, which refuses a key that the tool has added beside the schema.
            state.data[name] = decode(apply(values_now.get(name), change))
    if record.status == CallState.DONE:
        return tool_outputs.deliver(run, tool, record.result)
    raise ToolInvocationError(record.error, tool_name=tool.name)


def _state_changes(run: RunContext, state: State | None, before: dict[str, Any]) -> dict[str, Any] | None:
    """What the tool itself wrote to the State that it was given: a replay has to write it again."""
    if state is None:
        return None
    after = run.keys.encoded(state.data)
    changes = {name: difference(before.get(name), value) for name, value in after.items()}
    return {name: change for name, change in changes.items() if change is not None} or None


def _match(record: CallRecord, kwargs: dict[str, Any]) -> tuple[int, bool]:
    """How well the call matches, among those that do."""
    arguments = record.run_arguments
    is_same = all(same_json(kwargs[name], value) for name, value in arguments.items())
    return len(arguments), is_same


def _is_equal(value: Any, recorded: Any) -> bool:
    return bool(value == recorded) or encode_lossy(value)[0] == recorded
