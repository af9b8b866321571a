"""A small discrete-event simulation: processes are generators that wait, and that take and give back resources."""

import heapq
from collections import deque
from collections.abc import Generator

# What a process yields: seconds to wait, or a resource of which it takes one.
Process = Generator["float | Resource", None, None]


class Resource:
    """So many of something; who finds none free waits, first come, first served."""

    __slots__ = ("busy_seconds", "free", "size", "waiting")

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self.waiting: deque[Process] = deque()
        self.busy_seconds = 0.0


class Simulation:
    """Runs processes in simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Process]] = []
        self._number = 0

    def begin(self, process: Process, at: float = 0.0) -> None:
        self._number += 1
        heapq.heappush(self._due, (at, self._number, process))

    def give_back(self, resource: Resource) -> None:
        """The one who has waited longest gets it."""
        if resource.waiting:
            self.begin(resource.waiting.popleft(), self.now)
        else:
            resource.free += 1

    def use(self, resource: Resource, seconds: float) -> Process:
        """One of the resource for so long."""
        yield resource
        resource.busy_seconds += seconds
        yield seconds
        self.give_back(resource)

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, process = heapq.heappop(self._due)
            for wanted in process:
                if not isinstance(wanted, Resource):
                    self.begin(process, self.now + wanted)
                    break
                if wanted.free:
                    wanted.free -= 1
                    continue
                wanted.waiting.append(process)
                break
        self.now = until
