"""What is configured as hidden is on no page until a person with the permission reveals it; edits keep it."""

import json
import re
from typing import Any
from urllib.parse import quote_plus

import pytest
from django.test import Client
from django.utils import timezone

from agentstate.durable.state.encoding import decode
from agentstate.names import STAFF_NOTE
from sessions_app import actions
from sessions_app.access.errors import Invalid
from sessions_app.access.masking import _MASKED_FIELDS, HIDDEN, Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.pages.approvals import shown_fingerprint
from sessions_app.finding import search_index
from sessions_app.models import (
    Approval,
    Branch,
    Checkpoint,
    Event,
    InboxMessage,
    ModelCall,
    RegisteredAgent,
    Session,
    StateValue,
    ToolCall,
)
from tests import builders
from tests.pages import without_random

pytestmark = pytest.mark.django_db

SECRET = "DE44-5001-0517"


@pytest.fixture(autouse=True)
def _hidden(settings) -> None:
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE44-\d+-\d+"]
    settings.AGENTSTATE_MASK_KEYS = ["pin"]


def confidential() -> Session:
    """A session with the secret wherever one can be; it waits for an approval, and has a discarded branch."""
    history = builders.History(title=f"About {SECRET}", customer=f"Ada {SECRET}", tags=["glass"])
    history.system(f"Never tell {SECRET}.")
    history.user(f"My account is {SECRET}.")
    start = history.checkpoint("start", outcome={"final_answer": SECRET, "exit_reason": "text"})
    for key, value in (("account", SECRET), ("pin", 4711), ("working_memory", memory())):
        StateValue.objects.create(branch=history.branch, position=start.position, key=key, value=value)
        start.keys[key] = start.position
    start.save()
    history.reply(f"I look up {SECRET}.", [("lookup_policy", {"policy": SECRET, "pin": 4711})])
    history.finish(history.calls[-1], {"account": SECRET, "pin": 4711})
    history.checkpoint("step", keys=start.keys)
    history.reply(calls=[("send_letter", {"text": SECRET})])
    history.finish(history.calls[-1], error=f"No letter to {SECRET}")
    step = history.checkpoint("step", keys=start.keys)
    history.model_fails(f"Refused {SECRET}")
    before = None
    history.reply(calls=[("issue_refund", {"claim": SECRET, "amount": 120})])
    before = history.finish(history.calls[-1], f"paid to {SECRET}")
    history.event("noted", reason=f"Called {SECRET}")
    session = history.rest("paused")
    actions.rewind(
        actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=step.pk, reason=f"Not to {SECRET}"
    )
    history.session.refresh_from_db()
    InboxMessage.objects.create(session=session, text=f"Hurry, says {SECRET}")
    history.reply(calls=[("issue_refund", {"claim": SECRET, "amount": 120})])
    history.ask(history.calls[-1], repeats=before)
    while search_index.update():
        pass
    return history.rest(
        "waiting", waiting_for="approval", why=f"Waits for {SECRET}", error=SECRET, final_answer=SECRET
    )


def memory() -> dict[str, Any]:
    return {
        "goal": f"Pay {SECRET}",
        "plan": ["ask", f"pay {SECRET}"],
        "notes": [SECRET],
        "completed": ["ask"],
    }


def pages(session: Session) -> list[str]:
    here = f"/sessions/{session.pk}/"
    branch = builders.branch_of(session)
    calls = ToolCall.objects.filter(branch__session=session)
    message = branch.parent.messages.get(role="user") if branch.parent else None
    assert message
    checkpoints = Checkpoint.objects.filter(branch__session=session).order_by("position")
    first, last = checkpoints[0].pk, checkpoints[2].pk
    waiting = calls.latest("position").pk
    return [
        "/?queue=all",
        "/inbox/?kind=failed",
        "/?q=account",
        "/?queue=all&q=letter",
        "/inbox/",
        "/workers/",
        f"/compare/?a={first}&b={last}",
        "/many/?queue=all&kind=pause",
        here,
        f"{here}?show=errors",
        f"{here}?show=people",
        f"{here}earlier/?before=100",
        f"{here}live/?from=1&shown=0&branch=0",
        f"{here}branches/1/",
        f"{here}conversation/",
        f"{here}state/",
        f"{here}state/?checkpoint={first}",
        f"{here}checkpoints/",
        f"{here}audit/",
        f"{here}json/",
        f"{here}json/?raw",
        f"{here}find/?q=account",
        *(f"{here}calls/{pk}/{raw}" for pk in calls.values_list("pk", flat=True) for raw in ("", "?raw")),
        f"{here}resume/",
        f"{here}rewind/?checkpoint={first}",
        f"{here}fork/?checkpoint={first}&replace={message.position}",
        f"{here}undo/",
        f"{here}memory/",
        f"{here}state-value/?key=account",
        f"{here}state-value/?key=pin",
        f"{here}message-text/?position={message.position}",
        f"{here}message-text/?call={calls.earliest('position').pk}",
        f"{here}answer/?call={waiting}",
        f"{here}step/",
        f"{here}approve/?call={waiting}",
        f"{here}reject/?call={waiting}",
        f"{here}message/",
        f"{here}assign/",
    ]


