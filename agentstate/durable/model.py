"""A chat generator that journals what the real one replies, and replays what is in the journal already."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from haystack import component
from haystack.core.serialization import component_to_dict
from haystack.dataclasses import ChatMessage, ChatRole, ToolCall

from agentstate.durable import run_context, streaming
from agentstate.durable.call_ids import is_usable_id, new_call_id
from agentstate.durable.failures import GarbledReply, ModelFailed
from agentstate.durable.interruptions import contained, in_thread, raised_by
from agentstate.durable.prompt_start import may_start_with_reply
from agentstate.durable.records import CommittedReply, NewCall, NewReply, ReplyRecord
from agentstate.durable.run_context import RunContext
from agentstate.durable.state.chat_messages import encode_message, message_body, message_from, with_calls
from agentstate.durable.state.encoding import Json, encode_lossy
from agentstate.durable.steps import Rule, complete, complete_async
from agentstate.durable.streaming import PartialReply, may_be_shown, with_partial_reply
from agentstate.names import AGENT_GENERATOR, CallState

# It yields for the model's reply, with the options of the call.
ModelRule = Rule[dict[str, Any], Any, list[ChatMessage]]

# Of the wrapper itself: the real one may have a name, too.
_OWN = ("chat_generator", "agentstate_name", "agentstate_streams")


@component
class ReplayChatGenerator:
    """In the place of the real one, with all of its attributes: a hook or a subclass of `Agent` may read and set them.

    :param name: `AGENT_GENERATOR` for the agent's own generator. Another name for one that a hook uses: its replies are
        side calls, which are not part of the conversation.
    :param streams: The replies are shown while they are written, also where no streaming callback is given.
    """

    def __init__(self, chat_generator: Any, name: str = AGENT_GENERATOR, *, streams: bool = False) -> None:
        self.chat_generator = chat_generator
        self.agentstate_name = name
        self.agentstate_streams = streams

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):
            raise AttributeError(name)  # a copy that is being made
        return getattr(self.chat_generator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or name.startswith("__"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.chat_generator, name, value)

    def warm_up(self) -> None:
        if hasattr(self.chat_generator, "warm_up"):
            self.chat_generator.warm_up()

    async def warm_up_async(self) -> None:
        if hasattr(self.chat_generator, "warm_up_async"):
            await self.chat_generator.warm_up_async()
        else:
            self.warm_up()

    def close(self) -> None:
        if hasattr(self.chat_generator, "close"):
            self.chat_generator.close()

    async def close_async(self) -> None:
        if hasattr(self.chat_generator, "close_async"):
            await self.chat_generator.close_async()
        else:
            self.close()

    def to_dict(self) -> dict[str, Any]:
        """The generator that it stands for: what makes an agent durable is no part of the agent's definition."""
        return component_to_dict(self.chat_generator, "chat_generator")

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage],
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
        tools: Any = None,
        **others: Any,
    ) -> dict[str, Any]:
        options = _given(
            streaming_callback=streaming_callback, generation_kwargs=generation_kwargs, tools=tools, **others
        )
        run = run_context.current()
        if run is None:
            result: dict[str, Any] = self.chat_generator.run(messages=messages, **options)
            return result
        replies = complete(
            self._replies(run, messages, options, awaited=False),
            lambda shown: self._ask(messages, shown),
        )
        return {"replies": replies}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage],
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
        tools: Any = None,
        **others: Any,
    ) -> dict[str, Any]:
        options = _given(
            streaming_callback=streaming_callback, generation_kwargs=generation_kwargs, tools=tools, **others
        )
        run = run_context.current()
        if run is None:
            return await self._ask_async(messages, options)
        replies = await complete_async(
            self._replies(run, messages, options, awaited=self._is_awaitable),
            lambda shown: self._ask_async(messages, shown),
            run.journal_thread,
        )
        return {"replies": replies}

    def _ask(self, messages: list[ChatMessage], options: dict[str, Any]) -> dict[str, Any]:
        with contained():
            result: dict[str, Any] = self.chat_generator.run(messages=messages, **options)
        return result

    async def _ask_async(self, messages: list[ChatMessage], options: dict[str, Any]) -> dict[str, Any]:
        """As Haystack does: a generator without `run_async` runs in a thread."""
        with contained():
            if self._is_awaitable:
                result: dict[str, Any] = await self.chat_generator.run_async(messages=messages, **options)
            else:
                ask = partial(self.chat_generator.run, messages=messages, **options)
                result = await asyncio.to_thread(in_thread, ask)
        return result

    @property
    def _is_awaitable(self) -> bool:
        return callable(getattr(self.chat_generator, "run_async", None))

    def _replies(
        self, run: RunContext, messages: list[ChatMessage], options: dict[str, Any], *, awaited: bool
    ) -> ModelRule:
        """The replies on record, or else from the semantic cache, or else those of the model."""
        if self.agentstate_name == AGENT_GENERATOR:
            run.commit_prepared_context()
        seq = run.next_seq(self.agentstate_name)
        recorded = run.recorded_reply(self.agentstate_name, seq)
        if recorded is not None:
            return self._replay(run, recorded, options)
        partial = self._partial_reply(run, options)
        if partial is None:
            return (yield from self._new_replies(run, seq, messages, options, options))
        try:
            shown = with_partial_reply(self.chat_generator, options, partial, awaited=awaited)
            return (yield from self._new_replies(run, seq, messages, options, shown))
        finally:
            partial.end()

    def _partial_reply(self, run: RunContext, options: dict[str, Any]) -> PartialReply | None:
        """Where the reply is shown while the model writes it; None if it is not."""
        replies = streaming.current()
        if replies is None or self.agentstate_name != AGENT_GENERATOR:
            return None
        if not may_be_shown(self.chat_generator, options, streams=self.agentstate_streams):
            return None
        with run.lock:
            return replies.begin(run.meter.total("model_calls"))

    def _replay(self, run: RunContext, recorded: ReplyRecord, options: dict[str, Any]) -> list[ChatMessage]:
        replies = [message_from(stored.body) for stored in recorded.messages]
        if self.agentstate_name == AGENT_GENERATOR:
            for stored, reply in zip(recorded.messages, replies, strict=True):
                run.conversation.stored(reply, stored.position)
            if options.get("tools") and _calls_to_run(replies) and not run.is_past_tools():
                run.to_executing()
        return replies

    def _new_replies(
        self,
        run: RunContext,
        seq: int,
        messages: list[ChatMessage],
        options: dict[str, Any],
        shown: dict[str, Any],
    ) -> ModelRule:
        """Call the model, or find a reply in the semantic cache, and commit it before anything is done with it.

        :param shown: The options with which the model is called, if the reply is shown while it is written.
        :raises ModelFailed: for the agent's own generator, whatever it raises.
        """
        started = run.now()
        is_own = self.agentstate_name == AGENT_GENERATOR
        cache = run.semantic_cache if is_own else None
        hit = cache.find(messages, options) if cache is not None else None
        if hit is not None:
            replies, bodies = [hit.message], [message_body(hit.message)]
        else:
            replies, bodies = yield from self._call_model(run, seq, shown)
        calls = _calls_to_run(replies) if is_own else []
        ended = run.now()
        prompt_tokens, completion_tokens = _tokens(replies)
        _count(
            run,
            prompt_tokens,
            completion_tokens,
            seconds=(ended - started).total_seconds() if hit is None else None,
        )
        if calls and options.get("tools"):
            run.to_executing()
        committed = run.journal.reply(
            NewReply(
                name=self.agentstate_name,
                seq=seq,
                messages=bodies,
                started_at=started,
                ended_at=ended,
                progress=run.meter.progress(),
                side_call=not is_own,
                calls=[
                    NewCall(call.id or "", call.tool_name, encode_lossy(call.arguments)[0]) for call in calls
                ],
                start_calls=bool(calls) and may_start_with_reply(run, calls, options.get("tools")),
                model=str(replies[-1].meta.get("model") or "") if replies else "",
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                source=hit.session if hit is not None else "",
                similarity=hit.similarity if hit is not None else None,
            ),
            run.deferred_checkpoint,
        )
        run.deferred_checkpoint_committed(committed.checkpoint)
        run.signals, run.progressed = committed.signals, True
        if is_own:
            _note_committed(run, replies, committed)
        if cache is not None and hit is None:
            cache.store(replies, committed.positions)
        return replies

    def _call_model(
        self, run: RunContext, seq: int, shown: dict[str, Any]
    ) -> Rule[dict[str, Any], Any, tuple[list[ChatMessage], list[dict[str, Json]]]]:
        """The model's replies, and the bodies that are stored of them."""
        started = run.now()
        try:
            replies = _check_replies((yield shown))
        except Exception as error:
            if self.agentstate_name != AGENT_GENERATOR:
                raise  # a hook's generator: the hook decides what its failure means
            raise ModelFailed(self.agentstate_name, seq, raised_by(error), started, run.now()) from error
        encoded = [_with_call_ids(reply) for reply in replies]
        return [reply for reply, _ in encoded], [body for _, body in encoded]


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _check_replies(result: Any) -> list[ChatMessage]:
    """The assistant's messages that a chat generator returned.

    :raises GarbledReply: if it returned anything else.
    """
    replies = result.get("replies") if isinstance(result, dict) else None
    if not isinstance(replies, list) or not all(
        isinstance(r, ChatMessage) and r.role == ChatRole.ASSISTANT for r in replies
    ):
        raise GarbledReply(f"The chat generator did not answer with assistant messages but with {result}")
    for call in [call for reply in replies for call in reply.tool_calls]:
        if not isinstance(call.tool_name, str) or not isinstance(call.arguments, dict):
            raise GarbledReply(f"The chat generator asks for an invalid tool call: {call}")
    return replies


