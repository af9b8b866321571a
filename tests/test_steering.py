"""Random steering, with workers that die at random, keeps every promise of the design."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from sessions_app.models import Phase, Session, Status, WaitingFor
from tests import driving, steering
from tests.steering import Steering

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def desk(db: None) -> Iterator[driving.Desk]:
    with steering.paying_desk() as desk:
        yield desk


@pytest.mark.slow
@pytest.mark.parametrize("examples", [8, pytest.param(25, marks=pytest.mark.long)])
def test_random_steering_keeps_every_promise(examples: int) -> None:
    """The same each time."""
    run_state_machine_as_test(
        Steering,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


# What it has found


def steered(*steps: str, words: str = "a") -> tuple[Steering, Session]:
    """A session after these steps, each checked against the model."""
    machine = Steering()
    machine.start(words)
    [pk] = machine.known
    machine.touched = [pk]
    for step in steps:
        what, _, choice = step.partition(" ")
        match what:
            case "rewind":
                machine.rewind(pk, int(choice or 0), run=True)
            case "message":
                machine.message(pk, choice)
            case "breakpoint":
                machine.breakpoint(pk, choice, once=False)
            case "slice":
                machine.drive(pk, 0)
            case "drive":
                machine.drive(pk, 60)
            case _:
                getattr(machine, what)(pk)
        machine.all_is_as_promised()
    return machine, steering.fresh(pk)


@pytest.mark.slow
def test_an_effect_on_a_branch_that_an_undo_discarded_is_not_repeated_without_approval() -> None:
    """The first branch has no lineage; what the undo discarded counts all the same."""
    machine, session = steered("slice", "rewind", "drive", "answer_all", "drive", "undo", "resume", "drive")
    assert (session.status, session.waiting_for) == (Status.WAITING, WaitingFor.APPROVAL)
    assert sum(steering.ran.values()) == 3
    machine.teardown()


@pytest.mark.slow
def test_a_turn_whose_message_was_read_on_a_discarded_branch_is_dropped() -> None:
    machine, session = steered("drive", "message b", "rewind", "slice", "undo")
    assert (session.status, session.phase, session.final_answer) == (Status.IDLE, Phase.DONE, "Answer to a")
    machine.teardown()


@pytest.mark.slow
def test_a_breakpoint_stops_before_each_payment_of_each_branch() -> None:
    machine, session = steered(
        "breakpoint pay", "drive", "resume", "drive", "rewind", "drive", "resume", "drive"
    )
    assert (session.status, session.waiting_for) == (Status.WAITING, WaitingFor.APPROVAL)
    machine, session = steered("breakpoint pay", "drive")
    assert (session.status, sum(steering.ran.values())) == (Status.PAUSED, 0)
    machine.teardown()
    assert sum(steering.ran.values()) == 2
