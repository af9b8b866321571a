"""What a session under test goes through, moment by moment, and at which of them its worker is struck.

Each session has a log of its own in the folder that AGENTSTATE_TEST_CHAOS names: one JSON line per moment, in order,
appended at once, so that it outlives the process. The moments are

    claimed                 a worker has claimed the session
    inside METHOD           a journal's write is about to be committed: its transaction is open
    before METHOD           PostgreSQL: the statement that is the whole of the commit is about to be sent
    after METHOD            it is committed
    ask NAME                a model was asked; the answer has not arrived
    enter TOOL              a tool was entered; nothing has happened yet
    effect TOOL             it has had its effect, which is not recorded yet

A session whose title says "die at 7, 19" kills its worker process at its seventh and its nineteenth moment with
SIGKILL. One whose title says "stop at 7" stops the process with SIGSTOP, once, at the seventh moment or the first after
it at which no transaction is open; "stop inside 7", at which one is. Since the line is written first, and lines are
counted over all processes, each happens once.
"""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any
from uuid import UUID

VARIABLE = "AGENTSTATE_TEST_CHAOS"
WRITES = ("checkpoint", "reply", "plan", "start_call", "finish_call", "end_run")

_lock = threading.Lock()
# Held while a transaction is open, so that no other thread has one when the process is stopped.
_in_transaction = threading.RLock()
_titles: dict[str, str] = {}


def moment(session: str, what: str, name: str, **data: Any) -> None:
    """Note that the session has got here; kill or stop the process, if the session's title says so."""
    with _lock:
        path = Path(os.environ[VARIABLE]) / f"{session}.log"
        before = path.read_bytes() if path.exists() else b""
        number = before.count(b"\n") + 1
        stopped = b'"struck"' in before
        signum = _signal_at(number, _titles.get(session, ""), inside=what == "inside", stopped=stopped)
        line = {"n": number, "what": what, "name": name, "at": time.time(), "pid": os.getpid(), **data}
        if signum is not None:
            line["struck"] = signum.name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.close(descriptor)
        if signum is signal.SIGKILL:
            os.kill(os.getpid(), signum)
    if signum is signal.SIGSTOP:
        with _in_transaction:
            # To this thread, so that it does nothing more; the whole process stops.
            signal.pthread_kill(threading.get_ident(), signum)


def _signal_at(number: int, title: str, *, inside: bool, stopped: bool) -> signal.Signals | None:
    if match := re.search(r"die at ([\d, ]+)", title):
        return signal.SIGKILL if str(number) in match[1].split(", ") else None
    if match := re.search(r"stop (at|inside) (\d+)", title):
        due = number >= int(match[2]) and inside is (match[1] == "inside")
        return signal.SIGSTOP if due and not stopped else None
    return None


def moments(session: object) -> list[dict[str, Any]]:
    """What the session has gone through so far."""
    path = Path(os.environ[VARIABLE]) / f"{session}.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def watch() -> None:
    """From now on, note what this process does to sessions."""
    from django.db import connection

    from sessions_app.models import Session
    from sessions_app.runtime import leases, whole_commits
    from sessions_app.runtime.journal import OrmJournal

    claim = leases.claim
    beat = leases.Heartbeat.beat
    transaction, whole_commit = OrmJournal._transaction, OrmJournal._whole_commit
    write_rows = whole_commits._write
    is_one_statement = connection.vendor == "postgresql"

    def claims(session_id: UUID, worker: str, now: datetime | None = None, **how: Any) -> leases.Claim | None:
        won = claim(session_id, worker, now, **how)
        if won is not None:
            _titles[str(session_id)] = Session.objects.values_list("title", flat=True).get(pk=session_id)
            moment(str(session_id), "claimed", "", worker=worker)
        return won

    writing = threading.local()

    @contextmanager
    def is_about_to_commit(journal: OrmJournal) -> Iterator[None]:
        with _in_transaction, transaction(journal):
            yield
            is_inside()

    def is_about_to_send(journal: OrmJournal, commit: Callable[[], Any]) -> Any:
        if is_one_statement and (name := getattr(writing, "name", "")):
            moment(writing.session, "before", name)
        with _in_transaction:
            return whole_commit(journal, commit)

    def writes_rows(*args: Any) -> Any:
        row = write_rows(*args)
        if row is not None:
            is_inside()
        return row

    def is_inside() -> None:
        if name := getattr(writing, "name", ""):
            moment(writing.session, "inside", name)

    def noted(name: str) -> Callable[..., Any]:
        write = getattr(OrmJournal, name)

        @wraps(write)
        def wrapper(journal: OrmJournal, *args: Any, **kwargs: Any) -> Any:
            writing.name, writing.session = name, str(journal.claim.session_id)
            try:
                answer = write(journal, *args, **kwargs)
            finally:
                writing.name = ""
            moment(str(journal.claim.session_id), "after", name)
            return answer

        return wrapper

    def beats(heartbeat: leases.Heartbeat, now: datetime | None = None) -> None:
        with _in_transaction:
            beat(heartbeat, now)

    leases.claim = claims
    leases.Heartbeat.beat = beats  # type: ignore[method-assign, assignment]
    OrmJournal._transaction = is_about_to_commit  # type: ignore[method-assign, assignment]
    OrmJournal._whole_commit = is_about_to_send  # type: ignore[method-assign, assignment]
    whole_commits._write = writes_rows  # type: ignore[assignment]
    for name in WRITES:
        setattr(OrmJournal, name, noted(name))


if VARIABLE in os.environ:
    watch()
