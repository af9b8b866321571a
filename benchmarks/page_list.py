"""Every page of the desk with its goal: queues, filters, tabs, forms, polls, searches, and the sweep."""

import html
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

from benchmarks import desk_work, session_pages
from benchmarks.people import supervisor
from benchmarks.session_pages import BRIEF, LONGEST

if TYPE_CHECKING:
    from django.test import Client

    from sessions_app.models import Session

# Goals, in milliseconds of server time.
QUEUE, TAB, TICK, NEWS, SEARCH, ESTIMATE, SWEEP = 50, 80, 5, 50, 100, 200, 200
LOST, DUE = 200, 5_000
ONE_STEP = "live, a step"
# Steps that a page has missed, whose browser was away for a while.
MANY = 20
# The worker of the sessions that are lost; those that are due have its name too, by which the next run finds them.
GONE = "gone"

# Beside those of `each_choice`.
LISTS = (
    "/inbox/",
    "/inbox/?kind=failed&agent=claims",
    "/inbox/?tag=vip",
    "/inbox/?customer=Lindqvist",
    "/inbox/?agent=letters&since=30d",
    "/inbox/?agent=letters&tag=letter",
    "/inbox/?agent=claims&customer=Lindqvist",
    "/inbox/?tag=research",
    "/inbox/?phase=executing&tag=vip",
    "/inbox/?phase=error&tag=vip",
    "/inbox/?phase=error&tag=refund",
    "/inbox/?phase=planning&since=30d",
    "/inbox/?phase=reflecting&tag=question",
    "/inbox/?tag=letter&since=30d",
    "/inbox/?tag=vip&since=30d",
    "/inbox/?tag=question&since=30d",
    "/inbox/?agent=claims&since=30d",
    "/inbox/?phase=executing&since=30d",
    "/inbox/?assignee=nobody&since=30d",
    "/inbox/?order=newest",
    "/inbox/?tag=vip&order=newest",
    "/?queue=running&phase=done",
    "/?queue=done&tag=vip",
    "/?queue=done&tag=vip&agent=claims",
    "/?queue=all&tag=vip",
    "/?queue=all&customer=Lindqvist",
    "/?queue=all&customer=zq",
    "/?queue=all&customer=n",
    "/?queue=all&tag=vip&customer=Lindqvist",
    "/?queue=all&agent=claims&customer=Lindqvist",
    "/?queue=all&phase=error&tag=question",
    "/?queue=all&phase=planning&assignee=nobody",
    "/?queue=all&agent=letters&tag=vip",
    "/?queue=done&agent=letters&tag=vip",
    "/?queue=all&status=cancelled&phase=executing",
    "/?queue=failed&status=idle&phase=planning",
    "/?queue=done&order=oldest",
    "/?queue=stuck&order=newest",
    "/?queue=all&since=30d&order=oldest",
    "/?queue=done&since=30d&order=oldest",
    "/?queue=all&tag=vip&since=30d&order=oldest",
    "/?queue=done&agent=letters&since=7d&order=oldest",
    "/?queue=all&tag=vip&customer=Lindqvist&order=oldest",
    "/agents/",
    "/agents/claims/",
    "/workers/",
    "/views/",
    "/bulk/actions/",
    "/start/",
)
NUMBERS = "/views/numbers/?queue=all"
POLLED = ("/?queue=all", "/inbox/")
SEARCHES = (
    "nothinglikethis",
    "Lindqvist",
    "policy",
    "the",
    "POL-8801",
    "CLM-1043",
    "2026-10-31",
    "zq",
    "good question",
    "hello damage",
    "morning deductible",
    '"deductible policy"',
    '"hello up"',
    '"policy the"',
)
# Searches in a queue, and beside a filter.
SEARCHES_AMONG = (
    ("policy", "queue=failed"),
    ("Lindqvist", "queue=failed"),
    ("Lindqvist", "queue=stuck"),
    ("Lindqvist", "queue=running"),
    ("CLM-1043", "queue=done"),
    ("morning deductible", "queue=failed"),
    ("Lindqvist", "queue=all&tag=vip"),
    ("the", "queue=done"),
    ("hello damage", "queue=waiting"),
    ("Lindqvist", "queue=all&agent=claims"),
    ("deductible", "queue=all&tag=vip"),
)
# In the inbox, and beside a filter of it.
SEARCHES_IN_INBOX = (
    ("policy", ""),
    ("Lindqvist", ""),
    ("CLM-1043", ""),
    ("nothinglikethis", ""),
    ("Lindqvist", "&tag=vip"),
    ("policy", "&since=30d"),
)
ADMIN = (
    "/admin/sessions_app/session/",
    "/admin/sessions_app/session/?status=waiting",
    "/admin/sessions_app/toolcall/",
    "/admin/sessions_app/event/",
)
ADMIN_SEARCH = "/admin/sessions_app/session/?q=01"


