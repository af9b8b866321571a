"""Inserts synthetic sessions, each with an ending and a story that are chosen at random from the seed."""

import random
from datetime import datetime, timedelta

from django.db import connection

from agentstate.demo.stories import Author, Story
from sessions_app.management.synth import SHORTEST_LONG
from sessions_app.management.synth.rows import Rows, keys_of
from sessions_app.management.synth.session import Ending, SessionRows
from sessions_app.models import Branch, RegisteredAgent, ToolCall

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


def insert_sessions(sessions: int, *, steps: int, seed: int, now: datetime) -> int:
    """As `synth.write`; the number of rows that were inserted."""
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
    return rows.written


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