def _calls_to_run(replies: list[ChatMessage]) -> list[ToolCall]:
    """Those of the last reply: of several, Haystack runs the calls of no other one, so they are not recorded."""
    return list(replies[-1].tool_calls) if replies else []


def _with_call_ids(message: ChatMessage) -> tuple[ChatMessage, dict[str, Json]]:
    """Give every call a unique id of limited length: some servers send none (Ollama), some repeat them.

    :returns: The message, and the body that is stored of it.
    """
    ids = [call.id for call in message.tool_calls]
    body, storable = encode_message(message)
    if storable and all(map(is_usable_id, ids)) and len(set(ids)) == len(ids):
        return message, body
    # The rest of this run must see what a resumed run would see.
    message = message if storable else message_from(body)
    seen: set[str] = set()
    calls = []
    for call in message.tool_calls:
        is_usable = is_usable_id(call.id) and call.id not in seen
        calls.append(call if is_usable else replace(call, id=new_call_id()))
        seen.add(str(calls[-1].id))
    message = with_calls(message, calls) if calls else message
    return message, message_body(message)


def _count(run: RunContext, prompt_tokens: int, completion_tokens: int, *, seconds: float | None) -> None:
    """Add a reply, its tokens and the time that it took to the totals of the session.

    :param seconds: How long the model took; None if the reply is one of the semantic cache.
    """
    with run.lock:
        run.meter.add("cached_replies" if seconds is None else "model_calls", 1)
        run.meter.add("prompt_tokens", prompt_tokens)
        run.meter.add("completion_tokens", completion_tokens)
        if seconds is not None:
            run.meter.add("model_seconds", max(0.0, seconds))


def _note_committed(run: RunContext, replies: list[ChatMessage], committed: CommittedReply) -> None:
    """What the rest of the step is to know of the replies of the agent's own generator, once they are committed."""
    run.has_reply = True
    for reply, position in zip(replies, committed.positions, strict=True):
        run.conversation.stored(reply, position)
    run.calls.update({record.call_id: record for record in committed.calls})
    run.started_calls = {r.position for r in committed.calls if r.status == CallState.STARTED}


def _tokens(replies: list[ChatMessage]) -> tuple[int, int]:
    prompt = completion = 0
    for reply in replies:
        usage = reply.meta.get("usage")
        if isinstance(usage, dict):
            prompt += _tokens_named(usage, "prompt_tokens", "input_tokens")
            completion += _tokens_named(usage, "completion_tokens", "output_tokens")
    return prompt, completion


def _tokens_named(usage: dict[str, Any], *names: str) -> int:
    counts = (usage.get(name) for name in names)
    return next((int(count) for count in counts if isinstance(count, int | float) and 0 <= count < 2**53), 0)
