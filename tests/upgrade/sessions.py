"""Makes the sessions of a stored database: one in each condition that there is, by the real engine.

What a person does is one of the `actions`, and what a worker does is `drive`. A worker dies by an exception that
nothing catches, which leaves the rows as a killed process leaves them. Only `by_hand` writes a row that no action
would write.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from agentstate.durable.registry import registry
from sessions_app import actions
from sessions_app.access.roles import Actor, give_role
from sessions_app.actions import bulk
from sessions_app.models import (
    Branch,
    BulkAction,
    Checkpoint,
    Message,
    Session,
    Status,
    ToolCall,
)
from sessions_app.runtime import leases, recovery
from sessions_app.runtime.agents import publish_agents
from sessions_app.runtime.leases import Heartbeat
from sessions_app.runtime.worker import drive
from tests.driving import unregister
from tests.upgrade import agents
from tests.upgrade.agents import faults

Kind = Checkpoint.Kind


class ServerError(Exception):
    """What a client raises when the model's server answers with an HTTP error."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"HTTP {status_code}: the model's server does not answer.")
        self.status_code = status_code


BUSY, REFUSED = 503, 400


# What people and workers do.


def actor(name: str = "operator") -> Actor:
    return Actor.of(User.objects.get(username=name))


def start_session(
    title: str, text: str, *, run: bool = True, agent: str = agents.WORKS, **how: Any
) -> Session:
    session = actions.start(actor=actor(), agent=agent, message=text, title=title, **how)
    return drive_to_rest(session) if run else session


def fresh(session: Session) -> Session:
    return Session.objects.select_related("branch").get(pk=session.pk)


def drive_once(session: Session, **how: Any) -> str:
    """Make the session due, and let a worker drive it for one slice. Returns the status that it was left in."""
    Session.objects.filter(pk=session.pk, status=Status.QUEUED).update(next_run_at=timezone.now())
    return drive(session.pk, worker="worker-1", **how)


def drive_to_rest(session: Session) -> Session:
    """Let workers drive the session until it waits for a person or its turn is over."""
    while (became := drive_once(session)) == "queued":
        pass
    assert became not in ("busy", "lost"), f"{session.title}: {became}"
    return fresh(session)


def drive_step(session: Session) -> Session:
    """Let a worker do one step of the session; the session stays queued."""
    assert drive_once(session, slice_seconds=0) == "queued"
    return fresh(session)


def send(session: Session, text: str, *, run: bool = True, by: str = "operator") -> Session:
    actions.send_message(actor=actor(by), session_id=session.pk, text=text)
    return drive_to_rest(session) if run else fresh(session)


def kill_in(session: Session, *places: str) -> Session:
    """Let a worker drive the session and die in one of these tools, or in "model". It stays running."""
    faults.dies_in = set(places)
    try:
        became = drive_once(session)
    except agents.Killed:
        return fresh(session)
    finally:
        faults.dies_in = set()
    raise AssertionError(f"{session.title} did not come to {places}, it is {became}")


