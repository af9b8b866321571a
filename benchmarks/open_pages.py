"""Pages of sessions that are open, as a browser has them: each asks again as often as it says itself."""

import heapq
import html
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx

CLIENTS = 16
# What asks for news: the last item of the timeline, and the line that says who else has the session open.
POLLS = re.compile(r'hx-get="(?P<address>[^"]+)"\s+hx-trigger="every (?P<seconds>\d+)s')
# The beginning of each result of `benchmarks.workload`.
RESULT = re.compile(r"\b(\d{8}) The policy")


@dataclass(slots=True)
class OpenPage:
    """
    shown: when the page first had the result of each call, by the call's number.
    """

    session: str
    polls: dict[str, tuple[str, float]] = field(default_factory=dict)
    shown: dict[int, float] = field(default_factory=dict)
    requests: int = 0

    def open(self, client: httpx.Client) -> None:
        self._read(client.get(f"/sessions/{self.session}/"))

    def poll(self, client: httpx.Client, kind: str) -> None:
        address, _ = self.polls[kind]
        self._read(client.get(address, headers={"HX-Request": "true"}))

    def _read(self, response: httpx.Response) -> None:
        response.raise_for_status()
        self.requests += 1
        for number in RESULT.findall(response.text):
            self.shown.setdefault(int(number), time.time())
        for poll in POLLS.finditer(response.text):
            address = html.unescape(poll["address"])
            kind = address.partition("?")[0].rstrip("/").rpartition("/")[2]
            self.polls[kind] = (address, float(poll["seconds"]))


def keep_open(address: str, cookie: tuple[str, str], pages: list[OpenPage], seconds: float) -> None:
    """Let the pages poll for so long after they have been opened. Their first polls are spread evenly."""
    name, value = cookie
    limits = httpx.Limits(max_connections=CLIENTS)
    with (
        httpx.Client(base_url=address, cookies={name: value}, timeout=60, limits=limits) as client,
        ThreadPoolExecutor(CLIENTS) as threads,
    ):
        list(threads.map(lambda page: page.open(client), pages))
        begun = time.monotonic()
        due = [
            (begun + every * number / len(pages), number, kind)
            for number, page in enumerate(pages)
            for kind, (_, every) in page.polls.items()
        ]
        heapq.heapify(due)
        polling = []
        while due and due[0][0] < begun + seconds:
            at, number, kind = heapq.heappop(due)
            time.sleep(max(0.0, at - time.monotonic()))
            page = pages[number]
            polling.append(threads.submit(page.poll, client, kind))
            heapq.heappush(due, (at + page.polls[kind][1], number, kind))
        for poll in polling:
            poll.result()
