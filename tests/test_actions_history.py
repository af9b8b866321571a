"""Rewind, undo and fork: what is visible, what the session is then, and that nothing is lost."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from sessions_app import actions
from sessions_app.access.errors import Invalid, Moved, NotFound, Refused
from sessions_app.actions.history import LEFT_FIELDS
from sessions_app.history import restore
from sessions_app.models import Branch, Checkpoint, InboxMessage, Message, Phase, Session, Status, ToolCall
from sessions_app.runtime import leases
from tests import builders
from tests.builders import SYSTEM, branch_of, fresh

pytestmark = pytest.mark.django_db

Build = Callable[..., Session]


def texts(session: Session) -> list[str]:
    return [message.text for message in Message.objects.visible_on(branch_of(fresh(session)))]


def checkpoints(session: Session) -> list[Checkpoint]:
    return list(Checkpoint.objects.visible_on(branch_of(fresh(session))))


def rewind(session: Session, checkpoint: Checkpoint, **how: Any) -> Session:
    return actions.rewind(
        actor=SYSTEM, session_id=session.pk, checkpoint_id=checkpoint.pk, reason="another way", **how
    )


def undo(session: Session) -> Session:
    return actions.undo(actor=SYSTEM, session_id=session.pk, reason="it was right")


def fork(session: Session, checkpoint: Checkpoint, **how: Any) -> Session:
    return actions.fork(
        actor=SYSTEM, session_id=session.pk, checkpoint_id=checkpoint.pk, reason="try it", **how
    )


# Rewind


def test_a_rewind_shows_the_history_up_to_the_checkpoint_and_loses_nothing() -> None:
    session = builders.done()
    before, [start, step, end] = texts(session), checkpoints(session)
    after = rewind(session, step)
    assert texts(session) == before[: before.index("Yes, POL-7 covers your windscreen.")]
    assert checkpoints(session) == [start, step]
    assert Checkpoint.objects.filter(pk=end.pk).exists()
    assert [branch.number for branch in after.branches.all()] == [1, 2]


def test_a_rewound_session_is_paused_as_it_was_at_the_checkpoint() -> None:
    session = builders.done()
    step = checkpoints(session)[1]
    rewind(session, step)
    after = fresh(session)
    assert (after.status, after.why) == (Status.PAUSED, "another way")
    assert (after.phase, after.previous_phase, after.totals) == (step.phase, "", step.totals)
    assert (after.final_answer, after.exit_reason, after.error, after.definition) == (
        "",
        "",
        "",
        step.definition,
    )
    branch = branch_of(after)
    assert branch.parent == branch.undo_to == Branch.objects.get(session=session, number=1)
    assert (branch.left_at, branch.reason, branch.created_by) == (step.position, "another way", None)
    event = after.events.last()
    assert event is not None
    assert event.data == {"checkpoint": step.pk, "position": step.position, "from_branch": 1, "to_branch": 2}


def test_a_rewound_session_may_run_on_at_once(woken: list[str]) -> None:
    session = builders.done()
    rewind(session, checkpoints(session)[1], run=True)
    after = fresh(session)
    assert (after.status, after.phase) == (Status.QUEUED, Phase.REFLECTING)
    assert woken == [str(session.pk)]


@pytest.mark.parametrize("run", [False, True])
def test_at_the_end_of_a_turn_there_is_nothing_to_run(run: bool, woken: list[str]) -> None:
    session = builders.done()
    end = checkpoints(session)[-1]
    rewind(session, end, run=run)
    after = fresh(session)
    assert (after.status, after.phase, after.final_answer) == (
        Status.IDLE,
        Phase.DONE,
        "Yes, POL-7 covers your windscreen.",
    )
    assert woken == []


@pytest.mark.parametrize("run, expected", [(False, ("paused", "done")), (True, ("queued", "planning"))])
def test_what_lies_in_the_inbox_is_not_forgotten_by_a_rewind(run: bool, expected: tuple[str, str]) -> None:
    session = builders.done()
    InboxMessage.objects.create(session=session, text="And the mirror?")
    rewind(session, checkpoints(session)[-1], run=run)
    after = fresh(session)
    assert (after.status, after.phase) == expected
    assert after.inbox.count() == 1


def test_rewinding_a_running_session_fences_its_worker() -> None:
    session = builders.running()
    Session.objects.filter(pk=session.pk).update(
        status=Status.QUEUED, next_run_at=timezone.now(), lease_expires_at=None
    )
    claim = leases.claim(session.pk, "host:1")
    assert claim is not None
    rewind(session, checkpoints(session)[0])
    after = fresh(session)
    assert after.epoch == claim.epoch + 1
    assert (after.worker, after.lease_expires_at, after.stop_request, after.attempt) == ("", None, "", 0)
    assert leases.renew([claim]) == set()


def test_no_session_is_rewound_into_the_middle_of_a_step() -> None:
    history = builders.looked_up()
    inside = history.checkpoint("prepared")
    session = history.rest("paused")
    for action in (rewind, fork):
        with pytest.raises(Refused, match="mid-step"):
            action(session, inside)


def test_a_session_goes_back_to_a_checkpoint_of_a_branch_it_has_left() -> None:
    session = builders.done()
    before, [start, _, end] = texts(session), checkpoints(session)
    rewind(session, start)
    rewind(session, end)
    after = fresh(session)
    assert texts(session) == before
    branch = branch_of(after)
    assert branch.parent is not None
    assert (branch.number, branch.parent.number, branch.undo_to_id) == (
        3,
        1,
        Branch.objects.get(session=session, number=2).pk,
    )


@pytest.mark.parametrize("action", [rewind, fork])
def test_the_checkpoint_of_another_session_is_not_found(action: Callable[..., Session]) -> None:
    session, other = builders.done(), builders.done()
    with pytest.raises(NotFound, match="no checkpoint"):
        action(session, checkpoints(other)[0])


def test_a_fork_does_not_see_what_its_source_did_later() -> None:
    source = builders.done()
    start, step, end = checkpoints(source)
    child = fork(source, step)
    assert checkpoints(child) == [start, step]
    with pytest.raises(NotFound):
        rewind(child, end)


def test_a_rewound_fork_finds_its_way_to_all_that_it_came_with() -> None:
    source = builders.done()
    start, step, _ = checkpoints(source)
    child = fork(source, step)
    rewind(child, start)
    assert checkpoints(child) == [start]
    rewind(child, step)
    assert checkpoints(child) == [start, step]
    parent = branch_of(fresh(child)).parent
    assert parent is not None
    assert (parent.session_id, parent.number) == (child.pk, 1)


# Undo

UNTOUCHED = [name for name in LEFT_FIELDS if name not in ("status", "why")] + ["phase_since", "branch_id"]


@pytest.mark.parametrize("build", [build for name, build in builders.STATES.items() if name != "queued"])
def test_undo_brings_back_what_a_rewind_took(build: Build) -> None:
    session = fresh(build())
    before = texts(session)
    rewind(session, checkpoints(session)[0])
    undo(session)
    after = fresh(session)
    assert texts(session) == before
    for name in UNTOUCHED:
        assert getattr(after, name) == getattr(session, name), name
    if session.status in (Status.QUEUED, Status.RUNNING):
        assert (after.status, after.why) == (Status.PAUSED, "it was right")
    else:
        assert (after.status, after.why) == (session.status, session.why)
    assert after.epoch == session.epoch + 2
    assert (after.stop_request, after.worker, after.lease_expires_at) == ("", "", None)
    event = after.events.last()
    assert event is not None
    assert (event.kind, event.description) == ("undone", "undid the rewind")
    assert event.data["to_branch"] == branch_of(session).number


def test_rewinds_are_undone_one_after_the_other() -> None:
    session = builders.done()
    before, [start, step, _] = texts(session), checkpoints(session)
    rewind(session, step)
    rewind(session, start)
    assert branch_of(undo(session)).number == 2
    assert branch_of(undo(session)).number == 1
    assert texts(session) == before
    with pytest.raises(Refused, match="no rewind to undo"):
        undo(session)


def test_what_the_rewound_branch_did_stays_readable_after_undo() -> None:
    session = builders.done()
    rewind(session, checkpoints(session)[0])
    rewound = branch_of(fresh(session))
    Message.objects.create(branch=rewound, position=fresh(session).position + 1, role="user", text="hello")
    undo(session)
    assert "hello" not in texts(session)
    assert "hello" in [message.text for message in Message.objects.visible_on(rewound)]


def test_a_message_sent_after_the_rewind_is_not_forgotten_by_undo() -> None:
    session = builders.done()
    rewind(session, checkpoints(session)[0])
    actions.send_message(actor=SYSTEM, session_id=session.pk, text="And the mirror?")
    undo(session)
    after = fresh(session)
    assert (after.status, after.phase) == (Status.PAUSED, Phase.DONE)
    actions.resume(actor=SYSTEM, session_id=session.pk, reason="go on")
    assert fresh(session).status == Status.QUEUED


# Fork


def test_a_fork_shares_the_history_and_copies_no_row() -> None:
    source = builders.done(tags=["glass"], inputs={"state": {"policy": "POL-7"}})
    rows = (Message.objects.count(), ToolCall.objects.count(), Checkpoint.objects.count())
    step = checkpoints(source)[1]
    child = fresh(fork(source, step))
    assert texts(child) == texts(source)[: len(texts(child))]
    assert checkpoints(child)[-1] == step
    assert (Message.objects.count(), ToolCall.objects.count(), Checkpoint.objects.count()) == rows
    assert child.forked_from == step
    assert (child.agent, child.customer, child.inputs) == (source.agent, source.customer, source.inputs)
    assert [tag.name for tag in child.tags.all()] == ["glass"]
    assert child.title == f"{source.title} (fork)"
    assert (child.phase, child.totals, child.definition) == (step.phase, step.totals, step.definition)
    branch = branch_of(child)
    assert (branch.number, branch.parent_id, branch.undo_to_id, branch.left_at) == (
        1,
        branch_of(source).pk,
        None,
        step.position,
    )
    assert child.position > step.position


@pytest.mark.parametrize(
    "how, place, expected",
    [
        ({}, 1, ("paused", "reflecting")),
        ({"run": True}, 1, ("queued", "reflecting")),
        ({"message": "What about my mirror?"}, 1, ("queued", "reflecting")),
        ({}, 2, ("idle", "done")),
        ({"run": True}, 2, ("idle", "done")),
        ({"message": "What about my mirror?"}, 2, ("queued", "planning")),
    ],
)
def test_a_fork_runs_if_it_is_told_to_and_has_something_to_do(
    how: dict[str, Any], place: int, expected: tuple[str, str], woken: list[str]
) -> None:
    source = builders.done()
    child = fresh(fork(source, checkpoints(source)[place], **how))
    assert (child.status, child.phase) == expected
    assert [message.text for message in child.inbox.all()] == [how[name] for name in how if name == "message"]
    assert woken == ([str(child.pk)] if expected[0] == "queued" else [])


def test_both_sessions_know_of_the_fork() -> None:
    source = builders.done()
    step = checkpoints(source)[1]
    child = fork(source, step, title="Second try")
    assert child.title == "Second try"
    point = {"checkpoint": step.pk, "position": step.position}
    told, kept = child.events.get(), source.events.last()
    assert kept is not None
    assert (told.kind, told.data) == ("forked", {**point, "from": str(source.pk)})
    assert (kept.kind, kept.data) == ("forked", {**point, "to": str(child.pk)})


def test_a_source_has_failed_as_long_as_before_it_was_forked_and_is_not_forked_twice_by_one_page() -> None:
    source = builders.failed()
    failed_at = timezone.now() - timedelta(hours=1)
    Session.objects.filter(pk=source.pk).update(updated_at=failed_at)
    how: dict[str, Any] = {
        "actor": SYSTEM,
        "session_id": source.pk,
        "checkpoint_id": checkpoints(source)[0].pk,
        "reason": "try",
    }
    actions.fork(**how, expected_version=source.version)
    assert fresh(source).updated_at == failed_at
    with pytest.raises(Moved):
        actions.fork(**how, expected_version=source.version)


def test_a_running_session_is_forked_without_being_disturbed() -> None:
    source = builders.running()
    fork(source, checkpoints(source)[0])
    after = fresh(source)
    for name in ("status", "epoch", "worker", "lease_expires_at", "attempt", "branch_id", "phase"):
        assert getattr(after, name) == getattr(source, name), name


def test_a_fork_of_a_fork_sees_the_whole_lineage() -> None:
    source = builders.done()
    child = fork(source, checkpoints(source)[1])
    grandchild = fork(child, checkpoints(child)[0])
    assert checkpoints(grandchild) == checkpoints(source)[:1]


@pytest.mark.slow
@pytest.mark.parametrize("action", [rewind, fork])
def test_the_cost_does_not_depend_on_how_long_the_history_is(action: Callable[..., Session]) -> None:
    counts = []
    for steps in (1, 30):
        history = builders.asked()
        for _ in range(steps):
            history.lookup()
        session = history.rest("paused")
        checkpoint = history.last_checkpoint
        with CaptureQueriesContext(
            connection,
        ) as queries:
            action(session, checkpoint)
        counts.append(len(queries))
    assert counts[0] == counts[1] < 20


# Against a model that copies lists


class Histories(RuleBasedStateMachine):
    """Random rewinds, undos and forks between steps of work. The model of a branch is the list of its rows, copied."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, list[tuple[str, int]]] = {}
        self.undo_to: dict[int, int | None] = {}

    def branch(self, session: Session) -> int:
        return branch_of(fresh(session)).pk

    def known(self, session: Session) -> list[int]:
        """The checkpoints that some branch of the session shows."""
        return sorted(
            {
                pk
                for branch in session.branches.values_list("pk", flat=True)
                for kind, pk in self.seen[branch]
                if kind == "checkpoint"
            }
        )

    def upto(self, session: Session, checkpoint: int) -> list[tuple[str, int]]:
        for branch in session.branches.values_list("pk", flat=True):
            rows = self.seen[branch]
            if ("checkpoint", checkpoint) in rows:
                return rows[: rows.index(("checkpoint", checkpoint)) + 1]
        raise AssertionError("the session does not know the checkpoint")

    def run_a_step(self, session: Session) -> None:
        """What a worker would commit."""
        session, branch = fresh(session), self.branch(session)
        message = Message.objects.create(
            branch_id=branch, position=session.position + 1, role="assistant", text="x"
        )
        checkpoint = Checkpoint.objects.create(
            branch_id=branch, position=session.position + 2, kind="step", step=1, phase="reflecting"
        )
        Session.objects.filter(pk=session.pk).update(position=session.position + 2)
        self.seen[branch] += [("message", message.pk), ("checkpoint", checkpoint.pk)]

    @initialize(target=sessions)
    def first(self) -> Session:
        session = builders.History().rest("paused")
        self.seen[self.branch(session)] = []
        self.undo_to[self.branch(session)] = None
        self.run_a_step(session)
        return session

    @rule(session=sessions)
    def work(self, session: Session) -> None:
        self.run_a_step(session)

    @rule(session=sessions, choice=st.integers(0))
    def rewind(self, session: Session, choice: int) -> None:
        known = self.known(session)
        checkpoint = known[choice % len(known)]
        left, rows = self.branch(session), self.upto(session, checkpoint)
        rewind(session, Checkpoint.objects.get(pk=checkpoint))
        self.seen[self.branch(session)] = list(rows)
        self.undo_to[self.branch(session)] = left

    @rule(session=sessions)
    def undo(self, session: Session) -> None:
        target = self.undo_to[self.branch(session)]
        if target is None:
            with pytest.raises(Refused):
                undo(session)
        else:
            undo(session)
            assert self.branch(session) == target

    @rule(target=sessions, session=sessions, choice=st.integers(0))
    def fork(self, session: Session, choice: int) -> Session:
        known = self.known(session)
        checkpoint = known[choice % len(known)]
        rows = self.upto(session, checkpoint)
        child = fork(session, Checkpoint.objects.get(pk=checkpoint))
        self.seen[self.branch(child)] = list(rows)
        self.undo_to[self.branch(child)] = None
        return child

    def teardown(self) -> None:
        """Every branch shows what the model says, also those that were left long ago."""
        for branch in Branch.objects.filter(pk__in=self.seen):
            rows = [
                *((row.position, "message", row.pk) for row in Message.objects.visible_on(branch)),
                *((row.position, "checkpoint", row.pk) for row in Checkpoint.objects.visible_on(branch)),
            ]
            assert [(kind, pk) for _, kind, pk in sorted(rows)] == self.seen[branch.pk]


