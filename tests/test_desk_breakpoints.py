"""Breakpoints that people set on a session: by an action, on its page, and on the command line."""

import html
import json
import re
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall

from agentstate import Breakpoint
from sessions_app import actions
from sessions_app.access.errors import Invalid, NotFound, Refused
from sessions_app.access.masking import HIDDEN
from sessions_app.models import Checkpoint, RegisteredAgent, Session
from sessions_app.models import ToolCall as ToolCallRow
from tests import builders, driving, sample_agents
from tests.builders import SYSTEM
from tests.sample_agents import effects

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(db: None) -> Iterator[driving.Desk]:
    with driving.desk() as desk:
        desk.agent(sample_agents.refunds)
        yield desk


def refunds() -> list[str]:
    return sorted(effect for effect in effects if effect.startswith("refund"))


def broken(session: Session, **where: Any) -> Session:
    return actions.set_breakpoint(actor=SYSTEM, session_id=session.pk, **where)


def stopped_before_refund(desk: driving.Desk, **how: Any) -> Session:
    session = broken(desk.start(), tool="refund", when=("amount", ">", 50), **how)
    return desk.run(session)


def text_of(response: Any) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", response.content.decode())).split())


def command(*args: object) -> str:
    out = StringIO()
    call_command("agent", *map(str, args), stdout=out)
    return out.getvalue()


# What stops, and what goes on


def test_a_session_stops_before_the_tool_and_resume_goes_on_past_it(desk: driving.Desk) -> None:
    session = stopped_before_refund(desk)
    assert (session.status, session.waiting_for, session.why) == (
        "paused",
        "",
        "Breakpoint before refund, by its amount.",
    )
    assert session.at_breakpoint == {"before": "tools", "step": 0, "calls": ["r1"]}
    assert [call.status for call in desk.calls(session)] == ["planned", "planned", "planned"]
    assert desk.last_event(session).kind == "breakpoint"
    session = desk.run(desk.resume(session))
    assert (session.status, session.breakpoint_hit) == ("idle", None)
    assert refunds() == ["refund(A1,100)", "refund(B2,7)"]
    session = desk.run(desk.say(session, "again"))
    assert session.at_breakpoint is not None


def test_one_that_is_to_stop_once_is_gone_then(desk: driving.Desk) -> None:
    session = stopped_before_refund(desk, once=True)
    assert (session.status, session.breakpoints) == ("paused", None)


def test_it_may_be_set_while_the_session_runs_and_holds_from_its_next_commit(desk: driving.Desk) -> None:
    session = desk.start()
    assert desk.drive(session, slice_seconds=0) in ("queued", "idle")
    session = broken(desk.due(session))
    session = desk.run(session)
    assert session.why == "Breakpoint before the model."


def test_a_run_that_has_begun_takes_note_of_it(desk: driving.Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    session = desk.start()

    def set_meanwhile(what: str) -> None:
        effects.append(what)
        if what == "model(0)":
            Session.objects.filter(pk=session.pk).update(
                breakpoints=[{"number": 1, "tool": "fast", "when": None, "once": False}]
            )

    monkeypatch.setattr(sample_agents, "effect", set_meanwhile)
    assert desk.run(session).why == "Breakpoint before fast."


def test_a_cancellation_that_was_requested_meanwhile_takes_precedence(desk: driving.Desk) -> None:
    from agentstate.durable.breakpoints import Place
    from agentstate.durable.run_end import AtBreakpoint
    from sessions_app.runtime.end_of_run import end_run
    from sessions_app.runtime.statements import Fence

    session = desk.start()
    end = AtBreakpoint("why", Place("model", 0), ())
    assert end_run(session, "w1", end, Fence(1, "cancel", 0, None), session.created_at) == "cancelled"
    assert desk.fresh(session).breakpoint_hit is None


@pytest.mark.slow
def test_after_a_rewind_it_stops_again_and_an_undo_returns_to_where_it_was(desk: driving.Desk) -> None:
    session = stopped_before_refund(desk)
    start = Checkpoint.objects.visible_on(session.current_branch).first()
    assert start is not None
    again = actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="r", run=True)
    assert again.at_breakpoint is None
    session = desk.run(again)
    assert session.at_breakpoint is not None
    session = actions.undo(actor=SYSTEM, session_id=session.pk, reason="back")
    assert session.at_breakpoint is not None
    assert desk.run(desk.resume(session)).status == "idle"
    assert len(refunds()) == 2


