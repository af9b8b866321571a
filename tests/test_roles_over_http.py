"""Every role asks for every action in every state, over HTTP, where values are hidden: what is done and answered."""

import html
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import transaction
from django.test import Client

from sessions_app.action_list import ACTIONS
from sessions_app.desk.pages.approvals import shown_fingerprint
from sessions_app.models import Approval, Branch, Checkpoint, Event, Message, Session, ToolCall
from tests import builders
from tests.refusals import EVERYTHING, PERMISSIONS, SUPERVISING, refusal

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.sweep(on="postgresql"),
]

MAY: dict[str | None, set[str]] = {
    None: set(),
    "viewer": {"view_session"},
    "operator": EVERYTHING - SUPERVISING,
    "supervisor": EVERYTHING,
}
# They need a row that not every state has: a checkpoint, a call in doubt, an open approval, a working memory.
NEEDS_ROW = {
    *("rewind", "fork", "approve", "reject", "reuse", "decide", "withdraw"),
    *("remove-breakpoint", "arguments", "edit-entry", "erase-entry"),
} | {key for key, permission in PERMISSIONS.items() if permission == "repair_session" and key != "release"}
# The form decides the calls in doubt first.
RESUMES_WITH_DECISIONS = "in_doubt"
HIDDEN = ("CLM-1042", "POL-7")


@pytest.fixture(autouse=True)
def hiding(settings: LazySettings) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["claim"]
    settings.AGENTSTATE_MASK_PATTERNS = [r"POL-\d+", r"CLM-\d+"]


def filled_in(session: Session) -> dict[str, Any]:
    """The fields of all forms at once: each reads its own."""
    calls = ToolCall.objects.filter(branch__session=session).order_by("position")
    message = Message.objects.filter(branch__session=session, role="user").first()
    checkpoint = Checkpoint.objects.filter(branch__session=session).order_by("position").first()
    approval = Approval.objects.filter(session=session).first()
    call = approval.call if approval is not None else calls.last()
    return {
        "version": session.version,
        "reason": "Because of the rain",
        "checkpoint": checkpoint.pk if checkpoint is not None else 1,
        "call_id": call.pk if call is not None else 1,
        "fingerprint": shown_fingerprint(approval) if approval is not None else "x",
        "position": message.position if message is not None else 1,
        "text": "Rain",
        "message": "Rain",
        "decision": "skip",
        "tool": "issue_refund",
        "assignee": "anna",
        "goal": "Pay",
        "key": "limit",
        "value": "1",
        "argument": "amount",
        "comparison": "=",
        "number": 1,
        "entry": 1,
        "answer": "result",
        **{f"decision-{call.pk}": "skip" for call in calls},
        **{f"message-{call.pk}": "Rain" for call in calls},
        **{f"result-{call.pk}": "Paid" for call in calls},
    }


def written(session: Session) -> tuple[Any, ...]:
    """What an action would change."""
    now = Session.objects.get(pk=session.pk)
    return (
        (now.status, now.version, now.position, now.branch_id, now.assignee_id, now.stop_request),
        Session.objects.count(),
        Event.objects.count(),
        Branch.objects.count(),
        list(Approval.objects.order_by("pk").values_list("decision", flat=True)),
        list(ToolCall.objects.order_by("pk").values_list("status", flat=True)),
    )


@pytest.mark.parametrize("state", builders.STATES)
@pytest.mark.parametrize("role", MAY)
def test_what_each_role_may_do_in_each_state(client: Client, role: str | None, state: str) -> None:
    session = builders.STATES[state]()
    client.force_login(builders.user(role, "anna"))
    before, fields = written(session), filled_in(session)
    for key in ACTIONS:
        savepoint = transaction.savepoint()
        answer = client.post(f"/sessions/{session.pk}/{key}/", fields)
        done = written(session) != before
        transaction.savepoint_rollback(savepoint)
        text = html.unescape(answer.content.decode())
        case = (role, state, key, answer.status_code)
        assert not any(value in text for value in HIDDEN), case
        why = "" if (key, state) == ("resume", RESUMES_WITH_DECISIONS) else refusal(key, state)
        if PERMISSIONS[key] not in MAY[role]:
            assert (answer.status_code, done) == (403, False), case
            # Without a role, no page of the desk is shown at all.
            lowest = "operator or supervisor" if PERMISSIONS[key] in MAY["operator"] else "supervisor"
            needed = lowest if role else "viewer, operator or supervisor"
            assert f" needs the {needed} role." in text, case
        elif why and key not in NEEDS_ROW:
            assert (answer.status_code, done) == (409, False), case
            assert why in text, case
        elif why:
            assert answer.status_code in (400, 404, 409), case
            assert not done, case
        elif key not in NEEDS_ROW:
            assert (answer.status_code, done) == (302, True), (case, text[:2000])
        else:
            assert answer.status_code in (302, 400, 404, 409), case
            assert done == (answer.status_code == 302), case