@pytest.mark.slow
def test_random_rewinds_undos_and_forks_show_what_copying_lists_would() -> None:
    run_state_machine_as_test(
        Histories, settings=settings(max_examples=30, stateful_step_count=20, deadline=None)
    )


def _seen(session: Session) -> list[tuple[str, str]]:
    """What the model sees when the session goes on."""
    base = restore.read(builders.branch_of(session)).checkpoint
    assert base is not None
    return [(m.body["role"], m.body["content"][0].get("text", "")) for m in base.context]


def test_a_fork_with_other_words_in_a_messages_place_shows_the_model_only_those() -> None:
    source = builders.done()
    start = Checkpoint.objects.get(branch=source.branch, kind="start")
    asked = Message.objects.get(branch=source.branch, role="user")
    fork = actions.fork(
        actor=SYSTEM,
        session_id=source.pk,
        checkpoint_id=start.pk,
        replace=asked.position,
        message="Is my roof covered by POL-8?",
        reason="She meant the roof",
    )
    assert _seen(fork) == [
        ("system", "You help with insurance claims."),
        ("user", "Is my roof covered by POL-8?"),
    ]
    assert (fork.status, fork.phase, fork.inbox.count()) == ("queued", "planning", 0)
    assert fork.position == max(fork.events.values_list("position", flat=True))
    # The source is as it was.
    source.refresh_from_db()
    assert _seen(source)[1] == ("user", "Is my windscreen covered by POL-7?")


