"""The admin of sessions: finds those that are stuck, shows what the system did with them, and acts on them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.core.exceptions import BadRequest
from django.core.validators import MaxLengthValidator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html_join

from sessions_app import locks
from sessions_app.access.action import Action
from sessions_app.access.errors import ActionError, Locked
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.access.typed import REASON_CHARACTERS, cut, with_plain_line_ends
from sessions_app.action_list import (
    ACTIONS,
    ANSWER_STEP,
    APPROVE,
    DECIDE,
    EDIT_MEMORY,
    RELEASE,
    RESUME,
)
from sessions_app.actions import BY_REASON
from sessions_app.addresses import address
from sessions_app.admin.base import ReadOnly, masked_name, sentence_of
from sessions_app.finding import queues, stuck
from sessions_app.finding.filters import in_phase
from sessions_app.finding.search_sessions import id_begins_with
from sessions_app.models import (
    Approval,
    Branch,
    CallStatus,
    Event,
    Phase,
    Session,
    Status,
    ToolCall,
    WaitingFor,
)
from sessions_app.wording import count

# Django's own class takes no type arguments when it runs.
if TYPE_CHECKING:
    _TabularInline = admin.TabularInline[Any, Any]
else:
    _TabularInline = admin.TabularInline

NEWEST = 50


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
    fields = ("position", "what", "actor_name", "created_at")
    readonly_fields = fields

    @admin.display(description="What")
    def what(self, row: Event) -> str:
        return sentence_of(row)


class Branches(NewestRows):
    model = Branch
    fk_name = "session"
    fields = ("number", "parent", "left_at", "created_at")
    readonly_fields = fields


class Approvals(NewestRows):
    model = Approval
    fields = ("call", "decision", "decided_by", "asked_at", "expires_at")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("call")


class QueueFilter(admin.SimpleListFilter):
    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(queue.key, queue.title) for queue in queues.QUEUES if queue.key != "all"]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Session]) -> QuerySet[Session]:
        key = self.value()
        return queryset.filter(queues.queue_filter(key, timezone.now())) if key in queues.BY_KEY else queryset


class PhaseFilter(admin.SimpleListFilter):
    """By the index that the desk's filter has, too."""

    title = "phase"
    parameter_name = "phase"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(phase.value, str(phase.label)) for phase in Phase]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Session]) -> QuerySet[Session]:
        phase = self.value()
        return queryset.filter(in_phase(phase, "")) if phase else queryset


class WaitingForFilter(admin.SimpleListFilter):
    """By the index of the waiting sessions: no other waits for anything."""

    title = "waiting for"
    parameter_name = "waiting_for"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(waiting.value, str(waiting.label)) for waiting in WaitingFor]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Session]) -> QuerySet[Session]:
        waiting_for = self.value()
        return queryset.filter(status=Status.WAITING, waiting_for=waiting_for) if waiting_for else queryset


# Django takes no form with more fields than a hundred above this.
MOST_AT_ONCE = 900
# What has no button at the top of a session's page.
_REPAIRS = {
    RELEASE: "release it from its worker",
    EDIT_MEMORY: "edit its memory",
    ANSWER_STEP: "complete its step manually",
}


class ReasonForm(forms.Form):
    reason = forms.CharField(widget=forms.Textarea(attrs={"rows": 3, "maxlength": REASON_CHARACTERS}))

    def clean_reason(self) -> str:
        """Browsers count a line end as one character, and send two."""
        reason = with_plain_line_ends(self.cleaned_data["reason"])
        MaxLengthValidator(REASON_CHARACTERS)(reason)
        return reason


