"""Addresses of pages with a query string hold whatever text is given, and nothing that is not."""

from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from django.test import Client

from agentstate.hosts import with_port
from sessions_app import addresses
from sessions_app.addresses import address
from tests import builders


@pytest.mark.parametrize(
    "given, query",
    [
        ({}, ""),
        ({"a": None, "b": ""}, ""),
        ({"a": 0, "b": None, "c": "x"}, "a=0&c=x"),
        ({"next": "/a/b?c=d&e=f g+h#i"}, "next=/a/b%3Fc%3Dd%26e%3Df%20g%2Bh%23i"),
        ({"ü&=": "é"}, "%C3%BC%26%3D=%C3%A9"),
    ],
)
def test_parameters_are_quoted_and_empty_ones_left_out(
    given: dict[str, str | int | None], query: str
) -> None:
    assert urlsplit(address("inbox", **given)).query == query
    kept = [(name, str(value)) for name, value in given.items() if value not in (None, "")]
    assert parse_qsl(query) == kept


def test_a_long_value_is_quoted_and_not_kept() -> None:
    kept = addresses._parameter.cache_info().currsize
    for letter in "äöü":
        assert address("inbox", back=letter * 9_000) == f"/inbox/?back={quote(letter) * 9_000}"
    assert addresses._parameter.cache_info().currsize == kept


@pytest.mark.django_db
def test_a_parameter_may_have_any_name(client: Client) -> None:
    client.force_login(builders.user("viewer"))
    assert client.get("/inbox/?view=x").status_code == 200


@pytest.mark.parametrize(
    "host, written",
    [
        ("localhost", "localhost:80"),
        ("127.0.0.1", "127.0.0.1:80"),
        ("::1", "[::1]:80"),
        ("fe80::1%eth0", "[fe80::1%eth0]:80"),
    ],
)
def test_an_ipv6_address_stands_in_brackets(host: str, written: str) -> None:
    assert with_port(host, 80) == written
