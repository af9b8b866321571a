"""Stored values are decoded unchanged, name no code, and can be stored in every database."""

import copy
import json
import math
from base64 import b64encode
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pytest
from haystack import Document
from haystack.dataclasses import ByteStream, ChatMessage, GeneratedAnswer, ReasoningContent, ToolCall
from hypothesis import given
from hypothesis import strategies as st

from agentstate.durable.state.chat_messages import message_body, message_from
from agentstate.durable.state.encoding import (
    NotStorable,
    clean_text,
    decode,
    encode,
    encode_lossy,
    encode_marked,
    encode_result,
    lost_type,
)
from agentstate.durable.state.keys import stable
from agentstate.durable.state.tags import with_order, without_order
from agentstate.names import CHANGED_TEXT

Json = Any

# What PostgreSQL's JSON takes: no NUL characters, no lone surrogates.
texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    texts,
    st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=-3, minutes=-30))])),
    st.dates(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.binary(max_size=20),
)
keys = st.recursive(hashable, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=3)
documents = st.builds(Document, content=texts, meta=st.dictionaries(texts, hashable, max_size=2))
messages = st.one_of(
    st.builds(ChatMessage.from_user, texts),
    st.builds(
        lambda text, arguments: ChatMessage.from_assistant(
            text, tool_calls=[ToolCall("t", arguments, id="c1")], reasoning=ReasoningContent("hm")
        ),
        texts,
        st.dictionaries(texts, st.integers() | texts, max_size=2),
    ),
)
values = st.recursive(
    hashable | documents | messages | st.frozensets(keys, max_size=3) | st.sets(keys, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | st.just("$type"), inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(texts | st.just("$type"), inner, max_size=3).map(OrderedDict)
        | st.lists(inner, max_size=3).map(deque)
    ),
    max_leaves=8,
)


def through_a_database(data: Json) -> Json:
    """What JSON makes of it on the way, with the keys of objects in the order of PostgreSQL's jsonb."""
    return in_order_of_jsonb(json.loads(json.dumps(data, allow_nan=False)))


def in_order_of_jsonb(data: Json) -> Json:
    if isinstance(data, list):
        return [in_order_of_jsonb(item) for item in data]
    if not isinstance(data, dict):
        return data
    by_length = sorted(data, key=lambda key: (len(key.encode()), key.encode()))
    return {key: in_order_of_jsonb(data[key]) for key in by_length}


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types recursively, and with keys in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return repr(one) == repr(other)
    return bool(one == other)


@pytest.mark.slow
@given(values)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert same(decode(through_a_database(encode(value))), value)


@pytest.mark.parametrize(
    "value",
    [
        {"name": "b", "id": 1, "a": 2},
        [{"to": {"z": 1, "y": [{"long": 1, "b": 2}]}}],
        {"pairs": ({"b": 1, "a": 2},), "in": {1: {"b": 1, "a": 2}}},
        Document(content="x", meta={"page": 3, "file": {"b": 1, "a": 2}}),
    ],
)
def test_the_order_of_keys_comes_back_from_postgresql(value: Any) -> None:
    for data in (encode(value), encode_marked(value)[0]):
        assert str(decode(through_a_database(data))) == str(value)
    assert with_order(without_order(data)) == data


def test_only_an_order_that_postgresql_would_change_is_stored() -> None:
    value = {"a": 1, "id": [{"b": 1, "aa": 2}], "name": {"x": {}}}
    assert encode(value) == encode_marked(value)[0] == value
    message = ChatMessage.from_assistant("Hi", tool_calls=[ToolCall("t", {}, id="c1")])
    assert "ordered" not in json.dumps(encode(message))


@pytest.mark.slow
@given(values)
def test_nothing_is_lost_of_what_can_be_stored(value: Any) -> None:
    data, lost = encode_lossy(value)
    assert (without_order(data), lost) == (without_order(encode(value)), False)


