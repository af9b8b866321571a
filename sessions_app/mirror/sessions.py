"""Sessions on the server of the mirror: each is brought up to date from the database, by whichever process comes first.

An update reads how far the mirror is, then from the database what has happened since, and writes both by one script,
which changes nothing if another process has written meanwhile. So updates may be lost, repeated or made by many
processes at once: the mirror is always a state in which the session was, or a page of its history on the way there. A
session that was rewound is written anew, from its current branch, and so is one of which the server has lost something:
its STREAM or its LIST is not as long as the last write has left it.

Besides the fields of the layout the HASH has

    mirror, branch, position, change    which session it is of, and how far: its branch, position and change
    open_calls, step_began_at           the calls that had not ended, and the last boundary between steps
    log_length, messages_length         the lengths of the STREAM and of the LIST
    last_write                          the name of the last write, by which the script knows it
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID, uuid4

import redis
from django.conf import settings
from django.utils import timezone

from agentstate.journals import layout
from agentstate.names import CheckpointKind
from sessions_app.access.masking import Mask
from sessions_app.history.log import Entry, Place, read_log
from sessions_app.history.message_rows import answered_calls, unpack
from sessions_app.models import Message, Phase, Session, Status

_FIELDS = ("last_write", layout.MIRROR, "branch", "change", "position", "open_calls", "step_began_at")
_LENGTHS = ("log_length", "messages_length")

# Keys: state, messages, log. Arguments: the write that this one follows ("" for none), its own name, "1" to write the
# session anew, the milliseconds after which it expires (0 for never), the numbers of messages and of fields with their
# values, these, and each entry's operation and record.
_WRITE = """
local now = redis.call('HMGET', KEYS[1], 'last_write', 'mirror')
if not now[2] and redis.call('EXISTS', KEYS[1]) == 1 then return -1 end
if (now[1] or '') ~= ARGV[1] then return 0 end
local function lengths() return {redis.call('XLEN', KEYS[3]), redis.call('LLEN', KEYS[2])} end
if ARGV[3] ~= '1' then
  local written, present = redis.call('HMGET', KEYS[1], 'log_length', 'messages_length'), lengths()
  if tonumber(written[1]) ~= present[1] or tonumber(written[2]) ~= present[2] then return 0 end
end
if ARGV[3] == '1' then redis.call('DEL', unpack(KEYS)) end
local fields = 7 + tonumber(ARGV[5])
local entries = fields + tonumber(ARGV[6])
for i = 7, fields - 1 do redis.call('RPUSH', KEYS[2], ARGV[i]) end
for i = fields, entries - 1, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
for i = entries, #ARGV, 2 do redis.call('XADD', KEYS[3], '*', 'op', ARGV[i], 'record', ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'last_write', ARGV[2], 'log_length', lengths()[1])
redis.call('HSET', KEYS[1], 'messages_length', lengths()[2])
for _, key in ipairs(KEYS) do
  if tonumber(ARGV[4]) > 0 then redis.call('PEXPIRE', key, ARGV[4]) else redis.call('PERSIST', key) end
