"""A session whose agent has changed, or cannot be built: what a person is told before deciding, and what happens."""

import html
import re
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from sessions_app import actions
from sessions_app.access.errors import Moved, Refused
from sessions_app.desk.pages.approvals import shown_fingerprint
from sessions_app.models import Approval, RegisteredAgent, Session, ToolCall
from tests import builders
from tests.builders import DEFINITION

pytestmark = pytest.mark.django_db

NEW = "e" * 64
PROBLEM = "SyntaxError: invalid syntax (claims.py, line 3)"
CANNOT = f"Its agent cannot be built: {PROBLEM}."
MOVED = "The agent has changed since this page was loaded. Check it again, then decide."


def change_agent() -> None:
    RegisteredAgent.objects.update(definition=NEW)


def break_agent() -> None:
    RegisteredAgent.objects.update(problem=PROBLEM)


def fresh(session: Session) -> Session:
    return Session.objects.get(pk=session.pk)


def text_of(response) -> str:
    """What is visible: some text is hidden until a script shows it."""
    visible = re.sub(r"<span data-edited hidden>[^<]*</span>", "", response.content.decode())
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", visible)).split())


def on_card(text: str) -> dict[str, str]:
    return dict(re.findall(r'name="(version|call_id|fingerprint|definition)" value="([^"]*)"', text))


@pytest.mark.slow
@pytest.mark.parametrize("page", ["/inbox/", "/sessions/{}/"])
def test_the_card_says_that_the_agent_has_changed_and_approving_there_continues_with_the_new_one(
    operator, page
):
    session = builders.waiting_for_approval()
    change_agent()
    answer = operator.get(page.format(session.pk))
    assert "Approve and continue with the new definition" in text_of(answer)
    assert (
        "The agent has changed since this session last ran. It continues with the new definition."
        in text_of(answer)
    )
    fields = on_card(answer.content.decode())
    done = operator.post(f"/sessions/{session.pk}/approve/", fields, follow=True)
    assert "Approved. The call runs with the arguments shown." in text_of(done)
    session = fresh(session)
    assert (session.status, session.definition) == ("queued", NEW)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["/inbox/", "/sessions/{}/"])
def test_the_card_of_an_agent_that_cannot_be_built_offers_rejecting_only(operator, page):
    session = builders.waiting_for_approval()
    break_agent()
    answer = operator.get(page.format(session.pk))
    assert f"{CANNOT} The call can be rejected, but not approved." in text_of(answer)
    assert re.search(
        r'<button[^>]* aria-disabled="true" title="Its agent cannot be built[^>]*>\s*Approve\s*<',
        answer.content.decode(),
    )
    assert f'href="/sessions/{session.pk}/reject/' in answer.content.decode()
    fields = on_card(answer.content.decode())
    refused = operator.post(f"/sessions/{session.pk}/approve/", fields)
    assert refused.status_code == 409
    assert CANNOT in text_of(refused)
    assert Approval.objects.get().decision == ""
    rejected = operator.post(
        f"/sessions/{session.pk}/reject/", {**fields, "message": "Not this one"}, follow=True
    )
    later = "Rejected. The agent reads your message once its agent can run again and the session is resumed."
    assert later in text_of(rejected)
    assert Approval.objects.get().decision == "rejected"


@pytest.mark.slow
def test_an_approval_by_a_page_drawn_before_the_agent_changed_is_refused(operator):
    session = builders.waiting_for_approval()
    fields = on_card(operator.get("/inbox/").content.decode())
    change_agent()
    answer = operator.post(f"/sessions/{session.pk}/approve/", fields)
    assert answer.status_code == 409
    assert MOVED in text_of(answer)
    assert fresh(session).definition == DEFINITION
    again = on_card(answer.content.decode())
    assert again["definition"] == NEW
    assert operator.post(f"/sessions/{session.pk}/approve/", {**fields, **again}).status_code == 302
    assert fresh(session).definition == NEW


def test_several_approvals_at_once_do_not_continue_with_a_changed_agent(operator):
    session = builders.waiting_for_approval()
    approval = Approval.objects.get(session=session)
    change_agent()
    ticks = {
        "call": f"{approval.pk}:{shown_fingerprint(approval)}",
        "decision": "approve",
        "tool": "issue_refund",
    }
    answer = operator.post("/approvals/batch/", ticks)
    assert answer.status_code == 409
    assert MOVED in text_of(answer)
    assert fresh(session).status == "waiting"