@pytest.mark.parametrize(
    "value",
    [
        1e16,
        1e23,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        math.inf,
        -math.inf,
        10**5000,
        frozenset({frozenset({1}), (2, frozenset())}),
        {frozenset({1}): 2},
        timedelta.max,
        timedelta(days=99999, microseconds=1),
        {"$type": "tuple", "value": [1]},
        [ByteStream(b"\x00\xff", meta={"n": 1}, mime_type="a/b")],
        GeneratedAnswer("yes", "really?", [Document(content="d")], {"n": 1}),
        OrderedDict(z=1, a=[OrderedDict()]),
        Counter("abba"),
        Counter({(1, 2): 3}),
        defaultdict(list, {"z": [1], "a": []}),
        defaultdict(None, a=1),
        deque([1, (2,)]),
        bytearray(b"\x00\xff"),
        time(12, 30, 1, 5),
        Path("/tmp/a.txt"),
    ],
    ids=lambda value: repr(value)[:30] if not isinstance(value, int) else "huge",
)
def test_odd_values_come_back_as_they_were(value: Any) -> None:
    assert same(decode(through_a_database(encode(value))), value)


def test_nan_comes_back_as_nan() -> None:
    assert math.isnan(decode(through_a_database(encode({"n": math.nan})))["n"])


def numbers(data: Json) -> list[float]:
    """The floats in the stored JSON."""
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list):
        return [number for item in data for number in numbers(item)]
    return [data] if isinstance(data, float) else []


@pytest.mark.slow
@given(st.floats())
def test_no_float_is_stored_that_a_database_may_give_back_as_something_else(value: float) -> None:
    # PostgreSQL keeps numbers as decimals: 1e+23 comes back as a whole number, -0.0 as 0.0.
    for number in numbers(encode([value])):
        assert math.isfinite(number)
        assert repr(number) != "-0.0"
        assert "e+" not in repr(number)


def as_postgres_gives_it_back(data: Json) -> Json:
    if isinstance(data, list):
        return [as_postgres_gives_it_back(item) for item in data]
    if isinstance(data, dict):
        keys = sorted(data, key=lambda key: (len(key.encode()), key.encode()))
        return {key: as_postgres_gives_it_back(data[key]) for key in keys}
    return data


results = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.just("$type"), inner, max_size=4),
)


@pytest.mark.slow
@given(results)
def test_a_result_comes_back_in_the_order_of_its_keys(value: Any) -> None:
    data, lossy = encode_result(value)
    assert not lossy
    assert repr(decode(as_postgres_gives_it_back(data))) == repr(value)


def test_a_document_is_stored_as_a_document_in_a_result_too() -> None:
    document = Document(content="c", meta={"title": "t", "page": 3, "a": 1})
    data, _ = encode_result([document])
    assert data[0]["$type"] == "document"
    assert data[0]["value"]["content"] == "c"
    [back] = decode(as_postgres_gives_it_back(data))
    assert back == document
    assert list(back.meta) == ["title", "page", "a"]


def test_a_result_is_stored_plainly_where_its_order_is_not_lost() -> None:
    for value in ({"a": 1, "b": {"c": 2, "dd": 3}}, [{"x": 1}], {}, "text"):
        assert encode_result(value) == (value, False)


class Colour(str, Enum):  # noqa: UP042 - that its text is not its value is the point
    RED = "red"


class Shouted(str):
    def __str__(self) -> str:
        return self.upper()


