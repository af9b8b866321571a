"""The lines of the inbox, and parts of the cards of requests and calls in doubt, each drawn once for what it shows."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django import template
from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from sessions_app import times, wording
from sessions_app.finding.inbox_rows import STUCK
from sessions_app.models import Status
from sessions_app.templatetags.desk import shorten, shown_field
from sessions_app.templatetags.drawn import parts

if TYPE_CHECKING:
    from sessions_app.desk.pages.approvals import Card
    from sessions_app.desk.pages.doubts import Doubt
    from sessions_app.desk.pages.inbox import Failed, Line, Stuck
    from sessions_app.models import Session

register = template.Library()

# Characters of the error of sessions that have failed.
LONGEST_ERROR = 280


@register.simple_tag
def session_link(session: "Session", agent_title: str = "", position: int | None = None) -> SafeString:
    """The session that a line is of, by its title.

    :param position: Of the call to which it leads.
    """
    return parts.draw("inbox/_session_link.html", _linked(session, agent_title, position))


def _linked(session: "Session", agent_title: str, position: int | None) -> dict[str, Any]:
    """What ``inbox/_session_link.html`` shows."""
    return {
        "pk": session.pk,
        "title": str(session),
        "agent": agent_title,
        "customer": session.customer,
        "position": position,
    }


@register.simple_tag
def shown_sentence(card: "Card") -> SafeString:
    """What the call of a request does, of parts that are shown as `shown_field` shows them."""
    return parts.keep(
        "a sentence",
        {"parts": tuple(card.sentence)},
        lambda: format_html_join("", "{}", ((shown_field(part.field, part.text),) for part in card.sentence)),
    )


@register.simple_tag(takes_context=True)
def drawn_line(context: template.Context, line: "Line") -> SafeString:
    """A line of the inbox about failed sessions, or about a stuck one."""
    item: Any = line.item
    return _stuck_line(context, line, item) if line.kind == STUCK else _failed_line(context, line, item)


def _stuck_line(context: template.Context, line: "Line", stuck: "Stuck") -> SafeString:
    session, why_not = stuck.session, context["why_not"]
    return parts.draw(
        "inbox/_stuck.html",
        {
            "id": line.id,
            "pk": session.pk,
            "title": str(session),
            "agent": stuck.agent_title,
            "since": times.since_when(line.since, context["now"]),
            "why": stuck.why,
            "who_may": stuck.who_may,
            "is_running": session.status == Status.RUNNING,
            "may_release": not why_not["release"],
            "may_assign": not why_not["assign"],
            "back": str(context["back"]),
        },
    )


def _failed_line(context: template.Context, line: "Line", failed: "Failed") -> SafeString:
    session, advice, why_not, now = failed.session, failed.advice, context["why_not"], context["now"]
    what = advice.what if advice is not None else ""
    values = {
        **_linked(session, "", None),
        "id": line.id,
        "agent_title": failed.agent_title,
        "changed": failed.changed,
        "is_one": failed.is_one,
        "number": str(failed.number),
        "what": what or "An error",
        "since": times.since_when(line.since, now),
        "last": times.since_when(failed.last, now),
        "error": shorten(failed.error, LONGEST_ERROR) if failed.error != what else "",
        "advice": advice.text if advice is not None else "",
        "label": advice.label if advice is not None else "",
        "action": advice.action.key if advice is not None and advice.action is not None else "",
        "refusal": failed.refusal,
        "key": failed.key,
        "may_resume": not why_not["resume"] and failed.another_attempt_helps,
        "cannot_run": failed.cannot_run,
        "new_definition": session.new_definition,
        "may_assign": not why_not["assign"],
        "back": str(context["back"]),
    }
    parameters, sessions_query = advice.parameters if advice is not None else {}, context["sessions_query"]
    return parts.keep(
        "inbox/_failed.html",
        {**values, "parameters": tuple(parameters.items()), "sessions_query": sessions_query.urlencode()},
        lambda: render_to_string(
            "inbox/_failed.html", {**values, "parameters": parameters, "sessions_query": sessions_query}
        ),
    )


@register.simple_tag
def edit_arguments(card: "Card", *, form_id: str) -> SafeString:
    """The fields to edit the arguments of a call that is decided with others.

    :param form_id: Of the form that decides several calls.
    """
    return parts.draw("session/_edit_arguments.html", {**_edited(card), "form_id": form_id, "note": False})


@register.simple_tag(takes_context=True)
def approval_choices(context: template.Context, card: "Card") -> SafeString:
    """What stands in the form of one approval, besides its token: see ``session/_approval_buttons.html``."""
    why_not, session = context["why_not"], card.session
    in_inbox = bool(context.get("in_inbox"))
    values = {
        **_edited(card),
        **_linked(session, card.agent_title, card.call.position),
        "form_id": "",
        "note": True,
        "session": session.pk,
        "version": session.version,
        "fingerprint": card.fingerprint,
        "new_definition": card.new_definition,
        "seen_label": card.seen_label,
        "has_result": card.repeats is not None and card.repeats.has_result,
        "sum": card.sum,
        "refusal": why_not["approve"] or card.agent_problem,
        "why_not_approve": why_not["approve"],
        "why_not_reject": why_not["reject"],
        "back": str(context.get("back", "")),
        "queue": str(context.get("queue", "")),
        "in_inbox": in_inbox,
        "has_similar": in_inbox and context["line"].has_similar and not context.get("tool"),
    }
    return parts.draw("session/_approval_choices.html", values)


def _edited(card: "Card") -> dict[str, Any]:
    """What ``session/_edit_arguments.html`` shows of a card."""
    return {
        "fields": card.fields,
        "editable": card.editable,
        "edited": card.edited,
        "call_id": card.approval.call_id,
        "is_repeated": card.repeats is not None,
        "tool": card.call.tool,
    }


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
def doubt_facts(doubt: "Doubt") -> SafeString:
    """When and where a call in doubt started, what is known of its worker, and its arguments."""
    call = doubt.call
    return parts.draw(
        "session/_doubt_facts.html",
        {
            "tool": call.tool,
            "started": times.since_when(call.started_at),
            "worker": call.worker,
            "late": doubt.late,
            "state": doubt.worker,
            "tools_inside": doubt.tools_inside,
            "key": call.idempotency_key,
            "arguments": tuple(
                [replace(each, value=wording.as_text(each.value)) for each in doubt.arguments]
            ),
            "changes": doubt.changes,
            "from_state": doubt.from_state,
        },
    )


@register.simple_tag(takes_context=True)
def doubt_outcomes(context: template.Context, doubt: "Doubt") -> SafeString:
    """The buttons by which the outcome of a call in doubt is decided."""
    return parts.draw(
        "session/_doubt_outcomes.html",
        {
            "session": doubt.session.pk,
            "call": doubt.call.pk,
            "agent_problem": doubt.agent_problem,
            "in_inbox": bool(context.get("in_inbox")),
            "back": str(context.get("back", "")),
            "queue": str(context.get("queue", "")),
        },
    )
