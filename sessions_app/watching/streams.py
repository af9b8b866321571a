"""The pages that listen for news of their session, in one process: one subscription for all of them, on its event loop.

A page is told only that there is news; it then asks as it would by polling. So a page has a flag in place of a queue:
it takes the same room however slow its reader is, and news that come while it is told are one.

What else a page is sent comes from one round for all pages, every `open_pages.SAY_SECONDS`: a keep-alive, which carries
the state of its session (`standing`). From that it learns of news that were lost on the way, and while it listens its
user counts as having the session open. Between two rounds a stream without news does not wake up. It ends when the
subscription does, when the page may no longer see the session, and after LIFE_SECONDS; the page then polls, and listens
again later.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from uuid import UUID
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import Error, connections

from sessions_app.watching import open_pages, standing
from sessions_app.watching.news import REPLY

logger = logging.getLogger(__name__)

# At least so long from one event of a page to the next, and where there is only more of a reply that is being written.
SPACING_SECONDS = 0.4
REPLY_SPACING_SECONDS = 1.0
CHECK_SECONDS = 60.0
# So long the checks of one round may take, so that the next keep-alives are in time.
CHECKING_SECONDS = 5.0
LIFE_SECONDS = 15 * 60.0
# Whoever does not read what is sent for so long after that is disconnected.
GRACE_SECONDS = 60.0
PATIENCE_SECONDS = 2.0
AGAIN_SECONDS = 5.0
# A browser has six connections to a server that speaks HTTP/1.1, and needs some for everything else.
MOST_OF_LOGIN = 4

OPEN, NEWS = b": open\n\n", b"data: news\n\n"

Batches = AsyncIterator[Iterable[str]]
Subscribe = Callable[[], AbstractAsyncContextManager[Batches]]
Standings = Callable[[Collection[standing.Page]], Mapping[standing.Page, standing.Standing]]


class Pace:
    """When a page is told of news, by the clock that it is given."""

    def __init__(self, now: float) -> None:
        # How long after the last event the next is due; infinite without news.
        self._spacing = inf
        self._told_at = now - REPLY_SPACING_SECONDS

    def hear(self, spacing: float) -> None:
        """There is news, of a kind that is told at most so often."""
        self._spacing = min(self._spacing, spacing)

    def next(self, now: float) -> float:
        """In how many seconds the page is to be told; infinite without news, and 0 if now, which counts as done."""
        wait = self._told_at + self._spacing - now
        if wait > 0:
            return wait
        self._spacing = inf
        self._told_at = now
        return 0.0


@dataclass(eq=False, slots=True)
class Place:
    """Room for one stream of a login, from before the answer that it is part of until whoever took it leaves it."""

    login: str
    _taken: Counter[str]
    _is_left: bool = False

    def leave(self) -> None:
        """A second time does nothing."""
        if self._is_left:
            return
        self._is_left = True
        self._taken[self.login] -= 1
        if not self._taken[self.login]:
            del self._taken[self.login]


@dataclass(eq=False, slots=True)
class _Page:
    """
    may_go_on: whether the page may still see the session; called in a thread.
    beat: a keep-alive that has not been sent yet.
    """

    session: UUID
    user_id: int
    may_go_on: Callable[[], bool]
    checked_at: float
    pace: Pace
    beat: bytes = b""
    is_over: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, beat: bytes) -> None:
        self.beat = beat
        self.woken.set()

    def end(self) -> None:
        self.is_over = True
        self.woken.set()


class Streams:
    """The open streams of one event loop.

    :param subscribe: A context that yields, while the subscription stands, the ids of sessions that have changed.
    :param standings: Called in a thread, every `open_pages.SAY_SECONDS`.
    :param most: Streams that are open at once.
    """

    def __init__(
        self,
        subscribe: Subscribe,
        *,
        most: int,
        standings: Standings = standing.of_pages,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subscribe = subscribe
        self._standings = standings
        self._most = most
        self._clock = clock
        self._pages: dict[str, set[_Page]] = {}  # by the session's id
        self._logins: Counter[str] = Counter()  # the places that are taken
        self._stands = asyncio.Event()
        self._away_until = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """The places that are taken: by open streams, and by those that are about to begin."""
        return self._logins.total()

    def has_room(self, login: str) -> bool:
        return len(self) < self._most and self._logins[login] < MOST_OF_LOGIN

    def take_place(self, login: str) -> Place | None:
        """None where there is no room. Whoever takes it has to leave it, also where `stream` is never begun."""
        if not self.has_room(login):
            return None
        self._logins[login] += 1
        return Place(login, self._logins)

    async def is_subscribed(self) -> bool:
        """Whether the subscription stands, after it has been begun where there is none."""
        if self._task is None or self._task.done():
            if self._clock() < self._away_until:
                return False
            self._task = asyncio.create_task(self._follow())
        try:
            await asyncio.wait_for(self._stands.wait(), PATIENCE_SECONDS)
        except TimeoutError:
            return False
        return True

    async def stream(
        self, session_id: UUID, place: Place, user_id: int, may_go_on: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        """The text/event-stream of one page; empty where there is no subscription.

        :param place: Left at the end of the stream.
        :param may_go_on: Asked now and then, in a thread, whether the page may still see the session. While the
            database is away it raises `django.db.Error`, and the stream goes on.
        """
        if not self._stands.is_set():
            place.leave()
            return
        now = self._clock()
        page = _Page(session_id, user_id, may_go_on, checked_at=now, pace=Pace(now))
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        end = loop.call_later(LIFE_SECONDS, page.end)
        # A stream whose reader takes nothing waits in the server, where it cannot end by itself.
        guard = loop.call_later(LIFE_SECONDS + GRACE_SECONDS, task.cancel)
        self._add(page)
        try:
            yield OPEN
            while not page.is_over:
                page.woken.clear()
                if page.beat:
                    beat, page.beat = page.beat, b""
                    yield beat
                elif seconds := page.pace.next(self._clock()):
                    await _within(page.woken, seconds)
                else:
                    yield NEWS
        finally:
            end.cancel()
            guard.cancel()
            self._remove(page)
            place.leave()

    def tell(self, session_ids: Iterable[str]) -> None:
        """The pages of these sessions have news: of each as `news` sends it."""
        for session_id in session_ids:
            session = session_id.removeprefix(REPLY)
            spacing = SPACING_SECONDS if session == session_id else REPLY_SPACING_SECONDS
            for page in self._pages.get(session, ()):
                page.pace.hear(spacing)
                page.woken.set()

    async def look_after_all(self) -> None:
        """Send each page the state of its session, and end the streams of those that may no longer see it."""
        pages = [page for pages in self._pages.values() for page in pages]
        begun = self._clock()
        unchecked = sorted(
            (page for page in pages if begun >= page.checked_at + CHECK_SECONDS),
            key=lambda page: page.checked_at,
        )

        def look() -> Mapping[standing.Page, standing.Standing]:
            with _closing_connections():
                return self._standings({(page.session, page.user_id) for page in pages})

        def check() -> list[_Page]:
            with _closing_connections():
                return list(self._refused(unchecked))

        found = await asyncio.to_thread(look)
        for page in pages:
            page.send(_beat(found[page.session, page.user_id]))
        if unchecked:
            for page in await asyncio.to_thread(check):
                page.end()

    def _refused(self, unchecked: Sequence[_Page]) -> Iterator[_Page]:
        """Those of the pages that may no longer see their session. Where that takes long, the last ones are checked in
        the next round, behind its keep-alives.
        """
        until = self._clock() + CHECKING_SECONDS
        for page in unchecked:
            if self._clock() >= until:
                return
            page.checked_at = self._clock()
            try:
                may_go_on = page.may_go_on()
            except Error:
                return  # each of the others would wait for the database as long as this one
            except Exception:
                logger.exception("A page that listens could not be checked, and polls again.")
                may_go_on = False
            if not may_go_on:
                yield page

    async def _go_on_looking(self) -> None:
        while True:
            await asyncio.sleep(open_pages.SAY_SECONDS)
            await self.look_after_all()

    async def _follow(self) -> None:
        try:
            async with asyncio.TaskGroup() as group, self._subscribe() as batches:
                looking = group.create_task(self._go_on_looking())
                self._stands.set()
                async for session_ids in batches:
                    self.tell(session_ids)
                looking.cancel()
        except* Exception as errors:  # of the client, of the network, of an address that cannot be used
            logger.warning("Pages that listened for news poll again: %s", errors.exceptions[0])
        finally:
            self._away_until = self._clock() + AGAIN_SECONDS
            self._stands.clear()
            for pages in self._pages.values():
                for page in pages:
                    page.end()

    def _add(self, page: _Page) -> None:
        self._pages.setdefault(str(page.session), set()).add(page)

    def _remove(self, page: _Page) -> None:
        session = str(page.session)
        self._pages[session].discard(page)
        if not self._pages[session]:
            del self._pages[session]


def _beat(stands: standing.Standing) -> bytes:
    change, lost = "" if stands.change is None else stands.change, "1" if stands.is_lost else ""
    return f"data: beat {change} {lost} {stands.others}\n\n".encode()


async def _within(event: asyncio.Event, seconds: float) -> None:
    """Wait for it, for so long at most."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), None if seconds == inf else seconds)


@contextmanager
def _closing_connections() -> Iterator[None]:
    """In a thread of the event loop's executor, which would keep them until it is needed again."""
    try:
        yield
    finally:
        connections.close_all()


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Streams] = WeakKeyDictionary()


def streams() -> Streams:
    """Those of this process: of the event loop on which this is called."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loops:
        from sessions_app.watching.subscription import subscribed  # its client takes a while to import

        _of_loops[loop] = Streams(subscribed, most=settings.AGENTSTATE_STREAMS)
    return _of_loops[loop]
