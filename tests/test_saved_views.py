"""A filtered list is stored under a name, for its owner or for everybody."""

import html
import re
import threading
import uuid

import pytest
from django.db import connection
from django.http import QueryDict
from django.utils import timezone

from sessions_app import actions
from sessions_app.access.errors import Forbidden, Invalid, NotFound
from sessions_app.access.masking import Mask
from sessions_app.access.shown import hides_in_query
from sessions_app.actions.saved_views import why_not_delete
from sessions_app.finding.filters import MOST_PICKED
from sessions_app.finding.saved_views import count_views, views_for
from sessions_app.models import SavedView, Session
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def actor():
    return builders.actor("operator")


def save(actor, name="Mine", query="queue=waiting&agent=claims", **more):
    return actions.save_view(actor=actor, name=name, query=query, **more)


def test_a_view_is_its_owners_until_it_is_shared(actor, django_assert_num_queries):
    other = builders.actor("operator")
    assert actor.user
    assert other.user
    mine = save(actor, "B mine")
    shared = save(actor, "A shared", shared=True)
    theirs = save(other, "B mine", shared=True)
    with django_assert_num_queries(1):
        assert views_for(actor.user) == ([shared, mine], [theirs])
    assert views_for(other.user) == ([theirs], [shared])


@pytest.mark.slow
def test_a_chip_counts_what_its_view_shows_to_this_person(actor, client, django_assert_num_queries):
    for _ in range(2):
        builders.paused(assignee=actor.user)
    Session.objects.filter(pk=builders.paused().pk).update(agent="letters")
    builders.failed(title="Fails alike")
    builders.failed(title="Fails alike")
    save(actor, "Paused", "queue=paused")
    save(actor, "Mine, paused", "queue=paused&assignee=me")
    save(actor, "Any letters", "agent=letters")
    save(actor, "Nothing", "queue=done&tag=none")
    save(actor, "Decide", "queue=attention")
    save(actor, "Found", "queue=all&q=alike")
    client.force_login(actor.user)
    for address in ("/?queue=all", "/inbox/"):
        page = client.get(address).content.decode()
        [counted] = re.findall(r'hx-get="(/views/numbers/[^"]*)"', page)
        nav = client.get(html.unescape(counted), headers={"HX-Request": "true"}).content.decode()
        assert "hx-get" not in nav
        chips = re.findall(r'">([^<]+?)(?:\s*<span class="num">([^<]+)</span>)?\s*</a>', nav)
        # Failures of one cause are one line of the inbox; a search is not counted.
        assert chips[:6] == [
            ("Any letters", "1"),
            ("Decide", "1"),
            ("Found", ""),
            ("Mine, paused", "2"),
            ("Nothing", "0"),
            ("Paused", "3"),
        ]
    views, now = views_for(actor.user)[0], timezone.now()
    with django_assert_num_queries(1):
        count_views(views, actor.user, now)
    with django_assert_num_queries(0):
        assert count_views([], actor.user, now) == {}


@pytest.mark.slow
def test_the_count_of_a_view_ends_at_99(actor):
    for _ in range(100):
        builders.History().rest("paused")
    view = save(actor, query="queue=paused")
    assert str(count_views([view], actor.user, timezone.now())[view.pk]) == "99+"


@pytest.mark.parametrize(
    "query, stored",
    [
        ("queue=waiting&agent=claims", "queue=waiting&agent=claims"),
        ("?agent=claims&queue=waiting&after=x_y&seen=z", "queue=waiting&agent=claims"),
        ("tag=&status=paused&status=waiting", "status=waiting"),
        ("q=M%C3%BCller+%26+Co&assignee=me&since=7d", "q=M%C3%BCller+%26+Co&assignee=me&since=7d"),
        ("order=newest&queue=stuck&after=x_y", "queue=stuck&order=newest"),
        ("queue=attention&order=newest", "queue=attention&order=newest"),
        ("order=", ""),
        ("", ""),
    ],
)
def test_what_does_not_matter_to_the_list_is_not_stored(query, stored, actor):
    assert save(actor, query=query).query == stored


@pytest.mark.parametrize(
    "query, sentence",
    [
        ("colour=red", "There is no filter 'colour'"),
        ("queue=lost", "There is no queue 'lost'"),
        ("order=loudest", "There is no order 'loudest'"),
        ("status=asleep", "Status: Select a valid choice. asleep"),
        ("since=12y", "Changed: Select a valid choice"),
        ("q=a%00b", "Search: Null characters are not allowed"),
        ("q=" + "x" * 300, "Search: Ensure this value has at most 200 characters"),
        ("tag=" + "x" * 3000, "The filter is 3004 characters long; at most 3000 are allowed"),
    ],
)
def test_a_filter_that_would_not_open_is_not_saved(query, sentence, actor):
    with pytest.raises(Invalid) as refusal:
        save(actor, query=query)
    assert sentence in str(refusal.value)
    assert not SavedView.objects.exists()


@pytest.mark.parametrize(
    "address, order, other",
    [("/?queue=paused", "oldest", "newest"), ("/inbox/?assignee=me", "newest", "oldest")],
)
def test_a_view_of_a_sorted_list_is_saved_by_its_link_and_opens_in_that_order(
    actor, client, address, order, other
):
    builders.paused()
    client.force_login(actor.user)
    page = client.get(f"{address}&order={order}").content.decode()
    [link] = re.findall(r'<a href="(/views/save/[^"]+)"', page)
    form = client.get(html.unescape(link)).content.decode()
    [query] = re.findall(r'name="query" value="([^"]+)"', form)
    saved = client.post("/views/save/", {"name": "Sorted", "query": html.unescape(query)}, follow=True)
    assert saved.redirect_chain[0][1] == 302
    page = saved.content.decode()
    assert f"{other} first</a>" in page
    assert re.search(r'aria-current="page">Sorted\s', page)
    assert not re.search(r'aria-current="page">Sorted\s', client.get(address).content.decode())