@admin.register(Session)
class SessionAdmin(ReadOnly):
    list_display = ("name", "state_label", "agent", "worker", "attempt", "updated_at", "desk")
    # By the others all sessions would be read, and sorted.
    sortable_by = ("updated_at",)
    list_filter = (QueueFilter, "status", PhaseFilter, WaitingForFilter)
    list_select_related = ("branch",)
    search_fields = ("id__startswith",)
    search_help_text = (
        "Enter the start of a session's id. To search titles, customers and histories, use the desk."
    )
    ordering = ("-updated_at", "-id")
    inlines = (Events, Branches, Approvals)
    fields = (
        *("name", "state_label", "desk", "repairs", "id", "agent", "definition", "assignee", "branch"),
        *("phase", "phase_since", "status", "waiting_for", "stop_request", "worker", "lease_expires_at"),
        *("next_run_at", "attempt", "epoch", "position", "change", "version", "created_at", "updated_at"),
    )
    readonly_fields = ("name", "state_label", "desk", "repairs")
    actions = ("requeue",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Session], search_term: str
    ) -> tuple[QuerySet[Session], bool]:
        """By a range of keys: Django would compare the beginning of each id as text."""
        if not search_term.strip() or not self.get_search_fields(request):
            return queryset, False
        return queryset.filter(id_begins_with(search_term)), False

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """A masked copy: Django names it at the top of each page."""
        session = super().get_object(request, object_id, from_field)
        return session if session is None else Mask.configured().row(session)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        return super().get_queryset(request).select_related("branch", "assignee")

    def action_checkbox(self, obj: Session) -> Any:
        """Its label names the session."""
        return super().action_checkbox(Mask.configured().row(obj))

    def address_on_desk(self, row: Session) -> str:
        return reverse("session", args=[row.pk])

    @admin.display(description="Session")
    def name(self, session: Session) -> str:
        return masked_name(session)

    @admin.display(description="State")
    def state_label(self, session: Session) -> str:
        return stuck.status_label(session, timezone.now())[1]

    @admin.display(description="Repairs on the desk")
    def repairs(self, session: Session) -> str:
        """The dialogs of what can be done to it now; and those for its calls in doubt and its open approvals."""
        links = [
            (reverse("dialog", args=[session.pk, action.key]), action.title)
            for action in ACTIONS.values()
            if action.label and not action.impossible(session)
        ]
        links += [
            (reverse("dialog", args=[session.pk, action.key]), words)
            for action, words in _REPAIRS.items()
            if not action.impossible(session)
        ]
        links += [
            (reverse("state", args=[session.pk]), "edit its state"),
            (reverse("conversation", args=[session.pk]), "edit its messages"),
        ]
        waiting = ToolCall.objects.filter(branch=session.branch_id).filter(
            Q(status=CallStatus.DOUBT) | Q(status=CallStatus.PLANNED, approval__decision="")
        )
        for call in waiting.defer("result", "state").order_by("position")[:NEWEST]:
            key = (DECIDE if call.status == CallStatus.DOUBT else APPROVE).key
            words = f"{key} {Mask.configured().tool(call.tool)}"
            links.append((address("dialog", session.pk, key, call=call.pk), words))
        return format_html_join(" · ", '<a href="{}">{}</a>', links)

    def get_actions(self, request: HttpRequest) -> Any:
        """The actions that ask for nothing but a reason, as `sessions_app.action_list` declares them, and requeue."""
        offered: dict[str, Any] = dict(super().get_actions(request))
        for action in ACTIONS.values():
            if action.admin:
                offered[action.key] = (_ask_reason_for(action), action.key, action.admin)
        return offered

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Session], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Django answers a selected key that is not a UUID with 500."""
        for key in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME):
            try:
                UUID(key)
            except ValueError:
                raise BadRequest(f"“{cut(key)}” is not the id of a session.") from None
        return super().response_action(request, queryset, *args, **kwargs)

    @admin.action(description="Requeue (release running, resume resting)…")
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
        if sessions.count() > MOST_AT_ONCE:
            self.message_user(
                request,
                f"{title}: at most {MOST_AT_ONCE} sessions can be selected here, so none was changed. The list of "
                "sessions on the desk has bulk actions for any number.",
                messages.ERROR,
            )
            return None
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
                    sentence = Mask.configured().text(str(error))
                    self.message_user(request, f"{masked_name(session)}: {sentence}", messages.WARNING)
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
            "title": f"{title} {count(sessions.count(), 'session')}",
            "form": form,
            "sessions": Mask.configured().rows(sessions),
            "action": request.POST["action"],
            "opts": self.opts,
            "checkbox": helpers.ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/sessions_app/reason.html", context, status=status)


def _ask_reason_for(action: Action) -> Callable[..., HttpResponse | None]:
    def ask(
        model_admin: SessionAdmin, request: HttpRequest, sessions: QuerySet[Session]
    ) -> HttpResponse | None:
        return model_admin.ask_reason(request, sessions, action.title, lambda session: action)

    return ask
