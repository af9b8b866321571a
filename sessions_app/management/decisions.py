"""The verb of `manage.py agent` that decides a call: what came of one in doubt, or whether one may run."""

from typing import Any

from django.core.management import CommandError, CommandParser

from sessions_app import actions
from sessions_app.access.errors import DefinitionNotShown, EffectNotSeen
from sessions_app.models import Session

Options = dict[str, Any]


def add_arguments(parser: CommandParser) -> None:
    """Those of the verb, beside the session."""
    parser.add_argument("call_id", metavar="CALL", help="the call's id, see `agent show`")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--result", metavar="TEXT", help="in doubt: it took effect, and this was its result")
    how.add_argument(
        "--nothing", action="store_true", help="in doubt: it took effect, and its tool returns nothing"
    )
    how.add_argument("--again", action="store_true", help="in doubt: run it again")
    how.add_argument("--skip", metavar="TEXT", help="in doubt: do not run it, and tell the model this")
    how.add_argument("--approve", action="store_true", help="approval: let it run")
    how.add_argument("--reject", metavar="TEXT", help="approval: do not run it, and tell the model this")
    parser.add_argument(
        "--new-definition",
        action="store_true",
        help="the agent has changed: continue with its new definition; not with --reject",
    )
    seen = "with --approve: the tool already took effect, or may have, and the call runs in addition"
    parser.add_argument("--effects-seen", action="store_true", help=seen)
    parser.add_argument("--reason", default="decided on the command line")


def check(options: Options) -> None:
    """:raises CommandError: for options that mean nothing together, which the parser cannot tell."""
    if options["effects_seen"] and not options["approve"]:
        raise CommandError("--effects-seen is only for --approve.", returncode=2)
    if options["new_definition"] and options["reject"] is not None:
        raise CommandError("--new-definition cannot be used with --reject.", returncode=2)


def decide(common: Options, options: Options, session: Session) -> Session:
    """
    :param common: What all actions on the session are given.
    :raises ActionError: saying which option is missing, where the pages of the desk ask a person to confirm something.
    """
    try:
        return _decide(common, options, session)
    except DefinitionNotShown:
        raise DefinitionNotShown(
            "The agent has changed since the session last ran. See on the session's page what changed, then use "
            "--new-definition to continue with the agent as it is now."
        ) from None
    except EffectNotSeen:
        raise EffectNotSeen(
            "The tool of this call already took effect, or may have. See on the session's page when, then use "
            "--effects-seen to let the call run in addition."
        ) from None


def _decide(common: Options, options: Options, session: Session) -> Session:
    call = {**common, "call_id": options["call_id"]}
    definition = session.new_definition if options["new_definition"] else ""
    if options["approve"]:
        return actions.approve(**call, definition=definition, effects_seen=options["effects_seen"])
    if options["reject"] is not None:
        return actions.reject(**call, message=options["reject"])
    outcome = {name: options[name] for name in ("result", "nothing", "again", "skip")}
    return actions.decide(**call, **outcome, definition=definition)