def has_placeholder(text: str) -> bool:
    """Whether the page, or the JSON, shows that something is hidden."""
    return HIDDEN in text or HIDDEN.encode("unicode_escape").decode() in text


def hides(answer: Any, secret: str = SECRET) -> None:
    """That the page is there, with the placeholder and without the secret."""
    assert answer.status_code == 200
    text = answer.content.decode()
    assert has_placeholder(text)
    assert secret not in text


@pytest.mark.slow
@pytest.mark.parametrize("role", ["viewer", "supervisor"])
def test_no_page_shows_what_is_hidden(client, role):
    session = confidential()
    client.force_login(builders.user(role))
    hidden = 0
    for address in pages(session):
        for headers in ({}, {"HX-Request": "true"}):
            answer = client.get(address, headers=headers)
            assert answer.status_code in (200, 404), address
            text = without_random(answer.content.decode())
            for secret in (SECRET, "4711"):
                place = text.find(secret)
                assert place < 0, f"{address}: {text[max(0, place - 200) : place + 50]}"
            hidden += has_placeholder(text)
    assert hidden > 40


@pytest.mark.slow
def test_a_result_of_json_is_hidden_in_the_message_to_the_model_too(supervisor):
    history = builders.History()
    history.user("Hello")
    first = history.checkpoint("start")
    history.reply("", [("lookup_policy", {"policy": "P"})])
    history.finish(history.calls[-1], [["pin", "S3CRET"], ["pad", "y"]])
    last = history.checkpoint("step")
    session = history.rest("paused")
    while search_index.update():
        pass
    for page in ("", "json/?raw", "find/?q=lookup"):
        hides(supervisor.get(f"/sessions/{session.pk}/{page}"), "S3CRET")
    hides(supervisor.get(f"/compare/?a={first.pk}&b={last.pk}"), "S3CRET")


# The columns of JSON, of which pages read parts, and parts of the working memory.
STRUCTURED = {
    "arguments",
    "body",
    "data",
    "edited",
    "inputs",
    "outcome",
    "result",
    "sent",
    "side_replies",
    "state",
} | {*("value", "working_memory", "plan", "goal", "notes", "completed", "left_state")}
QUICK = {"arguments", "data", "outcome", "plan"}
FIELDS = sorted({name for fields in _MASKED_FIELDS.values() for name in fields} | STRUCTURED)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long, pytest.mark.sweep(on="sqlite")])
        for name in FIELDS
    ],
)
def test_a_key_may_be_the_name_of_a_column(client, settings, name):
    """Each page is shown, and no value of the column is."""
    session = confidential()
    others = [builders.STATES[state]() for state in ("done", "failed", "in_doubt", "rewound")]
    settings.AGENTSTATE_MASK_KEYS = [name]
    client.force_login(builders.user("supervisor"))
    for address in pages(session):
        answer = client.get(address)
        assert answer.status_code in (200, 404), address
        assert SECRET not in answer.content.decode()
    for other in others:
        for page in ("", "audit/", "checkpoints/", "undo/", "json/?raw", "memory/"):
            assert client.get(f"/sessions/{other.pk}/{page}").status_code == 200, (other.status, page)
    answer = edit(client, session, "memory", goal=HIDDEN, plan=HIDDEN, notes=HIDDEN)
    assert answer.status_code in (302, 400)


def test_a_hidden_column_of_json_hides_its_values_and_keeps_its_form():
    event = Event(kind="noted", data={"a": {"b": "DE89"}, "empty": None}, reason="x")
    assert Mask.of(["data"], []).row(event).data == {"a": HIDDEN, "empty": None}
    call = ModelCall(side_replies=[{"a": "DE89"}, "DE89"])
    assert Mask.of(["replies"], []).row(call).side_replies == [{"a": HIDDEN}, HIDDEN]
    assert Mask.of(["result"], []).row(ToolCall(result={"a": 1})).result == HIDDEN


