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
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID, uuid4

import redis
from django.conf import settings
from django.db.models import QuerySet

from agentstate.journals import layout
from sessions_app.access.masking import Mask
from sessions_app.history import log
from sessions_app.history.log import Page, PageRequest, Place, read_pages
from sessions_app.mirror.contents import Mirrored, age, conversation, facts, has_ended, names_of
from sessions_app.models import Session
from sessions_app.models.compiled import compiled

# Sessions that are read and written together.
TOGETHER = 16
_NAMES = ("customer", "title")
_FIELDS = (
    *("last_write", layout.MIRROR, "branch", "change", "position", "open_calls", "step_began_at"),
    layout.CURRENT_STEP,
    *_NAMES,
)
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
# What it returns: the server has a journal of this name; another process has written; it has written this.
_NOT_OURS, _OVERTAKEN, _WRITTEN = -1, 0, 1


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

    @classmethod
    def configured(cls) -> Self:
        """The mirror of this installation, also where it is turned off: so that it can be removed.

        :raises LookupError: if no server is configured.
        """
        if not settings.AGENTSTATE_MIRROR_URL:
            raise LookupError("There is no server for the mirror: set REDIS_URL or AGENTSTATE_MIRROR_URL.")
        return cls(settings.AGENTSTATE_MIRROR_URL, kept_seconds=settings.AGENTSTATE_MIRROR_SECONDS)

    def update(self, session_ids: Iterable[UUID], *, anew: bool = False) -> dict[UUID, redis.RedisError]:
        """Bring the mirror of sessions up to date. The mirror of one that is deleted is removed.

        What it raises may leave any of them as they were.

        :param anew: Write them from the beginning, whatever the mirror has.
        :returns: Those that the server refused, with why.
        :raises redis.ConnectionError, redis.TimeoutError: if the server does not answer.
        """
        refused: dict[UUID, redis.RedisError] = {}
        updates = [_Update(session_id, anew) for session_id in dict.fromkeys(session_ids)]
        while updates:
            updates[:TOGETHER] = self._go_on(updates[:TOGETHER], refused)
        return refused

    def _go_on(self, updates: Sequence["_Update"], refused: dict[UUID, redis.RedisError]) -> list["_Update"]:
        """Write the next page of as many sessions as one page has positions for; returns those that go on."""
        # Before the database: what another process has written meanwhile is never overwritten by what is older.
        stored = self._stored([update.session_id for update in updates])
        sessions = {row.pk: row for row in _sessions(tuple(update.session_id for update in updates))}
        writes: list[_Write] = []
        unfinished, new = [], []
        for update, mirrored in zip(updates, stored, strict=True):
            session = sessions.get(update.session_id)
            if isinstance(mirrored, redis.RedisError):
                refused[update.session_id] = mirrored
            elif session is None:
                self.delete([str(update.session_id)])
            elif not self.is_over(session) and update.lacks_something(session, mirrored):
                write = _Write(update, session, mirrored)
                if writes and sum(each.request.positions for each in (*writes, write)) > log.PAGE:
                    unfinished.append(update)
                else:
                    writes.append(write)
        for write, answer in zip(writes, self._write(writes), strict=True):
            if isinstance(answer, redis.RedisError):
                refused[write.session.pk] = answer
                continue
            if answer == _NOT_OURS:
                continue
            if answer == _WRITTEN:
                write.update.pages, write.update.anew = write.update.pages + 1, False
            if answer == _OVERTAKEN or not write.is_last:
                unfinished.append(write.update)
            elif not write.stored.last_write:
                new.append(write.session.pk)
        self._remove_deleted(new)
        return unfinished

    def _write(self, writes: Sequence["_Write"]) -> list[Any]:
        """Write the next page of each session's log; returns what the script does, or the server's error."""
        if not writes:
            return []
        with self.client.pipeline(transaction=False) as pipeline:
            for write, page in zip(writes, read_pages([write.request for write in writes]), strict=True):
                keys = layout.keys(str(write.session.pk))
                # With its text: a server that has forgotten the script would refuse to run it by its name.
                pipeline.eval(_WRITE, len(keys), *keys, *self._arguments(write, page))
            answers: list[Any] = pipeline.execute(raise_on_error=False)
        return _without_lost_connection(answers)

    def _arguments(self, write: "_Write", page: Page) -> list[Any]:
        session = write.session
        entries = page.entries(Mask.none())
        place = page.behind(entries)
        messages, fields = conversation(write.begin, page, entries)
        fields |= facts(session) | {
            "position": str(place.position),
            "open_calls": layout.dumps(place.open_calls),
            "change": str(session.change if write.is_last else -1),
        }
        # Facts that are empty are left out.
        before = zip(_NAMES, write.stored.names, strict=True)
        fields |= {name: "" for name, text in before if text and name not in fields}
        flat = [text for pair in fields.items() for text in pair]
        told = [text for operation, record in entries for text in (operation, layout.dumps(record))]
        last_write = write.stored.last_write
        numbers = int(write.fresh), self._expiry(session), len(messages), len(flat)
        return [last_write, uuid4().hex, *numbers, *messages, *flat, *told]

    def _remove_deleted(self, session_ids: Sequence[UUID]) -> None:
        """Of sessions that were written for the first time: one may have been deleted meanwhile, or even before."""
        if session_ids:
            present = set(Session.objects.filter(pk__in=session_ids).values_list("pk", flat=True))
            self.delete(str(session_id) for session_id in session_ids if session_id not in present)

    def _stored(self, session_ids: Sequence[UUID]) -> "list[Mirrored | redis.RedisError]":
        """What the mirror has of each session, or why it could not be read."""
        return [
            values if isinstance(values, redis.RedisError) else _mirrored(values, lengths)
            for values, lengths in self._read([str(session_id) for session_id in session_ids])
        ]

    def lacking(self, sessions: Sequence[Session]) -> list[UUID]:
        """Those that the mirror has not, or of which it has lost something, or not as they are at their change."""
        read = self._read([str(session.pk) for session in sessions])
        return [
            session.pk
            for session, (values, lengths) in zip(sessions, read, strict=True)
            if isinstance(values, Exception)
            or values[-2:] != lengths
            or values[_FIELDS.index("change")] != str(session.change)
            or tuple(values[_FIELDS.index(name)] or "" for name in _NAMES) != names_of(session)
        ]

    def _read(self, session_ids: Sequence[str]) -> list[tuple[Any, list[str]]]:
        """Of each session the fields of the HASH, or why they are not read, and the lengths of STREAM and LIST."""
        with self.client.pipeline(transaction=True) as reads:
            for session_id in session_ids:
                reads.hmget(layout.key("state", session_id), (*_FIELDS, *_LENGTHS))
                reads.xlen(layout.key("log", session_id))
                reads.llen(layout.key("messages", session_id))
            answers = reads.execute(raise_on_error=False)
        _without_lost_connection(answers)
        # A key of another kind has no length, which is not that of the last write.
        return [
            (values, [str(entries), str(messages)])
            for values, entries, messages in zip(answers[::3], answers[1::3], answers[2::3], strict=True)
        ]

    def _expiry(self, session: Session) -> int:
        """The milliseconds that are left to a session that has ended; 0 for one that has not."""
        if not has_ended(session):
            return 0
        return max(1, layout.milliseconds(self._kept_seconds - age(session)))

    def is_over(self, session: Session) -> bool:
        """Whether the time has passed for which the mirror keeps it."""
        return has_ended(session) and age(session) >= self._kept_seconds

    def delete(self, session_ids: Iterable[str]) -> None:
        keys = [key for session_id in session_ids for key in layout.keys(session_id)]
        if keys:
            self.client.unlink(*keys)


