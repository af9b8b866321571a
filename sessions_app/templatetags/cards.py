"""Parts of the cards of requests and of calls in doubt, each drawn once in a process for the values that it shows."""

from typing import TYPE_CHECKING

from django import template
from django.utils.safestring import SafeString

from sessions_app import times
from sessions_app.templatetags.drawn import parts

if TYPE_CHECKING:
    from sessions_app.desk.pages.approvals import Card
    from sessions_app.desk.pages.doubts import Doubt
    from sessions_app.models import Session

register = template.Library()


@register.simple_tag
def session_link(session: "Session", agent_title: str = "", position: int | None = None) -> SafeString:
    """The session that a line is of, by its title.

    :param position: Of the call to which it leads.
    """
    return parts.draw(
        "inbox/_session_link.html",
        {
            "pk": session.pk,
            "title": str(session),
            "agent": agent_title,
            "customer": session.customer,
            "position": position,
        },
    )


@register.simple_tag
def edit_arguments(card: "Card", wrong: str = "", *, form_id: str = "", note: bool = False) -> SafeString:
    """The fields to edit the arguments of a call.

    :param wrong: The name of the argument whose field was filled in wrongly.
    :param form_id: Of the form that decides several calls.
    :param note: With a note for the audit trail.
    """
    return parts.draw(
        "session/_edit_arguments.html",
        {
            "fields": card.fields,
            "editable": card.editable,
            "edited": card.edited,
            "call_id": card.approval.call_id,
            "form_id": form_id,
            "wrong": wrong,
            "note": note,
            "is_repeated": card.repeats is not None,
            "tool": card.call.tool,
        },
    )


@register.simple_tag
def approval_details(card: "Card", refusal: str = "") -> SafeString:
    """What a person rarely needs to decide a call.

    :param refusal: Why the person may not decide it: then without its fingerprint.
    """
    call = card.call
    return parts.draw(
        "session/_approval_details.html",
        {
            "tool": call.tool,
            "call_id": call.call_id,
            "key": call.idempotency_key,
            "fingerprint": card.fingerprint,
            "refusal": refusal,
        },
    )


@register.simple_tag
def doubt_told(doubt: "Doubt") -> SafeString:
    """When and where a call in doubt started, and what is known of its worker."""
    call = doubt.call
    return parts.draw(
        "session/_doubt_told.html",
        {
            "tool": call.tool,
            "started": times.since_when(call.started_at),
            "worker": call.worker,
            "state": doubt.worker,
            "tools_inside": doubt.tools_inside,
            "key": call.idempotency_key,
        },
    )
