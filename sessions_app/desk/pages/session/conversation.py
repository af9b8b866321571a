"""The conversation: what the customer, the agent and staff wrote, without steps and tool calls."""

from collections.abc import Sequence
from dataclasses import dataclass

from sessions_app.desk.pages import replacements
from sessions_app.desk.pages.replacements import Replacements
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.summary import formats_of
from sessions_app.history.staff_notes import staff_notes
from sessions_app.models import Message, ModelCall
from sessions_app.models.rows import visible

PAGE = 200


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """``earlier`` is the ``before`` of the page before this one, None on the first.

    ``notes`` are the texts of staff's notes among the messages, by position.
    """

    messages: list[Message]
    earlier: int | None
    replaced: Replacements
    notes: dict[int, str]


def read_page(context: SessionContext, *, before: int | None = None, limit: int = PAGE) -> ConversationPage:
    """The newest messages before a position, oldest first. Two queries; at most two for replacements, two for notes."""
    upto = None if before is None else before - 1
    replaced = replacements.on(context.branch, context.mask)
    rows = (
        Message.objects.filter(role__in=(Message.Role.USER, Message.Role.ASSISTANT))
        .exclude(text="")
        .exclude(position__in=replaced.rows)
        .defer("body")
        .newest_within(visible(context.branch, upto=upto), limit + 1)
    )
    messages = context.mask.rows(rows)
    earlier = messages[limit - 1].position if len(messages) > limit else None
    # A model call is recorded just before its reply. By a subquery, PostgreSQL would read all model calls.
    just_before = [message.position - 1 for message in messages if message.role == Message.Role.ASSISTANT]
    calls = ModelCall.objects.visible_on(context.branch).filter(position__in=just_before, error="")
    called = set(calls.values_list("position", flat=True))
    shown = _without_copies(messages[:limit][::-1], replies={position + 1 for position in called})
    found = staff_notes(shown, context.mask, lambda tool: formats_of(context.session.registered_agent, tool))
    notes = {position: note.text for (_, position), note in found.items()}
    return ConversationPage(shown, earlier, replaced, notes)


def _without_copies(messages: Sequence[Message], *, replies: set[int]) -> list[Message]:
    """Without the agent's messages that were stored once more because a person decided about their calls.

    :param replies: The positions of the messages that a model call brought.
    """
    shown: list[Message] = []
    reply = ""
    for message in messages:
        if message.role == Message.Role.ASSISTANT:
            if message.position not in replies and message.text == reply:
                continue
            reply = message.text
        shown.append(message)
    return shown
