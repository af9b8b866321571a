"""A session's page: right in every state, as quick for 10,000 steps as for ten, and true to the rows."""

import html
import json
import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.template import Context, Template
from django.test import Client
from django.utils import timezone

from sessions_app import actions
from sessions_app.access.masking import HIDDEN, Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.pages.session import header, time_strip, timeline
from sessions_app.desk.pages.session.step_item import StepItem
from sessions_app.desk.pages.session.timeline_items import (
    DiscardedItem,
    EventItem,
    GapItem,
    MessageItem,
)
from sessions_app.desk.pages.why_not import UnknownActionError, WhyNot
from sessions_app.models import Approval, Checkpoint, Event, Session, StaffPermission, StateValue, ToolCall
from tests import builders

pytestmark = pytest.mark.django_db

TABS = ("", "conversation/", "state/", "checkpoints/", "audit/", "json/")


@pytest.fixture
def desk(client: Client) -> Client:
    client.force_login(builders.user("operator"))
    return client


def page_of(session: Session, desk: Client, rest: str = "") -> str:
    answer = desk.get(f"/sessions/{session.pk}/{rest}")
    assert answer.status_code == 200
    return answer.content.decode()


def shown(session: Session, **given):
    return timeline.read_page(builders.context_of(session), **given)


def steps_of(page: timeline.TimelinePage) -> list[StepItem]:
    return [item for item in page.items if isinstance(item, StepItem)]


@pytest.mark.parametrize(
    "state",
    [
        state if state == "rewound" else pytest.param(state, marks=pytest.mark.slow)
        for state in builders.STATES
    ],
)
@pytest.mark.parametrize("tab", TABS)
def test_every_tab_shows_every_state(desk, state, tab):
    assert "AgentState" in page_of(builders.STATES[state](), desk, tab)


@pytest.mark.parametrize("tab", TABS)
def test_pages_need_a_login_and_a_role(client, tab):
    session = builders.done()
    address = f"/sessions/{session.pk}/{tab}"
    answer = client.get(address)
    assert answer.status_code == 302
    assert answer["Location"] == f"/login/?next={address}"
    client.force_login(builders.user(None))
    assert client.get(address).status_code == 403


def test_an_unknown_session_is_a_clear_404(desk):
    answer = desk.get(f"/sessions/{uuid4()}/")
    assert answer.status_code == 404
    assert "This page does not exist" in answer.content.decode()


def test_a_step_shows_its_calls_with_arguments_result_attempt_and_key(desk):
    history = builders.looked_up()
    call = ToolCall.objects.get(branch=history.branch)
    call.attempt = 2
    call.save()
    text = page_of(history.session, desk)
    assert "lookup_policy" in text
    assert "policy=&quot;POL-7&quot;" in text
    assert "&quot;status&quot;: &quot;active&quot;" in text
    assert call.idempotency_key in text
    assert call.call_id in text
    assert '<dt>Attempt</dt><dd class="num">2</dd>' in re.sub(r"\s*\n\s*", "", text)
    assert f'id="c{call.position}"' in text


@pytest.mark.slow
def test_a_failed_call_and_a_failed_model_call_show_their_errors(desk):
    history = builders.refunding()
    history.finish(history.calls[-1], error="TimeoutError: no answer within 10 s")
    history.model_fails("RateLimitError: 429")
    text = page_of(history.session, desk)
    assert "TimeoutError: no answer within 10 s" in text
    assert "RateLimitError: 429" in text


def test_retrieved_documents_are_shown_as_documents(desk):
    history = builders.asked()
    history.reply(calls=[("search_knowledge", {"query": "glass"})])
    document = {
        "id": "1",
        "content": "Glass is covered.",
        "meta": {"title": "Glass cover 2026"},
        "score": 0.91,
    }
    history.finish(history.calls[-1], [{"$type": "document", "value": document}], cached=True)
    text = page_of(history.session, desk)
    assert "1 document" in text
    assert re.search(r"<summary>\s*Glass cover 2026", text)
    assert "Glass is covered." in text
    assert "cached" in text
    assert "$type" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("stopped_clock")
def test_a_retry_is_told_in_its_step_where_the_model_failed(desk):
    history = builders.asked()
    for _ in range(2):
        history.model_fails()
        history.event(
            "retry", builders.SYSTEM, reason="The model failed: RateLimitError: 429 Too Many Requests"
        )
    events = [event.position for event in Event.objects.filter(kind="retry")]
    history.reply("Yes, it is covered.")
    history.checkpoint("step")
    text = page_of(history.session, desk)
    step = text[text.index('aria-label="Step 1"') : text.index("Yes, it is covered.")]
    assert "The model call failed 2 times." in step
    words = " ".join(re.sub(r"<[^>]+>", " ", step).split())
    assert re.search(r"Tried again after the failures of \d\d:\d\d:\d\d , \d\d:\d\d:\d\d", words)
    assert [text.count(f'id="e{position}"') for position in events] == [1, 1]
    assert "another attempt was planned" not in text[text.index('id="timeline"') : text.index("</ol>")]


