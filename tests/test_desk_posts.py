"""Every POST of the desk that is not a dialog: method, login, permission, reason, stale version, state."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client

from sessions_app.action_list import ACTIONS
from sessions_app.models import Allowance, Event, Session, StateValue, ToolCall
from tests import builders
from tests.test_desk_dialogs import POSSIBLE

pytestmark = pytest.mark.django_db
Fields = dict[str, Any]


def last_call(session: Session) -> int:
    return ToolCall.objects.filter(branch=session.branch).latest("position").pk


def remembering() -> Session:
    history = builders.looked_up()
    checkpoint = history.last_checkpoint
    StateValue.objects.create(branch=history.branch, position=checkpoint.position, key="limit", value=500)
    memory = {"goal": "Pay", "plan": [], "completed": [], "notes": []}
    StateValue.objects.create(
        branch=history.branch, position=checkpoint.position, key="working_memory", value=memory
    )
    checkpoint.keys = dict.fromkeys(("limit", "working_memory"), checkpoint.position)
    checkpoint.save()
    return history.rest("paused")


def remembering_running() -> Session:
    session = remembering()
    ready = builders.running()
    Session.objects.filter(pk=session.pk).update(
        status="running", worker="host:1", lease_expires_at=ready.lease_expires_at
    )
    session.refresh_from_db()
    return session


def repeating(decision: str = "") -> Session:
    history = builders.refunding()
    before = history.finish(history.calls[-1], "refunded 120 EUR")
    history.checkpoint("step")
    history.reply("Again.", [("issue_refund", {"claim": "CLM-1042", "amount": 120})])
    decided = {"decision": decision, "decided_at": history.now, "decided_by": "berta"} if decision else {}
    history.ask(history.calls[-1], repeats=before, **decided)
    return history.rest("waiting", waiting_for="approval")


def allowing() -> Session:
    session = builders.paused()
    Allowance.objects.create(session=session, tool="issue_refund", granted_by="berta")
    return session


def with_breakpoint() -> Session:
    row = {"number": 1, "tool": "issue_refund", "when": None, "once": False, "by": "berta"}
    return builders.paused(breakpoints=[row])


def stopped_before_refund() -> Session:
    history = builders.refunding()
    hit = {"before": "tools", "step": 1, "calls": [history.calls[-1].call_id]}
    return history.rest("paused", breakpoint_hit=hit)


def knowing() -> Session:
    session = builders.done(customer="Ada")
    builders.memory_entry(session, "She wants e-mails.")
    return session


def entry_of(session: Session) -> int:
    return session.memory_entries.get().pk


def of_the_message(session: Session) -> Fields:
    return {"position": builders.branch_of(session).messages.get(role="user").position, "text": "Roof?"}


def of_the_step(session: Session) -> Fields:
    return {f"result-{last_call(session)}": "Paid by hand"}


@dataclass(frozen=True)
class Post:
    """``fields`` are what the form sends besides the version and the reason; ``impossible`` a state that refuses it."""

    possible: Callable[[], Session]
    fields: Callable[[Session], Fields]
    impossible: Callable[[], Session] | None
    role: str = "supervisor"
    may_not: str = "operator"
    reason: bool = True
    version: bool = True
    event: str = "repaired"


POSTS = {
    "memory": Post(remembering, lambda _: {"goal": "Refund"}, remembering_running),
    "state-value": Post(remembering, lambda _: {"key": "limit", "value": "250"}, remembering_running),
    "message-text": Post(remembering, of_the_message, remembering_running),
    "answer": Post(
        builders.in_doubt,
        lambda s: {"call_id": last_call(s), "answer": "result", "text": "Paid"},
        builders.running,
    ),
    "step": Post(builders.in_doubt, of_the_step, builders.running),
    "release": Post(builders.running, lambda _: {}, builders.paused, event="released"),
    "reuse": Post(
        repeating,
        lambda s: {"call_id": last_call(s)},
        lambda: repeating("approved"),
        role="operator",
        may_not="viewer",
        reason=False,
        event="reused",
    ),
    "withdraw": Post(
        allowing,
        lambda _: {"tool": "issue_refund"},
        builders.paused,
        role="operator",
        may_not="viewer",
        reason=False,
        event="withdrawn",
    ),
    "breakpoint": Post(
        builders.running,
        lambda _: {"tool": ":model", "comparison": "="},
        builders.cancelled,
        role="operator",
        may_not="viewer",
        reason=False,
        event="breakpoint_set",
    ),
    "remove-breakpoint": Post(
        with_breakpoint,
        lambda _: {"number": 1},
        builders.paused,
        role="operator",
        may_not="viewer",
        reason=False,
        event="breakpoint_removed",
    ),
    "arguments": Post(
        stopped_before_refund,
        lambda s: {"call_id": last_call(s), "arg-claim": "CLM-1042", "arg-amount": "60"},
        builders.in_doubt,
        role="operator",
        may_not="viewer",
        reason=False,
        event="arguments_changed",
    ),
    "edit-entry": Post(
        knowing,
        lambda s: {"entry": entry_of(s), "text": "She wants letters."},
        None,
        event="memory_edited",
    ),
    "erase-entry": Post(knowing, lambda s: {"entry": entry_of(s)}, None, event="memory_erased"),
    "note": Post(
        builders.running,
        lambda _: {"text": "She called"},
        None,
        role="operator",
        may_not="viewer",
        reason=False,
        version=False,
        event="noted",
    ),
}
each_post = pytest.mark.parametrize("name", POSTS)


def address(session: Session, name: str) -> str:
    return f"/sessions/{session.pk}/{name}/"


def typed(session: Session, name: str, **changed: Any) -> Fields:
    return {
        "version": session.version,
        "reason": "Because of the rain",
        **POSTS[name].fields(session),
        **changed,
    }


def rows(session: Session) -> tuple[Any, ...]:
    now = Session.objects.get(pk=session.pk)
    return (now.status, now.position, now.branch_id, Event.objects.filter(session=session).count())


def logged_in(client: Client, role: str) -> Client:
    client.force_login(builders.user(role))
    return client


def test_every_act_of_the_desk_is_proven_here_or_there():
    assert POSTS.keys() | POSSIBLE.keys() == ACTIONS.keys()


@pytest.mark.slow
@each_post
def test_it_is_done_and_audited(client, name):
    session = POSTS[name].possible()
    answer = logged_in(client, POSTS[name].role).post(address(session, name), typed(session, name))
    assert answer.status_code == 302, answer.content.decode()
    event = Event.objects.filter(session=session).latest("position")
    assert event.kind == POSTS[name].event
    if name != "note":
        assert event.reason == "Because of the rain"


@each_post
def test_it_needs_a_login(client, name):
    session = POSTS[name].possible()
    before = rows(session)
    answer = client.post(address(session, name), typed(session, name))
    assert answer["Location"].startswith("/login/")
    assert rows(session) == before


@pytest.mark.slow
@each_post
def test_it_needs_the_permission(client, name):
    session = POSTS[name].possible()
    before = rows(session)
    answer = logged_in(client, POSTS[name].may_not).post(address(session, name), typed(session, name))
    assert answer.status_code == 403
    assert " needs the " in answer.content.decode()
    assert rows(session) == before


@pytest.mark.slow
@each_post
def test_other_methods_are_refused_and_forgeries_too(client, name):
    session = POSTS[name].possible()
    before = rows(session)
    logged_in(client, "supervisor")
    for method in (client.put, client.patch, client.delete):
        assert method(address(session, name)).status_code == 405
    strict = logged_in(Client(enforce_csrf_checks=True), "supervisor")
    assert strict.post(address(session, name), typed(session, name)).status_code == 403
    assert rows(session) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, post in POSTS.items() if post.reason])
@pytest.mark.parametrize("reason", ["", "  \n"])
def test_it_needs_a_reason(client, name, reason):
    session = POSTS[name].possible()
    before = rows(session)
    answer = logged_in(client, "supervisor").post(address(session, name), typed(session, name, reason=reason))
    assert answer.status_code == 400
    assert "Say why: the reason is kept in the audit trail." in answer.content.decode()
    assert rows(session) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, post in POSTS.items() if post.version])
def test_a_session_that_moved_meanwhile_is_a_conflict_and_sending_it_again_holds(client, name):
    session = POSTS[name].possible()
    fields = typed(session, name)
    Session.objects.filter(pk=session.pk).update(version=session.version + 1)
    before = rows(session)
    logged_in(client, "supervisor")
    answer = client.post(address(session, name), fields)
    text = answer.content.decode()
    assert answer.status_code == 409
    assert "has changed since this page was loaded" in text
    assert "Because of the rain" in text
    assert rows(session) == before
    again = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', text))
    assert client.post(address(session, name), fields | {"version": again["version"]}).status_code == 302


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, post in POSTS.items() if post.impossible])
def test_an_impossible_act_is_refused_and_says_why(client, name):
    impossible = POSTS[name].impossible
    assert impossible is not None
    session = impossible()
    before = rows(session)
    answer = logged_in(client, "supervisor").post(address(session, name), typed(session, name))
    # There is no allowance to take back, and no breakpoint to remove.
    assert answer.status_code == (404 if name in ("withdraw", "remove-breakpoint") else 409)
    assert 'role="alert"' in answer.content.decode()
    assert rows(session) == before
