"""Parts of pages that are drawn once in a process for the same values."""

import pytest
from django.template import Context, Template
from django.test import Client

from sessions_app.desk.pages.session.diagram import Node, of_totals
from sessions_app.templatetags import drawn as tag
from tests import builders

PART = "{% load drawn %}{% drawn 'session/_diagram_node.html' node=node address=address %}"


def draw(address: str, note: str = "3 visits") -> str:
    node = Node("planning", note, "seen", 1, 2, 128, 42)
    return Template(PART).render(Context({"node": node, "address": address}))


@pytest.fixture(autouse=True)
def nothing_drawn():
    tag._drawn.cache_clear()


def test_a_part_is_drawn_once_for_the_same_values():
    assert draw("/sessions/1/") == draw("/sessions/1/")
    assert tag._drawn.cache_info().misses == 1


def test_a_part_is_drawn_anew_for_other_values():
    assert 'href="/sessions/1/#timeline"' in draw("/sessions/1/")
    assert 'href="/sessions/2/#timeline"' in draw("/sessions/2/")
    assert "<a" not in draw("")
    assert "4 visits" in draw("/sessions/1/", "4 visits")
    assert "4 visits" not in draw("/sessions/1/")


def test_values_in_a_part_are_escaped():
    text = draw('/?queue="><script>&a=1', "<b>")
    assert "<script>" not in text
    assert "<b>" not in text
    assert "&lt;b&gt;" in text


def test_no_more_parts_are_kept_than_the_limit():
    for number in range(tag.MOST_PARTS + 5):
        tag._drawn("session/_diagram_lines.html", name=str(number), lines=())
    assert tag._drawn.cache_info().currsize == tag.MOST_PARTS


def test_a_picture_draws_every_edge_and_marks_those_that_were_taken():
    picture = of_totals({"edges": {"idle>planning": 1, "planning>done": 2}}).pictures[0]
    text = tag._drawn("session/_diagram_lines.html", name=picture.name, lines=picture.lines)
    assert text.count('class="edge"') == len(picture.edges) - 2
    assert text.count('class="edge taken"') == 2
    for edge in picture.edges:
        assert f'd="{edge.path}"' in text


@pytest.mark.django_db
def test_with_the_next_step_only_the_parts_that_changed_are_drawn(client: Client):
    client.force_login(builders.user("operator"))
    history = builders.asked()
    for number in range(3):
        history.lookup(f"POL-{number}")
    history.rest("paused")
    client.get(f"/sessions/{history.session.pk}/")
    first = tag._drawn.cache_info().misses
    history.lookup("POL-3")
    history.rest("paused")
    client.get(f"/sessions/{history.session.pk}/")
    assert 0 < tag._drawn.cache_info().misses - first < first / 2
