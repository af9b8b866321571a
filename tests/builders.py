"""Sessions in every state, as the plain rows that runs and actions leave behind. Needs no Haystack.

`STATES` has one builder per state. `History` writes a session step by step, for whoever needs another one:

    history = History(title="Windscreen")
    history.user("Is my windscreen covered?")
    history.checkpoint("start")
    history.reply(calls=[("lookup_policy", {"policy": "POL-7"})])
    history.finish(history.calls[-1], {"status": "active"})
    history.checkpoint("step")
    history.reply("Yes, it is.")
    history.end("Yes, it is.")
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import wraps
from hashlib import sha256
from itertools import count
from typing import Any, TypeVar, cast
from uuid import UUID

from django.contrib.auth.models import User
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import Model
from django.utils import timezone

from agentstate.domain.phases import AgentPhase
from agentstate.durable.policy import ToolPolicy
from agentstate.durable.progress import Meter
from agentstate.durable.records import Progress
from sessions_app.access import tool_names
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor, give_role
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.why_not import WhyNot
from sessions_app.history.failures import failure_of
from sessions_app.history.message_rows import AnsweredCall, pack
from sessions_app.models import (
    Approval,
    Branch,
    CallStatus,
    Checkpoint,
    Event,
    InboxMessage,
    MemoryEntry,
    Message,
    ModelCall,
    Phase,
    RegisteredAgent,
    Session,
    SessionTag,
    Status,
    ToolCall,
    WaitingFor,
)
from sessions_app.models.columns import converted, quoted
from sessions_app.models.later import columns_to_insert, update_later
from sessions_app.models.session import uuid7
from sessions_app.models.sql import insert_sql

SYSTEM = Actor.system("tests")
DEFINITION = "d" * 64
# The key of all models whose rows a history consists of.
KEY = "id"
COLUMNS = columns_to_insert(Session, False)
_names = count(1)
Method = TypeVar("Method", bound=Callable[..., Any])
Row = TypeVar("Row", bound=Model)


def user(role: str | None = "operator", name: str = "") -> User:
    """A user with the role's permissions; with none, for None."""
    made = User.objects.create_user(name or f"user{next(_names)}", password="correct horse")
    if role:
        give_role(made, role)
    return made


def actor(role: str | None = "operator") -> Actor:
    return Actor.of(user(role))


def fresh(session: Session) -> Session:
    """The session as it is stored now, with its branch."""
    return Session.objects.select_related("branch").get(pk=session.pk)


def tool(name: str, *, properties: dict[str, Any] | None = None, **policy: Any) -> dict[str, Any]:
    """A tool as workers publish it; all its arguments are required."""
    properties = properties or {}
    return {
        "name": name,
        "description": f"{name.replace('_', ' ').capitalize()}.",
        "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        "policy": ToolPolicy(**policy).to_dict(),
    }


def agent(key: str = "claims", **fields: Any) -> RegisteredAgent:
    """The published agent of that key; made once."""
    tool_names.names_at.cache_clear()
    made, _ = RegisteredAgent.objects.get_or_create(
        key=key,
        defaults={
            "title": "Claims desk",
            "model": "scripted demo model",
            "definition": DEFINITION,
            "tools": [
                tool("lookup_policy", properties={"policy": {"type": "string"}}, idempotent=True),
                tool(
                    "issue_refund",
                    properties={"claim": {"type": "string"}, "amount": {"type": "number", "maximum": 500}},
                    approval=True,
                    effect="moves money",
                ),
                tool("send_letter", properties={"text": {"type": "string"}}),
            ],
            **fields,
        },
    )
    return made


def memory_entry(session: Session, text: str, call: ToolCall | None = None, **fields: Any) -> MemoryEntry:
    """What the session's agent has learned about its customer; without a call it was learned at no place."""
    values = {"agent": session.agent, "customer": session.customer, "key": f"entry {next(_names)}", **fields}
    return MemoryEntry.objects.create(session=session, call=call, text=text, **values)


def branch_of(session: Session) -> Branch:
    assert session.branch is not None
    return session.branch


