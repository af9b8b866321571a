"""A model that streams, and lets a test look between one chunk and the next."""

from collections.abc import Callable, Sequence
from typing import Any

from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, StreamingChunk


@component
class SlowModel:
    """Replies with the joined chunks.

    :param between: Called after each chunk with its number, from 1, in the thread of the model.
    """

    def __init__(
        self,
        chunks: Sequence[str],
        between: Callable[[int], None] = lambda number: None,
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.chunks = list(chunks)
        self.between = between
        self.streaming_callback = streaming_callback
        self.generation_kwargs = generation_kwargs or {}
        self.has_streamed: list[bool] = []

    def to_dict(self) -> dict[str, Any]:
        return {"type": "tests.slow_models.SlowModel", "init_parameters": {"chunks": self.chunks}}

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage],
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
        tools: Any = None,
    ) -> dict[str, Any]:
        callback = streaming_callback or self.streaming_callback
        self.has_streamed.append(callback is not None)
        for number, chunk in enumerate(self.chunks, 1):
            if callback is not None:
                callback(StreamingChunk(chunk))
            self.between(number)
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        return {"replies": [ChatMessage.from_assistant("".join(self.chunks), meta={"usage": usage})]}


@component
class SlowAwaitedModel(SlowModel):
    """The same, for `run_async`."""

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage],
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
        tools: Any = None,
    ) -> dict[str, Any]:
        callback = streaming_callback or self.streaming_callback
        self.has_streamed.append(callback is not None)
        for number, chunk in enumerate(self.chunks, 1):
            if callback is not None:
                await callback(StreamingChunk(chunk))
            self.between(number)
        return {"replies": [ChatMessage.from_assistant("".join(self.chunks))]}


def talking(model: Any, **options: Any) -> Agent:
    return Agent(chat_generator=model, **options)
