"""Signing in: a wrong password is logged, and after too many an attempt must wait, on the desk and in the admin."""

import logging
import re
from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.contrib.auth import SESSION_KEY
from django.core.management import call_command
from django.test import Client, RequestFactory

from sessions_app.desk.login import client_address
from tests import builders

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse"
DOORS = ["/login/", "/admin/login/"]


@pytest.fixture(autouse=True)
def anna(db):
    return builders.user("supervisor", "anna")


def attempt(name="anna", password="wrong", *, door="/login/", address="192.0.2.1", **headers):
    client = Client(REMOTE_ADDR=address, headers=headers)
    return client.post(door, {"username": name, "password": password})


def signed_in(answer):
    return SESSION_KEY in answer.client.session


def fail(times, *names, **fields):
    for number in range(times):
        attempt(names[number % len(names)] if names else "anna", **fields)


def pass_time(minutes):
    for row in AccessAttempt.objects.all():
        AccessAttempt.objects.filter(pk=row.pk).update(
            attempt_time=row.attempt_time - timedelta(minutes=minutes)
        )


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_after_five_wrong_passwords_even_the_right_one_must_wait_a_quarter_of_an_hour(door):
    fail(4, door=door)
    assert attempt(door=door).status_code == 429
    refused = attempt(password=PASSWORD, door=door)
    assert refused.status_code == 429
    assert not signed_in(refused)
    pass_time(14)
    assert attempt(password=PASSWORD, door=door).status_code == 429
    pass_time(2)
    assert signed_in(attempt(password=PASSWORD, door=door))


@pytest.mark.slow
@pytest.mark.parametrize("other", [0, 1])
def test_both_doors_count_together(other):
    fail(5, door=DOORS[other])
    assert attempt(password=PASSWORD, door=DOORS[1 - other]).status_code == 429


@pytest.mark.slow
def test_the_answer_says_when_to_try_again_and_needs_no_script():
    fail(5)
    answer = attempt(password=PASSWORD)
    text = " ".join(answer.content.decode().split())
    assert "<h1>Too many wrong passwords</h1>" in text
    assert "Try again in 15 minutes, after <time" in text
    assert re.search(r">\d\d:\d\d:\d\d UTC</time>", text)
    assert 'href="/login/"' in text
    assert 800 < int(answer["Retry-After"]) <= 900
    pass_time(10)
    later = attempt(password=PASSWORD)
    assert "Try again in 5 minutes, after" in " ".join(later.content.decode().split())
    assert 200 < int(later["Retry-After"]) <= 300


@pytest.mark.slow
def test_trying_while_it_is_closed_does_not_make_the_wait_longer():
    fail(5)
    pass_time(10)
    fail(5)
    pass_time(6)
    assert signed_in(attempt(password=PASSWORD))


@pytest.mark.slow
def test_neither_the_same_name_elsewhere_nor_another_name_there_is_kept_out():
    builders.user("viewer", "vera")
    fail(5)
    assert signed_in(attempt(password=PASSWORD, address="192.0.2.2"))
    assert signed_in(attempt("vera", PASSWORD))


@pytest.mark.slow
def test_who_signs_in_starts_again_from_none():
    fail(4)
    assert signed_in(attempt(password=PASSWORD))
    fail(4)
    assert signed_in(attempt(password=PASSWORD))


def test_other_headers_do_not_start_the_count_again():
    for number in range(5):
        attempt(user_agent=f"browser {number}", x_forwarded_for=f"198.51.100.{number}")
    assert attempt(password=PASSWORD, user_agent="another").status_code == 429


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_a_name_that_is_too_long_to_be_stored_is_answered_and_counted_like_a_wrong_one(door):
    for _ in range(4):
        answer = attempt("x" * 300, door=door)
        assert answer.status_code == 200
        assert not signed_in(answer)
    # PostgreSQL stores no more than 255 characters.
    assert [len(row.username) for row in AccessAttempt.objects.all()] == [255]
    assert attempt("x" * 300, door=door).status_code == 429


@pytest.mark.slow
def test_one_address_that_tries_many_names_is_kept_out():
    builders.user("viewer", "vera")
    fail(50, *(f"name{number}" for number in range(25)))
    assert attempt("vera", PASSWORD).status_code == 429
    assert signed_in(attempt("vera", PASSWORD, address="192.0.2.2"))


@pytest.mark.slow
def test_an_account_of_ones_own_does_not_clear_the_address():
    builders.user("viewer", "mallory")
    fail(40, *(f"name{number}" for number in range(20)))
    assert signed_in(attempt("mallory", PASSWORD))
    fail(10, *(f"other{number}" for number in range(10)))
    assert attempt("mallory", PASSWORD).status_code == 429


@pytest.mark.slow
def test_one_name_that_is_tried_from_many_addresses_is_closed():
    for number in range(50):
        attempt(address=f"198.51.100.{number // 4}")
    assert attempt(password=PASSWORD).status_code == 429


def test_a_failure_is_logged_with_name_and_address_and_without_the_password(caplog):
    with caplog.at_level(logging.WARNING):
        attempt(password="hunter2 hunter2")
    line = next(record for record in caplog.records if "login failure" in record.getMessage())
    assert line.levelno == logging.WARNING
    assert "'anna' from 192.0.2.1 at '/login/'" in line.getMessage()
    caplog.clear()
    fail(4)
    with caplog.at_level(logging.WARNING):
        attempt(password=PASSWORD, door="/admin/login/")
    assert any(
        "Sign-in refused for" in text and "'anna' from 192.0.2.1 at '/admin/login/'" in text
        for text in caplog.messages
    )
    assert "hunter2" not in caplog.text
    assert PASSWORD not in caplog.text
    assert not AccessAttempt.objects.filter(post_data__contains="hunter2").exists()


