"""What the commands print where the terminal or its reader takes less, and how they end when they are interrupted."""

import io
import json
import os
import sys

import pytest
from django.core.management import call_command

from sessions_app.finding import search_index
from sessions_app.management import synth
from sessions_app.runtime import similar
from tests import builders

pytestmark = pytest.mark.django_db

TITLE = "Grüße ☃ 🎉"


def run_in_ascii(monkeypatch: pytest.MonkeyPatch, *command: str) -> str:
    """What a command writes to a terminal whose locale has nothing but ASCII."""
    written = io.BytesIO()
    # Not in a fixture: pytest replaces the output once more when the test begins.
    with io.TextIOWrapper(written, encoding="ascii") as output, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        call_command(*command)
        return written.getvalue().decode()


def run_unread(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    """Run a command at the end of a pipe whose other end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as output, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        call_command(*command)


def test_what_the_encoding_of_the_terminal_lacks_is_written_as_an_escape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = builders.done(title=TITLE)
    assert (
        run_in_ascii(monkeypatch, "agent", "show", str(session.pk)).splitlines()[0]
        == r"Gr\u00fc\u00dfe \u2603 \ud83c\udf89"
    )


def test_json_says_the_same_in_an_encoding_that_lacks_its_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    session = builders.done(title=TITLE)
    assert json.loads(run_in_ascii(monkeypatch, "agent", "show", str(session.pk), "--json"))["title"] == TITLE


@pytest.mark.parametrize("command", ["update_search", "rebuild_search", "rebuild_similar"])
def test_a_command_whose_output_nobody_reads_does_its_work_and_ends_with_0(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [True, True, False]
    monkeypatch.setattr(search_index, "update", lambda seconds: more.pop(0))
    with pytest.raises(SystemExit) as ended:
        run_unread(monkeypatch, command)
    assert ended.value.code == 0
    assert more == ([True, True, False] if command == "rebuild_similar" else [])


@pytest.mark.parametrize(
    "command", [["agent", "synth", "--sessions=1", "--steps=0"], ["rebuild_search"], ["rebuild_similar"]]
)
def test_a_command_that_is_interrupted_ends_with_130(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    if command[0] == "rebuild_similar":
        builders.done()
    builders.agent()
    for module, name in ((synth, "write"), (search_index, "update"), (similar, "compare")):
        monkeypatch.setattr(module, name, interrupt)
    with pytest.raises(SystemExit) as ended:
        call_command(*command)
    assert ended.value.code == 130
