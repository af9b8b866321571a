"""Times, values and states as text: the same on every page."""

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from math import ceil
from typing import Any

from django.utils import timezone

from sessions_app.models import Phase, Session, Status, StopRequest, WaitingFor

# How the argument of that name is shown to people; None for one that is shown as it is.
Show = Callable[[str, Any], str | None]

# Characters of each value in a list of changed arguments.
_OF_CHANGE = 60
# Paragraphs are wrapped at so many characters.
_WRAPPED_AT = (60, 130)
_STARTS_ANEW = re.compile(r"\s|[-*•#>|{\[<]|\d+[.)]\s")


def duration(seconds: float | None) -> str:
    """``0.21 s``, ``11.2 s``, ``14 min``, ``2 h 14 min``, ``3 d``; "" for None."""
    if seconds is None:
        return ""
    seconds = max(0.0, float(seconds))
    # Rounded before the unit is chosen: 59.97 s is 1 min, not 60 s.
    if round(seconds, 2) < 1:
        return f"{seconds:.2f} s"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 10 and rest:
        return f"{minutes} min {rest} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d"


def rough_duration(seconds: float) -> str:
    """Like `duration`, without the seconds of a minute or more."""
    return duration(seconds if seconds < 60 else seconds // 60 * 60)


def countdown(until: datetime, now: datetime) -> str:
    """How long it is until then, in whole seconds, rounded up: what is to come is at least a second away."""
    return duration(max(1, ceil((until - now).total_seconds())))


def age(since: datetime, now: datetime) -> str:
    """How long ago, rounded: ``just now``, ``40 s``, ``14 min``."""
    seconds = (now - since).total_seconds()
    if seconds < 5:
        return "just now"
    if seconds < 60:
        return f"{int(seconds)} s"
    return rough_duration(seconds)


def time_left(until: datetime, now: datetime) -> str:
    """``expires in 53 min``, ``expires in 40 s``, ``expired``."""
    seconds = (until - now).total_seconds()
    if seconds <= 0:
        return "expired"
    return f"expires in {rough_duration(seconds) if seconds > 120 else countdown(until, now)}"


def age_or_date(at: datetime, now: datetime) -> str:
    """How long ago; for anything older than a day the date: ``14 min``, ``18 Nov 21:10``, ``3 May 2025``."""
    if now - at < timedelta(days=1):
        return age(at, now)
    local = timezone.localtime(at)
    return f"{local:%d %b %H:%M}" if local.year == now.astimezone(local.tzinfo).year else f"{local:%d %b %Y}"


def ago(at: datetime, now: datetime) -> str:
    """When it was: ``just now``, ``14 min ago``; for anything older than a day the date, as `age_or_date`."""
    text = age_or_date(at, now)
    return text if text == "just now" or now - at >= timedelta(days=1) else f"{text} ago"


def for_how_long(since: datetime, now: datetime) -> str:
    """How long something lasts: ``just now``, ``for 14 min``; for more than a day ``since 18 Nov 21:10``."""
    text = age_or_date(since, now)
    if now - since >= timedelta(days=1):
        return f"since {text}"
    return text if text == "just now" else f"for {text}"


def plainly(name: str, value: Any) -> None:
    """As `Show`, of no argument."""


def arguments(values: Any, limit: int = 200, show: Show = plainly) -> str:
    """A call's arguments on one line: ``claim="CLM-1042", amount=450.0``, or with `show` ``amount=€450.00``."""
    if not isinstance(values, dict):
        return shorten(json.dumps(values, ensure_ascii=False), limit)
    shown = {key: show(key, value) for key, value in values.items()}
    texts = (
        f"{key}={json.dumps(value, ensure_ascii=False) if shown[key] is None else shown[key]}"
        for key, value in values.items()
    )
    return shorten(", ".join(texts), limit)


def changes(
    names: Iterable[str],
    before: dict[str, Any],
    after: dict[str, Any],
    show: Show = plainly,
) -> str:
    """How arguments were changed: ``amount €100.00 -> €120.00, note none -> late, iban •••• -> another value``.

    :param names: Those that were changed; where values are hidden, they cannot be told from what is shown.
    """
    return ", ".join(
        f"{name} {_change(_brief(before, name, show), _brief(after, name, show))}" for name in names
    )


def _change(before: str, after: str) -> str:
    return f"{before} -> {after if after != before else 'another value'}"


def _brief(values: dict[str, Any], name: str, show: Show) -> str:
    if name not in values:
        return "none"
    value = values[name]
    if (shown := show(name, value)) is not None:
        return shorten(shown, _OF_CHANGE)
    return shorten(as_text(value), _OF_CHANGE)


def as_text(value: Any) -> str:
    """A text as it is, any other value as JSON on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def pretty(value: Any) -> str:
    """The value as JSON for people to read."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters, the last of them ``…`` where something was cut off."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def unwrapped(text: str) -> str:
    """The text without the line ends by which its author wrapped paragraphs, so that a page does not wrap it twice.

    A line end stays before a list, a heading, an indented or an empty line, and after a line that ends early.
    """
    lines = text.split("\n")
    width = max(map(len, lines))
    if not _WRAPPED_AT[0] <= width <= _WRAPPED_AT[1]:
        return text
    pieces = lines[:1]
    for before, line in pairwise(lines):
        word = "" if _STARTS_ANEW.match(line) else line.split(" ", 1)[0]
        is_full = len(before) + 1 + len(word) > width
        is_open = len(before) >= _WRAPPED_AT[0] and before[-1] not in ".:;!?,"
        pieces += [" " if before and word and (is_full or is_open) else "\n", line]
    return "".join(pieces)


def count(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_WAITING_LABELS = {
    WaitingFor.APPROVAL: ("waiting", "Waiting for approval"),
    WaitingFor.DOUBT: ("doubt", "Call in doubt"),
    WaitingFor.RETRIES: ("error", "Gave up retrying"),
    WaitingFor.CHANGED: ("doubt", "Agent missing or changed"),
}


def took_effect(calls: int, *, certain: int, already: bool = False) -> str:
    """What is known of the effects of some calls, of which so many reported back; the others may have had none.

    ``took effect``, ``may have taken effect``; of both kinds together: ``took effect, or may have``.
    """
    word = "already " if already else ""
    if not certain:
        return f"may {word}have taken effect"
    return f"{word}took effect" if certain == calls else f"{word}took effect, or may have"


# By Haystack's `exit_reason`: turns that ended though the agent had not finished, as a label and what to know of it.
CUT_SHORT = {
    "max_agent_steps": (
        "Out of steps",
        "The agent used all the steps that it may take in one turn (max_agent_steps) without giving an answer. "
        "Send a message to let it continue, with as many steps again.",
    ),
    "length": (
        "Answer cut off",
        "The model reached the length limit of a reply, so the answer is not complete. "
        "Send a message to let the agent continue.",
    ),
    "content_filter": (
        "Answer withheld",
        "The content filter of the model stopped its reply. Rewind to send another message in place of the last.",
    ),
}


def cut_short(session: Session) -> tuple[str, str] | None:
    """Of a session whose last turn ended though the agent had not finished, the label and what to know of it."""
    is_done = session.status == Status.IDLE and session.phase == Phase.DONE
    return CUT_SHORT.get(session.exit_reason) if is_done else None


def status_label(session: Session, now: datetime) -> tuple[str, str]:
    """``(tone, label)`` of a session: what it is doing or waiting for; the tone is a class of the stylesheet.

    Pages show `stuck.status_label`, which says of a session that does not move that it is stuck.
    """
    match session.status:
        case Status.WAITING:
            return _WAITING_LABELS[WaitingFor(session.waiting_for)]
        case Status.RUNNING if session.stop_request == StopRequest.PAUSE:
            return "paused", "Pausing"
        case Status.RUNNING if session.stop_request == StopRequest.CANCEL:
            return "idle", "Cancelling"
        case Status.RUNNING:
            return "running", "Running"
        case Status.QUEUED if session.next_run_at is not None and session.next_run_at > now:
            return "waiting", f"Tries again in {countdown(session.next_run_at, now)}"
        case Status.QUEUED:
            return "running", "Queued"
        case Status.PAUSED:
            return "paused", "Paused"
        case Status.CANCELLED:
            return "idle", "Cancelled"
    if session.phase == Phase.ERROR:
        return "error", "Failed"
    if session.phase == Phase.DONE:
        cut = cut_short(session)
        return ("waiting", cut[0]) if cut else ("done", "Done")
    return "idle", "Idle"
