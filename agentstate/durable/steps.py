"""Rules that a synchronous and an asynchronous run share, and the thread in which an asynchronous run has its commits.

Such a rule is a generator: it yields where code of the user's runs, is sent what that returned or thrown what it
raised, and returns the result. `complete` runs it in this thread. `complete_async` awaits the user's code on the event
loop and runs the rest, with its commits, in the run's own thread.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from agentstate.durable.interruptions import in_thread

Request = TypeVar("Request")
Answer = TypeVar("Answer")
Result = TypeVar("Result")
Rule = Generator[Request, Answer, Result]


class JournalThread:
    """A thread for what would block the event loop. It is started by the first use."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call the function in the thread, with a copy of the present context variables, and wait until it has ended.

        A cancellation waits for it too: nobody is told of the end of a run while it still writes.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="agentstate-journal")
        context = contextvars.copy_context()
        call = asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: context.run(in_thread, function, *arguments)
        )
        cancelled = None
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError as error:
                cancelled = error
        try:
            if cancelled is not None:
                call.exception()  # of no interest any more
                raise cancelled
            return call.result()
        finally:
            # An exception refers to this frame: referred to from here it would stay, with all that the frames hold,
            # until the garbage collector finds it.
            del call, cancelled

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False)


def complete(rule: Rule[Request, Answer, Result], answer: Callable[[Request], Answer]) -> Result:
    """The rule's result. `answer` runs the user's code that the rule asks for.

    The rule has ended when this does, also where it is interrupted: nothing that the rule holds stays held.
    """
    try:
        done, value = _advance(rule.send, None)
        while not done:
            try:
                given = answer(value)
            except BaseException as error:
                done, value = _advance(rule.throw, error)
            else:
                done, value = _advance(rule.send, given)
    finally:
        rule.close()
    result: Result = value
    return result


async def complete_async(
    rule: Rule[Request, Answer, Result],
    answer: Callable[[Request], Awaitable[Answer]],
    thread: JournalThread,
) -> Result:
    """As `complete`: the rule advances in the thread, and `answer` is awaited here."""
    try:
        done, value = await thread.run(_advance, rule.send, None)
        while not done:
            try:
                given = await answer(value)
            except GeneratorExit:
                raise
            except BaseException as error:
                done, value = await thread.run(_advance, rule.throw, error)
            else:
                done, value = await thread.run(_advance, rule.send, given)
    except GeneratorExit:  # the event loop has gone: nothing can be awaited any more
        raise
    except BaseException:
        # A cancellation that arrived while the rule advanced has not reached the rule, which waits for an answer.
        await thread.run(rule.close)
        raise
    result: Result = value
    return result


def _advance(resume: Callable[[Any], Any], value: Any) -> tuple[bool, Any]:
    """Whether the rule has ended, and its result, or else what it asks for."""
    try:
        return False, resume(value)
    except StopIteration as ended:
        return True, ended.value
