"""What requests show of the State and compare, where values have no form of their own and tools take it in odd ways."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ToolCall
from haystack.hooks import hook
from haystack.tools import Tool, tool

from agentstate import ToolPolicy
from agentstate.durable import state_arguments
from agentstate.durable.records import CallRecord
from agentstate.durable.run_end import ApprovalRequest, NeedsApproval
from agentstate.durable.shown_state import StateArgument
from agentstate.names import CallState
from sessions_app import actions
from sessions_app.access.errors import Refused
from sessions_app.access.masking import Mask
from sessions_app.history import from_state
from sessions_app.models import Approval, Session, Status
from sessions_app.runtime import state_columns
from tests.builders import SYSTEM
from tests.driving import Desk
from tests.sample_agents import effect, effects, scripted
from tests.test_earlier_effects import forked, happen, meanwhile, obey, told
from tests.test_state_arguments import approve

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_effects")]

TEXT = {"type": str}


class Address(str):
    """A text that cannot be stored as what it is."""


@dataclass
class Wallet:
    to: str


def waits(
    desk: Desk, agent: Callable[[], Agent], state: dict[str, Any] | None = None
) -> tuple[Session, Approval]:
    desk.agent(agent, policies={"pay": ToolPolicy(approval=True)})
    session = desk.run(desk.start(state=state or {}))
    return session, Approval.objects.get(session=session, decision="")


def pay_by(takes: dict[str, str], name: str = "target") -> Tool:
    def pay(order: str, **taken: Any) -> str:
        effect(f"paid to {taken.get(name)}")
        return "paid"

    schema = {"type": "object", "properties": {"order": {"type": "string"}, name: {}}, "required": ["order"]}
    return Tool(
        name="pay",
        description="Pays.",
        parameters=schema,
        function=pay,
        inputs_from_state=takes,
        outputs_to_state=None,
    )


PAY = ToolCall("pay", {"order": "1"}, id="p1")


def paid() -> list[str]:
    return [each for each in effects if each.startswith("paid")]


@pytest.mark.parametrize("kind", [Address, Wallet, str])
def test_two_objects_that_only_differ_in_a_long_hexadecimal_number_are_not_the_same(
    desk: Desk, kind: Any
) -> None:
    shown, other = "0x" + "a1" * 20, "0x" + "b2" * 20

    @tool
    def pick(to: Annotated[str, "to"], state: State) -> str:
        """Picks."""
        state.set("wallet", kind(to))
        return "picked"

    first, second = (ToolCall("pick", {"to": to}, id=to[:6]) for to in (shown, other))
    session, approval = waits(
        desk,
        lambda: Agent(
            chat_generator=scripted([first], [second, PAY], "Over."),
            tools=[pick, pay_by({"wallet": "target"})],
            state_schema={"wallet": {"type": object}},
        ),
    )
    assert shown in str(approval.from_state)
    assert approve(desk, session, approval).final_answer == "Over."
    assert paid() == []


def test_of_objects_that_python_makes_the_text_of_the_place_in_memory_does_not_count() -> None:
    for one, same in ((object(), object()), (lambda: 1, lambda: 1)):
        digests = {state_arguments._digest(state_arguments._as_stored([each])) for each in (one, same)}
        assert len(digests) == 1, (one, same)


def test_calls_that_have_ended_are_replayed_in_the_order_in_which_haystack_runs_them(desk: Desk) -> None:
    """`x` reads what `w` writes, so that it runs behind it, though the model has asked for it first."""
    fails = [True]

    @tool(inputs_from_state={"a": "a"}, outputs_to_state={"log": {"source": "log"}})
    def x(n: Annotated[int, "n"], a: str = "") -> dict[str, Any]:
        """X."""
        return {"log": ["x"]}

    @tool(outputs_to_state={"log": {"source": "log"}, "a": {"source": "a"}})
    def w(n: Annotated[int, "n"]) -> dict[str, Any]:
        """W."""
        return {"log": ["w"], "a": "A"}

    @tool(inputs_from_state={"log": "log"})
    def pay(order: Annotated[str, "order"], log: list[str]) -> str:
        """Pays."""
        if fails:
            fails.pop()
            raise ValueError("service down")
        effect(f"paid after {log}")
        return "paid"

    calls = [ToolCall("x", {"n": 1}, id="x1"), ToolCall("w", {"n": 1}, id="w1"), PAY]
    desk.agent(
        lambda: Agent(
            chat_generator=scripted(calls, "Over."),
            tools=[x, w, pay],
            state_schema={"log": {"type": list[str]}, "a": TEXT},
            raise_on_tool_invocation_failure=True,
        ),
        policies={},
    )
    session = desk.run(desk.resume(desk.run(desk.start())))
    approval = Approval.objects.get(session=session)
    assert approval.from_state == {"log": {"log": ["w", "x"]}}
    assert approve(desk, session, approval).final_answer == "Over."
    assert paid() == ["paid after ['w', 'x']"]


def test_a_call_is_given_what_those_before_it_have_left_in_the_state_and_nothing_of_those_behind_it() -> None:
    """All read and write one key, so that they run in the order of the model."""

    @tool(inputs_from_state={"log": "log"}, outputs_to_state={"log": {"source": "log"}})
    def pay(order: Annotated[str, "order"], log: list[str] | None = None) -> dict[str, Any]:
        """Pays."""
        return {"log": [order]}

    calls = [
        CallRecord(1, "p1", "pay", {"order": "1"}, "k1", CallState.DONE, result={"log": ["1"]}),
        CallRecord(2, "p2", "pay", {"order": "2"}, "k2"),
        CallRecord(3, "p3", "pay", {"order": "3"}, "k3", CallState.DONE, result={"log": ["3"]}),
        CallRecord(4, "p4", "pay", {"order": "4"}, "k4"),
    ]
    state = State({"log": {"type": list[str]}}, {"log": ["0"]})
    given = state_arguments.given(calls, state, {"pay": pay})
    assert [(call.position, list(later.get("log"))) for call, later in given] == [
        (1, ["0"]),
        (2, ["0", "1"]),
        (3, ["0", "1"]),
        (4, ["0", "1", "3"]),
    ]


def test_of_two_keys_for_an_argument_the_one_is_shown_that_a_run_which_continues_takes(desk: Desk) -> None:
    @hook
    def clear(state: State) -> None:
        state.set("a", None)

    session, approval = waits(
        desk,
        lambda: Agent(
            chat_generator=scripted([PAY], "Over."),
            tools=[pay_by({"a": "target", "b": "target"})],
            state_schema={"a": TEXT, "b": TEXT},
            hooks={"before_run": [clear]},
        ),
        {"b": "DE1"},
    )
    assert approval.from_state == {"b": {"target": "DE1"}}
    assert approve(desk, session, approval).final_answer == "Over."
    assert paid() == ["paid to DE1"]


def test_a_key_in_front_of_one_that_haystack_keeps_is_shown_and_compared(desk: Desk) -> None:
    @tool
    def set_iban(iban: Annotated[str, "account"], state: State) -> str:
        """Sets it."""
        state.set("iban", iban)
        return "set"

    session, approval = waits(
        desk,
        lambda: Agent(
            chat_generator=scripted([ToolCall("set_iban", {"iban": "EVIL"}, id="s1"), PAY], "Over."),
            tools=[pay_by({"iban": "target", "exit_reason": "target"}), set_iban],
            state_schema={"iban": TEXT},
        ),
        {"iban": "DE1"},
    )
    assert approval.from_state == {"iban": {"target": "DE1"}}
    assert approve(desk, session, approval).final_answer == "Over."
    assert paid() == []


def test_a_format_may_name_what_a_tool_takes_from_the_state_and_a_summary_may_not(desk: Desk) -> None:
    @tool(inputs_from_state={"limit": "limit"})
    def pay(order: Annotated[str, "order"], limit: float) -> str:
        """Pays."""
        return "paid"

    def agent() -> Agent:
        return Agent(
            chat_generator=scripted([PAY], "Over."), tools=[pay], state_schema={"limit": {"type": float}}
        )

    desk.agent(agent, policies={"pay": ToolPolicy(approval=True, formats={"limit": "money:EUR"})})
    session = desk.run(desk.start(state={"limit": 5.0}))
    assert Approval.objects.get(session=session).from_state == {"limit": {"limit": 5.0}}
    desk.agent(agent, policies={"pay": ToolPolicy(approval=True, summary="Pays at most {limit}")})
    with pytest.raises(Refused, match="names arguments that the tool lacks: limit"):
        desk.start(state={"limit": 5.0})


def test_a_large_value_that_several_calls_are_given_is_masked_once_and_a_larger_one_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masked: list[str] = []
    named = Mask.named

    def noted(mask: Mask, name: str, value: Any) -> Any:
        masked.append(name)
        return named(mask, name, value)

    monkeypatch.setattr(Mask, "named", noted)
    large, larger = "x" * 10_000, "x" * (from_state.MOST_MASKED + 1)
    taken = {
        "items": StateArgument("list", "1", large),
        "all": StateArgument("list", "2", larger),
        "few": StateArgument("few", "3", "y"),
    }
    requests = tuple(ApprovalRequest(position, "pay", {}, "f", from_state=taken) for position in range(10))
    end = state_columns.with_excerpts(NeedsApproval("", requests))
    assert isinstance(end, NeedsApproval)
    assert masked == ["items", "list"]
    for request in end.requests:
        values = state_columns.columns(request.from_state)["from_state"]
        assert values["few"] == {"few": "y"}
        assert values["list"]["items"].endswith("(10,000 characters in all)")
        assert values["list"]["all"] == f"({len(larger) + 2:,} characters)"


@tool
def redirect(target: Annotated[str, "account"], state: State) -> str:
    """Sets to whom is paid, while other things happen."""
    state.set("target", target)
    happen()
    return "set"


def test_a_call_that_is_asked_about_when_it_is_to_start_shows_what_earlier_calls_left_in_the_state(
    desk: Desk,
) -> None:
    """The fork pays after the step was looked at, and before the call starts."""

    def build() -> Agent:
        return Agent(
            chat_generator=MockChatGenerator(response_fn=obey),
            tools=[pay_by({"target": "target"}), redirect],
            state_schema={"target": TEXT},
            tool_concurrency_limit=1,
        )

    desk.agent(build, policies={"pay": ToolPolicy(effect="moves money")})
    session = desk.run(desk.start(state={"target": "DE1"}))
    fork = forked(session)

    def pay_in_the_fork() -> None:
        actions.send_message(actor=SYSTEM, session_id=fork.pk, text=json.dumps([("pay", {"order": "1"})]))
        assert desk.drive(fork) == "idle"

    meanwhile.append(pay_in_the_fork)
    session = told(desk, session, ("redirect", {"target": "slowly to DE2"}), ("pay", {"order": "1"}))
    assert paid() == ["paid to DE1"]
    approval = Approval.objects.get(session=session, decision="")
    assert approval.earlier
    assert from_state.of_request(approval) == {"target": "slowly to DE2"}
    assert approve(desk, session, approval, effects_seen=True).status == Status.IDLE
    assert paid() == ["paid to DE1", "paid to slowly to DE2"]