def test_a_fork_begins_without_breakpoints(desk: driving.Desk) -> None:
    session = stopped_before_refund(desk)
    start = Checkpoint.objects.visible_on(session.current_branch).first()
    assert start is not None
    fork = actions.fork(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="r")
    assert (fork.breakpoints, fork.breakpoint_hit) == (None, None)


@pytest.mark.slow
def test_before_the_model_the_messages_are_repaired_and_the_session_goes_on_with_them(
    desk: driving.Desk,
) -> None:
    session = desk.run(broken(desk.start("hello")))
    message = next(position for position in _positions(session, "user"))
    actions.replace_message(
        actor=SYSTEM, session_id=session.pk, position=message, text="good day", reason="polite"
    )
    session = desk.fresh(session)
    assert session.at_breakpoint is not None
    session = desk.run(desk.resume(session))
    assert session.why == "Breakpoint before the model."
    assert desk.texts(session)[-1] == ("tool", "refunded 7 for B2")
    assert len(refunds()) == 2


def _positions(session: Session, role: str) -> list[int]:
    from sessions_app.models import Message

    rows = Message.objects.visible_on(session.current_branch).filter(role=role)
    return list(rows.values_list("position", flat=True))


# Arguments


@pytest.mark.slow
def test_before_a_tool_the_arguments_of_its_call_may_be_changed(desk: driving.Desk) -> None:
    session = stopped_before_refund(desk)
    actions.change_arguments(
        actor=SYSTEM,
        session_id=session.pk,
        call_id="r1",
        arguments={"order": "A1", "amount": 3},
        reason="less",
    )
    event = desk.last_event(session)
    assert (event.kind, event.reason, event.data["tool"]) == ("arguments_changed", "less", "refund")
    desk.run(desk.resume(session))
    assert refunds() == ["refund(A1,3)", "refund(B2,7)"]
    call = next(call for call in desk.calls(session) if call.call_id == "r1")
    assert (call.arguments, call.sent) == ({"order": "A1", "amount": 100}, {"order": "A1", "amount": 3})


@pytest.mark.parametrize(
    "arguments, why",
    [
        ({"order": "A1", "amount": 100}, "Nothing was changed"),
        ({"order": "A1", "amount": "much"}, "do not fit refund"),
        ({"order": "A1", "amount": 1, "fee": 2}, "refund has no argument fee"),
    ],
)
def test_arguments_that_the_tool_does_not_take_are_refused(
    desk: driving.Desk, arguments: dict[str, Any], why: str
) -> None:
    session = stopped_before_refund(desk)
    with pytest.raises(Invalid, match=why):
        actions.change_arguments(
            actor=SYSTEM, session_id=session.pk, call_id="r1", arguments=arguments, reason="r"
        )


def test_before_a_tool_the_state_is_for_reading_only(desk: driving.Desk) -> None:
    session = stopped_before_refund(desk)
    with pytest.raises(Refused, match="It stopped before a tool: change the call's arguments"):
        actions.edit_state(actor=SYSTEM, session_id=session.pk, values={"docs": []}, reason="r")


def test_a_call_that_ran_cannot_be_changed(desk: driving.Desk) -> None:
    session = desk.run(desk.resume(stopped_before_refund(desk)))
    with pytest.raises(Refused, match="It is not stopped at a breakpoint before a tool"):
        actions.change_arguments(
            actor=SYSTEM, session_id=session.pk, call_id="r1", arguments={"order": "A1", "amount": 3}
        )


