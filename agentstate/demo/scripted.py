"""The scripted demo model: it reads what the user wrote and picks tools by it, and needs no network.

`reply` decides by nothing but the messages and the tools, so that any worker can go on where another stopped.
Two requests stand for a model server in trouble: one about the archived ledger (`ARC-` and a number) is refused
for good, one that says "rush hour" is turned away twice before it is served.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any

from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import flatten_tools_or_toolsets

from agentstate.demo import intents, ledger, scripts
from agentstate.demo import tools as demo_tools
from agentstate.demo.request import Ask, Request

if TYPE_CHECKING:
    from haystack.tools import ToolsType

MODEL = "scripted demo model"
_NAMED_BY = ("claim_number", "policy_number", "source")


class ModelServerError(Exception):
    """What a client raises when the model server answers with an HTTP error."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(f"HTTP {status_code}: {message}")
        self.status_code = status_code


def reply(messages: list[ChatMessage], tools: "ToolsType | None" = None) -> ChatMessage:
    """The next message of the assistant, with its tool calls if it wants any.

    :raises ModelServerError: where the request asks for trouble, see above.
    """
    demo_tools.delay()
    request = Request.read(messages, [tool.name for tool in flatten_tools_or_toolsets(tools)])
    _trouble(request)
    wanted, told = _next(request)
    if wanted:
        text = f"I will {_joined([_plainly(ask) for ask in wanted])}."
        ids = _call_ids(messages)
        calls = [ToolCall(ask.tool, ask.arguments, id=next(ids)) for ask in wanted]
    else:
        text, calls = "\n\n".join(told) or intents.small_talk(request), []
    return ChatMessage.from_assistant(text, tool_calls=calls, meta={"usage": _usage(messages, text, calls)})


def _next(request: Request) -> tuple[list[Ask], list[str]]:
    """The calls to make now, and what the scripts that are through have to tell.

    Everything is read before anything is done: calls with an effect wait until no script wants to look anything
    up. Then they are one script's at a time.
    """
    reading: list[Ask] = []
    doing: list[list[Ask]] = []
    told: list[str] = []
    taken: Counter[str] = Counter()
    for script in intents.chosen(request):
        open_asks, words = _advance(script, request, taken)
        if any(ask.effect for ask in open_asks):
            doing.append(open_asks)
        else:
            reading += [ask for ask in open_asks if ask not in reading]
        told += [words] if words and words not in told else []
    return reading or next(iter(doing), []), told


def _advance(script: scripts.Script, request: Request, taken: Counter[str]) -> tuple[list[Ask], str]:
    """Run a script up to its first calls without an answer, or to its end."""
    try:
        batch = next(script)
        while True:
            answers = []
            missing = []
            for ask in batch:
                answer = request.answer(ask, taken[ask.tool])
                taken[ask.tool] += ask.effect
                if answer is None:
                    missing.append(ask)
                else:
                    answers.append(answer)
            if missing:
                return missing, ""
            batch = script.send(answers)
    except StopIteration as end:
        return [], str(end.value)
    except (KeyError, TypeError, ValueError) as error:
        # A person can put anything in the place of a tool's result.
        return [], f"I cannot make sense of what a tool answered ({type(error).__name__}: {error})."


def _trouble(request: Request) -> None:
    if archived := re.search(r"\bARC-\d+", request.latest, re.IGNORECASE):
        raise ModelServerError(400, f"the ledger {archived[0].upper()} is longer than this model can read.")
    if re.search(r"\brush hour\b", request.latest, re.IGNORECASE) and not request.answered:
        asked = sha256(request.latest.encode()).hexdigest()[:16]
        ledger.append("model_server", asked=asked)
        if sum(line["asked"] == asked for line in ledger.entries("model_server")) % 3:
            raise ModelServerError(503, "the model server is overloaded, try again later.")


def _plainly(ask: Ask) -> str:
    words = ask.tool.replace("_", " ")
    about = next((ask.arguments[name] for name in _NAMED_BY if name in ask.arguments), "")
    return f"{words}{' ' if words.startswith('look up') else ' for '}{about}" if about else words


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _call_ids(messages: Sequence[ChatMessage]) -> Iterator[str]:
    """Ids for calls: the same for the same conversation, hardly ever the same for another."""
    said = sha256(json.dumps([message.to_dict() for message in messages], default=str).encode()).hexdigest()[
        :12
    ]
    return (f"call_{said}_{number}" for number in count(1))


def _usage(messages: Sequence[ChatMessage], text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Tokens by the rule of thumb of four characters each."""
    read = sum(len(json.dumps(message.to_dict(), default=str)) for message in messages) // 4
    written = (
        len(text) + sum(len(call.tool_name) + len(json.dumps(call.arguments)) for call in calls)
    ) // 4 + 1
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
