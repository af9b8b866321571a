"""Random steering, with workers that die at random, keeps every promise of the design."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests import driving
from tests.steering import Steering, payers_desk

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def desk(db: None) -> Iterator[driving.Desk]:
    with payers_desk() as desk:
        yield desk


def test_random_steering_keeps_every_promise() -> None:
    run_state_machine_as_test(
        Steering,
        settings=settings(
            max_examples=40,
            stateful_step_count=14,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_long_random_steering_keeps_every_promise() -> None:
    run_state_machine_as_test(
        Steering,
        settings=settings(
            max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
