"""A request that comes twice is carried out once: a form that a browser sends again, a program that tries again."""

import re
from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any
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


def start(request_id: UUID | None, agent: str = "claims", message: str = TEXT, **more: Any) -> Session:
    return actions.start(actor=builders.SYSTEM, agent=agent, message=message, request_id=request_id, **more)


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


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def note(session: Session, request_id: UUID | str | None, text: str = "Called back") -> Session:
    return actions.note(actor=builders.SYSTEM, session_id=session.pk, text=text, request_id=request_id)


def test_an_id_of_another_request_is_refused_and_changes_nothing(session: Session) -> None:
    builders.agent()
    of_message, of_start, of_note, other = uuid4(), uuid4(), uuid4(), builders.done()
    send(session, of_message)
    started = start(of_start, tags=["vip"])
    note(session, of_note)
    misuses: list[Callable[[], Session]] = [
        lambda: send(other, of_message),
        lambda: send(session, of_message, text="And my mirror?"),
        lambda: start(of_message),
        lambda: note(session, of_message, TEXT),
        lambda: start(of_start, message="And my mirror?"),
        lambda: start(of_start, tags=["vip"], customer="Ann"),
        lambda: start(of_start, tags=["vip"], state={"claim": 1}),
        lambda: start(of_start, agent="letters", tags=["vip"]),
        lambda: note(session, of_note, "Called again"),
        lambda: note(other, of_note),
    ]
    for misuse in misuses:
        with pytest.raises(Invalid, match="used for another request"):
            misuse()
    assert (inbox(session), inbox(other), inbox(started)) == ([TEXT], [], [TEXT])
    assert Session.objects.count() == 3
    assert (kinds(session).count(EventKind.NOTED), kinds(other).count(EventKind.NOTED)) == (1, 0)


def test_an_id_of_another_person_is_refused(session: Session) -> None:
    request_id = uuid4()
    note(session, request_id)
    with pytest.raises(Invalid, match="used for another request"):
        actions.note(actor=builders.actor(), session_id=session.pk, text="Called back", request_id=request_id)


@pytest.mark.parametrize("request_id", ["", "again", "7"])
def test_an_id_that_is_no_uuid_is_refused(session: Session, request_id: str) -> None:
    with pytest.raises(Invalid, match="must be a UUID"):
        note(session, request_id)
    assert EventKind.NOTED not in kinds(session)


@pytest.mark.parametrize("state", [{("a", 1): 2}, {"deep": deep(5_000)}, {"self": circular()}])
def test_what_is_no_json_is_refused_also_with_an_id(state: dict[Any, Any]) -> None:
    builders.agent()
    with pytest.raises(Invalid):
        start(uuid4(), state=state)
    assert not HandledRequest.objects.exists()


def test_a_start_that_comes_again_is_answered_also_where_the_agent_cannot_run_by_now() -> None:
    registered = builders.agent()
    request_id = uuid4()
    first = start(request_id)
    registered.problem = "ImportError"
    registered.save()
    assert start(request_id).pk == first.pk
    registered.delete()
    assert start(request_id).pk == first.pk


def test_the_ids_of_a_session_go_with_it() -> None:
    builders.agent()
    request_id = uuid4()
    started = start(request_id)
    Session.objects.filter(pk=started.pk).update(branch=None)
    Session.objects.get(pk=started.pk).delete()
    assert not HandledRequest.objects.exists()


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
def test_a_form_that_a_browser_sends_again_is_carried_out_again_only_if_the_person_says_so(
    operator: Client, session: Session, name: str
) -> None:
    address = f"/sessions/{session.pk}/{name}/"
    kind = EventKind.MESSAGE if name == "message" else EventKind.NOTED
    drawn = {"form_id": form_id_of(text_at(operator, address)), "version": session.version}
    sent = {**drawn, "csrfmiddlewaretoken": "one", "text": TEXT}
    assert operator.post(address, sent).status_code == 302
    # A page to which the browser goes back is drawn anew.
    again = {**sent, "csrfmiddlewaretoken": "another", "version": session.version + 1, "empty": ""}
    for headers in ({}, {"HX-Request": "true"}):
        refused = operator.post(address, again, headers=headers)
        page = refused.content.decode()
        assert refused.status_code == 409
        assert "This was already sent exactly as it is here" in page
        assert TEXT in page
        assert kinds(session).count(kind) == 1
    assert operator.post(address, {**again, "form_id": form_id_of(page)}).status_code == 302
    assert kinds(session).count(kind) == 2
    assert operator.post(address, {**sent, "text": "Something else"}).status_code == 302
    assert kinds(session).count(kind) == 3


def test_the_id_of_a_form_is_that_of_one_person_one_form_and_one_session(
    client: Client, operator: Client, session: Session
) -> None:
    sent = {"form_id": str(uuid4()), "text": TEXT}
    other = builders.done()
    for name, of in (("message", session), ("note", session), ("message", other)):
        assert operator.post(f"/sessions/{of.pk}/{name}/", sent).status_code == 302
    assert (inbox(session), inbox(other)) == ([TEXT], [TEXT])
    client.force_login(builders.user("supervisor", "zoe"))
    assert client.post(f"/sessions/{session.pk}/note/", sent).status_code == 302
    assert kinds(session).count(EventKind.NOTED) == 2


@pytest.mark.parametrize(
    "address", ["{}/", "{}/conversation/", "{}/message/", "{}/note/", "/start/", "/start/?agent=claims"]
)
def test_each_drawing_of_a_form_has_another_id(operator: Client, session: Session, address: str) -> None:
    builders.agent()
    address = address.format(f"/sessions/{session.pk}")
    ids = {form_id_of(text_at(operator, address)) for _ in range(2)}
    assert len({UUID(form_id) for form_id in ids}) == 2


def test_a_start_that_a_browser_sends_again_starts_one_session(operator: Client) -> None:
    builders.agent()
    form_id = form_id_of(text_at(operator, "/start/"))
    chosen = operator.post("/start/?choose", {"form_id": form_id, "agent": "claims"}).content.decode()
    assert form_id_of(chosen) == form_id
    refused = operator.post("/start/", {"form_id": form_id, "agent": "claims", "message": ""})
    assert refused.status_code == 400
    assert form_id_of(refused.content.decode()) == form_id
    sent = {"form_id": form_id, "agent": "claims", "message": TEXT}
    first = operator.post("/start/", sent)
    again = operator.post("/start/", {**sent, "arg-claim": ""})
    assert again.status_code == 409
    assert f'href="{first.headers["Location"]}">Open the session that it started' in again.content.decode()
    assert Session.objects.count() == 1
    operator.post("/start/", {**sent, "customer": "Ann"})
    assert Session.objects.count() == 2


@pytest.mark.parametrize("form_id", ["x", "", "\u0661"])
def test_a_form_with_a_damaged_id_is_carried_out(operator: Client, session: Session, form_id: str) -> None:
    assert (
        operator.post(f"/sessions/{session.pk}/message/", {"form_id": form_id, "text": TEXT}).status_code
        == 302
    )
    assert inbox(session) == [TEXT]


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