# What is refused


@pytest.mark.parametrize(
    "where, why",
    [
        ({"tool": "refnd"}, r"The agent has no tool 'refnd'\. It has: fast, refund"),
        ({"tool": "refund", "when": ("amount", "eval", 1)}, "There is no comparison 'eval'"),
        ({"when": ("amount", "=", 1)}, "Only a breakpoint before a tool has a condition"),
        ({"tool": "refund", "when": ("", "=", 1)}, "The argument is missing"),
        (
            {"tool": "refund", "when": ("amonut", ">", 1)},
            r"The tool refund has no argument 'amonut'\. It has: amount, order\.",
        ),
    ],
)
def test_a_breakpoint_that_could_never_stop_is_refused(
    desk: driving.Desk, where: dict[str, Any], why: str
) -> None:
    with pytest.raises(Invalid, match=why):
        broken(desk.start(), **where)


@pytest.mark.parametrize(
    "value, why", [(1042, "is text: no call meets a condition"), (None, "by which it is null")]
)
def test_a_value_of_a_type_that_the_argument_never_has_is_refused(
    desk: driving.Desk, value: Any, why: str
) -> None:
    with pytest.raises(Invalid, match=why):
        broken(desk.start(), tool="refund", when=("order", "=", value))


TYPED = [
    ("order", "=", "1042", "1042"),
    ("order", "=", '"1042"', "1042"),
    ("order", "!=", "null", "null"),
    ("order", "contains", "10", "10"),
    ("order", "=", "[1]", "[1]"),
    ("amount", ">", "50", 50),
    ("amount", "=", "50.5", 50.5),
]


@pytest.mark.parametrize("argument, comparison, text, value", TYPED)
def test_a_typed_value_is_read_by_the_type_of_the_argument(
    desk: driving.Desk, operator: Client, argument: str, comparison: str, text: str, value: Any
) -> None:
    session = desk.start()
    command("breakpoint", session.pk, "--tool", "refund", "--when", argument, comparison, text)
    session = desk.fresh(session)
    sent = {
        "version": session.version, "tool": "refund", "argument": argument, "comparison": comparison, "value": text,
    }  # fmt: skip
    assert operator.post(f"/sessions/{session.pk}/breakpoint/", sent).status_code == 302
    rows = desk.fresh(session).breakpoints or []
    assert [row["when"] for row in rows] == [{"comparison": comparison, "argument": {argument: value}}] * 2


def test_a_typed_value_of_a_tool_without_a_known_schema_is_json_or_text(desk: driving.Desk) -> None:
    session = desk.start()
    RegisteredAgent.objects.update(tools=[])
    for text in ("1042", "A1"):
        command("breakpoint", session.pk, "--tool", "refund", "--when", "order", "=", text)
    rows = desk.fresh(session).breakpoints or []
    assert [row["when"]["argument"] for row in rows] == [{"order": 1042}, {"order": "A1"}]


def test_a_session_stops_before_a_call_whose_text_looks_like_a_number(desk: driving.Desk) -> None:
    def build() -> Agent:
        generator = sample_agents.scripted(
            [ToolCall("refund", {"order": "1042", "amount": 7}, id="r1")], "Done."
        )
        return Agent(chat_generator=generator, tools=[sample_agents.refund])

    desk.agent(build)
    session = desk.start()
    command("breakpoint", session.pk, "--tool", "refund", "--when", "order", "=", "1042")
    assert desk.run(session).why == "Breakpoint before refund, by its order."


