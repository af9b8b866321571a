"""Why a paused session is where it is, for its banner: a person paused it, or went back to that place."""

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.models import Event, EventKind

RESUMES = "Resume it to continue from here."
_WENT_BACK = {
    EventKind.REWOUND: "Rewound",
    EventKind.UNDONE: "Rewind undone",
    EventKind.REPAIRED: "Repaired",
    EventKind.FORKED: "Forked",
}


def why_paused(context: SessionContext) -> tuple[str, str]:
    """The subject and the text of the banner: ``Rewound by anna.`` and why, with what to do next. One query."""
    moves = Event.objects.filter(
        session=context.session, branch=context.branch, kind__in=(*_WENT_BACK, EventKind.PAUSED)
    ).exclude(kind=EventKind.FORKED, data__has_key="to")  # another session was forked from this one
    event = moves.order_by("-position").first()
    if event is None or event.kind == EventKind.PAUSED:
        return "Paused.", context.session.why
    event = context.mask.row(event)
    what = _WENT_BACK[EventKind(event.kind)]
    if event.kind == EventKind.UNDONE and event.data.get("undid") == EventKind.REPAIRED:
        what = "Repair undone"
    by = f" by {event.actor_name}" if event.actor_name else ""
    reason = " ".join(event.reason.split()).rstrip(".")
    return f"{what}{by}{':' if reason else '.'}", f"{reason}. {RESUMES}" if reason else RESUMES
