"""The verbs of `manage.py agent` for breakpoints: setting and removing one, changing the arguments of a call at one."""

from collections.abc import Callable, Mapping
from typing import Any

from django.core.management import CommandParser

from agentstate.durable.breakpoints import Breakpoint, Comparison
from sessions_app import actions
from sessions_app.action_list import CHANGE_ARGUMENTS, REMOVE_BREAKPOINT, SET_BREAKPOINT
from sessions_app.models import Session

Options = dict[str, Any]
# Does an action with what its functions have in common, and with the options of the verb.
Do = Callable[[Options, Options], Session]
JsonObject = Callable[[str], dict[str, Any]]


def add_verbs(steering: Callable[[str, Do, str], CommandParser], json_object: JsonObject) -> None:
    """
    :param steering: Adds a verb on a session, with its reason.
    :param json_object: Reads an argument of the command line.
    """
    new = steering(SET_BREAKPOINT.key, _set, "Stop a session before the model, or before a tool.")
    new.add_argument("--tool", default="", help="stop before calls of this tool; default: before the model")
    new.add_argument(
        "--when",
        nargs=3,
        metavar=("ARGUMENT", "COMPARISON", "VALUE"),
        help="stop only if an argument meets a condition, such as: amount '>' 100. "
        f"COMPARISON is one of {' '.join(Comparison)}",
    )
    new.add_argument(
        "--once", action="store_true", help="remove the breakpoint once it has stopped the session"
    )

    old = steering(REMOVE_BREAKPOINT.key, _remove, "Remove a breakpoint of a session.")
    old.add_argument("number", metavar="NUMBER", type=int, help="the breakpoint's number, see `agent show`")

    arguments = steering(
        CHANGE_ARGUMENTS.key, _change, "Change the arguments of a call that waits at a breakpoint."
    )
    arguments.add_argument("call_id", metavar="CALL", help="the call's id, see `agent show`")
    arguments.add_argument(
        "arguments", metavar="JSON", type=json_object, help="the arguments that it runs with"
    )


def line(row: Mapping[str, Any], one_line: Callable[[object], str]) -> str:
    """How a breakpoint is shown: ``1 before refund if amount > 50, once``."""
    breakpoint = Breakpoint.from_dict(row)
    when = breakpoint.condition
    condition = f" if {when.argument} {when.comparison} {one_line(when.value)}" if when else ""
    once = ", once" if breakpoint.once else ""
    return f"{breakpoint.number} before {breakpoint.tool or 'the model'}{condition}{once}"


def _set(common: Options, options: Options) -> Session:
    given = {name: options[name] for name in ("tool", "when", "once")}
    return actions.set_breakpoint(**common, **given, as_typed=True)


def _remove(common: Options, options: Options) -> Session:
    return actions.remove_breakpoint(**common, number=options["number"])


def _change(common: Options, options: Options) -> Session:
    return actions.change_arguments(**common, call_id=options["call_id"], arguments=options["arguments"])
