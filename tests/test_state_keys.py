"""A checkpoint stores what changed of the state, and applying the changes gives the state again."""

import copy
from typing import Any

import pytest
from haystack import Document
from hypothesis import given
from hypothesis import strategies as st

from agentstate.durable.state.encoding import encode
from agentstate.durable.state.keys import COUNTERS, NOT_KEYS, StateKeys, apply, difference
from agentstate.durable.state.tags import stand_ins

Json = Any
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, "", "a"])
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)


def exact(value: Json) -> str:
    """1, 1.0 and True are equal, and not the same."""
    return repr(value)


@pytest.mark.slow
@given(plain, plain)
def test_applying_the_difference_gives_what_came_after(before: Json, after: Json) -> None:
    change = difference(before, after)
    if change is None:
        assert exact(before) == exact(after)
    else:
        assert exact(apply(before, change)) == exact(after)


@pytest.mark.slow
@given(st.lists(plain, max_size=4), st.lists(plain, min_size=1, max_size=3))
def test_a_list_that_grew_is_stored_as_what_was_added(before: list[Json], added: list[Json]) -> None:
    assert difference(before, before + added) == {"extend": added}
    assert difference(before, list(before)) is None


@pytest.mark.parametrize(
    "before, after",
    [([1], [True]), ([0], [False, 2]), ([[1.0]], [[1], 2]), ({"a": 1}, {"a": 1.0}), (0, False)],
)
def test_what_only_python_takes_as_equal_is_a_change(before: Json, after: Json) -> None:
    change = difference(before, after)
    assert change is not None
    assert exact(apply(before, change)) == exact(after)


class Checkpoints:
    """What a journal keeps of the keys: the encoded values, by applying each change."""

    def __init__(self) -> None:
        self.keys = StateKeys()
        self.stored: dict[str, Json] = {}

    def commit(self, live: dict[str, Any]) -> dict[str, Json]:
        changes, fresh = self.keys.changes(live)
        for key, change in changes.items():
            self.stored[key] = apply(self.stored.get(key), change)
        self.keys.committed(fresh)
        return changes


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), plain, max_size=2), min_size=1, max_size=6))
def test_after_each_commit_the_journal_holds_the_live_values(states: list[dict[str, Any]]) -> None:
    checkpoints = Checkpoints()
    for live in states:
        checkpoints.commit(live)
        for key, value in live.items():
            assert exact(checkpoints.stored.get(key)) == exact(encode(value))
        assert checkpoints.commit(live) == {}


changes_in_place = st.sampled_from(
    ["append", "extend", "pop", "insert", "replace", "nested", "clear", "rebind"]
)


@pytest.mark.slow
@given(st.lists(changes_in_place, max_size=12))
def test_a_list_that_is_changed_in_place_is_stored_as_it_is_then(operations: list[str]) -> None:
    checkpoints = Checkpoints()
    live: dict[str, Any] = {"items": [{"n": 0}]}
    for number, operation in enumerate(operations):
        checkpoints.commit(live)
        items = live["items"]
        match operation:
            case "append":
                items.append({"n": number})
            case "extend":
                items += [number, "x"]
            case "pop" if items:
                items.pop()
            case "insert":
                items.insert(0, number)
            case "replace" if items:
                items[0] = number
            case "nested" if items and isinstance(items[-1], dict):
                items[-1]["n"] = -number
            case "clear":
                items.clear()
            case "rebind":
                live["items"] = [*items, number]
    checkpoints.commit(live)
    assert checkpoints.stored["items"] == live["items"]


def test_a_growing_list_of_documents_costs_what_is_added() -> None:
    checkpoints = Checkpoints()
    documents = [Document(content=f"d{n}") for n in range(50)]
    live: dict[str, Any] = {"docs": documents[:40]}
    checkpoints.commit(live)
    live["docs"] = documents
    change = checkpoints.commit(live)
    assert [item["value"]["content"] for item in change["docs"]["extend"]] == [f"d{n}" for n in range(40, 50)]
    assert checkpoints.stored["docs"] == encode(documents)


def test_live_objects_and_what_is_stored_elsewhere_are_not_state_keys() -> None:
    live = {**{name: object() for name in NOT_KEYS}, "mine": 1}
    assert Checkpoints().commit(live) == {"mine": {"set": 1}}
    assert set(COUNTERS) <= NOT_KEYS


def test_a_key_that_never_had_a_value_is_not_stored_and_one_that_lost_it_is() -> None:
    checkpoints = Checkpoints()
    assert checkpoints.commit({"a": None}) == {}
    checkpoints.commit({"a": 1})
    assert checkpoints.commit({"a": None}) == {"a": {"set": None}}


def test_what_was_not_committed_is_a_change_still() -> None:
    keys = StateKeys()
    changes, _ = keys.changes({"a": [1]})
    assert keys.changes({"a": [1]})[0] == changes


@pytest.mark.parametrize("value", [object(), [1, object()], {"deep": [object()]}])
def test_a_value_that_cannot_be_stored_leaves_its_text_with_its_type_and_is_told_once(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints()
    checkpoints.commit({"fine": 1, "bad": 1})
    checkpoints.commit({"fine": 2, "bad": value})
    checkpoints.commit({"fine": 3, "bad": value})
    assert checkpoints.stored["fine"] == 3
    assert stand_ins(checkpoints.stored["bad"]) == ["builtins.object"]
    [told] = caplog.messages
    assert told.startswith("The State key 'bad' holds a builtins.object, which cannot be stored")


def test_a_run_that_goes_on_from_stored_values_stores_only_what_changes_then() -> None:
    live = {"docs": [Document(content="d")], "pair": (1, 2), "name": "Ann"}
    first = Checkpoints()
    first.commit(live)
    second = Checkpoints()
    second.stored = copy.deepcopy(first.stored)
    values = second.keys.start_from(first.stored)
    assert values == live
    assert second.commit(values) == {}
    values["docs"].append(Document(content="e"))
    assert list(second.commit(values)) == ["docs"]
    assert second.stored["docs"] == encode(values["docs"])


def test_what_a_tool_wrote_to_the_live_state_is_found() -> None:
    checkpoints = Checkpoints()
    live: dict[str, Any] = {"notes": ["a"], "messages": [object()], "empty": None}
    checkpoints.commit({"notes": ["a"]})
    before = checkpoints.keys.encoded(live)
    live["notes"].append("b")
    after = checkpoints.keys.encoded(live)
    assert before == {"notes": ["a"], "empty": None}
    assert difference(before["notes"], after["notes"]) == {"extend": ["b"]}