def test_a_view_of_selected_sessions_keeps_all_of_them(actor, client):
    first, second, third = [builders.paused(title=f"Number {number}") for number in range(3)]
    one, other = [f"queue=all&pick={picked.pk}&pick={third.pk}" for picked in (first, second)]
    assert save(actor, "One", query=f"{one}&pick=").query == one
    save(actor, "Other", query=other)
    client.force_login(actor.user)
    page = client.get(f"/?{one}").content.decode()
    listed = [picked for picked in (first, second, third) if f"Number {picked.title[-1]}" in page]
    assert listed == [first, third]
    assert re.findall(r'aria-current="page">(One|Other)\s', page) == ["One"]


def test_as_many_sessions_as_can_be_selected_can_be_saved(actor):
    query = "&".join(["queue=waiting", *(f"pick={uuid.uuid4()}" for _ in range(MOST_PICKED))])
    assert save(actor, query=query).query == query


def test_the_inbox_of_selected_sessions_polls_for_all_of_them(actor, client):
    picked = [builders.waiting_for_approval().pk for _ in range(2)]
    client.force_login(actor.user)
    page = client.get("/inbox/", {"pick": picked}).content.decode()
    [poll] = re.findall(r'hx-get="(/inbox/[^"]+)"', page)
    assert QueryDict(html.unescape(poll).partition("?")[2]).getlist("pick") == [str(pk) for pk in picked]
    assert client.get(html.unescape(poll), headers={"HX-Request": "true"}).status_code == 204


@pytest.mark.parametrize("name", ["", "  ", "x" * 61, "a\x00b"])
def test_a_name_must_fit(name, actor):
    with pytest.raises(Invalid, match="The name"):
        save(actor, name)


def test_a_name_is_used_once_by_each_person(actor):
    save(actor)
    with pytest.raises(
        Invalid, match=r"You already have a view named “Mine”\. Choose another name, or replace it"
    ):
        save(actor, " Mine ", query="queue=done")
    assert save(builders.actor("viewer")).name == "Mine"
    assert SavedView.objects.get(owner=actor.user).query == "queue=waiting&agent=claims"


def test_a_view_can_be_replaced(actor):
    before = save(actor)
    after = save(actor, query="queue=done", shared=True, replace=True)
    assert (after.pk, after.query, after.shared) == (before.pk, "queue=done", True)
    assert save(actor, "New", replace=True).pk != before.pk


def test_who_may_delete_a_view(actor):
    other, supervisor = builders.actor("operator"), builders.actor("supervisor")
    own, shared = save(actor, "Own"), save(actor, "Shared", shared=True)
    with pytest.raises(NotFound):
        actions.delete_view(actor=other, view_id=own.pk)
    with pytest.raises(NotFound):
        actions.delete_view(actor=supervisor, view_id=own.pk)
    with pytest.raises(Forbidden, match=f"Only {actor.name} or a supervisor can delete “Shared”"):
        actions.delete_view(actor=other, view_id=shared.pk)
    users = [who.user for who in (actor, other, supervisor) if who.user]
    assert [not why_not_delete(user, shared, actor.name) for user in users] == [True, False, True]
    actions.delete_view(actor=actor, view_id=own.pk)
    actions.delete_view(actor=supervisor, view_id=shared.pk)
    assert not SavedView.objects.exists()
    with pytest.raises(NotFound):
        actions.delete_view(actor=actor, view_id=own.pk)


def test_views_are_for_people_who_may_see_sessions():
    with pytest.raises(Forbidden):
        save(builders.actor(None))
    with pytest.raises(Forbidden, match="people with an account"):
        save(builders.SYSTEM)


@pytest.mark.django_db(transaction=True)
def test_a_double_click_saves_once(actor):
    refusals = []

    def click():
        try:
            save(actor)
        except Invalid as refusal:
            refusals.append(str(refusal))
        finally:
            connection.close()

    clicks = [threading.Thread(target=click) for _ in range(4)]
    for each in clicks:
        each.start()
    for each in clicks:
        each.join()
    assert SavedView.objects.count() == 1
    assert len(refusals) == 3


@pytest.mark.parametrize(
    "name, query", [("About DE89", "queue=all"), ("Mine", "customer=DE89"), ("Mine", "tag=de89")]
)
def test_a_view_cannot_hold_what_is_hidden(settings, name, query):
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    with pytest.raises(Invalid, match="hidden on the desk"):
        actions.save_view(actor=builders.actor(), name=name, query=query)
    assert not SavedView.objects.exists()


def test_a_filter_hides_by_any_value_of_a_parameter_that_it_names_several_times():
    mask = Mask.of([], [r"DE\d+"])
    assert hides_in_query(mask, "customer=DE89&customer=Ada")
    assert not hides_in_query(mask, "customer=Bob&customer=Ada")


def test_a_view_that_was_saved_before_its_filter_was_hidden_cannot_be_opened(client, settings):
    actions.save_view(actor=builders.actor(), name="About DE89", query="customer=DE89", shared=True)
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    client.force_login(builders.user("viewer", "vera"))
    text = client.get("/views/").content.decode()
    assert "About ••••" in text
    assert "customer: ••••" in text
    assert "It filters by a hidden value, so it cannot be opened." in text
    for address in ("/?queue=all", "/views/"):
        assert "DE89" not in client.get(address).content.decode()