@pytest.mark.slow
@pytest.mark.parametrize(
    "state, label",
    [
        ("paused", "Resume with the new definition"),
        ("changed", "Resume with the new definition"),
        ("retries_used_up", "Resume with the new definition"),
        ("failed", "Try again with the new definition"),
        ("retrying", "Try now with the new definition"),
    ],
)
def test_resuming_says_that_it_is_with_the_new_definition_and_does_so(operator, state, label):
    session = builders.STATES[state]()
    change_agent()
    assert label in text_of(operator.get(f"/sessions/{session.pk}/"))
    dialog = operator.get(f"/sessions/{session.pk}/resume/")
    assert "Resume with the new definition" in text_of(dialog)
    fields = {"version": session.version, "reason": "Go on", "definition": NEW}
    assert operator.post(f"/sessions/{session.pk}/resume/", fields).status_code == 302
    session = fresh(session)
    assert (session.status, session.definition) == ("queued", NEW)


@pytest.mark.parametrize("told", ["", "f" * 64])
def test_a_resume_by_a_page_drawn_before_the_agent_changed_is_refused(operator, told):
    session = builders.paused()
    change_agent()
    fields = {"version": session.version, "reason": "Go on", "definition": told}
    answer = operator.post(f"/sessions/{session.pk}/resume/", fields)
    assert answer.status_code == 409
    assert MOVED in text_of(answer)
    assert "It continues with the new definition." in text_of(answer)
    assert (fresh(session).status, fresh(session).definition) == ("paused", DEFINITION)
    again = {"reason": "Go on"} | dict(
        re.findall(r'name="(version|definition)" value="([^"]*)"', answer.content.decode())
    )
    assert again["definition"] == NEW
    assert operator.post(f"/sessions/{session.pk}/resume/", again).status_code == 302
    assert (fresh(session).status, fresh(session).definition) == ("queued", NEW)


def test_who_resumes_a_session_where_no_page_is_drawn_continues_with_the_agent_as_it_is_now():
    session = builders.paused()
    change_agent()
    actions.resume(actor=builders.SYSTEM, session_id=session.pk, reason="Go on")
    assert (fresh(session).status, fresh(session).definition) == ("queued", NEW)


def test_a_request_to_pause_is_withdrawn_whatever_the_agent_is_now(operator):
    session = builders.running()
    Session.objects.filter(pk=session.pk).update(stop_request="pause")
    change_agent()
    fields = {"version": session.version, "reason": "Go on", "definition": ""}
    assert operator.post(f"/sessions/{session.pk}/resume/", fields).status_code == 302
    assert (fresh(session).stop_request, fresh(session).definition) == ("", DEFINITION)


@pytest.mark.slow
def test_a_session_whose_agent_cannot_be_built_is_not_resumed(operator):
    session = builders.paused()
    break_agent()
    page = operator.get(f"/sessions/{session.pk}/")
    assert f"It cannot continue. {CANNOT}" in text_of(page)
    assert re.search(
        r'<button [^>]*aria-disabled="true" title="Its agent cannot be built', page.content.decode()
    )
    answer = operator.post(f"/sessions/{session.pk}/resume/", {"version": session.version, "reason": "Go on"})
    assert answer.status_code == 409
    assert fresh(session).status == "paused"


def test_an_agent_that_no_worker_has_is_said_on_the_page(operator):
    session = builders.paused()
    RegisteredAgent.objects.all().delete()
    page = text_of(operator.get(f"/sessions/{session.pk}/"))
    assert "It cannot continue. Its agent cannot run: no worker has an agent “claims”." in page


@pytest.mark.slow
def test_the_outcome_of_a_call_can_be_recorded_while_the_agent_cannot_be_built_but_it_does_not_run_again(
    operator,
):
    session = builders.in_doubt()
    call = ToolCall.objects.get(status="doubt")
    break_agent()
    for address in (f"/sessions/{session.pk}/", "/inbox/"):
        page = operator.get(address).content.decode()
        assert re.search(r'aria-disabled="true" title="Its agent cannot be[^>]*>It did not: run again<', page)
    dialog = text_of(operator.get(f"/sessions/{session.pk}/decide/?call={call.pk}"))
    assert f"{CANNOT} You can record the outcome or skip the call, but not run it again." in dialog
    decide: dict[str, Any] = {
        "actor": builders.SYSTEM,
        "session_id": session.pk,
        "call_id": call.pk,
        "reason": "Asked",
    }
    with pytest.raises(Refused, match="cannot be built"):
        actions.decide(**decide, again=True)
    call.refresh_from_db()
    assert call.status == "doubt"
    actions.decide(**decide, skip="It was not sent.")
    call.refresh_from_db()
    assert call.status == "skipped"


