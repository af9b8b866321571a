"""Pages of sessions that are open, as a browser has them: each asks again as often as it says itself.

A page that may listen for news does: it asks when it is told, or hears of a change that it does not show, and when its
stream ends; who else has its session open it asks when it hears that these are others now, and every four minutes. Like
`desk.js`, but for what a page asks by the clock: its session steps sooner than that.
"""

import heapq
import html
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from selectors import EVENT_READ, DefaultSelector
from urllib.parse import urlsplit

import httpx

CLIENTS = 16
# What asks for news: the last item of the timeline, and the line that says who else has the session open.
POLLS = re.compile(r'hx-get="(?P<address>[^"]+)"\s+hx-trigger="every (?P<seconds>\d+)s')
STREAM = re.compile(r'data-news="(?P<address>[^"]+)"')
OTHERS = re.compile(r'data-others="(?P<others>[^"]*)"')
AFTER = re.compile(r'data-after="(?P<after>\d+)"')
MARK = re.compile(r'name="mark" value="(?P<mark>[^"]*)"')
BEAT = re.compile(rb"data: beat (?P<change>\d*) 1? (?P<others>\S*)\n")
# A page asks when its stream ends, so often; here the streams stay open.
LIFE = 900.0
# How often a page that listens says that it is open.
HERE = 240.0
# The beginning of each result of `benchmarks.workload`.
RESULT = re.compile(r"\b(\d{8}) The policy")


@dataclass(slots=True)
class OpenPage:
    """
    cookie: those of the login that has the page open.
    stream: the address at which it listens; "" where none is offered.
    after: the number of the last change that the page shows.
    others: who else has the session open, as the page shows it.
    mark: of its newest step, "" where that has none.
    polls: an address for each kind, and how often it is asked by itself.
    waiting: the kinds of polls that have not been sent yet: like htmx, a page has one behind the one under way.
    shown: when the page first had the result of each call, by the call's number.
    """

    session: str
    cookie: str
    stream: str = ""
    after: int = 0
    others: str = ""
    mark: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    polls: dict[str, tuple[str, float]] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    shown: dict[int, float] = field(default_factory=dict)
    requests: int = 0

    def open(self, client: httpx.Client) -> None:
        response = client.get(f"/sessions/{self.session}/", headers={"Cookie": self.cookie})
        # As a browser does. Without it the server would make a new secret for the forms of each answer.
        self.cookie = "; ".join(
            [self.cookie, *(f"{name}={value}" for name, value in response.cookies.items())]
        )
        self._read(response)

    def poll(self, client: httpx.Client, kind: str) -> None:
        with self.lock:
            self.waiting.discard(kind)
            address, _ = self.polls[kind]
            if kind == "live" and self.mark:
                address += f"&mark={self.mark}"
            self._read(client.get(address, headers={"HX-Request": "true", "Cookie": self.cookie}))

    def _read(self, response: httpx.Response) -> None:
        response.raise_for_status()
        self.requests += 1
        for number in RESULT.findall(response.text):
            self.shown.setdefault(int(number), time.time())
        if stream := STREAM.search(response.text):
            self.stream = html.unescape(stream["address"])
        if after := AFTER.search(response.text):
            self.after = int(after["after"])
        if others := OTHERS.search(response.text):
            self.others = others["others"]
        for poll in POLLS.finditer(response.text):
            address = html.unescape(poll["address"])
            kind = address.partition("?")[0].rstrip("/").rpartition("/")[2]
            every = float(poll["seconds"])
            if kind == "live":
                self.mark = next((field["mark"] for field in MARK.finditer(response.text)), "")
            if self.stream:
                every = LIFE if kind == "live" else HERE
            self.polls[kind] = (address, every)


@contextmanager
def open_pages(address: str, pages: Sequence[OpenPage]) -> Iterator[Callable[[float], None]]:
    """The pages have been opened, and listen where they may; yields what lets them ask for so many seconds."""
    limits = httpx.Limits(max_connections=CLIENTS)
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=address, timeout=60, limits=limits))
        threads = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        asked: list[Future[None]] = []

        def ask(page: OpenPage, kind: str) -> None:
            if kind not in page.waiting:
                page.waiting.add(kind)
                asked.append(threads.submit(page.poll, client, kind))

        def keep_open(seconds: float) -> None:
            """Their first polls are spread evenly."""
            begun = time.monotonic()
            due = [
                (begun + every * number / len(pages), number, kind)
                for number, page in enumerate(pages)
                for kind, (_, every) in page.polls.items()
            ]
            heapq.heapify(due)
            while due and due[0][0] < begun + seconds:
                at, number, kind = heapq.heappop(due)
                time.sleep(max(0.0, at - time.monotonic()))
                ask(pages[number], kind)
                heapq.heappush(due, (at + pages[number].polls[kind][1], number, kind))
            time.sleep(max(0.0, begun + seconds - time.monotonic()))
            for poll in [*asked]:  # pages go on to be told of news, and to ask
                poll.result()

        list(threads.map(lambda page: page.open(client), pages))
        stack.enter_context(listening(address, pages, ask))
        yield keep_open


@contextmanager
def listening(
    address: str, pages: Sequence[OpenPage], ask: Callable[[OpenPage, str], None]
) -> Iterator[None]:
    """All pages that are offered a stream have opened it; ``ask`` is called of each that is told to."""
    parts = urlsplit(address)
    with ExitStack() as stack:
        selector = stack.enter_context(DefaultSelector())
        unopened = {page.session for page in pages if page.stream}
        all_open = threading.Event()
        for page in pages:
            if not page.stream:
                continue
            connection = stack.enter_context(socket.create_connection((parts.hostname, parts.port)))
            request = f"GET {page.stream} HTTP/1.1\r\nHost: {parts.netloc}\r\nCookie: {page.cookie}\r\n\r\n"
            connection.sendall(request.encode())
            selector.register(connection, EVENT_READ, page)
        ended = threading.Event()

        def opened(page: OpenPage) -> None:
            unopened.discard(page.session)
            if not unopened:
                all_open.set()

        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(_read_streams, selector, opened, ask, ended)
            try:
                if unopened and not all_open.wait(60):
                    raise TimeoutError(f"{len(unopened)} streams have not been opened.")
                yield
            finally:
                ended.set()
            reading.result()


def _read_streams(
    selector: DefaultSelector,
    opened: Callable[[OpenPage], None],
    ask: Callable[[OpenPage, str], None],
    ended: threading.Event,
) -> None:
    """:raises ConnectionError: if one is refused, or ends."""
    while not ended.is_set():
        for key, _ in selector.select(0.1):
            connection: socket.socket = key.fileobj  # type: ignore[assignment]
            text = connection.recv(65536)
            if not text or text.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")):
                raise ConnectionError(f"A stream was refused or has ended: {text.decode()}")
            if b": open" in text:
                opened(key.data)
            if b"data: news" in text:
                ask(key.data, "live")
            for beat in BEAT.finditer(text):
                if int(beat["change"] or 0) > key.data.after:
                    ask(key.data, "live")
                if beat["others"].decode() != key.data.others:
                    ask(key.data, "also-open")