def pages() -> Iterator[tuple[str, int | None, Callable[[], object]]]:
    """Name, goal and request of each page; None where it is only shown."""
    from sessions_app.models import BulkAction, Session

    client = supervisor()
    # One tab after the other, not one session: they are compared, and a machine's speed changes within minutes.
    sessions = session_pages.asked_for()
    for address in (*each_choice(), *LISTS):
        yield address, QUEUE, get(client, address)
    for address in POLLED:
        yield f"{address}: its poll", QUEUE, _poll(client, address)
    for words in SEARCHES:
        yield f"search: {words}", SEARCH, get(client, f"/?queue=all&q={quote_plus(words)}")
    for words, among in SEARCHES_AMONG:
        yield f"search: {words}, {among}", SEARCH, get(client, f"/?{among}&q={quote_plus(words)}")
    for words, beside in SEARCHES_IN_INBOX:
        name = f"search: {words}, inbox{beside.replace('&', ', ')}"
        yield name, SEARCH, get(client, f"/inbox/?q={quote_plus(words)}{beside}")
    for address in ADMIN:
        yield address, QUEUE, get(client, address)
    yield ADMIN_SEARCH, SEARCH, get(client, ADMIN_SEARCH)
    let_sessions_be_lost_and_due()
    for name, addresses in _of_sessions(sessions):
        for which, address in addresses.items():
            yield f"{which}: {name}", TAB, get(client, address)
    for which, session in sessions.items():
        yield f"{which}: what its run goes on from", None, partial(_restore, session)
    for which, session in sessions.items():
        tick = polled_address(client, f"/sessions/{session.pk}/", f"/sessions/{session.pk}/live/")
        yield f"{which}: live, no news", TICK, get(client, tick)
        yield f"{which}: {ONE_STEP}", NEWS, get(client, since(tick, session, 1))
        if which != BRIEF:
            yield f"{which}: live, {MANY} steps", NEWS, get(client, since(tick, session, MANY))
    for waiting_for in ("approval", "doubt"):
        waiting = Session.objects.filter(waiting_for=waiting_for).first()
        if waiting is not None:
            for name, address in (("", f"/sessions/{waiting.pk}/"), *session_pages.forms(waiting)):
                yield f"a session that waits, {waiting_for}: {name}", TAB, get(client, address)
    fork = Session.objects.filter(line=sessions[LONGEST].line).exclude(forked_from=None).latest("position")
    for name, address in (*session_pages.tabs(fork), *session_pages.of_rows(fork)):
        yield f"a fork of {LONGEST}: {name}", TAB, get(client, address)
    yield f"the numbers of {desk_work.VIEWS} saved views", QUEUE, get(client, NUMBERS, part=True)
    yield "a bulk action", QUEUE, get(client, f"/bulk/actions/{BulkAction.objects.latest('pk').pk}/")
    for query in ("queue=done&kind=assign", "queue=failed&tag=vip", "queue=stuck"):
        yield f"bulk estimate: {query}", ESTIMATE, get(client, f"/bulk/?{query}")
    yield f"sweep: {LOST} lost, {DUE} due", SWEEP, sweep


