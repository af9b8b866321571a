"""Who is logged in and what they may do: read from Django's tables with each request, and nothing kept in between."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.contrib.sessions.models import Session as LoginSession
from django.db import connection
from django.http import HttpRequest
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.access import logins
from sessions_app.access.logins import Backend, SessionStore
from tests import builders

pytestmark = pytest.mark.django_db


def permission(codename: str) -> Permission:
    return Permission.objects.get(codename=codename, content_type__app_label="sessions_app")


def permissions_of_login(user: User) -> set[str]:
    """Those that are read with the account when it logs in."""
    account = Backend().get_user(user.pk)
    assert account is not None
    with CaptureQueriesContext(connection) as queries:
        found = account.get_all_permissions()
    assert not queries.captured_queries
    return found


def fresh(user: User) -> User:
    """The user without what was read of them before."""
    return User.objects.get(pk=user.pk)


@pytest.mark.parametrize("role", [None, "viewer", "operator", "supervisor"])
def test_permissions_are_those_that_django_itself_finds(role):
    user = builders.user(role)
    user.user_permissions.add(permission("view_session"), permission("delete_savedview"))
    group = Group.objects.create(name="auditors")
    group.permissions.add(permission("view_event"), permission("view_session"))
    user.groups.add(group)
    other = builders.user("supervisor", "other")
    other.user_permissions.add(permission("view_worker"))
    found = Backend().get_all_permissions(fresh(user))
    assert found == ModelBackend().get_all_permissions(fresh(user)) == permissions_of_login(user)
    assert {"sessions_app.view_event", "sessions_app.delete_savedview"} <= found


@pytest.mark.parametrize(
    "codename",
    ["with blank", "x sessions_app.reveal_values", "a\tb", " a", "a\u2028b", 'a"b', "%s", "$1", "\x1f"],
)
def test_a_permission_may_have_any_name_and_gives_no_other(codename):
    kind = permission("view_session").content_type
    user = builders.user(None)
    user.user_permissions.add(Permission.objects.create(codename=codename, content_type=kind, name="Odd"))
    expected = {f"sessions_app.{codename}"}
    assert ModelBackend().get_all_permissions(fresh(user)) == expected
    assert Backend().get_all_permissions(fresh(user)) == expected == permissions_of_login(user)


def test_a_user_without_permissions_has_none():
    user = builders.user(None)
    assert Backend().get_all_permissions(fresh(user)) == set() == permissions_of_login(user)


def test_the_permissions_of_an_account_are_looked_up_once_and_not_for_each_of_them():
    is_sqlite = connection.vendor == "sqlite"
    with connection.cursor() as cursor:
        sql, parameters = logins._users.sql_with_params(1)
        cursor.execute(f"EXPLAIN {'QUERY PLAN ' if is_sqlite else ''}{sql}", parameters)
        plan = "\n".join(str(row[-1]) for row in cursor.fetchall())
    inner = re.findall("LIST SUBQUERY" if is_sqlite else "hashed SubPlan", plan)
    assert len(inner) >= 2
    # So a query that is run again for each row is named: by SQLite, and by PostgreSQL as a plan that is not hashed.
    assert not re.search("CORRELATED" if is_sqlite else r"(?<!hashed )SubPlan \d+\)", plan), plan


def test_an_account_that_is_closed_a_visitor_and_a_single_row_have_no_permissions():
    user = builders.user("supervisor")
    assert Backend().get_all_permissions(fresh(user), user) == set()
    user.is_active = False
    assert Backend().get_all_permissions(user) == set()
    assert Backend().get_all_permissions(AnonymousUser()) == set()


def test_a_superuser_has_every_permission():
    root = User.objects.create_superuser("root")
    assert Backend().get_all_permissions(root) == ModelBackend().get_all_permissions(fresh(root))
    assert "sessions_app.view_session" in Backend().get_all_permissions(fresh(root))


def test_all_permissions_of_a_user_are_one_query(django_assert_num_queries: Any):
    user = builders.user("operator")
    with django_assert_num_queries(1):
        for name in ("view_session", "view_event", "nothing"):
            user.has_perm(f"sessions_app.{name}")


def test_a_permission_that_is_withdrawn_counts_with_the_next_request():
    session = builders.done()
    user = builders.user("viewer")
    client = Client()
    client.force_login(user)
    assert client.get(f"/sessions/{session.pk}/").status_code == 200
    user.groups.clear()
    assert client.get(f"/sessions/{session.pk}/").status_code == 403


@pytest.mark.parametrize("how", ["expired", "deleted", "closed", "unknown"])
def test_a_login_that_has_ended_counts_no_more(how):
    user = builders.user("viewer")
    client = Client()
    client.force_login(user)
    logins = LoginSession.objects.filter(session_key=client.session.session_key)
    assert client.get("/workers/").status_code == 200
    if how == "expired":
        logins.update(expire_date=timezone.now() - timedelta(seconds=1))
    elif how == "deleted":
        user.delete()
    elif how == "closed":
        User.objects.filter(pk=user.pk).update(is_active=False)
    else:
        logins.delete()
    assert client.get("/workers/").status_code == 302


@pytest.mark.parametrize("path", ["/workers/", "/admin/", "/login/"])
def test_a_login_that_was_used_while_its_account_was_closed_has_ended_for_good(path):
    user = builders.user("supervisor")
    client = Client()
    client.force_login(user)
    key = client.cookies["sessionid"].value
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert client.get(path).cookies["sessionid"].value == ""
    assert not LoginSession.objects.exists()
    User.objects.filter(pk=user.pk).update(is_active=True)
    client.cookies["sessionid"] = key
    assert client.get("/workers/").status_code == 302
    assert client.get("/admin/").status_code == 302


def test_a_login_of_an_account_that_was_deleted_leaves_no_row():
    user = builders.user("viewer")
    client = Client()
    client.force_login(user)
    user.delete()
    assert client.get("/workers/").status_code == 302
    assert not LoginSession.objects.exists()


def test_a_login_that_was_not_used_while_its_account_was_closed_goes_on_and_ends_with_a_new_password():
    user = builders.user("viewer")
    client = Client()
    client.force_login(user)
    for is_active in (False, True):
        User.objects.filter(pk=user.pk).update(is_active=is_active)
    assert client.get("/workers/").status_code == 200
    user.set_password("another horse")
    user.save()
    assert client.get("/workers/").status_code == 302


def test_the_visit_of_somebody_without_a_login_ends_no_session_of_a_browser():
    client = Client()
    session = client.session
    session["language"] = "en"
    session.save()
    client.cookies["sessionid"] = session.session_key or ""
    assert client.get("/workers/").status_code == 302
    assert LoginSession.objects.filter(session_key=session.session_key).exists()


def test_a_request_that_does_not_ask_who_it_is_looks_up_no_login(django_assert_num_queries: Any):
    user = builders.user("viewer")
    client = Client()
    client.force_login(user)
    with django_assert_num_queries(0):
        assert client.get("/sessions/not-a-session/").status_code == 404


def test_the_key_of_a_login_that_is_not_there_is_not_taken_over():
    """Otherwise somebody could choose the key of another person's next login."""
    store = SessionStore("a" * 32)
    assert store.load() == {}
    store["x"] = 1
    store.save()
    assert store.session_key != "a" * 32


@pytest.mark.parametrize("stored", ["10" * 20, "-1", "0"])
def test_a_login_of_an_account_that_cannot_be_is_nobody(stored):
    request = HttpRequest()
    request.session = SessionStore()
    request.session["_auth_user_id"] = stored
    request.session["_auth_user_backend"] = "sessions_app.access.logins.Backend"
    assert get_user(request) == AnonymousUser()
