"""One session in each adapter of the journal port, with the same interface: for tests that apply to all of them."""

import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db.models import F
from django.utils import timezone

from agentstate.durable.port import Journal
from agentstate.journals import FileJournal, MemoryJournal
from agentstate.journals.store import Store
from agentstate.journals.valkey import ValkeySessions
from sessions_app import actions
from sessions_app.models import Branch, InboxMessage, RegisteredAgent, Session, Status
from sessions_app.runtime import leases
from sessions_app.runtime.journal import OrmJournal
from tests import builders
from tests.builders import SYSTEM

Json = Any
TOOLS = [builders.tool("pay", properties={"n": {"type": "integer"}}), builders.tool("look")]


class MemoryAdapter:
    def __init__(self, inputs: dict[str, Json] | None = None) -> None:
        self.inputs = inputs or {}
        self.store = Store("session")
        self.journal: MemoryJournal

    def open(self, say: str = "") -> Journal:
        """The session's journal at its next epoch, as a new process would get it."""
        inputs = None if self.store.epoch else self.inputs
        self.journal = MemoryJournal.open(self.store, say=say, inputs=inputs)
        return self.journal

    def say(self, text: str) -> None:
        self.journal.say(text)

    def approve(self, call_id: str, edited: dict[str, Json] | None = None) -> None:
        self.journal.decide(call_id, approve=True, arguments=edited)

    def reject(self, call_id: str, message: str) -> None:
        self.journal.decide(call_id, approve=False, message=message)

    def decide(self, call_id: str, **how: Any) -> None:
        self.journal.decide(call_id, **how)

    def fields(self) -> dict[str, str]:
        """The session's status, and what is shown of its last end."""
        end, outcome = self.store.last_end, self.store.outcome
        return {
            "status": self.store.status,
            **{name: end[name] for name in ("waiting_for", "why", "error") if end},
            **outcome,
        }

    def fence(self) -> None:
        """Fence off what still runs in the present epoch."""
        self.store.epoch += 1

    def close(self) -> None:
        pass


class FileAdapter(MemoryAdapter):
    def __init__(self, path: Path, inputs: dict[str, Json] | None = None) -> None:
        super().__init__(inputs)
        self.path = path
        self.file: FileJournal | None = None

    def open(self, say: str = "") -> Journal:
        self.close()
        inputs = None if self.path.exists() else self.inputs
        self.journal = self.file = FileJournal.open(self.path, say=say, inputs=inputs)
        self.store = self.file.store
        return self.journal

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class ValkeyAdapter(MemoryAdapter):
    """Each `open` reads the session from the server, as another process would."""

    def __init__(self, url: str, session_id: str, inputs: dict[str, Json] | None = None) -> None:
        super().__init__(inputs)
        with warnings.catch_warnings(action="ignore"):  # this server keeps nothing on disk, as it says
            self.sessions = ValkeySessions(url)
        self.session_id = session_id
        self.opened = False

    def open(self, say: str = "") -> Journal:
        inputs = None if self.opened else self.inputs
        self.opened = True
        self.journal = self.sessions.open(self.session_id, say=say, inputs=inputs)
        self.store = self.journal.store
        return self.journal

    def fence(self) -> None:
        self.sessions.client.hincrby(f"agent:state:{self.session_id}", "epoch", 1)

    def close(self) -> None:
        self.sessions.client.close()


class OrmAdapter:
    def __init__(self, inputs: dict[str, Json] | None = None, agent: str = "contract") -> None:
        builders.agent(agent, tools=TOOLS)
        self.session = Session.objects.create(agent=agent, inputs=inputs or {})
        self.pk = self.session.pk
        Session.objects.filter(pk=self.pk).update(
            branch=Branch.objects.create(session=self.session, number=1),
            phase="planning",
            previous_phase="idle",
        )

    def fresh(self) -> Session:
        return Session.objects.select_related("branch").get(pk=self.pk)

    def claim(self) -> leases.Claim:
        """A worker's claim: at once if the session is at rest, else after the lease has expired."""
        now = timezone.now()
        mine = Session.objects.filter(pk=self.pk)
        mine.update(attempt=0)
        if not mine.filter(status=Status.RUNNING).update(lease_expires_at=now - timedelta(seconds=1)):
            mine.update(status=Status.QUEUED, next_run_at=now, waiting_for="")
        claim = leases.claim(self.pk, "tests", now + timedelta(seconds=1))
        assert claim is not None
        return claim

    def open(self, say: str = "") -> Journal:
        if say:
            self.say(say)
        return OrmJournal(self.claim())

    def say(self, text: str) -> None:
        InboxMessage.objects.create(session_id=self.pk, text=text)

    def approve(self, call_id: str, edited: dict[str, Json] | None = None) -> None:
        self._publish()
        actions.approve(actor=SYSTEM, session_id=self.pk, call_id=call_id, edited=edited)

    def reject(self, call_id: str, message: str) -> None:
        actions.reject(actor=SYSTEM, session_id=self.pk, call_id=call_id, message=message)

    def decide(self, call_id: str, *, skip: str = "", **how: Any) -> None:
        if skip:
            how["skip"] = skip
        self._publish()
        actions.decide(actor=SYSTEM, session_id=self.pk, call_id=call_id, reason="looked it up", **how)

    def _publish(self) -> None:
        """Publish the agent as the one of the session's last checkpoint: it has not changed."""
        session = self.fresh()
        RegisteredAgent.objects.filter(key=session.agent).update(definition=session.definition)

    def fields(self) -> dict[str, str]:
        session = self.fresh()
        names = ("status", "waiting_for", "why", "error", "final_answer", "exit_reason")
        return {name: getattr(session, name) for name in names}

    def fence(self) -> None:
        Session.objects.filter(pk=self.pk).update(epoch=F("epoch") + 1)

    def close(self) -> None:
        pass


Adapter = MemoryAdapter | OrmAdapter