def test_the_state_shows_what_is_set_of_a_document_and_folds_the_rest(desk):
    history = builders.asked()
    unset = {"blob": None, "dataframe": None, "score": None, "sparse_embedding": None}
    inner = {
        "id": "1",
        "content": "Glass is covered.",
        "meta": {"note": None},
        "embedding": [0.1, 0.2, 0.3],
        **unset,
    }
    checkpoint = history.checkpoint("step")
    docs = StateValue.objects.create(
        branch=history.branch,
        position=checkpoint.position,
        key="docs",
        value=[{"$type": "document", "value": inner}],
    )
    checkpoint.keys = {"docs": docs.position}
    checkpoint.save()
    text = html.unescape(page_of(history.session, desk, "state/"))
    shown, whole = re.findall(r"<pre[^>]*>(\[.*?)</pre>", text, re.DOTALL)
    assert json.loads(shown) == [
        {"id": "1", "content": "Glass is covered.", "meta": {"note": None}, "embedding": "3 numbers"}
    ]
    assert json.loads(whole) == [inner]
    assert '<summary class="soft">All fields, including unset ones</summary>' in text


@pytest.mark.slow
def test_a_big_result_is_not_on_the_timeline_but_on_its_own_page(desk):
    history = builders.asked()
    history.reply(calls=[("search_knowledge", {"query": "everything"})])
    call = history.finish(history.calls[-1], "x" * 300_000)
    text = page_of(history.session, desk)
    assert len(text) < 60_000
    assert "all 300 KB" in text
    assert "x" * 300_000 in page_of(history.session, desk, f"calls/{call.pk}/")


@pytest.mark.slow
def test_what_a_customer_or_a_tool_wrote_is_never_markup(desk):
    history = builders.asked(title="<script>alert(1)</script>")
    history.user("<script>alert(2)</script>")
    history.reply("<b onclick=x>", [("lookup_policy", {"policy": "<script>"})])
    history.finish(history.calls[-1], {"html": "<script>alert(3)</script>"})
    for tab in TABS:
        text = page_of(history.session, desk, tab)
        assert "<script>alert" not in text
        assert "<b onclick" not in text


@pytest.mark.slow
def test_pages_obey_the_content_security_policy(desk):
    """No inline script, style or handler, and no script from elsewhere."""
    for state in ("waiting_for_approval", "in_doubt", "rewound"):
        answer = desk.get(f"/sessions/{builders.STATES[state]().pk}/")
        assert answer.status_code == 200
        text = answer.content.decode()
        assert "unsafe" not in answer["Content-Security-Policy"]
        assert not re.search(r"<script(?![^>]*\ssrc=)", text)
        assert not re.search(r"<style|\sstyle=|\son\w+=|hx-on|javascript:", text)


@pytest.mark.slow
def test_a_page_is_as_cheap_for_a_long_history_as_for_a_short_one(desk, django_assert_num_queries):
    short, long = builders.asked(), builders.asked()
    for history, steps in ((short, 3), (long, 130)):
        for number in range(steps):
            history.lookup(f"POL-{number}")
        history.rest("paused")
    for tab, queries in (
        ("", 24),
        ("conversation/", 10),
        ("state/", 9),
        ("checkpoints/", 9),
        ("audit/", 8),
        ("json/", 15),
    ):
        for history in (short, long):
            with django_assert_num_queries(queries, info=f"{tab or 'timeline'}: other than expected"):
                page_of(history.session, desk, tab)


@pytest.mark.slow
def test_the_newest_25_steps_are_shown_and_earlier_ones_on_demand(desk):
    history = builders.asked()
    for number in range(62):
        history.lookup(f"POL-{number}")
    newest = shown(history.session)
    assert [step.number for step in steps_of(newest)] == list(range(39, 64))
    before = shown(history.session, before=newest.earlier)
    assert [step.number for step in steps_of(before)] == list(range(14, 39))
    first = shown(history.session, before=before.earlier)
    assert [step.number for step in steps_of(first)] == list(range(1, 14))
    assert first.earlier is None
    # Nothing is lost or shown twice where pages meet.
    positions = [
        item.position
        for page in (first, before, newest)
        for item in page.items
        if not isinstance(item, GapItem)
    ]
    assert positions == sorted(set(positions))
    assert isinstance(first.items[0], MessageItem)
    # With htmx the earlier steps come alone, and with a link to those before them.
    answer = desk.get(
        f"/sessions/{history.session.pk}/earlier/?before={newest.earlier}", headers={"HX-Request": "true"}
    )
    text = answer.content.decode()
    assert "<html" not in text
    assert f"before={before.earlier}" in text
    assert "Step 38<" in text
    assert "Step 39<" not in text


