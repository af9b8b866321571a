"""Discarded branches: each on which something took effect stays on the session's page, with who left it, and why."""

import re
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app import actions
from sessions_app.access.roles import Actor
from sessions_app.desk.pages.session import discarded, timeline
from sessions_app.desk.pages.session.timeline_items import DiscardedItem
from sessions_app.models import Checkpoint, Event, ModelCall, Session, ToolCall
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(client: Client) -> Client:
    client.force_login(builders.user("viewer"))
    return client


@pytest.fixture
def anna() -> Actor:
    return Actor.of(builders.user("operator", "anna"))


@pytest.fixture
def sue() -> Actor:
    return Actor.of(builders.user("supervisor", "sue"))


def plain(client: Client, session: Session, rest: str = "") -> str:
    response = client.get(f"/sessions/{session.pk}/{rest}")
    assert response.status_code == 200
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def step(history: builders.History, tool: str, **arguments: object) -> None:
    """A whole step in which one call takes effect."""
    history.reply(calls=[(tool, arguments)])
    history.finish(history.calls[-1], "done")
    history.checkpoint("step")


def rewind(history: builders.History, actor: Actor, checkpoint: Checkpoint, reason: str) -> None:
    session = history.rest("paused")
    actions.rewind(actor=actor, session_id=session.pk, checkpoint_id=checkpoint.pk, reason=reason)
    session.refresh_from_db()
    # Positions go on from those that the session has now.
    history.session = session


def undo(history: builders.History, actor: Actor, reason: str) -> None:
    session = history.rest("paused")
    actions.undo(actor=actor, session_id=session.pk, reason=reason)
    session.refresh_from_db()
    history.session = session


def lines(session: Session) -> dict[int, DiscardedItem]:
    items = timeline.read_page(builders.context_of(session)).items
    return {item.branch: item for item in items if isinstance(item, DiscardedItem)}


@pytest.mark.slow
def test_the_line_names_who_rewound_also_after_a_repair(anna, sue, desk):
    history = builders.looked_up()
    start = Checkpoint.objects.visible_on(history.branch).earliest("position")
    step(history, "send_letter", text="Dear")
    rewind(history, anna, start, "The wrong policy")
    message = history.branch.parent.messages.get(role="user")  # type: ignore[union-attr]
    actions.replace_message(
        actor=sue, session_id=history.session.pk, position=message.position, text="POL-8?", reason="A slip"
    )
    history.session.refresh_from_db()
    found = lines(history.session)
    assert list(found) == [1]  # the repair left a branch without steps
    rewound = Event.objects.get(kind="rewound")
    assert (found[1].by, found[1].why, found[1].at) == ("anna", "The wrong policy", rewound.created_at)
    assert (found[1].steps, found[1].effects, found[1].repaired, found[1].undone) == (2, 1, False, False)
    text = plain(desk, history.session)
    assert "2 steps rewound by anna" in text
    assert "1 call took effect and was not undone" in text
    assert "0 steps" not in text


def twice_undone(anna: Actor, sue: Actor) -> builders.History:
    """A refund and a letter on branch 2, a second letter on branch 3, which left branch 2; then both are undone."""
    history = builders.looked_up()
    start = Checkpoint.objects.visible_on(history.branch).earliest("position")
    rewind(history, anna, start, "Begin again")
    step(history, "issue_refund", claim="C-1", amount="120.00")
    middle = history.last_checkpoint
    step(history, "send_letter", text="first letter")
    rewind(history, anna, middle, "Another letter")
    step(history, "send_letter", text="second letter")
    undo(history, sue, "It was right")
    undo(history, sue, "All of it was right")
    return history


@pytest.mark.slow
def test_after_two_undos_what_was_paid_is_still_on_the_page(anna, sue, desk):
    session = twice_undone(anna, sue).session
    assert builders.branch_of(session).number == 1
    found = lines(session)
    assert {
        number: (item.steps, item.effects, item.by, item.why, item.undone) for number, item in found.items()
    } == {
        2: (2, 2, "sue", "All of it was right", True),
        3: (1, 1, "sue", "It was right", True),
    }
    assert "2 steps discarded by undo by sue" in plain(desk, session)
    assert "120.00" in plain(desk, session, "branches/2/")
    third = plain(desk, session, "branches/3/")
    assert "second letter" in third
    assert "first letter" not in third
    listed = plain(desk, session, "checkpoints/")
    assert "Discarded history" in listed
    assert "All of it was right" in listed


