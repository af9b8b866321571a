"""Notes and releases on the desk, the comparison of a fork with its source, and the place of a session in its queue."""

import pytest

from sessions_app.finding import neighbours, queues
from sessions_app.models import Checkpoint, Session
from tests import builders
from tests.pages import text_at

pytestmark = pytest.mark.django_db


@pytest.mark.slow
def test_a_note_is_written_and_shown(supervisor):
    session = builders.paused()
    answer = supervisor.post(f"/sessions/{session.pk}/note/", {"text": "She called twice"}, follow=True)
    assert "She called twice" in answer.content.decode()
    assert supervisor.post(f"/sessions/{session.pk}/note/", {"text": " "}).status_code == 400


def test_a_running_session_is_released(supervisor):
    session = builders.running()
    address = f"/sessions/{session.pk}/release/"
    assert address in supervisor.get(f"/sessions/{session.pk}/").content.decode()
    assert "writes is accepted, and another worker may continue" in supervisor.get(address).content.decode()
    answer = supervisor.post(address, {"version": session.version, "reason": "It hangs"})
    assert answer.status_code == 302
    session.refresh_from_db()
    assert session.status == "queued"


def test_an_operator_is_not_offered_to_release(client):
    client.force_login(builders.user("operator"))
    session = builders.running()
    assert "/release/" not in text_at(client, f"/sessions/{session.pk}/")


@pytest.mark.slow
def test_a_fork_is_compared_with_its_source(supervisor):
    fork = builders.forked()
    source = Session.objects.exclude(pk=fork.pk).get()
    address = f"/sessions/{fork.pk}/source/"
    assert address in supervisor.get(f"/sessions/{fork.pk}/").content.decode()
    last = Checkpoint.objects.filter(branch=source.branch).latest("position")
    answer = supervisor.get(address)
    assert answer["Location"] == f"/compare/?a={last.pk}&b={fork.forked_from_id}"
    assert supervisor.get(answer["Location"]).status_code == 200
    assert supervisor.get(f"/sessions/{source.pk}/source/").status_code == 404


@pytest.mark.slow
def test_the_page_says_where_the_session_stands_in_its_queue(supervisor, monkeypatch):
    three = [builders.paused(title=str(n)) for n in range(3)]
    order = [row.pk for row in queues.read_page("paused", now=three[0].created_at).sessions]
    for place, pk in enumerate(order, start=1):
        assert f"{place} of 3 sessions<" in supervisor.get(f"/sessions/{pk}/?queue=paused").content.decode()
    monkeypatch.setattr(neighbours, "COUNTED", 1)
    assert "1 of 2+ sessions<" in supervisor.get(f"/sessions/{order[0]}/?queue=paused").content.decode()


def test_what_is_assigned_to_oneself_is_one_click_away(supervisor):
    assert "?queue=all&amp;assignee=me" in supervisor.get("/?queue=all").content.decode()
    assert '/inbox/?assignee=me"' in supervisor.get("/inbox/").content.decode()
