"""The idempotency key of the running tool call. Pure Python, so that a tool's module can import it anywhere."""

from contextvars import ContextVar

current_key: ContextVar[str | None] = ContextVar("agentstate_idempotency_key", default=None)


def idempotency_key() -> str:
    """The key of the tool call that is running now: the same each time that this call is run again.

    Pass it to the service that has the side effect, so that it can tell a repetition from a second request. All that a
    tool does by running another agent is one call with one key: add what tells the calls in there apart.

    :raises RuntimeError: outside a tool call of a durable run.
    """
    key = current_key.get()
    if key is None:
        raise RuntimeError(
            "There is no idempotency key here: agentstate.idempotency_key() is for tools of a durable run."
        )
    return key
