"""The actions on the command line: `manage.py agent start claims "Is my windscreen covered?"`.

Thin: each verb is one action, and an action that asks for nothing but a reason needs no code here. `start` and `fork`
print the new session's id and nothing else, for scripts. A refusal is one line on stderr and exit code 1; wrong usage
is exit code 2. Ctrl-C is exit code 130.
"""

import getpass
import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser
from django.db import Error
from django.utils import timezone

from agentstate.installation import MANAGE
from agentstate.pipes import ends_quietly
from sessions_app import actions
from sessions_app.access.errors import ActionError, Invalid
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.access.typed import read_json, whole_number
from sessions_app.action_list import DECIDE, FORK, MESSAGE, REWIND
from sessions_app.history.export import session_json
from sessions_app.management import breakpoints, decisions, memory_entries, synth, tail
from sessions_app.management.printed import as_json, one_line, printable
from sessions_app.management.unusable import why_unusable
from sessions_app.models import RegisteredAgent, Session
from sessions_app.runtime.agents import publish_agents
from sessions_app.wording import count

Options = dict[str, Any]
# What `show` prints of a session.
SHOWN = (
    "id", "agent", "title", "version", "branch", "phase", "status", "waiting_for", "why", "breakpoints", "epoch",
    "final_answer", "error", "messages", "inbox", "tool_calls", "checkpoints", "events",
)  # fmt: skip