def test_calls_in_doubt_are_not_decided_and_resumed_together_while_the_agent_cannot_be_built():
    session = builders.in_doubt()
    call = ToolCall.objects.get(status="doubt")
    break_agent()
    with pytest.raises(Refused, match="cannot be built"):
        actions.decide_all(
            actor=builders.SYSTEM, session_id=session.pk, decisions={call.pk: {"skip": "No"}}, reason="Asked"
        )
    call.refresh_from_db()
    assert call.status == "doubt"


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"again": True}, {"skip": "It was not sent."}])
def test_deciding_a_call_in_doubt_continues_with_the_new_definition_that_was_shown(operator, how):
    session = builders.in_doubt()
    call = ToolCall.objects.get(status="doubt")
    change_agent()
    assert "It continues with the new definition." in text_of(operator.get(f"/sessions/{session.pk}/"))
    page = operator.get(f"/sessions/{session.pk}/decide/?call={call.pk}").content.decode()
    assert "Record outcome and continue with the new definition" in " ".join(
        re.sub(r"<[^>]+>", " ", page).split()
    )
    assert on_card(page)["definition"] == NEW
    decide: dict[str, Any] = {
        "actor": builders.SYSTEM,
        "session_id": session.pk,
        "call_id": call.pk,
        "reason": "Asked",
    }
    actions.decide(**decide, **how, definition=NEW)
    session = fresh(session)
    assert (session.status, session.definition) == ("queued", NEW)


def test_a_call_in_doubt_runs_again_with_a_changed_agent_only_if_that_was_shown():
    session = builders.in_doubt()
    call = ToolCall.objects.get(status="doubt")
    change_agent()
    decide: dict[str, Any] = {
        "actor": builders.SYSTEM,
        "session_id": session.pk,
        "call_id": call.pk,
        "reason": "Asked",
    }
    for definition in ("", "f" * 64):
        with pytest.raises(Moved, match="The agent has changed"):
            actions.decide(**decide, again=True, definition=definition)
    actions.decide(**decide, skip="It was not sent.")
    assert fresh(session).definition == DEFINITION


@pytest.mark.parametrize("do", [actions.rewind, actions.fork])
def test_nothing_runs_on_from_a_checkpoint_while_the_agent_cannot_be_built(do):
    session = builders.paused()
    checkpoint = builders.branch_of(session).checkpoints.earliest("position")
    break_agent()
    how: dict[str, Any] = {
        "actor": builders.SYSTEM,
        "session_id": session.pk,
        "checkpoint_id": checkpoint.pk,
        "reason": "Once more",
    }
    with pytest.raises(Refused, match="Rewind or fork without resuming immediately"):
        do(**how, run=True)
    assert Session.objects.count() == 1
    assert fresh(session).branch_id == session.branch_id
    assert do(**how).status == "paused"


@pytest.mark.slow
def test_an_approval_of_a_paused_session_says_that_it_runs_once_resumed(operator):
    history = builders.refunding()
    history.ask(history.calls[-1])
    session = history.rest("paused")
    fields = on_card(operator.get("/inbox/").content.decode())
    done = operator.post(f"/sessions/{session.pk}/approve/", fields, follow=True)
    assert "Approved. The call runs with the arguments shown once the session is resumed." in text_of(done)


def test_the_command_line_approves_with_a_changed_agent_only_if_it_is_told_to():
    session = builders.waiting_for_approval()
    call = Approval.objects.get().call.call_id
    change_agent()
    with pytest.raises(CommandError, match="The agent has changed"):
        call_command("agent", "decide", str(session.pk), call, "--approve")
    call_command("agent", "decide", str(session.pk), call, "--approve", "--new-definition", stdout=StringIO())
    assert fresh(session).definition == NEW