@pytest.mark.slow
def test_in_doubt_and_stuck_sessions_hide_it_too(supervisor):
    history = builders.looked_up(title="Open")
    history.reply(calls=[("send_letter", {"text": SECRET})])
    history.doubt(history.calls[-1])
    session = history.rest("waiting", waiting_for="doubt", why=SECRET)
    for rest in ("", "resume/", f"decide/?call={history.calls[-1].pk}"):
        hides(supervisor.get(f"/sessions/{session.pk}/{rest}"))
    failed = builders.failed(title="Failed")
    Session.objects.filter(pk=failed.pk).update(error=SECRET)
    stuck = builders.lost(title=f"Lost {SECRET}")
    here = [f"/sessions/{each.pk}/" for each in (failed, stuck)]
    for address in ("/inbox/?kind=failed", "/inbox/?kind=stuck", *here):
        hides(supervisor.get(address))


@pytest.mark.slow
def test_without_configuration_nothing_is_hidden_and_revealing_is_not_offered(supervisor, settings):
    settings.AGENTSTATE_MASK_PATTERNS = settings.AGENTSTATE_MASK_KEYS = []
    text = supervisor.get(f"/sessions/{confidential().pk}/").content.decode()
    assert SECRET in text
    assert HIDDEN not in text
    assert "reveal" not in text


def reveal(client: Client, session: Session, value: str):
    return client.post(f"/sessions/{session.pk}/reveal/", {"value": value})


def buttons(page: str) -> list[str]:
    return re.findall(r'form="reveal" name="value" value="([^"]+)"', page)


@pytest.mark.slow
@pytest.mark.parametrize("tab", ["", "conversation/", "state/", "audit/", "calls/{call}/", "branches/1/"])
def test_each_hidden_value_is_revealed_by_itself_and_the_look_says_which_it_was(supervisor, tab):
    session = confidential()
    call = ToolCall.objects.filter(branch__session=session, tool="lookup_policy").get()
    address = f"/sessions/{session.pk}/{tab.format(call=call.pk)}"
    values = buttons(supervisor.get(address).content.decode())
    assert len(values) > 2
    for value in dict.fromkeys(values):
        answer = reveal(supervisor, session, value)
        assert answer.status_code == 200, value
        text = answer.content.decode()
        assert SECRET in text or "4711" in text, value
        event = Event.objects.filter(session=session, kind="revealed").latest("position")
        assert event.actor_name == "sue"
        assert f"<h2>{event.data['what']}</h2>" in text
        # Nothing else is shown on the page of the one value.
        shown = text.replace(re.findall(r'(?s)<pre class="whole">.*?</pre>', text)[0], "")
        assert SECRET not in shown
        assert "4711" not in without_random(shown)
    # They are hidden again at the next look.
    assert SECRET not in supervisor.get(address).content.decode()
    assert "revealed masked values" in supervisor.get(f"/sessions/{session.pk}/").content.decode()


@pytest.mark.slow
def test_the_audit_trail_names_the_value_that_was_seen(supervisor):
    session = confidential()
    call = ToolCall.objects.filter(branch__session=session, tool="lookup_policy").get()
    checkpoint = Checkpoint.objects.filter(branch__session=session).latest("position")
    unread = InboxMessage.objects.get(session=session)
    message = Branch.objects.get(session=session, number=1).messages.get(role="user")
    for value, what in (
        (f"arguments:{call.position}", f"the arguments of call {call.position} of lookup_policy"),
        (f"result:{call.position}", f"the result of call {call.position} of lookup_policy"),
        (f"message:{message.position}", f"message {message.position}"),
        (f"state:{checkpoint.pk}-1", f"the state value pin at {checkpoint.position}"),
        (f"unread:{unread.pk}", f"unread message {unread.pk}"),
        ("session:customer", "the customer of the session"),
    ):
        assert reveal(supervisor, session, value).status_code == 200, value
        event = Event.objects.filter(session=session, kind="revealed").latest("position")
        assert event.data == {"what": what}


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            ":",
            "arguments",
            "arguments:",
            "arguments:x",
            "arguments:999",
            "result:" + "9" * 5000,
            "gun:1",
        ),
        *(
            "state:1",
            "state:-",
            "state:999-0",
            "session:agent",
            "session:__class__",
            "unread:0",
            "message:-1",
        ),
    ],
)
def test_what_a_session_does_not_have_is_not_found_and_no_look_is_recorded(supervisor, value):
    session = confidential()
    assert reveal(supervisor, session, value).status_code == 404
    assert not Event.objects.filter(kind="revealed").exists()
    assert reveal(supervisor, session, "session:title").status_code == 200


