"""The phase diagram: deterministic, complete, and true to the session's totals."""

from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from uuid import UUID

import pytest
from django.utils import timezone

from agentstate.domain.phases import TRANSITIONS
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.session import diagram
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.models import Branch, Phase, Session
from sessions_app.templatetags.diagram import diagram_badges, diagram_nodes
from tests import builders

TOTALS = {
    "edges": {
        "idle>planning": 1,
        "planning>executing": 6,
        "executing>reflecting": 5,
        "reflecting>planning": 5,
    },
    "visits": {"planning": 6, "executing": 6, "reflecting": 5},
    "seconds": {"planning": 11.2, "reflecting": 9.8},
}


def draw(**fields) -> diagram.Diagram:
    """The diagram of a session with these fields."""
    now = timezone.now()
    session = Session(branch=Branch(number=1), **{"phase_since": now, **fields})
    return diagram.of_session(SessionContext.of(session, actor=builders.SYSTEM, now=now, mask=Mask.none()))


@pytest.fixture
def drawn() -> diagram.Diagram:
    return draw(phase="executing", status="waiting", waiting_for="approval", totals=TOTALS)


@pytest.mark.parametrize("number", [0, 1], ids=["wide", "tall"])
def test_every_phase_and_every_allowed_change_is_drawn(drawn, number):
    picture = drawn.pictures[number]
    assert {node.phase for node in picture.nodes} == set(Phase.values)
    allowed = {(source.value, target.value) for source, targets in TRANSITIONS.items() for target in targets}
    assert {(edge.source, edge.target) for edge in picture.edges} == allowed


@pytest.mark.parametrize("number", [0, 1], ids=["wide", "tall"])
def test_nothing_overlaps_and_all_lies_within_the_picture(drawn, number):
    picture = drawn.pictures[number]
    boxes = [(n.x, n.y, n.x + n.width, n.y + n.height) for n in picture.nodes]
    badges = [(e.badge[0] - 11, e.badge[1] - 8, e.badge[0] + 11, e.badge[1] + 8) for e in picture.edges]
    for left, top, right, bottom in boxes + badges:
        assert left >= 0
        assert top >= 0
        assert right <= picture.width
        assert bottom <= picture.height
    for one, other in combinations(boxes, 2):
        assert not _overlap(one, other)
    for one, other in combinations(badges, 2):
        assert not _overlap(one, other)


def test_the_tall_picture_is_legible_on_a_narrow_screen(drawn):
    """At 390 px less the margins it is drawn at its own size or nearly so, with text of 12 px."""
    tall = drawn.pictures[1]
    assert tall.name == "tall"
    assert tall.width <= 390 - 2 * 12


def test_the_present_phase_is_filled_and_the_visited_ones_are_outlined(drawn):
    states = {node.phase: node.state for node in drawn.pictures[0].nodes}
    assert states == {
        "idle": "seen",
        "planning": "seen",
        "executing": "now",
        "reflecting": "seen",
        "done": "never",
        "error": "never",
    }
    assert drawn.tone == "waiting"


def test_edges_and_nodes_carry_counts_and_times(drawn):
    picture = drawn.pictures[0]
    counts = {edge.name: edge.count for edge in picture.edges if edge.count}
    assert counts == {
        "idle-planning": 1,
        "planning-executing": 6,
        "executing-reflecting": 5,
        "reflecting-planning": 5,
    }
    notes = {node.phase: node.note for node in picture.nodes}
    assert notes["planning"] == "6 visits, 11.2 s"
    assert notes["executing"] == "now"
    assert notes["done"] == ""


@pytest.mark.parametrize("status, note", [("paused", "now, 9 min"), ("cancelled", "cancelled")])
def test_only_a_session_that_may_go_on_is_still_in_its_phase(status, note):
    since = timezone.now() - timedelta(minutes=9)
    picture = draw(phase="executing", status=status, totals=TOTALS, phase_since=since).pictures[0]
    assert {node.phase: node.note for node in picture.nodes}["executing"] == note


def test_it_has_a_description_in_words(drawn):
    assert drawn.description == (
        "Waiting for approval. The agent is executing. "
        "Visited: planning 6 times, executing 6 times, reflecting 5 times. "
        "Changes: idle to planning 1 time, planning to executing 6 times, executing to reflecting 5 times, "
        "reflecting to planning 5 times."
    )


def test_it_does_not_jump_while_it_is_watched(drawn):
    """The places of nodes and edges do not depend on what has happened."""
    later = draw(phase="done", status="idle", totals={"edges": {"planning>done": 12_345}})
    for before, after in zip(drawn.pictures, later.pictures, strict=True):
        assert [(n.phase, n.x, n.y, n.width) for n in before.nodes] == [
            (n.phase, n.x, n.y, n.width) for n in after.nodes
        ]
        assert {(e.name, e.path, e.badge) for e in before.edges} == {
            (e.name, e.path, e.badge) for e in after.edges
        }


def test_a_session_that_has_not_begun_has_a_diagram():
    drawn = draw()
    assert {node.phase for node in drawn.pictures[0].nodes if node.state != "never"} == {"idle"}


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def test_nodes_and_badges_lead_to_their_steps_and_what_they_say_is_escaped():
    picture = diagram.of_totals(
        {"edges": {"idle>planning": 1, "planning>done": 1234}, "visits": {"planning": 2}}
    ).pictures[0]
    key = UUID(int=5)
    planning = next(node for node in picture.nodes if node.phase == "planning")
    nodes = diagram_nodes([replace(planning, note="<b>")], key, "all")
    assert (
        f'<a href="/sessions/{key}/?phase=planning&amp;queue=all#timeline" aria-label="planning: &lt;b&gt;. Show'
        in nodes
    )
    assert '<text class="small" x="236" y="100">&lt;b&gt;</text>' in nodes
    assert diagram_nodes(picture.nodes, key, "").count("<a ") == 3
    assert "<a " not in diagram_nodes(picture.nodes, "", "")
    badges = diagram_badges(picture.taken, key, "")
    assert f'href="/sessions/{key}/?edge=planning-done#timeline"' in badges
    assert 'aria-label="planning to done, 1,234 times. Show those steps"' in badges
    assert badges.count('<g class="badge">') == 2
    assert ">1234</text>" in badges
    assert "<a " not in diagram_badges(picture.taken, "", "")
