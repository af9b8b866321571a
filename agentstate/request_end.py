"""What has to be done when a request under ASGI ends, however it ends: answered, its client gone, or cancelled.

Neither the view nor its answer can tell. A middleware that is not async has the view run in a task of its own, which
ends before the answer is sent; and an answer that was made for a client that has gone meanwhile is dropped, without
being closed and, where it is a stream, without having begun. So the handler keeps it, in the scope of the request.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

_KEY = "agentstate.request_end"

Do = Callable[[], object]


class _End:
    def __init__(self) -> None:
        self._is_over = False
        self._dos: list[Do] = []

    def at(self, do: Do) -> None:
        if self._is_over:
            do()
        else:
            self._dos.append(do)

    def come(self) -> None:
        self._is_over = True
        while self._dos:
            self._dos.pop()()


@contextmanager
def ending(scope: Mapping[str, Any]) -> Iterator[MutableMapping[str, Any]]:
    """The scope for the application, whose request ends with the block."""
    end = _End()
    try:
        yield {**scope, _KEY: end}
    finally:
        end.come()


def is_known(scope: Mapping[str, Any]) -> bool:
    """Whether the handler of this request tells when it ends."""
    return _KEY in scope


def at_end(scope: Mapping[str, Any], do: Do) -> None:
    """Called on the event loop; so is `do`, at once where the request has ended already. It must not raise."""
    end: _End = scope[_KEY]
    end.at(do)
