"""Synthetic sessions, any number of them: for demos, benchmarks and tests at scale.

They are sessions of the demo agents in every state, with customers, titles, tags, approvals, failures and audit events,
each with the rows and at the positions of a real run; a paused one can be resumed where the demo agents are registered.
Some are long: one of `steps` steps, one of a tenth of that, and so on. The same seed makes the same sessions.
"""

import random
from argparse import ArgumentParser
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from agentstate.demo.stories import Author, Story
from sessions_app.management.synth.rows import Rows, keys_of
from sessions_app.management.synth.session import Ending, SessionRows
from sessions_app.models import Branch, RegisteredAgent, ToolCall

SHORTEST_LONG = 100
"""Fewer steps make no long session."""
MOST_SESSIONS, MOST_STEPS = 100_000_000, 1_000_000
_STEPS_OF_A_TURN = 2
_SECONDS_OF_A_STEP = 2
_DAYS = 90
# Of 1,000 sessions.
_SHARES = {
    Ending.DONE: 876,
    Ending.FAILED: 50,
    Ending.CANCELLED: 40,
    Ending.PAUSED: 15,
    Ending.APPROVAL: 8,
    Ending.QUEUED: 6,
    Ending.DOUBT: 4,
    Ending.RUNNING: 1,
}


def add_arguments(parser: ArgumentParser) -> None:
    """Those of the command."""
    parser.add_argument(
        "--sessions", type=int, default=1_000, metavar="N", help=f"from 1 to {MOST_SESSIONS:,}"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=1_000,
        metavar="M",
        help=f"steps of the longest session, from {SHORTEST_LONG} to {MOST_STEPS:,}; 0 for none that is long",
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same sessions")
    parser.add_argument("--add", action="store_true", help="also to a database that holds sessions already")


def why_refused(sessions: int, steps: int) -> str:
    """Why the command does not write so many; "" if it does."""
    if 1 <= sessions <= MOST_SESSIONS and (steps == 0 or SHORTEST_LONG <= steps <= MOST_STEPS):
        return ""
    return (
        f"Give --sessions a number from 1 to {MOST_SESSIONS:,}, "
        f"and --steps one from {SHORTEST_LONG} to {MOST_STEPS:,}, or 0."
    )


@dataclass(frozen=True, slots=True)
class Written:
    sessions: int
    rows: int


def write(*, sessions: int, steps: int, seed: int, now: datetime) -> Written:
    """Insert so many sessions, those that changed last before `now` first.

    :param steps: Those of the longest session.
    """
    chance = random.Random(seed)  # noqa: S311 - nothing here is secret
    author = Author(chance)
    rows = Rows()
    branches, calls = keys_of(Branch), keys_of(ToolCall)
    definitions = dict(RegisteredAgent.objects.values_list("key", "definition"))
    lengths = _long_sessions(steps)[:sessions]
    for number in range(sessions):
        if number < len(lengths):
            # The two longest have the same state, so that their pages can be compared.
            ending = Ending.PAUSED if number < 2 else Ending.DONE
            story = author.claims(turns=max(1, lengths[number] // _STEPS_OF_A_TURN))
        else:
            ending = _ending(number - len(lengths), chance)
            story = _story(author, ending)
        lasted = timedelta(seconds=_SECONDS_OF_A_STEP * sum(len(turn.steps) + 1 for turn in story.turns) + 60)
        # Many changed lately, few long ago.
        ago = timedelta(days=_DAYS * chance.random() ** 2)
        session = SessionRows(
            rows,
            story,
            now - ago - lasted,
            chance=chance,
            branch=next(branches),
            calls=calls,
            definition=definitions.get(story.agent, ""),
        )
        session.write(ending)
        rows.flush_if_many()
    rows.flush()
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    return Written(sessions, rows.written)


def _long_sessions(steps: int) -> list[int]:
    lengths = []
    while steps >= SHORTEST_LONG:
        lengths.append(steps)
        steps //= 10
    return lengths


def _ending(number: int, chance: random.Random) -> Ending:
    """One of each first, so that a small database has all of them; then by their shares."""
    endings = tuple(_SHARES)
    return endings[number] if number < len(endings) else chance.choices(endings, tuple(_SHARES.values()))[0]


def _story(author: Author, ending: Ending) -> Story:
    match ending:
        case Ending.APPROVAL:
            return author.refund()
        case Ending.DOUBT:
            return author.letter()
        case _:
            return author.any_story()