class Command(BaseCommand):
    help = "Start, show and steer the sessions of agents."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

        def verb(name: str, do: Callable[[Options], None], help: str) -> CommandParser:
            sub: CommandParser = verbs.add_parser(name, help=help, description=help)
            sub.set_defaults(do=do)
            return sub

        def steering(name: str, action: Callable[..., Session], help: str) -> CommandParser:
            sub = verb(name, lambda options: self._now(action(**_common(options))), help)
            _add_session(sub)
            sub.add_argument("--reason", required=True, help="kept in the session's audit trail")
            return sub

        verb("list", self.list_agents, "List the agents that can be started.")

        start = verb("start", self.start, "Start a session; prints its id.")
        start.add_argument("agent", metavar="KEY", help="the agent's key, see `agent list`")
        start.add_argument("message", help="what the customer asks")
        start.add_argument("--title", default="", help="default: the message's first 80 characters")
        start.add_argument("--customer", default="")
        start.add_argument(
            "--tag", action="append", default=[], dest="tags", help="may be given several times"
        )
        start.add_argument(
            "--state", type=_json_object, metavar="JSON", help="values for the agent's state keys"
        )

        _add_request_id(start, "prints the id of the session that it started")

        show = verb("show", self.show, "Show what a session is doing, and its current history.")
        _add_session(show)
        show.add_argument(
            "--json", action="store_true", dest="as_json", help="print everything, for programs"
        )

        follow = verb("tail", self.tail, "Follow a session: each message, call and event as it is committed.")
        _add_session(follow)
        follow.add_argument(
            "--json", action="store_true", dest="as_json", help="print one JSON object per line"
        )
        follow.add_argument(
            "--lines", type=_count, default=10, metavar="N", help="start with the last N entries"
        )
        follow.add_argument("--until-rest", action="store_true", help="end when the session is at rest")

        mirror = verb(
            "mirror", self.mirror, "Build or remove the mirror of all sessions on the Redis server."
        )
        to_do = mirror.add_mutually_exclusive_group(required=True)
        to_do.add_argument("--rebuild", action="store_true", help="rewrite every session")
        to_do.add_argument(
            "--remove",
            action="store_true",
            help="remove every session, for instance after turning the mirror off",
        )

        synth.add_arguments(
            verb("synth", self.synth, "Fill the database with synthetic sessions of the demo agents.")
        )

        message = verb(MESSAGE.key, self.message, "Send a message to the agent.")
        _add_session(message)
        message.add_argument("text")
        _add_request_id(message, "sends nothing again")

        for action, function in actions.BY_REASON.items():
            if action.command:
                steering(action.key, function, action.command)
        rewind = steering(REWIND.key, actions.rewind, "Rewind to a checkpoint.")
        _add_checkpoint(rewind)
        rewind.add_argument("--run", action="store_true", help="resume from there immediately")

        fork = verb(FORK.key, self.fork, "Start a new session at a checkpoint; prints its id.")
        _add_session(fork)
        _add_checkpoint(fork)
        fork.add_argument("--title", default="")
        fork.add_argument(
            "--message", default="", help="a first message; with one, the fork runs immediately"
        )
        fork.add_argument(
            "--replace",
            type=int,
            metavar="POSITION",
            help="the model sees --message instead of the user message at this position, see `agent show`",
        )
        fork.add_argument("--run", action="store_true", help="run the fork immediately")
        fork.add_argument("--reason", default="forked on the command line")

        decide = verb(DECIDE.key, self.decide, "Decide a call in doubt, or answer a request for approval.")
        _add_session(decide)
        decisions.add_arguments(decide)

        def breakpoint_verb(name: str, do: breakpoints.Do, help: str) -> CommandParser:
            sub = verb(name, lambda options: self._now(do(_common(options), options)), help)
            _add_session(sub)
            sub.add_argument("--reason", default="done on the command line")
            return sub

        breakpoints.add_verbs(breakpoint_verb, _json_object)
        memory = verb("memory", self.memory, "List what a session's agent remembers about its customer.")
        _add_session(memory)
        memory_entries.add_verbs(steering)

    def handle(self, *, do: Callable[[Options], None], **options: Any) -> None:
        try:
            with ends_quietly():
                do(options)
        except ActionError as error:
            raise CommandError(one_line(error)) from error
        except Error as error:
            raise CommandError(why_unusable(error)) from error

    def list_agents(self, options: Options) -> None:
        if not RegisteredAgent.objects.exists():
            self._publish()
        rows = RegisteredAgent.objects.order_by("key").values_list("key", "title", "model", "problem")
        self._table(["key", "title", "model", "problem"], rows)

    def start(self, options: Options) -> None:
        if not RegisteredAgent.objects.filter(key=options["agent"]).exists():
            self._publish()
        start_options = {
            name: options[name]
            for name in ("agent", "message", "title", "customer", "tags", "state", "request_id")
        }
        self.stdout.write(str(actions.start(actor=_actor(), **start_options).pk))

    def show(self, options: Options) -> None:
        payload = session_json(_session(options["session_id"]), mask=Mask.none(), keys=SHOWN)
        if options["as_json"]:
            self.stdout.write(as_json(payload, indent=2))
        else:
            self._show(payload)

    def tail(self, options: Options) -> None:
        session = _session(options["session_id"])
        entries = tail.follow(session.pk, last=options["lines"], until_rest=options["until_rest"])
        try:
            for operation, record in entries:
                if options["as_json"]:
                    self.stdout.write(as_json({"op": operation, **record}))
                else:
                    self.stdout.write(tail.line((operation, record), one_line))
                self.stdout.flush()
        except Session.DoesNotExist:
            raise CommandError(f"The session {session.pk} was deleted.") from None
        if not options["as_json"]:
            self._now(_session(options["session_id"]))

    def mirror(self, options: Options) -> None:
        import redis

        from sessions_app.mirror import healing
        from sessions_app.mirror.sessions import MirrorSessions

        if options["rebuild"] and not settings.AGENTSTATE_MIRROR and settings.AGENTSTATE_MIRROR_URL:
            raise CommandError("The mirror is turned off: AGENTSTATE_MIRROR is false.")
        do = healing.rebuild if options["rebuild"] else healing.remove
        try:
            number = do(MirrorSessions.configured())
        except LookupError as error:
            raise CommandError(str(error)) from None
        except redis.RedisError as error:
            raise CommandError(f"The server of the mirror failed: {one_line(error)}") from error
        done = "The mirror has {}." if options["rebuild"] else "Removed {} from the mirror."
        self.stdout.write(done.format(count(number, "session")))

    def synth(self, options: Options) -> None:
        if why := synth.why_refused(options["sessions"], options["steps"]):
            raise CommandError(why, returncode=2)
        if Session.objects.exists() and not options["add"]:
            raise CommandError(
                "The database already contains sessions. Use --add to add synthetic ones to them."
            )
        if not RegisteredAgent.objects.exists():
            self._publish()
        sizes = {name: options[name] for name in ("sessions", "steps", "seed")}
        written = synth.write(**sizes, now=timezone.now())
        self.stdout.write(f"Wrote {count(written.sessions, 'session')} in {count(written.rows, 'row')}.")
        self.stdout.write(f"The sweep adds them to the search over time; {MANAGE} update_search does it now.")

    def message(self, options: Options) -> None:
        self._now(
            actions.send_message(
                actor=_actor(),
                session_id=options["session_id"],
                text=options["text"],
                request_id=options["request_id"],
            )
        )

    def fork(self, options: Options) -> None:
        how = {name: options[name] for name in ("title", "message", "replace")}
        fork = actions.fork(**_common(options), **how)
        self.stdout.write(str(fork.pk))

    def decide(self, options: Options) -> None:
        decisions.check(options)
        self._now(decisions.decide(_common(options), options, _session(options["session_id"])))

    def memory(self, options: Options) -> None:
        self._table(memory_entries.COLUMNS, memory_entries.rows(_session(options["session_id"])))

    def _publish(self) -> None:
        for problem in publish_agents():
            self.stderr.write(one_line(problem))

    def _now(self, session: Session) -> None:
        waiting = f" for {session.waiting_for}" if session.waiting_for else ""
        stop_request = f", asked to {session.stop_request}" if session.stop_request else ""
        self.stdout.write(f"{session.pk} is {session.status}{waiting}{stop_request}")

    def _show(self, payload: dict[str, Any]) -> None:
        waiting = f" for {payload['waiting_for']}" if payload["waiting_for"] else ""
        why = f": {payload['why']}" if payload["why"] else ""
        lines = [
            one_line(payload["title"]),
            f"{payload['agent']}  {payload['id']}  branch {payload['branch']}  version {payload['version']}",
            one_line(f"{payload['status']}{waiting}, {payload['phase']}{why}"),
        ]
        lines += [f"breakpoint {breakpoints.line(row, one_line)}" for row in payload["breakpoints"] or []]
        lines += [f"error: {payload['error']}"] if payload["error"] else []
        lines += [f"final answer: {payload['final_answer']}"] if payload["final_answer"] else []
        lines += [f"unread: {text}" for text in payload["inbox"]]
        self.stdout.write("\n".join(printable(line).replace("\n", "\n    ") for line in lines))
        for name, columns in {
            "messages": ["position", "role", "text"],
            "tool_calls": ["call_id", "tool", "status", "attempts", "arguments", "result", "error"],
            "checkpoints": ["id", "position", "kind", "phase"],
        }.items():
            self.stdout.write(f"\n{name.replace('_', ' ')}")
            self._table(columns, [[row[column] for column in columns] for row in payload[name]])
            for row in payload[name]:
                if "replaced_by" in row:
                    self.stdout.write(f"The model reads {row['replaced_by']} instead of {row['position']}.")
                if "from_state" in row:
                    taken = f"{row['call_id']} from the State: {as_json(row['from_state'])}"
                    self.stdout.write(one_line(taken))

    def _table(self, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        lines = [list(head), *([one_line(cell) for cell in row] for row in rows)]
        widths = [min(60, max(map(len, column))) for column in zip(*lines, strict=True)]
        for line in lines:
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            self.stdout.write("  ".join(padded).rstrip())


def _add_session(parser: CommandParser) -> None:
    parser.add_argument("session_id", metavar="ID", help="the session's id")


def _add_checkpoint(parser: CommandParser) -> None:
    parser.add_argument(
        "checkpoint_id", metavar="CHECKPOINT", type=int, help="the checkpoint's id, see `agent show`"
    )


def _add_request_id(parser: CommandParser, then: str) -> None:
    parser.add_argument(
        "--request-id", type=UUID, metavar="UUID", help=f"a command that is repeated with the same id {then}"
    )


def _common(options: Options) -> dict[str, Any]:
    """What the actions call by the same name."""
    common_options = ("session_id", "checkpoint_id", "entry_id", "text", "reason", "run")
    return {"actor": _actor()} | {name: options[name] for name in common_options if name in options}


def _session(session_id: str) -> Session:
    try:
        return Session.objects.select_related("branch").get(pk=UUID(session_id))
    except (ValueError, Session.DoesNotExist):
        raise CommandError(f"There is no session {session_id}.") from None


def _actor() -> Actor:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    # On Unix a name may have bytes that are no text.
    return Actor.command_line(name.encode(errors="replace").decode())


def _count(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise ArgumentTypeError("give a whole number, 0 or more")
    return number


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = read_json(text)
    except Invalid as error:
        raise ArgumentTypeError(str(error)) from None
    if not isinstance(value, dict):
        raise ArgumentTypeError('give a JSON object, like {"key": "value"}')
    return value
