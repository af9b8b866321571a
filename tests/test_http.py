"""What holds for every address of the desk and the admin: private pages, HTTP methods, and bodies that are refused."""

import io
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from sessions_app.action_list import ACTIONS
from sessions_app.desk.urls import urlpatterns
from sessions_app.models import BulkAction, ModelCall, SavedView, Session, ToolCall
from tests import builders

pytestmark = pytest.mark.django_db

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE")


@pytest.fixture
def samples(db: None) -> dict[str, list[Any]]:
    """Values for the arguments that addresses take, by the arguments' names."""
    session = builders.waiting_for_approval()
    supervisor = builders.user("supervisor", "sue")
    User.objects.filter(pk=supervisor.pk).update(is_superuser=True)
    view = SavedView.objects.create(owner=supervisor, name="Mine", query="status=running")
    bulk = BulkAction.objects.create(kind="pause", reason="x", actor=supervisor, actor_name="sue")
    return {
        "session_id": [session.pk],
        "call_id": [ToolCall.objects.filter(branch__session=session).latest("pk").pk],
        "model_call_id": [ModelCall.objects.filter(branch__session=session).latest("pk").pk],
        "branch_number": [1],
        "bulk_id": [bulk.pk],
        "view_id": [view.pk],
        "key": ["claims"],
        "name": [*ACTIONS, "no-such-action"],
    }


def of_the_desk(samples: dict[str, list[Any]]) -> Iterator[str]:
    """Each address of the desk, from its URL table: a new one comes by itself, with samples of its arguments."""
    for pattern in urlpatterns:
        names = list(pattern.pattern.converters)
        for values in product(*(samples[name] for name in names)):
            yield reverse(pattern.name, kwargs=dict(zip(names, values, strict=True)))


def of_the_admin() -> Iterator[str]:
    yield from (reverse(f"admin:{name}") for name in ("index", "login", "password_change", "jsi18n"))
    yield from (reverse("admin:app_list", args=[label]) for label in ("auth", "sessions_app"))
    for model in admin.site._registry:
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        yield from (reverse(f"{name}_{view}") for view in ("changelist", "add"))
        row = model._default_manager.first()
        pk = 1 if row is None else row.pk
        yield from (reverse(f"{name}_{view}", args=[pk]) for view in ("change", "history", "delete"))


@pytest.fixture
def staff(samples: dict[str, list[Any]], client: Client) -> Client:
    client.force_login(User.objects.get(username="sue"))
    return client


def tokens(answer: Any) -> set[str]:
    return {token.strip() for token in answer["Cache-Control"].split(",")}


@pytest.mark.slow
def test_no_cache_keeps_a_page(samples, staff):
    there = {"/sessions/": 0, "/admin/": 0}
    for address in (*of_the_desk(samples), *of_the_admin(), "/login/", "/no/such/page/"):
        for client, method in ((staff, "GET"), (Client(), "GET"), (Client(), "POST")):
            answer = client.generic(method, address)
            assert answer.status_code < 500, address
            assert {"private", "no-store"} <= tokens(answer), f"{method} {address}: {answer['Cache-Control']}"
            assert "public" not in tokens(answer)
            for part in there:
                there[part] += answer.status_code == 200 and address.startswith(part)
    assert min(there.values()) > 20, there
    assert staff.get("/")["Cache-Control"] == "private, no-store"


def test_static_files_may_be_cached(client):
    answer = client.get("/static/desk/desk.css")
    answer.close()
    assert answer.status_code == 200
    assert "no-store" not in answer["Cache-Control"]
    assert "public" in tokens(answer)


@pytest.mark.slow
def test_head_is_answered_like_get_and_without_a_body(samples, staff):
    there = 0
    for address in (*of_the_desk(samples), "/login/"):
        for client in (Client(), staff):
            get, head = client.get(address), client.head(address)
            assert head.status_code == get.status_code, address
            assert head.content == b""
            same = ("Content-Type", "Location", "Allow", "Cache-Control")
            assert [head.get(field) for field in same] == [get.get(field) for field in same], address
            there += get.status_code == 200 and address.startswith("/sessions/")
    assert there > 20


