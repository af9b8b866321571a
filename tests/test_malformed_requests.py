"""Nothing that is sent to any address is answered with 5xx, and a form that refuses something keeps what was typed.

The addresses are those of the URL table, so a new one is tried by itself. Which parameters and fields a view reads is
observed while it answers a proper request; then each of them is given the values of `tests.corpora.malformed`, a part
of them here, and all of them by the long test, but for what all dialogs read (see `PARTS`).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from itertools import count, islice
from typing import Any
from urllib import parse

import pytest
from django import forms
from django.apps import apps
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.http import QueryDict
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from sessions_app import actions
from sessions_app.access.roles import Actor
from sessions_app.action_list import ACTIONS
from sessions_app.models import Approval, BulkAction, Event, ModelCall, Session, ToolCall
from tests import builders, test_desk_dialogs, test_desk_posts
from tests.corpora import malformed

pytestmark = pytest.mark.django_db

PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
GROUP = re.compile(r"\(\?P<(\w+)>[^)]*\)")
# Where a parameter takes one of a few values, an address for each of them is tried.
CHOICES = {"name": [*ACTIONS], "app_label": ["sessions_app"], "url": ["no/such/page"], "format": ["json"]}


def routes(resolver: URLResolver | None = None, prefix: str = "") -> Iterator[str]:
    """The routes of the URL table, with their parameters as ``<name>``."""
    for entry in (resolver or get_resolver()).url_patterns:
        route = prefix + GROUP.sub(r"<\1>", str(entry.pattern)).replace("^", "").replace("$", "")
        if isinstance(entry, URLResolver):
            yield from routes(entry, route)
        elif isinstance(entry, URLPattern):
            yield route


def with_choices(route: str) -> list[str]:
    for name, values in CHOICES.items():
        for parameter in PARAMETER.finditer(route):
            if parameter[1] == name:
                return [route.replace(parameter[0], value) for value in values]
    return [route]


DIALOG = re.compile(rf"/({'|'.join(ACTIONS)})/$")
# What all dialogs read by the same lines is given one of so many parts of the corpus in each of them, except in those
# whose form has a field for it.
PARTS = 5
ROUTES = sorted({each for route in routes() for each in with_choices(route) if "logout" not in route})


@dataclass
class Address:
    """An address with the query and the fields of a proper request."""

    path: str
    query: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module", autouse=True)
def _long_values_are_quoted_once() -> Iterator[None]:
    """Python quotes a value byte by byte, and a page has the values of its address in each of its links."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("quote_from_bytes", "unquote_to_bytes"):
            patch.setattr(parse, name, lru_cache(maxsize=32)(getattr(parse, name)))
        yield


@pytest.fixture
def root(client: Client) -> User:
    """Who may do everything, so that every line is reached."""
    user = User.objects.create_superuser("anna", password="correct horse battery")
    client.force_login(user)
    client.raise_request_exception = False
    return user


def session_for(action: str) -> tuple[Session, dict[str, Any]]:
    """A session that allows the action, and what its form sends."""
    if action in test_desk_posts.POSTS:
        session = test_desk_posts.POSTS[action].possible()
        return session, test_desk_posts.typed(session, action)
    session = builders.STATES[test_desk_dialogs.POSSIBLE[action][0]]()
    return session, test_desk_dialogs.typed(session, action)


