"""Times as elements of a page: in words, and whole on hover. A script keeps ages and the time left right."""

from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.safestring import SafeString

from sessions_app import wording

# DATETIME_FORMAT of `agentstate.formats`, as `strftime` writes it, ten times as fast: a page has a hundred times.
_IN_FULL = "%d %b %Y, %H:%M:%S %Z"


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


def stamp(at: datetime | None) -> SafeString | str:
    """A ``time`` element with date and time to the second, for a record; with the zone on hover."""
    return _time(at, f"{timezone.localtime(at):%d %b %Y %H:%M:%S}") if at is not None else ""


def since_when(at: datetime | None, now: datetime | None = None) -> SafeString | str:
    """A ``time`` element with ``14 min ago``, or with the date of anything older than a day; all of it on hover."""
    return _time(at, wording.ago(at, now or timezone.now()), "{} ago") if at is not None else ""


def for_how_long(since: datetime | None, now: datetime | None = None) -> SafeString | str:
    """A ``time`` element with ``for 14 min``, or ``since`` a date that is older than a day."""
    return (
        _time(since, wording.for_how_long(since, now or timezone.now()), "for {}")
        if since is not None
        else ""
    )


def changed_when(at: datetime | None, now: datetime | None = None) -> SafeString | str:
    """As `since_when`, for a narrow column: ``14 min``."""
    return _time(at, wording.age_or_date(at, now or timezone.now()), "{}") if at is not None else ""


def expires(at: datetime | None, now: datetime | None = None) -> SafeString | str:
    """A ``time`` element with ``expires in 53 min``, and the date on hover."""
    return (
        _time(at, wording.time_left(at, now or timezone.now()), left="expires in {}")
        if at is not None
        else ""
    )


def _time(at: datetime, text: str, age: str = "", *, left: str = "") -> SafeString:
    """A script keeps the text right on an open page, if it says one of these, each with ``{}``:

    :param age: How the text says how long ago it was.
    :param left: How the text says how long it is until then.
    """
    title = f"{timezone.localtime(at):{_IN_FULL}}"
    is_date = timezone.now() - at >= timedelta(days=1)
    kept = f' data-age="{age}"' if age and not is_date else f' data-left="{left}"' if left else ""
    # Times and words of the project, which hold nothing to escape.
    return SafeString(f'<time datetime="{at.isoformat()}" title="{title}"{kept}>{text}</time>')