class Level(IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int


class Named(dict[str, int]):
    pass


class Odd(set[int]):
    pass


class Moment(datetime):
    pass


def test_a_subclass_of_str_is_stored_as_its_content_and_not_as_its_str() -> None:
    assert decode(through_a_database(encode([Colour.RED, Shouted("hey")]))) == ["red", "hey"]


@pytest.mark.parametrize(
    "value, expected, kind",
    [
        (Colour.RED, "red", "Colour"),
        (Shouted("hey"), "hey", "Shouted"),
        (Level.HIGH, 3, "Level"),
        (Point(1), (1,), "Point"),
        (Named(z=1, a=2), {"z": 1, "a": 2}, "Named"),
        (Odd({1}), {1}, "Odd"),
        (Moment(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), "Moment"),
        (deque([1, 2], maxlen=2), [1, 2], "deque"),
        (defaultdict(lambda: 7, a=1), {"a": 1}, "defaultdict"),
        (np.int64(3), 3, "numpy.int64"),
        (np.float32(0.5), 0.5, "numpy.float32"),
        (np.bool_(False), False, f"numpy.{np.bool_.__name__}"),
        ({"found": np.bool_(False)}, {"found": False}, f"numpy.{np.bool_.__name__}"),
        ({np.int64(3): [np.int64(4)]}, {3: [4]}, "numpy.int64"),
        ({np.int64(3)}, {3}, "numpy.int64"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_a_subclass_or_a_number_comes_back_as_the_plain_type_and_its_own_is_named(
    value: Any, expected: Any, kind: str
) -> None:
    stored, named = encode_marked(value)
    assert named.endswith(kind)
    back = decode(through_a_database(stored))
    assert back == expected
    assert repr(back) == repr(expected)  # the order of keys, too
    assert not type(back).__name__.endswith(kind)
    result, lossy = encode_result(value)
    assert lossy
    assert decode(as_postgres_gives_it_back(result)) == expected
    assert lost_type(value).endswith(kind)


@pytest.mark.parametrize("unit, text", [("ns", "5 nanoseconds"), ("Y", "5 years")])
def test_a_time_span_of_numpy_keeps_its_unit(unit: str, text: str) -> None:
    assert encode_result(np.timedelta64(5, unit)) == (text, True)  # type: ignore[call-overload]


def test_what_stands_in_for_a_value_says_so_when_more_is_asked_of_it_than_its_text() -> None:
    stored, named = encode_marked({"order": Order(7)})
    assert named == "tests.test_encoding.Order"
    back = copy.deepcopy(decode(through_a_database(stored))["order"])
    assert f"{back}" == "Order(number=7)"
    assert back[:5] == "Order"
    why = "this is only the text of a tests.test_encoding.Order, which could not be stored"
    with pytest.raises(AttributeError, match=f"no 'number' here: {why}"):
        _ = back.number
    with pytest.raises(TypeError, match=f"no 'number' here: {why}"):
        _ = back["number"]
    with pytest.raises(TypeError, match="cannot be called"):
        back()
    # It stays marked where it is stored again, and is not told a second time.
    assert encode_marked({"order": back}) == (stored, "")


@dataclass
class Order:
    number: int

    def __repr__(self) -> str:
        return f"Order(number={self.number})"


class WithoutText:
    def __repr__(self) -> str:
        raise RuntimeError("no text for you")


class WithDict:
    def __init__(self, data: Any) -> None:
        self.data = data

    def to_dict(self) -> Any:
        if isinstance(self.data, Exception):
            raise self.data
        return self.data

    def __str__(self) -> str:
        return "its text"


@pytest.mark.parametrize(
    "value, path, kind",
    [
        (Order(1), "the value", "Order"),
        ({"a": [1, Order(2)]}, "the value['a'][1]", "Order"),
        ((Order(1),), "the value[0]", "Order"),
        ({Order: 1}, "the value", "class Order"),
        ([Order(1), OrderedDict()], "the value[0]", "Order"),
        (WithDict({}), "the value", "WithDict"),
        (lambda: 1, "the value", "function"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_cannot_be_stored_is_refused_naming_the_place(value: Any, path: str, kind: str) -> None:
    with pytest.raises(NotStorable) as refused:
        encode(value)
    assert refused.value.path == path
    assert f"{path} holds " in str(refused.value)
    assert kind in str(refused.value)


@pytest.mark.parametrize(
    "value, expected",
    [
        ({"order": Order(7)}, {"order": "Order(number=7)"}),
        (WithDict({"n": Order(1)}), {"n": "Order(number=1)"}),
        (WithDict(RuntimeError("no")), "its text"),
        ([WithoutText()], ["<tests.test_encoding.WithoutText>"]),
        ({Order: 1}, {"<class 'tests.test_encoding.Order'>": 1}),
        ({WithDict({"n": 1}): 1}, {"its text": 1}),
        ({(1, Order): 1}, {(1, "<class 'tests.test_encoding.Order'>"): 1}),
        ("a\x00b\ud800c", "a\ufffdb\ufffdc"),
        ("a \ud83d\ude00", "a \U0001f600"),
        (Point(1), (1,)),
        (Fraction(1, 3), "1/3"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_of_another_type_is_stored_as_text_and_flagged(value: Any, expected: Any) -> None:
    data, lossy = encode_lossy(value)
    assert lossy
    assert decode(through_a_database(data)) == expected


@pytest.mark.parametrize(
    "value", ["a\x00b", {"note": ["a\ud800"]}, {"a\x00b": 1}], ids=["text", "inside", "key"]
)
def test_a_replaced_character_is_flagged_as_no_more_than_that(value: Any) -> None:
    _, lossy = encode_result(value)
    assert lossy
    assert lost_type(value) == CHANGED_TEXT


def cyclic() -> list[Any]:
    items: list[Any] = [1]
    items.append({"again": items})
    return items


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


class Mirror:
    def to_dict(self) -> dict[str, Any]:
        return {"me": self}

    def __str__(self) -> str:
        return "a mirror"


@pytest.mark.parametrize(
    "value", [cyclic(), deep(500), deep(100_000), Mirror()], ids=["cyclic", "deep", "very deep", "mirror"]
)
def test_what_contains_itself_or_is_too_deep_is_truncated_and_flagged(value: Any) -> None:
    data, lossy = encode_lossy(value)
    assert lossy
    assert len(json.dumps(data)) < 2000
    decode(data)
    with pytest.raises(NotStorable):
        encode(value)


def test_a_value_used_twice_does_not_contain_itself() -> None:
    shared = [1]
    assert decode(encode([shared, shared, {"a": shared}])) == [[1], [1], {"a": [1]}]


@pytest.mark.parametrize(
    "value",
    [{WithDict({"n": 1}): 1}, {WithDict({"n": 1})}, {Order}, {frozenset({Order}): 2}, {(WithDict([]), 1)}],
    ids=["key", "member", "class", "frozenset", "tuple"],
)
def test_whatever_was_stored_can_be_read_again(value: Any) -> None:
    """A key has to be hashable when it comes back."""
    data, _ = encode_lossy(value)
    assert len(decode(through_a_database(data))) == 1


@pytest.mark.slow
@given(st.text())
def test_clean_text_fits_into_every_database_and_is_stable(text: str) -> None:
    clean = clean_text(text)
    assert "\x00" not in clean
    clean.encode()
    assert clean_text(clean) == clean
    assert len(clean) == len(text)


def test_stored_data_names_no_code() -> None:
    for tag in ("os.system", "Order", "tests.test_encoding.Order", "object"):
        with pytest.raises(ValueError, match="unknown type"):
            decode({"$type": tag, "value": ["true"]})


def test_a_message_comes_back_whole() -> None:
    message = ChatMessage.from_assistant(
        "text",
        meta={"usage": {"prompt_tokens": 3}, "model": "m"},
        tool_calls=[ToolCall("t", {"q": [1, {"a": None}]}, id="c1", extra={"index": 0})],
        reasoning=ReasoningContent("because", extra={"signature": "s"}),
    )
    result = ChatMessage.from_tool("12", origin=message.tool_calls[0], error=True)
    for each in (message, result, ChatMessage.from_user("hi", name="ann")):
        assert message_from(through_a_database(message_body(each))) == each


def test_what_a_messages_meta_holds_beyond_json_does_not_stop_it() -> None:
    message = ChatMessage.from_assistant("x", meta={"at": datetime(2026, 1, 2, tzinfo=UTC), "raw": Order(1)})
    back = message_from(through_a_database(message_body(message)))
    assert back.meta["at"] == datetime(2026, 1, 2, tzinfo=UTC)
    assert back.text == "x"


def test_only_what_cannot_change_in_place_counts_as_stable() -> None:
    assert all(map(stable, [None, 1, "x", b"y", 1.5, datetime.now(UTC), Document(content="d")]))
    assert not any(map(stable, [[], {}, set(), Order(1), bytearray()]))


def test_the_stored_form_is_plain_and_does_not_change() -> None:
    """Sessions that are stored already have to be read by every later version."""
    stored = {
        "when": {"$type": "datetime", "value": "2026-01-02T03:04:05+00:00"},
        "day": {"$type": "date", "value": "2026-01-02"},
        "pair": {"$type": "tuple", "value": [1, {"$type": "decimal", "value": "1.50"}]},
        "ids": {"$type": "set", "value": ["a"]},
        "raw": {"$type": "bytes", "value": b64encode(b"\x00").decode()},
        "by": {"$type": "dict", "value": [[1, "one"]]},
        "odd": {"$type": "float", "value": "inf"},
        "key": {"$type": "uuid", "value": "00000000-0000-0000-0000-000000000007"},
        "span": {"$type": "timedelta", "value": [1, 2, 3]},
    }
    value = {
        "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "pair": (1, Decimal("1.50")),
        "ids": {"a"},
        "raw": b"\x00",
        "by": {1: "one"},
        "odd": math.inf,
        "key": UUID(int=7),
        "span": timedelta(1, 2, 3),
    }
    assert same(decode(stored), value)
    assert without_order(encode(value)) == stored
