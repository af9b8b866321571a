"""`manage.py agent tail`: follows the log of a session, from the stream of the mirror or else from the database.

Both tell the same entries. The stream only makes it quicker: what it lacks is read from the database, and whether the
session is at rest is asked of the database alone.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

from django.conf import settings

from sessions_app.access.masking import Mask
from sessions_app.history.log import Entry, Place, read_log
from sessions_app.models import Session, Status
from sessions_app.wording import as_text, shorten

Json = Any
# How often the database is asked for what is new, and for the session's status.
POLL_SECONDS = 0.5
# Longer texts are cut off; `--json` has all of them.
LONGEST = 300


def follow(session_id: UUID, *, last: int, until_rest: bool) -> Iterator[Entry]:
    """The last entries of the log, and then each new one.

    :param until_rest: End when no worker runs the session and none is to run it, after the last entry.
    :raises Session.DoesNotExist: when the session is deleted.
    """
    with closing(_open_stream(session_id)) as stream:
        log = _DatabaseLog(session_id)
        yield from deque(log.new_entries(), maxlen=last)
        while True:
            if until_rest and log.at_rest():
                yield from log.new_entries()
                return
            entries = stream.new_entries()
            if entries is None:
                fresh = list(log.new_entries())
                yield from fresh
                if not fresh:
                    time.sleep(POLL_SECONDS)
                continue
            for entry in entries:
                if log.place.precedes(entry):
                    log.place = log.place.after(entry)
                    yield entry


class _DatabaseLog:
    """What was read so far, by position; reads the rest from the database."""

    def __init__(self, session_id: UUID) -> None:
        self._session_id = session_id
        self.place = Place()

    def new_entries(self) -> Iterator[Entry]:
        while True:
            session = self._session()
            entries, self.place = read_log(session, self.place, mask=Mask.none())
            yield from entries
            if self.place.position >= session.position:
                return

    def at_rest(self) -> bool:
        return self._session().status not in (Status.QUEUED, Status.RUNNING)

    def _session(self) -> Session:
        return Session.objects.select_related("branch").get(pk=self._session_id)


class _NoStream:
    def new_entries(self) -> list[Entry] | None:
        return None

    def close(self) -> None: ...


class _Stream(_NoStream):
    """The stream of the session from now on. `new_entries` is None where the database has to be asked instead."""

    def __init__(self, client: Any, key: str) -> None:
        import redis

        self._client, self._key, self._failed = client, key, False
        self._error: type[Exception] = redis.RedisError
        last = client.xrevrange(key, count=1)
        self._after = last[0][0] if last else "0"

    def new_entries(self) -> list[Entry] | None:
        from agentstate.journals import layout

        if self._failed:
            return None
        try:
            read = self._client.xread({self._key: self._after}, block=round(POLL_SECONDS * 1000))
        except self._error:
            self._failed = True
            return None
        if not read:
            return None
        rows = layout.entries(read)
        self._after = rows[-1][0]
        return [(fields["op"], json.loads(fields["record"])) for _, fields in rows]

    def close(self) -> None:
        self._client.close()


def _open_stream(session_id: UUID) -> _NoStream:
    """The stream, if there is a server that answers."""
    if not settings.AGENTSTATE_MIRROR:
        return _NoStream()
    import redis

    from agentstate.journals import layout
    from sessions_app.mirror.sessions import MirrorSessions

    client = MirrorSessions.configured().client
    try:
        return _Stream(client, layout.key("log", str(session_id)))
    except redis.RedisError:
        client.close()
        return _NoStream()


def line(entry: Entry, one_line: Callable[[Json], str]) -> str:
    """The entry on one line: the time (UTC), what it is, and what it says."""
    operation, record = entry
    kind, told = _DESCRIPTIONS[operation](record)
    time_of_day = record["at"][11:19]
    return f"{time_of_day}  {kind:<10}  {shorten(one_line(told), LONGEST)}".rstrip()


def _message(record: Json) -> tuple[str, str]:
    return record["role"], record["text"] or ""


def _reply(record: Json) -> tuple[str, str]:
    name = " ".join(filter(None, (record["model"], "" if record["name"] == "agent" else record["name"])))
    if record["error"]:
        return "model", f"{name} failed: {record['error']}"
    if record["cached"]:
        return "model", f"{name} answered from the semantic cache"
    return "model", f"{name} {record['prompt_tokens']} + {record['completion_tokens']} tokens"


def _call(record: Json) -> tuple[str, str]:
    arguments = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in record["arguments"].items()
    )
    outcome = record["error"]
    if record["status"] == "done":
        outcome = as_text(record["result"])
    told = f"{record['tool']}({arguments}) {record['status']}"
    return "call", f"{told}: {outcome}" if outcome else told


def _checkpoint(record: Json) -> tuple[str, str]:
    return "checkpoint", f"{record['id']}, {record['kind']}, step {record['step']}, {record['phase']}"


def _event(record: Json) -> tuple[str, str]:
    actor = f" by {record['actor']}" if record["actor"] else ""
    return "event", f"{record['kind']}{actor}" + (f": {record['reason']}" if record["reason"] else "")


_DESCRIPTIONS: dict[str, Callable[[Json], tuple[str, str]]] = {
    "message": _message,
    "reply": _reply,
    "call": _call,
    "checkpoint": _checkpoint,
    "event": _event,
}
