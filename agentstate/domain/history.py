"""A conversation in the form that a chat API takes, truncated to what the model can read.

Chat APIs refuse a list in which a tool's result does not follow directly after the assistant message that asked
for it, or in which a call has no result. `history_to_messages` never returns such a list, and `truncate_history` never
makes one of a valid list.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentstate.domain import parts
from agentstate.domain.frozen import thaw, to_json
from agentstate.domain.messages import Message, Role
from agentstate.domain.state import AgentState

ChatMessage = dict[str, Any]
TokenCounter = Callable[[str], int]

DEFAULT_BUDGET = 8000
"""Tokens to which a history is truncated where nothing else is said."""

OVERHEAD = 4
"""Tokens of a message in addition to its text: its role and the delimiters."""

ATTACHMENT = 1000
"""Tokens of an image or a file, about: what it takes depends on the model."""


class InconsistentHistory(ValueError):
    """A tool result that no message asked for, or a call that has not exactly one result."""


class NotForChatApi(ValueError):
    """An image or a file where a chat API takes text alone. The message says what to do."""


def history_to_messages(history: AgentState | Iterable[Message]) -> list[ChatMessage]:
    """A state's history as OpenAI chat messages: `role`, `content`, `tool_calls`, `tool_call_id`.

    The results of a message's calls follow directly after it, in the order of the calls. A user's message with images
    or files has a list as its `content`. Reasoning has no place in these messages.

    :raises InconsistentHistory: naming the call that lacks its request, or has not exactly one result.
    :raises NotForChatApi: for an image or a file in a message that is not the user's.
    """
    history = list(history.history if isinstance(history, AgentState) else history)
    results = _results_by_request(history)
    messages: list[ChatMessage] = []
    for index, message in enumerate(history):
        if message.role is Role.TOOL:
            continue
        calls = _calls(message)
        if not calls:
            messages.append({**_role(message), "content": _content(message)})
            continue
        openai_calls = [_openai_call(call) for call in calls]
        messages.append({**_role(message), "content": _content(message) or None, "tool_calls": openai_calls})
        for call in calls:
            result = results.get((index, call["id"]))
            if result is None:
                raise InconsistentHistory(f"The call {call['id']!r} of {call['name']} has no result.")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": _content(result)})
    return messages


def _role(message: Message) -> dict[str, Any]:
    name = message.metadata.get("name")
    return {"role": message.role.value, **({"name": name} if name else {})}


def _content(message: Message) -> str | list[dict[str, Any]]:
    """The text of the message; what a user's message holds is a list where it is more than one text."""
    if message.role is Role.USER and parts.PARTS in message.metadata:
        return [_openai_part(part) for part in parts.joined(message.content, thaw(message.metadata))]
    if others := set(parts.kinds(message.metadata)) - {"reasoning"}:
        raise NotForChatApi(
            f"A message of the role {message.role.value} holds {', '.join(sorted(others))}, which a chat API accepts "
            "in user messages only. Replace it with a message whose metadata has no 'parts'."
        )
    return message.content


def _openai_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if parts.is_text(part):
        return {"type": "text", "text": part["text"]}
    [(kind, value)] = part.items()
    if kind == "image":
        detail = {"detail": value["detail"]} if value.get("detail") else {}
        url = f"data:{value.get('mime_type') or 'image/jpeg'};base64,{value['base64_image']}"
        return {"type": "image_url", "image_url": {"url": url, **detail}}
    if kind == "file":
        data = f"data:{value.get('mime_type') or 'application/pdf'};base64,{value['base64_data']}"
        return {"type": "file", "file": {"file_data": data, "filename": value.get("filename") or "filename"}}
    raise NotForChatApi(f"A user message holds {kind}, which a chat API does not accept. Leave it out.")


def _openai_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": to_json(call["arguments"])}
    return {"id": call["id"], "type": "function", "function": function}


def _calls(message: Message) -> Sequence[Any]:
    """The calls that the message asks for, each with its `id`, `name` and `arguments`."""
    if message.role is not Role.ASSISTANT:
        return ()
    calls: Sequence[Any] = message.metadata.get("tool_calls") or ()
    for call in calls:
        if not isinstance(call, Mapping) or not {"id", "name", "arguments"} <= call.keys():
            raise InconsistentHistory(f"A message asks for {call!r}, which lacks an id, a name or arguments.")
    return calls


