"""A breakpoint stops a session before the model or before a tool, and the resumed session goes on past it."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall

from agentstate import Answered, AtBreakpoint, Breakpoint, DurableAgent, ToolPolicy, Waiting, agent
from agentstate.durable.agent import WrappedAgent, make_durable
from agentstate.durable.breakpoints import Condition, Place, stored_breakpoints, why_no_such_argument
from agentstate.durable.condition_values import why_never_met
from agentstate.durable.port import Journal, LeaseLost
from agentstate.durable.registry import AgentError
from agentstate.durable.run import Options, Outcome, run
from agentstate.durable.run_end import AtBreakpoint as AtBreakpointEnd
from agentstate.names import Need, SessionStatus
from tests import sample_agents
from tests.adapters import Adapter, FileAdapter, MemoryAdapter, OrmAdapter
from tests.driving import unregister
from tests.dying import Died
from tests.sample_agents import effects
from tests.test_durable_run import plainly
from tests.test_journal_runs import Death, dying_journal, stored

pytestmark = pytest.mark.usefixtures("no_effects")

Json = Any
Make = Callable[[], Adapter]
MODEL = Breakpoint()
REFUND = Breakpoint("refund", when=("amount", ">", 50))


@pytest.fixture(params=["memory", "file", pytest.param("orm", marks=pytest.mark.django_db)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    made: list[Adapter] = []

    def one() -> Adapter:
        kinds: dict[str, Callable[[], Adapter]] = {
            "memory": MemoryAdapter,
            "file": lambda: FileAdapter(tmp_path / f"{len(made)}.jsonl"),
            "orm": OrmAdapter,
        }
        made.append(kinds[request.param]())
        return made[-1]

    yield one
    for adapter in made:
        adapter.close()


@pytest.fixture
def journal_file(tmp_path: Path) -> Path:
    return tmp_path / "session.jsonl"


def ran(*tools: str) -> list[str]:
    return [effect for effect in effects if effect.startswith(tools)]


# Conditions


@pytest.mark.parametrize(
    "comparison, value, met",
    [
        ("=", 100, True),
        ("=", 100.0, True),
        ("=", "100", False),
        ("=", True, False),
        ("!=", 100, False),
        ("!=", 7, True),
        (">", 99, True),
        (">", 100, False),
        (">=", 100, True),
        ("<", 100.5, True),
        ("<=", 99, False),
        (">", "50", False),
        ("<", True, False),
        ("contains", 1, False),
    ],
)
def test_a_condition_compares_an_argument_with_a_value_of_its_own_type(
    comparison: str, value: Json, met: bool
) -> None:
    assert Breakpoint("pay", when=("amount", comparison, value)).stops("pay", {"amount": 100}) is met


@pytest.mark.parametrize(
    "argument, part, met",
    [
        ("A1-B2", "B2", True),
        (["A1", 1], 1, True),
        (["A1", 1], True, False),
        ({"A1": 0}, "A1", True),
        (None, "", False),
    ],
)
def test_a_text_contains_its_parts_a_list_its_items_and_an_object_its_keys(
    argument: Json, part: Json, met: bool
) -> None:
    assert Breakpoint("pay", when=("order", "contains", part)).stops("pay", {"order": argument}) is met


def test_a_call_without_the_argument_or_of_another_tool_meets_no_condition() -> None:
    breakpoint = Breakpoint("pay", when=("amount", "!=", 7))
    assert not breakpoint.stops("pay", {})
    assert not breakpoint.stops("look", {"amount": 8})


def test_a_breakpoint_is_stored_as_plain_json() -> None:
    stored = {
        "number": 2,
        "tool": "pay",
        "when": {"comparison": ">", "argument": {"amount": 50}},
        "once": True,
    }
    breakpoint = Breakpoint("pay", when=("amount", ">", 50), once=True, number=2)
    assert breakpoint.to_dict() == stored
    assert stored_breakpoints([stored]) == (breakpoint,)
    assert stored_breakpoints(None) == ()


def test_a_condition_that_is_none_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ValueError, match=r"There is no comparison 'eval'\. There are: =, !=, <, <=, >, >=, contains"
    ):
        Breakpoint("pay", when=("amount", "eval", "1"))
    with pytest.raises(ValueError, match=r"A condition is \(argument, comparison, value\)"):
        Breakpoint("pay", when=("amount", ">"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"The value of a condition is plain JSON, not \{1\}"):
        Breakpoint("pay", when=("amount", "=", {1}))
    with pytest.raises(ValueError, match="Only a breakpoint before a tool has a condition"):
        Breakpoint(when=Condition("amount", "=", 1))  # type: ignore[arg-type]


# On every journal


def driven(adapter: Adapter, breakpoints: tuple[Breakpoint, ...], say: str = "") -> Outcome:
    return run(make_durable(sample_agents.refunds()), adapter.open(say=say), Options(breakpoints=breakpoints))


def test_it_stops_before_the_model_of_each_step_and_goes_on_past_it(make: Make) -> None:
    adapter = make()
    first = driven(adapter, (MODEL,), say="hi")
    assert (first.status, first.why) == ("paused", "Breakpoint before the model.")
    assert effects == []
    second = driven(adapter, (MODEL,))
    assert (second.status, ran("model")) == ("paused", ["model(0)"])
    assert len(ran("refund")) == 2
    last = driven(adapter, (MODEL,))
    assert last.status == "idle"
    assert ran("model") == ["model(0)", "model(1)"]
    assert adapter.fields()["status"] == "idle"


def test_all_calls_of_a_step_wait_before_the_first_of_them_starts(make: Make) -> None:
    adapter = make()
    outcome = driven(adapter, (REFUND,), say="hi")
    assert (outcome.status, outcome.why) == ("paused", "Breakpoint before refund, by its amount.")
    assert ran("fast", "refund") == []
    assert driven(adapter, (REFUND,)).status == "idle"
    assert sorted(ran("fast", "refund")) == ["fast(look)", "refund(A1,100)", "refund(B2,7)"]


def test_a_condition_that_no_call_meets_stops_nothing(make: Make) -> None:
    breakpoints = (Breakpoint("refund", when=("amount", ">", 100)), Breakpoint("count"))
    assert driven(make(), breakpoints, say="hi").status == "idle"


@pytest.mark.slow
def test_before_the_model_and_before_a_tool_of_the_same_step_are_two_places(make: Make) -> None:
    adapter, both = make(), (MODEL, Breakpoint("fast"))
    whys = [driven(adapter, both, say="hi").why] + [driven(adapter, both).why for _ in range(3)]
    assert whys == [
        "Breakpoint before the model.",
        "Breakpoint before fast.",
        "Breakpoint before the model.",
        "",
    ]


def test_the_next_turn_stops_again(make: Make) -> None:
    adapter = make()
    assert driven(adapter, (REFUND,), say="hi").status == "paused"
    assert driven(adapter, (REFUND,)).status == "idle"
    assert driven(adapter, (REFUND,), say="hi again").status == "paused"


@pytest.mark.slow
@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_killed_at_any_commit_it_stops_there_all_the_same_and_ends_like_an_undisturbed_run(
    make: Make, committed: bool
) -> None:
    """The runs of the turn end before the model, before the tools, before the model, and at the end of the turn."""
    plain = plainly(sample_agents.refunds, {})
    policies = {name: ToolPolicy(idempotent=True) for name in ("fast", "refund")}
    durable = make_durable(sample_agents.refunds(), policies=policies)
    options = Options(breakpoints=(MODEL, REFUND))
    model, tools = "Breakpoint before the model.", "Breakpoint before refund, by its amount."
    kills = 0
    for killed_run in range(4):
        number, died = 0, True
        while died:
            number += 1
            effects.clear()
            adapter = make()
            say, *later = ["hi", *[""] * killed_run]
            whys = []
            for text in later:
                whys.append(run(durable, adapter.open(say=say), options).why)
                say = text
            outcome = _killed(
                durable, dying_journal(adapter, Death(adapter, number, committed), say), options
            )
            if isinstance(adapter, MemoryAdapter):
                vars(adapter.store).pop("write")
            died = outcome is None
            kills += died
            while outcome is None or outcome.status != "idle":
                whys += [outcome.why] if outcome else []
                outcome = run(durable, adapter.open(), options)
            # A run that died behind the commit that ended it could not tell where it stopped.
            untold = [model, tools, model]
            del untold[killed_run : killed_run + 1]
            assert whys in ([model, tools, model], untold if died and committed else None), (
                killed_run,
                number,
            )
            assert stored(adapter) == plain.result
    assert kills >= 10


def _killed(durable: WrappedAgent, journal: Journal, options: Options) -> Outcome | None:
    """The outcome of a run; None if it died."""
    with suppress(Died, LeaseLost):
        return run(durable, journal, options)
    return None


def test_the_arguments_of_a_call_that_waits_may_be_changed(make: Make) -> None:
    adapter = make()
    driven(adapter, (REFUND,), say="hi")
    if isinstance(adapter, MemoryAdapter):
        adapter.approve("r1", {"order": "A1", "amount": 3})
        assert driven(adapter, (REFUND,)).status == "idle"
        assert "refund(A1,3)" in effects
        assert "refund(A1,100)" not in effects


def test_a_run_in_slices_stops_at_the_same_places(make: Make) -> None:
    adapter = make()
    options = Options(breakpoints=(MODEL,), slice_is_over=lambda: True)
    statuses = []
    durable = make_durable(sample_agents.refunds())
    outcome = run(durable, adapter.open(say="hi"), options)
    while outcome.status != "idle":
        statuses.append(outcome.status)
        outcome = run(durable, adapter.open(), options)
    assert statuses == ["paused", "queued", "paused"]
    assert ran("model") == ["model(0)", "model(1)"]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"amount": {}}},
        {"properties": {}, "additionalProperties": True},
        {"properties": {}, "additionalProperties": {"type": "number"}},
        {"properties": {}, "patternProperties": {"^a": {}}},
        {"properties": {}, "anyOf": [{"properties": {"amount": {}}}]},
    ],
)
def test_an_argument_that_a_call_may_have_is_not_refused(schema: dict[str, Any]) -> None:
    assert why_no_such_argument(Breakpoint("pay", when=("amount", ">", 5)), schema) == ""


def test_a_schema_that_says_nothing_of_further_arguments_has_none() -> None:
    for closed in ({}, {"additionalProperties": False}):
        schema = {"properties": {"order": {}}, **closed}
        assert why_no_such_argument(Breakpoint("pay", when=("amount", ">", 5)), schema) == (
            "The tool pay has no argument 'amount'. It has: order."
        )


ORDER: dict[str, Any] = {"type": "string"}
OPTIONAL: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
STATUS: dict[str, Any] = {"type": "string", "enum": ["open", "closed"]}
TAGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    "schema, comparison, value",
    [
        (ORDER, "=", "1042"),
        (ORDER, "!=", 1042),
        (ORDER, ">", "A"),
        (ORDER, "contains", "10"),
        (OPTIONAL, "=", None),
        (OPTIONAL, "=", "1042"),
        (STATUS, "=", "open"),
        (STATUS, "!=", "lost"),
        (STATUS, "contains", "o"),
        ({"type": "number"}, "=", 5),
        ({"type": "integer"}, "=", 5.0),
        ({"type": "integer"}, ">", 5.5),
        ({"type": ["integer", "string"]}, "=", "5"),
        ({"type": "boolean"}, "=", True),
        (TAGS, "contains", "late"),
        (TAGS, "=", ["late"]),
        ({"type": "array"}, "contains", 5),
        ({"type": "object"}, "contains", "street"),
        ({"$ref": "#/$defs/Order"}, "=", 5),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Order"}]}, "=", 5),
        ({}, "=", 5),
        (True, "=", 5),
    ],
)
def test_a_condition_that_a_call_can_meet_is_not_refused(schema: Any, comparison: str, value: Json) -> None:
    breakpoint = Breakpoint("pay", when=("order", comparison, value))
    assert why_never_met(breakpoint, {"properties": {"order": schema}}) == ""


@pytest.mark.parametrize(
    "schema, comparison, value, why",
    [
        (ORDER, "=", 1042, "text: no call meets a condition by which it is a whole number."),
        (ORDER, ">", 5.5, "text: no call meets a condition by which it is more than a number."),
        (ORDER, "contains", 10, "text: no call meets a condition by which it contains a whole number."),
        (ORDER, "=", 10**400, "text: no call meets a condition by which it is a whole number."),
        (OPTIONAL, "=", 5, "null or text: no call meets a condition by which it is a whole number."),
        (STATUS, "=", "lost", 'one of ["open", "closed"], and no other value.'),
        ({"enum": ["open", 1]}, "=", 2, 'one of ["open", 1], and no other value.'),
        ({"type": "number"}, "=", "5", "a number: no call meets a condition by which it is text."),
        (
            {"type": "number"},
            "contains",
            5,
            "a number: no call meets a condition by which it contains a whole",
        ),
        ({"type": "integer"}, "=", 5.5, "a whole number: no call meets a condition by which it is a number."),
        (
            {"type": "number"},
            "<",
            True,
            "a number: no call meets a condition by which it is less than true or",
        ),
        ({"type": "boolean"}, "=", "true", "true or false: no call meets a condition by which it is text."),
        (TAGS, "contains", 5, "a list: no call meets a condition by which it contains a whole number."),
        (TAGS, "=", "late", "a list: no call meets a condition by which it is text."),
        (TAGS, ">", {}, "a list: no call meets a condition by which it is more than an object."),
    ],
)
def test_a_condition_that_no_call_can_meet_is_refused_with_the_type(
    schema: Any, comparison: str, value: Json, why: str
) -> None:
    breakpoint = Breakpoint("pay", when=("order", comparison, value))
    said = why_never_met(breakpoint, {"properties": {"order": schema}})
    assert said.startswith(f"The argument 'order' of the tool pay is {why}")


# In code


def test_a_breakpoint_that_could_never_stop_is_refused_before_anything_is_stored(
    journal_file: Path,
) -> None:
    shop = DurableAgent(sample_agents.refunds(), journal_file)
    with pytest.raises(ValueError, match=r"breakpoints for tools that it lacks: refnd\. It has: .*refund"):
        shop.run("hi", break_point=Breakpoint("refnd"))
    with pytest.raises(
        ValueError, match=r"The tool refund has no argument 'amonut'\. It has: amount, order\."
    ):
        shop.run("hi", break_point=[Breakpoint(), Breakpoint("refund", when=("amonut", ">", 5))])
    with pytest.raises(ValueError, match="The argument 'order' of the tool refund is text: no call meets"):
        shop.run("hi", break_point=Breakpoint("refund", when=("order", "=", 1042)))
    assert not journal_file.exists()
    assert effects == []


def test_in_code_a_run_stops_and_only_resuming_goes_on(journal_file: Path) -> None:
    def shop() -> DurableAgent:
        return DurableAgent(sample_agents.refunds(), journal_file)

    outcome = shop().run("hi", break_point=REFUND)
    assert isinstance(outcome, AtBreakpoint)
    assert (outcome.before, outcome.breakpoints) == ("tools", (REFUND,))
    assert [(call.call_id, call.waits_for) for call in outcome.pending] == [("r1", "breakpoint")]
    assert isinstance(shop().run("hi"), AtBreakpoint)
    other = shop().run("something else")
    assert isinstance(other, AtBreakpoint)
    assert not other.accepted
    shop().decide("r1", approve=True, arguments={"order": "A1", "amount": 3})
    assert isinstance(shop().resume(), Answered)
    assert sorted(ran("refund")) == ["refund(A1,3)", "refund(B2,7)"]


def test_in_code_a_call_at_a_breakpoint_runs_with_the_arguments_that_were_changed_last(
    journal_file: Path,
) -> None:
    shop = DurableAgent(sample_agents.refunds(), journal_file)
    shop.run("hi", break_point=REFUND)
    shop.decide("r1", arguments={"order": "A1", "amount": 4})
    shop.decide("r1", arguments={"order": "A1", "amount": 3}, message="He agreed.")
    for wrong in (
        {},
        {"message": "?"},
        {"again": True},
        {"result": "paid"},
        {"arguments": {}, "approve": False},
    ):
        with pytest.raises(
            LookupError, match=r"'r1' waits at a breakpoint: give other arguments, or approve=False"
        ):
            shop.decide("r1", **wrong)
    assert isinstance(shop.resume(), Answered)
    assert sorted(ran("refund")) == ["refund(A1,3)", "refund(B2,7)"]


def test_in_code_a_call_at_a_breakpoint_may_be_rejected(journal_file: Path) -> None:
    shop = DurableAgent(sample_agents.refunds(), journal_file)
    shop.run("hi", break_point=[REFUND])
    shop.decide("r1", approve=False, message="Too much.")
    shop.resume(break_point=REFUND)
    assert ran("refund") == ["refund(B2,7)"]


def test_in_code_a_session_goes_on_from_an_earlier_checkpoint_with_changes(journal_file: Path) -> None:
    def talk() -> DurableAgent:
        return DurableAgent(sample_agents.three_steps(), journal_file)

    first = talk().run("hi")
    undisturbed = Counter(effects)
    effects.clear()
    starts = talk().checkpoints()
    assert [start.step for start in starts] == [0, 1, 2]
    again = talk().resume(at=starts[1])
    assert isinstance(first, Answered)
    assert isinstance(again, Answered | Waiting)
    assert sum((undisturbed - Counter(effects)).values()) > 0
    assert [start.step for start in talk().checkpoints()][:2] == [0, 1]


def test_in_code_an_effect_that_was_discarded_is_not_repeated_without_approval(journal_file: Path) -> None:
    shop = DurableAgent(sample_agents.refunds(), journal_file)
    assert isinstance(shop.run("hi"), Answered)
    outcome = shop.resume(at=shop.checkpoints()[0])
    assert isinstance(outcome, Waiting)
    assert sorted(call.tool for call in outcome.pending) == ["fast", "refund", "refund"]
    assert len(ran("refund")) == 2
    for call in outcome.pending:
        shop.decide(call.call_id, approve=call.tool == "fast", message="It was paid.")
    assert isinstance(shop.resume(), Answered)
    assert len(ran("refund")) == 2


def test_in_code_the_messages_and_the_state_are_changed_at_a_breakpoint_before_the_model(
    journal_file: Path,
) -> None:
    def build() -> Agent:
        return Agent(
            chat_generator=sample_agents.scripted([ToolCall("note", {"text": "n1"}, id="c1")], "Done."),
            tools=[sample_agents.note],
            state_schema={"notes": {"type": list[str]}},
        )

    def talk() -> DurableAgent:
        return DurableAgent(build(), journal_file)

    assert isinstance(talk().run("hi", break_point=MODEL), AtBreakpoint)
    stopped = talk().resume(break_point=MODEL)
    assert isinstance(stopped, AtBreakpoint)
    messages = talk().history()
    changed = [ChatMessage.from_user("good day"), *messages[1:]]
    outcome = talk().resume(changes={"notes": ["mine"], "messages": changed}, break_point=MODEL)
    assert isinstance(outcome, Answered)
    assert outcome.result["notes"] == ["mine"]
    assert outcome.result["messages"][0].text == "good day"
    assert outcome.text == "Done."
    assert ran("note") == ["note(n1)"]


def test_in_code_what_cannot_be_gone_back_to_is_refused(journal_file: Path) -> None:
    shop = DurableAgent(sample_agents.refunds(), journal_file)
    with pytest.raises(LookupError, match="No step of this session starts yet"):
        shop.resume(changes={"messages": []})
    shop.run("hi")
    with pytest.raises(ValueError, match="The messages of a change must be a list of ChatMessage"):
        shop.resume(changes={"messages": "good day"})
    with pytest.raises(LookupError, match="The last turn has ended"):
        shop.resume(changes={"messages": []})
    with pytest.raises(ValueError, match="The agent's state has no colour"):
        shop.resume(at=shop.checkpoints()[0], changes={"colour": "red"})


def test_a_session_that_waits_at_a_breakpoint_needs_no_person() -> None:
    end = AtBreakpointEnd("why", Place("model", 0), (MODEL,))
    assert (end.status, end.waiting_for, end.event) == (SessionStatus.PAUSED, "", "breakpoint")
    assert Need("approval") == "approval"


def test_one_that_is_registered_with_the_agent_stops_every_script_until_it_is_resumed(
    journal_file: Path,
) -> None:
    agent("stopping", breakpoints=[REFUND])(sample_agents.refunds)
    try:
        session = DurableAgent.of("stopping", journal_file)
        outcome = session.run("hi")
        assert isinstance(outcome, AtBreakpoint)
        assert [call.call_id for call in session.pending()] == ["r1"]
        assert ran("refund") == []
        assert isinstance(session.resume(), Answered)
        assert len(ran("refund")) == 2
    finally:
        unregister("stopping")


@pytest.mark.parametrize(
    "wrong, why",
    [
        (Breakpoint(once=True), "one that is registered stops every session"),
        (Breakpoint("nothing"), "has breakpoints for tools that it lacks: nothing. It has:"),
        (
            Breakpoint("refund", when=("sum", ">", 5)),
            "has breakpoints that never stop: The tool refund has no",
        ),
        (
            Breakpoint("refund", when=("amount", "=", "5")),
            "has breakpoints that never stop: The argument 'amount' of the tool refund is a number",
        ),
    ],
)
def test_one_that_cannot_be_registered_is_refused(wrong: Breakpoint, why: str) -> None:
    try:
        with pytest.raises((ValueError, AgentError), match=why):
            make_durable(agent("stopping", breakpoints=[wrong])(sample_agents.refunds)())
    finally:
        unregister("stopping")
