"""The command line: `agentstate COMMAND`, the same as `python -m agentstate COMMAND`.

`show FILE` prints the session in a journal file, which another process may be running.
`desk` hands its arguments to Django, as `manage.py` does in a clone: `agentstate desk up` starts everything.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from agentstate.pipes import ends_quietly


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="agentstate", description="Durable Haystack agents, and their desk."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shown = commands.add_parser("show", help="Print the session in a journal file.")
    shown.add_argument("file", metavar="FILE")
    desk = commands.add_parser(
        "desk", help="A command of the desk, such as: desk up", add_help=False, prefix_chars="\0"
    )
    desk.add_argument("rest", nargs=argparse.REMAINDER, metavar="...")
    options = parser.parse_args(arguments)
    return _show(options.file) if options.command == "show" else _desk(options.rest)


def _show(file: str) -> int:
    from agentstate.journals import load, show
    from agentstate.journals.file import JournalFileError

    try:
        text = show(load(file))
    except JournalFileError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    with ends_quietly():
        sys.stdout.write(text)
    return 0


def _desk(arguments: Sequence[str]) -> int:
    # The modules in AGENTSTATE_AGENTS are looked for where the desk is started, as `manage.py` does.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")
    try:
        importlib.import_module("sessions_app")
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    from django.core.management import execute_from_command_line

    execute_from_command_line(["agentstate desk", *arguments])
    return 0


if __name__ == "__main__":
    sys.exit(main())
