"""Puts code of the engine around a method of the user's objects.

The wrapper is put on the class that defines the method, and is called for the object itself. So nothing is left on the
object: a copy of it is an object like any other, and what it equals and is serialised to stays the same. Only a method
that was set on the object, and not on its class, is wrapped there.

The code around is given the object, its method, and the keyword arguments. It is called in plain runs, too.
"""

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# The threads of a worker run agents with the same tools: two of them would put the code around twice.
_changes = threading.Lock()
Around = Callable[[Any, Callable[..., Any], dict[str, Any]], Any]


def put_around(of: object, name: str, around: Around) -> None:
    """Put the code around the object's method of this name, unless it is there.

    :param around: A coroutine function for a method that is awaited.
    """
    own: dict[str, Any] = getattr(of, "__dict__", {})
    if name not in own and _is_wrapper(getattr(type(of), name, None)):
        return
    with _changes:
        if name in own:
            own[name] = _around_own(of, own[name], around)
            return
        kind = next((kind for kind in type(of).__mro__ if name in vars(kind)), None)
        if kind is not None and not _is_wrapper(vars(kind)[name]):
            setattr(kind, name, _wrapper(vars(kind)[name], around))


def _is_wrapper(method: Any) -> bool:
    # A decorator of the user's copies the attributes of what it is put on: the wrapper is known by itself.
    return method is not None and getattr(method, "agentstate_wrapper", None) is method


def _wrapper(method: Any, around: Around) -> Callable[..., Any]:
    def bound(of: object, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        own = method.__get__(of, type(of)) if hasattr(method, "__get__") else method
        return functools.partial(own, *arguments) if arguments else own

    if inspect.iscoroutinefunction(around):

        @functools.wraps(method)
        async def called_async(self: object, /, *args: Any, **kwargs: Any) -> Any:
            return await around(self, bound(self, args), kwargs)

        wrapper: Any = called_async
    else:

        @functools.wraps(method)
        def called(self: object, /, *args: Any, **kwargs: Any) -> Any:
            return around(self, bound(self, args), kwargs)

        wrapper = called
    wrapper.agentstate_wrapper = wrapper
    return wrapper  # type: ignore[no-any-return]


@dataclass(eq=False)
class _OwnMethod:
    """A method that the user has set on an object. A deep copy of the object has a deep copy of this, of the copy."""

    of: object
    method: Callable[..., Any]
    around: Around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = functools.partial(self.method, *args) if args else self.method
        return self.around(self.of, method, kwargs)


class _OwnAsyncMethod(_OwnMethod):
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await super().__call__(*args, **kwargs)


def _around_own(of: object, method: Any, around: Around) -> _OwnMethod:
    if isinstance(method, _OwnMethod):
        if method.of is of:
            return method
        method = method.method  # of the object of which this one is a shallow copy
    kind = _OwnAsyncMethod if inspect.iscoroutinefunction(around) else _OwnMethod
    return kind(of, method, around)
