"""What may be wrong with a session is a hint with a sentence and a row, which disappears once it is right."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app import actions
from sessions_app.desk.pages.session import diagnosis_facts, secrets
from sessions_app.desk.pages.session.diagnosis import diagnose
from sessions_app.desk.pages.session.header import header
from sessions_app.finding import queues, stuck
from sessions_app.history import restore
from sessions_app.models import Approval, Checkpoint, RegisteredAgent, Session, StateValue, ToolCall, Worker
from tests import builders

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def hints(session, now=None):
    context = builders.context_of(session, now=now)
    return diagnose(context, restore.last_visible(Checkpoint, context.branch))


def of_rule(session, rule, now=None):
    return [hint for hint in hints(session, now) if hint.rule == rule]


def only(session, rule, now=None):
    (hint,) = of_rule(session, rule, now)
    return hint


@pytest.mark.parametrize("state", ["done", "paused", "running", "pausing", "cancelled", "rewound", "forked"])
def test_a_healthy_session_has_no_hints(state):
    session = builders.STATES[state]()
    Worker.objects.create(name="host:1")
    assert hints(session, session.updated_at) == []


def test_a_call_in_doubt(settings):
    session = builders.in_doubt()
    call = ToolCall.objects.get(status="doubt")
    hint = only(session, "in doubt")
    assert (hint.tone, hint.kind, hint.anchor) == ("error", "call", f"c{call.position}")
    assert hint.text == "issue_refund is in doubt. The session continues once its outcome is recorded."
    actions.decide(
        actor=builders.SYSTEM, session_id=session.pk, call_id=call.pk, reason="Asked", result="done"
    )
    assert of_rule(session, "in doubt") == []


def test_an_approval_that_waits_for_long_or_has_lapsed():
    session = builders.waiting_for_approval()
    now = timezone.now()
    Approval.objects.update(asked_at=now, expires_at=now + 20 * MINUTE)
    assert of_rule(session, "old approval", now + 9 * MINUTE) == []
    late = only(session, "old approval", now + 11 * MINUTE)
    assert (late.tone, late.text) == ("waiting", "issue_refund has waited for an approval for 11 min.")
    assert late.anchor == f"c{ToolCall.objects.latest('position').position}"
    lapsed = only(session, "old approval", now + 21 * MINUTE)
    assert lapsed.tone == "error"
    assert "has expired" in lapsed.text


def test_a_worker_without_heartbeat(settings):
    settings.AGENTSTATE_LEASE_SECONDS, settings.AGENTSTATE_HEARTBEAT_SECONDS = 12, 5
    session = builders.running()
    assert session.lease_expires_at
    beat = session.lease_expires_at - timedelta(seconds=12)
    assert of_rule(session, "stale heartbeat", beat + timedelta(seconds=10)) == []
    late = only(session, "stale heartbeat", beat + timedelta(seconds=11))
    assert (late.tone, late.text) == (
        "waiting",
        "The last heartbeat of worker host:1 was 11 s ago; it may be lost.",
    )
    lost = only(session, "stale heartbeat", beat + timedelta(seconds=20))
    assert (lost.tone, lost.text) == (
        "error",
        "The last heartbeat of worker host:1 was 20 s ago; the next sweep hands the session to another.",
    )


def test_no_worker_is_online():
    session = builders.queued()
    due = session.next_run_at
    assert due
    assert of_rule(session, "not taken", due + timedelta(seconds=10)) == []
    hint = only(session, "not taken", due + 2 * MINUTE)
    assert (hint.tone, hint.text) == (
        "error",
        "It has been due for 2 min, but no worker is online. Start one.",
    )
    Worker.objects.create(name="host:1", beat_at=due + 2 * MINUTE)
    busy = only(session, "not taken", due + 2 * MINUTE)
    assert busy.tone == "waiting"
    assert "no worker has taken it. The workers are busy" in busy.text


def test_attempts_that_are_used_up_or_nearly(settings):
    settings.AGENTSTATE_MAX_ATTEMPTS = 5
    used_up = only(builders.retries_used_up(), "many attempts")
    assert (used_up.tone, used_up.text) == ("error", "All attempts are used up.")
    session = builders.retrying()
    assert of_rule(session, "many attempts") == []
    Session.objects.filter(pk=session.pk).update(attempt=4)
    assert "Attempt 4 of 5" in only(session, "many attempts").text
    assert used_up.kind == "checkpoint"


def test_a_model_that_keeps_failing():
    history = builders.looked_up()
    history.model_fails()
    assert of_rule(history.session, "failing model") == []
    history.model_fails("TimeoutError: " + "x" * 500)
    hint = only(history.session, "failing model")
    assert hint.text == "The last 2 model calls failed."
    assert hint.anchor == f"k{history.last_checkpoint.position}"
    history.reply("There I am again.")
    assert of_rule(history.session, "failing model") == []


@pytest.mark.parametrize(
    "status, more", [("waiting", {"waiting_for": "retries"}), ("paused", {}), ("running", {"attempt": 2})]
)
def test_failed_model_calls_that_an_earlier_version_did_not_count_are_noticed(status, more):
    history = builders.looked_up()
    for _ in range(2):
        history.model_fails()
    session = history.rest(status, **more)
    session.totals.pop("failed_model_calls")
    session.save()
    assert only(session, "failing model").text == "The last 2 model calls failed."


def test_a_session_that_runs_without_a_failure_is_diagnosed_without_its_model_calls():
    session = builders.running()
    assert session.attempt <= 1
    context = builders.context_of(session)
    newest = restore.last_visible(Checkpoint, context.branch)
    with CaptureQueriesContext(connection) as queries:
        diagnose(context, newest)
    assert not [query for query in queries if "modelcall" in query["sql"]]


def test_a_tool_that_keeps_failing():
    history = builders.asked()
    for number in range(3):
        assert of_rule(history.session, "failing tool") == []
        history.reply(calls=[("lookup_policy", {"policy": str(number)})])
        history.finish(history.calls[-1], error="No answer")
        history.checkpoint("step")
    hint = only(history.session, "failing tool")
    assert hint.text == "The last 3 calls of lookup_policy failed."
    assert hint.anchor == f"c{ToolCall.objects.latest('position').position}"
    history.lookup("POL-9")
    assert of_rule(history.session, "failing tool") == []


def test_the_same_call_again_and_again():
    history = builders.asked()
    for policy in ("POL-7", "POL-8", "POL-7"):
        history.lookup(policy)
    assert of_rule(history.session, "same call") == []
    last = history.lookup("POL-7")
    hint = only(history.session, "same call")
    assert hint.text == "lookup_policy was called 3 times with the same arguments."
    assert hint.anchor == f"c{last.position}"


def test_calls_that_differ_only_far_behind_are_not_the_same(monkeypatch):
    monkeypatch.setattr(diagnosis_facts, "MOST_CHARACTERS", 20)
    history = builders.asked()
    for number in range(4):
        history.lookup("POL-" + "7" * (50 + number))
    assert of_rule(history.session, "same call") == []


def test_a_call_that_runs_for_long():
    session = builders.running()
    call = ToolCall.objects.get(status="started")
    assert call.started_at
    assert of_rule(session, "slow call", call.started_at + 4 * MINUTE) == []
    hint = only(session, "slow call", call.started_at + 6 * MINUTE)
    assert (hint.text, hint.anchor) == (
        "issue_refund was started 6 min ago and is still running.",
        f"c{call.position}",
    )
    agent = RegisteredAgent.objects.get(key="claims")
    agent.tools = [builders.tool("issue_refund", timeout=30)]
    agent.save()
    assert "(its limit is 30 s)" in only(session, "slow call", call.started_at + MINUTE).text


@pytest.mark.parametrize(
    "windows, full", [({}, 0), ({"": 100_000}, 90), ({"": 100_000, "claims": 200_000}, 0)]
)
def test_a_context_that_is_nearly_full(windows, full, settings):
    settings.AGENTSTATE_CONTEXT_WINDOW = windows
    history = builders.asked()
    history.checkpoint("step", counters={"context_tokens": 90_400})
    assert [hint.text for hint in of_rule(history.session, "full context")] == (
        ["The context is 90 % full: 90,400 of 100,000 tokens."] if full else []
    )


def test_a_reply_is_more_exact_about_the_context_than_its_checkpoint(settings):
    settings.AGENTSTATE_CONTEXT_WINDOW = {"": 1000}
    history = builders.asked()
    history.reply("x", tokens=(900, 200))
    hint = only(history.session, "full context")
    assert (hint.tone, hint.text) == ("error", "The context is 110 % full: 1,100 of 1,000 tokens.")


def test_an_agent_that_changed_since_the_last_checkpoint():
    paused, done, cancelled = builders.paused(), builders.done(), builders.cancelled()
    RegisteredAgent.objects.update(definition="e" * 64)
    hint = only(paused, "changed definition")
    assert (hint.tone, hint.kind) == ("waiting", "checkpoint")
    assert "see what changed before you resume it" in hint.text
    # Where nothing is to be resumed, it changes nothing.
    assert hints(done) == hints(cancelled) == []


def test_an_agent_that_cannot_be_built_or_is_not_registered():
    session = builders.paused()
    RegisteredAgent.objects.update(problem="OPENAI_API_KEY is not set.")
    # Why it cannot stands in the banner at the top of the page.
    assert only(session, "no agent").text == "It cannot continue until a worker can run its agent."
    RegisteredAgent.objects.all().delete()
    assert only(session, "no agent").text == "It cannot continue until a worker can run its agent."


SECRETS = {
    "a private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow",
    "an AWS access key": "AKIA" + "A2" * 8,
    "a GitHub token": "ghp_" + "a1" * 18,
    "a Slack token": "xoxb-" + "1234567890-ab",
    "a Stripe key": "sk_live_" + "4eC39HqLyjWDarjt",
    "an API key": "sk-proj-" + "abcdef0123456789abcdef",
    "a Google API key": "AIza" + "b" * 35,
    "a signed token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "a bearer token": "Authorization: Bearer " + "abcdef0123456789abcdef",
    "a password in an address": "postgres://admin:hunter22@db/claims",
    "a password": '{"api_key": "hunter22"}',
}


@pytest.mark.parametrize("what", SECRETS)
def test_a_secret_in_the_state_or_in_arguments(what):
    history = builders.asked()
    history.reply(calls=[("send_letter", {"text": SECRETS[what]})])
    call = history.calls[0]
    history.finish(call, "sent")
    place = history.session.position + 2
    StateValue.objects.create(branch=history.branch, position=place, key="seen", value=["a"])
    history.checkpoint("step", keys={"seen": place})
    assert history.last_checkpoint.position == place
    hint = only(history.session, "secret")
    assert hint.text == f"What looks like {what} is in the arguments of send_letter."
    assert hint.anchor == f"c{call.position}"
    StateValue.objects.create(
        branch=history.branch, position=place + 1, key="seen", extends=True, value=[SECRETS[what]]
    )
    history.session.position += 1
    history.checkpoint("step", keys={"seen": place})
    assert [hint.kind for hint in of_rule(history.session, "secret")] == ["state", "call"]
    assert SECRETS[what] not in str(hints(history.session))


def test_a_secret_that_was_replaced_is_no_longer_in_the_state():
    history = builders.asked()
    StateValue.objects.create(
        branch=history.branch, position=50, key="token", value=SECRETS["a GitHub token"]
    )
    history.session.position = 49
    history.checkpoint("step", keys={"token": 50})
    assert of_rule(history.session, "secret")
    StateValue.objects.create(branch=history.branch, position=52, key="token", value="gone")
    history.session.position = 51
    history.checkpoint("step", keys={"token": 52})
    assert of_rule(history.session, "secret") == []


@pytest.mark.parametrize(
    "text",
    [
        "the private key",
        "https://example.org/a@b",
        '{"password": ""}',
        '{"password": "••••"}',
        "task-force-of-many-people-here",
        "CLM-1042",
    ],
)
def test_what_is_no_secret(text):
    assert secrets.looks_like(text) == ""


def test_the_worst_comes_first_and_is_counted():
    session = builders.in_doubt(error="")
    RegisteredAgent.objects.update(definition="e" * 64)
    assert [hint.tone for hint in hints(session)] == ["error", "waiting"]


def test_discarded_steps_are_not_diagnosed():
    session = builders.in_doubt()
    first = builders.branch_of(session).checkpoints.earliest("position")
    actions.rewind(actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=first.pk, reason="Once more")
    assert hints(session) == []


@pytest.mark.slow
def test_a_diagnosis_costs_the_same_however_long_the_history(django_assert_num_queries):
    history = builders.asked()
    for number in range(300):
        history.lookup(f"POL-{number}")
    place = history.session.position + 1
    StateValue.objects.create(branch=history.branch, position=place, key="a", value=1)
    history.checkpoint("step", keys={"a": place})
    session = history.rest("queued")
    assert session.next_run_at
    now = session.next_run_at + 2 * MINUTE
    with django_assert_num_queries(9):  # one of them for the session, and one for its newest checkpoint
        found = hints(session, now)
    context = builders.context_of(session, now=now)
    header(context)  # which reads the agent
    newest = restore.last_visible(Checkpoint, context.branch)
    with django_assert_num_queries(6):
        assert diagnose(context, newest) == found


# Stuck


def in_queue(now):
    return queues.read_page("stuck", now=now).sessions


@pytest.mark.parametrize(
    "state, after, sentence",
    [
        ("lost", timedelta(), "The lease of its worker host:1 expired"),
        ("queued", 2 * MINUTE, "It has been due for"),
        ("retrying", timedelta(), ""),
        ("paused", 100 * MINUTE, ""),
        ("done", 100 * MINUTE, ""),
        ("cancelled", 100 * MINUTE, ""),
    ],
)
def test_sessions_that_should_move_and_do_not(state, after, sentence):
    session = builders.STATES[state]()
    now = session.updated_at + after if state == "queued" else timezone.now() + after
    assert in_queue(now) == ([session] if sentence else [])
    assert stuck.why_not_moving(session, now).startswith(sentence)
    assert bool(stuck.why_not_moving(session, now)) == bool(sentence)


def test_a_session_that_hangs_while_its_worker_is_online():
    session = builders.running()
    now = session.updated_at + 31 * MINUTE
    Session.objects.update(lease_expires_at=now + MINUTE)
    session.refresh_from_db()
    assert in_queue(now) == [session]
    assert stuck.why_not_moving(session, now) == "Running, but nothing has been recorded for 31 min."
    assert not in_queue(now - 2 * MINUTE)


def test_the_longest_stuck_comes_first():
    now = timezone.now()
    second, first = builders.lost(), builders.lost()
    Session.objects.filter(pk=second.pk).update(updated_at=now - MINUTE)
    Session.objects.filter(pk=first.pk).update(updated_at=now - 2 * MINUTE)
    assert in_queue(now) == [first, second]


def test_a_tool_without_a_policy_that_was_held_for_the_same_arguments():
    history = builders.asked()
    for tool, arguments in (
        ("send_letter", {"text": "Hello"}),
        ("issue_refund", {"claim": "A", "amount": 1}),
    ):
        history.reply(calls=[(tool, arguments)])
        before = history.finish(history.calls[-1], "done")
        history.checkpoint("step")
        history.reply(calls=[(tool, arguments)])
        history.ask(history.calls[-1], repeats=before, earlier=[before.pk])
        repeated = history.finish(history.calls[-1], "done")
        history.checkpoint("step")
        if tool == "send_letter":
            letter = repeated
    hint = only(history.rest("paused"), "no policy")
    assert (hint.tone, hint.anchor) == ("idle", f"c{letter.position}")
    assert hint.text == (
        "send_letter needed approval because it ran with the same arguments before, and has no policy. "
        "Declare its effect, or declare it idempotent."
    )
    agent = builders.agent()
    agent.tools = [{**tool, "policy": {**tool["policy"], "idempotent": True}} for tool in agent.tools]
    agent.save()
    assert of_rule(history.session, "no policy") == []


def test_a_tool_that_was_held_for_another_effect_is_not_said_to_lack_a_policy():
    history = builders.asked()
    history.reply(calls=[("send_letter", {"text": "Hello"})])
    before = history.finish(history.calls[-1], "done")
    history.checkpoint("step")
    history.reply(calls=[("send_letter", {"text": "Bye"})])
    history.ask(history.calls[-1], earlier=[before.pk])
    assert of_rule(history.rest("paused"), "no policy") == []
