"""Times in words: rounded to what is written, and a time to wait is never none."""

from datetime import timedelta

import pytest
from django.utils import timezone

from sessions_app.desk.pages.session import diagram, header
from sessions_app.wording import duration, rough_duration, status_label, time_left
from tests import builders

NOW = timezone.now()


@pytest.mark.parametrize(
    "seconds, text",
    [
        (None, ""),
        (0, "0.00 s"),
        (0.004, "0.00 s"),
        (0.214, "0.21 s"),
        (0.994, "0.99 s"),
        (0.999, "1 s"),
        (1.04, "1 s"),
        (11.24, "11.2 s"),
        (59.94, "59.9 s"),
        (59.97, "1 min"),
        (60.4, "1 min"),
        (119.6, "2 min"),
        (134, "2 min 14 s"),
        (599.7, "10 min"),
        (14 * 60 + 59, "14 min"),
        (3599.7, "1 h"),
        (2 * 3600 + 14 * 60, "2 h 14 min"),
        (48 * 3600 - 0.2, "2 d"),
    ],
)
def test_a_duration_is_rounded_before_its_unit_is_chosen(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_rough_duration_has_no_seconds_beside_minutes() -> None:
    assert [rough_duration(seconds) for seconds in (0.999, 59.97, 119.6, 134)] == [
        "1 s",
        "1 min",
        "1 min",
        "2 min",
    ]


@pytest.mark.parametrize(
    "seconds, left", [(0.004, "1 s"), (0.4, "1 s"), (1, "1 s"), (1.2, "2 s"), (59.5, "1 min")]
)
@pytest.mark.django_db
def test_what_is_to_come_is_at_least_a_second_away(seconds: float, left: str) -> None:
    session = builders.retrying()
    session.next_run_at = NOW + timedelta(seconds=seconds)
    assert status_label(session, NOW) == ("waiting", f"Tries again in {left}")
    session.save()
    context = builders.context_of(session, now=NOW)
    assert f"the next begins in {left}." in str(header.header(context).banner)
    assert time_left(NOW + timedelta(seconds=seconds), NOW) == f"expires in {left}"


@pytest.mark.parametrize(
    "seconds, note", [(0.4, "now"), (1.9, "now, 1 s"), (59.97, "now, 59 s"), (134, "now, 2 min")]
)
@pytest.mark.django_db
def test_a_phase_that_has_just_begun_is_told_without_a_time(seconds: float, note: str) -> None:
    session = builders.running()
    session.phase_since = NOW - timedelta(seconds=seconds)
    session.save()
    drawn = diagram.of_session(builders.context_of(session, now=NOW))
    assert note in [node.note for node in drawn.pictures[0].nodes]


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "expired"), (-5, "expired"), (119, "expires in 1 min 59 s"), (3239, "expires in 53 min")],
)
def test_the_time_that_is_left_has_no_seconds_beside_many_minutes(seconds: float, text: str) -> None:
    assert time_left(NOW + timedelta(seconds=seconds), NOW) == text
