"""Web servers, started as the documentation says, leave it to TRUSTED_PROXIES whether X-Forwarded-* counts."""

import http.client
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axes.models import AccessAttempt
from waitress.adjustments import Adjustments

from tests.asgi import asgi_server

PROJECT = Path(__file__).parents[1]
DOCUMENTS = [PROJECT / "README.md", PROJECT / "examples/README.md", *(PROJECT / "docs").glob("*.md")]


def commands(program: str) -> list[list[str]]:
    """The arguments of each documented command that starts the desk with this program."""
    lines = re.findall(
        rf"^\s*{program} .*agentstate\.[aw]sgi:.*$", "\n".join(map(Path.read_text, DOCUMENTS)), re.M
    )
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_uvicorn_as_it_is_documented_evaluates_no_header_of_a_proxy() -> None:
    command: Any = import_module("uvicorn.main").main
    found = [command.make_context("uvicorn", arguments).params for arguments in commands("uvicorn")]
    assert [options["proxy_headers"] for options in found] == [False]


def test_waitress_as_it_is_documented_passes_the_headers_of_a_proxy_on_and_stores_no_large_body() -> None:
    parsed = [Adjustments.parse_args(arguments)[0] for arguments in commands("waitress-serve")]
    found = [
        Adjustments(**{name: value for name, value in options.items() if name not in ("call", "help")})
        for options in parsed
    ]
    assert [options.clear_untrusted_proxy_headers for options in found] == [False]
    assert [options.trusted_proxy for options in found] == [None]
    assert all(options.max_request_body_size < 10_000_000 for options in found)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("proxies, counted", [(None, "127.0.0.1"), (1, "198.51.100.7")])
def test_behind_uvicorn_an_address_that_the_client_writes_counts_behind_trusted_proxies_only(
    settings: Any, proxies: int | None, counted: str
) -> None:
    settings.TRUSTED_PROXIES = proxies
    with asgi_server() as server:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
        connection.request("GET", "/login/")
        page = connection.getresponse()
        page.read()
        [token] = re.findall(r"csrftoken=(\w+)", page.headers["Set-Cookie"])
        headers = {
            "Cookie": f"csrftoken={token}",
            "X-CSRFToken": token,
            "X-Forwarded-For": "198.51.100.7",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        connection.request("POST", "/login/", "username=anna&password=wrong", headers)
        assert connection.getresponse().status == 200
        connection.close()
    assert [attempt.ip_address for attempt in AccessAttempt.objects.all()] == [counted]
