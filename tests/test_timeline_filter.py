"""Which steps a filter of the timeline finds, also where the history goes over several branches."""

import html
import re
from bisect import bisect_right
from typing import Any

import pytest
from django.db.models import QuerySet
from django.http import QueryDict
from django.test import Client

from sessions_app import actions
from sessions_app.access.roles import Actor
from sessions_app.desk.pages.session.timeline_filter import (
    TimelineFilter,
    count_of_people,
    matching_steps,
    parse,
)
from sessions_app.models import Branch, Checkpoint, Event, ModelCall, Session, ToolCall
from tests import builders

pytestmark = pytest.mark.django_db


def worked_on(history: builders.History, steps: int) -> Session:
    """The session after so many more steps; each third calls no tool, each fifth call fails."""
    for number in range(steps):
        if number % 3 == 2:
            history.reply("I think.")
        else:
            history.reply(calls=[("send_letter" if number % 2 else "lookup_policy", {"text": str(number)})])
            error = "No answer" if number % 5 == 4 else ""
            history.finish(history.calls[-1], None if error else "ok", error=error)
        history.checkpoint("step")
    return history.rest("paused")


def leave(session: Session, step: int) -> builders.History:
    """Rewind to the start of a step, and continue the history on the new branch."""
    starts = Checkpoint.objects.visible_on(builders.branch_of(session)).order_by("position")
    actions.rewind(
        actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=starts[step].pk, reason="Once more"
    )
    return builders.History.of(session, step=step)


def steps_with(branch: Branch, positions: list[int]) -> list[tuple[int, int | None]]:
    """The steps in which the positions lie, found by reading them all."""
    starts = list(
        Checkpoint.objects.visible_on(branch)
        .filter(kind__in=("start", "step"))
        .order_by("position")
        .values_list("position", flat=True)
    )
    indexes = sorted({bisect_right(starts, position) - 1 for position in positions} - {-1})
    return [(starts[i], starts[i + 1] - 1 if i + 1 < len(starts) else None) for i in indexes]


@pytest.fixture
def branched() -> Session:
    """A session that was rewound twice, the second time into the middle of what the first rewind kept."""
    session = worked_on(builders.asked(), 12)
    session = worked_on(leave(session, 8), 7)
    return worked_on(leave(session, 5), 9)


@pytest.mark.slow
@pytest.mark.parametrize("left_in_a_step", [False, True])
def test_each_filter_finds_the_steps_that_reading_all_of_them_finds(
    branched: Session, left_in_a_step: bool
) -> None:
    if left_in_a_step:
        # The newest step began on the branch that was left; its calls are on the present one.
        history = leave(branched, 10)
        history.reply(calls=[("send_letter", {"text": "again"})])
        history.finish(history.calls[-1], None, error="No answer")
        branched = history.rest("paused")
    branch = builders.branch_of(branched)
    calls = ToolCall.objects.visible_on(branch)
    expected: dict[tuple[str, str], QuerySet[Any]] = {
        ("tools", ""): calls,
        ("tool", "send_letter"): calls.filter(tool="send_letter"),
        ("errors", ""): calls.filter(status="failed"),
        ("phase", "executing"): calls,
        ("phase", "reflecting"): Checkpoint.objects.visible_on(branch).filter(
            kind="step", phase="reflecting"
        ),
        ("edge", "idle-planning"): Checkpoint.objects.visible_on(branch).filter(kind="start"),
    }
    for (kind, value), rows in expected.items():
        spans, _, more = matching_steps(branch, TimelineFilter(kind, value), before=None, limit=100)
        assert spans == steps_with(branch, list(rows.values_list("position", flat=True))), (kind, value)
        assert not more
    assert ModelCall.objects.visible_on(branch).count() > calls.count()


def test_a_step_that_reflects_and_then_calls_a_tool_plans_again(branched: Session) -> None:
    branch = builders.branch_of(branched)
    called = steps_with(branch, list(ToolCall.objects.visible_on(branch).values_list("position", flat=True)))
    reflecting = Checkpoint.objects.visible_on(branch).filter(kind="step", phase="reflecting")
    expected = [span for span in called if reflecting.filter(position=span[0]).exists()]
    only = TimelineFilter("edge", "reflecting-planning")
    assert matching_steps(branch, only, before=None, limit=100)[0] == expected


