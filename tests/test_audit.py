"""`make audit` finds known vulnerabilities of what is pinned, and says plainly when it could not look."""

import json
import socket
import subprocess

import pytest

from tools import audit
from tools.processes import PROJECT, environment, run


def fine(name):
    return {"name": name, "version": "1.0", "vulns": []}


def skipped(name):
    return {"name": name, "skip_reason": "Dependency not found on PyPI and could not be audited"}


def bad(name, *fixes):
    return fine(name) | {"vulns": [{"id": "PYSEC-1", "fix_versions": list(fixes), "aliases": []}]}


@pytest.mark.parametrize(
    "packages, code, sentence",
    [
        ([fine("a"), fine("b")], 0, "No known vulnerabilities in 2 packages."),
        ([fine("a"), bad("b", "1.1")], 1, "b 1.0: PYSEC-1, fixed in 1.1"),
        ([bad("b"), bad("b")], 1, "Known vulnerabilities: 1\nb 1.0: PYSEC-1"),
        ([skipped("a"), bad("b")], 1, "b 1.0: PYSEC-1"),
        (
            [skipped("a"), skipped("b")],
            2,
            "NOT AUDITED: the package index has no data on vulnerabilities of any",
        ),
        ([fine("a"), skipped("b")], 2, "vulnerabilities of these packages: b."),
    ],
)
def test_the_verdict_names_what_was_found(packages, code, sentence):
    status, text = audit.verdict(json.dumps({"dependencies": packages, "fixes": []}), "")
    assert status == code
    assert sentence in text


def test_a_database_that_cannot_be_reached_is_said_plainly():
    code, text = audit.verdict("", "Traceback\nConnectionError: no route to host\n")
    assert code == 2
    assert text.startswith("NOT AUDITED: the vulnerability database cannot be reached.")
    assert "no route to host" in text


@pytest.mark.slow
def test_without_a_network_it_ends_soon_and_says_so():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        proxy = f"http://127.0.0.1:{closed.getsockname()[1]}"
    env = environment(HTTPS_PROXY=proxy, https_proxy=proxy, ALL_PROXY=proxy, NO_PROXY="", no_proxy="")
    done = run(("make", "-s", "audit", "-o", ".venv/dev.stamp"), env)
    assert done.returncode != 0
    assert "NOT AUDITED: the vulnerability database cannot be reached." in done.stdout
    assert "Traceback" not in done.stdout


def test_the_suite_does_not_depend_on_it():
    text = subprocess.run(
        ("make", "-n", "-o", ".venv/dev.stamp", "test"), cwd=PROJECT, capture_output=True, text=True
    ).stdout
    assert "pytest" in text
    assert "audit" not in text
