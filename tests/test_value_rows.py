"""A value of the state that a tool call's result holds is stored once, and read as if it were stored twice."""

import json
from typing import Annotated, Any

import pytest
from haystack import Document
from haystack.components.agents import Agent
from haystack.components.agents.state import State, replace_values
from haystack.dataclasses import ToolCall as Call
from haystack.tools import tool
from hypothesis import given
from hypothesis import strategies as st

from agentstate.durable.agent import make_durable
from agentstate.durable.run import run
from agentstate.durable.state.encoding import decode, encode, encode_result
from sessions_app import actions
from sessions_app.desk.pages.session import diagnosis_facts
from sessions_app.history import restore, value_rows
from sessions_app.history.message_rows import AnsweredCall
from sessions_app.models import Checkpoint, Session, StateValue, ToolCall
from tests import builders
from tests.adapters import OrmAdapter
from tests.builders import SYSTEM
from tests.sample_agents import scripted
from tests.test_diagnosis import SECRETS, of_rule

LONG = "The policy covers glass, storm and hail; the deductible is 450 EUR. " * 3


@tool(
    outputs_to_state={
        "notes": {"source": "notes"},
        "docs": {"source": "docs"},
        "short": {"source": "short"},
        "lines": {"source": "lines"},
    },
    outputs_to_string={"source": "text"},
)
def look_up(number: Annotated[int, "which"]) -> dict[str, Any]:
    """Looks something up."""
    return {
        "text": f"Found {number}.",
        "notes": f"{number} {LONG * 2}",
        "docs": [Document(content=LONG, id=f"d{number}", meta={"page": number})],
        "short": f"s{number}",
        "lines": [{"sum": number, "text": LONG}],
    }


@tool
def remember(state: State) -> str:
    """Writes to the State by itself, what an earlier call found."""
    state.set("notes", state.get("notes") + "!")
    return "Remembered."


SCHEMA: dict[str, Any] = {
    "notes": {"type": str, "handler": replace_values},
    "docs": {"type": list[Document]},
    "short": {"type": str, "handler": replace_values},
    "lines": {"type": list[dict[str, Any]]},
}


def agent(steps: int = 3, *more: Call) -> Any:
    replies = [[Call("look_up", {"number": n}, id=f"c{n}")] for n in range(steps)]
    return make_durable(
        Agent(
            chat_generator=scripted(*replies, *([call] for call in more), "Done."),
            tools=[look_up, remember],
            state_schema=SCHEMA,
        )
    )


def ran(steps: int = 3, *more: Call) -> OrmAdapter:
    adapter = OrmAdapter()
    assert run(agent(steps, *more), adapter.open(say="hi")).status == "idle"
    return adapter


def at(adapter: OrmAdapter, step: int) -> Checkpoint:
    return Checkpoint.objects.filter(branch=adapter.fresh().branch, step=step).latest("position")


def state_at(checkpoint: Checkpoint) -> dict[str, Any]:
    state: dict[str, Any] = decode(restore.state_of(checkpoint.branch, checkpoint))
    return state


@pytest.mark.django_db
def test_a_value_that_the_call_holds_is_stored_as_its_place() -> None:
    adapter = ran(1)
    [call] = ToolCall.objects.filter(branch=adapter.fresh().branch)
    stored = {row.key: (row.call_at, row.value) for row in StateValue.objects.all()}
    assert stored["notes"] == (call.position, "notes")
    assert stored["docs"] == (call.position, "docs")
    assert stored["short"] == (None, "s0")


