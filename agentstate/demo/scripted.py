"""The scripted demo model: it chooses tools by what the user wrote, and needs no network.

`reply` depends on the messages and the tools only, so that any worker can continue where another stopped. Two requests
simulate failures of a model server: one about the archived ledger (`ARC-` and a number) always fails, one that says
"rush hour" fails twice before it succeeds.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import count
from typing import Any

from haystack import component
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, StreamingCallbackT, StreamingChunk, ToolCall
from haystack.tools import ToolsType, flatten_tools_or_toolsets

from agentstate.demo import intents, ledger, scripts
from agentstate.demo import tools as demo_tools
from agentstate.demo.request import Request, WantedCall
from agentstate.names import SCRIPTED_MODEL

MODEL = SCRIPTED_MODEL
# How long a word of a reply takes, beside the wait for the first.
WORD = 0.1
# How the model announces a call, and what stands between that and what the call is about.
_PHRASES = {
    "look_up_claim": ("look up claim", ""),
    "look_up_policy": ("look up policy", ""),
    "check_deductible": ("check the deductible", "of"),
    "search_knowledge": ("search the knowledge base", "for"),
    "issue_refund": ("refund the deductible", "on"),
    "send_letter": ("send a letter", "about"),
    "list_sources": ("list the sources", "for"),
    "slow_research": ("read source", ""),
    "make_plan": ("make a plan", "for"),
    "complete_step": ("mark the step as done", "for"),
    "take_note": ("take a note", "on"),
}
_NAMED_BY = ("claim_number", "policy_number", "source")


class ModelServerError(Exception):
    """Raised as a client raises an HTTP error of the model server."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(f"HTTP {status_code}: {message}")
        self.status_code = status_code


@component
class ScriptedChatGenerator:
    """Takes its time for each word where a reply is streamed, as a model does."""

    def __init__(self) -> None:
        self.model = MODEL
        self._at_once = MockChatGenerator(response_fn=reply, model=MODEL)

    def to_dict(self) -> dict[str, Any]:
        """That of the model inside: how fast words come is no part of an agent's definition."""
        data: dict[str, Any] = self._at_once.to_dict()
        return data

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage],
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        tools: ToolsType | None = None,
    ) -> dict[str, list[ChatMessage]]:
        answer: dict[str, list[ChatMessage]] = self._at_once.run(
            messages, streaming_callback and _unhurried(streaming_callback), generation_kwargs, tools=tools
        )
        return answer


def _unhurried(callback: StreamingCallbackT) -> StreamingCallbackT:
    def write(chunk: StreamingChunk) -> None:
        demo_tools.delay(WORD)
        callback(chunk)

    return write


def reply(messages: list[ChatMessage], tools: ToolsType | None = None) -> ChatMessage:
    """The next message of the assistant, with its tool calls if it wants any.

    :raises ModelServerError: for the two requests that simulate failures.
    """
    demo_tools.delay()
    request = Request.read(messages, [tool.name for tool in flatten_tools_or_toolsets(tools)])
    _simulate_failures(request)
    calls_to_make, answers = _next(request)
    if calls_to_make:
        text = f"I'll {_joined([_description(call) for call in calls_to_make])}."
        ids = _call_ids(messages)
        calls = [ToolCall(call.tool, call.arguments, id=next(ids)) for call in calls_to_make]
    else:
        text, calls = "\n\n".join(answers) or intents.small_talk(request), []
    return ChatMessage.from_assistant(text, tool_calls=calls, meta={"usage": _usage(messages, text, calls)})


def _next(request: Request) -> tuple[list[WantedCall], list[str]]:
    """The calls to make now, and the answers of the scripts that have finished.

    Everything is read before anything is done: calls with an effect wait until no script wants to look anything
    up. Then those of one script are made at a time.
    """
    reading: list[WantedCall] = []
    doing: list[list[WantedCall]] = []
    answers: list[str] = []
    used: Counter[str] = Counter()
    for script in intents.scripts_for(request):
        missing, answer = _advance(script, request, used)
        if any(call.effect for call in missing):
            doing.append(missing)
        else:
            reading += [call for call in missing if call not in reading]
        answers += [answer] if answer and answer not in answers else []
    return reading or next(iter(doing), []), answers


def _advance(script: scripts.Script, request: Request, used: Counter[str]) -> tuple[list[WantedCall], str]:
    """Run a script up to its first calls without an answer, or to its end.

    :param used: How many answers to calls with an effect the scripts have taken, by tool; counted up.
    :returns: These calls, or the answer for the customer.
    """
    try:
        batch = next(script)
        while True:
            answers = []
            missing = []
            for call in batch:
                answer = request.answer(call, used[call.tool])
                used[call.tool] += call.effect
                if answer is None:
                    missing.append(call)
                else:
                    answers.append(answer)
            if missing:
                return missing, ""
            batch = script.send(answers)
    except StopIteration as end:
        return [], str(end.value)
    except (KeyError, TypeError, ValueError) as error:
        # A person can enter anything as a tool's result.
        return [], f"I cannot make sense of what a tool answered ({type(error).__name__}: {error})."


def _simulate_failures(request: Request) -> None:
    if archived := re.search(r"\bARC-\d+", request.latest, re.IGNORECASE):
        raise ModelServerError(400, f"the ledger {archived[0].upper()} is longer than this model can read.")
    if re.search(r"\brush hour\b", request.latest, re.IGNORECASE) and not request.answered:
        request_digest = sha256(request.latest.encode()).hexdigest()[:16]
        ledger.append("model_server", asked=request_digest)
        if sum(line["asked"] == request_digest for line in ledger.entries("model_server")) % 3:
            raise ModelServerError(503, "the model server is overloaded, try again later.")


def _description(call: WantedCall) -> str:
    about = next((call.arguments[key] for key in _NAMED_BY if key in call.arguments), "")
    phrase, before_about = _PHRASES.get(call.tool, (call.tool.replace("_", " "), "for"))
    return f"{phrase} {before_about} {about}".replace("  ", " ") if about else phrase


def _joined(descriptions: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(descriptions[:-1]), descriptions[-1]]))


def _call_ids(messages: Sequence[ChatMessage]) -> Iterator[str]:
    """Ids for calls: the same for the same conversation, and practically never the same for another."""
    text = json.dumps([message.to_dict() for message in messages], default=str)
    digest = sha256(text.encode()).hexdigest()[:12]
    return (f"call_{digest}_{number}" for number in count(1))


def _usage(messages: Sequence[ChatMessage], text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Tokens, estimated at four characters each."""
    read = sum(len(json.dumps(message.to_dict(), default=str)) for message in messages) // 4
    written = (
        len(text) + sum(len(call.tool_name) + len(json.dumps(call.arguments)) for call in calls)
    ) // 4 + 1
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
