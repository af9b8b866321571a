"""Parts of pages that are drawn once in a process for the same values."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID

import pytest
from django.db.models import F
from django.http import QueryDict
from django.template import Context, Template
from django.test import Client
from django.urls import set_script_prefix
from django.utils import timezone
from django.utils.safestring import mark_safe

from sessions_app.desk.pages.session.calls import CallFacts
from sessions_app.desk.pages.session.diagram import of_totals
from sessions_app.finding.filters import SessionFilter
from sessions_app.models import Approval, SavedView, Session, ToolCall
from sessions_app.templatetags import drawn as tag
from tests import builders

PART = "{% load drawn %}{% drawn 'session/_call_facts.html' session=session facts=facts %}"
ONE, TWO = UUID(int=1), UUID(int=2)
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
THAT_DAY = NOON.date()


def draw(session: UUID, worker: str = "w1", *, read_on: date = THAT_DAY) -> str:
    facts = CallFacts(7, "call-7", "key-7", 1, NOON, NOON, worker, None, "running", read_on)
    return Template(PART).render(Context({"session": session, "facts": facts}))


@pytest.fixture(autouse=True)
def nothing_drawn():
    tag.parts.clear()


def test_a_part_is_drawn_once_for_the_same_values():
    assert draw(ONE) == draw(ONE)
    assert tag.parts.misses == 1


def test_a_part_is_drawn_anew_for_other_values():
    assert f'href="/sessions/{ONE}/calls/7/"' in draw(ONE)
    assert f'href="/sessions/{TWO}/calls/7/"' in draw(TWO)
    assert "<b>w2</b>" in draw(ONE, "w2")
    assert "<b>w2</b>" not in draw(ONE)


def test_a_time_has_its_date_from_the_next_day_on(monkeypatch: pytest.MonkeyPatch):
    passed = [NOON]
    monkeypatch.setattr("django.utils.timezone.now", lambda: passed[-1])
    assert ">12:00:00<" in draw(ONE)
    passed.append(NOON + timedelta(days=1))
    assert ">04 May 12:00<" in draw(ONE, read_on=passed[-1].date())


def test_values_in_a_part_are_escaped():
    text = draw(ONE, "<b>&")
    assert "<b><b>" not in text
    assert "&lt;b&gt;&amp;" in text


def test_no_more_parts_are_kept_than_the_limit():
    kept = tag.Parts(1000, 99)
    for number in range(30):
        kept.draw("session/_diagram_lines.html", {"name": str(number), "lines": ()})
        assert 0 < kept.characters <= 1000
    kept.draw("session/_diagram_lines.html", {"name": "29", "lines": ()})
    assert kept.misses == 30
    kept.draw("session/_diagram_lines.html", {"name": "0", "lines": ()})
    assert kept.misses == 31


def test_no_more_parts_are_kept_than_the_limit_however_short_they_are():
    kept = tag.Parts(8_000_000, 3)
    for name in ("a", "b", "c", "a", "d", "a", "b"):
        kept.draw("session/_diagram_lines.html", {"name": name, "lines": ()})
    assert kept.misses == 5


def test_a_part_that_is_larger_than_the_limit_is_drawn_and_neither_kept_nor_takes_the_place_of_others():
    kept = tag.Parts(2_000, 99)
    kept.draw("session/_diagram_lines.html", {"name": "small", "lines": ()})
    for _ in range(2):
        assert "<defs" in kept.draw("session/_diagram_lines.html", {"name": "a" * 2_000, "lines": ()})
    kept.draw("session/_diagram_lines.html", {"name": "small", "lines": ()})
    assert kept.misses == 3
    assert 0 < kept.characters < 2_000


def test_the_values_by_which_a_part_is_found_count_too_where_it_does_not_show_them():
    kept = tag.Parts(100_000, 99)
    for number in range(20):
        kept.draw("session/_diagram_lines.html", {"name": "a", "lines": (), "unused": str(number) * 10_000})
        assert kept.characters <= 100_000
    assert kept.misses == 20
    kept.draw("session/_diagram_lines.html", {"name": "a", "lines": (), "unused": "0" * 10_000})
    assert kept.misses == 21


def test_addresses_in_a_part_are_those_of_the_prefix_of_the_request():
    values = {
        "session": UUID(int=1),
        "checkpoint": 2,
        "queue": "",
        "discarded": "",
        "no_rewind": "",
        "no_fork": "",
    }
    try:
        set_script_prefix("/desk/")
        under_a_prefix = tag.parts.draw("session/_step_links.html", values)
    finally:
        set_script_prefix("/")
    assert 'href="/desk/sessions/' in under_a_prefix
    assert 'href="/sessions/' in tag.parts.draw("session/_step_links.html", values)


def test_a_text_that_is_safe_and_one_that_is_not_are_drawn_by_themselves():
    kept = tag.Parts(1000, 99)
    first = kept.draw("session/_diagram_lines.html", {"name": mark_safe("<b>"), "lines": ()})
    assert kept.draw("session/_diagram_lines.html", {"name": "<b>", "lines": ()}) != first


def test_a_picture_draws_every_edge_and_marks_those_that_were_taken():
    picture = of_totals({"edges": {"idle>planning": 1, "planning>done": 2}}).pictures[0]
    text = tag.parts.draw("session/_diagram_lines.html", {"name": picture.name, "lines": picture.lines})
    assert text.count('class="edge"') == len(picture.edges) - 2
    assert text.count('class="edge taken"') == 2
    for edge in picture.edges:
        assert f'd="{edge.path}"' in text


@pytest.mark.django_db
def test_a_field_looks_as_django_draws_it_and_is_drawn_once_for_the_same_choices_and_value():
    user = builders.user("operator", "ann")
    builders.agent("claims", title="Claims")

    def fields(**typed: str) -> list[str]:
        filled = SessionFilter(QueryDict(urlencode(typed)), user=user)
        drawn = [str(tag.drawn_field(field)) for field in filled]
        assert drawn == [str(field) for field in filled]
        return drawn

    assert 'value="claims">' in "".join(fields(agent="nobody"))
    first = tag.parts.misses
    assert first == 11
    assert fields(q="damage", tag="vip") != fields(q="storm")
    assert tag.parts.misses == first + 1 + 2 + 1  # no agent is chosen; both texts; another text
    assert fields(q="storm") == fields(q="storm")
    assert tag.parts.misses == first + 4
    assert 'value="&lt;b&gt;"' in "".join(fields(customer="<b>"))
    assert fields(pick="1")[-1] != fields(pick="2")[-1] != fields()[-1]
    assert '<option value="claims" selected>' in "".join(fields(agent="claims"))
    assert 'aria-invalid="true"' in "".join(fields(since="never"))
    builders.agent("letters", title="<Letters>")
    builders.user("operator", "zoe")
    drawn = "".join(fields())
    assert "&lt;Letters&gt;" in drawn
    assert '<option value="zoe">' in drawn


@pytest.mark.django_db
def test_with_the_next_step_only_the_parts_that_changed_are_drawn(client: Client):
    client.force_login(builders.user("operator"))
    history = builders.asked()
    for number in range(3):
        history.lookup(f"POL-{number}")
    history.rest("paused")
    client.get(f"/sessions/{history.session.pk}/")
    first = tag.parts.misses
    history.lookup("POL-3")
    history.rest("paused")
    client.get(f"/sessions/{history.session.pk}/")
    assert 0 < tag.parts.misses - first < first / 2


@pytest.mark.django_db
def test_a_list_with_news_draws_only_the_rows_that_have_changed(client: Client):
    client.force_login(builders.user("operator"))
    yesterday = timezone.now() - timedelta(days=3)
    sessions = [builders.paused(title=f"Session {number}") for number in range(5)]
    Session.objects.update(updated_at=yesterday, phase_since=yesterday)
    first = client.get("/?queue=paused").content.decode()
    first_misses = tag.parts.misses
    assert first_misses == 5 + 11 + 1  # the rows, the filter's fields, and no saved views
    Session.objects.filter(pk=sessions[2].pk).update(customer="O'Neil & <b>")
    second = client.get("/?queue=paused").content.decode()
    assert tag.parts.misses == first_misses + 1
    assert "O&#x27;Neil &amp; &lt;b&gt;" in second
    assert "O&#x27;Neil" not in first


@pytest.mark.django_db
def test_chips_of_views_are_drawn_once_until_one_changes_or_another_one_is_open(client: Client):
    anna, ben = builders.user("operator", "anna"), builders.user("supervisor", "ben")
    SavedView.objects.create(owner=anna, name="<Own>", query="queue=paused")
    SavedView.objects.create(owner=ben, name="Shared", query="queue=done", shared=True)
    own = '<a href="/?queue=paused" aria-current="page">&lt;Own&gt;'

    def page(address: str) -> tuple[str, int]:
        before = tag.parts.misses
        return client.get(address).content.decode(), tag.parts.misses - before

    client.force_login(anna)
    page("/?queue=paused")
    text, drawn = page("/?queue=paused")
    assert drawn == 0
    assert own in text
    assert '<span class="soft">ben</span>' in text
    assert text.count('<span class="soft">anna</span>') == 1  # in the bar
    text, drawn = page("/?queue=done")
    assert drawn == 1
    assert own not in text
    SavedView.objects.filter(owner=ben).update(name="Renamed")
    assert "Renamed" in page("/?queue=done")[0]
    client.force_login(ben)
    assert "&lt;Own&gt;" not in page("/?queue=done")[0]


@pytest.mark.django_db
def test_a_stuck_line_of_the_inbox_is_drawn_once_for_who_may_do_the_same_about_it(client: Client):
    session = builders.lost(title="<Lost>")
    yesterday = timezone.now() - timedelta(days=3)
    Session.objects.filter(pk=session.pk).update(updated_at=yesterday, lease_expires_at=yesterday)
    dialog = f"/sessions/{session.pk}/release/"
    lines = []
    for role in ("supervisor", "viewer", "supervisor"):
        client.force_login(builders.user(role))
        text = client.get("/inbox/").content.decode()
        lines.append((dialog in text, "&lt;Lost&gt;</h2>" in text))
    assert lines == [(True, True), (False, True), (True, True)]
    before = tag.parts.misses
    client.get("/inbox/")
    assert tag.parts.misses == before
    Session.objects.filter(pk=session.pk).update(title="Renamed")
    assert ">Renamed</h2>" in client.get("/inbox/").content.decode()
    assert tag.parts.misses == before + 1


@pytest.mark.django_db
def test_a_line_of_failures_and_a_stuck_one_offer_each_person_what_they_may_do(client: Client):
    lost = builders.lost()
    failures = [builders.retries_used_up() for _ in range(2)]
    Session.objects.update(updated_at=timezone.now() - timedelta(days=3))
    cause = builders.fresh(failures[0]).failure
    offered = []
    for role in ("operator", "viewer", "operator"):
        client.force_login(builders.user(role))
        text = client.get("/inbox/").content.decode()
        wanted = (
            f"failure={cause}&amp;kind=resume",
            f"failure={cause}&amp;kind=assign",
            f"/{lost.pk}/assign/",
        )
        offered.append([address in text for address in wanted])
    assert offered == [[True] * 3, [False] * 3, [True] * 3]


@pytest.mark.django_db
def test_a_line_of_failures_is_drawn_once_and_for_each_filter_opens_what_that_leaves(client: Client):
    client.force_login(builders.user("operator"))
    yesterday = timezone.now() - timedelta(days=3)
    for _ in range(2):
        builders.failed()
    Session.objects.update(updated_at=yesterday)

    def page(address: str) -> tuple[str, int]:
        before = tag.parts.misses
        return client.get(address).content.decode(), tag.parts.misses - before

    page("/inbox/?kind=failed")
    text, drawn = page("/inbox/?kind=failed")
    assert drawn == 0
    assert 'href="/?queue=all&amp;failure=' in text
    text, drawn = page("/inbox/?kind=failed&agent=claims")
    assert drawn == 1 + 1  # the line, and no saved views, which a filtered inbox offers to save
    assert 'href="/?queue=all&amp;agent=claims&amp;failure=' in text
    builders.failed()
    text, _ = page("/inbox/?kind=failed")
    assert "3 sessions:" in text


@pytest.mark.django_db
def test_a_row_keeps_no_more_of_a_reason_than_it_shows(client: Client):
    client.force_login(builders.user("operator"))
    session = builders.paused()
    Session.objects.filter(pk=session.pk).update(why="The customer " + "x" * 99_000)
    row = client.get("/?queue=paused").context["rows"][0]
    assert len(row.why) == 110
    assert row.why.endswith("x…")


@pytest.mark.django_db
def test_who_may_not_take_a_session_has_rows_of_their_own(client: Client):
    builders.paused()
    offered = []
    for role in ("operator", "viewer", "operator"):
        client.force_login(builders.user(role))
        offered.append("formaction=" in client.get("/?queue=paused").content.decode())
    assert offered == [True, False, True]


@pytest.mark.django_db
def test_who_may_not_rewind_or_fork_has_links_of_steps_of_their_own(client: Client):
    history = builders.asked()
    history.lookup("POL-1")
    history.rest("paused")
    offered = []
    for role in ("operator", "viewer", "operator"):
        client.force_login(builders.user(role))
        page = client.get(f"/sessions/{history.session.pk}/").content.decode()
        offered.append(("rewind to here" in page, "fork from here" in page, ">state</a>" in page))
    assert offered == [(True, True, True), (False, False, True), (True, True, True)]


@pytest.mark.django_db
def test_what_is_hidden_from_now_on_is_not_in_a_row_that_was_drawn_before(client: Client, settings):
    client.force_login(builders.user("operator"))
    builders.paused(title="About Ada")
    assert "About Ada" in client.get("/?queue=paused").content.decode()
    settings.AGENTSTATE_MASK_PATTERNS = ["Ada"]
    assert "About Ada" not in client.get("/?queue=paused").content.decode()


@pytest.mark.django_db
def test_the_ages_in_a_list_are_those_of_the_present(client: Client, monkeypatch: pytest.MonkeyPatch):
    client.force_login(builders.user("operator"))
    session = builders.paused()
    Session.objects.filter(pk=session.pk).update(updated_at=timezone.now() - timedelta(minutes=14))
    assert ">14 min</time>" in client.get("/?queue=paused").content.decode()
    later = timezone.now() + timedelta(minutes=6)
    monkeypatch.setattr(timezone, "now", lambda: later)
    assert ">20 min</time>" in client.get("/?queue=paused").content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("build", [builders.waiting_for_approval, builders.in_doubt])
def test_the_card_of_a_call_leads_back_to_the_inbox_it_stands_in_and_is_drawn_once(
    client: Client, build: Callable[..., Session]
) -> None:
    client.force_login(builders.user("operator"))
    build(title="Storm damage", customer="O'Neil & <b>")
    first = client.get("/inbox/?agent=claims").content.decode()
    number = tag.parts.misses
    assert client.get("/inbox/?agent=claims").content.decode().count("agent%3Dclaims") > 0
    assert tag.parts.misses == number
    assert "agent%3Dclaims" in first
    assert "O&#x27;Neil &amp; &lt;b&gt;" in first
    second = client.get("/inbox/?status=waiting").content.decode()
    assert "agent%3Dclaims" not in second
    assert "status%3Dwaiting" in second


@pytest.mark.django_db
@pytest.mark.parametrize("build", [builders.waiting_for_approval, builders.in_doubt])
def test_who_may_not_decide_a_call_has_a_card_of_their_own(
    client: Client, build: Callable[..., Session]
) -> None:
    build()
    offered = []
    for role in ("operator", "viewer", "operator"):
        client.force_login(builders.user(role))
        page = client.get("/inbox/").content.decode()
        offered.append(("/reject/?" in page or "/decide/?" in page, 'name="fingerprint"' in page))
    is_approval = build is builders.waiting_for_approval
    assert offered == [(True, is_approval), (False, False), (True, is_approval)]


@pytest.mark.django_db
def test_the_card_of_a_call_shows_what_has_changed_since_it_was_drawn(client: Client) -> None:
    client.force_login(builders.user("operator"))
    session = builders.waiting_for_approval(title="Storm damage")
    before = client.get("/inbox/").content.decode()
    Session.objects.filter(pk=session.pk).update(version=F("version") + 7)
    later = client.get("/inbox/").content.decode()
    versions = [re.findall(r'name="version" value="(\d+)"', page) for page in (before, later)]
    assert versions == [[str(session.version)], [str(session.version + 7)]]
    Session.objects.filter(pk=session.pk).update(title="Water damage")
    renamed = client.get("/inbox/").content.decode()
    assert "Storm damage" in later
    assert "Storm damage" not in renamed
    Approval.objects.update(arguments={"claim": "CLM-1042", "amount": 77_000})
    ToolCall.objects.filter(status="planned").update(arguments={"claim": "CLM-1042", "amount": 77_000})
    assert 'value="77000"' not in renamed
    assert 'value="77000"' in client.get("/inbox/").content.decode()