def test_undo_says_what_it_will_not_undo(anna, sue, client):
    client.force_login(builders.user("operator"))
    history = builders.looked_up()
    start = Checkpoint.objects.visible_on(history.branch).earliest("position")
    rewind(history, anna, start, "Begin again")
    step(history, "issue_refund", claim="C-1", amount="120.00")
    step(history, "lookup_policy", policy="POL-8")
    text = plain(client, history.rest("paused"), "undo/")
    effects = text[text.index("Not undone") :]
    assert "issue_refund" in effects
    assert "lookup_policy" not in effects
    assert "2 steps of the current history will be discarded" in text


@pytest.mark.slow
def test_a_call_that_a_repair_carried_over_is_not_discarded(sue, client):
    """The refund is on both branches, with one idempotency key: undoing the repair leaves nothing behind."""
    client.force_login(builders.user("operator"))
    history = builders.refunding()
    history.finish(history.calls[-1], "refunded")
    session = history.rest("paused")
    user_message = history.branch.messages.get(role="user")
    actions.replace_message(
        actor=sue, session_id=session.pk, position=user_message.position, text="POL-8?", reason="A slip"
    )
    session.refresh_from_db()
    found = lines(session)
    assert (found[1].repaired, found[1].effects, found[1].by, found[1].why) == (True, 0, "sue", "A slip")
    assert "No discarded call had a side effect." in plain(client, session, "undo/")


@pytest.mark.slow
def test_a_branch_left_below_an_earlier_rewind_is_found(anna, sue, desk):
    """The second rewind goes further back than the first: neither branch touches the current history any more."""
    history = builders.looked_up()
    start = Checkpoint.objects.visible_on(history.branch).earliest("position")
    step(history, "send_letter", text="first letter")
    middle = Checkpoint.objects.visible_on(history.branch).filter(kind="step").earliest("position")
    rewind(history, anna, middle, "Another letter")
    step(history, "send_letter", text="second letter")
    rewind(history, sue, start, "From the start")
    found = lines(history.session)
    assert {number: (item.effects, item.by) for number, item in found.items()} == {
        1: (1, "sue"),
        2: (1, "sue"),
    }
    assert "second letter" in plain(desk, history.session, "branches/2/")


def test_a_branch_that_is_shown_whole_has_no_page_of_discarded_steps(desk):
    session = builders.rewound()
    assert desk.get(f"/sessions/{session.pk}/branches/1/").status_code == 200
    assert desk.get(f"/sessions/{session.pk}/branches/2/").status_code == 404
    assert discarded.find(builders.context_of(session), 1) is not None


def ended(call: ToolCall, result: str) -> None:
    """The call ran: as a worker would have written it."""
    now = timezone.now()
    ToolCall.objects.filter(pk=call.pk).update(
        status="done", result=result, attempt=1, started_at=now, ended_at=now
    )


def test_undoing_a_repair_names_what_ran_after_it_although_the_call_was_planned_before_it(sue, client):
    client.force_login(builders.user("operator"))
    session = builders.waiting_for_approval()
    message = builders.branch_of(session).messages.get(role="user")
    session = actions.replace_message(
        actor=sue, session_id=session.pk, position=message.position, text="POL-8?", reason="A slip"
    )
    ended(ToolCall.objects.get(branch=session.branch, tool="issue_refund"), "paid 120")
    Session.objects.filter(pk=session.pk).update(status="paused", waiting_for="", next_run_at=None)
    session.refresh_from_db()
    text = plain(client, session, "undo/")
    assert "issue_refund" in text[text.index("Not undone") :]
    session = actions.undo(actor=sue, session_id=session.pk, reason="It was right")
    [item] = discarded.discarded_branches(builders.context_of(session))
    assert item.effects == 1


def test_a_call_in_doubt_that_was_to_run_again_is_named_as_not_undone(sue, client):
    client.force_login(builders.user("operator"))
    session = builders.in_doubt()
    call = ToolCall.objects.get(status="doubt")
    actions.decide(actor=sue, session_id=session.pk, call_id=call.pk, reason="Nothing was paid", again=True)
    start = Checkpoint.objects.visible_on(builders.branch_of(session)).earliest("position")
    text = plain(client, session, f"rewind/?checkpoint={start.pk}")
    assert "issue_refund" in text[text.index("Not undone") :]


