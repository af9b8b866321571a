"""Totals are stored without their names, and are what they were when they are read."""

from typing import Any

import pytest
from django.core import serializers
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from agentstate.domain.phases import TRANSITIONS, AgentPhase
from sessions_app.models import Checkpoint
from sessions_app.models.totals import NAMES, pack, unpack
from tests import builders

NUMBERS = st.integers() | st.floats(allow_nan=False)
KNOWN = {group: [name for of, name in NAMES if of == group] for group, _ in NAMES}
COUNTED = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(KNOWN[""], NUMBERS)
    | {
        group: st.dictionaries(st.sampled_from(names), NUMBERS, min_size=1)
        for group, names in KNOWN.items()
        if group
    },
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
NAME = st.sampled_from([*KNOWN, *KNOWN[""], *KNOWN["edges"]]) | st.text(max_size=8)
ANYTHING = st.dictionaries(NAME, JSON | st.dictionaries(NAME, JSON, max_size=3), max_size=5)


def types(value: Any) -> Any:
    return {key: types(inner) for key, inner in value.items()} if isinstance(value, dict) else type(value)


@given(COUNTED)
def test_what_is_counted_is_read_as_it_was_and_stored_without_names(totals: dict[str, Any]) -> None:
    text = pack(totals)
    assert unpack(text) == totals
    assert types(unpack(text)) == types(totals)
    assert not set(text) & set('{>"')


@pytest.mark.slow
@given(ANYTHING)
def test_totals_of_any_other_shape_are_read_as_they_were_too(totals: dict[str, Any]) -> None:
    assert unpack(pack(totals)) == totals
    assert types(unpack(pack(totals))) == types(totals)


def test_every_phase_and_transition_has_a_place() -> None:
    """One that is added belongs at the end of the list: what is stored is known by its place."""
    edges = {
        f"{source.value}>{target.value}" for source, targets in TRANSITIONS.items() for target in targets
    }
    assert edges == set(KNOWN["edges"])
    assert {phase.value for phase in AgentPhase} == set(KNOWN["seconds"])
    assert {phase.value for phase in AgentPhase} - {"idle"} == set(KNOWN["visits"])


def test_stored_totals_mean_the_same_for_ever() -> None:
    """Written down by hand, since such texts stand in databases: each place has its own number."""
    text = ",".join(map(str, range(1, 34)))
    assert unpack(text) == {
        "steps": 1,
        "model_calls": 2,
        "tool_calls": 3,
        "prompt_tokens": 4,
        "completion_tokens": 5,
        "model_seconds": 6,
        "tool_seconds": 7,
        "edges": {
            "idle>planning": 8,
            "planning>executing": 9,
            "executing>reflecting": 10,
            "reflecting>planning": 11,
            "reflecting>done": 12,
            "done>planning": 13,
            "planning>done": 14,
            "planning>error": 28,
            "executing>error": 29,
            "reflecting>error": 30,
            "error>planning": 31,
        },
        "visits": {"planning": 15, "executing": 16, "reflecting": 17, "done": 18, "error": 32},
        "seconds": {
            "idle": 19,
            "planning": 20,
            "executing": 21,
            "reflecting": 22,
            "done": 23,
            "error": 33,
        },
        "tool_errors": 24,
        "failed_model_calls": 25,
        "cached": 26,
        "cached_replies": 27,
    }
    assert pack(unpack(text)) == text
    assert unpack("3,,0,,,1.5,0.0") == {
        "steps": 3,
        "tool_calls": 0,
        "model_seconds": 1.5,
        "tool_seconds": 0.0,
    }


def test_totals_that_a_later_version_counts_are_not_cut_off() -> None:
    with pytest.raises(ValueError, match="later version"):
        unpack("," * len(NAMES))


@pytest.mark.django_db
def test_a_checkpoint_of_an_earlier_version_has_its_totals_as_json() -> None:
    checkpoint = builders.looked_up().last_checkpoint
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE sessions_app_checkpoint SET totals = %s WHERE id = %s",
            ['{"steps": 2, "edges": {"idle>planning": 1}}', checkpoint.pk],
        )
    assert Checkpoint.objects.get(pk=checkpoint.pk).totals == {"steps": 2, "edges": {"idle>planning": 1}}


@pytest.mark.django_db
def test_a_checkpoint_is_dumped_and_loaded_with_its_totals() -> None:
    checkpoint = builders.looked_up().last_checkpoint
    assert checkpoint.totals
    (loaded,) = serializers.deserialize("json", serializers.serialize("json", [checkpoint]))
    loaded.save()
    assert Checkpoint.objects.get(pk=checkpoint.pk).totals == checkpoint.totals
