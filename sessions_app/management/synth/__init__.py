"""Synthetic sessions, any number of them: for demos, benchmarks and tests at scale.

They are sessions of the demo agents in every state, with customers, titles, tags, approvals, failures and audit events,
each with the rows and at the positions of a real run; a paused one can be resumed where the demo agents are registered.
Some are long: one of `steps` steps, one of a tenth of that, and so on. The same seed makes the same sessions.

Only `write` imports Haystack, which takes longer to import than most commands take to run.
"""

from argparse import ArgumentParser
from dataclasses import dataclass
from datetime import datetime

SHORTEST_LONG = 100
"""Fewer steps make no long session."""
MOST_SESSIONS, MOST_STEPS = 100_000_000, 1_000_000


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
    from sessions_app.management.synth.writing import insert_sessions

    return Written(sessions, insert_sessions(sessions, steps=steps, seed=seed, now=now))
