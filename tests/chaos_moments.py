"""What a session under test goes through, moment by moment, and at which of them its worker is struck.

Each session has a log of its own in the folder that AGENTSTATE_TEST_CHAOS names: one JSON line per moment, in order,
appended at once, so that it outlives the process. The moments are

    claimed                 a worker has claimed the session
    inside METHOD           a journal's write is about to be committed: its transaction is open
    after METHOD            it is committed
    ask NAME                a model was asked; the answer has not arrived
    enter TOOL              a tool was entered; nothing has happened yet
    effect TOOL             it has had its effect, which is not recorded yet

A session whose title says "die at 7, 19" kills its worker process at its seventh and its nineteenth moment with
SIGKILL; "stall at 7" stops the process, as SIGSTOP does, until it is continued. Since the line is written
first, and lines are counted over all processes, each happens once.
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
_SIGNALS = {"die": signal.SIGKILL, "stall": signal.SIGSTOP}

_lock = threading.Lock()
_plans: dict[str, dict[int, signal.Signals]] = {}


def moment(session: str, what: str, name: str, **data: Any) -> None:
    """Note that the session has got here; strike, if this is where it was to be."""
    with _lock:
        path = Path(os.environ[VARIABLE]) / f"{session}.log"
        number = path.read_bytes().count(b"\n") + 1 if path.exists() else 1
        blow = _plans.get(session, {}).get(number)
        line = {"n": number, "what": what, "name": name, "at": time.time(), "pid": os.getpid(), **data}
        if blow is not None:
            line["struck"] = blow.name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.close(descriptor)
        if blow is not None:
            os.kill(os.getpid(), blow)


def moments(session: object) -> list[dict[str, Any]]:
    """What the session has gone through so far."""
    path = Path(os.environ[VARIABLE]) / f"{session}.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def plan(title: str) -> dict[int, signal.Signals]:
    """The blows that a session's title asks for, by the number of the moment."""
    return {
        int(number): _SIGNALS[blow]
        for blow, numbers in re.findall(r"(die|stall) at ((?:\d+(?:, )?)+)", title)
        for number in numbers.split(", ")
    }


def watch() -> None:
    """From now on, note what this process does to sessions."""
    from sessions_app.models import Session
    from sessions_app.runtime import leases
    from sessions_app.runtime.journal import OrmJournal

    claim = leases.claim
    transaction = OrmJournal._transaction

    def claims(session_id: UUID, worker: str, now: datetime | None = None) -> leases.Claim | None:
        won = claim(session_id, worker, now)
        if won is not None:
            _plans[str(session_id)] = plan(Session.objects.values_list("title", flat=True).get(pk=session_id))
            moment(str(session_id), "claimed", "", worker=worker)
        return won

    writing = threading.local()

    @contextmanager
    def is_about_to_commit(journal: OrmJournal) -> Iterator[None]:
        with transaction(journal):
            yield
            if name := getattr(writing, "name", ""):
                moment(str(journal.claim.session_id), "inside", name)

    def noted(name: str) -> Callable[..., Any]:
        write = getattr(OrmJournal, name)

        @wraps(write)
        def wrapper(journal: OrmJournal, *args: Any, **kwargs: Any) -> Any:
            writing.name = name
            try:
                answer = write(journal, *args, **kwargs)
            finally:
                writing.name = ""
            moment(str(journal.claim.session_id), "after", name)
            return answer

        return wrapper

    leases.claim = claims
    OrmJournal._transaction = is_about_to_commit  # type: ignore[method-assign, assignment]
    for name in WRITES:
        setattr(OrmJournal, name, noted(name))


if VARIABLE in os.environ:
    watch()
