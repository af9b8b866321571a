"""A journal on Valkey or Redis, for scripts and services on several machines. Needs the extra `valkey`.

    sessions = ValkeySessions("redis://localhost")
    shop = DurableAgent(agent, sessions.session("anna", title="Order 1042"))

Of each session there are

    STREAM agent:log:{id}       every record of `agentstate.journals.store`, in order: the truth
    HASH   agent:state:{id}     the fields of `agentstate.journals.layout`; and what refuses a second writer: epoch,
                                records, last_write
    LIST   agent:messages:{id}  the messages of the conversation, in order

A write is one script, which changes all three or, if the session has another writer by now, nothing. Nor does it
where the server has lost the STREAM, a part of it, or the HASH. A session that has ended expires after the `ttl`; one
that is unfinished does not.
"""

import math
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Self, cast
from uuid import uuid4

from agentstate import durations
from agentstate.domain.state import check_session_id
from agentstate.durable.port import JournalUnavailable, LeaseLost
from agentstate.durable.records import Snapshot
from agentstate.journals import derived, layout
from agentstate.journals.memory import MemoryJournal
from agentstate.journals.store import Record, Store, begin_epoch
from agentstate.names import STEP_END_KINDS, CheckpointKind

try:
    import redis
except ImportError as error:
    raise ImportError(
        "A journal on Valkey needs the extra 'valkey': pip install 'agentstate[valkey]'."
    ) from error

from agentstate.journals.server import answering, failed, warn_unless_durable
from agentstate.journals.tool_cache import RedisToolCache
from agentstate.journals.valkey_write import INCOMPLETE, WRITE, WRITTEN

PAGE = 1000
BLOCKING_SECONDS = 5.0
# How old the last fenced write may be when a tool is entered, without asking who is the writer by now.
STALE_SECONDS = 1.0


class ValkeySessions:
    """The sessions on one server.

    :param server: Its URL, or a client of the package redis.
    :param ttl: Seconds for which a session that has ended is kept; None for ever.
    :raises ValueError: for a `ttl` that is not above 0, or longer than ten years.
    :raises JournalServerError: if the server cannot be reached; and whatever opens or reads a session later does.

    Warns where the server may lose what it has confirmed: a journal needs `appendonly yes` and `appendfsync always`.
    """

    def __init__(self, server: "str | redis.Redis", *, ttl: float | None = layout.KEPT_SECONDS) -> None:
        if ttl is not None and not (_is_number(ttl) and 0.001 <= ttl <= durations.LONGEST_SECONDS):
            raise ValueError(
                f"The ttl is not {ttl!r}: it is for how long a session that has ended is kept, a number of seconds "
                "above 0 and at most ten years (315,360,000), or None to keep it for ever."
            )
        if isinstance(server, str):
            server = redis.Redis.from_url(server, socket_connect_timeout=5, socket_timeout=30)
        self.client = server
        self.ttl = ttl
        self.cache = RedisToolCache(server)
        warn_unless_durable(server)

    def session(
        self, session_id: str, *, agent: str = "", customer: str = "", title: str = ""
    ) -> "ValkeySession":
        """Where one session is kept, for a `DurableAgent`. The texts are shown in its HASH.

        :raises ValueError: for what is no session id. Customers whose id is missing would share one session.
        """
        labels = {"agent": agent, "customer": customer, "title": title}
        return ValkeySession(self, session_id, {name: text for name, text in labels.items() if text})

    def open(self, session_id: str, *, say: str = "", inputs: Record | None = None) -> "ValkeyJournal":
        """The session's journal at its next epoch; a new session if there is none."""
        return self.session(session_id).begin(say, inputs)

    def load(self, session_id: str) -> Store:
        """The session as it is; another process may be running it.

        :raises ValueError: for the mirror of a desk's session.
        """
        return _load(self, session_id, {})

    def follow(
        self, session_id: str, *, after: str = "0", timeout: float | None = None
    ) -> Iterator[tuple[str, Record]]:
        """Each record with its id in the stream, from the first one after `after`, and each new one when it is written.

        :param timeout: Ends when nothing was written for so many seconds; None waits for ever.
        """
        log = layout.key("log", session_id)
        read_last = time.monotonic()
        while (waited := time.monotonic() - read_last) < (math.inf if timeout is None else timeout):
            wait = BLOCKING_SECONDS if timeout is None else min(BLOCKING_SECONDS, timeout - waited)
            for entry_id, fields in self._read_log({log: after}, max(1, layout.milliseconds(wait))):
                after = layout.text(entry_id)
                yield after, layout.record_of(fields)
                read_last = time.monotonic()

    def _read_log(self, logs: dict[Any, Any], milliseconds: int) -> list[Any]:
        """The new entries, as soon as there are some. A client whose own time limit is shorter has none until then."""
        with answering(self.client):
            try:
                return layout.entries(self.client.xread(logs, PAGE, milliseconds))
            except redis.TimeoutError:
                self.client.ping()  # a server that does not answer at all is an error
                return []

    def mark_complete(self, session_id: str) -> None:
        """Let a session that will not continue expire, although it is unfinished."""
        state = layout.key("state", session_id)
        with answering(self.client), self.client.pipeline(transaction=True) as both:
            if self.client.exists(state):
                both.hset(state, "status", layout.COMPLETE)
            for key in layout.keys(session_id):
                if self.ttl is not None:
                    both.pexpire(key, layout.milliseconds(self.ttl))
            both.execute()