def test_who_may_not_see_a_hidden_argument_cannot_find_its_value_by_breakpoints(
    desk: driving.Desk, settings: Any
) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["amount"]
    settings.AGENTSTATE_MASK_PATTERNS = [r"A\d"]
    session = desk.start()
    for when in (("amount", ">", 50), ("order", "=", "A1")):
        with pytest.raises(Invalid, match="are hidden from you"):
            actions.set_breakpoint(
                actor=builders.actor("operator"), session_id=session.pk, tool="refund", when=when
            )
    supervisor = builders.actor("supervisor")
    actions.set_breakpoint(actor=supervisor, session_id=session.pk, tool="refund", when=("amount", ">", 50))
    assert desk.last_event(session).data["when"] == {"comparison": ">", "argument": {"amount": 50}}


@pytest.mark.parametrize(
    "keys, patterns, when",
    [
        ([], [r"secret \d+"], ("order", "contains", "A1 sec")),
        ([], [r"secret \d+"], ("order", ">", "A1 s")),
        ([], [r"secret \d+"], ("order", "!=", "A1")),
        ([], [r"\b100\b"], ("amount", ">", 50)),
        (["arguments"], [], ("amount", ">", 50)),
    ],
)
def test_the_condition_of_a_person_who_may_not_see_hidden_values_is_not_met_by_an_argument_that_holds_one(
    desk: driving.Desk, settings: Any, keys: list[str], patterns: list[str], when: tuple[str, str, Any]
) -> None:
    def build() -> Agent:
        call = ToolCall("refund", {"order": "A1 secret 1234", "amount": 100}, id="r1")
        return Agent(chat_generator=sample_agents.scripted([call], "Done."), tools=[sample_agents.refund])

    desk.agent(build)
    settings.AGENTSTATE_MASK_KEYS, settings.AGENTSTATE_MASK_PATTERNS = keys, patterns
    stopped = {}
    for role in ("operator", "supervisor"):
        session = actions.set_breakpoint(
            actor=builders.actor(role), session_id=desk.start().pk, tool="refund", when=when
        )
        stopped[role] = desk.run(session).at_breakpoint is not None
    assert stopped == {"operator": False, "supervisor": True}


