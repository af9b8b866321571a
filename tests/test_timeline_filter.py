"""Which steps a filter of the timeline finds, also where the history goes over several branches."""

import html
import re
from bisect import bisect_right
from collections import defaultdict
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
from sessions_app.models import Branch, Checkpoint, Event, Message, ModelCall, Session, ToolCall
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
        spans, _, more = matching(branched, TimelineFilter(kind, value))
        assert spans == steps_with(branch, list(rows.values_list("position", flat=True))), (kind, value)
        assert not more
    assert ModelCall.objects.visible_on(branch).count() > calls.count()


def test_a_step_that_reflects_and_then_calls_a_tool_plans_again(branched: Session) -> None:
    branch = builders.branch_of(branched)
    called = steps_with(branch, list(ToolCall.objects.visible_on(branch).values_list("position", flat=True)))
    reflecting = Checkpoint.objects.visible_on(branch).filter(kind="step", phase="reflecting")
    expected = [span for span in called if reflecting.filter(position=span[0]).exists()]
    only = TimelineFilter("edge", "reflecting-planning")
    assert matching(branched, only)[0] == expected


def test_pages_of_matching_steps_follow_each_other(branched: Session) -> None:
    whole, _, _ = matching(branched, TimelineFilter("tools"))
    pages: list[tuple[int, int | None]] = []
    before = None
    while True:
        spans, _, more = matching(branched, TimelineFilter("tools"), before=before, limit=3)
        pages = spans + pages
        if not more:
            break
        before = spans[0][0]
    assert pages == whole


def matching(
    session: Session, only: TimelineFilter, *, before: int | None = None, limit: int = 100
) -> tuple[list[tuple[int, int | None]], list[Event | Message], bool]:
    branch = builders.branch_of(session)
    return matching_steps(branch, only, before=before, limit=limit, totals=session.totals)


def people(session: Session, **paging: Any) -> tuple[list[tuple[str, str]], bool]:
    """What the filter by people shows, oldest first: each event's kind, each message's author with its words."""
    _, rows, more = matching(session, TimelineFilter("people"), **paging)
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
    only = TimelineFilter("people")
    positions: list[int] = []
    more = True
    while more:
        before = positions[0] if positions else None
        _, rows, more = matching(session, only, before=before, limit=3)
        positions = sorted(row.position for row in rows) + positions
    assert len(positions) == 9
    assert positions == [
        row.position for row in sorted(matching(session, only)[1], key=lambda row: row.position)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [5, 60])
def test_a_filter_costs_few_queries_however_long_the_history(django_assert_max_num_queries, steps) -> None:
    session = worked_on(builders.asked(), steps)
    with django_assert_max_num_queries(2):
        matching(session, TimelineFilter("tool", "send_letter"), limit=10)


def edge(*ends: str) -> TimelineFilter:
    return TimelineFilter("edge", "-".join(ends))


def several_turns(turns: int) -> tuple[builders.History, dict[str, list[int]]]:
    """Each third turn calls a tool, the others reply at once; and the first steps that took each change of phase."""
    history, took = builders.History(), defaultdict[str, list[int]](list)
    for number in range(turns):
        took["done-planning" if number else "idle-planning"].append(history.session.position + 1)
        if number:
            history.enter("planning")
        took["planning-executing" if number % 3 == 0 else "planning-done"].append(
            history.session.position + 1
        )
        history.checkpoint("start")
        if number % 3 == 0:
            took["executing-reflecting"].append(history.session.position)
            history.lookup()
            took["reflecting-done"].append(history.session.position)
        history.reply("So it is.")
        history.end("So it is.")
    return history, took


def test_a_change_of_phase_is_found_in_the_steps_that_the_diagram_counts() -> None:
    history, took = several_turns(7)
    session = history.session
    for ends, steps in took.items():
        spans, _, more = matching(session, TimelineFilter("edge", ends))
        assert [first for first, _ in spans] == steps, ends
        assert session.totals["edges"][ends.replace("-", ">")] == len(steps), ends
        assert not more
    for never in (("planning", "error"), ("error", "planning"), ("done", "executing")):
        assert matching(session, edge(*never)) == ([], [], False)


