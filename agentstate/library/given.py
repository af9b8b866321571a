"""Checks what a script passes to a `DurableAgent`, and says what to pass instead of an unusable value."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agentstate.articles import an
from agentstate.durable.breakpoints import checked_breakpoints

if TYPE_CHECKING:
    from haystack.components.agents import Agent
    from haystack.dataclasses import ChatMessage

_AS_WHAT = "Give a text, a ChatMessage, or a list of ChatMessage"


def messages_of(given: Any) -> "list[ChatMessage]":
    """The messages of a turn. A text is one of the user.

    :raises TypeError: for anything else.
    """
    from haystack.dataclasses import ChatMessage

    if isinstance(given, str):
        return [ChatMessage.from_user(given)] if given else []
    if isinstance(given, ChatMessage):
        return [given]
    if given is None:
        return []
    if isinstance(given, Mapping | bytes | bytearray) or not isinstance(given, Iterable):
        raise TypeError(f"{an(given, start=True)} is not a message for an agent. {_AS_WHAT}.{_cure(given)}")
    messages = list(given)
    for message in messages:
        if not isinstance(message, ChatMessage):
            raise TypeError(f"The messages contain {an(message)}. {_AS_WHAT}.{_cure(message)}")
    return messages


def check_registered_key(key: Any) -> None:
    """:raises TypeError: for what is not the key of a registered agent, but perhaps the agent itself."""
    if not isinstance(key, str):
        raise TypeError(
            f"DurableAgent.of takes the key under which an agent is registered, a text, not {an(key)}. An "
            "agent itself is given to DurableAgent(agent, journal)."
        )


def check_key(key: Any) -> None:
    """
    :raises TypeError: for the key of a turn that is no text.
    :raises ValueError: for one that cannot be stored.
    """
    from agentstate.durable.state.encoding import clean_text

    if not isinstance(key, str):
        raise TypeError(f"The key of a turn is a text, not {an(key)}.")
    if clean_text(key) != key:
        raise ValueError(
            f"The key {key!r} has a NUL character or an unpaired surrogate, which cannot be stored. Give the turn a "
            "key without it."
        )


def live_inputs(
    agent: "Agent", streaming_callback: Any, hook_context: Any, break_point: Any, *, is_async: bool = False
) -> dict[str, Any]:
    """What a run is given that is not stored, as `agentstate.durable.run.Options` has it.

    :param is_async: The run is awaited, and so may its callback be.
    :raises TypeError: for a callback that cannot be called, a context that is no dict, or what is no breakpoint.
    :raises ValueError: for a callback that would have to be awaited, or a breakpoint that could never stop: the agent
        lacks its tool, or the tool its argument.
    """
    from agentstate.durable.agent_checks import why_never_stopping
    from agentstate.durable.definition import is_async_callback

    if streaming_callback is not None and not callable(streaming_callback):
        raise TypeError(
            f"{an(streaming_callback, start=True)} is not a streaming_callback. Give a function that takes a "
            "StreamingChunk."
        )
    if not is_async and is_async_callback(streaming_callback):
        raise ValueError(
            "The streaming_callback is a coroutine function, which only `await run_async(...)` and `await "
            "resume_async(...)` can call. Give `run` and `resume` a plain function."
        )
    if hook_context is not None and not isinstance(hook_context, dict):
        raise TypeError(f"The hook_context is a dict, not {an(hook_context)}.")
    breakpoints = checked_breakpoints(break_point)
    if why := why_never_stopping(agent, breakpoints):
        raise ValueError(f"The run has breakpoints {why}")
    return {
        "streaming_callback": streaming_callback,
        "hook_context": hook_context,
        "breakpoints": breakpoints,
    }


def check_mapping(what: str, given: Any) -> None:
    """:raises TypeError: for what is not named values."""
    if given is not None and not (
        isinstance(given, Mapping) and all(isinstance(name, str) for name in given)
    ):
        raise TypeError(f"The {what} are a dict of values by name, not {an(given)}.")


def _cure(value: Any) -> str:
    """How to make a message of the value, where that can be known."""
    if isinstance(value, str):
        return f" For a message of the user: ChatMessage.from_user({value[:40]!r})."
    if isinstance(value, Mapping):
        return " Of a dict in the form of OpenAI's messages ChatMessage.from_openai_dict_format makes one."
    return ""