@pytest.mark.slow
def test_no_value_of_another_session_is_revealed(supervisor):
    session, other = confidential(), builders.done()
    checkpoint = Checkpoint.objects.filter(branch__session=session).latest("position")
    unread = InboxMessage.objects.get(session=session)
    call = ToolCall.objects.filter(branch__session=session).latest("position")
    for value in (f"state:{checkpoint.pk}-1", f"unread:{unread.pk}", f"arguments:{call.position}"):
        assert reveal(supervisor, other, value).status_code == 404
        assert reveal(supervisor, session, value).status_code == 200


@pytest.mark.slow
def test_a_fork_reveals_what_it_was_forked_with(supervisor):
    session = confidential()
    start = Checkpoint.objects.filter(branch__session=session).earliest("position")
    fork = actions.fork(actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="x")
    [value] = {
        value
        for value in buttons(supervisor.get(f"/sessions/{fork.pk}/conversation/").content.decode())
        if value.startswith("message")
    }
    assert SECRET in reveal(supervisor, fork, value).content.decode()
    assert Event.objects.get(kind="revealed").session_id == fork.pk


@pytest.mark.slow
def test_no_other_role_can_reveal_it(client):
    session = confidential()
    call = ToolCall.objects.filter(branch__session=session, tool="lookup_policy").get()
    value = f"arguments:{call.position}"
    assert reveal(client, session, value)["Location"].startswith("/login/")
    for role in ("viewer", "operator"):
        client.force_login(builders.user(role))
        assert buttons(client.get(f"/sessions/{session.pk}/").content.decode()) == []
        # Who may not see it is not told whether it is there.
        for guess in (value, "arguments:999"):
            answer = reveal(client, session, guess)
            assert answer.status_code == 403
            assert SECRET not in answer.content.decode()
    assert not Event.objects.filter(kind="revealed").exists()
    forger = Client(enforce_csrf_checks=True)
    forger.force_login(builders.user("supervisor"))
    assert reveal(forger, session, value).status_code == 403


@pytest.mark.parametrize("tab", ["", "conversation/", "state/", "audit/", "json/", "json/?raw"])
def test_no_page_is_revealed_whole(supervisor, tab):
    session = confidential()
    assert supervisor.post(f"/sessions/{session.pk}/{tab}").status_code == 405
    assert supervisor.get(f"/sessions/{session.pk}/reveal/").status_code == 405


@pytest.mark.slow
def test_revealing_makes_no_page_out_of_date(supervisor):
    session = confidential()
    assert reveal(supervisor, session, "session:title").status_code == 200
    assert Session.objects.get(pk=session.pk).version == session.version


def test_an_unknown_session_is_not_found(supervisor):
    assert supervisor.post("/sessions/00000000-0000-7000-8000-000000000000/reveal/").status_code == 404


@pytest.mark.slow
def test_a_call_is_approved_with_its_hidden_values_unchanged(supervisor):
    session = confidential()
    approval = Approval.objects.get(session=session)
    approval.repeats = None
    approval.save()
    page = supervisor.get(f"/sessions/{session.pk}/").content.decode()
    field = re.search(r'name="arg-claim"[^>]*>([^<]*)<|name="arg-claim" value="([^"]*)"', page)
    assert field
    shown = (field[1] or field[2]).strip().replace("&quot;", '"')
    assert HIDDEN in shown
    fields = {
        "version": session.version,
        "call_id": approval.call_id,
        "fingerprint": shown_fingerprint(approval),
        "arg-claim": shown,
        "arg-amount": "99",
    }
    assert supervisor.post(f"/sessions/{session.pk}/approve/", fields).status_code == 302
    approval.refresh_from_db()
    assert approval.edited == {"claim": SECRET, "amount": 99}


@pytest.mark.slow
def test_a_field_of_the_form_does_not_say_what_is_hidden(supervisor):
    """A form that says that its values were revealed is read like any other."""
    session = confidential()
    approval = Approval.objects.get(session=session)
    fields = {"version": session.version, "call_id": approval.call_id, "arg-amount": "120", "revealed": "on"}
    fields["fingerprint"] = shown_fingerprint(approval)
    fields["arg-claim"] = f'"{HIDDEN}"'
    fields["effects_seen"] = "on"
    assert supervisor.post(f"/sessions/{session.pk}/approve/", fields).status_code == 302
    approval.refresh_from_db()
    assert (approval.decision, approval.edited) == ("approved", None)


