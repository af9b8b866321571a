"""Template filters for times, values and calls."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from sessions_app import wording
from sessions_app.models import Checkpoint

register = template.Library()

# DATETIME_FORMAT of `agentstate.formats`, as `strftime` writes it, ten times as fast: a page has a hundred times.
_IN_FULL = "%d %b %Y, %H:%M:%S %Z"


@register.filter
def duration(seconds: float | None) -> str:
    return wording.duration(seconds)


@register.filter
def clock(at: datetime | None) -> SafeString | str:
    """A ``time`` element with the time of day, and with the date where that is not today."""
    if at is None:
        return ""
    local = timezone.localtime(at)
    today = timezone.localtime().date()
    short = (
        f"{local:%H:%M:%S}"
        if local.date() == today
        else f"{local:%d %b %H:%M}"
        if local.year == today.year
        else f"{local:%d %b %Y}"
    )
    return _time(at, short)


@register.filter
def stamp(at: datetime | None) -> SafeString | str:
    """A ``time`` element with date and time to the second, for a record; with the zone on hover."""
    return _time(at, f"{timezone.localtime(at):%d %b %Y %H:%M:%S}") if at is not None else ""


@register.filter
def since_when(at: datetime | None, now: datetime | None = None) -> SafeString | str:
    """A ``time`` element with ``14 min ago``, or with the date of anything older than a day; all of it on hover."""
    return _time(at, wording.ago(at, now or timezone.now()), "{} ago") if at is not None else ""


@register.filter
def for_how_long(since: datetime | None, now: datetime | None = None) -> SafeString | str:
    """A ``time`` element with ``for 14 min``, or ``since`` a date that is older than a day."""
    return (
        _time(since, wording.for_how_long(since, now or timezone.now()), "for {}")
        if since is not None
        else ""
    )


@register.filter
def changed_when(at: datetime | None, now: datetime | None = None) -> SafeString | str:
    """As `since_when`, for a narrow column: ``14 min``."""
    return _time(at, wording.age_or_date(at, now or timezone.now()), "{}") if at is not None else ""


@register.filter
def expires(at: datetime | None, now: datetime | None = None) -> SafeString | str:
    """A ``time`` element with ``expires in 53 min``, and the date on hover."""
    return _time(at, wording.time_left(at, now or timezone.now())) if at is not None else ""


def _time(at: datetime, text: str, age: str = "") -> SafeString:
    """:param age: How the text says how long ago it was, with ``{}``: a script keeps that right on an open page."""
    title = f"{timezone.localtime(at):{_IN_FULL}}"
    is_date = timezone.now() - at >= timedelta(days=1)
    kept = f' data-age="{age}"' if age and not is_date else ""
    # Times and words of the project, which hold nothing to escape.
    return SafeString(f'<time datetime="{at.isoformat()}" title="{title}"{kept}>{text}</time>')


@register.filter
def as_text(value: Any) -> str:
    """A text as it is, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@register.filter
def unwrapped(text: str) -> str:
    return wording.unwrapped(text)


@register.filter
def pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


@register.filter
def thousands(number: int | None) -> str:
    return f"{number or 0:,}"


@register.filter
def size(characters: int) -> str:
    """The length of a text: ``812 characters``, ``24 KB``, ``9.8 MB``."""
    if characters < 10_000:
        return f"{characters:,} characters"
    if characters < 1_000_000:
        return f"{characters // 1000:,} KB"
    return f"{characters / 1_000_000:.1f} MB"


@register.filter
def get(mapping: Mapping[Any, Any], key: Any) -> Any:
    return mapping.get(key)


@register.filter
def place(checkpoint: Checkpoint) -> str:
    """``start of step 3``, ``start of a turn``, ``end of a turn``, ``inside step 3``."""
    match checkpoint.kind:
        case Checkpoint.Kind.STEP:
            return f"start of step {checkpoint.step + 1}"
        case Checkpoint.Kind.PREPARED:
            return f"inside step {checkpoint.step + 1}"
    return Checkpoint.Kind(checkpoint.kind).label


@register.simple_tag
def shown_field(field: Any, text: str) -> SafeString | str:
    """What a field of an argument holds, as people write it: the script keeps it right while that is edited.

    Without a field, the text.
    """
    if field is None:
        return text
    money = field.currency
    attributes = (
        format_html(
            ' data-before="{}" data-after="{}" data-places="{}"', money.before, money.after, money.places
        )
        if money
        else ""
    )
    return format_html(
        '<span data-of="{}" data-requested="{}"{}>{}</span>',
        field.input_name,
        field.in_sentence,
        attributes,
        text,
    )
