"""Tagged values that are well-formed are exactly those that can be decoded; a tag in plain data is plain data."""

from typing import Any

import pytest
from haystack.dataclasses import ByteStream, ChatMessage, Document
from hypothesis import given
from hypothesis import strategies as st

from agentstate.durable.state.encoding import decode, encode
from agentstate.durable.state.tags import as_plain_data, is_well_formed, shape, tagged_values
from tests.test_encoding import values

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["$type", "value", "keys", "a"]), inner),
    max_leaves=10,
)


@given(PLAIN)
def test_what_is_typed_as_plain_json_is_decoded_as_it_was_typed(value):
    assert decode(as_plain_data(value)) == value


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
        {"$type": "dict", "value": [[1]]},
        {"$type": "dict", "value": [[[1], 2]]},
        {"$type": "ordered", "keys": ["a"], "value": {}},
        {"$type": "ordered", "value": {}},
        {"$type": "ordered", "keys": [{}], "value": {"a": 1}},
        {"$type": "set", "value": [{}]},
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
def test_what_could_not_be_decoded_is_not_well_formed(tagged: dict[str, Any]):
    assert not is_well_formed(tagged, {shape({"$type": "document", "value": {"content": "x"}})})