def test_a_name_cannot_forge_a_line_of_the_log(caplog):
    # The form takes out line breaks at the ends only; the log must not believe in it either.
    with caplog.at_level(logging.WARNING):
        attempt("anna\nWARNING root: all is well")
    assert not any("\n" in text for text in caplog.messages if "login failure" in text)


HOSTILE = "\x1b]0;owned\x07\x1b[31mro\tot\r\nanna\u202egnp\u200b"
HARMLESS = "⟨U+001B⟩]0;owned⟨U+0007⟩⟨U+001B⟩[31mro⟨U+0009⟩ot⟨U+000D⟩⟨U+000A⟩anna⟨U+202E⟩gnp⟨U+200B⟩"


@pytest.mark.parametrize("door", DOORS)
def test_a_name_is_stored_and_listed_without_what_a_terminal_obeys_or_a_person_does_not_see(door, capsys):
    attempt(f"{HOSTILE}x", door=door)
    assert [row.username for row in AccessAttempt.objects.all()] == [f"{HARMLESS}x"]
    call_command("axes_list_attempts")
    assert capsys.readouterr().out == f"192.0.2.1\t{HARMLESS}x\t1\n"


@pytest.mark.slow
def test_a_name_that_is_stored_by_other_characters_is_counted_and_its_wait_is_ended_as_it_is_listed():
    fail(5, f"{HOSTILE}x")
    assert attempt(f"{HOSTILE}x").status_code == 429
    call_command("axes_reset_username", f"{HARMLESS}x")
    assert attempt(f"{HOSTILE}x").status_code == 200
    assert signed_in(attempt(password=PASSWORD))


@pytest.mark.slow
def test_a_long_name_of_such_characters_is_stored_as_far_as_there_is_room():
    attempt("\u202e" * 300)
    assert [len(row.username) for row in AccessAttempt.objects.all()] == [255]


def test_records_of_failures_are_deleted_when_they_are_out_of_date():
    fail(3, "bert")
    pass_time(16)
    attempt()
    assert [row.username for row in AccessAttempt.objects.all()] == ["anna"]


def address_of(forwarded=None, remote="192.0.2.1"):
    headers = {} if forwarded is None else {"x-forwarded-for": forwarded}
    return client_address(RequestFactory(REMOTE_ADDR=remote).get("/", headers=headers))


@pytest.mark.parametrize("proxies", [None, 0])
def test_without_a_trusted_proxy_nobody_names_their_own_address(settings, proxies):
    settings.TRUSTED_PROXIES = proxies
    assert address_of("198.51.100.7") == "192.0.2.1"


@pytest.mark.parametrize(
    "proxies, forwarded, address",
    [
        (1, "198.51.100.7", "198.51.100.7"),
        (1, "203.0.113.9, 198.51.100.7", "198.51.100.7"),
        (2, "203.0.113.9, 198.51.100.7, 10.0.0.1", "198.51.100.7"),
        (2, "198.51.100.7", "198.51.100.7"),
        (1, "198.51.100.7:50123", "198.51.100.7"),
        (1, '"[2001:db8:1:2:3:4:5:6]:443"', "2001:db8:1:2::"),
        (1, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        (1, "::ffff:198.51.100.7", "198.51.100.7"),
        (1, "", "192.0.2.1"),
        (1, None, "192.0.2.1"),
        (1, "unknown", None),
    ],
)
def test_behind_proxies_it_is_what_the_outermost_of_them_wrote(settings, proxies, forwarded, address):
    settings.TRUSTED_PROXIES = proxies
    assert address_of(forwarded) == address


@pytest.mark.slow
def test_where_no_address_is_known_failures_count_all_the_same():
    fail(5, address="")
    assert attempt(password=PASSWORD, address="").status_code == 429


@pytest.mark.slow
def test_behind_a_proxy_failures_count_by_the_address_that_it_names(settings):
    settings.TRUSTED_PROXIES = 1
    for _ in range(5):
        attempt(x_forwarded_for="203.0.113.9, 198.51.100.7")
    assert attempt(password=PASSWORD, x_forwarded_for="198.51.100.7").status_code == 429
    assert signed_in(attempt(password=PASSWORD, x_forwarded_for="198.51.100.8"))


@pytest.mark.slow
def test_a_wrong_old_password_counts_as_a_failed_sign_in_and_no_password_is_stored(anna):
    client = Client(REMOTE_ADDR="192.0.2.1")
    client.force_login(anna)
    sent = {"old_password": "mistyped", "new_password1": "Abc-12345-xyz", "new_password2": "Abc-12345-xyz"}
    page, right = "/admin/password_change/", {**sent, "old_password": PASSWORD}
    assert [client.post(page, sent).status_code for _ in range(4)] == [200] * 4
    stored = str(AccessAttempt.objects.values_list())
    assert not any(password in stored for password in sent.values())
    assert client.post(page, sent).status_code == 429
    assert client.post(page, right).status_code == 429
    assert attempt(password=PASSWORD).status_code == 429
    pass_time(16)
    answer = client.post(page, right)
    assert (answer.status_code, answer["Location"]) == (302, "/admin/password_change/done/")
