"""The demo users: `manage.py up` changes the accounts that it made, and no other."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from sessions_app.access.demo_users import close_demo_users, open_demo_users, why_refused
from sessions_app.access.roles import ROLES
from tests import builders

pytestmark = pytest.mark.django_db

GIVEN = "open sesame"


def passwords():
    return dict(User.objects.values_list("username", "password"))


def signed_in(name):
    client = Client()
    client.force_login(User.objects.get(username=name))
    return client


def test_there_is_one_for_each_role_with_one_random_password():
    users = open_demo_users()
    assert users.new_password == list(ROLES)
    for role in ROLES:
        user = User.objects.get(username=role)
        assert user.check_password(users.password)
        assert [group.name for group in user.groups.all()] == [role]
    assert len(users.password) >= 16


def test_without_a_given_password_they_keep_theirs():
    open_demo_users()
    before = passwords()
    users = open_demo_users()
    assert (users.unchanged, users.new_password) == (list(ROLES), [])
    assert passwords() == before


@pytest.mark.slow
def test_a_given_password_is_given_to_those_that_were_made_here():
    open_demo_users()
    assert open_demo_users(GIVEN).new_password == list(ROLES)
    assert all(User.objects.get(username=role).check_password(GIVEN) for role in ROLES)
    before = passwords()
    assert open_demo_users(GIVEN).unchanged == list(ROLES)
    assert passwords() == before


@pytest.mark.parametrize("given", ["", GIVEN])
def test_a_user_that_a_person_made_is_left_alone_whatever_its_name(given):
    theirs = builders.user("supervisor", "viewer")
    before = User.objects.filter(pk=theirs.pk).values().get()
    users = open_demo_users(given)
    assert users.not_ours == ["viewer"]
    assert users.new_password == ["operator", "supervisor"]
    assert User.objects.filter(pk=theirs.pk).values().get() == before
    assert {group.name for group in theirs.groups.all()} == {"supervisor"}
    close_demo_users()
    assert User.objects.filter(pk=theirs.pk).values().get() == before


def test_a_user_that_a_person_made_in_the_place_of_a_demo_user_is_left_alone():
    open_demo_users()
    User.objects.get(username="viewer").delete()
    theirs = builders.user("viewer", "viewer")
    assert open_demo_users(GIVEN).not_ours == ["viewer"]
    assert User.objects.get(pk=theirs.pk).check_password("correct horse")


def test_a_demo_user_that_a_person_renamed_is_left_alone():
    open_demo_users()
    User.objects.filter(username="viewer").update(username="vera")
    before = passwords()["vera"]
    assert open_demo_users(GIVEN).new_password == list(ROLES)
    assert passwords()["vera"] == before


def test_a_password_that_a_person_changed_stays():
    open_demo_users()
    user = User.objects.get(username="operator")
    user.set_password("my own one")
    user.save()
    users = open_demo_users(GIVEN)
    assert (users.not_ours, users.new_password) == (["operator"], ["viewer", "supervisor"])
    assert close_demo_users() == ["viewer", "supervisor"]
    assert User.objects.get(username="operator").check_password("my own one")


@pytest.mark.slow
def test_closing_ends_their_logins_and_opening_gives_new_passwords():
    first = open_demo_users()
    client = signed_in("supervisor")
    assert client.get("/inbox/").status_code == 200
    assert close_demo_users() == list(ROLES)
    assert not any(User.objects.get(username=role).check_password(first.password) for role in ROLES)
    assert client.get("/").status_code == 302
    assert close_demo_users() == []
    second = open_demo_users()
    assert second.new_password == list(ROLES)
    assert User.objects.get(username="viewer").check_password(second.password)


@pytest.mark.parametrize(
    "password, complaint",
    [
        ("sesame", "too short"),
        ("password123", "too common"),
        ("1234567890", "entirely numeric"),
        ("supervisors", "too similar"),
        (GIVEN, ""),
    ],
)
def test_a_given_password_is_held_to_the_rules_for_all_passwords(password, complaint):
    refused = why_refused(password)
    assert complaint in refused if complaint else refused == ""
