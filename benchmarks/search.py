"""How long a search takes among many messages, and how fast new ones are added to the index.

    python -m benchmarks.search [--messages 100000] [--postgres]

Sessions hold 100 messages and 50 tool calls each, of words as frequent as those of a language are.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.steps import start_django

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from sessions_app.models import Branch, Session

MESSAGES, CALLS = 100, 50
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


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def best(work: Callable[[], object]) -> str:
    return f"{min(seconds(work) for _ in range(3)) * 1000:8.1f} ms"


def measure(where: str, messages: int) -> None:
    from sessions_app.access.masking import Mask
    from sessions_app.finding import search, search_index
    from sessions_app.models import Message, Session, ToolCall

    fill(messages)
    took = seconds(lambda: search_index.update(seconds=3600))
    rows = Message.objects.count() + ToolCall.objects.count()
    print(
        f"\n{where}: {rows:,} messages and calls were added to the index in {took:.1f} s ({rows / took:,.0f}/s)"
    )
    print(f"{'sought':26} {'sessions':>8} {'first page':>11} {'in one':>11}")
    for what, text in SOUGHT.items():
        sessions = Session.objects.order_by("-updated_at", "-id").filter(
            search.history_contains(text, whole=True)
        )
        session = sessions.select_related("branch").first()
        page = best(partial(_first_page, sessions))
        within = best(partial(search.hits, session, text, mask=Mask.none(), whole=True)) if session else ""
        print(f"{what:26} {sessions.count():>8} {page} {within}")


def _first_page(sessions: "QuerySet[Session]") -> None:
    list(sessions[:51])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument(
        "--postgres", action="store_true", help="On a throwaway PostgreSQL server instead of SQLite."
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.postgres:
            from tools.services import running_postgres

            url, where = stack.enter_context(running_postgres()).new_database(), "PostgreSQL"
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url, where = f"sqlite:///{Path(folder) / 'bench.sqlite3'}", "SQLite"
        start_django(url)
        measure(where, options.messages)


if __name__ == "__main__":
    main()