def _results_by_request(history: Sequence[Message]) -> dict[tuple[int, str], Message]:
    """Each tool message, by the index of the message that asked for it and the call's id.

    Some models reuse an id in a later reply: a result belongs to the latest request before it.
    """
    requests: dict[str, int] = {}
    results: dict[tuple[int, str], Message] = {}
    for index, message in enumerate(history):
        requests |= {call["id"]: index for call in _calls(message)}
        if message.role is Role.TOOL:
            call_id = message.metadata.get("tool_call_id")
            if call_id not in requests:
                raise InconsistentHistory(
                    f"A tool's result answers the call {call_id!r}, which no message asked for."
                )
            key = (requests[call_id], call_id)
            if key in results:
                raise InconsistentHistory(f"The call {call_id!r} has two results.")
            results[key] = message
    return results


def approximate_tokens(text: str) -> int:
    """About 4 characters of English to a token; other scripts by their bytes, as tokenizers do."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def exact_tokens(encoding: str = "o200k_base") -> TokenCounter:
    """A counter by the tokenizer of OpenAI's models, which is fetched at its first use. Needs the extra `tokens`.

    :raises OSError: if the tokenizer cannot be fetched, with what to do.
    """
    try:
        import tiktoken
    except ImportError as error:
        raise ImportError(
            "Exact counts need the extra 'tokens': pip install 'agentstate[tokens]'."
        ) from error
    try:
        tokenizer = tiktoken.get_encoding(encoding)
    except OSError as error:
        raise OSError(
            f"The tokenizer {encoding!r} cannot be fetched: {error}. Call exact_tokens() once on a machine "
            "with a network, with TIKTOKEN_CACHE_DIR set to a folder, and copy that folder here."
        ) from error
    return lambda text: len(tokenizer.encode(text, disallowed_special=()))


def truncate_history(
    messages: Sequence[ChatMessage],
    max_tokens: int = DEFAULT_BUDGET,
    *,
    keep_last_turns: int = 6,
    count_tokens: TokenCounter = approximate_tokens,
) -> list[ChatMessage]:
    """The messages that fit into `max_tokens`, in their order: all system messages and the newest turns.

    A turn is one reply of the model, with the user's messages before it and the results of its tool calls.
    It is kept or dropped as a whole. The last `keep_last_turns` are kept even if they exceed the budget.

    :param count_tokens: the tokens of a text. For exact counts pass `exact_tokens()` or another tokenizer.
    """
    kept_indexes = kept_messages(
        messages, max_tokens, keep_last_turns=keep_last_turns, count_tokens=count_tokens
    )
    return [message for index, message in enumerate(messages) if index in kept_indexes]


def kept_messages(
    messages: Sequence[ChatMessage],
    max_tokens: int = DEFAULT_BUDGET,
    *,
    keep_last_turns: int = 6,
    count_tokens: TokenCounter = approximate_tokens,
) -> set[int]:
    """The indexes of the messages that `truncate_history` keeps."""
    if max_tokens < 0 or keep_last_turns < 0:
        raise ValueError(
            f"max_tokens ({max_tokens}) and keep_last_turns ({keep_last_turns}) must be 0 or more."
        )
    system = [index for index, message in enumerate(messages) if message["role"] == "system"]
    turns = list(_turns(messages))
    kept_indexes = set(system)
    total = sum(_tokens(messages[index], count_tokens) for index in system)
    for age, turn in enumerate(reversed(turns)):
        total += sum(_tokens(messages[index], count_tokens) for index in turn)
        if total > max_tokens and age >= keep_last_turns:
            break
        kept_indexes.update(turn)
    return kept_indexes


def _turns(messages: Sequence[ChatMessage]) -> Iterator[list[int]]:
    """The indexes of all but the system messages, turn by turn."""
    last_result = _last_results(messages)
    turn: list[int] = []
    replied = False
    until = -1
    for index, message in enumerate(messages):
        if message["role"] == "system":
            continue
        if replied and message["role"] != "tool" and index > until:
            yield turn
            turn, replied = [], False
        turn.append(index)
        replied = replied or message["role"] == "assistant"
        until = max(until, last_result.get(index, -1))
    if turn:
        yield turn


def _last_results(messages: Sequence[ChatMessage]) -> dict[int, int]:
    """For each message that asked for tools, the index of the last of their results."""
    requests: dict[str, int] = {}
    last: dict[int, int] = {}
    for index, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            requests[call["id"]] = index
        if message["role"] == "tool" and message.get("tool_call_id") in requests:
            last[requests[message["tool_call_id"]]] = index
    return last


def _tokens(message: Mapping[str, Any], count_tokens: TokenCounter) -> int:
    content = message.get("content") or ""
    attachments = 0
    if isinstance(content, str):
        texts = [content]
    else:
        texts = [part["text"] for part in content if part.get("type") == "text"]
        attachments = len(content) - len(texts)
    for call in message.get("tool_calls") or ():
        texts += (call["function"]["name"], call["function"]["arguments"])
    return OVERHEAD + ATTACHMENT * attachments + sum(count_tokens(text) for text in texts)