def expire_lease(session: Session) -> Session:
    """Let the lease of the worker that died run out."""
    Session.objects.filter(pk=session.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    return fresh(session)


def lose_in(session: Session, *places: str) -> Session:
    """Let a worker die, as `kill_in` does, and its lease run out."""
    return expire_lease(kill_in(session, *places))


@contextmanager
def model_raises(*codes: int) -> Iterator[None]:
    """Within this block the model's server answers with these codes, one after the other."""
    faults.model_raises = [ServerError(code) for code in codes]
    yield
    assert not faults.model_raises, "the model was not asked often enough"


def drive_meanwhile(session: Session, action: Callable[[Session], object]) -> Session:
    """Let workers drive the session, and let a person act on it while the first one waits for the model."""
    faults.meanwhile = lambda: action(fresh(session))
    return drive_to_rest(session)


def calls_of(session: Session, tool: str) -> list[ToolCall]:
    branch = fresh(session).branch
    assert branch is not None
    return list(ToolCall.objects.visible_on(branch).filter(tool=tool).order_by("position"))


def checkpoint(session: Session, kind: Kind, number: int) -> int:
    """Returns the key of a visible checkpoint: `number` counts those of that kind, from 1."""
    branch = fresh(session).branch
    assert branch is not None
    found = Checkpoint.objects.visible_on(branch).filter(kind=kind).order_by("position")
    return found.values_list("pk", flat=True)[number - 1]


def said_by_user(session: Session) -> int:
    """Returns the position of the user's first message."""
    branch = fresh(session).branch
    assert branch is not None
    first = Message.objects.visible_on(branch).filter(role="user").order_by("position").first()
    assert first is not None
    return first.position


def rewind(session: Session, kind: Kind, number: int, *, run: bool = False) -> Session:
    return actions.rewind(
        actor=actor(),
        session_id=session.pk,
        checkpoint_id=checkpoint(session, kind, number),
        reason="Another way is better",
        run=run,
    )


def fork(session: Session, title: str, kind: Kind, number: int, **how: Any) -> Session:
    return actions.fork(
        actor=actor(),
        session_id=session.pk,
        checkpoint_id=checkpoint(session, kind, number),
        title=title,
        reason="What if",
        **how,
    )


def undo(session: Session) -> Session:
    return actions.undo(actor=actor(), session_id=session.pk, reason="It was right before")


def pause(session: Session) -> Session:
    return actions.pause(actor=actor(), session_id=session.pk, reason="The customer calls back")


def cancel(session: Session) -> Session:
    return actions.cancel(actor=actor(), session_id=session.pk, reason="The customer has withdrawn it")


def resume(session: Session) -> Session:
    return actions.resume(actor=actor(), session_id=session.pk, reason="Go on")


def approve(session: Session, tool: str = "pay", number: int = 1, **how: Any) -> Session:
    call = calls_of(session, tool)[number - 1]
    return actions.approve(actor=actor("supervisor"), session_id=session.pk, call_id=call.pk, **how)


def reject(session: Session, tool: str = "pay") -> Session:
    call = calls_of(session, tool)[-1]
    return actions.reject(
        actor=actor("supervisor"), session_id=session.pk, call_id=call.pk, message="Not without the papers."
    )


def decide(session: Session, number: int = 1, **how: Any) -> Session:
    call = calls_of(session, "post")[number - 1]
    return actions.decide(
        actor=actor(), session_id=session.pk, call_id=call.pk, reason="I have asked them", **how
    )


def in_doubt(title: str, text: str = "post a letter") -> Session:
    """Make a session whose worker died while it posted: nobody knows whether the call took effect."""
    session = drive_to_rest(lose_in(start_session(title, text, run=False), "post"))
    assert session.waiting_for == "doubt", session.why
    return session


def expire_approvals(session: Session) -> Session:
    """Let the time be over in which the session's open approvals can be given."""
    session.approvals.filter(decision="").update(expires_at=timezone.now() - timedelta(seconds=1))
    return fresh(session)


# The conditions. Each function makes one session or more.


def answered() -> None:
    start_session(
        "Answered at once",
        "Grüße, 世界 🌍 — is everything “fine”?\n\n<b>Not</b> bold; it's 100 % plain\ttext.",
        customer="Zoë O’Neill & Söhne",
        tags=("Greeting", "ünïcode", "  two words "),
        reason="She called",
    )


def three_turns() -> None:
    session = start_session(
        "Three turns",
        "look a + read b + fetch d1; note one + count; note two + plan x,y; broken glass + look c",
        customer="Ada Lovelace",
        state={"who": "Ada Lovelace", "notes": ["zero"]},
        generation_kwargs={"temperature": 0.0},
    )
    send(session, "fetch d2; count + note three")
    send(session, "Thank you.", by="supervisor")


def every_type() -> None:
    drive_step(start_session("Every type of value", "store it + odd thing; weigh it", run=False))


def ends_by_tool() -> None:
    start_session("Ended by a tool", "look a; finish with this answer")


def many_steps() -> None:
    start_session("Many steps", ";".join(f"note {n} + read q{n}" for n in range(12)))


def kept_results() -> None:
    start_session("Answered from the cache", "look a + look fresh; look fresh")


def approvals() -> None:
    session = start_session("Approval open, with an unread message", "read a + pay A1 100", tags=("money",))
    send(session, "look b", run=False)
    session = start_session("Two approvals, one given", "pay B1 100 + pay B2 200 + note both")
    approve(session, number=1, reason="It is due")
    drive_to_rest(reject(start_session("Rejected", "pay D1 100 + read e; look after")))
    edited = {"order": "E1", "amount": 50}
    drive_to_rest(
        approve(start_session("Approved with other arguments", "pay E1 100; look after"), edited=edited)
    )
    approve(start_session("Approved, not yet run", "pay F1 100"), edited={"order": "F1", "amount": 7})
    start_session("Approval open with a time limit", "lend G1 10")


def expired() -> None:
    session = expire_approvals(start_session("Approval expired", "lend H1 10; look after"))
    recovery.sweep()
    drive_to_rest(session)


def allowances() -> None:
    session = start_session("Allowed for the session", "pay A1 1; pay A2 2; look after")
    drive_to_rest(approve(session, for_session=True))
    session = start_session("Allowance withdrawn", "pay A1 1; look after")
    drive_to_rest(approve(session, for_session=True, reason="Small sums"))
    actions.withdraw(actor=actor("supervisor"), session_id=session.pk, tool="pay", reason="No longer")
    send(session, "pay A3 3; look after")


def doubts() -> None:
    session = in_doubt("Two in doubt, one decided", "read a + post one + post two; look after")
    decide(session, 1, result="posted it myself")
    drive_to_rest(decide(in_doubt("Doubt decided by another run", "post a; look after"), again=True))
    session = in_doubt("All doubts decided at once", "post one + post two; look after")
    one, two = calls_of(session, "post")
    decisions = {one.pk: {"result": "it is there"}, two.pk: {"skip": "Nobody posts this."}}
    actions.decide_all(actor=actor(), session_id=session.pk, decisions=decisions, reason="I have asked them")
    drive_to_rest(session)


def failures() -> None:
    with model_raises(*[BUSY] * 5):
        drive_to_rest(start_session("Retries used up", "look a", run=False))
    session = start_session("Tries again later", "look a; look b", run=False)
    drive_step(session)
    with model_raises(BUSY):
        drive_once(session)
    with model_raises(REFUSED):
        start_session("Failed for good", "look a")
    session = drive_step(start_session("Failed in the second step, and resumed", "look a; look b", run=False))
    with model_raises(BUSY, REFUSED):
        drive_to_rest(session)
    drive_to_rest(resume(session))
    session = start_session("Lost too often", "read a", run=False)
    for _ in range(5):
        lose_in(session, "read")
        recovery.sweep()
    assert fresh(session).waiting_for == "retries"


def agents_that_changed() -> None:
    with _older_agent():
        session = drive_step(
            start_session("Agent changed", "look a; look b", agent=agents.CHANGED, run=False)
        )
    assert drive_to_rest(session).waiting_for == "changed"
    session = drive_step(start_session("Agent missing", "look a; look b", agent=agents.GONE, run=False))
    registration = registry.get(agents.GONE)
    unregister(agents.GONE)
    try:
        assert drive_to_rest(session).waiting_for == "changed"
    finally:
        registry.add(registration)


@contextmanager
def _older_agent() -> Iterator[None]:
    """Within this block the agent is as it was before it was changed.

    A process builds each registration once, so the agent is registered again.
    """
    faults.older = True
    _register_anew(agents.CHANGED)
    try:
        yield
    finally:
        faults.older = False
        _register_anew(agents.CHANGED)


def _register_anew(key: str) -> None:
    registration = registry.get(key)
    unregister(key)
    registry.add(dataclasses.replace(registration))
    publish_agents()


def running() -> None:
    kill_in(start_session("Running in a tool", "look a; read b + post c", run=False), "post")
    session = drive_step(start_session("Running in the second step", "read a; read b", run=False))
    kill_in(session, "model")
    pause(kill_in(start_session("Running, asked to pause", "read a; look b", run=False), "read"))
    cancel(kill_in(start_session("Running, asked to cancel", "read a; look b", run=False), "read"))
    session = kill_in(
        start_session("Running, pause taken back, with an unread message", "read a; look b", run=False),
        "read",
    )
    resume(pause(session))
    send(session, "look at this too", run=False)
    kill_in(start_session("Running inside a step", "look a; look b", agent=agents.HOOKED, run=False), "model")


def swept() -> None:
    lose_in(start_session("Lost its worker, swept", "read a + look b", run=False), "read")
    expire_lease(pause(kill_in(start_session("Paused by the sweep", "read a; look b", run=False), "read")))
    expire_lease(
        cancel(kill_in(start_session("Cancelled by the sweep", "look a; read b", run=False), "read"))
    )
    recovery.sweep()


def not_swept() -> None:
    """These are sessions that the next sweep would change."""
    lose_in(start_session("Lost its worker", "look a; read b + post c", run=False), "read", "post")
    expire_lease(
        pause(kill_in(start_session("Lost its worker, asked to pause", "read a; look b", run=False), "read"))
    )
    expire_approvals(start_session("Approval lapsed, not yet swept", "lend I1 10; look after"))


def released() -> None:
    def release(session: Session) -> Session:
        return actions.release(actor=actor("supervisor"), session_id=session.pk, reason="It hangs")

    release(kill_in(start_session("Released", "read a; look b", run=False), "read"))
    release(cancel(kill_in(start_session("Released, asked to cancel", "look a; read b", run=False), "read")))


def queued_paused_cancelled() -> None:
    drive_step(start_session("Queued between steps", "look a; look b", run=False))
    pause(start_session("Paused before it began", "look a", run=False))
    session = pause(drive_step(start_session("Paused with unread messages", "look a; look b", run=False)))
    send(session, "look c", run=False)
    send(session, "note d", run=False, by="supervisor")
    drive_meanwhile(start_session("Paused by its worker", "look a; look b", run=False), pause)
    cancel(start_session("Cancelled before it began", "look a", run=False))
    drive_meanwhile(start_session("Cancelled by its worker", "look a; look b", run=False), cancel)
    cancel(start_session("Cancelled while it waited", "pay A1 100"))


def inbox() -> None:
    session = drive_step(start_session("Message read in the middle", "look a; look b", run=False))
    send(session, "note c; look d", by="supervisor")
    session = start_session("Message read while it ran", "look a", run=False)
    drive_meanwhile(session, lambda session: send(session, "note late", run=False))


def rewinds() -> None:
    text = "read a; note b; post c"
    rewind(start_session("Rewound and paused", text), Kind.STEP, 2)
    session = send(start_session("Rewound to the end of a turn", text), "note d")
    rewind(session, Kind.END, 1)
    session = rewind(start_session("Rewound, repeats an effect", text), Kind.START, 1, run=True)
    assert drive_to_rest(session).waiting_for == "approval"
    session = rewind(start_session("Repeated effect answered by its record", text), Kind.START, 1, run=True)
    call = calls_of(drive_to_rest(session), "post")[0]
    drive_to_rest(
        actions.reuse(actor=actor("supervisor"), session_id=session.pk, call_id=call.pk, reason="Same")
    )
    session = rewind(start_session("Repeated effect run again", text), Kind.START, 1, run=True)
    drive_to_rest(approve(drive_to_rest(session), "post", reason="It got lost"))
    session = start_session("Rewound twice", "note a; note b; note c; read d")
    rewind(session, Kind.STEP, 2, run=True)
    rewind(drive_to_rest(session), Kind.STEP, 1, run=True)
    send(drive_to_rest(session), "note e")


def undos() -> None:
    text = "read a; note b; pay A1 100"
    undo(rewind(start_session("Undone while it waited", text), Kind.STEP, 1))
    session = send(start_session("Undone", "note a; note b"), "note c")
    undo(drive_to_rest(rewind(session, Kind.STEP, 1, run=True)))
    session = undo(rewind(start_session("Rewound after an undo", "note a; post b; note c"), Kind.STEP, 1))
    rewind(session, Kind.STEP, 2, run=True)
    drive_to_rest(session)
    session = drive_step(start_session("Undone, was queued", "note a; note b", run=False))
    undo(rewind(session, Kind.START, 1))


def forks() -> None:
    source = send(
        start_session("Forked", "look a; post b; note c", tags=("source",), customer="Ada Lovelace"), "note d"
    )
    fork(source, "Fork at the end of a turn", Kind.END, 1)
    other = drive_to_rest(fork(source, "Fork with a message", Kind.END, 1, message="note e; look f"))
    drive_to_rest(fork(other, "Fork of a fork", Kind.END, 2, message="fetch d; count"))
    session = fork(source, "Fork that repeats an effect", Kind.STEP, 1, run=True)
    assert drive_to_rest(session).waiting_for == "approval"
    replaced: dict[str, Any] = {"replace": said_by_user(source), "message": "look x; post y"}
    pause(fork(source, "Fork with a replaced message", Kind.START, 1, **replaced))
    session = drive_to_rest(fork(source, "Fork, rewound", Kind.END, 2, message="note h; note i"))
    rewind(session, Kind.END, 1)


def repairs() -> None:
    why: dict[str, Any] = {"actor": actor("supervisor"), "reason": "It was wrong"}
    session = start_session("State repaired, and run on", "plan a,b; note c; pay A1 100")
    values = {"plan": {"steps": ["c"], "done": ["a"]}, "notes": ["mended"]}
    actions.edit_state(session_id=session.pk, values=values, **why)
    assert fresh(session).waiting_for == "approval"
    drive_to_rest(approve(session))
    session = pause(drive_step(start_session("Message repaired", "look a; look b", run=False)))
    actions.replace_message(
        session_id=session.pk, position=said_by_user(session), text="look a; note m", **why
    )
    session = pause(drive_step(start_session("Tool's result repaired", "look a; note b", run=False)))
    branch = fresh(session).branch
    assert branch is not None
    told = Message.objects.visible_on(branch).filter(role="tool").latest("position")
    actions.replace_message(session_id=session.pk, position=told.position, text="look: mended", **why)
    drive_to_rest(resume(session))
    session = in_doubt("Call skipped", "read a + post b + post c; look after")
    actions.answer_call(
        session_id=session.pk, call_id=calls_of(session, "post")[0].pk, skip="Never mind.", **why
    )
    session = start_session("Finished call answered anew", "look a; read b + pay A1 100")
    actions.answer_call(
        session_id=session.pk, call_id=calls_of(session, "read")[0].pk, result="mended", **why
    )
    session = in_doubt("Step done by hand", "look a; post b + post c; look after")
    results = {call.pk: f"{call.arguments['q']} by hand" for call in calls_of(session, "post")}
    actions.answer_step(session_id=session.pk, results=results, **why)
    drive_to_rest(resume(session))
    session = start_session("Step done by hand while it was asked for", "pay A1 100 + pay A2 200; look after")
    results = {call.pk: "paid in cash" for call in calls_of(session, "pay")}
    actions.answer_step(session_id=session.pk, results=results, **why)
    session = drive_step(start_session("Repaired after it failed", "note a; note b", run=False))
    with model_raises(REFUSED):
        drive_to_rest(session)
    actions.edit_state(session_id=session.pk, values={"notes": ["mended"]}, **why)
    session = start_session("Repaired at its end", "note a; note b")
    actions.edit_state(session_id=session.pk, values={"notes": []}, **why)
    session = start_session("Repair undone", "note a; pay A1 100")
    actions.edit_state(session_id=session.pk, values={"notes": ["mended"]}, **why)
    undo(session)


def memory_repaired() -> None:
    """Repairs one of the demo's sessions, since the demo's agent keeps a working memory."""
    session = Session.objects.get(title="Refund after a rear-end collision")
    actions.edit_memory(
        actor=actor("supervisor"),
        session_id=session.pk,
        goal="Refund what is due",
        plan=["Ask the bank", "Refund"],
        completed=["Ask the bank"],
        notes=["The bank has answered"],
        reason="The plan lacked a step",
    )


def shortened_contexts() -> None:
    session = start_session("Context cut short", "Count.", agent=agents.CUT, run=False)
    for _ in range(5):
        drive_step(session)
    session = start_session("Context summed up", "Count.", agent=agents.SUMMED)
    fork(session, "Fork of a summed up context", Kind.STEP, 5)
    rewind(session, Kind.STEP, 6)
    start_session("Reminded at each step", "look a; note b", agent=agents.HOOKED)


def beside() -> None:
    session = start_session("Assigned, noted and revealed", "read password", tags=("vip", "secret"))
    actions.assign(
        actor=actor("supervisor"),
        session_id=session.pk,
        assignee=User.objects.get(username="operator"),
        reason="You know her",
    )
    actions.note(actor=actor(), session_id=session.pk, text="She calls again on Monday.\nAsk for the number.")
    actions.reveal(actor=actor("supervisor"), session_id=session.pk, what="the timeline")
    former = User.objects.create_user("former")
    give_role(former, "operator")
    session = actions.start(
        actor=actor("former"), agent=agents.WORKS, message="look a", title="Begun by somebody who has left"
    )
    actions.send_message(actor=actor("former"), session_id=session.pk, text="look b")
    former.delete()
    session = actions.start(
        actor=Actor.command_line("somebody"), agent=agents.WORKS, message="look a", title="Begun by a command"
    )
    actions.assign(actor=actor(), session_id=session.pk, assignee=None)


def views() -> None:
    operator, supervisor = actor(), actor("supervisor")
    actions.save_view(actor=operator, name="Mine", query="queue=attention&assignee=me")
    actions.save_view(actor=operator, name="Ada", query="queue=all&customer=Ada", shared=True)
    actions.save_view(actor=supervisor, name="Money", query="queue=waiting&tag=money&status=waiting")
    actions.save_view(actor=supervisor, name="Letters", query="queue=all&q=posted", shared=True)


def bulk_acts() -> None:
    def begin(kind: str, name: str, **how: Any) -> BulkAction:
        chosen = Session.objects.filter(title__startswith=f"{name} ")
        query = f"queue=all&customer={name}"
        return actions.bulk_start(
            actor=actor("supervisor"), kind=kind, sessions=chosen, reason="A holiday", query=query, **how
        )

    def done(bulk_action: BulkAction) -> None:
        while bulk.run_batch(bulk_action.pk):
            pass

    for number in (1, 2):
        start_session(f"Shelved {number}", "look a", run=False, customer="Shelved")
        start_session(f"Called off {number}", "look a", run=False, customer="Called off")
    start_session("Shelved 3", "look a", customer="Shelved")
    done(begin("pause", "Shelved"))
    done(begin("assign", "Shelved", assignee=User.objects.get(username="operator")))
    stopped = begin("resume", "Shelved")
    bulk.run_batch(stopped.pk, limit=1)
    actions.bulk_stop(actor=actor("supervisor"), bulk_id=stopped.pk)
    unfinished = begin("cancel", "Called off")
    bulk.run_batch(unfinished.pk, limit=1)


def workers() -> None:
    Heartbeat("worker-1").beat()
    Heartbeat("worker-2").beat()
    leases.sign_off("worker-2")


def by_hand() -> None:
    """Writes a session in the phase "idle": the tables allow it, but no action leaves a session in it."""
    session = Session.objects.create(agent=agents.WORKS, title="Written by hand, idle")
    session.branch = Branch.objects.create(session=session, number=1)
    session.save()


CONDITIONS: tuple[Callable[[], None], ...] = (
    answered,
    three_turns,
    every_type,
    ends_by_tool,
    many_steps,
    kept_results,
    approvals,
    expired,
    allowances,
    doubts,
    failures,
    agents_that_changed,
    swept,
    released,
    queued_paused_cancelled,
    inbox,
    rewinds,
    undos,
    forks,
    repairs,
    memory_repaired,
    shortened_contexts,
    beside,
    views,
    bulk_acts,
    workers,
    by_hand,
    running,
    # These come last, since a sweep would change them.
    not_swept,
)


def people() -> None:
    """Makes a user in each role, and an administrator. They have no passwords."""
    for role in ("viewer", "operator", "supervisor"):
        give_role(User.objects.create_user(role), role)
    User.objects.create_superuser("admin")