def test_the_step_that_failed_took_the_changes_into_the_error_and_out_of_it() -> None:
    history = builders.asked()
    history.lookup()
    failed = history.session.position
    history.reply(calls=[("send_letter", {})])
    # That a call fails is no error of the agent's.
    history.finish(history.calls[-1], None, error="No stamp")
    history.enter("reflecting")
    for _ in range(2):
        history.model_fails()
        history.enter("error")
        history.event("failed")
        history.enter("planning")
    history.reply("Then not.")
    history.end("Then not.")
    for ends in (("reflecting", "error"), ("planning", "error"), ("error", "planning"), ("planning", "done")):
        spans, _, _ = matching(history.session, edge(*ends))
        assert [first for first, _ in spans] == [failed], ends
    assert matching(history.session, edge("executing", "error"))[0] == []
    assert [first for first, _ in matching(history.session, TimelineFilter("phase", "error"))[0]] == [failed]


def test_a_step_that_goes_on_after_an_error_plans_again_and_one_that_stays_failed_does_not() -> None:
    history = builders.asked()
    [first] = Checkpoint.objects.values_list("position", flat=True)
    history.lookup()
    failed = history.session.position
    history.model_fails()
    history.enter("error")
    history.event("failed")
    assert [start for start, _ in matching(history.session, TimelineFilter("phase", "planning"))[0]] == [
        first
    ]
    history.enter("planning")
    history.reply("Then not.")
    session = history.end("Then not.")
    assert session.totals["edges"]["error>planning"] == 1
    spans, _, more = matching(session, TimelineFilter("phase", "planning"))
    assert [start for start, _ in spans] == [first, failed]
    assert not more


def test_a_call_that_has_not_ended_does_not_reflect() -> None:
    history = builders.asked()
    history.reply(calls=[("send_letter", {})])
    session = history.rest("paused")
    assert len(matching(session, edge("planning", "executing"))[0]) == 1
    assert matching(session, edge("executing", "reflecting"))[0] == []


@pytest.mark.slow
def test_changes_of_phase_are_found_on_all_branches_of_the_history(branched: Session) -> None:
    branch = builders.branch_of(branched)
    checkpoints = Checkpoint.objects.visible_on(branch).order_by("position")
    counted = [(row.position, row.totals) for row in checkpoints] + [(2**63, branched.totals)]
    for ends in ("planning-executing", "executing-reflecting", "reflecting-planning"):
        numbers = [totals.get("edges", {}).get(ends.replace("-", ">"), 0) for _, totals in counted]
        took = [counted[i][0] for i in range(len(counted) - 1) if numbers[i] < numbers[i + 1]]
        spans, _, more = matching(branched, TimelineFilter("edge", ends))
        assert [first for first, _ in spans] == took, ends
        assert not more


@pytest.mark.slow
def test_a_rare_change_of_phase_is_found_by_bisection_and_earlier_ones_on_the_next_page(
    django_assert_max_num_queries,
) -> None:
    history, took = several_turns(30)
    for _ in range(15):
        history.enter("planning")
        history.checkpoint("start")
        history.reply("Yes.")
        history.end("Yes.")
    session = history.session
    for ends in ("idle-planning", "reflecting-done"):
        found: list[int] = []
        before, more = None, True
        while more:
            with django_assert_max_num_queries(4 + session.position.bit_length()):
                spans, _, more = matching(session, TimelineFilter("edge", ends), before=before, limit=2)
            assert spans
            found = [first for first, _ in spans] + found
            before = found[0]
        assert found == took[ends]


@pytest.mark.slow
def test_pages_of_a_change_of_phase_follow_each_other(branched: Session) -> None:
    for ends in ("planning-executing", "executing-reflecting", "reflecting-planning"):
        only = TimelineFilter("edge", ends)
        whole, _, _ = matching(branched, only)
        found: list[tuple[int, int | None]] = []
        more = True
        while more:
            before = found[0][0] if found else None
            spans, _, more = matching(branched, only, before=before, limit=1)
            found = spans + found
        assert found == whole, ends


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