@pytest.mark.slow
def test_a_hidden_argument_is_not_changed_in_part(supervisor):
    session = confidential()
    approval = Approval.objects.get(session=session)
    fields = {
        "version": session.version,
        "call_id": approval.call_id,
        "fingerprint": shown_fingerprint(approval),
        "arg-claim": f'"{HIDDEN} and more"',
        "arg-amount": "99",
    }
    answer = supervisor.post(f"/sessions/{session.pk}/approve/", fields)
    assert answer.status_code == 400
    assert "cannot be changed in part" in answer.content.decode()
    assert SECRET not in answer.content.decode()
    assert Approval.objects.get(pk=approval.pk).decision == ""


def asks_to_pay(arguments: dict[str, Any]) -> Session:
    properties = {
        "to": {"type": "array"},
        "pin": {"type": "string"},
        "amount": {"type": "number", "maximum": 500},
    }
    asked = {name: schema for name, schema in properties.items() if name in arguments}
    builders.agent("payments", tools=[builders.tool("pay", properties=asked, approval=True)])
    history = builders.History(agent_key="payments")
    history.user("Pay it")
    history.checkpoint("start")
    history.reply("", [("pay", arguments)])
    history.ask(history.calls[-1])
    return history.rest("waiting", waiting_for="approval", why="It needs an approval.")


