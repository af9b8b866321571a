"""How long a search takes among many messages, and how fast new ones are added to the index.

    python -m benchmarks.search [--messages 100000]

The program works on the empty database of DATABASE_URL. Sessions hold 100 messages and 50 tool calls each, of words as
frequent as those of a language are.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from benchmarks.children import ask, say
from benchmarks.contenders import database
from benchmarks.rows import Measured, Row
from benchmarks.sizes import Sizes
from benchmarks.steps import start_django
from benchmarks.workload import gather_statistics
from tools.processes import environment
from tools.services import running_postgres

if TYPE_CHECKING:
    from sessions_app.models import Branch

MESSAGES, CALLS = 100, 50
MOST_MESSAGES = 100_000
GOAL_MS = 100
TOOLS = ("lookup_policy", "read_claim", "issue_refund", "send_letter")
SOUGHT = {
    "a claim's number": "CLM-123-45",
    "a rare word": "word15000",
    "a frequent word": "word3",
    "the beginning of a word": "word12",
    "a tool and a number": "lookup_policy POL-8",
    "two frequent words": "word3 word5",
    "a quoted phrase": '"word3 word5"',
    "a word that nobody said": "nothing",
}


def texts(seed: int = 1) -> Iterator[str]:
    """Messages of sixty words, the n-th word as frequent as 1/n."""
    pick = random.Random(seed)
    words = [f"word{n}" for n in range(1, 20_001)]
    weights = list(accumulate(1 / n for n in range(1, 20_001)))
    while True:
        yield " ".join(pick.choices(words, cum_weights=weights, k=60))


def fill(messages: int) -> None:
    from django.db import transaction

    from sessions_app.models import Branch, Session

    message_texts = texts()
    for number in range(messages // MESSAGES):
        with transaction.atomic():
            session = Session.objects.create(agent="bench", title=f"Session {number}")
            session.branch = Branch.objects.create(session=session, number=1)
            session.save()
            _rows(session.branch, number, message_texts)


def _rows(branch: "Branch", number: int, message_texts: Iterator[str]) -> None:
    from django.utils import timezone

    from sessions_app.models import Message, ToolCall

    Message.objects.bulk_create(
        Message(
            branch=branch,
            position=3 * i + 1,
            role="user",
            text=f"{next(message_texts)} CLM-{number}-{i}",
            body={},
        )
        for i in range(MESSAGES)
    )
    ToolCall.objects.bulk_create(
        ToolCall(
            branch=branch,
            position=3 * i + 2,
            call_id=str(i),
            tool=TOOLS[i % len(TOOLS)],
            arguments={"policy": f"POL-{i}"},
            result={"text": next(message_texts)},
            status="done",
            idempotency_key=str(i),
            ended_at=timezone.now(),
        )
        for i in range(CALLS)
    )


def measure(sizes: Sizes) -> Measured:
    """On SQLite and PostgreSQL, of as many messages as sessions of pages, in sessions of their own."""
    messages = max(MESSAGES, min(MOST_MESSAGES, sizes.sessions))
    rows: list[Row] = []
    for database_name in sizes.databases:
        rounds = []
        for number in range(1, sizes.rounds + 1):
            with ExitStack() as stack:
                server = stack.enter_context(running_postgres()) if database_name == "PostgreSQL" else None
                env = environment(DATABASE_URL=stack.enter_context(database(server)))
                rounds.append(ask("benchmarks.search", "--messages", str(messages), env=env))
            say(f"round {number}, {database_name}: {rounds[-1]}")
        where = f"{database_name}, {messages:,} messages"
        # The goal is one of PostgreSQL.
        goal = GOAL_MS if database_name == "PostgreSQL" else None
        indexed = tuple(report.pop("indexed") for report in rounds)
        rows.append(Row(f"{where}: added to the index", indexed, "messages and calls a second"))
        rows += [
            Row(f"{where}: {what}", tuple(report[what] for report in rounds), "ms", goal)
            for what in rounds[0]
        ]
    return Measured(rows)


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def best(work: Callable[[], object]) -> float:
    """Milliseconds."""
    return min(seconds(work) for _ in range(3)) * 1000


def report(messages: int) -> dict[str, float]:
    """How many rows are indexed in a second, and the milliseconds of the first page of each search."""
    from sessions_app.finding import search_index
    from sessions_app.models import Message, ToolCall

    fill(messages)
    took = seconds(lambda: search_index.update(seconds=3600))
    gather_statistics(os.environ["DATABASE_URL"])
    measured = {"indexed": (Message.objects.count() + ToolCall.objects.count()) / took}
    for what, text in SOUGHT.items():
        measured[what] = best(partial(_first_page, text))
    return measured


def _first_page(text: str) -> None:
    """Without the first sessions of the list, which a search looks through besides."""
    from sessions_app.finding import search
    from sessions_app.finding.keys import are
    from sessions_app.models import Session

    keys, _ = search.newest_sessions(text, whole=True)
    list(Session.objects.filter(are(keys)).order_by("-updated_at", "-id")[:51])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=MOST_MESSAGES)
    options = parser.parse_args()
    start_django(os.environ["DATABASE_URL"])
    print(json.dumps(report(options.messages)))


if __name__ == "__main__":
    main()