end
return 1
"""


@dataclass(frozen=True, slots=True)
class _Mirrored:
    """What the mirror has of a session; `last_write` is "" where it has nothing.

    :param whole: Nothing is lost of what was written.
    """

    last_write: str = ""
    whole: bool = True
    branch: int = 0
    change: int = -1
    place: Place = field(default_factory=Place)
    step_began_at: int = 0


class MirrorSessions:
    """The mirror on one server.

    :param kept_seconds: How long a session that has ended is kept.
    """

    def __init__(self, url: str, *, kept_seconds: float) -> None:
        # A server that does not answer holds up the mirror alone, but the commands of a person should say so soon.
        self.client: Any = redis.Redis.from_url(
            url, socket_connect_timeout=2, socket_timeout=5, decode_responses=True
        )
        self._kept_seconds = kept_seconds
        self._script = self.client.register_script(_WRITE)

    @classmethod
    def configured(cls) -> Self:
        """The mirror of this installation, also where it is turned off: so that it can be removed.

        :raises LookupError: if no server is configured.
        """
        if not settings.AGENTSTATE_MIRROR_URL:
            raise LookupError("There is no server for the mirror: set REDIS_URL or AGENTSTATE_MIRROR_URL.")
        return cls(settings.AGENTSTATE_MIRROR_URL, kept_seconds=settings.AGENTSTATE_MIRROR_SECONDS)

    def update(self, session_id: UUID, *, anew: bool = False) -> None:
        """Bring the mirror of a session up to date. The mirror of one that is deleted is removed.

        :param anew: Write it from the beginning, whatever the mirror has.
        :raises redis.RedisError: if the server does not answer.
        """
        pages = 0
        while True:
            # Before the database: what another process has written meanwhile is never overwritten by what is older.
            stored = self._stored(session_id)
            session = Session.objects.select_related("branch").filter(pk=session_id).first()
            if session is None:
                self.delete([str(session_id)])
                return
            if session.branch is None or self.is_over(session):
                return
            same = stored.whole and stored.branch == session.branch.number
            if not anew and same and stored.change >= session.change:
                return
            if pages and not stored.last_write:
                return  # the server drops what it is given, as one does that is full
            fresh = anew or not same
            written, complete = self._write(session, stored, fresh=fresh)
            if written < 0:
                return  # the server has a journal of this name
            if written:
                pages, anew = pages + 1, False
            if written and complete:
                if not stored.last_write and not Session.objects.filter(pk=session_id).exists():
                    self.delete(
                        [str(session_id)]
                    )  # it was deleted meanwhile, and perhaps before this was written
                return

    def _write(self, session: Session, stored: _Mirrored, *, fresh: bool) -> tuple[int, bool]:
        """Write the next page of the session's log; returns what the script does, and whether it is the last page."""
        begin = _Mirrored() if fresh else stored
        entries, place = read_log(session, begin.place, mask=Mask.none())
        complete = place.position >= session.position
        messages, fields = _conversation(session, begin, entries, place.position)
        fields |= _facts(session) | {
            "position": str(place.position),
            "open_calls": layout.dumps(place.open_calls),
            "change": str(session.change if complete else -1),
        }
        flat = [text for pair in fields.items() for text in pair]
        arguments: list[Any] = [
            stored.last_write,
            uuid4().hex,
            int(fresh),
            self._expiry(session),
            len(messages),
            len(flat),
        ]
        log = [text for operation, record in entries for text in (operation, layout.dumps(record))]
        return int(self._script(layout.keys(str(session.pk)), [*arguments, *messages, *flat, *log])), complete

    def _stored(self, session_id: UUID) -> _Mirrored:
        [(values, lengths)] = self._read([str(session_id)])
        if isinstance(values, redis.RedisError):
            raise values
        stored = dict(zip((*_FIELDS, *_LENGTHS), values, strict=True))
        if not stored["last_write"] or not stored[layout.MIRROR]:
            return _Mirrored()
        open_calls = {int(position): state for position, state in json.loads(stored["open_calls"]).items()}
        return _Mirrored(
            last_write=stored["last_write"],
            whole=values[-2:] == lengths,
            branch=int(stored["branch"]),
            change=int(stored["change"]),
            place=Place(int(stored["position"]), open_calls),
            step_began_at=int(stored["step_began_at"]),
        )

    def changes(self, session_ids: Sequence[UUID]) -> list[str | None]:
        """The change that each session is at; None where the mirror has nothing of it, or has lost something."""
        return [
            None
            if isinstance(values, Exception) or values[-2:] != lengths
            else values[_FIELDS.index("change")]
            for values, lengths in self._read([str(session_id) for session_id in session_ids])
        ]

    def _read(self, session_ids: Sequence[str]) -> list[tuple[Any, list[str]]]:
        """Of each session the fields of the HASH, or why they are not read, and the lengths of STREAM and LIST."""
        with self.client.pipeline(transaction=True) as reads:
            for session_id in session_ids:
                reads.hmget(layout.key("state", session_id), (*_FIELDS, *_LENGTHS))
                reads.xlen(layout.key("log", session_id))
                reads.llen(layout.key("messages", session_id))
            answers = reads.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, redis.ConnectionError):
                raise answer
        # A key of another kind has no length, which is not that of the last write.
        return [
            (values, [str(entries), str(messages)])
            for values, entries, messages in zip(answers[::3], answers[1::3], answers[2::3], strict=True)
        ]

    def _expiry(self, session: Session) -> int:
        """The milliseconds that are left to a session that has ended; 0 for one that has not."""
        if not has_ended(session):
            return 0
        return max(1, layout.milliseconds(self._kept_seconds - _age(session)))

    def is_over(self, session: Session) -> bool:
        """Whether the time has passed for which the mirror keeps it."""
        return has_ended(session) and _age(session) >= self._kept_seconds

    def delete(self, session_ids: Iterable[str]) -> None:
        keys = [key for session_id in session_ids for key in layout.keys(session_id)]
        if keys:
            self.client.unlink(*keys)


def has_ended(session: Session) -> bool:
    """Whether the time has begun for which the mirror keeps it."""
    return _status(session) in layout.ENDED


def _status(session: Session) -> str:
    if (session.status, session.phase) == (Status.IDLE, Phase.IDLE):
        return "idle"  # nothing was asked yet
    return layout.status_at_rest(session.status, failed=session.phase == Phase.ERROR)


def _age(session: Session) -> float:
    return (timezone.now() - session.updated_at).total_seconds()


def _facts(session: Session) -> dict[str, str]:
    """The fields of the HASH that are facts of the session's row."""
    labels = {"agent": session.agent, "customer": session.customer, "title": session.title}
    return {
        layout.MIRROR: "desk",
        "branch": str(session.current_branch.number),
        "status": _status(session),
        "updated_at": session.updated_at.isoformat(),
        **{name: text for name, text in labels.items() if text},
    }


def _conversation(
    session: Session, begin: _Mirrored, entries: Sequence[Entry], upto: int
) -> tuple[list[str], dict[str, str]]:
    """The messages behind the place where the mirror begins, and what the HASH says of the steps that ended there."""
    branch = session.current_branch
    boundary = begin.step_began_at
    rows = list(Message.objects.visible_on(branch, after=min(boundary, begin.place.position), upto=upto))
    calls = answered_calls(branch, rows)
    bodies = [(row.position, unpack(row, calls)) for row in rows]
    fields: dict[str, str] = {}
    for operation, record in entries:
        if operation != "checkpoint":
            continue
        fields |= layout.current_step(record["step"])
        if record["kind"] in (CheckpointKind.STEP, CheckpointKind.END):
            step = [body for position, body in bodies if boundary < position <= record["position"]]
            fields |= layout.step_fields(record["step"], step)
        if record["kind"] != CheckpointKind.PREPARED:
            boundary = record["position"]
    messages = [layout.dumps(body) for position, body in bodies if position > begin.place.position]
    return messages, {**fields, "step_began_at": str(boundary)}