def context_of(
    session: Session, *, now: datetime | None = None, mask: Mask | None = None, actor: Actor | None = None
) -> SessionContext:
    """What the read models of the session's pages are given, as it is stored now; nothing is hidden by default."""
    row = Session.objects.select_related("branch").get(pk=session.pk)
    return SessionContext.of(row, actor=actor or SYSTEM, now=now or timezone.now(), mask=mask or Mask.none())


def page_context(*, now: datetime | None = None, mask: Mask | None = None) -> PageContext:
    """What the read models of a page that is not about one session are given; nothing is hidden by default."""
    return PageContext(
        actor=SYSTEM, now=now or timezone.now(), mask=mask or Mask.none(), why_not=WhyNot(SYSTEM)
    )


def _in_one_write(method: Method) -> Method:
    @wraps(method)
    def within(history: "History", *values: Any, **fields: Any) -> Any:
        with history.in_one_write():
            return method(history, *values, **fields)

    return cast("Method", within)


# The histories that the outermost builder has begun, which writes them when it ends; None outside of one.
_begun: ContextVar[list["History"] | None] = ContextVar("begun", default=None)


def _written_at_the_end(build: Method) -> Method:
    """A builder that writes its session once, as it ends. Otherwise half the time of a test goes into its sessions."""

    @wraps(build)
    def built(**fields: Any) -> Any:
        if _begun.get() is not None:
            return build(**fields)
        histories: list[History] = []
        token = _begun.set(histories)
        try:
            made = build(**fields)
        finally:
            _begun.reset(token)
        for history in histories:
            history.written()
        return made

    return cast("Method", built)


def _insert(rows: Sequence[Model]) -> None:
    """As `bulk_create` does it, by SQL that is made once in a process: else most of the time of a builder goes into it.

    :param rows: Of one model.
    """
    if not rows:
        return
    model = type(rows[0])
    names = columns_to_insert(model, rows[0].pk is not None)
    sql, converters = insert_sql(connection.vendor, ((model, names, len(rows)),))
    values = converted(converters, [getattr(row, name) for row in rows for name in names], connection)
    with connection.cursor() as cursor:
        cursor.execute(f"{sql} RETURNING {quoted(KEY)}", values)
        keys = cursor.fetchall()
    for row, [key] in zip(rows, keys, strict=True):
        if row.pk is None:
            row.pk = key
        row._state.adding, row._state.db = False, DEFAULT_DB_ALIAS


