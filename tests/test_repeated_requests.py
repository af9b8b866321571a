"""A request that comes twice is carried out once: a form that a browser sends again, a program that tries again."""

import re
from collections.abc import Callable
from threading import Barrier, Thread
from uuid import UUID, uuid4

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import close_old_connections, connection
from django.test import Client

from sessions_app import actions
from sessions_app.access.errors import Invalid, Moved, Refused
from sessions_app.models import EventKind, HandledRequest, Session
from tests import builders
from tests.pages import text_at

pytestmark = pytest.mark.django_db

TEXT = "Is my windscreen covered?"


@pytest.fixture
def session() -> Session:
    return builders.done()


def inbox(session: Session) -> list[str]:
    return list(session.inbox.values_list("text", flat=True))


def kinds(session: Session) -> list[str]:
    return list(session.events.order_by("position").values_list("kind", flat=True))


def start(request_id: UUID | None, agent: str = "claims", message: str = TEXT) -> Session:
    return actions.start(actor=builders.SYSTEM, agent=agent, message=message, request_id=request_id)


def send(session: Session, request_id: UUID | None, text: str = TEXT, version: int | None = None) -> Session:
    return actions.send_message(
        actor=builders.SYSTEM,
        session_id=session.pk,
        text=text,
        request_id=request_id,
        expected_version=version,
    )


def test_a_start_that_comes_again_gives_the_session_that_it_started() -> None:
    builders.agent()
    request_id = uuid4()
    first = start(request_id)
    assert start(request_id).pk == first.pk
    assert list(Session.objects.values_list("pk", flat=True)) == [first.pk]
    assert inbox(first) == [TEXT]
    assert kinds(first) == ["started"]


def test_a_message_that_comes_again_is_sent_once(session: Session) -> None:
    request_id = uuid4()
    version = session.version
    assert send(session, request_id, version=version).version == version + 1
    again = send(session, request_id, version=version)
    assert again.version == version + 1
    assert inbox(session) == [TEXT]
    assert kinds(session).count(EventKind.MESSAGE) == 1


def test_a_note_that_comes_again_is_added_once(session: Session) -> None:
    request_id = uuid4()
    for _ in range(2):
        actions.note(actor=builders.SYSTEM, session_id=session.pk, text="Called back", request_id=request_id)
    assert kinds(session).count(EventKind.NOTED) == 1


def test_requests_without_an_id_or_with_different_ones_are_each_carried_out(session: Session) -> None:
    for request_id in (None, None, uuid4(), uuid4()):
        send(session, request_id)
    assert inbox(session) == [TEXT] * 4


def test_a_refused_request_may_come_again(session: Session) -> None:
    request_id = uuid4()
    builders.agent("broken", problem="ImportError")
    with pytest.raises(Refused):
        start(request_id, agent="broken")
    with pytest.raises(Moved):
        send(session, request_id, version=session.version - 1)
    assert not HandledRequest.objects.exists()
    send(session, request_id)
    assert inbox(session) == [TEXT]


def test_an_id_of_another_request_is_refused_and_changes_nothing(session: Session) -> None:
    request_id, other = uuid4(), builders.done()
    send(session, request_id)
    with pytest.raises(Invalid, match="used for another request"):
        send(other, request_id)
    with pytest.raises(Invalid, match="used for another request"):
        start(request_id)
    with pytest.raises(Invalid, match="used for another request"):
        actions.note(actor=builders.SYSTEM, session_id=session.pk, text="Called back", request_id=request_id)
    assert (inbox(session), inbox(other), Session.objects.count()) == ([TEXT], [], 2)
    assert EventKind.NOTED not in kinds(session)


def at_once(do: Callable[[], object]) -> list[object]:
    """What each of four threads got that did it together."""
    results: list[object] = []
    together = Barrier(4)

    def run() -> None:
        close_old_connections()
        together.wait()
        try:
            results.append(do())
        except Exception as error:
            results.append(error)
        finally:
            connection.close()

    threads = [Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.django_db(transaction=True)
def test_requests_that_come_at_once_are_carried_out_once() -> None:
    session = builders.done()
    request_id, another = uuid4(), uuid4()
    assert at_once(lambda: send(session, request_id).pk) == [session.pk] * 4
    assert inbox(session) == [TEXT]
    assert len(set(at_once(lambda: start(another).pk))) == 1
    assert Session.objects.count() == 2


def form_id_of(page: str) -> str:
    [form_id] = re.findall(r'name="form_id" value="([^"]+)"', page)
    return str(form_id)


@pytest.mark.parametrize("name", ["message", "note"])
def test_a_form_that_a_browser_sends_again_is_carried_out_once(
    operator: Client, session: Session, name: str
) -> None:
    address = f"/sessions/{session.pk}/{name}/"
    form_id = form_id_of(text_at(operator, address))
    sent = {"form_id": form_id, "text": TEXT}
    first = operator.post(address, sent)
    assert first.status_code == 302
    assert operator.post(address, sent).headers["Location"] == first.headers["Location"]
    kind = EventKind.MESSAGE if name == "message" else EventKind.NOTED
    assert kinds(session).count(kind) == 1
    operator.post(address, {**sent, "text": "Something else"})
    assert kinds(session).count(kind) == 2
    operator.post(address, {**sent, "form_id": str(uuid4())})
    assert kinds(session).count(kind) == 3


@pytest.mark.parametrize("tab", ["", "conversation/"])
def test_each_drawing_of_the_message_form_of_a_page_has_another_id(
    operator: Client, session: Session, tab: str
) -> None:
    address = f"/sessions/{session.pk}/{tab}"
    ids = {form_id_of(text_at(operator, address)) for _ in range(2)}
    assert len({UUID(form_id) for form_id in ids}) == 2


def test_a_start_that_a_browser_sends_again_starts_one_session(operator: Client) -> None:
    builders.agent()
    form_id = form_id_of(text_at(operator, "/start/"))
    refused = operator.post("/start/", {"form_id": form_id, "agent": "claims", "message": ""})
    assert refused.status_code == 400
    assert form_id in refused.content.decode()
    sent = {"form_id": form_id, "agent": "claims", "message": TEXT}
    first = operator.post("/start/", sent)
    assert operator.post("/start/", sent).headers["Location"] == first.headers["Location"]
    assert Session.objects.count() == 1
    operator.post("/start/", {**sent, "customer": "Ann"})
    assert Session.objects.count() == 2


def test_a_form_with_a_broken_id_says_so_and_keeps_what_was_typed(operator: Client, session: Session) -> None:
    page = operator.post(f"/sessions/{session.pk}/message/", {"form_id": "x", "text": TEXT})
    assert page.status_code == 400
    assert "The form is incomplete. Open it again." in page.content.decode()
    assert TEXT in page.content.decode()
    assert inbox(session) == []


def test_a_command_that_comes_again_with_its_request_id_is_carried_out_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    builders.agent()
    request_id = str(uuid4())
    for _ in range(2):
        call_command("agent", "start", "claims", TEXT, "--request-id", request_id)
    first, again = capsys.readouterr().out.split()
    assert first == again
    for _ in range(2):
        call_command("agent", "message", first, "And my mirror?", "--request-id", str(UUID(int=7)))
    assert inbox(Session.objects.get()) == [TEXT, "And my mirror?"]
    with pytest.raises(CommandError, match="invalid UUID"):
        call_command("agent", "start", "claims", TEXT, "--request-id", "again")
