"""Template filters for times, values and calls."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

from django import template
from django.conf import settings
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agentstate.installation import MANAGE
from sessions_app import times, wording
from sessions_app.models import Checkpoint

register = template.Library()


@register.filter
def duration(seconds: Any) -> str:
    """``11.2 s``. A time of a published agent may be hidden, or endless, which an earlier version stored with a tag."""
    if isinstance(seconds, str):
        return seconds
    return "∞" if isinstance(seconds, dict) else wording.duration(seconds)


@register.simple_tag
def desk_command(name: str) -> str:
    """How a command of the desk is typed in this installation."""
    return f"{MANAGE} {name}"


@register.simple_tag
def new_form_id() -> UUID:
    """For a form that is drawn without its Django form, see `sessions_app.desk.forms.once`."""
    return uuid4()


@register.simple_tag
def worker_command() -> str:
    """What starts a worker. Without Redis none runs in a process of its own, see `agentstate.celery`."""
    return "celery -A agentstate worker" if settings.REDIS_URL else desk_command("up")


for element in (
    times.clock,
    times.stamp,
    times.since_when,
    times.for_how_long,
    times.changed_when,
    times.expires,
    wording.as_text,
    wording.pretty,
    wording.unwrapped,
):
    register.filter(element)


@register.filter
def shorten(value: Any, limit: int) -> str:
    """As `wording.shorten`. Django's ``truncatechars`` looks at each character: a tenth of a millisecond for 1,000."""
    return wording.shorten(str(value), limit)


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