class ValkeySession:
    """Where one session is kept: made by `ValkeySessions.session`."""

    def __init__(self, sessions: ValkeySessions, session_id: str, labels: Mapping[str, str]) -> None:
        self.session_id = check_session_id(session_id)
        self.cache = sessions.cache
        self._sessions = sessions
        self._labels = dict(labels)

    @property
    def identity(self) -> Hashable:
        return "valkey", self.session_id

    def begin(self, say: str = "", inputs: Record | None = None) -> "ValkeyJournal":
        while True:
            try:
                store = _load(self._sessions, self.session_id, self._labels)
                return ValkeyJournal(store, begin_epoch(store, say, inputs))
            except LeaseLost:  # another process began an epoch between the two
                _check_complete(self._sessions, self.session_id)

    @contextmanager
    def open(self) -> Iterator[MemoryJournal]:
        yield self.begin()

    def read(self) -> Store:
        return self._sessions.load(self.session_id)


class ValkeyStore(Store):
    """A session as its stream says; each write is fenced by the server."""

    def __init__(self, sessions: ValkeySessions, session_id: str, labels: Mapping[str, str]) -> None:
        super().__init__(session_id)
        self.sessions = sessions
        self.labels = dict(labels)
        self.records = 0
        self.written_at = -math.inf
        self.step_messages: list[Record] = []
        self.listed: list[int] = []  # the positions of the messages in the LIST
        self._script = sessions.client.register_script(WRITE)

    def write(self, record: Record) -> None:
        """:raises LeaseLost: if the session has another writer by now, or has lost a part; nothing was written.
        :raises JournalUnavailable: if the server does not answer. Whether it has written the record is not known.
        """
        bodies = [message["body"] for message in derived.messages(record)]
        goes_back, removed = "back_to" in record, []
        if goes_back:
            listed = derived.listed_after_going_back(self, self.listed, record)
            bodies = [*(self.messages[position] for position in listed), *bodies]
            removed = derived.discarded_steps(self, record)
        messages = [layout.dumps(body) for body in bodies]
        fields = self._fields(record)
        line = layout.dumps(record)
        arguments = [
            self.epoch,
            self.records,
            uuid4().hex,
            line,
            record["op"],
            self._expiry(record),
            int(goes_back),
            len(messages),
            len(removed),
        ]
        try:
            # A client that sends a write again, since its answer was lost, is told by the name of the write.
            written = self._script(
                layout.keys(self.session_id),
                [*arguments, *messages, *removed, *[text for pair in fields.items() for text in pair]],
            )
        except redis.RedisError as error:
            self.epoch += 1  # a run that still uses this journal stops here
            raise JournalUnavailable(failed(self.sessions.client, error)) from error
        if written != WRITTEN:
            self.epoch += 1
            raise self._is_incomplete() if written == INCOMPLETE else self._is_lost()
        self._apply(record)
        self.records += 1
        self.written_at = time.monotonic()

    def check_epoch(self) -> None:
        """
        :raises LeaseLost: if the session has another writer by now, or the server has lost its HASH.
        :raises JournalUnavailable: if the server does not answer.
        """
        try:
            epoch = self.sessions.client.hget(layout.key("state", self.session_id), "epoch")
        except redis.RedisError as error:
            raise JournalUnavailable(failed(self.sessions.client, error)) from error
        if epoch is None:
            raise self._is_incomplete()
        if int(cast(Any, epoch)) != self.epoch:
            raise self._is_lost()

    def _is_lost(self) -> LeaseLost:
        return LeaseLost(
            f"The session {self.session_id} has another writer now: it was opened again, usually in another process, "
            "and continues there. Let only one process at a time run a session."
        )

    def _is_incomplete(self) -> LeaseLost:
        return LeaseLost(
            f"The server has lost a part of the session {self.session_id} while it was run. Nothing is written "
            "to what is left of it. Restore its log and its state, or begin another session."
        )

    def _apply(self, record: Record) -> None:
        if "back_to" in record:
            self.listed = derived.listed_after_going_back(self, self.listed, record)
        super()._apply(record)
        self.listed += [message["position"] for message in derived.own_messages(record)]
        if record["op"] == "checkpoint" and record["kind"] != CheckpointKind.PREPARED:
            self.step_messages = []
        elif record["op"] == "reply":
            self.step_messages += _bodies(record)

    def _fields(self, record: Record) -> dict[str, str]:
        """What the record changes in the HASH."""
        fields = {"updated_at": datetime.now(UTC).isoformat(), **self.labels}
        step_messages = self.step_messages
        for part in (record.get("before"), record):
            if not part:
                continue
            if part["op"] == "open":
                fields["epoch"] = str(part["epoch"])
            elif part["op"] == "checkpoint":
                fields |= layout.current_step(part["step"])
                if part["kind"] in STEP_END_KINDS and "back_to" not in part:
                    fields |= layout.step_fields(part["step"], [*step_messages, *_bodies(part)])
                    step_messages = []
            if status := derived.status(part):
                fields["status"] = status
        if self.records == 0:
            fields["status"] = "idle"
        return fields

    def _expiry(self, record: Record) -> int:
        """Milliseconds, where this record ends the session's only unfinished turn; else 0."""
        ends = derived.status(record) in layout.ENDED or (record["op"] == "open" and self._is_complete())
        return layout.milliseconds(self.sessions.ttl) if ends and self.sessions.ttl is not None else 0

    def _is_complete(self) -> bool:
        return bool(self.turns.all) and self.turns.unfinished is None