RULES: dict[str, dict[str, Any]] = {
    "uniqueItems": {"uniqueItems": True},
    "enum": {"items": {"enum": ["S3CRET-1"]}},
    "const": {"items": {"const": "S3CRET-1"}},
    "contains": {"contains": {"const": "S3CRET-23"}},
    "not contains": {"not": {"contains": {"const": "S3CRET-23"}}},
    "if": {"if": {"contains": {"const": "S3CRET-23"}}, "then": {"maxItems": 1}, "else": {"maxItems": 3}},
    "pattern": {"items": {"pattern": "1$"}},
    "length": {"items": {"maxLength": 8}},
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_no_rule_of_a_schema_tells_anything_of_a_hidden_item_beside_one_that_is_typed(client, settings, rule):
    settings.AGENTSTATE_MASK_PATTERNS = [r"S3CRET-\d+"]
    client.force_login(builders.user("operator"))
    answers = []
    for hidden in ("S3CRET-1", "S3CRET-23"):
        session = asks_to_pay({"to": [hidden], "amount": 5})
        tools = RegisteredAgent.objects.get(key="payments").tools
        tools[0]["parameters"]["properties"]["to"] = {"type": "array", **RULES[rule]}
        RegisteredAgent.objects.update(tools=tools)
        for amount in ("999", "6"):
            typed = {"arg-to": json.dumps([HIDDEN, "S3CRET-1"], ensure_ascii=False), "arg-amount": amount}
            answer = approve(client, session, **typed)
            answers.append((answer.status_code, re.findall("do not fit.*", answer.content.decode())))
    assert answers[:2] == answers[2:]


@pytest.mark.slow
def test_an_item_that_is_typed_beside_a_hidden_one_has_to_fit_the_schema(client):
    client.force_login(builders.user("operator"))
    session = asks_to_pay({"to": [SECRET], "amount": 5})
    tools = RegisteredAgent.objects.get(key="payments").tools
    tools[0]["parameters"]["properties"]["to"]["items"] = {"type": "string"}
    RegisteredAgent.objects.update(tools=tools)
    answer = approve(client, session, **{"arg-to": json.dumps([HIDDEN, 5]), "arg-amount": "5"})
    assert answer.status_code == 400
    assert "to.1 must be text" in answer.content.decode()


def approve(client: Client, session: Session, **fields: str):
    session.refresh_from_db()
    approval = Approval.objects.get(session=session)
    fields |= {"version": str(session.version), "call_id": str(approval.call_id)}
    return client.post(
        f"/sessions/{session.pk}/approve/", fields | {"fingerprint": shown_fingerprint(approval)}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "requested, typed",
    [
        ([{"name": "pin", "value": "S3CRET"}], [{"name": "note", "value": HIDDEN}]),
        ([["pin", "S3CRET"]], [["note", HIDDEN]]),
        ([["pin", "x"], ["S3CRET", "y"]], [["note", "x"], [HIDDEN, "y"]]),
    ],
)
def test_no_edited_argument_makes_the_hidden_value_beside_it_visible(client, requested, typed):
    client.force_login(builders.user("operator"))
    session = asks_to_pay({"to": requested, "amount": 5})
    assert "S3CRET" not in client.get(f"/sessions/{session.pk}/").content.decode()
    answer = approve(client, session, **{"arg-to": json.dumps(typed), "arg-amount": "5"})
    assert answer.status_code == 400
    assert "hidden" in answer.content.decode()
    assert "S3CRET" not in client.get(f"/sessions/{session.pk}/").content.decode()


def test_no_edited_state_makes_the_hidden_value_beside_it_visible(supervisor):
    history = builders.History()
    history.user("Hello")
    start = history.checkpoint("start")
    value = [{"name": "pin", "value": "S3CRET"}]
    StateValue.objects.create(branch=history.branch, position=start.position, key="account", value=value)
    start.keys["account"] = start.position
    start.save()
    session = history.rest("paused")
    typed = json.dumps([{"name": "note", "value": HIDDEN}])
    assert edit(supervisor, session, "state-value", key="account", value=typed).status_code == 400
    assert "S3CRET" not in supervisor.get(f"/sessions/{session.pk}/state/").content.decode()


INVENTED = f"open {SECRET}"


@pytest.fixture
def invented() -> Session:
    """One in which the model has asked for a tool by a name that it has made up, and by an id."""
    history = builders.looked_up()
    history.reply("I look.", calls=[(INVENTED, {"claim": "CLM-1042"})])
    call = history.finish(history.calls[-1], error=f"Tool {INVENTED} not found.")
    ToolCall.objects.filter(pk=call.pk).update(call_id=f"call {SECRET}")
    history.checkpoint("step")
    while search_index.update():
        pass
    return history.rest("paused")


def test_the_name_of_a_tool_that_a_model_has_invented_and_the_id_of_a_call_are_hidden_everywhere(
    client, invented
):
    client.force_login(builders.user("viewer"))
    here, checkpoints = f"/sessions/{invented.pk}/", Checkpoint.objects.filter(branch__session=invented)
    call = ToolCall.objects.get(tool=INVENTED)
    ends = checkpoints.earliest("position"), checkpoints.latest("position")
    for address in (
        *(here, f"{here}json/?raw", f"{here}calls/{call.pk}/", f"{here}find/?q=look", f"{here}find/?q=open"),
        *(
            f"{here}?tool=lookup_policy",
            f"{here}fork/",
            f"/compare/?a={ends[0].pk}&b={ends[1].pk}",
            "/?q=open",
        ),
    ):
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert SECRET not in answer.content.decode(), address
    assert f"open {HIDDEN}" in client.get(here).content.decode()


def test_the_admin_and_a_revealed_value_do_not_show_the_name_of_an_invented_tool(client, invented):
    call = ToolCall.objects.get(tool=INVENTED)
    client.force_login(builders.user("supervisor"))
    page = client.get(f"/admin/sessions_app/toolcall/{call.pk}/change/")
    assert page.status_code == 200
    assert SECRET not in page.content.decode()
    revealed = client.post(f"/sessions/{invented.pk}/reveal/", {"value": f"arguments:{call.position}"})
    assert revealed.status_code == 200
    assert SECRET not in revealed.content.decode()


def test_the_arguments_of_a_call_with_a_hidden_id_can_be_changed_at_a_breakpoint(supervisor):
    history = builders.asked()
    history.reply(calls=[("issue_refund", {"claim": "CLM-1", "amount": 1})])
    [call] = history.calls
    ToolCall.objects.filter(pk=call.pk).update(call_id=SECRET)
    session = history.rest("paused", breakpoint_hit={"before": "tools", "step": 0, "calls": [SECRET]})
    page = supervisor.get(f"/sessions/{session.pk}/").content.decode()
    assert "change its arguments" in page
    assert SECRET not in page


@pytest.mark.parametrize("where", ["find/?q=Zebra4711", "", "calls/{}/", "model-calls/1/"])
def test_changed_arguments_are_hidden_by_the_name_of_the_column_wherever_they_are_repeated(
    client, settings, where
):
    settings.AGENTSTATE_MASK_KEYS = ["arguments"]
    history = builders.refunding()
    call = history.calls[-1]
    history.user(
        f'{STAFF_NOTE} A person changed the arguments of \'issue_refund\' to {{"claim": "Zebra4711"}}.'
    )
    history.finish(call, "ok")
    session = history.rest("paused")
    ToolCall.objects.filter(pk=call.pk).update(sent={"claim": "Zebra4711"})
    while search_index.update():
        pass
    client.force_login(builders.user("viewer"))
    answer = client.get(f"/sessions/{session.pk}/{where.format(call.pk)}")
    assert answer.status_code in (200, 404)
    page = answer.content.decode().replace('value="Zebra4711"', "").replace("q=Zebra4711", "")
    assert "claim: Zebra4711" not in page
    assert "Zebra4711&quot;" not in page
    assert (
        Mask.configured().message("user", f"{STAFF_NOTE} A person changed the arguments of 'a' to b.")
        == HIDDEN
    )


@pytest.mark.slow
def test_a_guess_of_the_hidden_name_of_a_tool_is_answered_alike_whether_it_is_right_or_wrong(
    client, invented
):
    client.force_login(builders.user("operator"))
    for where, name in (("", "tool"), ("find/", "q")):
        answers = []
        for guess in (INVENTED, INVENTED.replace("17", "18")):
            page = client.get(f"/sessions/{invented.pk}/{where}", {name: guess}).content.decode()
            answers.append(without_random(page).replace(guess, "").replace(quote_plus(guess), ""))
        assert answers[0] == answers[1], where
    for guess in (INVENTED, INVENTED.replace("17", "18")):
        with pytest.raises(Invalid, match="The agent has no tool"):
            actions.set_breakpoint(actor=builders.actor("operator"), session_id=invented.pk, tool=guess)


def test_the_names_of_an_agents_tools_are_shown_whatever_a_pattern_matches(client, settings):
    settings.AGENTSTATE_MASK_PATTERNS = ["issue_[a-z]+", "lookup_[a-z]+"]
    session = builders.waiting_for_approval()
    client.force_login(builders.user("operator"))
    page = client.get(f"/sessions/{session.pk}/").content.decode()
    assert "<b>lookup_policy</b>" in page
    assert "?tool=lookup_policy" in page


@pytest.mark.slow
@pytest.mark.parametrize("guess", ["4709", "4711"])
def test_a_guess_of_a_hidden_argument_is_answered_alike_whether_it_is_right_or_wrong(client, guess):
    client.force_login(builders.user("operator"))
    session = asks_to_pay({"pin": "4711", "amount": 600})
    refused = approve(client, session, **{"arg-pin": json.dumps(guess), "arg-amount": "600"})
    assert refused.status_code == 400
    assert "amount must be at most 500" in refused.content.decode()
    taken = approve(client, session, **{"arg-pin": json.dumps(guess), "arg-amount": "60"})
    assert taken.status_code == 302
    assert Approval.objects.get(session=session).edited == {"pin": guess, "amount": 60}


@pytest.mark.parametrize("guess", ["4709", "4711"])
def test_a_right_guess_of_a_hidden_argument_counts_as_an_edit_too(client, guess):
    client.force_login(builders.user("operator"))
    session = asks_to_pay({"pin": "4711", "amount": 6})
    answer = approve(client, session, **{"arg-pin": json.dumps(guess), "arg-amount": "6"})
    assert answer.status_code == 302
    assert Approval.objects.get(session=session).edited == {"pin": guess, "amount": 6}
    assert Event.objects.get(session=session, kind="approved").data["edited"] is True


def test_what_was_asked_for_is_approved_as_it_is_while_a_part_of_it_is_hidden(client):
    client.force_login(builders.user("operator"))
    session = asks_to_pay({"pin": "4711", "amount": 600})
    answer = approve(client, session, **{"arg-pin": f'"{HIDDEN}"', "arg-amount": "600"})
    assert answer.status_code == 302
    assert Approval.objects.get(session=session).edited is None


def edit(client: Client, session: Session, name: str, **fields: Any):
    session = Session.objects.get(pk=session.pk)
    return client.post(
        f"/sessions/{session.pk}/{name}/", {"version": session.version, "reason": "It was wrong", **fields}
    )


def latest(session: Session, key: str) -> Any:
    branch = Branch.objects.filter(session=session).latest("number")
    return StateValue.objects.get(branch=branch, key=key).value


@pytest.mark.slow
def test_repairs_keep_what_was_left_hidden(supervisor):
    session = confidential()
    answer = edit(
        supervisor,
        session,
        "memory",
        goal=f"Pay {HIDDEN}",
        plan=f"[x] ask\n[x] pay {HIDDEN}\nwrite",
        notes=HIDDEN,
    )
    assert answer.status_code == 302, answer.content.decode()
    assert latest(session, "working_memory") == {
        "goal": f"Pay {SECRET}",
        "plan": ["ask", f"pay {SECRET}", "write"],
        "notes": [SECRET],
        "completed": ["ask", f"pay {SECRET}"],
    }
    message = Branch.objects.get(session=session, number=1).messages.get(role="user")
    whole = f"My account is {HIDDEN}."
    same = edit(supervisor, session, "message-text", position=message.position, text=whole)
    assert same.status_code == 400
    assert "Nothing was changed." in same.content.decode()
    part = edit(
        supervisor, session, "message-text", position=message.position, text=f"My number is {HIDDEN}."
    )
    assert part.status_code == 400
    assert "cannot be changed in part" in part.content.decode()
    assert edit(supervisor, session, "state-value", key="pin", value=f'"{HIDDEN}"').status_code == 400
    assert edit(supervisor, session, "state-value", key="pin", value="1234").status_code == 302
    assert latest(session, "pin") == 1234


@pytest.mark.slow
def test_a_fork_with_another_message_does_not_send_the_placeholder(supervisor):
    session = confidential()
    start = Checkpoint.objects.filter(branch__session=session).earliest("position")
    message = Branch.objects.get(session=session, number=1).messages.get(role="user")
    fields = {"checkpoint": start.pk, "replace": message.position}
    part = edit(supervisor, session, "fork", **fields, message=f"It is {HIDDEN}")
    assert part.status_code == 400
    assert "cannot be changed in part" in part.content.decode()
    assert Session.objects.count() == 1
    assert edit(supervisor, session, "fork", **fields, message="It is another").status_code == 302


def test_the_command_line_and_the_actions_see_everything():
    """Hiding is a matter of the desk's pages."""
    session = confidential()
    assigned = actions.assign(actor=Actor.system("x"), session_id=session.pk, assignee=None)
    assert SECRET in assigned.title
    assert timezone.now() > assigned.created_at


@pytest.mark.slow
def test_whether_a_hidden_argument_that_was_left_as_it_is_fits_its_schema_is_not_told(supervisor, settings):
    settings.AGENTSTATE_MASK_KEYS = ["amount"]
    session = confidential()
    approval = Approval.objects.get(session=session)
    Approval.objects.update(arguments=approval.arguments | {"amount": 471_199}, repeats=None)
    page = supervisor.get(f"/sessions/{session.pk}/approve/?call={approval.call_id}").content.decode()
    fields = dict(re.findall(r'<input type="hidden" name="([\w]+)" value="([^"]*)"', page))
    fields |= {"call_id": str(approval.call_id), "arg-amount": f'"{HIDDEN}"', "arg-claim": '"CLM-1"'}
    assert supervisor.post(f"/sessions/{session.pk}/approve/", fields).status_code == 302
    approval.refresh_from_db()
    assert approval.edited == {"claim": "CLM-1", "amount": 471_199}


@pytest.mark.slow
def test_what_is_typed_in_json_with_a_type_tag_is_plain_data(supervisor):
    session = confidential()
    approval = Approval.objects.get(session=session)
    state = {"account": {"$type": "dict"}, "x": [{"$type": "decimal", "value": "zz"}]}
    started = actions.start(actor=builders.SYSTEM, agent=session.agent, message="Hello", state=state)
    assert decode(started.inputs["state"]) == state
    refused = edit(supervisor, session, "state-value", key="account", value='{"$type": "dict"}')
    assert refused.status_code in (302, 400)
    assert approval.decision == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "dialog", ["approve", "reject", "answer", "decide", "arguments", "reuse", "message-text"]
)
def test_a_dialog_about_any_call_opens_in_each_state_and_after_a_rewind(
    dialog: str, supervisor: Client
) -> None:
    for build in builders.STATES.values():
        session = build()
        for is_rewound in (False, True):
            if is_rewound:
                start = Checkpoint.objects.filter(branch__session=session).order_by("position").first()
                if start is None or session.status in ("running", "queued"):
                    continue
                actions.rewind(
                    actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="x"
                )
            for call in ToolCall.objects.filter(branch__session=session):
                answer = supervisor.get(f"/sessions/{session.pk}/{dialog}/?call={call.pk}")
                assert answer.status_code in (200, 404), build.__name__