def _is_published(agent_key: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM {quoted(RegisteredAgent._meta.db_table)} WHERE key = %s", [agent_key])
        return cursor.fetchone() is not None


def key_of(at: datetime) -> UUID:
    """The key of a session that was made at that time."""
    return UUID(int=int(at.timestamp() * 1000) << 80 | uuid7().int % 2**80)


class History:
    """One session, with the rows that a real run writes, at their positions.

    Time passes by a second per row; `now` is the session's clock. Each method writes what it changes at its end, the
    rows of a table in one statement; within a builder all is written when that ends.
    """

    _unwritten = 0

    def __init__(self, *, agent_key: str = "claims", tags: Sequence[str] = (), **fields: Any) -> None:
        self._rows: list[Any] = []
        if (histories := _begun.get()) is not None:
            histories.append(self)
            self._unwritten = 1
        with self.in_one_write():
            self._begin(agent_key, tags, **fields)

    def _begin(self, agent_key: str, tags: Sequence[str], **fields: Any) -> None:
        self.now: datetime = fields.pop("created_at", timezone.now() - timedelta(minutes=10))
        if not _is_published(agent_key):
            agent(agent_key)
        fields = {"title": "Windscreen of POL-7", "customer": "Ada Lovelace", **fields}
        fields.setdefault("id", key_of(self.now))
        self.session = Session(
            agent=agent_key, created_at=self.now, phase_since=self.now, definition=DEFINITION, **fields
        )
        _insert([self.session])
        branch = Branch(session=self.session, number=1, created_at=self.now)
        _insert([branch])
        self.session.branch = branch
        self.calls: list[ToolCall] = []
        self.step = 0
        self.event("started")
        self.enter("planning")
        for name in tags:
            self._add(SessionTag(session=self.session, name=name))

    @classmethod
    def of(cls, session: Session, *, step: int, now: datetime | None = None) -> "History":
        """The session as it is stored now, to be continued in this step."""
        history = cls.__new__(cls)
        history.session = fresh(session)
        history.now = now or history.session.updated_at
        history.step, history.calls, history._rows = step, [], []
        return history

    @property
    def branch(self) -> Branch:
        return branch_of(self.session)

    @property
    def last_checkpoint(self) -> Checkpoint:
        return Checkpoint.objects.visible_on(self.branch).latest("position")

    def save(self, **fields: Any) -> Session:
        for name, value in fields.items():
            setattr(self.session, name, value)
        self.session.change += 1
        self.session.updated_at = self.now
        self._write()
        return self.session

    @contextmanager
    def in_one_write(self) -> Iterator[None]:
        """What is done within is written when it ends."""
        self._unwritten += 1
        try:
            yield
        finally:
            self._unwritten -= 1
        self._write()

    def written(self) -> None:
        """The builder that has begun it ends."""
        self._unwritten -= 1
        self._write()

    def _write(self) -> None:
        if not self._unwritten:
            self._write_rows()
            update_later(self.session, COLUMNS)
            if connection.vendor == "postgresql":
                # Not with the first statement of the test, which may be counted.
                cast("Any", connection).execute_later_writes()

    def _write_rows(self) -> None:
        # An approval request names the key of its call.
        tables: dict[type[Model], list[Any]] = {ToolCall: []}
        for row in self._rows:
            tables.setdefault(type(row), []).append(row)
        self._rows = []
        for model, rows in tables.items():
            for row in rows if model is Approval else ():
                # Its call has got its key after the request was made.
                row.call_id = row.call.pk
            _insert(rows)

    def _add(self, row: Row) -> Row:
        self._rows.append(row)
        return row

    def _save(self, call: ToolCall) -> None:
        """A call that is written with the rest has its last values then."""
        if call not in self._rows:
            call.save()

    def place(self) -> int:
        """The next position; a second passes."""
        self.now += timedelta(seconds=1)
        self.session.position += 1
        return self.session.position

    def enter(self, *phases: str) -> None:
        meter = Meter(
            Progress(
                self.session.phase, self.session.previous_phase, self.session.phase_since, self.session.totals
            ),
            clock=lambda: self.now,
        )
        for phase in phases:
            meter.to(AgentPhase(phase))
        self._metered(meter)

    def add(self, **amounts: float) -> None:
        """Add to the session's totals."""
        session = self.session
        progress = Progress(session.phase, session.previous_phase, session.phase_since, session.totals)
        meter = Meter(progress, clock=lambda: self.now)
        for key, amount in amounts.items():
            meter.add(key, amount)
        self._metered(meter)

    def _metered(self, meter: Meter) -> None:
        progress = meter.progress()
        self.save(
            phase=progress.phase,
            previous_phase=progress.previous,
            phase_since=progress.since,
            totals=progress.totals,
        )

    def message(
        self, role: str, text: str, content: Sequence[dict[str, Any]] | None = None, author: str = ""
    ) -> Message:
        """A message, packed as a run packs it; `content` is that of `ChatMessage.to_dict()`, the text by default."""
        _, words, body = pack(
            {"role": role, "content": [{"text": text}] if content is None else content},
            {
                call.call_id: AnsweredCall(
                    call.position, call.call_id, call.tool, call.arguments, call.result
                )
                for call in self.calls
                if call.status == CallStatus.DONE and isinstance(call.result, str)
            },
        )
        row = self._add(
            Message(
                branch=self.branch,
                position=self.place(),
                role=role,
                text=words,
                body=body,
                author=author,
                created_at=self.now,
            )
        )
        self.save()
        return row

    def system(self, text: str) -> Message:
        return self.message("system", text)

    def user(self, text: str, author: str = "") -> Message:
        return self.message("user", text, author=author)

    @_in_one_write
    def checkpoint(self, kind: str = "step", **fields: Any) -> Checkpoint:
        """Commit a checkpoint: the results of the calls before it become messages, as a run does it."""
        if kind == "step" and self.session.phase == Phase.EXECUTING:
            for call in self.calls:
                result = call.result if isinstance(call.result, str) else json.dumps(call.result)
                told = {"result": call.error or result, "origin": _origin(call), "error": bool(call.error)}
                self.message("tool", "", [{"tool_call_result": told}])
            self.enter("reflecting")
            self.step += 1
            self.add(steps=1)
        self.calls = []
        row = self._add(
            Checkpoint(
                branch=self.branch,
                position=self.place(),
                **{
                    "kind": kind,
                    "step": self.step,
                    "phase": self.session.phase,
                    "counters": {"step_count": self.step},
                    "totals": self.session.totals,
                    "definition": DEFINITION,
                    "created_at": self.now,
                    **fields,
                },
            )
        )
        self.save()
        return row

    @_in_one_write
    def reply(
        self,
        text: str = "",
        calls: Sequence[tuple[str, dict[str, Any]]] = (),
        seconds: float = 1.5,
        tokens: tuple[int, int] = (120, 30),
    ) -> ModelCall:
        """The model answers, and asks for the calls; they are in `self.calls` then, planned."""
        if calls and self.session.phase == Phase.REFLECTING:
            self.enter("planning")
        row = self._add(
            ModelCall(
                branch=self.branch,
                position=self.place(),
                replies=1,
                model="scripted demo model",
                prompt_tokens=tokens[0],
                completion_tokens=tokens[1],
                started_at=self.now - timedelta(seconds=seconds),
                ended_at=self.now,
            )
        )
        self.calls = [
            ToolCall(
                branch=self.branch,
                # Behind the reply, which comes first.
                position=self.session.position + 2 + ordinal,
                call_id=f"call_{self.session.position + 2 + ordinal}",
                tool=name,
                arguments=arguments,
                idempotency_key=f"{self.session.pk}:{self.session.position + 2 + ordinal}",
            )
            for ordinal, (name, arguments) in enumerate(calls)
        ]
        said = [{"text": text}] if text or not calls else []
        self.message("assistant", text, [*said, *({"tool_call": _origin(call)} for call in self.calls)])
        for call in self.calls:
            assert call.position == self.place()
            call.asked_at = self.now
            self._add(call)
        if calls:
            self.enter("executing")
        self.add(model_calls=1, model_seconds=seconds, prompt_tokens=tokens[0], completion_tokens=tokens[1])
        return row

    def model_fails(self, error: str = "RateLimitError: 429 Too Many Requests") -> ModelCall:
        row = self._add(
            ModelCall(
                branch=self.branch,
                position=self.place(),
                error=error,
                started_at=self.now - timedelta(seconds=2),
                ended_at=self.now,
            )
        )
        self.add(failed_model_calls=1)
        return row

    def begin(self, call: ToolCall) -> ToolCall:
        self.now += timedelta(seconds=1)
        call.status, call.started_at, call.attempt = CallStatus.STARTED, self.now, call.attempt + 1
        self._save(call)
        self.save()
        return call

    @_in_one_write
    def finish(self, call: ToolCall, result: Any = None, *, error: str = "", **fields: Any) -> ToolCall:
        """The call runs and ends; with `error` it fails."""
        if call.status == CallStatus.PLANNED:
            self.begin(call)
        self.now += timedelta(seconds=1)
        call.status = CallStatus.FAILED if error else CallStatus.DONE
        call.result, call.error, call.ended_at = result, error, self.now
        for name, value in fields.items():
            setattr(call, name, value)
        self._save(call)
        self.add(tool_calls=1, tool_seconds=1.0, tool_errors=int(bool(error)))
        return call

    @_in_one_write
    def doubt(self, call: ToolCall) -> ToolCall:
        """The call had begun when its worker died; nobody knows whether it took effect."""
        self.begin(call)
        call.status = CallStatus.DOUBT
        self._save(call)
        return call

    def ask(self, call: ToolCall, **fields: Any) -> Approval:
        row = self._add(
            Approval(
                session=self.session,
                call=call,
                arguments=call.arguments,
                asked_at=self.now,
                **{"fingerprint": sha256(repr((call.tool, call.arguments)).encode()).hexdigest(), **fields},
            )
        )
        if not self._unwritten:
            self._write_rows()
        return row

    @_in_one_write
    def lookup(self, policy: str = "POL-7") -> ToolCall:
        """A whole step: the model looks a policy up."""
        self.reply("I look that up.", [("lookup_policy", {"policy": policy})])
        call = self.finish(self.calls[-1], {"policy": policy, "status": "active"})
        self.checkpoint("step")
        return call

    @_in_one_write
    def end(self, answer: str) -> Session:
        """The turn ends with the answer that the last reply gave."""
        self.step += 1
        self.enter("done")
        self.checkpoint("end", outcome={"final_answer": answer, "exit_reason": "text"})
        self.event("finished", SYSTEM)
        return self.rest("idle", final_answer=answer, exit_reason="text")

    def event(self, kind: str, by: Actor = SYSTEM, reason: str = "", **data: Any) -> Event:
        row = self._add(
            Event(
                session=self.session,
                branch=self.branch,
                position=self.place(),
                kind=kind,
                actor=by.user,
                actor_name=by.name,
                reason=reason,
                data=data,
                created_at=self.now,
            )
        )
        self.save()
        return row

    @_in_one_write
    def rest(self, status: str, **fields: Any) -> Session:
        """Put the session into `status`, and give the fields that go with it."""
        session = self.session
        session.waiting_for = session.worker = ""
        session.next_run_at = self.now if status == Status.QUEUED else None
        session.lease_expires_at = None
        if status == Status.RUNNING:
            session.worker, session.epoch, session.attempt = "host:1", session.epoch + 1, session.attempt + 1
            session.lease_expires_at = timezone.now() + timedelta(seconds=12)
        session.version += 1
        self.save(status=status, **fields)
        return self.save(failure=failure_of(session))


def _origin(call: ToolCall) -> dict[str, Any]:
    """The call as messages name it."""
    return {"tool_name": call.tool, "arguments": call.arguments, "id": call.call_id, "extra": None}


@_written_at_the_end
def asked(**fields: Any) -> History:
    """A session whose customer has asked, at the start of its first step."""
    history = History(**fields)
    history.system("You help with insurance claims.")
    history.user("Is my windscreen covered by POL-7?")
    history.checkpoint("start")
    return history


@_written_at_the_end
def looked_up(**fields: Any) -> History:
    """One step later."""
    history = asked(**fields)
    history.lookup()
    return history


@_written_at_the_end
def refunding(**fields: Any) -> History:
    """Another step later, where the model has asked for a refund that has not begun."""
    history = looked_up(**fields)
    history.reply("I refund it.", [("issue_refund", {"claim": "CLM-1042", "amount": 120})])
    return history


@_written_at_the_end
def queued(**fields: Any) -> Session:
    history = History(**fields)
    InboxMessage.objects.create(session=history.session, text="Is my windscreen covered by POL-7?")
    return history.rest("queued")


@_written_at_the_end
def retrying(**fields: Any) -> Session:
    """Queued for a later time, after a model call that failed."""
    history = looked_up(**fields)
    history.model_fails()
    history.event("retry", SYSTEM)
    history.rest("queued", attempt=2, why="RateLimitError: 429 Too Many Requests")
    return history.save(next_run_at=timezone.now() + timedelta(hours=1))


@_written_at_the_end
def running(**fields: Any) -> Session:
    history = refunding(**fields)
    history.begin(history.calls[-1])
    return history.rest("running")


@_written_at_the_end
def pausing(**fields: Any) -> Session:
    history = refunding(**fields)
    history.event("stop_requested", SYSTEM, "lunch", request="pause")
    history.rest("running")
    return history.save(stop_request="pause", why="lunch")


@_written_at_the_end
def cancelling(**fields: Any) -> Session:
    history = refunding(**fields)
    history.event("stop_requested", SYSTEM, "no longer needed", request="cancel")
    history.rest("running")
    return history.save(stop_request="cancel", why="no longer needed")


@_written_at_the_end
def lost(**fields: Any) -> Session:
    """Running, says its row; but its worker has not renewed the lease for long."""
    history = refunding(**fields)
    history.begin(history.calls[-1])
    history.rest("running")
    return history.save(lease_expires_at=timezone.now() - timedelta(minutes=1))


@_written_at_the_end
def waiting_for_approval(**fields: Any) -> Session:
    history = refunding(**fields)
    history.ask(history.calls[-1])
    return history.rest("waiting", waiting_for=WaitingFor.APPROVAL, why="issue_refund needs approval.")


@_written_at_the_end
def in_doubt(**fields: Any) -> Session:
    history = refunding(**fields)
    history.doubt(history.calls[-1])
    history.event("in_doubt", reason="issue_refund may or may not have taken effect.")
    return history.rest(
        "waiting", waiting_for=WaitingFor.DOUBT, why="issue_refund may or may not have taken effect."
    )


@_written_at_the_end
def retries_used_up(**fields: Any) -> Session:
    history = looked_up(**fields)
    history.model_fails()
    history.event("gave_up", SYSTEM)
    return history.rest(
        "waiting", waiting_for=WaitingFor.RETRIES, why="5 attempts without progress.", attempt=5
    )


@_written_at_the_end
def changed(**fields: Any) -> Session:
    history = looked_up(**fields)
    history.event("changed", SYSTEM)
    return history.rest("waiting", waiting_for=WaitingFor.CHANGED, why="The agent is no longer what it was.")


@_written_at_the_end
def paused(**fields: Any) -> Session:
    history = looked_up(**fields)
    history.event("paused", SYSTEM, "lunch")
    return history.rest("paused", why="lunch")


@_written_at_the_end
def cancelled(**fields: Any) -> Session:
    history = looked_up(**fields)
    history.event("cancelled", SYSTEM, "no longer needed")
    return history.rest("cancelled", why="no longer needed")


@_written_at_the_end
def done(**fields: Any) -> Session:
    history = looked_up(**fields)
    history.reply("Yes, POL-7 covers your windscreen.")
    return history.end("Yes, POL-7 covers your windscreen.")


@_written_at_the_end
def failed(**fields: Any) -> Session:
    history = looked_up(**fields)
    history.model_fails("AuthenticationError: 401 Invalid API key")
    history.enter("error")
    history.event("failed", SYSTEM)
    return history.rest("idle", error="AuthenticationError: 401 Invalid API key")


def rewound(**fields: Any) -> Session:
    """Rewound from its end to the start of its second step, and paused there."""
    from sessions_app import actions

    session = done(**fields)
    return actions.rewind(
        actor=SYSTEM,
        session_id=session.pk,
        checkpoint_id=Checkpoint.objects.get(branch=session.branch, kind="step").pk,
        reason="It looked at the wrong policy",
    )


def forked(**fields: Any) -> Session:
    """A fork of a finished session, from the start of its second step."""
    return fork_of(done(**fields))


def fork_of(session: Session) -> Session:
    """A fork of a session that has one checkpoint of a step, from there."""
    from sessions_app import actions

    return actions.fork(
        actor=SYSTEM,
        session_id=session.pk,
        checkpoint_id=Checkpoint.objects.get(branch=session.branch, kind="step").pk,
        reason="Try another way",
    )


STATES: dict[str, Callable[..., Session]] = {
    made.__name__: made
    for made in (
        queued,
        retrying,
        running,
        pausing,
        cancelling,
        lost,
        waiting_for_approval,
        in_doubt,
        retries_used_up,
        changed,
        paused,
        cancelled,
        done,
        failed,
        rewound,
        forked,
    )
}