def test_a_reused_result_is_no_effect_that_is_not_undone(client):
    client.force_login(builders.user("operator"))
    history = builders.refunding()
    history.ask(history.calls[-1], decision="reused", decided_by="anna", decided_at=history.now)
    history.finish(history.calls[-1], "paid earlier", decided_by="anna")
    history.checkpoint("step")
    start = Checkpoint.objects.visible_on(history.branch).earliest("position")
    text = plain(client, history.rest("paused"), f"rewind/?checkpoint={start.pk}")
    assert "No discarded call had a side effect." in text


@pytest.mark.slow
def test_a_first_step_that_failed_leaves_a_line_with_its_errors_and_a_comparison(anna, desk):
    history = builders.asked()
    start = history.last_checkpoint
    error = "BadRequestError: Error code: 400 - wrong field"
    for _ in range(2):
        history.model_fails(error)
        history.enter("error")
        history.event("failed", reason=error)
        rewind(history, anna, start, "The wrong field")
    session = history.session
    found = lines(session)
    assert [(number, item.steps, item.failures) for number, item in found.items()] == [(1, 0, 1), (2, 0, 1)]
    text = plain(desk, session)
    assert "1 failed model call rewound by anna" in text
    for number in found:
        assert error in plain(desk, session, f"branches/{number}/")
        compared = desk.get(f"/sessions/{session.pk}/branches/{number}/compare/", follow=True)
        assert compared.status_code == 200
        assert "Compare</h1>" in compared.content.decode()


@pytest.mark.slow
def test_a_step_that_failed_after_others_is_named_with_them(anna, desk):
    history = builders.looked_up()
    start = Checkpoint.objects.visible_on(history.branch).earliest("position")
    history.model_fails()
    rewind(history, anna, start, "Once more")
    assert "1 step and 1 failed model call rewound by anna" in plain(desk, history.session)


@pytest.mark.slow
def test_a_session_that_was_rewound_says_who_did_it_and_what_to_do_next(anna, sue, desk):
    history = builders.looked_up()
    start = Checkpoint.objects.visible_on(history.branch).earliest("position")
    history.lookup()
    rewind(history, anna, start, "The wrong policy.")
    text = plain(desk, history.session)
    assert "Rewound by anna: The wrong policy. Resume it to continue from here." in text
    assert "Paused. The wrong policy" not in text
    fork = actions.fork(
        actor=sue, session_id=history.session.pk, checkpoint_id=start.pk, reason="Another way"
    )
    assert "Forked by sue: Another way. Resume it to continue from here." in plain(desk, fork)
    assert "Rewound by anna:" in plain(desk, history.session)
    history.session.refresh_from_db()
    undo(history, sue, "It was right")
    assert "Rewind undone by sue: It was right. Resume it to continue from here." in plain(
        desk, history.session
    )
    history.event("paused", anna, reason="Lunch")
    history.rest("paused", why="Lunch")
    assert "Paused. Lunch" in plain(desk, history.session)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["viewer", "operator", "supervisor"])
def test_discarded_steps_offer_the_same_in_place_as_on_a_page_of_their_own(anna, client, settings, role):
    settings.AGENTSTATE_MASK_KEYS = ["text"]
    history = builders.looked_up()
    start = Checkpoint.objects.visible_on(history.branch).earliest("position")
    step(history, "send_letter", text="Dear")
    rewind(history, anna, start, "The wrong policy")
    client.force_login(builders.user(role, role))
    offered = []
    for headers in ({}, {"HX-Request": "true"}):
        answer = client.get(f"/sessions/{history.session.pk}/branches/1/", headers=headers)
        assert answer.status_code == 200
        steps = answer.content.decode().partition('<li class="rewound open"')[2].partition("</ol>")[0]
        assert "send_letter" in steps
        # In place the step has an id of its own beside the present one at the same checkpoint.
        steps = re.sub(r'(#k\d+)-1"', r'\1"', steps)
        offered.append(re.findall(r'href="[^"]+"|name="value" value="[^"]+"', steps))
    assert offered[0] == offered[1]
    text = str(offered[1])
    may = role != "viewer"
    assert ("/undo/" in text, "/rewind/" in text, "/fork/" in text) == (may, may, may)
    assert ("arguments:" in text) == (role == "supervisor")


