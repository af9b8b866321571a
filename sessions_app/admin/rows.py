"""The admin of the other tables: the rows of histories, the published agents, and the workers."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse

from sessions_app.access.masking import Mask
from sessions_app.admin.base import ReadOnly, masked_name, sentence_of
from sessions_app.models import Checkpoint, Event, Message, ModelCall, RegisteredAgent, ToolCall, Worker


class HistoryRows(ReadOnly):
    ordering = ("-pk",)
    list_select_related = ("branch",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("branch")


@admin.register(ToolCall)
class ToolCallAdmin(HistoryRows):
    list_display = (
        "shown_tool",
        "status",
        "branch",
        "position",
        "attempt",
        "cached",
        "asked_at",
        "ended_at",
        "desk",
    )
    list_filter = ("status", "cached")
    search_fields = ("idempotency_key",)
    fields = (*list_display, "shown_id", "idempotency_key", "started_at")
    readonly_fields = ("shown_tool", "shown_id", "desk")

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> ToolCall | None:
        """Masked: Django shows its name, which is that of the tool."""
        row: ToolCall | None = super().get_object(request, object_id, from_field)
        return row and Mask.configured().row(row)

    @admin.display(description="Tool")
    def shown_tool(self, row: ToolCall) -> str:
        return Mask.configured().tool(row.tool)

    @admin.display(description="Call id")
    def shown_id(self, row: ToolCall) -> str:
        return Mask.configured().text(row.call_id)

    def address_on_desk(self, row: ToolCall) -> str:
        return reverse("call", args=[row.branch.session_id, row.pk])


@admin.register(Message)
class MessageAdmin(HistoryRows):
    list_display = ("role", "branch", "position", "author", "created_at", "desk")
    list_filter = ("role",)
    fields = list_display


@admin.register(ModelCall)
class ModelCallAdmin(HistoryRows):
    list_display = (
        *("name", "model", "branch", "position", "prompt_tokens", "completion_tokens", "started_at"),
        "desk",
    )
    fields = (*list_display, "seq", "replies", "ended_at")


@admin.register(Checkpoint)
class CheckpointAdmin(HistoryRows):
    list_display = ("__str__", "kind", "step", "phase", "branch", "position", "created_at", "desk")
    list_filter = ("kind",)
    fields = (*list_display[1:], "context_at", "definition")


@admin.register(Event)
class EventAdmin(HistoryRows):
    list_display = ("what", "session_name", "actor_name", "position", "created_at", "desk")
    search_fields = ("actor_name",)
    list_select_related = ("session",)
    fields = (*list_display, "branch")
    readonly_fields = ("what", "session_name", "desk")

    @admin.display(description="What", ordering="kind")
    def what(self, row: Event) -> str:
        return sentence_of(row)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("session")

    def address_on_desk(self, row: Event) -> str:
        return reverse("audit", args=[row.session_id])

    @admin.display(description="Session")
    def session_name(self, row: Event) -> str:
        return masked_name(row.session)


@admin.register(RegisteredAgent)
class RegisteredAgentAdmin(ReadOnly):
    list_display = ("title", "key", "model", "definition", "runs", "published_at", "desk")
    fields = list_display
    readonly_fields = ("runs", "desk")

    def address_on_desk(self, row: RegisteredAgent) -> str:
        return reverse("agent", args=[row.key])

    @admin.display(boolean=True, description="Can run")
    def runs(self, row: RegisteredAgent) -> bool:
        return not row.problem


@admin.register(Worker)
class WorkerAdmin(ReadOnly):
    list_display = ("name", "started_at", "beat_at", "stopped_at")
    fields = list_display
    readonly_fields = ()
