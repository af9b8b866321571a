"""A toast is shown to the login that it was made for, and to nobody who uses the browser afterwards."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests import builders

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse"
COOKIE = "messages"
TITLE = "Ms. Winter's burst pipe"


@pytest.fixture
def anna() -> User:
    return builders.user("operator", "anna")


@pytest.fixture
def browser(anna: User) -> Client:
    """Anna has paused a session, and the page to which the answer leads was not fetched."""
    client = Client()
    client.force_login(anna)
    session = builders.running(title=TITLE)
    form = {"version": session.version, "reason": "She has called"}
    answer = client.post(f"/sessions/{session.pk}/pause/", form, headers={"HX-Request": "true"})
    assert "HX-Redirect" in answer.headers
    assert client.cookies[COOKIE].value
    return client


def has_toast(answer: Any) -> bool:
    page = answer.content.decode()
    return '<p class="toast ' in page or "messagelist" in page  # on the desk, or in the admin


def test_the_next_page_of_the_login_shows_its_toast_once(browser: Client) -> None:
    page = browser.get("/keys/")
    assert has_toast(page)
    assert "Winter" in page.content.decode()
    assert not has_toast(browser.get("/keys/"))


@pytest.mark.parametrize("door", ["/login/", "/admin/login/"])
def test_after_a_logout_nobody_is_shown_a_toast_of_before(browser: Client, door: str) -> None:
    answer = browser.post("/logout/")
    assert answer.cookies[COOKIE].value == ""
    assert not has_toast(browser.get(door))
    browser.force_login(builders.user("supervisor", "sue"))
    assert not has_toast(browser.get("/keys/"))


def test_a_toast_that_stayed_in_the_browser_is_shown_to_no_other_login(browser: Client, anna: User) -> None:
    kept = browser.cookies[COOKIE].value
    for user in (None, anna, builders.user("supervisor", "sue")):
        other = Client()
        if user is not None:
            other.force_login(user)
        other.cookies[COOKIE] = kept
        answer = other.get("/keys/" if user else "/login/")
        assert answer.status_code == 200
        assert not has_toast(answer)
        assert answer.cookies[COOKIE].value == ""


def test_the_login_page_shows_no_toast_of_an_account_that_was_closed(browser: Client, anna: User) -> None:
    User.objects.filter(pk=anna.pk).update(is_active=False)
    answer = browser.get("/login/")
    assert answer.status_code == 200
    assert not has_toast(answer)


def test_a_toast_of_before_is_not_stored_for_the_next_login(browser: Client) -> None:
    kept = browser.cookies[COOKIE].value
    sue = Client()
    sue.force_login(builders.user("supervisor", "sue"))
    sue.cookies[COOKIE] = kept
    session = builders.running(title="Another one")
    sue.post(f"/sessions/{session.pk}/pause/", {"version": session.version, "reason": "Wait"})
    page = sue.get("/keys/").content.decode()
    assert "Another one" in page
    assert "Winter" not in page


def test_who_gives_themselves_a_new_password_is_told_so(admin_client: Client, admin_user: User) -> None:
    new = "a horse that is correct"
    form = {"password1": new, "password2": new, "usable_password": "true"}
    answer = admin_client.post(f"/admin/auth/user/{admin_user.pk}/password/", form, follow=True)
    assert "Password changed successfully" in answer.content.decode()


def test_a_page_with_a_toast_asks_the_database_no_more_often(
    browser: Client, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(4):
        assert has_toast(browser.get("/keys/"))
    with django_assert_num_queries(4):
        assert not has_toast(browser.get("/keys/"))