def test_other_words_may_stand_in_the_middle_of_what_the_model_sees() -> None:
    source = builders.done()
    step = Checkpoint.objects.get(branch=source.branch, kind="step")
    asked = Message.objects.get(branch=source.branch, role="user")
    fork = actions.fork(
        actor=SYSTEM,
        session_id=source.pk,
        checkpoint_id=step.pk,
        replace=asked.position,
        message="  Just look POL-7 up\n",
        reason="Shorter",
    )
    assert [role for role, _ in _seen(fork)] == ["system", "user", "assistant", "tool"]
    assert _seen(fork)[1] == ("user", "  Just look POL-7 up\n")


def test_a_message_in_another_ones_place_keeps_its_pictures_and_files_in_a_fork_as_after_a_repair() -> None:
    picture = {"image": {"base64_image": "iVBORw0KGgo=", "mime_type": "image/png", "validation": False}}
    file = {"file": {"base64_data": "JVBERi0=", "mime_type": "application/pdf", "filename": "claim.pdf"}}
    source = builders.done()
    start = Checkpoint.objects.get(branch=source.branch, kind="start")
    asked = Message.objects.get(branch=source.branch, role="user")
    asked.body = {"content": [picture, {"text": None}, file], "name": "anna"}
    asked.save()
    other: dict[str, Any] = {"actor": SYSTEM, "session_id": source.pk, "reason": "She meant the damage"}
    fork = actions.fork(**other, checkpoint_id=start.pk, replace=asked.position, message="What is it worth?")
    repaired = actions.replace_message(**other, position=asked.position, text="What is it worth?")
    for session in (fork, repaired):
        base = restore.read(builders.branch_of(session)).checkpoint
        assert base is not None
        body = base.context[1].body
        assert body["content"] == [picture, {"text": "What is it worth?"}, file]
        assert (body["role"], body["name"]) == ("user", "anna")


@pytest.mark.parametrize(
    "kind, place, message, error",
    [
        ("start", "user", "", "Write the new message"),
        ("start", "system", "Hello", "sees no user message"),
        ("start", "nowhere", "Hello", "sees no user message"),
        ("end", "user", "Hello", "the end of its turn"),
    ],
)
def test_words_that_stand_in_nobodys_place_make_no_fork(
    kind: str, place: str, message: str, error: str
) -> None:
    source = builders.done()
    rows = dict(Message.objects.filter(branch=source.branch).values_list("role", "position"))
    with pytest.raises((Invalid, NotFound), match=error):
        actions.fork(
            actor=SYSTEM,
            session_id=source.pk,
            checkpoint_id=Checkpoint.objects.get(branch=source.branch, kind=kind).pk,
            replace=rows.get(place, 10_000),
            message=message,
            reason="Another way",
        )
    assert Session.objects.count() == 1