def address(route: str, user: User) -> Address:
    """An address of the route that names rows which exist."""
    action = next((name for name in ACTIONS if route.endswith(f"/{name}/")), "")
    if action:
        session, fields = session_for(action)
    else:
        session, fields = builders.waiting_for_approval(tags=["glass"]), {}
    call = ToolCall.objects.filter(branch__session=session).order_by("position").last()
    values: dict[str, Any] = {"session_id": session.pk, "branch_number": 1, "key": "claims"}
    values["call_id"] = call.pk if call is not None else 1
    model_call = ModelCall.objects.filter(branch__session=session).first()
    values["model_call_id"] = model_call.pk if model_call is not None else 1
    if "view_id" in route:
        view = actions.save_view(actor=Actor.of(user), name="Mine", query="queue=all")
        values["view_id"] = view.pk
    if "bulk_id" in route:
        values["bulk_id"] = BulkAction.objects.create(kind="pause", reason="Rain", actor=user).pk
    if match := re.match(r"admin/(\w+)/(\w+)/<path:object_id>", route):
        row = apps.get_model(match[1], match[2])._default_manager.order_by("pk").first()
        values["object_id"] = row.pk if row is not None else 1
    path = "/" + PARAMETER.sub(lambda parameter: str(values.get(parameter[1], 1)), route)
    query = {"checkpoint": fields["checkpoint"]} if "checkpoint" in fields else {}
    query |= {"call": fields["call_id"]} if "call_id" in fields else {}
    query |= {name: fields[name] for name in ("key", "number") if name in fields}
    if action == "approve":
        fields |= {"arg-claim": "CLM-1042", "arg-amount": "130", "reason": "Rain"}
    approval = Approval.objects.filter(session=session).first()
    of_route: dict[str, dict[str, Any]] = {
        "start/": {"agent": "claims", "message": "Hello", "title": "Rain", "tags": "a", "state": "{}"},
        "views/save/": {"name": "Mine", "query": "queue=all"},
        "bulk/": {"expected": Session.objects.count(), "reason": "Rain"},
        "approvals/batch/": {
            "call": f"{approval.pk if approval else 1}:x",
            "decision": "reject",
            "text": "Rain",
            "tool": "issue_refund",
        },
        "admin/sessions_app/session/": {"action": "pause", "_selected_action": session.pk, "reason": "Rain"},
        "login/": {"username": "anna", "password": "wrong"},
        "admin/login/": {"username": "anna", "password": "wrong"},
    }
    return Address(path, query, fields | of_route.get(route, {}))


@contextmanager
def recorded() -> Iterator[dict[str, None]]:
    """The names that are read from query strings and forms meanwhile."""
    names: dict[str, None] = {}

    def recording(method: str) -> Any:
        original = getattr(QueryDict, method)

        def read(self: QueryDict, name: str, *args: Any) -> Any:
            names[name] = None
            return original(self, name, *args)

        return read

    with pytest.MonkeyPatch.context() as patch:
        for method in ("__getitem__", "getlist", "__contains__"):
            patch.setattr(QueryDict, method, recording(method))
        yield names


# Statements that change nothing; those of savepoints stand around others.
READS = ("SELECT ", "SAVEPOINT ", "RELEASE SAVEPOINT ", "ROLLBACK TO SAVEPOINT ")


class Changes:
    """Whether anything was executed meanwhile that has to be undone: what may have written something, or has failed."""

    happened = False

    def __call__(self, execute: Any, sql: str | bytes, *rest: Any) -> Any:
        text = sql if isinstance(sql, str) else sql.decode()
        is_safe = False
        try:
            result = execute(sql, *rest)
            is_safe = text.startswith(READS)
        finally:
            self.happened = self.happened or not is_safe
        return result


def send(client: Client, method: str, path: str, **request: Any) -> Any:
    """The answer. What the request changes is undone, so that the next one meets the same rows.

    A rollback has PostgreSQL prepare all statements again, so there is none where nothing was changed.
    """
    before = transaction.savepoint()
    changes = Changes()
    with connection.execute_wrapper(changes):
        if isinstance(request.get("data"), bytes):
            response: Any = client.generic(method, path, **request)  # the body as it is
        else:
            response = client.get(path, **request) if method == "GET" else client.post(path, **request)
        connection.cursor().close()  # has what waits for a COMMIT executed
    if changes.happened:
        transaction.savepoint_rollback(before)
    else:
        transaction.savepoint_commit(before)
    shown = str(request.get("data"))[:300]
    assert response.status_code < 500, (method, path, shown, getattr(response, "exc_info", None))
    return response


def typed_texts(form: forms.Form, sent: dict[str, Any]) -> Iterator[str]:
    """What was typed into the visible fields of the form that keep a text."""
    for bound in form.visible_fields():
        widget = bound.field.widget
        if isinstance(widget, forms.Textarea) or getattr(widget, "input_type", "") in ("text", "number"):
            yield str(sent.get(bound.html_name, ""))


def keeps_what_was_typed(response: Any, sent: dict[str, Any]) -> None:
    if not 400 <= response.status_code < 500 or response.context is None:
        return
    form = response.context.get("form") or response.context.get("batch")
    if not isinstance(form, forms.Form) or not form.is_bound:
        return
    text = response.content.decode()
    for typed in typed_texts(form, sent):
        # A password is not kept, and Django's own login strips its name.
        assert escape(typed.strip()) in text, (response.status_code, typed[:80])
    assert form.non_field_errors() or any(bound.errors for bound in form.visible_fields())


