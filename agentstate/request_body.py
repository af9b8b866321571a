"""The body of a request under ASGI: no more of it is read than a request may have.

Django reads and stores a body of any size before anything can refuse it. Here the application is given an empty body
in place of one that is too large, in a request whose Content-Length says so, by which a middleware refuses it as under
WSGI. Nothing is read of a body that is announced as too large, and of one that comes in chunks, no more than the limit
and the chunk that exceeds it.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

_LENGTH = b"content-length"


def limited(scope: MutableMapping[str, Any], receive: Receive, limit: int) -> Receive:
    """What the application is to receive the request from.

    :param scope: That of the application. Its Content-Length is set once the body turns out to be too large.
    """
    read = 0
    is_refused = _announced(scope) > limit
    is_told = False

    async def receive_limited() -> Message:
        nonlocal read, is_refused, is_told
        if is_told:
            # What the client goes on to send is left to the server, and the answer does not wait for this.
            await asyncio.get_running_loop().create_future()
        if not is_refused:
            message = await receive()
            read += len(message.get("body", b""))
            if read <= limit:
                return message
            is_refused = True
            others = [(name, value) for name, value in scope["headers"] if name != _LENGTH]
            scope["headers"] = [*others, (_LENGTH, b"%d" % read)]
        is_told = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive_limited


def _announced(scope: MutableMapping[str, Any]) -> int:
    """The number of bytes that the body is said to have; 0 where that is not known."""
    try:
        return max(int(value) for name, value in scope["headers"] if name == _LENGTH)
    except ValueError:  # none, or one that is no number
        return 0
