"""What the pages of the admin share: nothing is edited, big tables are not counted, and no search is an oracle."""

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html

from sessions_app.access.masking import Mask
from sessions_app.addresses import address
from sessions_app.models import Event, Session

# Django's own classes take no type arguments when they run.
if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _Paginator = Paginator[Any]
else:
    _ModelAdmin, _Paginator = admin.ModelAdmin, Paginator


def masked_name(session: Session) -> str:
    return Mask.configured().text(str(session))


def sentence_of(event: Event) -> str:
    """What was done, as the audit trail of the desk says it."""
    return Mask.configured().row(event).description


class UncountedPaginator(_Paginator):
    """Pages through a big table without counting all of it: the count stops at `MOST`."""

    MOST = 10_000

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: self.MOST].count())


class ReadOnly(_ModelAdmin):
    """Looked at, never edited. Each subclass names its ``fields``; Django would show all."""

    paginator = UncountedPaginator
    show_full_result_count = False
    list_per_page = 50
    readonly_fields: ClassVar[Any] = ("desk",)

    @admin.display(description="Desk")
    def desk(self, row: Any) -> str:
        return format_html('<a href="{}">open</a>', self.address_on_desk(row))

    def address_on_desk(self, row: Any) -> str:
        """That of a row of the history, on the timeline of its session."""
        return address("session", row.branch.session_id, at=row.position)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Only what a filter offers. Django would let ``?title__startswith=`` find a hidden value letter by letter."""
        offered = {getattr(list_filter, "parameter_name", list_filter) for list_filter in self.list_filter}
        return lookup.removesuffix("__exact").removesuffix("__isnull") in offered

    def get_search_fields(self, request: HttpRequest) -> Any:
        """None for Django's autocompletion, which is then not found: it would name rows by titles that are not masked.

        No page uses it, since nothing is edited.
        """
        match = request.resolver_match
        is_autocompletion = match is not None and match.view_name == "admin:autocomplete"
        return () if is_autocompletion else super().get_search_fields(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