class ValkeyJournal(MemoryJournal):
    """A session's journal at one epoch: made by `ValkeySessions.open`."""

    store: ValkeyStore

    def next_epoch(self) -> Self:
        """The session's journal at its next epoch, with what other processes have written meanwhile."""
        session = ValkeySession(self.store.sessions, self.session_id, self.store.labels)
        return cast(Self, session.begin())

    def load(self) -> Snapshot:
        self.store.check_epoch()
        return super().load()

    def check_claim(self) -> None:
        super().check_claim()
        # The commit of the call's start was fenced itself: only a process that stood still since then has to ask.
        if time.monotonic() - self.store.written_at > STALE_SECONDS:
            self.store.check_epoch()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _load(sessions: ValkeySessions, session_id: str, labels: Mapping[str, str]) -> ValkeyStore:
    with answering(sessions.client):
        return _read_all(sessions, session_id, labels)


def _read_all(sessions: ValkeySessions, session_id: str, labels: Mapping[str, str]) -> ValkeyStore:
    _check_complete(sessions, session_id)
    store = ValkeyStore(sessions, session_id, labels)
    after = "-"
    while page := cast(Any, sessions.client.xrange(layout.key("log", session_id), after, "+", PAGE)):
        for entry_id, fields in page:
            store._apply(layout.record_of(fields))
            store.records += 1
            after = f"({layout.text(entry_id)}"
    store.epoch = int(cast(Any, sessions.client.hget(layout.key("state", session_id), "epoch")) or 0)
    return store


def _check_complete(sessions: ValkeySessions, session_id: str) -> None:
    """
    :raises ValueError: for the mirror of a desk's session; and for a session whose log or HASH alone was deleted,
        trimmed or evicted: its records could not be read, and no write fits it.
    """
    state = layout.key("state", session_id)
    with answering(sessions.client), sessions.client.pipeline(transaction=True) as reads:
        reads.hmget(state, layout.MIRROR, "records")
        reads.xlen(layout.key("log", session_id))
        (is_mirror, records), in_log = reads.execute()
    if is_mirror:
        raise ValueError(f"The session {session_id} belongs to a desk, and this server has only its mirror.")
    counted = int(records or 0)
    if in_log != counted:
        raise ValueError(
            f"The server has lost a part of the session {session_id}: its log has {in_log} records, its state counts "
            f"{counted}. Restore both, or begin another session."
        )


def _bodies(record: Record) -> list[Record]:
    return [message["body"] for message in derived.own_messages(record)]
