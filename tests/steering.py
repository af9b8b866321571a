"""A session that is steered at random, a worker that dies at random, and a model of the expected results.

The model has the rows that each branch showed when it was last read, where an undo leads, the unread messages, and the
effects that have happened. Every promise is checked after every step.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar
from uuid import UUID

import pytest
from django.utils import timezone
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.dataclasses import ToolCall as Call
from haystack.tools import tool
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import agentstate
from agentstate import ToolPolicy
from agentstate.domain.phases import AgentPhase
from agentstate.durable.state.chat_messages import message_from
from agentstate.names import ENDED_CALL_STATES
from sessions_app import actions
from sessions_app.access.errors import ActionError
from sessions_app.actions.history import LEFT_FIELDS
from sessions_app.history.message_rows import answered_calls, unpack
from sessions_app.models import (
    Approval,
    Branch,
    CallStatus,
    Checkpoint,
    Event,
    InboxMessage,
    Message,
    ModelCall,
    Session,
    Status,
    ToolCall,
    WaitingFor,
)
from sessions_app.runtime import journal, leases, recovery
from sessions_app.runtime.connection import RunConnection
from sessions_app.runtime.worker import drive
from tests import driving
from tests.builders import SYSTEM, branch_of
from tests.dying import Died

T = TypeVar("T")

WORDS = ("a", "b")
RESTING = ("idle", "done", "error")


WHAT = (
    *["help"] * 8,
    *["drive", "die"] * 4,
    *["rewind", "message", "undo", "answer", "decide"] * 3,
    *["find_lost", "resume", "while rewind", "while message", "while fail"] * 2,
    *["fork", "pause", "cancel", "while pause", "while cancel", "while fork"],
    *["breakpoint", "while breakpoint"],
)


class Faults:
    """What goes wrong, or happens meanwhile, in the next drive."""

    def __init__(self) -> None:
        self.dies_at = 0
        self.committed = False
        self.dead = False
        self.commits = 0
        self.model_fails = False
        self.asked = 0
        self.meanwhile: Callable[[], None] | None = None


faults = Faults()
ran: Counter[str] = Counter()


class DyingConnection(RunConnection):
    """Dies at the n-th commit: in the transaction, when all its statements were executed, or after it."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.lock:
            if faults.dead:
                raise Died
            faults.commits += 1
            dies = faults.commits == faults.dies_at
            with super().transaction():
                yield
                if dies and not faults.committed:
                    faults.dead = True
                    raise Died
            if dies:
                faults.dead = True
                raise Died

    def whole_commit(self, commit: Callable[[], T]) -> T:
        with self.transaction():
            return commit()


# The agent: it looks and pays, pays again, and answers. What it says depends on the messages alone.


@tool
def look(what: Annotated[str, "what"]) -> str:
    """May be repeated."""
    return f"saw {what}"


@tool
def pay(what: Annotated[str, "what"]) -> str:
    """Must not be repeated."""
    ran[agentstate.idempotency_key()] += 1
    return f"paid {what}"


def reply(messages: list[ChatMessage]) -> ChatMessage:
    last = max((n for n, message in enumerate(messages) if message.is_from("user")), default=0)
    text = messages[last].text
    results = sum(bool(message.tool_call_results) for message in messages[last:])
    if results == 0:
        return ChatMessage.from_assistant(
            f"For {text}",
            tool_calls=[Call("look", {"what": text}, id="c1"), Call("pay", {"what": text}, id="c2")],
        )
    if results == 2:
        return ChatMessage.from_assistant("More", tool_calls=[Call("pay", {"what": f"{text}!"}, id="c3")])
    return ChatMessage.from_assistant(f"Answer to {text}")


def model(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
    callback, faults.meanwhile = faults.meanwhile, None
    if callback is not None:
        callback()
    if faults.model_fails:
        faults.model_fails = False
        raise TimeoutError("slow")
    faults.asked += 1
    return reply(messages)


def payer() -> Agent:
    return Agent(chat_generator=MockChatGenerator(response_fn=model), tools=[look, pay])


POLICIES = {"look": ToolPolicy(idempotent=True)}


@contextmanager
def paying_desk() -> Iterator[driving.Desk]:
    with driving.desk(AGENTSTATE_MAX_ATTEMPTS=4) as desk, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "RunConnection", DyingConnection)
        desk.agent(payer, policies=POLICIES)
        yield desk