def test_a_breakpoint_that_is_set_while_the_session_runs_compares_only_what_is_shown_too(
    desk: driving.Desk, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AGENTSTATE_MASK_PATTERNS = [r"\b100\b"]
    session = desk.start()

    def set_meanwhile(what: str) -> None:
        effects.append(what)
        if what == "model(0)":
            actions.set_breakpoint(
                actor=builders.actor("operator"),
                session_id=session.pk,
                tool="refund",
                when=("amount", ">", 50),
            )

    monkeypatch.setattr(sample_agents, "effect", set_meanwhile)
    session = desk.run(session)
    assert (session.status, session.at_breakpoint) == ("idle", None)
    assert (session.breakpoints or [])[0]["as_shown"]


def test_the_condition_of_a_person_who_may_not_see_hidden_values_is_met_by_an_argument_without_any(
    desk: driving.Desk, operator: Client, settings: Any
) -> None:
    settings.AGENTSTATE_MASK_PATTERNS = [r"A\d"]
    session = desk.start()
    address = f"/sessions/{session.pk}/breakpoint/"
    assert "hidden from you, the session does not stop" in operator.get(address).content.decode()
    fields = {
        "version": session.version,
        "tool": "refund",
        "argument": "amount",
        "comparison": ">",
        "value": "50",
    }
    assert operator.post(address, fields).status_code == 302
    page = text_of(operator.get(f"/sessions/{session.pk}/"))
    assert "if amount is more than 50 and nothing in it is hidden" in page
    assert desk.run(session).at_breakpoint is not None


def test_no_more_than_twenty_fit(desk: driving.Desk) -> None:
    session = desk.start()
    for _ in range(20):
        broken(session)
    with pytest.raises(Invalid, match="There are 20 breakpoints, and a session has at most 20"):
        broken(session)


def test_one_that_is_not_there_cannot_be_removed(desk: driving.Desk) -> None:
    session = broken(desk.start())
    with pytest.raises(NotFound, match="This session has no breakpoint 2"):
        actions.remove_breakpoint(actor=SYSTEM, session_id=session.pk, number=2)
    session = actions.remove_breakpoint(actor=SYSTEM, session_id=session.pk, number=1)
    assert session.breakpoints is None
    assert desk.events(session)[-2:] == ["breakpoint_set", "breakpoint_removed"]


# On the desk


@pytest.mark.slow
def test_on_the_desk_it_is_set_shown_and_removed(desk: driving.Desk, operator: Client) -> None:
    session = desk.start()
    address = f"/sessions/{session.pk}/breakpoint/"
    dialog = operator.get(address).content.decode()
    assert '<option value="refund">refund</option>' in dialog
    fields = {
        "version": session.version,
        "tool": "refund",
        "argument": "amount",
        "comparison": ">",
        "value": "50",
    }
    assert operator.post(address, {**fields, "once": "on"}).status_code == 302
    page = operator.get(f"/sessions/{session.pk}/").content.decode()
    assert "before <code>refund</code>, if amount is more than 50, once" in page
    assert "set by anna" in page
    remove = f"/sessions/{session.pk}/remove-breakpoint/"
    assert "if amount is more than 50" in operator.get(f"{remove}?number=1").content.decode()
    assert operator.get(f"{remove}?number=7").status_code == 404
    version = desk.fresh(session).version
    assert operator.post(remove, {"version": version, "number": 1}).status_code == 302
    assert "before <code>refund</code>" not in operator.get(f"/sessions/{session.pk}/").content.decode()


@pytest.mark.slow
def test_on_the_desk_the_stopped_session_says_where_and_its_call_can_be_changed(
    desk: driving.Desk, operator: Client
) -> None:
    session = stopped_before_refund(desk)
    page = operator.get(f"/sessions/{session.pk}/").content.decode()
    assert "Breakpoint before refund, by its amount. Resume continues past it." in page
    assert "Stopped at a breakpoint" in page
    [link] = re.findall(rf'href="(/sessions/{session.pk}/arguments/\?call=\d+)"', page)
    dialog = operator.get(link).content.decode()
    assert "Will run with" in dialog
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', dialog))
    wrong = operator.post(link, {**fields, "arg-order": "A1", "arg-amount": "much"})
    assert wrong.status_code == 400
    assert "must be a number" in wrong.content.decode()
    assert operator.post(link, {**fields, "arg-order": "A1", "arg-amount": "3"}).status_code == 302
    desk.run(desk.resume(session))
    assert refunds() == ["refund(A1,3)", "refund(B2,7)"]


@pytest.mark.slow
def test_a_hidden_value_in_a_condition_is_hidden_on_the_page(
    desk: driving.Desk, operator: Client, settings: Any
) -> None:
    session = broken(desk.start(), tool="refund", when=("order", "=", "A1-secret"))
    settings.AGENTSTATE_MASK_KEYS = ["order"]
    for page in ("", "json/", "audit/", "remove-breakpoint/?number=1"):
        answer = operator.get(f"/sessions/{session.pk}/{page}")
        assert answer.status_code == 200
        assert HIDDEN in answer.content.decode()
        assert "A1-secret" not in answer.content.decode()


@pytest.mark.parametrize("key", ["edited", "sent", "arguments"])
@pytest.mark.parametrize("column", ["edited", "sent"])
def test_arguments_at_a_breakpoint_are_sent_back_unchanged_whatever_of_them_is_hidden(
    desk: driving.Desk, operator: Client, settings: Any, key: str, column: str
) -> None:
    session = stopped_before_refund(desk)
    call = ToolCallRow.objects.get(call_id="r1")
    changed = {"order": "A1", "amount": 3}
    actions.change_arguments(
        actor=builders.actor("supervisor"), session_id=session.pk, call_id=call.pk, arguments=changed
    )
    if column == "sent":
        ToolCallRow.objects.filter(pk=call.pk).update(sent=changed)
    settings.AGENTSTATE_MASK_KEYS = [key]
    address = f"/sessions/{session.pk}/arguments/"
    page = operator.get(address, {"call": call.pk})
    fields = {field.input_name: field.value for field in page.context["fields"]}
    assert (HIDDEN in str(fields)) is (key in (column, "arguments"))
    session.refresh_from_db()
    answer = operator.post(address, {"version": session.version, "call_id": call.pk, **fields})
    assert answer.status_code == 302
    call.approval.refresh_from_db()
    assert call.approval.edited == changed


# On the command line


@pytest.mark.slow
def test_on_the_command_line_it_is_set_shown_and_removed(desk: driving.Desk) -> None:
    session = desk.start()
    when = ("--when", "amount", ">", "50")
    assert command("breakpoint", session.pk, "--tool", "refund", *when) == f"{session.pk} is queued\n"
    command("breakpoint", session.pk, "--once")
    assert "breakpoint 1 before refund if amount > 50\n" in command("show", session.pk)
    assert "breakpoint 2 before the model, once\n" in command("show", session.pk)
    shown = json.loads(command("show", session.pk, "--json"))
    assert [row["tool"] for row in shown["breakpoints"]] == ["refund", ""]
    command("remove-breakpoint", session.pk, 2)
    session = desk.run(session)
    command("arguments", session.pk, "r1", '{"order": "A1", "amount": 3}')
    desk.run(desk.resume(session))
    assert refunds() == ["refund(A1,3)", "refund(B2,7)"]


def test_the_command_line_refuses_a_comparison_or_an_argument_that_does_not_exist(desk: driving.Desk) -> None:
    session = desk.start()
    with pytest.raises(CommandError, match="There is no comparison 'like'"):
        command("breakpoint", session.pk, "--tool", "refund", "--when", "order", "like", "A")
    with pytest.raises(CommandError, match=r"has no argument 'ordr'\. It has: amount, order\."):
        command("breakpoint", session.pk, "--tool", "refund", "--when", "ordr", "=", "A")


def test_the_form_says_which_arguments_the_tool_has_and_keeps_what_was_typed(
    desk: driving.Desk, operator: Client
) -> None:
    session = desk.start()
    sent = {
        "version": session.version, "tool": "refund", "argument": "amonut", "comparison": ">", "value": "50",
    }  # fmt: skip
    answer = operator.post(f"/sessions/{session.pk}/breakpoint/", sent)
    assert answer.status_code == 400
    assert "The tool refund has no argument 'amonut'. It has: amount, order." in text_of(answer)
    assert 'value="amonut"' in answer.content.decode()


# Those with which the agent is registered


@pytest.mark.slow
def test_one_that_is_registered_stops_each_session_and_is_shown_without_a_way_to_remove_it(
    desk: driving.Desk, operator: Client, settings: Any
) -> None:
    desk.agent(sample_agents.refunds, breakpoints=[Breakpoint("refund", when=("amount", ">", 50))])
    session = desk.run(desk.start())
    assert (session.status, session.why) == ("paused", "Breakpoint before refund, by its amount.")
    assert session.breakpoints is None
    shown = "before refund , if amount is more than 50"
    page = operator.get(f"/sessions/{session.pk}/")
    assert f"{shown} set by the agent's registration" in text_of(page)
    assert "remove-breakpoint" not in page.content.decode()
    assert f"Breakpoint {shown}" in text_of(operator.get(f"/agents/{driving.KEY}/"))
    session = desk.run(desk.resume(session))
    assert (session.status, refunds()) == ("idle", ["refund(A1,100)", "refund(B2,7)"])
    settings.AGENTSTATE_MASK_KEYS = ["amount"]
    for address in (f"/sessions/{session.pk}/", f"/agents/{driving.KEY}/"):
        assert "is more than 50" not in text_of(operator.get(address))