@pytest.mark.slow
def test_options_names_exactly_the_methods_that_an_address_takes(samples, staff):
    for address in of_the_desk(samples):
        answer = staff.options(address)
        assert (answer.status_code, answer.content) == (200, b""), address
        allowed = {method.strip() for method in answer["Allow"].split(",")}
        assert {"OPTIONS"} < allowed
        assert ("GET" in allowed) is ("HEAD" in allowed)
        for method in set(METHODS) - allowed:
            refused = staff.generic(method, address)
            assert refused.status_code == 405, f"{method} {address}"
            assert {name.strip() for name in refused["Allow"].split(",")} == allowed
        if "GET" in allowed:
            assert staff.get(address).status_code != 405


def test_a_live_page_takes_nothing_but_get(staff, samples):
    text = staff.get(f"/sessions/{samples['session_id'][0]}/").content.decode()
    found = re.search(r'id="sentinel"\s+hx-get="([^"]+)"', text)
    assert found is not None
    address = found[1].replace("&amp;", "&")
    assert staff.get(address).status_code == staff.head(address).status_code == 204
    assert staff.options(address)["Allow"] == "GET, HEAD, OPTIONS"
    assert staff.post(address).status_code == 405


class Body(io.RawIOBase):
    """A request's body that counts how much of it was read."""

    def __init__(self, content: bytes) -> None:
        self.content, self.count = io.BytesIO(content), 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        data = self.content.read(-1 if size is None else size)
        self.count += len(data)
        return data


def send(client: Client, address: str, content: bytes, content_type: str) -> tuple[Any, int]:
    body = Body(content)
    environ: dict[str, Any] = {
        "wsgi.input": body,
        "CONTENT_LENGTH": str(len(content)),
        "CONTENT_TYPE": content_type,
    }
    return client.generic("POST", address, **environ), body.count


def multipart(size: int) -> bytes:
    return (
        b'--XX\r\nContent-Disposition: form-data; name="reason"\r\n\r\nBecause\r\n'
        b'--XX\r\nContent-Disposition: form-data; name="f"; filename="a.bin"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n" + b"x" * size + b"\r\n--XX--\r\n"
    )


@pytest.mark.parametrize("door", ["/login/", "/start/", "/admin/login/"])
def test_an_upload_is_refused_before_it_is_read(staff, door):
    answer, count = send(staff, door, multipart(2_000_000), "multipart/form-data; boundary=XX")
    assert answer.status_code == 400
    assert "Files cannot be uploaded here" in answer.content.decode()
    assert 0 < count < 200_000
    assert {"private", "no-store"} <= tokens(answer)


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=XX", "application/x-www-form-urlencoded"])
def test_a_large_body_is_refused_unread(staff, kind):
    content = multipart(3_000_000) if "XX" in kind else b"text=" + b"x" * 3_000_000
    answer, count = send(staff, "/start/", content, kind)
    assert answer.status_code == 413
    assert "<h1>Too large</h1>" in answer.content.decode()
    assert "2.5" in answer.content.decode()
    assert count == 0
    assert not Session.objects.filter(title__contains="x").exists()


def test_a_form_with_many_fields_but_no_file_is_read(client):
    builders.user("operator", "anna")
    client.post("/login/", {"username": "anna", "password": "correct horse"})  # the client's are multipart
    assert client.get("/inbox/").status_code == 200


def test_a_body_that_is_none_says_so(staff):
    answer, _ = send(staff, "/start/", b"nothing", "multipart/form-data; boundary=")
    assert answer.status_code == 400
    assert "could not be read" in answer.content.decode()


def test_a_cookie_with_a_nul_is_as_good_as_none(client):
    # This is how it comes over HTTP: Python's cookie parser reads the quoted octal number.
    answer = client.get("/", headers={"cookie": r'sessionid="abcdefgh\000abcdefgh"; csrftoken="x\000"'})
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/")
