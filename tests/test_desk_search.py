"""Search on the desk: sessions by the text of their history, with the matches; and the matches in one session."""

import re
from uuid import uuid4

import pytest
from django.test import Client

from sessions_app import actions
from sessions_app.access.masking import Mask
from sessions_app.finding import hits, search_index
from sessions_app.models import Checkpoint, Session
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(client: Client) -> Client:
    client.force_login(builders.user("viewer"))
    return client


def indexed() -> None:
    while search_index.update():
        pass


def letters(text: str = "Dear Ada, the roof is covered", **fields) -> Session:
    history = builders.looked_up(**fields)
    history.reply(calls=[("send_letter", {"text": text})])
    history.finish(history.calls[-1], "sent by post")
    history.checkpoint("step")
    session = history.rest("paused")
    indexed()
    return session


def page(desk: Client, address: str, **query: str) -> str:
    answer = desk.get(address, query)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", answer.content.decode())


@pytest.mark.slow
def test_a_search_shows_the_matches_and_links_to_them(desk):
    session = letters(title="Roof")
    builders.done(title="Other")
    text = page(desk, "/", q="roof covered")
    assert ">Roof</a>" in text
    assert ">Other</a>" not in text
    assert "the <mark>roof</mark> is <mark>covered</mark>" in text
    call = builders.branch_of(session).toolcalls.get(tool="send_letter")
    link = f"/sessions/{session.pk}/?at={call.position}&amp;queue=all#c{call.position}"
    assert f'href="{link}"' in text
    assert f'id="c{call.position}"' in page(desk, link.partition("#")[0].replace("&amp;", "&"))


@pytest.mark.slow
def test_titles_customers_and_ids_are_still_found(desk):
    session = letters(title="Hail damage", customer="Grace Hopper")
    for text in ("hail", "grace", str(session.pk)[:20]):
        assert ">Hail damage</a>" in page(desk, "/", q=text)


@pytest.mark.slow
def test_a_search_in_a_queue_stays_in_it(desk):
    letters(title="Roof")
    assert ">Roof</a>" in page(desk, "/", q="roof", queue="paused")
    assert "No session matches." in page(desk, "/", q="roof", queue="done")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["nothing-like-this", "'; DROP", '"', "*", "(", "a" * 200])
def test_any_text_may_be_searched_for(desk, text):
    letters(title="Roof")
    assert "No session matches." in page(desk, "/", q=text)
    assert "No matches in this session." in page(desk, f"/sessions/{Session.objects.get().pk}/find/", q=text)


def test_a_text_that_cannot_be_searched_for_shows_an_error(desk):
    letters(title="Roof")
    assert desk.get("/", {"q": "\x00"}).status_code == 400
    assert "No matches in this session." not in page(
        desk, f"/sessions/{Session.objects.get().pk}/find/", q=" "
    )


def test_discarded_steps_are_found_and_linked_to(desk):
    session = letters(title="Roof")
    start = Checkpoint.objects.filter(branch=session.branch).earliest("position")
    actions.rewind(actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="again")
    text = page(desk, "/", q="roof", queue="all")
    assert re.search(rf'href="/sessions/{session.pk}/branches/1/\?at=(\d+)(&amp;queue=all)?#c\1"', text)
    assert "in discarded history" in text


def test_a_fork_is_found_by_what_it_shares(desk):
    session = letters(title="Roof")
    last = Checkpoint.objects.filter(branch=session.branch).latest("position")
    fork = actions.fork(
        actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=last.pk, title="Forked", reason="try"
    )
    text = page(desk, "/", q="roof")
    assert ">Forked</a>" in text
    call = builders.branch_of(session).toolcalls.get(tool="send_letter")
    assert f"/sessions/{fork.pk}/?at={call.position}" in text
    assert "in discarded history" not in text


@pytest.mark.slow
def test_each_session_shows_its_newest_places_only_and_leads_to_all(desk):
    history = builders.asked(title="Roof")
    for number in range(5):
        history.user(f"The roof leaks, for the {number}. time")
    session = history.rest("paused")
    indexed()
    text = page(desk, "/", q="roof leaks")
    assert text.count("<mark>roof</mark>") == 2
    assert "for the 4. time" in text
    assert "for the 2. time" not in text
    link = f"/sessions/{session.pk}/find/?q=roof%20leaks&amp;queue=all"
    assert f'href="{link}"' in text
    every = page(desk, link.replace("&amp;", "&"))
    assert every.count("<mark>roof</mark>") == 5
    assert every.index("for the 4. time") < every.index("for the 0. time")


@pytest.mark.slow
def test_a_page_of_a_search_has_25_sessions_and_leads_to_the_others(desk):
    for number in range(27):
        letters(f"The roof of house {number}", title=f"House {number}")
    first = page(desk, "/", q="roof")
    titles = re.findall(r">(House \d+)</a>", first)
    assert len(titles) == 25
    following = re.search(r'href="(/\?[^"]*after=[^"]+)"', first)
    assert following is not None
    rest = page(desk, following[1].replace("&amp;", "&"))
    assert {*titles, *re.findall(r">(House \d+)</a>", rest)} == {f"House {number}" for number in range(27)}


@pytest.mark.slow
def test_a_search_is_as_cheap_for_many_sessions_as_for_few(desk, django_assert_num_queries):
    for sessions in (2, 30):
        for number in range(sessions):
            letters(f"The roof of house {number}")
        with django_assert_num_queries(17):
            desk.get("/", {"q": "roof"})
    session = Session.objects.first()
    assert session is not None
    with django_assert_num_queries(10):
        desk.get(f"/sessions/{session.pk}/find/", {"q": "roof"})


def test_finding_needs_a_login_a_role_and_a_session(client):
    session = letters()
    address = f"/sessions/{session.pk}/find/?q=roof"
    assert client.get(address)["Location"].startswith("/login/")
    client.force_login(builders.user(None))
    assert client.get(address).status_code == 403
    client.force_login(builders.user("viewer"))
    assert client.get(address).status_code == 200
    assert client.post(address).status_code == 405
    assert client.get(f"/sessions/{uuid4()}/find/?q=roof").status_code == 404


def test_what_is_hidden_is_not_shown_as_a_place(desk, settings):
    settings.AGENTSTATE_MASK_PATTERNS = [r"IBAN \w+"]
    session = letters("Pay to IBAN DE99 for the roof")
    text = page(desk, "/", q="roof")
    assert "DE99" not in text
    assert "••••" in text
    [hit] = hits.in_session(session, "roof", mask=Mask.configured(), whole=True)
    assert "DE99" not in "".join(part for part, _ in hit.parts)
