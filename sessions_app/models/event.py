"""The audit trail: what a person or the system did to a session, when and why. Only ever inserted."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Required, TypedDict, Unpack

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from sessions_app.models.branch import Branch
from sessions_app.models.enums import EventKind
from sessions_app.models.later import insert_later
from sessions_app.models.loading import LoadedModel
from sessions_app.models.rows import BranchRowQuerySet
from sessions_app.models.session import Session

PEOPLES_KINDS = [kind for kind in EventKind if kind.by_person]
# A long session has very many of these two; all other events have an index of their own. SQLite uses it only for a
# query with the very same terms, and for none with a list of kinds.
BESIDE_TURNS = ~Q(kind=EventKind.MESSAGE.value) & ~Q(kind=EventKind.FINISHED.value)


# Follows the tools in the reason of a request.
_SAID_OF_REQUEST = " needs approval."


class Event(LoadedModel):
    # The index of `event_position_once` begins with it; one of its own would be read whole for the newest events.
    session = models.ForeignKey(Session, on_delete=models.CASCADE, db_index=False, related_name="events")
    branch = models.ForeignKey(
        Branch, null=True, on_delete=models.CASCADE, db_index=False, related_name="events"
    )
    position = models.PositiveBigIntegerField()
    kind = models.CharField(max_length=30)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    actor_name = models.CharField(
        max_length=150,
        blank=True,
        default="",
        help_text="Kept when the account is deleted; also names a worker or a command.",
    )
    reason = models.TextField(blank=True, default="")
    data = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    objects: ClassVar[BranchRowQuerySet["Event"]] = BranchRowQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        ordering = ["position"]
        constraints = [models.UniqueConstraint(fields=["session", "position"], name="event_position_once")]
        indexes = [
            models.Index(fields=["branch", "position"], name="event_branch"),
            models.Index(
                fields=["branch", "position"],
                condition=BESIDE_TURNS,
                name="event_beside_turns",
            ),
        ]

    def __str__(self) -> str:
        return f"event {self.position}"

    @property
    def by_person(self) -> bool:
        """Whether a person did it, or the system carried out what a person asked for."""
        return self.actor_id is not None or self.kind in PEOPLES_KINDS

    @property
    def description(self) -> str:
        """What was done, in words: the same on the timeline, in the audit trail and on the command line."""
        data = self._known_data
        if self.kind == EventKind.REPAIRED:
            return _describe_repair(data)
        if self.kind == EventKind.UNDONE and data.get("undid") in (EventKind.REWOUND, EventKind.REPAIRED):
            return f"undid the {'repair' if data['undid'] == EventKind.REPAIRED else 'rewind'}"
        try:
            sentence = EventKind(self.kind).sentence
        except ValueError:  # a kind of a later version
            sentence = self.kind.replace("_", " ")
        if tools := self._requested:
            return f"{tools}: approval requested"
        if self.kind == EventKind.ASSIGNED and data.get("assignee") == self.actor_name:
            return "took it"
        return sentence.format(tool=data.get("tool") or "a call", assignee=data.get("assignee") or "nobody")

    @property
    def because(self) -> str:
        """The reason, as it follows the description, without what that says already."""
        return self.reason.partition(_SAID_OF_REQUEST)[2].strip() if self._requested else self.reason

    @property
    def _requested(self) -> str:
        """The tools for whose calls a run requests approval; "" where the event is about something else."""
        tools, said, _ = self.reason.partition(_SAID_OF_REQUEST)
        return tools if said and self.kind == EventKind.ASKED else ""

    @property
    def fork_id(self) -> str:
        """The session that this event made of its own; "" for any other event."""
        return str(self._known_data.get("to", "")) if self.kind == EventKind.FORKED else ""

    @property
    def source_id(self) -> str:
        """The session of which this event made its own; "" for any other event."""
        return str(self._known_data.get("from", "")) if self.kind == EventKind.FORKED else ""

    @property
    def _known_data(self) -> dict[str, Any]:
        return self.data if isinstance(self.data, dict) else {}


class EventDetails(TypedDict, total=False):
    """What an event records besides its kind.

    actor: the account of the person who acted; ``actor_name`` also names workers and commands.
    at: when it happened; now, if it is not given.
    """

    actor_name: Required[str]
    actor: Any
    reason: str
    data: dict[str, Any] | None
    at: datetime


def unsaved_event(
    session: Session, kind: EventKind, *, position: int, **details: Unpack[EventDetails]
) -> Event:
    """An event for the session's audit trail. Every event is made by this function.

    Only the keys of the session are read: it need not be up to date.

    :param position: The next of the session's positions. The caller has locked the session's row and counts it up in
        the same transaction.
    """
    return Event(
        session=session,
        branch_id=session.branch_id,
        position=position,
        kind=kind,
        actor=details.get("actor"),
        actor_name=details["actor_name"],
        reason=details.get("reason", ""),
        data=details.get("data") or {},
        created_at=details.get("at") or timezone.now(),
    )


def record_event(
    session: Session, kind: EventKind, *, position: int, **details: Unpack[EventDetails]
) -> Event:
    """Add an event of `unsaved_event` to the session's audit trail."""
    event = unsaved_event(session, kind, position=position, **details)
    event.save(force_insert=True)
    return event


def insert_events(events: Sequence[Event]) -> None:
    """Add the events, each of `unsaved_event`, to the audit trails of their sessions by one statement."""
    Event.objects.bulk_create(events)


def record_next_event(session: Session, kind: EventKind, **details: Unpack[EventDetails]) -> None:
    """Add an event at the session's next position, and tell live pages of it.

    The session is its locked row: the caller saves it, with its new ``position`` and ``change``. Written as
    `sessions_app.models.later` does it.
    """
    session.position += 1
    session.change += 1
    insert_later(unsaved_event(session, kind, position=session.position, **details))


def _describe_repair(data: dict[str, Any]) -> str:
    match data.get("what"):
        case "state":
            *first, last = [key.replace("_", " ") for key in data.get("keys", ())] or [""]
            return f"changed {', '.join(first)} and {last}" if first else f"changed {last}"
        case "value":
            return "wrote its conversation and working memory"
        case "message":
            replaced = f"replaced the result of {data['tool']}" if data.get("tool") else "replaced a message"
            return f"{replaced}, rewound to there and resumed it" if data.get("rewound") else replaced
        case "call":
            return f"answered {data.get('tool')} manually"
        case "step":
            return f"completed step {data.get('step')} manually"
    return EventKind.REPAIRED.sentence