@pytest.mark.django_db
def test_what_is_added_to_a_list_is_stored_with_its_row() -> None:
    ran(3)
    rows = StateValue.objects.filter(key="docs").order_by("position")
    assert [(row.extends, row.call_at is None) for row in rows] == [
        (False, False),
        (True, True),
        (True, True),
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("steps", [1, 3])
def test_the_state_is_read_as_it_was(steps: int) -> None:
    adapter = ran(3)
    last = steps - 1
    state = state_at(at(adapter, steps))
    assert (state["notes"], state["short"]) == (f"{last} {LONG * 2}", f"s{last}")
    assert [document.id for document in state["docs"]] == [f"d{n}" for n in range(steps)]
    assert [document.meta for document in state["docs"]] == [{"page": n} for n in range(steps)]
    assert state["lines"] == [{"sum": n, "text": LONG} for n in range(steps)]


@pytest.mark.django_db
def test_a_result_stays_as_it_is_where_the_state_goes_on_from_it() -> None:
    adapter = ran(2)
    before = list(ToolCall.objects.order_by("position").values_list("result", flat=True))
    restore.state_of(adapter.fresh().current_branch, at(adapter, 2))
    first = state_at(at(adapter, 1))
    assert len(first["lines"]) == 1
    assert list(ToolCall.objects.order_by("position").values_list("result", flat=True)) == before


@pytest.mark.django_db
def test_a_run_that_goes_on_in_another_process_has_the_state() -> None:
    adapter = ran(2)
    adapter.say("And now?")
    again = agent(0, Call("remember", {}, id="r1"))
    assert run(again, adapter.open()).status == "idle"
    state = state_at(Checkpoint.objects.latest("position"))
    assert state["notes"] == f"1 {LONG * 2}!"
    assert [document.id for document in state["docs"]] == ["d0", "d1"]


@pytest.mark.django_db
def test_a_fork_and_a_rewind_have_the_values_of_their_place() -> None:
    adapter = ran(3)
    place = at(adapter, 2)
    fork = actions.fork(actor=SYSTEM, session_id=adapter.pk, checkpoint_id=place.pk, reason="another way")
    forked = Session.objects.get(pk=fork.pk)
    assert restore.state_of(forked.current_branch, place) == restore.state_of(place.branch, place)
    actions.rewind(actor=SYSTEM, session_id=adapter.pk, checkpoint_id=place.pk, reason="back")
    branch = adapter.fresh().current_branch
    assert decode(restore.state_of(branch, place))["notes"] == f"1 {LONG * 2}"


@pytest.mark.django_db
def test_a_person_changes_a_value_that_a_call_holds() -> None:
    adapter = ran(1)
    actions.edit_state(actor=SYSTEM, session_id=adapter.pk, values={"notes": "corrected"}, reason="wrong")
    branch = adapter.fresh().current_branch
    checkpoint = restore.last_visible(Checkpoint, branch)
    assert checkpoint is not None
    state = decode(restore.state_of(branch, checkpoint))
    assert (state["notes"], len(state["docs"])) == ("corrected", 1)
    [call] = ToolCall.objects.all()
    assert decode(call.result)["notes"] == f"0 {LONG * 2}"


@pytest.mark.django_db
def test_the_values_of_calls_cost_one_query(django_assert_num_queries: Any) -> None:
    adapter = ran(3)
    checkpoint = at(adapter, 3)
    branch = checkpoint.branch
    with django_assert_num_queries(2):
        restore.state_of(branch, checkpoint)


@pytest.mark.django_db
@pytest.mark.parametrize("what", SECRETS)
def test_a_secret_in_a_value_that_a_call_holds_is_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{LONG} {SECRETS[what]}"
    history = builders.asked()
    history.reply(calls=[("send_letter", {})])
    call = history.finish(history.calls[0], {"text": text, "n": 1})
    place = history.session.position + 2
    StateValue.objects.create(
        branch=history.branch, position=place, key="seen", value="text", call_at=call.position
    )
    history.checkpoint("step", keys={"seen": place})
    assert [hint.kind for hint in of_rule(history.session, "secret")] == ["state"]
    assert diagnosis_facts.MOST_CHARACTERS >= value_rows.MOST
    monkeypatch.setattr(diagnosis_facts, "MOST_CHARACTERS", 3)  # less than the name of the value
    assert of_rule(history.session, "secret") == []


# What is stored as a place

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=200)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["a", "b", "value", "keys"]), values, min_size=1), st.data())
def test_a_place_leads_to_the_value_itself(result: dict[str, Any], data: st.DataObject) -> None:
    stored, _ = encode_result(result)
    call = AnsweredCall(7, "c1", "look", {}, stored)
    value = encode(data.draw(st.sampled_from([result, *result.values()]) | values))
    place = value_rows.place_of(value, [call])
    if place is not None:
        position, name = place
        assert position == 7
        assert json.dumps(value_rows.part_of(stored, name)) == json.dumps(value)


@pytest.mark.parametrize(
    "value, result",
    [
        (["x" * 200, 1], ["x" * 200, True]),
        (["x" * 200, 1], ["x" * 200, 1.0]),
        ({"a": "x" * 200, "b": 1}, {"b": 1, "a": "x" * 200}),
        ("x" * 90, "x" * 90),
        ([1, 2, 3], [1, 2, 3]),
        ("x" * 200, {"text": "x" * 200, "more": "y" * 1000}),
        ("x" * 30_000, "x" * 30_000),
        ("x" * 200, {"$type": "tuple", "value": ["x" * 200]}),
        (None, None),
    ],
    ids=[
        "a boolean",
        "a float",
        "another order",
        "short",
        "short list",
        "a small part",
        "big",
        "tagged",
        "none",
    ],
)
def test_a_value_is_stored_with_its_row(value: Any, result: Any) -> None:
    assert value_rows.place_of(value, [AnsweredCall(7, "c1", "look", {}, result)]) is None


@pytest.mark.parametrize(
    "value, result, name",
    [
        ("x" * 200, "x" * 200, None),
        (["x" * 200], ["x" * 200], None),
        ("x" * 200, {"text": "x" * 200, "more": "y" * 500}, "text"),
        ("保" * 200, {"text": "保" * 200, "more": "保" * 500}, "text"),
        (
            {"a": "x" * 200},
            {"$type": "ordered", "keys": ["b", "a"], "value": {"a": {"a": "x" * 200}, "b": 1}},
            "a",
        ),
    ],
    ids=["text", "list", "one of two", "Chinese", "in another order"],
)
def test_a_value_is_stored_as_its_place(value: Any, result: Any, name: str | None) -> None:
    calls = [AnsweredCall(5, "c0", "look", {}, "other"), AnsweredCall(7, "c1", "look", {}, result)]
    assert value_rows.place_of(value, calls) == (7, name)
    assert value_rows.part_of(result, name) == value
