"""What is said of a value that breaks a rule of its schema names the place and the rule, and never the value."""

from typing import Any

import pytest

from agentstate.durable.schemas import Unseen, WrongSchemaError, broken_rule


def of(name: str, **rules: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: rules}}


@pytest.mark.parametrize(
    "schema, value, sentence",
    [
        (of("amount", type="number"), {"amount": "s3cret"}, "amount must be a number"),
        (of("amount", type=["integer", "null"]), {"amount": "s3cret"}, "amount must be a whole number or null"),
        (
            of("amount", anyOf=[{"type": "number"}, {"type": "null"}]),
            {"amount": "s3cret"},
            "amount must be a number or null",
        ),
        (of("a", **of("b", maxLength=3)), {"a": {"b": "s3cret"}}, "a.b is longer than 3 characters"),
        (of("tags", items={"minLength": 9}), {"tags": ["123456789", "s3cret"]}, "tags.1 is shorter than 9 characters"),
        (of("a", enum=["x", "y"]), {"a": "s3cret"}, 'a must be one of ["x", "y"]'),
        (of("a", const="x"), {"a": "s3cret"}, 'a must be "x"'),
        (of("a", pattern="^[A-Z]+$"), {"a": "s3cret"}, 'a must match the regular expression "^[A-Z]+$"'),
        (of("a", maximum=500), {"a": 7373737}, "a must be at most 500"),
        (of("a", exclusiveMinimum=0), {"a": -7373737}, "a must be more than 0"),
        (of("a", uniqueItems=True), {"a": ["s3cret", "s3cret"]}, "a has the same item twice"),
        (of("a", maxItems=1), {"a": ["s3cret", "s3cret"]}, "a has more than 1 items"),
        (of("a", anyOf=[{"minLength": 9}, {"const": 1}]), {"a": "s3cret"}, "a must satisfy anyOf"),
        (of("a", anyOf=[False, {"type": "number"}]), {"a": "s3cret"}, "a must satisfy anyOf"),
        ({"required": ["b", "c"]}, {"c": "s3cret"}, "it lacks b"),
        ({"additionalProperties": False}, {"s3cret": 1}, "it has fields that the schema does not name"),
        ({"additionalProperties": {"type": "number"}}, {"s3cret": {}}, "… must be a number"),
        ({"type": "object"}, "s3cret", "it must be an object"),
        ({"not": {"type": "string"}}, "s3cret", "it must not match"),
    ],
)  # fmt: skip
def test_the_place_and_the_rule_are_named_and_never_the_value(schema, value, sentence):
    problem = broken_rule(value, schema)
    assert problem is not None
    assert problem.startswith(sentence)
    assert "s3cret" not in problem
    assert "7373737" not in problem


def test_nothing_is_said_of_a_valid_value():
    assert broken_rule({"a": 1}, of("a", type="number")) is None


@pytest.mark.parametrize("schema", [{"type": "gun"}, {"$ref": "#/nowhere"}, {"$ref": "elsewhere:x"}])
def test_a_wrong_schema_is_not_blamed_on_the_value(schema):
    with pytest.raises(WrongSchemaError):
        broken_rule({"a": "s3cret"}, schema)


@pytest.mark.parametrize(
    "rules",
    [
        {"uniqueItems": True},
        {"items": {"type": "integer"}},
        {"items": {"enum": [5, 7]}},
        {"contains": {"const": 7}},
        {"not": {"contains": {"const": 5}}},
    ],
)
def test_nothing_is_said_of_what_the_person_does_not_see(rules):
    assert broken_rule({"a": [Unseen(), 5, Unseen()]}, of("a", **rules)) is None


@pytest.mark.parametrize(
    "rules, sentence",
    [
        ({"uniqueItems": True}, "a has the same item twice"),
        ({"items": {"type": "integer"}}, "a.2 must be a whole number"),
        ({"maxItems": 2}, "a has more than 2 items"),
        ({"type": "string"}, "a must be text"),
    ],
)
def test_what_the_person_sees_beside_that_has_to_be_valid(rules, sentence):
    assert broken_rule({"a": [Unseen(), "x", "x"]}, of("a", **rules)) == sentence