# Reading the truth


def fresh(pk: UUID) -> Session:
    return Session.objects.select_related("branch").get(pk=pk)


def rows_of(branch: Branch) -> list[tuple[int, str, int]]:
    """All rows that the branch shows: position, kind and primary key."""
    found = []
    for kind in (Message, ModelCall, ToolCall, Checkpoint):
        rows = kind.objects.visible_on(branch).values_list("position", "pk")
        found += [(position, kind.__name__, pk) for position, pk in rows]
    return sorted(found)


def conversation_of(branch: Branch) -> list[tuple[int, ChatMessage]]:
    messages = list(Message.objects.visible_on(branch).order_by("position"))
    calls = answered_calls(branch, messages)
    return [(message.position, message_from(unpack(message, calls))) for message in messages]


def why_refused(action: str, session: Session) -> bool:
    """Whether the action is impossible: the rules once more, as briefly as possible."""
    status, asked_to = session.status, session.stop_request
    failed = session.phase == "error"
    match action:
        case "pause":
            return not (status == "queued" or (status == "running" and not asked_to))
        case "cancel":
            return status == "cancelled" or asked_to == "cancel" or (status == "idle" and not failed)
        case "message" | "breakpoint":
            return status == "cancelled" or asked_to == "cancel"
        case "undo":
            return branch_of(session).undo_to_id is None
        case "resume":
            waits = status == "waiting" and session.waiting_for in ("retries", "changed")
            late = session.next_run_at is not None and session.next_run_at > timezone.now()
            pausing = status == "running" and asked_to == "pause"
            return not (status == "paused" or waits or pausing or late or (status == "idle" and failed))
    raise AssertionError(action)