@pytest.fixture
def long_branch(anna) -> Session:
    """Forty steps, each with a letter of its own, that were rewound to the first."""
    history = builders.looked_up()
    start = Checkpoint.objects.visible_on(history.branch).earliest("position")
    for number in range(40):
        step(history, "send_letter", text=f"letter {number};")
    rewind(history, anna, start, "Begin again")
    return history.session


def letters_of(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"letter (\d+);", text)]


@pytest.mark.slow
@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true"}])
def test_each_step_of_a_long_discarded_branch_can_be_read(desk, long_branch, headers):
    found: list[int] = []
    ids: list[str] = []
    address = f"/sessions/{long_branch.pk}/branches/1/"
    while address:
        text = desk.get(address, headers=headers).content.decode()
        shown = [number for number in letters_of(text) if number not in found]
        assert shown == sorted(shown)
        found += dict.fromkeys(shown)
        ids += re.findall(r' id="(k[\d-]+)"', text)
        links = re.findall(r'href="([^"]+)"[^>]*>Later steps<', text)
        address = unescape(links[0]) if links else ""
    assert found == list(range(40))
    assert len(ids) == len(set(ids)) >= 41


@pytest.mark.slow
def test_the_pages_of_a_discarded_branch_lead_back_to_its_first_steps(desk, long_branch):
    here = f"/sessions/{long_branch.pk}/branches/1/"
    first = desk.get(here).content.decode()
    assert "Earlier steps" not in first
    [later] = re.findall(r'href="([^"]+)"[^>]*>Later steps<', first)
    [earlier] = re.findall(r'href="([^"]+)"[^>]*>Earlier steps<', desk.get(unescape(later)).content.decode())
    assert letters_of(desk.get(unescape(earlier)).content.decode()) == letters_of(first)


@pytest.mark.slow
def test_links_into_discarded_history_lead_to_a_page_that_has_what_they_name(desk, long_branch):
    tab = f"/sessions/{long_branch.pk}/checkpoints/"
    links = re.findall(r'href="(/sessions/[^"]+/branches/1/[^"]*)#(k\d+)"', desk.get(tab).content.decode())
    call = ToolCall.objects.filter(tool="send_letter").latest("position")
    model_call = ModelCall.objects.latest("position")
    for page in (f"calls/{call.pk}/", f"model-calls/{model_call.pk}/"):
        text = desk.get(f"/sessions/{long_branch.pk}/{page}").content.decode()
        found = re.findall(r'href="(/sessions/[^"]+/branches/1/[^"]*)#([a-z]\d+)"', text)
        assert found, page
        links += found
    assert len(links) > 40
    newest = Checkpoint.objects.filter(branch__number=1).latest("position")
    for address, anchor in links:
        if anchor != f"k{newest.position}":  # behind the last step: no other began there
            assert f'id="{anchor}"' in desk.get(unescape(address)).content.decode(), (address, anchor)


def test_a_long_discarded_branch_costs_the_same_queries_on_each_page(
    desk, long_branch, django_assert_max_num_queries
):
    for query in ("", "?from=90", "?at=150", "?from=0", "?at=999999"):
        with django_assert_max_num_queries(26):
            assert desk.get(f"/sessions/{long_branch.pk}/branches/1/{query}").status_code == 200


@pytest.mark.slow
def test_two_discarded_branches_of_which_one_left_the_other_have_no_id_in_common(anna, desk):
    history = builders.looked_up()
    start = Checkpoint.objects.visible_on(history.branch).earliest("position")
    for number in range(4):
        step(history, "send_letter", text=f"letter {number};")
    middle = Checkpoint.objects.filter(branch=history.branch, kind="step").order_by("position")[2]
    rewind(history, anna, middle, "Another letter")
    for number in range(4, 7):
        step(history, "send_letter", text=f"letter {number};")
    rewind(history, anna, start, "Begin again")
    here = f"/sessions/{history.session.pk}/"
    parts = [
        desk.get(f"{here}branches/{number}/", headers={"HX-Request": "true"}).content.decode()
        for number in (1, 2)
    ]
    ids = re.findall(r' id="([^"]+)"', desk.get(here).content.decode())
    ids = [each for each in ids if each not in ("t1", "t2")]  # the lines that the parts replace
    for part in parts:
        ids += re.findall(r' id="([^"]+)"', part)
    assert sorted(set(ids)) == sorted(ids)
