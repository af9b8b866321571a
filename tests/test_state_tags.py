"""Tagged values that are well-formed are exactly those that can be decoded; a tag in plain data is plain data."""

from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from haystack.dataclasses import ByteStream, ChatMessage, Document
from hypothesis import given
from hypothesis import strategies as st

from agentstate.durable.state.encoding import decode, encode
from agentstate.durable.state.tags import as_plain_data, is_well_formed, shape, tagged_values, without_tags
from tests.test_encoding import values

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["$type", "value", "keys", "a"]), inner),
    max_leaves=10,
)


@pytest.mark.slow
@given(PLAIN)
def test_what_is_typed_as_plain_json_is_decoded_as_it_was_typed(value):
    assert decode(as_plain_data(value)) == value
    assert without_tags(as_plain_data(value)) == value


@pytest.mark.slow
@given(values)
def test_each_value_that_can_be_stored_is_well_formed(value):
    tagged = list(tagged_values(encode(value)))
    shapes = {shape(item) for item in tagged}
    assert all(is_well_formed(item, shapes) for item in tagged)


@pytest.mark.parametrize("value", [Document(content="x"), ChatMessage.from_user("x"), ByteStream(b"x")])
def test_an_object_of_haystack_has_the_fields_of_the_present_one(value):
    [tagged, *_] = tagged_values(encode(value))
    assert is_well_formed(tagged, {shape(tagged)})
    assert not is_well_formed({"$type": tagged["$type"], "value": {}}, {shape(tagged)})
    assert not is_well_formed(tagged, set())


@pytest.mark.parametrize(
    "tagged",
    [
        {"$type": "dict"},
        {"$type": "dict", "value": 5},
        {"$type": "counter", "value": [1]},
        {"$type": "ordered_dict", "value": None},
        {"$type": "ordered_dict", "value": {"$type": "set", "value": [1]}},
        {"$type": "defaultdict", "value": {}},
        {"$type": "deque", "value": 5},
        {"$type": "time", "value": "noon"},
        {"$type": "stand_in", "value": "a thing"},
        {"$type": "dict", "value": [[1]]},
        {"$type": "dict", "value": [[[1], 2]]},
        {"$type": "ordered", "keys": ["a"], "value": {}},
        {"$type": "ordered", "value": {}},
        {"$type": "ordered", "keys": [{}], "value": {"a": 1}},
        {"$type": "set", "value": [{}]},
        {"$type": "set", "value": [1, 1]},
        {"$type": "frozenset", "value": [True, 1]},
        {"$type": "set", "value": [{"$type": "decimal", "value": "1"}, {"$type": "decimal", "value": "1"}]},
        {"$type": "set", "value": [{"$type": "dict", "value": []}]},
        {"$type": "tuple", "value": None},
        {"$type": "decimal", "value": "twelve"},
        {"$type": "decimal", "value": 12},
        {"$type": "int", "value": "zz"},
        {"$type": "float", "value": None},
        {"$type": "uuid", "value": "1"},
        {"$type": "bytes", "value": "é"},
        {"$type": "timedelta", "value": [1, "2", 3]},
        {"$type": "timedelta", "value": [10**9, 0, 0]},
        {"$type": "gun", "value": 1},
        {"$type": ["dict"], "value": []},
        {"$type": {}, "value": []},
    ],
)
def test_what_could_not_be_decoded_or_would_be_another_value_is_not_well_formed(tagged: dict[str, Any]):
    assert not is_well_formed(tagged, {shape({"$type": "document", "value": {"content": "x"}})})


def test_an_encoded_value_is_plain_json_for_people_and_programs() -> None:
    value = {
        "limit": Decimal("1.50"),
        "day": date(2026, 3, 1),
        "span": timedelta(minutes=2),
        "pair": (1, {"a"}),
        "by number": {1: "one", (2, 3): "both"},
        "huge": 1e23,
        "none": float("nan"),
        "document": [Document(id="d1", content="Covered.", meta={"page": 3})],
        "data": {"$type": "date", "value": "a key like others"},
    }
    plain = without_tags(encode(value))
    assert (
        plain.pop("document")[0].items() >= {"id": "d1", "content": "Covered.", "meta": {"page": 3}}.items()
    )
    assert plain == {
        "limit": "1.50",
        "day": "2026-03-01",
        "span": 120.0,
        "pair": [1, ["a"]],
        "by number": {"1": "one", "[2, 3]": "both"},
        "huge": 1e23,
        "none": "nan",
        "data": {"$type": "date", "value": "a key like others"},
    }


@pytest.mark.parametrize(
    "malformed, plain",
    [
        ({"$type": "dict", "value": "••••"}, "••••"),
        ({"$type": "dict"}, None),
        ({"$type": "ordered", "keys": 5, "value": {"a": 1}}, {"a": 1}),
        ({"$type": ["float"], "value": [{"$type": "float", "value": {}}]}, [{}]),
        ({"$type": "timedelta", "value": "long"}, "long"),
    ],
)
def test_what_no_run_can_read_is_plain_json_too(malformed: object, plain: object) -> None:
    assert without_tags(malformed) == plain
