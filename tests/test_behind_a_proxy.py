"""The documented command starts a web server that believes its proxy, and nobody else."""

import http.client
import re
import shlex
import sys
from pathlib import Path

import pytest

from tools.processes import PROJECT, environment, running
from tools.services import free_port

COMMAND = re.compile(r"^    waitress-serve (.*?agentstate\.wsgi:application)", re.M | re.S)
OVER_TLS = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.7"}


def documented(port: int) -> tuple[str, ...]:
    """The command of the README, on another port."""
    commands = COMMAND.findall((PROJECT / "README.md").read_text())
    assert len(commands) == 1
    assert "--listen=127.0.0.1:8000 " in commands[0]
    arguments = shlex.split(commands[0].replace("\\\n", " ").replace(":8000 ", f":{port} "))
    return (sys.executable, "-m", "waitress", *arguments)


@pytest.mark.slow
def test_a_server_started_as_documented_does_not_redirect_what_came_to_its_proxy_over_tls(
    tmp_path: Path,
) -> None:
    port = free_port()
    env = environment(
        SECRET_KEY="of this test", DATABASE_URL=f"sqlite:///{tmp_path / 'db'}", TRUSTED_PROXIES="1"
    )

    def answer(headers: dict[str, str]) -> tuple[int, str | None]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/", headers={"Host": "localhost", **headers})
        response = connection.getresponse()
        connection.close()
        return response.status, response.getheader("Location")

    with running(documented(port), env) as server:
        server.wait_for_output("Serving on", 60)
        assert answer({}) == (301, "https://localhost/")
        assert answer(OVER_TLS) == (302, "/login/?next=/")
