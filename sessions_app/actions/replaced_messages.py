"""The message that takes the place of another one: its text is another, and its pictures and files are the same."""

from datetime import datetime
from typing import Any

from sessions_app.history.message_rows import RESULT_OF, RESULT_SOURCE
from sessions_app.models import Branch, Message

Json = Any


def replacement(
    original: Message, text: str, *, branch: Branch, position: int, author: str, now: datetime
) -> Message:
    """A new message on the branch, with the role and the content of the original but for its text."""
    return Message.objects.create(
        branch=branch,
        position=position,
        role=original.role,
        text=text,
        body=_body_without_text(original),
        author=author,
        created_at=now,
    )


def _body_without_text(message: Message) -> dict[str, Json]:
    """The message's body with one empty place for another text: that of its text, or of its tool's result."""
    body = {key: value for key, value in message.body.items() if key not in (RESULT_OF, RESULT_SOURCE)}
    content = [dict(part) for part in body.get("content", ())]
    for part in content:
        if "tool_call_result" in part:
            part["tool_call_result"] = {**part["tool_call_result"], "result": None}
            break
        if "text" in part:
            part["text"] = None
            break
    else:
        content.insert(0, {"text": None})
    return {**body, "content": content}