def names_read(client: Client, where: Address) -> tuple[list[str], list[str]]:
    """The parameters that a proper request for the address reads, and the fields that a proper form sent to it does."""
    with recorded() as parameters:
        send(client, "GET", where.path, data=where.query)
    with recorded() as fields:
        send(client, "POST", where.path, data=where.fields)
    # What the address is read for as well is tried as a parameter.
    return [*parameters], sorted((fields.keys() - parameters.keys()) | where.fields.keys())


def try_values(client: Client, where: Address, values_of: Callable[[str], Iterable[str]]) -> None:
    """Give every parameter and every field the values for its name."""
    parameters, fields = names_read(client, where)
    for name in parameters:
        for value in values_of(name):
            send(client, "GET", where.path, data=where.query | {name: value})
    for name in fields:
        for value in values_of(name):
            body = where.fields | {name: value}
            keeps_what_was_typed(send(client, "POST", where.path, data=body), body)


def rotating(start: int, each: int) -> Iterator[str]:
    """For each parameter NUL, and the next of the other values: over all addresses, each parameter gets them all."""
    others = [text for name, text in malformed.TEXTS.items() if name != "NUL"]
    for number in count(start):
        yield malformed.TEXTS["NUL"]
        for place in range(each - 1):
            yield others[(number * (each - 1) + place) % len(others)]


def is_admin(route: str) -> bool:
    return route.startswith("admin/")


@pytest.mark.parametrize("name", ["note", "pause"])
def test_each_request_meets_the_same_rows(client, root, name):
    where = address(f"sessions/<uuid:session_id>/{name}/", root)
    before = Session.objects.values().get(), Event.objects.count()
    for _ in range(2):
        assert send(client, "POST", where.path, data=where.fields).status_code == 302
        assert (Session.objects.values().get(), Event.objects.count()) == before


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_nothing_that_is_sent_makes_a_5xx(client, root, route):
    where = address(route, root)
    each = 1 if is_admin(route) else 2
    values = rotating(ROUTES.index(route), each)
    try_values(client, where, lambda name: islice(values, each))
    try_paths(client, route, where)
    if not is_admin(route):
        try_whole_requests(client, where)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sweep(on="postgresql")
@pytest.mark.parametrize("route", [route for route in ROUTES if not is_admin(route)])
def test_no_value_of_the_corpus_makes_a_5xx(client, root, route):
    values = [*malformed.TEXTS.values()]
    part = values[ROUTES.index(route) % PARTS :: PARTS]
    where = address(route, root)
    shared = set()
    if DIALOG.search(route):
        answer = send(client, "GET", where.path, data=where.query)
        form = (answer.context or {}).get("form")
        of_form = form.fields.keys() if isinstance(form, forms.Form) else ()
        shared = read_by_all_dialogs(client, root) - where.query.keys() - where.fields.keys() - {*of_form}
    try_values(client, where, lambda name: part if name in shared else values)


def read_by_all_dialogs(client: Client, root: User) -> set[str]:
    """What the dialogs of two actions read that have nothing in common but what all have. Found out once."""
    if not _read_by_all:
        note, pause = (
            set().union(*names_read(client, address(f"sessions/<uuid:session_id>/{name}/", root)))
            for name in ("note", "pause")
        )
        _read_by_all.update(note & pause)
    return _read_by_all


_read_by_all: set[str] = set()


def try_paths(client: Client, route: str, where: Address) -> None:
    """Give malformed values to the last parameter of the address, behind rows that exist."""
    parameters = [*PARAMETER.finditer(route)]
    if not parameters:
        return
    rest = PARAMETER.sub("", route[parameters[-1].end() :])
    head = where.path[: len(where.path) - len(rest)].rpartition("/")[0]
    for value in malformed.IN_PATHS:
        send(client, "GET", f"{head}/{value}{rest}")


def try_whole_requests(client: Client, where: Address) -> None:
    for headers in malformed.HEADERS.values():
        send(client, "GET", where.path, data=where.query, headers=headers)
    for content_type, body in malformed.BODIES.values():
        send(client, "POST", where.path, data=body, content_type=content_type)