@dataclass(slots=True)
class _Update:
    """A session that is brought up to date.

    :param anew: It is to be written from the beginning.
    :param pages: That were written so far.
    """

    session_id: UUID
    anew: bool
    pages: int = 0

    def lacks_something(self, session: Session, stored: Mirrored) -> bool:
        if session.branch is None:
            return False
        if self.pages and not (stored.last_write and stored.whole):
            return False  # the server drops what it is given, as one does that is full
        changed = stored.change < session.change or stored.names != names_of(session)
        return self.anew or not stored.continues(session) or changed


class _Write:
    """The next page of a session that is written."""

    def __init__(self, update: _Update, session: Session, stored: Mirrored) -> None:
        self.update, self.session, self.stored = update, session, stored
        self.fresh = update.anew or not stored.continues(session)
        self.begin = Mirrored() if self.fresh else stored
        self.request = PageRequest(session, self.begin.place, self.begin.step_began_at)
        self.is_last = self.request.upto >= session.position


@compiled
def _sessions(session_ids: tuple[UUID, ...]) -> QuerySet[Session]:
    return Session.objects.select_related("branch").filter(pk__in=session_ids).order_by()


def _mirrored(values: Sequence[Any], lengths: Sequence[str]) -> Mirrored:
    stored = dict(zip((*_FIELDS, *_LENGTHS), values, strict=True))
    if not stored["last_write"] or not stored[layout.MIRROR]:
        return Mirrored()
    open_calls = {int(position): state for position, state in json.loads(stored["open_calls"]).items()}
    return Mirrored(
        last_write=stored["last_write"],
        whole=list(values[-2:]) == lengths,
        branch=int(stored["branch"]),
        change=int(stored["change"]),
        place=Place(int(stored["position"]), open_calls),
        step_began_at=int(stored["step_began_at"]),
        step=int(stored[layout.CURRENT_STEP] or 0),
        names=tuple(stored[name] or "" for name in _NAMES),
    )


def _without_lost_connection(answers: list[Any]) -> list[Any]:
    """:raises redis.ConnectionError: if it is one of the answers."""
    for answer in answers:
        if isinstance(answer, redis.ConnectionError):
            raise answer
    return answers
