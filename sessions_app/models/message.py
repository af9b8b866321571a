"""Messages: those the model has seen, and those that wait for the agent's next step."""

from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from agentstate.durable.records import user_body
from sessions_app.models.compiled import compiled
from sessions_app.models.loading import LoadedModel
from sessions_app.models.rows import BranchRow, BranchRowQuerySet
from sessions_app.models.session import Session


class Message(BranchRow):
    """One chat message. ``text`` is its words; ``body`` is the rest of ``ChatMessage.to_dict()``.

    ``history.message_rows`` takes a message apart and puts it together again, so that no text is stored twice.
    """

    class Role(models.TextChoices):
        USER = "user", "user"
        ASSISTANT = "assistant", "assistant"
        TOOL = "tool", "tool"
        SYSTEM = "system", "system"

    role = models.CharField(max_length=10, choices=Role)
    text = models.TextField(blank=True, default="")
    body = models.JSONField(default=dict)
    author = models.CharField(
        max_length=150,
        blank=True,
        default="",
        help_text="The person who typed it in, if one of the staff did.",
    )
    from_customer = models.BooleanField(
        default=False, db_default=False, help_text="The customer's words, which the author typed in."
    )
    created_at = models.DateTimeField(default=timezone.now)

    objects: ClassVar[BranchRowQuerySet["Message"]] = BranchRowQuerySet.as_manager()  # type: ignore[assignment]

    class Meta(BranchRow.Meta):
        constraints = [models.UniqueConstraint(fields=["branch", "position"], name="message_position_once")]
        indexes = [
            models.Index(
                fields=["branch", "position"],
                condition=Q(role__in=("user", "assistant")) & ~Q(text=""),
                name="message_of_conversation",
            ),
            models.Index(fields=["branch", "position"], condition=Q(role="user"), name="message_of_user"),
            models.Index(
                fields=["branch", "position"],
                condition=Q(role="user") & ~Q(author=""),
                name="message_of_staff",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.position}"

    @property
    def who(self) -> str:
        """Who says this, for people: a name of the staff, ``Customer``, ``Agent``."""
        return self.staff or _SPEAKERS[self.Role(self.role)]

    @property
    def staff(self) -> str:
        """Who of the staff says this; "" where it is the customer's, or the agent's."""
        return "" if self.from_customer else self.author

    @property
    def entered_by(self) -> str:
        """Who typed in what the customer says; "" where nobody had to."""
        return self.author if self.from_customer else ""


_SPEAKERS = {
    Message.Role.USER: "Customer",
    Message.Role.ASSISTANT: "Agent",
    Message.Role.TOOL: "Tool",
    Message.Role.SYSTEM: "Instructions",
}


class InboxMessage(LoadedModel):
    """A message that the agent has not been given yet. It becomes a `Message` at the next step boundary."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="inbox")
    text = models.TextField(blank=True)
    body = models.JSONField(
        null=True,
        blank=True,
        help_text="The whole of ``ChatMessage.to_dict()``, where it is more than a text of the user's.",
    )
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    from_customer = models.BooleanField(
        default=False, db_default=False, help_text="The customer's words, which the author typed in."
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.text[:60]

    @property
    def author_name(self) -> str:
        return self.author.get_username() if self.author else ""

    @property
    def staff(self) -> str:
        """Who of the staff says this; "" where it is the customer's, or the agent's."""
        return "" if self.from_customer else self.author_name

    @property
    def entered_by(self) -> str:
        """Who typed in what the customer says; "" where nobody had to."""
        return self.author_name if self.from_customer else ""

    @property
    def whole(self) -> dict[str, Any]:
        """The message as ``ChatMessage.to_dict()``."""
        return self.body or user_body(self.text)


@compiled
def unread_messages(session_id: UUID) -> models.QuerySet[InboxMessage]:
    """The messages of the session that its agent has not been given yet, oldest first, with their authors."""
    return InboxMessage.objects.filter(session=session_id).select_related("author")
