"""The admin for stuck sessions: find them, look at all of their rows, and act on them.

Nothing is edited here. What changes a session is one of the actions, with a reason and an audit event, as on the
desk; the rows of its history can be read, and no more. Lists never count a big table.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join

from sessions_app import locks
from sessions_app.access.errors import ActionError, Locked
from sessions_app.access.roles import Actor
from sessions_app.action_list import ACTIONS, RELEASE, RESUME, Action
from sessions_app.actions import BY_REASON
from sessions_app.finding import queues, stuck
from sessions_app.models import (
    Approval,
    Branch,
    CallStatus,
    Checkpoint,
    Event,
    Message,
    ModelCall,
    RegisteredAgent,
    Session,
    Status,
    ToolCall,
    Worker,
)
from sessions_app.wording import status_label

# Django's own classes take no type arguments when they run.
if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _TabularInline = admin.TabularInline[Any, Any]
    _Paginator = Paginator[Any]
else:
    _ModelAdmin, _TabularInline, _Paginator = admin.ModelAdmin, admin.TabularInline, Paginator

NEWEST = 50


class UncountedPaginator(_Paginator):
    """Pages through a big table without counting all of it: the count stops at `MOST`."""

    MOST = 10_000

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return len(rows.values_list("pk")[: self.MOST])


class ReadOnly(_ModelAdmin):
    """Looked at, never edited."""

    paginator = UncountedPaginator
    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class NewestRows(_TabularInline):
    """The newest rows of a session, to read."""

    extra = 0
    can_delete = False
    show_change_link = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        session = request.resolver_match.kwargs.get("object_id") if request.resolver_match else None
        newest = rows.filter(session_id=session).order_by("-pk").values("pk")[:NEWEST]
        return rows.filter(pk__in=list(newest.values_list("pk", flat=True))).order_by("-pk")

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class Events(NewestRows):
    model = Event
    fields = ("position", "kind", "actor_name", "reason", "created_at")
    readonly_fields = fields


class Branches(NewestRows):
    model = Branch
    fk_name = "session"
    fields = ("number", "parent", "left_at", "reason", "created_at")
    readonly_fields = fields


class Approvals(NewestRows):
    model = Approval
    fields = ("call", "arguments", "decision", "decided_by", "asked_at", "expires_at")
    readonly_fields = fields


class QueueFilter(admin.SimpleListFilter):
    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("stuck", "Stuck"),
            *((queue.key, queue.title) for queue in queues.QUEUES if queue.key != "all"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Session]) -> QuerySet[Session]:
        now = timezone.now()
        key = self.value()
        if key == "stuck":
            return queryset.filter(stuck.not_moving(now))
        return queryset.filter(queues.queue_filter(key, now)) if key else queryset


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=2000, widget=forms.Textarea(attrs={"rows": 3}))


@admin.register(Session)
class SessionAdmin(ReadOnly):
    list_display = ("title", "state_label", "agent", "customer", "worker", "attempt", "updated_at", "desk")
    list_filter = (QueueFilter, "status", "phase", "waiting_for")
    search_fields = ("id__startswith", "title", "customer")
    ordering = ("-updated_at", "-id")
    inlines = (Events, Branches, Approvals)
    readonly_fields = ("state_label", "desk", "repairs")
    actions = ("requeue",)

    @admin.display(description="State")
    def state_label(self, session: Session) -> str:
        return status_label(session, timezone.now())[1]

    @admin.display(description="Desk")
    def desk(self, session: Session) -> str:
        return format_html('<a href="{}">open on the desk</a>', reverse("session", args=[session.pk]))

    @admin.display(description="Repairs on the desk")
    def repairs(self, session: Session) -> str:
        """The forms by which it is repaired, and those for its calls in doubt and its open approvals."""
        links = [(reverse("dialog", args=[session.pk, "memory"]), "edit its memory")]
        links.append((reverse("state", args=[session.pk]), "edit its state"))
        waiting = ToolCall.objects.filter(branch=session.branch_id).filter(
            Q(status=CallStatus.DOUBT) | Q(status=CallStatus.PLANNED, approval__decision="")
        )
        for call in waiting.defer("result", "state").order_by("position")[:NEWEST]:
            key = "decide" if call.status == CallStatus.DOUBT else "approve"
            links.append(
                (f"{reverse('dialog', args=[session.pk, key])}?call={call.pk}", f"{key} {call.tool}")
            )
        return format_html_join(" · ", '<a href="{}">{}</a>', links)

    def get_actions(self, request: HttpRequest) -> Any:
        """The actions that ask for nothing but a reason, as `sessions_app.action_list` declares them, and requeue."""
        offered: dict[str, Any] = dict(super().get_actions(request))
        for action in ACTIONS.values():
            if action.admin:
                offered[action.key] = (_ask_reason_for(action), action.key, action.admin)
        return offered

    @admin.action(description="Requeue (release what runs, resume what rests)…")
    def requeue(self, request: HttpRequest, sessions: QuerySet[Session]) -> HttpResponse | None:
        return self.ask_reason(
            request,
            sessions,
            "Requeue",
            lambda session: RELEASE if session.status == Status.RUNNING else RESUME,
        )

    def ask_reason(
        self,
        request: HttpRequest,
        sessions: QuerySet[Session],
        title: str,
        action_for: Callable[[Session], Action],
    ) -> HttpResponse | None:
        """Ask for the reason first; then do the action to each session, and say which refused and why.

        What is locked is asked for again, with the reason that was typed.
        """
        form = ReasonForm(request.POST if "reason" in request.POST else None)
        if not form.is_valid():
            return self._reason_page(request, sessions, title, form)
        done, locked = 0, []
        with locks.sharing_one_wait():
            for session in sessions:
                try:
                    BY_REASON[action_for(session)](
                        actor=Actor.of(request.user),
                        session_id=session.pk,
                        reason=form.cleaned_data["reason"],
                        expected_version=session.version,
                    )
                    done += 1
                except ActionError as error:
                    self.message_user(request, f"{session}: {error}", messages.WARNING)
                    if isinstance(error, Locked):
                        locked.append(session.pk)
        if done:
            self.message_user(request, f"{title}: done for {done}.", messages.SUCCESS)
        if locked:
            return self._reason_page(
                request, sessions.filter(pk__in=locked), title, form, status=Locked.status
            )
        return None

    def _reason_page(
        self,
        request: HttpRequest,
        sessions: QuerySet[Session],
        title: str,
        form: ReasonForm,
        *,
        status: int = 200,
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": f"{title} {sessions.count()} sessions",
            "form": form,
            "sessions": sessions,
            "action": request.POST["action"],
            "opts": self.opts,
            "checkbox": helpers.ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/sessions_app/reason.html", context, status=status)


def _ask_reason_for(action: Action) -> Callable[..., HttpResponse | None]:
    def ask(
        model_admin: SessionAdmin, request: HttpRequest, sessions: QuerySet[Session]
    ) -> HttpResponse | None:
        return model_admin.ask_reason(request, sessions, action.key.capitalize(), lambda session: action)

    return ask


@admin.register(ToolCall)
class ToolCallAdmin(ReadOnly):
    list_display = ("tool", "status", "branch", "position", "attempt", "cached", "asked_at", "ended_at")
    list_filter = ("status", "cached")
    search_fields = ("call_id", "idempotency_key")
    ordering = ("-pk",)
    list_select_related = ("branch",)


@admin.register(Message)
class MessageAdmin(ReadOnly):
    list_display = ("role", "branch", "position", "author", "created_at")
    list_filter = ("role",)
    ordering = ("-pk",)
    list_select_related = ("branch",)


@admin.register(ModelCall)
class ModelCallAdmin(ReadOnly):
    list_display = ("name", "model", "branch", "position", "prompt_tokens", "completion_tokens", "started_at")
    ordering = ("-pk",)
    list_select_related = ("branch",)


@admin.register(Checkpoint)
class CheckpointAdmin(ReadOnly):
    list_display = ("__str__", "kind", "step", "phase", "branch", "position", "created_at")
    list_filter = ("kind",)
    ordering = ("-pk",)
    list_select_related = ("branch",)


@admin.register(Event)
class EventAdmin(ReadOnly):
    list_display = ("kind", "session", "actor_name", "reason", "created_at")
    search_fields = ("actor_name",)
    ordering = ("-pk",)
    list_select_related = ("session",)


@admin.register(RegisteredAgent)
class RegisteredAgentAdmin(ReadOnly):
    list_display = ("title", "key", "model", "definition", "problem", "published_at")


@admin.register(Worker)
class WorkerAdmin(ReadOnly):
    list_display = ("name", "started_at", "beat_at", "stopped_at")
