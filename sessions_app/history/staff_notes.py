"""Messages by which the model is told that a person changed a call's arguments: they are staff's, not the customer's.

Haystack stores such a message as a user's. It is known by how it begins, and by the agent's own message, stored again
with the changed call directly after it. What is marked as the customer's words is never one: in a history with which a
session is started, replies of the agent may stand directly after them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from django.utils import timezone

from sessions_app.access.masking import NOTE_OF_CHANGE, Mask
from sessions_app.models import Message, ToolCall
from sessions_app.wording import Show, changes, plainly

Place = tuple[int, int]  # the branch and the position of a message


@dataclass(frozen=True, slots=True)
class StaffNote:
    """``text``: ``issue_refund: amount €100.00 -> €120.00, changed by operator 22 Nov 12:01``, masked."""

    text: str


def staff_notes(
    messages: Iterable[Message], mask: Mask, formats_of: Callable[[str], Show] = lambda tool: plainly
) -> Mapping[Place, StaffNote]:
    """The notes among the messages, by branch and position. No query if there is none, else two.

    :param formats_of: How the arguments of a tool, by its name, are shown; it is not called where there is no note.
    """
    places = note_places(messages)
    if not places:
        return {}
    branches = {branch for branch, _ in places}
    calls = mask.rows(
        ToolCall.objects.filter(branch__in=branches, tool__in=set(places.values()), sent__isnull=False)
        .select_related("approval")
        .defer("result", "state")
        .order_by("position")
    )
    notes: dict[Place, StaffNote] = {}
    for place, tool in sorted(places.items(), reverse=True):
        branch, position = place
        shown = mask.tool(tool)
        # Of several notes, the last is about the last call.
        matches = [call for call in calls if (call.branch_id, call.tool) == (branch, shown)]
        call = next((call for call in reversed(matches) if call.position < position), None)
        notes[place] = StaffNote(_sentence(call, shown, formats_of(tool)))
        if call is not None:
            calls.remove(call)
    return notes


def note_places(messages: Iterable[Message]) -> dict[Place, str]:
    """Where the notes among the messages are, with the tool of each. At most one query."""
    candidates: dict[Place, str] = {}
    for message in messages:
        beginning = (
            NOTE_OF_CHANGE.match(message.text)
            if message.role == Message.Role.USER and not message.author and not message.from_customer
            else None
        )
        if beginning is not None:
            candidates[message.branch_id, message.position] = beginning["tool"]
    if not candidates:
        return {}
    following = Message.objects.filter(
        branch__in={branch for branch, _ in candidates},
        position__in={position + 1 for _, position in candidates},
        role=Message.Role.ASSISTANT,
    ).order_by()
    replies = set(following.values_list("branch_id", "position"))
    places: dict[Place, str] = {}
    for (branch, position), tool in sorted(candidates.items(), reverse=True):
        if (branch, position + 1) in replies or (branch, position + 1) in places:
            places[branch, position] = tool
    return places


def _sentence(call: ToolCall | None, tool: str, show: Show) -> str:
    if call is None:
        return f"{tool}: a person changed its arguments"
    approval = getattr(call, "approval", None)
    sentence = f"{tool}: {changes(call.changed_arguments, call.arguments, call.ran_with, show=show)}"
    if approval is None or approval.decided_at is None:
        return sentence
    by = f" by {approval.decided_by}" if approval.decided_by else ""
    message = f": {approval.message}" if approval.message else ""
    return f"{sentence}, changed{by} {timezone.localtime(approval.decided_at):%d %b %H:%M}{message}"
