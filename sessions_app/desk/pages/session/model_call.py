"""One model call: what the model was given, rebuilt from the history; what it replied, its tokens and its cost.

The input of a call is not stored. It is what the model saw at the checkpoint before the call, and the definition that
the agent had there.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.conf import settings

from agentstate.durable.state.tags import without_tags
from agentstate.names import AGENT_GENERATOR
from agentstate.prices import price_of
from sessions_app.access.availability import shows
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.places import page_of
from sessions_app.desk.pages.values import ReadableValue, readable
from sessions_app.history import restore
from sessions_app.history.message_rows import fill_texts
from sessions_app.models import AgentDefinition, Branch, Checkpoint, Message, ModelCall, Session

Json = Any
MOST_MESSAGES = 50
MOST_CHARACTERS = 4000
_KINDS = {"image": "image", "file": "file", "reasoning": "reasoning"}


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """``text`` may be cut; ``parts`` are what a message holds besides: calls, pictures, files, reasoning."""

    position: int
    role: str
    text: str
    is_cut: bool
    parts: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ShownTool:
    """A tool that the model could call. ``description`` is "" where its definition is not on record."""

    name: str
    description: str = ""
    parameters: Json = None


@dataclass(frozen=True, slots=True)
class ModelCallPage:
    """
    :param place: The address of the page on which its step stands.
    :param rebuilt: Whether the input could be rebuilt: that of a side call is nowhere on record.
    :param earlier: How many messages of the input come before those shown.
    :param options: How the model was called, as far as it is on record.
    :param side_replies: What the generator of a hook replied.
    :param cost: "" where no price is set for the model.
    :param source: The session whose reply it is, if it is from the semantic cache and that session is there.
    """

    call: ModelCall
    place: str
    rebuilt: bool
    checkpoint: Checkpoint | None
    earlier: int
    messages: list[ShownMessage]
    tools: list[ShownTool]
    options: dict[str, Json]
    output: list[ShownMessage]
    side_replies: ReadableValue | None
    cost: str
    source: Session | None


def read_page(context: SessionContext, call_id: int) -> ModelCallPage | None:
    """None if the session has no such call, on the present or a discarded branch. At most ten queries."""
    call = ModelCall.objects.select_related("branch").filter(pk=call_id).first()
    if call is None or not (call.branch.session_id == context.session.pk or shows(context.branch, call)):
        return None
    branch = context.branch if shows(context.branch, call) else call.branch
    is_agents = call.name == AGENT_GENERATOR
    checkpoint = restore.last_visible(Checkpoint, branch, upto=call.position) if is_agents else None
    given: list[Message] = []
    tools: list[ShownTool] = []
    options: dict[str, Json] = {}
    if checkpoint is not None:
        given = restore.context_of(branch, checkpoint)
        names = restore.tools_of(branch, checkpoint)
        parts = _parts(context, checkpoint.definition)
        known = parts.get("tools") or {}
        tools = [_tool(name, known.get(name)) for name in names]
        options = {**(parts.get("model") or {}), **_options(context)}
    written = Message.objects.visible_on(branch, after=call.position, upto=call.position + call.replies)
    output = list(written.order_by("position")) if call.replies else []
    price = price_of(call.model, settings.AGENTSTATE_PRICES)
    masked = context.mask.row(call)
    source = Session.objects.filter(pk=call.source).first() if call.source else None
    return ModelCallPage(
        call=masked,
        place=page_of(context, call.branch, call.position),
        rebuilt=checkpoint is not None,
        checkpoint=checkpoint,
        earlier=max(0, len(given) - MOST_MESSAGES),
        messages=_shown(context, branch, given[-MOST_MESSAGES:]),
        tools=tools,
        options=options,
        output=_shown(context, branch, output),
        side_replies=readable(masked.side_replies) if masked.side_replies is not None else None,
        cost=_money(price.of(call.prompt_tokens, call.completion_tokens)) if price is not None else "",
        source=context.mask.row(source) if source is not None else None,
    )


def _money(amount: Decimal) -> str:
    """With as many digits as a fraction of a cent needs."""
    digits = f"{amount:.6f}".rstrip("0")
    whole, _, fraction = digits.partition(".")
    return f"{settings.AGENTSTATE_CURRENCY} {whole}.{fraction.ljust(2, '0')}"


def _parts(context: SessionContext, definition: str) -> dict[str, Json]:
    rows = AgentDefinition.objects.filter(agent=context.session.agent, definition=definition)
    row = next(iter(context.mask.rows(rows[:1])), None)
    return row.parts if row is not None and isinstance(row.parts, dict) else {}


def _tool(name: str, recorded: Json) -> ShownTool:
    if not isinstance(recorded, dict):
        return ShownTool(name)
    return ShownTool(name, str(recorded.get("description") or ""), recorded.get("parameters"))


def _options(context: SessionContext) -> dict[str, Json]:
    """What the session's own inputs add to the options of the generator."""
    inputs = context.session.inputs
    own = inputs.get("generation_kwargs") if isinstance(inputs, dict) else None
    return {"generation_kwargs of the session": without_tags(own)} if own else {}


def _shown(context: SessionContext, branch: Branch, rows: list[Message]) -> list[ShownMessage]:
    return [_message(row) for row in context.mask.rows(fill_texts(branch, rows))]


def _message(row: Message) -> ShownMessage:
    content = row.body.get("content") if isinstance(row.body, dict) else None
    parts = [part for item in content or () if isinstance(item, dict) for part in _described(item)]
    cut, role = len(row.text) > MOST_CHARACTERS, row.role
    if row.role == Message.Role.TOOL and len(parts) == 1 and not parts[0][1]:
        role, parts = parts[0][0], []  # the text is the result
    return ShownMessage(row.position, role, row.text[:MOST_CHARACTERS], cut, parts)


def _described(part: dict[str, Json]) -> list[tuple[str, str]]:
    """What a part of a message is, besides its text."""
    if isinstance(call := part.get("tool_call"), dict):
        return [(f"calls {call.get('tool_name')}", readable(call.get("arguments")).text)]
    if isinstance(result := part.get("tool_call_result"), dict):
        origin = result.get("origin")
        name = origin.get("tool_name") if isinstance(origin, dict) else ""
        whole = result.get("result")
        text = readable(whole).text[:MOST_CHARACTERS] if whole is not None else ""
        return [(f"result of {name}", text)]
    if isinstance(part.get("text"), str):  # a second one: the first is the message's own
        return [("text", part["text"][:MOST_CHARACTERS])]
    for name, what in _KINDS.items():
        if isinstance(item := part.get(name), dict):
            text = item.get("reasoning_text") or item.get("filename") or item.get("mime_type") or ""
            return [(what, str(text))]
    return []
