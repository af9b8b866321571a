"""The idempotency key of the running tool call. Pure Python, so that a tool's module can import it anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agentstate.articles import an

current_key: ContextVar[str | None] = ContextVar("agentstate_idempotency_key", default=None)


def idempotency_key() -> str:
    """The key of the tool call that is running now: the same each time that this call is run again.

    Pass it to the service that has the side effect, so that it can tell a repetition from a second request. All that a
    tool does by running another agent is one call with one key: add what tells the calls in there apart.

    A thread that the tool starts itself has no key: read it before and pass it on, or run the thread in a copy of the
    tool's context (`contextvars.copy_context`).

    :raises RuntimeError: outside a tool call of a durable run, and outside `use_idempotency_key`.
    """
    key = current_key.get()
    if key is None:
        raise RuntimeError(
            "There is no idempotency key here: agentstate.idempotency_key() is for tools of a durable run. In a thread "
            "that a tool starts itself, such as one of a ThreadPoolExecutor, read the key before and pass it to the "
            "thread, or run the thread in contextvars.copy_context(). Without a durable run, as in a test of the tool, "
            "call it within `with agentstate.use_idempotency_key(...)`."
        )
    return key


@contextmanager
def use_idempotency_key(key: str) -> Iterator[None]:
    """Within it `idempotency_key()` is this key, in place of that of the call: to test a tool without a durable run.

    :raises TypeError: for a key that is no text.
    :raises ValueError: for an empty one.
    """
    if not isinstance(key, str):
        raise TypeError(f"An idempotency key is a text, not {an(key)}.")
    if not key:
        raise ValueError("The idempotency key is empty.")
    token = current_key.set(key)
    try:
        yield
    finally:
        current_key.reset(token)