def test_the_part_of_earlier_steps_answers_for_a_call_in_doubt(desk):
    session = builders.STATES["in_doubt"]()
    answer = desk.get(f"/sessions/{session.pk}/earlier/", headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert "issue_refund" in answer.content.decode()


@pytest.mark.slow
def test_a_deep_link_opens_the_page_that_shows_its_place(desk):
    history = builders.asked()
    for number in range(300):
        history.lookup(f"POL-{number}")
    call = ToolCall.objects.filter(branch=history.branch).order_by("position")[20]
    assert f'id="c{call.position}"' not in page_of(history.session, desk)
    assert f'id="c{call.position}"' in page_of(history.session, desk, f"?at={call.position}")


@pytest.mark.slow
def test_discarded_steps_are_dimmed_and_shown_with_who_and_why(desk):
    session = builders.rewound()
    discarded = [item for item in shown(session).items if isinstance(item, DiscardedItem)]
    assert [(item.steps, item.why, item.can_undo) for item in discarded] == [
        (1, "It looked at the wrong policy", True)
    ]
    text = page_of(session, desk)
    assert "Yes, POL-7 covers your windscreen." not in text
    assert "It looked at the wrong policy" in text
    steps = page_of(session, desk, "branches/1/")
    assert "Yes, POL-7 covers your windscreen." in steps
    assert 'class="timeline discarded"' in steps


def test_the_former_address_of_discarded_steps_still_leads_to_them(desk):
    session = builders.rewound()
    answer = desk.get(f"/sessions/{session.pk}/tails/1/?queue=paused")
    assert answer.status_code == 301
    assert answer["Location"] == f"/sessions/{session.pk}/branches/1/?queue=paused"


@pytest.mark.slow
def test_after_an_undo_the_steps_done_meanwhile_stay_readable(desk):
    operator = builders.actor()
    history = builders.looked_up()
    start = Checkpoint.objects.get(branch=history.branch, kind="start")
    actions.rewind(
        actor=operator, session_id=history.rest("paused").pk, checkpoint_id=start.pk, reason="Again"
    )
    history.session.refresh_from_db()
    history.lookup("POL-8")
    session = history.rest("paused")
    actions.undo(actor=operator, session_id=session.pk, reason="It was right")
    items = shown(session).items
    assert [(item.undone, item.branch) for item in items if isinstance(item, DiscardedItem)] == [(True, 2)]
    assert "POL-8" not in page_of(session, desk)
    assert "POL-8" in page_of(session, desk, "branches/2/")


@pytest.mark.slow
def test_a_fork_shows_the_history_it_shares_and_where_it_came_from(desk):
    fork = builders.forked()
    assert [step.number for step in steps_of(shown(fork))] == [1, 2]
    text = page_of(fork, desk)
    assert "forked from" in text
    assert fork.forked_from is not None
    assert f"/sessions/{fork.forked_from.branch.session_id}/" in text


@pytest.mark.slow
def test_idle_time_is_folded_into_a_line(desk):
    history = builders.looked_up(created_at=timezone.now() - timedelta(hours=5))
    history.now += timedelta(hours=2, minutes=14)
    history.user("And my mirror?")
    history.lookup()
    gaps = [item for item in shown(history.session).items if isinstance(item, GapItem)]
    assert len(gaps) == 1
    assert "idle 2 h 14 min</li>" in page_of(history.session, desk)
    assert "idle 2 h 14 min</li>" not in page_of(history.session, desk, "?gaps=hide")


@pytest.mark.slow
@pytest.mark.parametrize(
    "query, steps",
    [
        ("show=errors", [3]),
        ("show=tools", [2, 3]),
        ("tool=send_letter", [3]),
        ("tool=nothing", []),
        ("phase=executing", [2, 3]),
        ("phase=planning", [1, 2, 3]),
        ("phase=reflecting", [2, 3, 4]),
        ("phase=done", [4]),
        ("edge=planning-executing", [2, 3]),
        ("edge=reflecting-planning", [2, 3]),
        ("edge=reflecting-done", [4]),
        ("edge=idle-planning", [1]),
        ("phase=bogus", [1, 2, 3, 4]),
    ],
)
def test_the_timeline_can_be_filtered(desk, query, steps):
    history = builders.asked()
    history.reply("Let me think.")
    history.step += 1
    history.enter("executing", "reflecting")
    history.checkpoint("step")
    history.reply(calls=[("lookup_policy", {"policy": "POL-7"})])
    history.finish(history.calls[-1], "active")
    history.checkpoint("step")
    history.reply(calls=[("send_letter", {"text": "Dear"})])
    history.finish(history.calls[-1], error="No stamp")
    history.checkpoint("step")
    history.reply("Done.")
    history.end("Done.")
    text = page_of(history.session, desk, f"?{query}")
    assert [int(number) for number in re.findall(r"<b>Step (\d+)</b>", text)] == steps


@pytest.mark.slow
def test_only_what_people_did_can_be_shown(desk):
    operator = builders.user("operator", "anna")
    session = builders.paused()
    actions.resume(actor=Actor.of(operator), session_id=session.pk, reason="Lunch is over")
    text = page_of(session, desk, "?show=people")
    assert "<b>anna</b>" in text
    assert "Lunch is over" in text
    assert "<b>Step 1</b>" not in text


def test_messages_that_the_agent_has_not_read_are_shown_as_such(desk):
    text = page_of(builders.queued(), desk)
    assert "unread" in text
    assert "Is my windscreen covered by POL-7?" in text


def test_the_state_can_be_seen_at_every_checkpoint_of_this_session_only(desk):
    session = builders.done()
    other = builders.done()
    mine = Checkpoint.objects.filter(branch=session.branch).earliest("position")
    theirs = Checkpoint.objects.filter(branch=other.branch).earliest("position")
    assert f"checkpoint #{mine.pk}" in page_of(session, desk, f"state/?checkpoint={mine.pk}")
    assert desk.get(f"/sessions/{session.pk}/state/?checkpoint={theirs.pk}").status_code == 404


def test_the_json_is_complete_and_can_be_had_as_a_file(desk):
    session = builders.done()
    data = desk.get(f"/sessions/{session.pk}/json/?raw").json()
    assert data["id"] == str(session.pk)
    assert data["status"] == "idle"
    assert data["final_answer"] == "Yes, POL-7 covers your windscreen."
    assert [call["tool"] for call in data["tool_calls"]] == ["lookup_policy"]
    assert data["tool_calls"][0]["result"] == {"policy": "POL-7", "status": "active"}
    assert [message["role"] for message in data["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [checkpoint["kind"] for checkpoint in data["checkpoints"]] == ["start", "step", "end"]
    assert [event["kind"] for event in data["events"]] == ["started", "finished"]
    assert len(data["model_calls"]) == 2
    assert data["earlier"] is None


@pytest.mark.slow
def test_a_page_of_the_json_leaves_out_big_results_and_says_how_big_they_are(desk):
    history = builders.asked()
    for number in range(101):
        history.lookup(f"POL-{number}")
    history.reply(calls=[("search_knowledge", {"query": "everything"})])
    call = history.finish(history.calls[-1], "x" * 300_000)
    history.checkpoint("step")
    data = desk.get(f"/sessions/{history.session.pk}/json/?raw").json()
    assert (data["tool_calls"][-1]["result"], data["tool_calls"][-1]["result_size"]) == (None, 300_002)
    assert data["messages"][-1] == {**data["messages"][-1], "role": "tool", "text": None}
    before = desk.get(f"/sessions/{history.session.pk}/json/?raw&before={data['earlier']}").json()
    calls = [call["call_id"] for page in (before, data) for call in page["tool_calls"]]
    assert calls == list(ToolCall.objects.order_by("position").values_list("call_id", flat=True))
    assert before["earlier"] is None
    # The page of the call has all of it, in the same shape.
    whole = desk.get(f"/sessions/{history.session.pk}/calls/{call.pk}/?raw").json()
    assert whole["result"] == "x" * 300_000
    assert whole.keys() == data["tool_calls"][0].keys()


def test_the_page_of_a_call_shows_arguments_as_they_are_and_a_result_without_the_tags_of_its_types(desk):
    history = builders.asked()
    history.reply(calls=[("lookup_policy", {"$type": "none of ours", "value": "POL-7"})])
    call = history.finish(history.calls[-1], {"limit": {"$type": "decimal", "value": "1.50"}})
    address = f"/sessions/{history.session.pk}/calls/{call.pk}/"
    text = desk.get(address).content.decode()
    assert "none of ours" in text
    assert "1.50" in text
    assert "decimal" not in text
    told = desk.get(f"{address}?raw").json()
    assert told["arguments"] == {"$type": "none of ours", "value": "POL-7"}
    assert told["result"] == {"limit": "1.50"}


@pytest.mark.slow
def test_a_session_names_its_agent_that_is_not_registered(desk):
    session = builders.paused()
    session.agent = "gone"
    session.save()
    assert "gone" in page_of(session, desk)


def test_previous_and_next_follow_the_queue(desk):
    base = timezone.now() - timedelta(hours=1)
    three = [builders.paused(created_at=base + timedelta(minutes=number)) for number in range(3)]
    text = page_of(three[1], desk, "?queue=paused")
    # The newest come first.
    assert f'href="/sessions/{three[2].pk}/?queue=paused" data-key="p"' in text
    assert f'href="/sessions/{three[0].pk}/?queue=paused" data-key="n"' in text


def test_a_pages_context_hides_values_and_leaves_the_row_for_the_actions_as_it_is(django_assert_num_queries):
    session = builders.done(title="Of ada@example.org")
    mask = Mask.of([], [r"\S+@\S+"])
    with django_assert_num_queries(1):
        context = builders.context_of(session, mask=mask)
    assert (context.session.title, context.session_row.title) == (f"Of {HIDDEN}", "Of ada@example.org")
    assert context.branch == context.session_row.branch == session.branch
    context.session_row.save()
    assert Session.objects.get().title == "Of ada@example.org"


def test_a_session_without_a_branch_has_no_page(desk):
    session = Session.objects.create(agent="claims")
    assert desk.get(f"/sessions/{session.pk}/").status_code == 404
    with pytest.raises(RuntimeError, match=f"Session {session.pk} has no branch"):
        builders.context_of(session)


@pytest.mark.parametrize(
    "role, state, allowed, forbidden",
    [
        ("viewer", "waiting_for_approval", "", "approve"),
        ("operator", "waiting_for_approval", "approve", "repair"),
        ("operator", "done", "message", "reveal"),
        ("supervisor", "running", "release", ""),
    ],
)
def test_why_an_action_is_not_allowed(role, state, allowed, forbidden, django_assert_num_queries):
    context = builders.context_of(builders.STATES[state](), actor=builders.actor(role))
    if allowed:
        assert context.why_not[allowed] == ""
    if forbidden:
        assert context.why_not[forbidden].endswith("supervisor role.")
    with django_assert_num_queries(0):
        template = Template("{{ why_not." + (allowed or forbidden) + " }}")
        said = template.render(Context({"why_not": context.why_not}))
        assert said == ("" if allowed else context.why_not[forbidden])


def test_why_an_action_is_impossible_in_the_sessions_state():
    why_not = builders.context_of(builders.running(), actor=builders.actor("supervisor")).why_not
    assert why_not["repair"] == "It is running: pause it first."
    assert why_not["undo"] == "There is no rewind to undo."
    assert WhyNot(builders.actor("supervisor"))["repair"] == ""


def test_what_a_person_may_do_is_found_once_for_a_page(monkeypatch):
    asked = []
    may = Actor.may

    def counted(actor: Actor, permission: StaffPermission) -> bool:
        asked.append(permission)
        return may(actor, permission)

    monkeypatch.setattr(Actor, "may", counted)
    why_not = builders.context_of(builders.running(), actor=builders.actor("supervisor")).why_not
    assert [why_not["role_rewind"] for _ in range(3)] == ["", "", ""]
    assert [why_not["reveal"] for _ in range(3)] == ["", "", ""]
    assert len(asked) == 2


def test_an_unknown_action_is_an_error_and_never_a_possible_one():
    why_not = WhyNot(builders.actor("supervisor"))
    with pytest.raises(UnknownActionError, match="'reapir' is not an action"):
        why_not["reapir"]
    with pytest.raises(UnknownActionError):
        Template("{% if why_not.reapir %}{% endif %}").render(Context({"why_not": why_not}))


def test_what_happened_before_a_step_began_stands_above_it():
    history = builders.looked_up()
    history.event("paused")
    history.event("resumed")
    waiting = [type(item).__name__ for item in shown(history.rest("paused")).items][-3:]
    assert waiting == ["StepItem", "EventItem", "EventItem"]  # it has not begun
    history.lookup("POL-8")
    history.event("paused")
    items = shown(history.rest("paused")).items
    ran = [item for item in items if isinstance(item, StepItem) and item.begun][-1]
    kinds = [item.row.kind if isinstance(item, EventItem) else "" for item in items]
    assert kinds[items.index(ran) - 2 : items.index(ran)] == ["paused", "resumed"]
    assert kinds[-1] == "paused"


@pytest.mark.slow
def test_the_ends_of_the_time_strip_have_dates_unless_all_of_it_is_of_today(desk):
    at = datetime(2026, 11, 18, 21, 10, 5, tzinfo=UTC)
    later = at + timedelta(minutes=4)
    assert time_strip.axis_texts(at, later, later) == ("21:10:05", "21:14:05")
    assert time_strip.axis_texts(at, later, at + timedelta(days=3)) == ("18 Nov 21:10:05", "21:14:05")
    assert time_strip.axis_texts(at, at + timedelta(days=2), at + timedelta(days=2)) == (
        "18 Nov 21:10",
        "20 Nov 21:10",
    )
    assert time_strip.axis_texts(at, later, at + timedelta(days=300)) == ("18 Nov 2026 21:10:05", "21:14:05")
    text = page_of(builders.done(), desk)
    assert re.search(r'<text class="small" x="0" y="43">\s*<title>[^<]+ UTC</title>', text)


@pytest.mark.parametrize("seconds, told", [(3600, "1 h"), (120, "2 min"), (60, "1 min"), (1, "1 s")])
def test_the_time_strip_tells_how_long_a_session_waited_to_the_second(seconds, told):
    history = builders.refunding(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    history.finish(history.calls[-1], "ok")
    start = Checkpoint.objects.filter(branch=history.branch).earliest("position").created_at
    # Of such a time before and behind the comma the difference is not exact in binary numbers.
    asked_at = start + timedelta(microseconds=535_031_144)
    history.ask(history.calls[-1], decision="approved", decided_at=asked_at + timedelta(seconds=seconds))
    Approval.objects.update(asked_at=asked_at)
    history.checkpoint("step")
    strip = time_strip.strip(builders.context_of(history.rest("paused")))
    assert strip is not None
    assert [total.duration for total in strip.totals if total.kind == "waiting"] == [told]


def test_waits_at_the_same_time_count_once_in_the_time_strip():
    history = builders.refunding(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    history.finish(history.calls[-1], "ok")
    history.checkpoint("step")
    history.reply(calls=[("letter", {}), ("letter", {"copy": True})])
    start = Checkpoint.objects.filter(branch=history.branch).earliest("position").created_at
    # Neither these times nor their difference are exact in binary numbers.
    waits = [(0, 40_372_488), (32_227_487, 60_000_000)]
    for call, (asked, decided) in zip(history.calls[-2:], waits, strict=True):
        history.ask(call, decision="approved", decided_at=start + timedelta(microseconds=decided))
        Approval.objects.filter(call=call).update(asked_at=start + timedelta(microseconds=asked))
        history.finish(call, "ok")
    history.checkpoint("step")
    strip = time_strip.strip(builders.context_of(history.rest("paused")))
    assert strip is not None
    assert [total.duration for total in strip.totals if total.kind == "waiting"] == ["1 min"]


def test_the_bars_of_one_kind_are_drawn_as_one_shape(desk):
    bars = [
        time_strip.Bar("model", 0.0, 1.4),
        time_strip.Bar("tool", 2.0, 3.4),
        time_strip.Bar("model", 6.0, 10.0),
    ]
    at = datetime(2026, 11, 18, 21, 10, 5, tzinfo=UTC)
    strip = time_strip.Strip(at, at, "", "", bars, [], whole=True, live=False)
    assert [(shape.kind, shape.path) for shape in strip.shapes] == [
        ("model", "M0 12h1.4v14h-1.4zM6 12h10v14h-10z"),
        ("tool", "M2 12h3.4v14h-3.4z"),
    ]
    assert page_of(builders.done(), desk).count('<path class="t-model" d="M') == 1


def kinds_of_bars(session, now):
    strip = time_strip.strip(builders.context_of(session, now=now))
    assert strip is not None
    return [bar.kind for bar in strip.bars], strip.description


def test_waiting_for_a_decision_on_a_call_in_doubt_is_drawn_as_waiting_from_when_it_was_found():
    history = builders.refunding()
    history.doubt(history.calls[-1])
    history.now += timedelta(minutes=10)  # until the lease has ended, and the next run finds it
    history.event("in_doubt")
    session = history.rest("waiting", waiting_for="doubt", why="Nobody knows.")
    kinds, description = kinds_of_bars(session, history.now + timedelta(minutes=10))
    assert kinds[-3:] == ["tool", "idle", "waiting"]
    assert "waiting 10 min" in description


def test_a_session_that_was_ended_while_a_call_was_in_doubt_waited_until_then_and_says_no_more_that_it_continues(
    desk,
):
    session = builders.in_doubt()
    Event.objects.filter(kind="in_doubt").update(created_at=timezone.now() - timedelta(seconds=90))
    actions.cancel(actor=builders.SYSTEM, session_id=session.pk, reason="no answer")
    _, description = kinds_of_bars(session, timezone.now() + timedelta(minutes=10))
    assert "waiting 1 min 30 s" in description
    page = page_of(session, desk)
    assert "issue_refund is in doubt. It is not known whether it took effect." in page
    assert "The session continues once" not in page
    assert "in phase <b>executing</b>" in page


def test_the_time_in_doubt_before_a_call_ran_again_is_drawn_as_waiting():
    history = builders.refunding()
    call = history.doubt(history.calls[-1])
    history.event("in_doubt")
    session = history.rest("waiting", waiting_for="doubt", why="Nobody knows.")
    Event.objects.filter(kind="in_doubt").update(created_at=timezone.now() - timedelta(minutes=20))
    actions.decide(
        actor=builders.SYSTEM, session_id=session.pk, call_id=call.pk, reason="Asked the bank", again=True
    )
    kinds, description = kinds_of_bars(session, timezone.now() + timedelta(minutes=10))
    assert "waiting" in kinds
    assert kinds[-1] == "idle"
    assert "waiting 20 min" in description


@pytest.mark.slow
def test_how_long_a_call_ran_of_which_a_person_said_what_happened_is_not_told(desk):
    history = builders.refunding()
    call = history.doubt(history.calls[-1])
    history.ask(call, decision="approved", decided_at=history.now)
    history.event("in_doubt")
    session = history.rest("waiting", waiting_for="doubt", why="Nobody knows.")
    ToolCall.objects.filter(pk=call.pk).update(started_at=timezone.now() - timedelta(minutes=24))
    actions.decide(
        actor=builders.SYSTEM, session_id=session.pk, call_id=call.pk, reason="Asked the bank", nothing=True
    )
    timeline_page = " ".join(desk.get(f"/sessions/{session.pk}/").content.decode().split())
    assert '<span class="took num"> decided after 24 min </span>' in timeline_page
    call_page = " ".join(desk.get(f"/sessions/{session.pk}/calls/{call.pk}/").content.decode().split())
    assert ", decided after 24 min </dd>" in call_page
    assert "tools 1 s" in times_of(session, timezone.now())  # those of the look-up


def times_of(session, now):
    strip = time_strip.strip(builders.context_of(session, now=now))
    assert strip is not None
    return [f"{total.label} {total.duration}" for total in strip.totals]


def test_approvals_that_wait_at_the_same_time_are_waited_for_once():
    history = builders.looked_up()
    history.reply("", [("issue_refund", {"claim": name, "amount": 1}) for name in ("a", "b", "c")])
    approvals = [history.ask(call) for call in history.calls]
    for approval, minutes in zip(approvals, (5, 13, 15), strict=True):
        approval.decision = "approved"
        approval.decided_at = history.now + timedelta(minutes=minutes)
        approval.save()
    now = history.now + timedelta(minutes=15)
    assert "waiting 15 min" in times_of(history.rest("paused"), now)


def test_tools_that_run_at_the_same_time_take_their_time_once_and_no_idle_time_is_lost():
    history = builders.asked()
    history.reply("", [("lookup_policy", {"policy": name}) for name in ("POL-1", "POL-2")])
    first, second = history.calls
    history.begin(first)
    history.begin(second)
    since = second.started_at
    assert since is not None
    for call in (first, second):
        call.started_at = since
        history.finish(call, {}, ended_at=since + timedelta(seconds=10))
    history.add(tool_seconds=18.0)  # the totals add both up: 20 s
    history.now = since + timedelta(seconds=40)
    session = history.rest("paused", why="lunch")
    history.checkpoint()
    assert times_of(session, history.now)[1] == "tools 10 s"


def test_a_model_call_that_runs_counts_up_to_now():
    history = builders.looked_up()
    session = history.rest("running")
    Session.objects.filter(pk=session.pk).update(lease_expires_at=history.now + timedelta(hours=1))
    before = float(session.totals["model_seconds"])
    times = times_of(session, history.now + timedelta(seconds=80 - before))
    assert times[0] == "model 1 min 20 s"
    assert kinds_of_bars(session, history.now + timedelta(seconds=80))[0][-1] == "model"


def test_a_tool_that_runs_counts_up_to_now_and_to_the_end_of_a_lost_workers_lease():
    history = builders.asked()
    history.reply("", [("lookup_policy", {"policy": "POL-1"})])
    started = history.begin(history.calls[-1]).started_at
    assert started is not None
    session = history.rest("running")
    Session.objects.filter(pk=session.pk).update(lease_expires_at=started + timedelta(seconds=40))
    assert "tools 30 s" in times_of(session, started + timedelta(seconds=30))
    assert "tools 40 s" in times_of(session, started + timedelta(seconds=90))


def test_a_session_that_does_not_run_has_no_running_model_call():
    history = builders.looked_up()
    now = history.now + timedelta(minutes=3)
    assert kinds_of_bars(history.rest("queued"), now)[0][-1] == "idle"


def test_who_takes_a_session_assigns_it_to_nobody_else(desk):
    session = builders.done()
    actions.assign(
        actor=Actor.system("cora"), session_id=session.pk, assignee=builders.user("operator", "cora")
    )
    assert Event.objects.latest("position").description == "took it"


@pytest.mark.slow
def test_a_running_session_in_which_nothing_happens_says_so_on_top(desk):
    session = builders.running()
    assert "Stuck." not in page_of(session, desk)
    Session.objects.filter(pk=session.pk).update(updated_at=timezone.now() - timedelta(minutes=47))
    assert "<b>Stuck.</b> Running, but nothing has been recorded for 47 min." in page_of(session, desk)


@pytest.mark.slow
@pytest.mark.parametrize("role, offered", [("supervisor", True), ("operator", False)])
def test_a_stuck_session_offers_its_remedy_first_or_says_who_may(client, role, offered):
    client.force_login(builders.user(role))
    session = builders.running()
    Session.objects.filter(pk=session.pk).update(
        updated_at=timezone.now() - timedelta(minutes=47),
        lease_expires_at=timezone.now() + timedelta(minutes=1),
    )
    page = page_of(session, client)
    [banner] = re.findall(r'<div id="banner">.*?</div>\s*</div>', page, re.DOTALL)
    # The button stands once on the page, as the first of all.
    assert "Release from its worker" not in banner
    assert ("Releasing a session needs the supervisor role." in banner) is not offered
    assert '<span class="pill error">Stuck</span>' in page
    # On a phone the actions stay in reach, and so does the first of them.
    actions_on_top = page[page.index('id="main-action"') : page.index('<span class="facts">')]
    assert (
        f'class="button first" role="button" href="/sessions/{session.pk}/release/"' in actions_on_top
    ) is offered
    assert actions_on_top.index("Release from its worker") < actions_on_top.index("Pause")


@pytest.mark.parametrize("role, label", [("viewer", "See the call"), ("operator", "Decide the call")])
def test_who_may_not_decide_a_call_is_led_to_see_it(role, label):
    history = builders.refunding()
    history.doubt(history.calls[-1])
    session = history.rest("waiting", waiting_for="doubt", why="Nobody knows.")
    context = builders.context_of(session, actor=builders.actor(role))
    assert header.header(context).buttons[0].label == label


def test_the_banner_of_a_call_tells_its_times_as_the_card_does_and_nothing_in_it_is_markup(desk):
    history = builders.refunding()
    history.calls[-1].arguments = {"claim": "<b>CLM</b>"}
    history.ask(history.calls[-1], expires_at=timezone.now() + timedelta(minutes=50))
    page = page_of(history.rest("waiting", waiting_for="approval"), desk)
    banner = page[page.index('<div id="banner">') : page.index('class="tabs"')]
    card = page[page.index('<span class="age">') :]
    times = re.findall(r"<time [^>]+>", banner)
    assert times == re.findall(r"<time [^>]+>", card)[:2]
    assert ['data-age="{} ago"' in times[0], 'data-left="expires in {}"' in times[1]] == [True, True]
    assert "&lt;b&gt;CLM&lt;/b&gt;" in banner
    assert "<b>CLM</b>" not in page


def test_who_may_not_approve_a_call_is_led_to_see_it():
    session = builders.STATES["waiting_for_approval"]()
    context = builders.context_of(session, actor=builders.actor("viewer"))
    assert header.header(context).buttons[0].label == "See the call"


def test_who_may_not_send_messages_is_told_so_by_the_button():
    context = builders.context_of(builders.done(), actor=builders.actor("viewer"))
    button = header.header(context).buttons[0]
    assert button.label == "Send a message"
    assert button.why_not == "Sending a message needs the operator or supervisor role."
    assert button.anchor == ""


def test_the_last_events_beside_the_timeline_name_people_only_and_are_told_as_past(desk):
    history = builders.asked()
    history.event("noted", builders.actor("operator"), reason="She called")
    history.event("retry", Actor.system("host:1"), reason="The model failed")
    history.event("asked", Actor.system("host:1"))
    history.event("in_doubt", Actor.system("host:1"))
    page = page_of(history.rest("paused"), desk)
    [beside] = re.findall(r"<h2>Audit.*?</section>", page, re.DOTALL)
    words = " ".join(re.sub(r"<[^>]+>", " ", beside).split())
    assert "host:1" not in words
    for told in ("noted: She called", "In doubt", "Approval requested"):
        assert told in words
    assert "Retry scheduled" in words


def test_the_bars_of_the_times_have_one_scale_also_where_a_session_rested_for_days():
    history = builders.refunding()
    history.now += timedelta(days=2)
    strip = time_strip.strip(builders.context_of(history.rest("queued"), now=history.now))
    assert strip is not None
    bars = {total.label: total.width for total in strip.totals}
    assert bars["idle"] == time_strip.BAR
    assert bars["model"] < 1
    assert bars["tools"] < 1


def test_the_wait_for_another_attempt_is_drawn_as_waiting_and_not_as_idle():
    history = builders.refunding()
    history.event("retry")
    history.now += timedelta(minutes=10)
    session = history.rest("queued")
    kinds, description = kinds_of_bars(session, history.now)
    assert kinds[-1] == "waiting"
    assert "waiting 10 min" in description


def test_the_time_between_the_steps_is_said_too():
    history = builders.refunding()
    session = history.rest("paused", why="lunch")
    strip = time_strip.strip(builders.context_of(session, now=history.now))
    assert strip is not None
    assert [total.label for total in strip.totals] == ["model", "tools", "waiting", "idle"]


def test_numbers_by_name_are_rows_of_the_counters(desk):
    session = builders.done()
    Checkpoint.objects.filter(branch__session=session).update(
        counters={
            "step_count": 2,
            "context_tokens": 0,
            "token_usage": {"total_tokens": 10437},
            "tool_call_counts": {"send_letter": 0, "issue_refund": 3},
            "other": {"none": 0},
        }
    )
    page = " ".join(re.sub("<[^>]*>", " ", page_of(session, desk, "state/")).split())
    counters = "Step count 2 Token usage · total_tokens 10,437 Tool call counts · issue_refund 3"
    assert f"Counters {counters} Available tools" in page


@pytest.mark.slow
def test_a_failed_session_says_so_in_its_facts_and_its_error_once_where_it_happened_and_once_on_top(desk):
    history = builders.asked()
    error = "APIStatusError: Error code: 503, the service is overloaded"
    for attempt in (1, 2):
        history.model_fails(error)
        history.event("retry", reason=f"The model failed (attempt {attempt} of 3): {error}")
    history.model_fails(error)
    why = f"The model failed 3 times without progress, at last with {error}"
    history.event("gave_up", reason=why)
    session = history.rest("waiting", waiting_for="retries", why=why, attempt=3)
    page = desk.get(f"/sessions/{session.pk}/").content.decode()
    assert page.count(error) == 2
    words = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "The model call failed 3 times." in words
    assert "Status Gave up retrying" in words
    assert "Model calls 0, 3 failed" in words
    assert "steps done 0" in words
    assert "attempt 2 of 3" in desk.get(f"/sessions/{session.pk}/audit/").content.decode()


def test_the_timeline_says_what_a_person_did_and_why(desk):
    session = builders.paused()
    actions.resume(actor=builders.actor("operator"), session_id=session.pk, reason="the service is back")
    page = desk.get(f"/sessions/{session.pk}/").content.decode()
    [line] = re.findall(r'<li\s+class="mark resumed".*?</li>', page, re.DOTALL)
    words = " ".join(re.sub(r"<[^>]+>", " ", line).split())
    assert "resumed it: the service is back" in words


def test_the_audit_trail_names_the_tool_and_the_assignee_in_its_sentence_only(desk: Client) -> None:
    session = builders.waiting_for_approval()
    actions.reject(
        actor=Actor.system("anna"),
        session_id=session.pk,
        call_id=ToolCall.objects.get(tool="issue_refund").pk,
        message="Too much",
    )
    actions.assign(
        actor=Actor.system("anna"), session_id=session.pk, assignee=builders.user("operator", "cora")
    )
    rows = re.findall(r'<tr id="e.*?</tr>', page_of(session, desk, "audit/"), re.DOTALL)
    assigned, rejected = (" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in rows[:2])
    assert "anna Assigned it to cora" in assigned
    assert rejected.count("issue_refund") == 1


def test_what_was_done_on_the_command_line_is_told_with_who_did_it(desk):
    session = builders.queued()
    robin = Actor.command_line("robin")
    actions.pause(actor=robin, session_id=session.pk, reason="lunch")
    assert f"<b>{robin.name}</b> paused it" in " ".join(page_of(session, desk).split())


@pytest.mark.slow
def test_the_raw_json_of_earlier_steps_is_of_the_steps_that_are_shown(desk):
    history = builders.asked()
    for number in range(102):
        history.lookup(f"POL-{number}")
    here = f"/sessions/{history.session.pk}/json/"
    [earlier] = re.findall(r'href="([^"]+)">Earlier steps<', desk.get(here).content.decode())
    page = desk.get(here + html.unescape(earlier)).content.decode()
    [raw] = re.findall(r'href="([^"]+)">Raw JSON<', page)
    positions = [each["position"] for each in desk.get(here + html.unescape(raw)).json()["checkpoints"]]
    shown = re.search(r'<pre class="whole">(.*?)</pre>', page, re.DOTALL)
    assert shown is not None
    assert positions == [each["position"] for each in json.loads(html.unescape(shown[1]))["checkpoints"]]


@pytest.mark.slow
def test_two_checkpoints_are_compared_only_where_there_are_two(desk):
    first = desk.get(f"/sessions/{builders.asked().rest('running').pk}/checkpoints/").content.decode()
    assert "Compare A with B" not in first
    assert 'type="radio"' not in first
    second = desk.get(f"/sessions/{builders.looked_up().rest('running').pk}/checkpoints/").content.decode()
    assert "Compare A with B" in second
    assert len(re.findall(r'<input\s+type="radio"[^>]*required[^>]*checked', second)) == 2


@pytest.mark.slow
def test_links_within_a_session_keep_the_queue_from_which_it_was_opened(desk):
    """All that lead to a page of the session or to a dialog on it."""
    session = builders.rewound(status="paused")
    call = ToolCall.objects.filter(branch__session=session).latest("position")
    start = Checkpoint.objects.visible_on(builders.branch_of(session)).earliest("position")
    tabs = ("", "conversation/", "state/", "checkpoints/", "audit/", "branches/1/", f"calls/{call.pk}/")
    forms = ("rewind/", "fork/", f"rewind/?checkpoint={start.pk}", f"fork/?checkpoint={start.pk}", "undo/")
    waiting = builders.waiting_for_approval()
    for session, page in [(session, page) for page in (*tabs, *forms)] + [(waiting, "")]:
        mark = "&" if "?" in page else "?"
        text = desk.get(f"/sessions/{session.pk}/{page}{mark}queue=paused").content.decode()
        main = text.partition("<main")[2]
        for link in re.findall(rf'href="(/sessions/{session.pk}/[^"]*)"', main):
            path, _, query = link.partition("#")[0].partition("?")
            if "/compare" not in path:
                assert "queue=paused" in query, (page, link)