class Steering(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        ran.clear()
        faults.__init__()  # type: ignore[misc]
        self.known: list[UUID] = []
        self.shown: dict[int, list[tuple[int, str, int]]] = {}
        self.undo_to: dict[int, int | None] = {}
        self.left: dict[int, dict[str, Any]] = {}
        self.unread: dict[UUID, list[str]] = {}
        self.position: dict[UUID, int] = {}
        self.ended: dict[int, tuple[Any, ...]] = {}
        # Since when a breakpoint stops the session before each payment.
        self.stops_since: dict[UUID, datetime] = {}
        self.again: Counter[str] = Counter()
        self.uncommitted = 0
        self.touched: list[UUID] = []

    @rule(
        what=st.sampled_from(WHAT),
        which=st.sampled_from([0, 0, 0, 1, 1, 2]),
        choice=st.integers(0, 30),
        flag=st.booleans(),
    )
    def step(self, what: str, which: int, choice: int, flag: bool) -> None:
        """One rule for everything, so that what is rare in life is rare here too."""
        pk = self.known[which % len(self.known)]
        self.touched = [pk]
        match what:
            case "help":
                self.help(pk)
            case "fork":
                self.fork(pk, choice, WORDS[choice % 2] if flag else "")
            case "drive":
                self.hurry(pk)
                self.drive(pk, 60 if flag else 0)
            case "die":
                self.hurry(pk)
                self.die(pk, 1 + choice % 14, flag)
            case "message":
                self.message(pk, WORDS[choice % 2])
            case "rewind":
                self.rewind(pk, choice, flag)
            case "breakpoint":
                self.breakpoint(pk, ("pay", "", "pay")[choice % 3], once=flag)
            case "decide":
                self.decide(pk, ("result", "again", "skip")[choice % 3], choice)
            case "answer":
                self.answer(pk, ("approve", "reuse", "approve", "reject")[choice % 4], choice)
            case _ if what.startswith("while "):
                self.hurry(pk)
                self.drive_while(pk, what.removeprefix("while "), choice)
            case _:
                getattr(self, what)(pk)

    # What people do

    @initialize(text=st.sampled_from(WORDS))
    def start(self, text: str) -> None:
        session = actions.start(actor=SYSTEM, agent=driving.KEY, message=text)
        self._meet(session, [text])
        self._check_event(session.pk, "started", "")

    def _meet(self, session: Session, unread: list[str]) -> None:
        self.known.append(session.pk)
        self.unread[session.pk] = unread
        self.position[session.pk] = 0
        branch = branch_of(session)
        self.shown[branch.pk] = rows_of(branch)
        self.undo_to[branch.pk] = None

    def _act(self, pk: UUID, name: str, do: Callable[..., Session], **how: Any) -> Session | None:
        """Do it if the rules allow it; see it refused, and nothing changed, if they do not."""
        before = fresh(pk)
        events = Event.objects.filter(session_id=pk).count()
        if why_refused(name, before):
            with pytest.raises(ActionError):
                do(actor=SYSTEM, session_id=pk, **how)
            after = fresh(pk)
            assert [getattr(after, f.attname) for f in Session._meta.concrete_fields] == [
                getattr(before, f.attname) for f in Session._meta.concrete_fields
            ]
            assert Event.objects.filter(session_id=pk).count() == events
            return None
        session = do(actor=SYSTEM, session_id=pk, **how)
        assert session.version == before.version + 1
        return session

    def _check_event(self, pk: UUID, kind: str, reason: str) -> None:
        """The audit trail has it: who, what and why."""
        event = Event.objects.filter(session_id=pk).latest("position")
        assert (event.kind, event.actor_name, event.reason) == (kind, SYSTEM.name, reason)

    def message(self, pk: UUID, text: str) -> None:
        session = self._act(pk, "message", actions.send_message, text=text)
        if session is not None:
            self.unread[pk].append(text)
            self._check_event(pk, "message", "")
            assert session.status != Status.IDLE

    def breakpoint(self, pk: UUID, tool: str, *, once: bool) -> None:
        if len(fresh(pk).breakpoints or []) >= 3:
            return
        session = self._act(pk, "breakpoint", actions.set_breakpoint, tool=tool, once=once, reason="to see")
        if session is not None:
            self._check_event(pk, "breakpoint_set", "to see")
            if tool and not once:
                self.stops_since.setdefault(pk, timezone.now())

    def pause(self, pk: UUID) -> None:
        before = fresh(pk)
        session = self._act(pk, "pause", actions.pause, reason="lunch")
        if session is not None and before.status == Status.RUNNING:
            assert (session.status, session.stop_request) == (Status.RUNNING, "pause")
            self._check_event(pk, "stop_requested", "lunch")
        elif session is not None:
            assert session.status == Status.PAUSED
            self._check_event(pk, "paused", "lunch")

    def resume(self, pk: UUID) -> None:
        before = fresh(pk)
        session = self._act(pk, "resume", actions.resume, reason="go on")
        if session is not None:
            self._check_event(pk, "resumed", "go on")
            assert session.stop_request == ""
            if before.status != Status.RUNNING:
                assert session.status in (Status.QUEUED, Status.IDLE)
                assert (session.status == Status.IDLE) == (before.phase == "done" and not self.unread[pk])

    def cancel(self, pk: UUID) -> None:
        before = fresh(pk)
        session = self._act(pk, "cancel", actions.cancel, reason="no longer needed")
        if session is not None and before.status == Status.RUNNING:
            self._check_event(pk, "stop_requested", "no longer needed")
        elif session is not None:
            assert session.status == Status.CANCELLED
            self._check_event(pk, "cancelled", "no longer needed")

    def _checkpoints(self, pk: UUID) -> list[Checkpoint]:
        """Those that some branch of the session shows."""
        branches = list(Branch.objects.filter(session_id=pk))
        keys = {key for branch in branches for _, kind, key in self.shown[branch.pk] if kind == "Checkpoint"}
        return list(Checkpoint.objects.filter(pk__in=keys).order_by("pk"))

    def _shown_upto(self, pk: UUID, checkpoint: Checkpoint) -> list[tuple[int, str, int]]:
        place = (checkpoint.position, "Checkpoint", checkpoint.pk)
        for branch in Branch.objects.filter(session_id=pk):
            rows = self.shown[branch.pk]
            if place in rows:
                return rows[: rows.index(place) + 1]
        raise AssertionError("no branch shows the checkpoint")

    def _rewind(self, pk: UUID, choice: int, run: bool) -> None:
        found = self._checkpoints(pk)
        if not found:
            return
        checkpoint = found[choice % len(found)]
        rows = self._shown_upto(pk, checkpoint)
        before = fresh(pk)
        left = branch_of(before)
        self.look_at(pk)
        session = actions.rewind(
            actor=SYSTEM, session_id=pk, checkpoint_id=checkpoint.pk, reason="another way", run=run
        )
        self._check_event(pk, "rewound", "another way")
        self.left[left.pk] = {name: getattr(before, name) for name in LEFT_FIELDS}
        new = branch_of(session)
        assert new.pk not in self.shown
        self.shown[new.pk], self.undo_to[new.pk] = list(rows), left.pk
        assert rows_of(new) == rows
        assert session.epoch > before.epoch
        assert (session.phase, session.totals) in (
            (checkpoint.phase, checkpoint.totals),
            ("planning", session.totals),
        )
        over = checkpoint.kind == "end"
        expected = "idle" if over and not self.unread[pk] else "queued" if run else "paused"
        assert session.status == expected

    def rewind(self, pk: UUID, choice: int, run: bool) -> None:
        self._rewind(pk, choice, run)

    def undo(self, pk: UUID) -> None:
        before = fresh(pk)
        left = branch_of(before)
        target = self.undo_to[left.pk]
        session = self._act(pk, "undo", actions.undo, reason="it was right")
        assert (session is None) == (target is None)
        if session is None or target is None:
            return
        self._check_event(pk, "undone", "it was right")
        self.left[left.pk] = {name: getattr(before, name) for name in LEFT_FIELDS}
        assert branch_of(session).pk == target
        assert rows_of(branch_of(session)) == self.shown[target]
        # What was going on there is as it was, but for what would run by itself.
        was = self.left[target]
        if self._announced(target, was) and not self.unread[pk]:
            # The turn had not begun, and its message was read on the branch just left: there is no turn.
            assert (session.status, session.phase) == (Status.IDLE, "done")
            return
        for name in (
            "phase",
            "previous_phase",
            "error",
            "final_answer",
            "exit_reason",
            "definition",
            "totals",
        ):
            assert getattr(session, name) == was[name], name
        if was["status"] in ("queued", "running"):
            assert session.status == Status.PAUSED
        elif was["status"] == "idle" and self.unread[pk]:
            assert session.status in (Status.PAUSED, Status.IDLE)
        else:
            assert (session.status, session.waiting_for) == (was["status"], was["waiting_for"])

    def _announced(self, branch: int, was: dict[str, Any]) -> bool:
        """Whether the next turn was to begin on the branch."""
        marks = [key for _, kind, key in self.shown[branch] if kind == "Checkpoint"]
        over = bool(marks) and Checkpoint.objects.get(pk=marks[-1]).kind == "end"
        return over and was["phase"] == "planning" and was["status"] in ("queued", "running", "paused")

    def fork(self, pk: UUID, choice: int, text: str) -> None:
        found = self._checkpoints(pk)
        if not found or len(self.known) >= 3:
            return
        checkpoint = found[choice % len(found)]
        rows = self._shown_upto(pk, checkpoint)
        before = fresh(pk)
        self.touched = [*self.known]
        child = actions.fork(
            actor=SYSTEM, session_id=pk, checkpoint_id=checkpoint.pk, reason="try it", message=text
        )
        self._check_event(pk, "forked", "try it")
        self._check_event(child.pk, "forked", "try it")
        self._meet(child, [text] if text else [])
        assert self.shown[branch_of(child).pk] == rows
        self.position[child.pk] = checkpoint.position
        after = fresh(pk)
        for name in ("status", "phase", "epoch", "branch_id", "totals", "next_run_at", "worker"):
            assert getattr(after, name) == getattr(before, name), name
        over = checkpoint.kind == "end"
        assert child.status == ("queued" if text else "idle" if over else "paused")

    # Decisions

    def decide(self, pk: UUID, how: str, choice: int) -> None:
        session = fresh(pk)
        calls = list(ToolCall.objects.filter(branch=session.branch, status=CallStatus.DOUBT))
        if not calls or session.status not in (Status.WAITING, Status.PAUSED):
            return
        call = calls[choice % len(calls)]
        answers: dict[str, dict[str, Any]] = {
            "result": {"result": f"paid {call.arguments['what']}"},
            "again": {"again": True},
            "skip": {"skip": "leave it"},
        }
        if how == "again":
            self.again[call.idempotency_key] += 1
        session = actions.decide(
            actor=SYSTEM, session_id=pk, call_id=call.pk, reason="looked it up", **answers[how]
        )
        self._check_event(pk, "decided", "looked it up")

    def answer(self, pk: UUID, how: str, choice: int) -> None:
        session = fresh(pk)
        approvals = list(Approval.objects.filter(call__branch=session.branch, decision=""))
        if not approvals or session.status not in (Status.WAITING, Status.PAUSED):
            return
        approval = approvals[choice % len(approvals)]
        before = approval.repeats
        if how == "reject":
            actions.reject(
                actor=SYSTEM, session_id=pk, call_id=approval.call_id, message="no", reason="why not"
            )
            self._check_event(pk, "rejected", "why not")
        elif how == "reuse" and before is not None and before.status == CallStatus.DONE:
            actions.reuse(actor=SYSTEM, session_id=pk, call_id=approval.call_id, reason="the same")
            self._check_event(pk, "reused", "the same")
        else:
            actions.approve(
                actor=SYSTEM, session_id=pk, call_id=approval.call_id, effects_seen=True, reason="fine"
            )
            self._check_event(pk, "approved", "fine")

    def answer_all(self, pk: UUID) -> None:
        for _ in range(Approval.objects.filter(session_id=pk, decision="").count()):
            self.answer(pk, "approve", 0)

    # What workers do

    def _drive(self, pk: UUID, slice_seconds: float = 60) -> str:
        before = fresh(pk)
        claimable = (
            before.status == Status.QUEUED and (before.next_run_at or timezone.now()) <= timezone.now()
        )
        faults.dead, faults.commits = False, 0
        try:
            became = drive(pk, worker="w1", slice_seconds=slice_seconds)
        except Died:
            became = "dead"
        finally:
            faults.dies_at, faults.dead, faults.meanwhile, faults.model_fails = 0, False, None, False
        assert (became == "busy") == (not claimable)
        if became in ("dead", "lost"):
            self.uncommitted += 1
        elif became != "busy":
            assert fresh(pk).status == became
        return became

    def drive(self, pk: UUID, slice_seconds: float) -> None:
        assert self._drive(pk, slice_seconds) not in ("dead", "lost")

    def die(self, pk: UUID, number: int, committed: bool) -> None:
        faults.dies_at, faults.committed = number, committed
        if self._drive(pk) == "dead":
            after = fresh(pk)
            # If it died after the last commit, the run had ended.
            assert after.status == Status.RUNNING or committed
            assert after.status != Status.RUNNING or leases.claim(pk, "w2") is None

    def drive_while(self, pk: UUID, action: str, choice: int) -> None:
        """A person acts while the model is called."""

        def meanwhile() -> None:
            self.look_at(pk)
            if action == "rewind":
                self._rewind(pk, choice, run=bool(choice % 2))
            elif action == "message":
                self.message(pk, WORDS[choice % 2])
            elif action == "fork":
                self.fork(pk, choice, "")
            elif action == "breakpoint":
                self.breakpoint(pk, ("pay", "")[choice % 2], once=choice % 3 == 0)
            elif action in ("pause", "cancel"):
                getattr(self, action)(pk)
            else:
                faults.model_fails = True

        faults.meanwhile = meanwhile
        branch = fresh(pk).branch_id
        became = self._drive(pk)
        assert became != "dead"
        moved = fresh(pk).branch_id != branch
        assert (became == "lost") == moved

    def hurry(self, pk: UUID) -> None:
        """Time passes until the next attempt."""
        Session.objects.filter(pk=pk, status=Status.QUEUED).update(next_run_at=timezone.now())

    def find_lost(self, pk: UUID) -> None:
        """The lease of a dead worker expires, and the sweep finds its session."""
        before = fresh(pk)
        self._expire(pk)
        recovery.sweep()
        if before.status == Status.RUNNING:
            after = fresh(pk)
            stopped = {"pause": Status.PAUSED, "cancel": Status.CANCELLED}
            expected = stopped.get(
                before.stop_request, Status.QUEUED if before.attempt < 4 else Status.WAITING
            )
            assert after.status == expected
            assert after.epoch > before.epoch
            event = Event.objects.filter(session_id=pk).latest("position")
            assert event.actor_name == "sweep"

    def _expire(self, pk: UUID) -> None:
        past = timezone.now() - timedelta(seconds=1)
        Session.objects.filter(pk=pk, status=Status.RUNNING).update(lease_expires_at=past)

    # What must always be

    def look_at(self, pk: UUID) -> None:
        """Compare one session with the model, and let the model learn what its run has added."""
        session = fresh(pk)
        branch = branch_of(session)
        rows, known = rows_of(branch), self.shown[branch.pk]
        assert rows[: len(known)] == known, "the history is only ever added to"
        assert all(position > self.position[pk] for position, _, _ in rows[len(known) :]), "positions grow"
        self._check_unread(pk, rows[len(known) :])
        self.shown[branch.pk] = rows
        self.position[pk] = session.position

    def _check_unread(self, pk: UUID, new: list[tuple[int, str, int]]) -> None:
        """The agent has read the oldest unread messages, in their order."""
        keys = [key for _, kind, key in new if kind == "Message"]
        read = (
            Message.objects.filter(pk__in=keys, role="user")
            .order_by("position")
            .values_list("text", flat=True)
        )
        for text in read:
            assert self.unread[pk].pop(0) == text
        waiting = InboxMessage.objects.filter(session_id=pk).order_by("pk").values_list("text", flat=True)
        assert list(waiting) == self.unread[pk], "no message is lost or read twice"

    @invariant()
    def all_is_as_promised(self) -> None:
        for pk in self.touched:
            self.look_at(pk)
            session = fresh(pk)
            self._status(session)
            self._positions(session)
            self._conversation(session)
            self._effects(session)
            self._stops(session)
            self._results(session)
        self._asked_once()

    def _status(self, session: Session) -> None:
        """Invariants that the database does not check."""
        if session.status == Status.IDLE:
            assert session.phase in RESTING, "an idle session is between turns"
        if session.status in (Status.QUEUED, Status.RUNNING, Status.WAITING):
            assert session.phase not in RESTING, "a session that is to run is in a turn"
        if session.status != Status.RUNNING:
            assert (session.worker, session.stop_request) == ("", "")
        if session.status == Status.WAITING:
            calls = ToolCall.objects.filter(branch=session.branch)
            if session.waiting_for == WaitingFor.DOUBT:
                assert calls.filter(status=CallStatus.DOUBT).exists(), "there is something to decide"
            if session.waiting_for == WaitingFor.APPROVAL:
                assert calls.filter(approval__decision="").exists(), "there is something to approve"
        AgentPhase(session.phase)

    def _positions(self, session: Session) -> None:
        given = list(Event.objects.filter(session=session).values_list("position", flat=True))
        for kind in (Message, ModelCall, ToolCall, Checkpoint):
            mine = kind.objects.filter(branch__session=session)
            given += mine.values_list("position", flat=True)
        assert len(set(given)) == len(given), "a position is given once"
        assert max(given) <= session.position

    def _conversation(self, session: Session) -> None:
        """The visible conversation is the one that an undisturbed agent would have had."""
        branch = branch_of(session)
        calls = ToolCall.objects.visible_on(branch)
        if calls.filter(status=CallStatus.REJECTED).exists():
            return  # Haystack then tells the model the calls in another order
        conversation = [message for _, message in conversation_of(branch)]
        for number, message in enumerate(conversation):
            if message.is_from("assistant"):
                expected = reply(conversation[:number])
                assert (message.text, message.tool_calls) == (expected.text, expected.tool_calls)

    def _effects(self, session: Session) -> None:
        """What must not be repeated happened once, unless a person decided otherwise."""
        branch = branch_of(session)
        for call in ToolCall.objects.visible_on(branch).filter(tool="pay").select_related("approval"):
            times = ran[call.idempotency_key]
            assert times <= 1 + self.again[call.idempotency_key], f"{call} ran {times} times"
            if call.status == CallStatus.PLANNED and not call.attempt:
                assert times == 0
            if times:
                assert call.attempt >= 1, "an effect is on record before it happens"
                self._was_allowed(branch, call)

    def _stops(self, session: Session) -> None:
        """At a breakpoint nothing has started, and no payment that was planned behind one starts before the stop."""
        calls = ToolCall.objects.filter(branch__session=session, tool="pay")
        if session.at_breakpoint is not None:
            held = calls.filter(branch=session.branch, call_id__in=session.at_breakpoint["calls"])
            open_calls = held.exclude(status__in=ENDED_CALL_STATES)
            assert {call.status for call in open_calls} <= {CallStatus.PLANNED}
        since = self.stops_since.get(session.pk)
        if since is None:
            return
        stops = Event.objects.filter(session=session, kind="breakpoint").values_list("created_at", flat=True)
        for call in calls.filter(asked_at__gt=since, started_at__isnull=False):
            assert call.started_at is not None
            assert any(call.asked_at <= at <= call.started_at for at in stops), f"{call} was not stopped"

    def _was_allowed(self, branch: Branch, call: ToolCall) -> None:
        """If the same effect was on a discarded branch when the call was planned, a person approved it."""
        lineage = [pk for pk, _ in branch.segments()]
        family = Branch.objects.filter(pk__in=lineage).values("session")
        discarded = [
            other
            for other in ToolCall.objects.filter(
                branch__session__in=family, tool="pay", arguments=call.arguments
            )
            if ran[other.idempotency_key]
            and other.started_at is not None
            and call.started_at is not None
            and other.started_at < call.asked_at
            and not call.branch.sees(other.branch_id, other.position)
            and self._was_there(call, other)
        ]
        if discarded:
            approval = getattr(call, "approval", None)
            assert approval is not None, f"{call} repeats {discarded[0]} without an approval"
            assert approval.decision == "approved"

    def _was_there(self, call: ToolCall, other: ToolCall) -> bool:
        """Sessions that were forked off go their own ways: only the discarded branches of its own lineage count."""
        mine = {pk for pk, _ in call.branch.segments()}
        sessions = set(Branch.objects.filter(pk__in=mine).values_list("session", flat=True))
        return other.branch.session_id in sessions

    def _results(self, session: Session) -> None:
        """A call that has ended never changes again, and the model has read its result."""
        branch = branch_of(session)
        for call in ToolCall.objects.filter(branch__session=session, ended_at__isnull=False):
            kept = (call.status, call.result, call.error, call.attempt, call.ended_at)
            assert self.ended.setdefault(call.pk, kept) == kept
        results = {
            (result.origin.id, str(result.result))
            for _, message in conversation_of(branch)
            for result in message.tool_call_results
        }
        last = Checkpoint.objects.visible_on(branch).order_by("-position").first()
        before = ToolCall.objects.visible_on(branch, upto=last.position if last else 0)
        for call in before.filter(status=CallStatus.DONE):
            assert (call.call_id, call.result) in results

    def _asked_once(self) -> None:
        """A reply that arrived and was committed is never asked for again."""
        committed = ModelCall.objects.filter(branch__session__in=self.known, error="").count()
        assert 0 <= faults.asked - committed <= self.uncommitted

    # In the end

    def teardown(self) -> None:
        """Whatever happened, every session can be brought to its end."""
        self.touched = self.known
        self.all_is_as_promised()
        for pk in self.known:
            for _ in range(60):
                session = fresh(pk)
                if session.status in (Status.IDLE, Status.CANCELLED):
                    break
                self.touched = [pk]
                self.help(pk)
                self.all_is_as_promised()
            assert session.status in (Status.IDLE, Status.CANCELLED), session.status
            if session.status == Status.IDLE:
                assert session.phase == "done"
                assert self.unread[pk] == []
                [*_, (_, last)] = conversation_of(branch_of(session))
                assert (last.text or "").startswith("Answer to ")

    def help(self, pk: UUID) -> None:
        """Do what the session needs in order to go on."""
        session = fresh(pk)
        if session.status == Status.RUNNING:
            self.find_lost(pk)
        elif session.status == Status.QUEUED:
            self.hurry(pk)
            self._drive(pk)
        elif session.waiting_for == WaitingFor.APPROVAL:
            self.answer(pk, "approve", 0)
        elif session.waiting_for == WaitingFor.DOUBT:
            self.decide(pk, "result", 0)
        elif session.status != Status.CANCELLED:
            self.resume(pk)
