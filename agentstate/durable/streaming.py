"""Shows a model's reply while the model writes it: the port, and what the chat generator is given for it.

The text is for showing only. What is stored is the whole reply, as without it: an adapter that fails or is slow changes
nothing in a run.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

# Generators whose server tells the usage of a streamed reply only where it is asked to. Exactly these classes: other
# servers, whose generators may inherit from them, may refuse the option.
_ASKED_FOR_USAGE = {
    "haystack.components.generators.chat.openai.OpenAIChatGenerator",
    "haystack.components.generators.chat.azure.AzureOpenAIChatGenerator",
}
# Options for structured outputs, which Haystack does not stream or requests in another way when it streams.
STRUCTURED = ("response_format", "text_format", "text")


class PartialReply(Protocol):
    """One reply that is being written. No method blocks or raises."""

    def add(self, text: str) -> None:
        """The model has written this, too."""

    def end(self) -> None:
        """The reply is committed, or will never be."""


class PartialReplies(Protocol):
    """Where the replies of one run are shown."""

    def begin(self, model_calls: int) -> PartialReply:
        """
        :param model_calls: The model calls of the visible history before this one. Once the session has more, the
            reply is committed.
        """


_current: ContextVar[PartialReplies | None] = ContextVar("agentstate_partial_replies", default=None)


def current() -> PartialReplies | None:
    return _current.get()


@contextmanager
def shown_by(replies: PartialReplies | None) -> Iterator[None]:
    """Show the replies of the runs inside, where their agents stream; None to show none of them."""
    token = _current.set(replies)
    try:
        yield
    finally:
        _current.reset(token)


def takes_callback(generator: Any) -> bool:
    """Whether the chat generator can be given a streaming callback."""
    try:
        parameters = inspect.signature(generator.run).parameters
    except (AttributeError, TypeError, ValueError):
        return False
    return "streaming_callback" in parameters


def may_be_shown(generator: Any, options: dict[str, Any], *, streams: bool) -> bool:
    """Whether the reply to this call is shown while it is written.

    :param streams: The agent is registered with ``stream=True``.
    """
    streams_itself = _callback(generator, options) is not None
    if not streams_itself and not (streams and _may_begin_to_stream(generator, options)):
        return False
    return takes_callback(generator)  # last: to look at a signature takes longer than all else here


def with_partial_reply(
    generator: Any, options: dict[str, Any], partial: PartialReply, *, awaited: bool
) -> dict[str, Any]:
    """The options of the call, with a callback that shows the reply behind the user's own.

    :param awaited: The generator is called by `run_async`.
    """
    own = _callback(generator, options)

    def show(chunk: Any) -> None:
        text = getattr(chunk, "content", None)
        if isinstance(text, str) and text:
            partial.add(text)

    async def stream_awaited(chunk: Any) -> None:
        result = own(chunk) if own is not None else None
        if inspect.isawaitable(result):
            await result
        show(chunk)

    def stream(chunk: Any) -> None:
        if own is not None:
            own(chunk)
        show(chunk)

    if own is not None and not awaited and inspect.iscoroutinefunction(own):
        return options  # the generator says what is wrong with it
    options = {**options, "streaming_callback": stream_awaited if awaited else stream}
    if own is None and _is_asked_for_usage(_generators(generator)):
        kwargs = dict(options.get("generation_kwargs") or {})
        configured = {**(getattr(generator, "generation_kwargs", None) or {}), **kwargs}
        kwargs["stream_options"] = {"include_usage": True, **(configured.get("stream_options") or {})}
        options["generation_kwargs"] = kwargs
    return options


def _callback(generator: Any, options: dict[str, Any]) -> Any:
    """The user's own callback for this call: as in Haystack, that of the run comes before that of the generator."""
    return options.get("streaming_callback") or getattr(generator, "streaming_callback", None)


def _may_begin_to_stream(generator: Any, options: dict[str, Any]) -> bool:
    """Whether streaming changes nothing in the reply of a generator that does not stream by itself."""
    generators = _generators(generator)
    kinds = {_is_asked_for_usage([inner]) for inner in generators}
    if len(kinds) > 1:
        return False  # one option for all of them, which some of them might refuse
    for inner in generators:
        kwargs = {
            **(getattr(inner, "generation_kwargs", None) or {}),
            **(options.get("generation_kwargs") or {}),
        }
        if (kwargs.get("n") or 1) != 1 or any(kwargs.get(name) for name in STRUCTURED):
            return False
        if inner is not generator and getattr(inner, "streaming_callback", None) is not None:
            return False  # a callback of the call would replace it
    return True


def _generators(generator: Any) -> Sequence[Any]:
    """Those of a `FallbackChatGenerator`, or else the generator."""
    inner = getattr(generator, "chat_generators", None)
    return inner if isinstance(inner, list) and inner else [generator]


def _is_asked_for_usage(generators: Sequence[Any]) -> bool:
    return all(
        f"{type(generator).__module__}.{type(generator).__qualname__}" in _ASKED_FOR_USAGE
        for generator in generators
    )
