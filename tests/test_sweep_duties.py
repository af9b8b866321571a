"""What the sweep does besides: none of it depends on the rest."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from sessions_app import tasks
from sessions_app.finding import search, search_index
from sessions_app.models import ToolResult
from tests import builders

pytestmark = pytest.mark.django_db


def test_a_duty_of_the_sweep_that_fails_keeps_no_other_from_being_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> None:
        raise ValueError("no such word")

    monkeypatch.setattr(search_index, "update", fails)
    ToolResult.objects.create(key="k", value={}, expires_at=timezone.now() - timedelta(days=2))
    with pytest.raises(ExceptionGroup) as raised:
        tasks.sweep()
    assert [str(error) for error in raised.value.exceptions] == ["no such word"]
    assert not ToolResult.objects.exists()


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = {"a": [value]}
    return value


# As many different pairs of characters as are indexed, which take more than a megabyte with their places.
PAIRS = "".join(chr(0x20000 + number % 300) + chr(0x21000 + number // 300) for number in range(50_000))
# Words of characters that stand for up to six others.
SQUARES = " ".join(
    "".join(chr(0x3300 + number // 87 ** (place % 3) % 87) for place in range(24)) for number in range(4_000)
)


@pytest.mark.parametrize(
    "text",
    [PAIRS, SQUARES, "\ufdfa" * 100_000, "\U00010400" * 3000, nested(400)],
    ids=["pairs", "squares", "ligatures", "long", "deep"],
)
def test_no_text_keeps_the_search_from_what_comes_behind_it(text: Any) -> None:
    history = builders.asked()
    history.reply(calls=[("look_up", {"policy": "x"})])
    history.finish(history.calls[0], text)
    behind = builders.asked()
    behind.reply(calls=[("send_letter", {"text": "zeppelin"})])
    tasks.sweep()
    while search_index.update():
        pass
    assert search.newest_sessions("zeppelin", whole=True) == ([behind.session.pk], False)
    assert search.newest_sessions("look_up", whole=True) == ([history.session.pk], False)
