"""The first and the last rows of a history with several segments are those of its rows in order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from sessions_app.models import Branch, Message
from sessions_app.models.rows import Ranges, visible
from tests import builders


def rewound_again_and_again(times: int) -> Branch:
    """The last branch of a session that was left so many times, each time behind the third message of a branch."""
    history = builders.History()
    for number in range(1, times + 1):
        for place in range(5):
            history.user(f"{number}, {place}")
        left = history.branch
        third = list(left.messages.order_by("position"))[2].position
        lineage = left.lineage_at(third)
        history.session.branch = Branch.objects.create(
            session=history.session, number=number + 1, parent=left, left_at=third, lineage=lineage
        )
        history.session.save()
    history.user("the last")
    return history.branch


def positions(rows: Any) -> list[int]:
    return [row.position for row in rows]


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("times", [0, 1, 2, 40])
@pytest.mark.parametrize("limit", [1, 4, 1_000])
def test_the_newest_and_the_oldest_rows_of_a_history_are_found_over_all_its_segments(times: int, limit: int):
    branch = rewound_again_and_again(times)
    every = positions(Message.objects.visible_on(branch).order_by("position"))
    assert len(every) == 3 * times + 1
    where = visible(branch)
    assert positions(Message.objects.newest_within(where, limit)) == every[::-1][:limit]
    assert positions(Message.objects.oldest_within(where, limit)) == every[:limit]
    of_one = Message.objects.filter(text__endswith=", 1")
    assert positions(of_one.oldest_within(where, limit)) == every[1::3][:limit]


@pytest.mark.django_db
def test_the_newest_of_each_segment_are_found_and_no_others():
    branch = rewound_again_and_again(2)
    where = visible(branch)
    found = Message.objects.newest_of_each(where, 2).order_by("position").values_list("text", flat=True)
    assert list(found) == ["1, 1", "1, 2", "2, 1", "2, 2", "the last"]
    assert not Message.objects.newest_of_each((), 2).exists()


@pytest.mark.slow
class AnyRanges(TestCase):
    @given(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6) | st.none()), max_size=4),
        st.integers(1, 8),
    )
    def test_any_ranges_have_the_same_first_rows_in_parts_as_together(
        self, spans: list[tuple[int, int | None]], limit: int
    ) -> None:
        branches = [rewound_again_and_again(1) for _ in spans]
        ranges: Ranges = tuple(
            (branch.lineage[0][0], after, None if length is None else after + length)
            for branch, (after, length) in zip(branches, spans, strict=True)
        )
        together = Message.objects.within(ranges)
        found = {row.pk: row.position for row in together}
        for ascending in (True, False):
            rows = Message.objects.oldest_within if ascending else Message.objects.newest_within
            first = positions(rows(ranges, limit))
            assert first == sorted(found.values(), reverse=not ascending)[:limit]