def test_pages_of_matching_steps_follow_each_other(branched: Session) -> None:
    branch = builders.branch_of(branched)
    whole, _, _ = matching_steps(branch, TimelineFilter("tools"), before=None, limit=100)
    pages: list[tuple[int, int | None]] = []
    before = None
    while True:
        spans, _, more = matching_steps(branch, TimelineFilter("tools"), before=before, limit=3)
        pages = spans + pages
        if not more:
            break
        before = spans[0][0]
    assert pages == whole


def people(session: Session, **paging: Any) -> tuple[list[tuple[str, str]], bool]:
    """What the filter by people shows, oldest first: each event's kind, each message's author with its words."""
    page = {"before": None, "limit": 100} | paging
    _, rows, more = matching_steps(builders.branch_of(session), TimelineFilter("people"), **page)
    rows.sort(key=lambda row: row.position)
    return [
        (row.kind, row.actor_name) if isinstance(row, Event) else (row.author, row.text) for row in rows
    ], more


def test_the_filter_by_people_shows_the_start_and_what_people_sent_with_its_words() -> None:
    anna = builders.user("operator", "anna")
    history = builders.History()
    history.checkpoint("start")
    history.user("Is it covered?", author="anna")
    history.reply("Yes.")
    history.end("Yes.")
    history.event("finished")
    history.event("message", Actor.of(anna))
    history.checkpoint("start")
    history.user("And the tyres?", author="anna")
    history.user("I mean the spare one.")
    history.event("retry")
    session = history.rest("paused")
    actions.note(actor=Actor.of(anna), session_id=session.pk, text="She called")
    rows, more = people(session)
    # A message without an account is the customer's.
    assert rows == [
        ("started", "tests"),
        ("anna", "Is it covered?"),
        ("anna", "And the tyres?"),
        ("noted", "anna"),
    ]
    assert not more
    assert str(count_of_people(builders.branch_of(session))) == "4"


def test_pages_of_what_people_did_follow_each_other() -> None:
    history = builders.asked()
    for number in range(4):
        history.user(f"Question {number}", author="anna")
        history.event("noted", reason=f"Note {number}")
    session = history.rest("paused")
    branch, only = builders.branch_of(session), TimelineFilter("people")
    positions: list[int] = []
    more = True
    while more:
        before = positions[0] if positions else None
        _, rows, more = matching_steps(branch, only, before=before, limit=3)
        positions = sorted(row.position for row in rows) + positions
    assert len(positions) == 9
    assert positions == [
        row.position
        for row in sorted(
            matching_steps(branch, only, before=None, limit=100)[1], key=lambda row: row.position
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [5, 60])
def test_a_filter_costs_few_queries_however_long_the_history(django_assert_max_num_queries, steps) -> None:
    branch = builders.branch_of(worked_on(builders.asked(), steps))
    with django_assert_max_num_queries(2):
        matching_steps(branch, TimelineFilter("tool", "send_letter"), before=None, limit=10)


def test_a_filter_by_a_tool_of_any_name_stays_on_while_going_back_and_forth(client: Client) -> None:
    history = builders.asked()
    for number in range(30):
        history.reply(calls=[("a&b=c", {"text": str(number)})])
        history.finish(history.calls[-1], "ok")
        history.checkpoint("step")
    session = history.rest("paused")
    client.force_login(builders.user("viewer"))

    def links(page: str, name: str) -> list[QueryDict]:
        [link] = re.findall(rf"<a[^>]*>\s*{name}\s*</a>", page)
        addresses = re.findall(r'(?:href|hx-get)="([^"]+)"', link)
        return [QueryDict(html.unescape(address).partition("?")[2]) for address in addresses]

    page = client.get(f"/sessions/{session.pk}/", {"tool": "a&b=c", "queue": "paused"}).content.decode()
    earlier = links(page, "Earlier steps")
    assert [sorted(query) for query in earlier] == [["before", "queue", "tool"]] * 2
    assert {query["tool"] for query in earlier} == {"a&b=c"}
    page = client.get(f"/sessions/{session.pk}/?{earlier[0].urlencode()}").content.decode()
    assert links(page, "To the newest steps") == [QueryDict("tool=a%26b%3Dc&queue=paused")]
    assert "steps that called a&amp;b=c" in page


@pytest.mark.parametrize(
    "query", ["show=errors", "show=people", "tool=a%26b%3Dc", "phase=done", "edge=idle-planning"]
)
def test_the_parameters_of_a_filter_ask_for_it_again(query: str) -> None:
    only = parse(QueryDict(query))
    assert only is not None
    assert only.parameters == QueryDict(query).dict()
