"""What the mirror has of a session, and what is written of it: the fields of the HASH and the messages of the LIST."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from django.utils import timezone

from agentstate.journals import layout
from agentstate.names import STEP_END_KINDS, CheckpointKind
from sessions_app.history.log import Entry, Page, Place
from sessions_app.history.message_rows import AnsweredCall, unpack
from sessions_app.models import Phase, Session, Status


@dataclass(frozen=True, slots=True)
class Mirrored:
    """What the mirror has of a session; `last_write` is "" where it has nothing.

    :param whole: Nothing is lost of what was written.
    :param step: The number of the last step that has ended.
    :param names: As `names_of`.
    """

    last_write: str = ""
    whole: bool = True
    branch: int = 0
    change: int = -1
    place: Place = field(default_factory=Place)
    step_began_at: int = 0
    step: int = 0
    names: tuple[str, ...] = ("", "")

    def continues(self, session: Session) -> bool:
        """Whether what has happened since can be added to it."""
        return self.whole and self.branch == session.current_branch.number


def names_of(session: Session) -> tuple[str, ...]:
    """What may be changed without a commit of the session: in `manage.py shell`."""
    return session.customer, session.title


def has_ended(session: Session) -> bool:
    """Whether the time has begun for which the mirror keeps it."""
    return _status(session) in layout.ENDED


def _status(session: Session) -> str:
    if (session.status, session.phase) == (Status.IDLE, Phase.IDLE):
        return "idle"  # nothing was asked yet
    return layout.status_at_rest(session.status, failed=session.phase == Phase.ERROR)


def age(session: Session) -> float:
    return (timezone.now() - session.updated_at).total_seconds()


def facts(session: Session) -> dict[str, str]:
    """The fields of the HASH that are facts of the session's row."""
    labels = {"agent": session.agent, "customer": session.customer, "title": session.title}
    return {
        layout.MIRROR: "desk",
        "branch": str(session.current_branch.number),
        "status": _status(session),
        "updated_at": session.updated_at.isoformat(),
        **{name: text for name, text in labels.items() if text},
    }


def conversation(begin: Mirrored, page: Page, entries: Sequence[Entry]) -> tuple[list[str], dict[str, str]]:
    """The messages behind the place where the page begins, and what the HASH says of the steps that ended in it.

    :param page: With the messages of the step that the place is in.
    """
    boundary, step = begin.step_began_at, begin.step
    calls = {
        call.position: AnsweredCall(call.position, call.call_id, call.tool, call.arguments, call.result)
        for call in (*page.earlier_calls, *page.calls)
    }
    bodies = [(row.position, unpack(row, calls)) for row in page.messages]
    fields: dict[str, str] = {}
    for operation, record in entries:
        if operation != "checkpoint":
            continue
        fields |= layout.current_step(record["step"])
        if (
            record["kind"] in STEP_END_KINDS and record["step"] > step
        ):  # else it repeats the last one, as a repair does
            of_step = [body for position, body in bodies if boundary < position <= record["position"]]
            fields |= layout.step_fields(record["step"], of_step)
        step = record["step"]
        if record["kind"] != CheckpointKind.PREPARED:
            boundary = record["position"]
    messages = [layout.dumps(body) for position, body in bodies if position > begin.place.position]
    return messages, {**fields, "step_began_at": str(boundary)}
