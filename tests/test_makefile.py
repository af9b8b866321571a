"""`make run` on a fresh machine: each phase is said, packages are counted while they are fetched, failures end it."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
# Stands for the virtual environment's Python: prints what pip prints.
PIP = """#!/bin/bash
for number in $(seq 23); do echo "Collecting package$number==1.0"; echo "  Downloading package$number.whl (1 kB)"; done
echo 'Installing collected packages: package1, package2'
exit ${PIP_FAILS:-0}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The Makefile beside a virtual environment that has no packages yet."""
    shutil.copy(PROJECT / "Makefile", tmp_path)
    for name, text in {
        "requirements/run.txt": "",
        ".venv/created.stamp": "",
        ".venv/bin/python": PIP,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / ".venv/bin/python").chmod(0o755)
    return tmp_path


def install(project: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = ("make", ".venv/run.stamp")
    return subprocess.run(
        command, cwd=project, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True
    )


def test_packages_are_counted_while_they_are_fetched(project: Path) -> None:
    done = install(project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Installing requirements/run.txt into .venv; the first time this takes a minute or two...",
        "  10 packages fetched",
        "  20 packages fetched",
        "  23 packages fetched; installing them",
    ]
    assert (project / ".venv/run.stamp").exists()


def test_an_installation_that_fails_is_no_success(project: Path) -> None:
    assert install(project, PIP_FAILS="1").returncode == 2
    assert not (project / ".venv/run.stamp").exists()