def each_choice() -> Iterator[str]:
    """Each queue and kind of lines alone, and each value of a filter of the list of all sessions and of the inbox."""
    from sessions_app.finding.filters import AGES
    from sessions_app.finding.inbox_rows import KINDS
    from sessions_app.finding.queues import QUEUES
    from sessions_app.models import Phase, RegisteredAgent, Status

    values = {
        "status": Status.values,
        "phase": Phase.values,
        "since": list(AGES),
        "assignee": ["me", "nobody", "colleague-1"],
        "agent": list(RegisteredAgent.objects.order_by("key").values_list("key", flat=True)),
    }
    yield from (f"/?queue={queue.key}" for queue in QUEUES)
    yield from (f"/inbox/?kind={kind}" for kind in KINDS)
    for name, each in values.items():
        for value in each:
            yield f"/?queue=all&{name}={value}"
            yield f"/inbox/?{name}={value}"


def _of_sessions(sessions: dict[str, "Session"]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each page of a session by its name, with its address for each of the sessions that have it."""
    for kind in (session_pages.tabs, session_pages.forms, session_pages.of_rows):
        named: dict[str, dict[str, str]] = {}
        for which, session in sessions.items():
            for name, address in kind(session):
                named.setdefault(name, {})[which] = address
        yield from named.items()


def _restore(session: "Session") -> object:
    from sessions_app.history import restore

    return restore.read(session.current_branch)


def polled_address(client: "Client", address: str, beginning: str) -> str:
    """The address that the page asks for news."""
    page = client.get(address).content.decode()
    polls = map(html.unescape, re.findall(r'hx-get="([^"]+)"\s+hx-trigger="every', page))
    return next(poll for poll in polls if poll.startswith(beginning) and "also-open" not in poll)


def since(tick: str, session: "Session", steps: int) -> str:
    """What a page asks that shows all but so many of the newest steps.

    :param tick: What one asks that shows all of them.
    """
    from sessions_app.models import Checkpoint

    of_history = Checkpoint.objects.visible_on(session.current_branch)
    ended = of_history.filter(kind__in=("step", "end")).order_by("-position")
    shown = [*ended.values_list("position", flat=True)[: steps + 1]][-1]
    after = max(0, session.change - (session.position - shown))
    return re.sub(
        r"(after|from|shown)=\d+",
        lambda found: f"{found[1]}={after if found[1] == 'after' else shown}",
        tick,
    )


def _poll(client: "Client", address: str) -> Callable[[], object]:
    """What an open list asks; after news, such as less time that is left to decide, it asks for news since then."""
    polled = polled_address(client, address, "/")

    def request() -> object:
        nonlocal polled
        response = client.get(polled)
        assert response.status_code in (200, 204), f"{polled}: {response.status_code}"
        if response.status_code == 200:
            polled = polled_address(client, address, "/")
        return response.content

    return request


def get(client: "Client", address: str, *, part: bool = False) -> Callable[[], object]:
    """
    :param part: As a page asks for a part of itself.
    """
    headers = {"HX-Request": "true"} if part else {}

    def request() -> object:
        response = client.get(address, headers=headers)
        assert response.status_code in (200, 204), f"{address}: {response.status_code}"
        return response.content

    return request


def sweep() -> None:
    """Rolled back: the next round finds the same."""
    from django.db import transaction
    from django.utils import timezone

    from sessions_app.runtime import recovery

    now = timezone.now()
    with transaction.atomic():
        recovery.sweep(now)
        transaction.set_rollback(True)


def let_sessions_be_lost_and_due() -> None:
    """So many idle sessions lose a worker that never was, and so many are due; no others, though they were written a
    while ago. Those of an earlier run are idle again.
    """
    from django.utils import timezone

    from sessions_app.models import Session, Status

    past, later = timezone.now() - timedelta(minutes=1), timezone.now() + timedelta(days=1)
    at_rest = {"status": Status.IDLE, "worker": "", "lease_expires_at": None, "next_run_at": None}
    Session.objects.filter(worker=GONE).update(**at_rest)
    Session.objects.filter(status=Status.RUNNING).update(lease_expires_at=later)
    Session.objects.filter(status=Status.QUEUED).update(next_run_at=later)
    sessions = Session.objects.filter(status=Status.IDLE).order_by("pk").values_list("pk", flat=True)
    keys = list(sessions[: LOST + DUE])
    Session.objects.filter(pk__in=keys[:LOST]).update(
        status=Status.RUNNING, worker=GONE, lease_expires_at=past
    )
    Session.objects.filter(pk__in=keys[LOST:]).update(status=Status.QUEUED, worker=GONE, next_run_at=past)
