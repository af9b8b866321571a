"""Threads that take turns: few work at once, so that they do not compete for the interpreter and for caches.

Twenty requests that begin together, as when twenty pages hear of news, take a fifth more CPU if all work at once, and
all of them are late: Python runs one at a time, and after each query a request waits for all others. In turns they are
done in the order in which they came.

AT_ONCE threads work at a time, and the others queue. If this process takes less CPU than one thread could, those that
work wait for something, so all in the queue begin. If one works for longer than PATIENCE_SECONDS, the next one begins
beside it: it may do what leaves the interpreter to others, like the check of a password. A thread whose turn ends looks
for both.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# One of two may wait for the database.
AT_ONCE = 2
# Behind a thread that works longer, the next one begins.
PATIENCE_SECONDS = 0.05
# How often it is looked whether others can begin, while there are any.
LOOK_SECONDS = 0.005
# So much of the time of one processor, and the interpreter is busy.
BUSY = 0.85

Clock = Callable[[], float]


@dataclass(eq=False, slots=True)
class _Turn:
    """One of a thread. ``woken`` is set when the thread may begin, and when it has become the first in the queue."""

    woken: threading.Event = field(default_factory=threading.Event)
    may_begin: bool = False
    began: float = 0.0


class Turns:
    """
    :param at_once: Turns at the same time, besides those in which somebody has been found to wait, or to take long.
    :param look_seconds: See LOOK_SECONDS.
    :param clock: The time, in seconds.
    :param cpu: The CPU time of this process, in seconds.
    """

    def __init__(
        self,
        *,
        at_once: int = AT_ONCE,
        look_seconds: float = LOOK_SECONDS,
        clock: Clock = time.monotonic,
        cpu: Clock = time.process_time,
    ) -> None:
        self._at_once = at_once
        self._look_seconds = look_seconds
        self._clock = clock
        self._cpu = cpu
        self._lock = threading.Lock()  # of all that follows
        self._line: deque[_Turn] = deque()
        self._working: set[_Turn] = set()
        self._looked = 0.0, 0.0  # when, and the CPU time then

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside it is this thread's turn, which it has waited for. A second one inside it queues again."""
        turn = _Turn()
        try:
            self._wait(turn)
            yield
        finally:
            self._end(turn)

    def _wait(self, turn: _Turn) -> None:
        with self._lock:
            self._line.append(turn)
            self._begin()
            if self._line and self._line[0] is turn:  # nobody has looked meanwhile
                self._looked = self._clock(), self._cpu()
        while not turn.may_begin:
            with self._lock:
                is_first = bool(self._line) and self._line[0] is turn
            if not turn.woken.wait(self._look_seconds if is_first else None):
                with self._lock:
                    self._look()
            turn.woken.clear()

    def _look(self) -> None:
        """Let others begin beside those who wait, or work for long, if it is time to look for that."""
        now, (since, cpu_since) = self._clock(), self._looked
        if not self._line or now - since < self._look_seconds:
            return
        cpu = self._cpu()
        self._looked = now, cpu
        if cpu - cpu_since < BUSY * (now - since):
            self._begin(len(self._line))
        else:
            self._working = {turn for turn in self._working if now - turn.began < PATIENCE_SECONDS}
            self._begin()

    def _begin(self, at_least: int = 0) -> None:
        """Let those begin who can, and wake who is the first in the queue then."""
        if not self._line:
            return
        first = self._line[0]
        while self._line and (at_least > 0 or len(self._working) < self._at_once):
            turn = self._line.popleft()
            at_least -= 1
            turn.began = self._clock()
            self._working.add(turn)
            turn.may_begin = True
            turn.woken.set()
        if self._line and self._line[0] is not first:
            self._line[0].woken.set()

    def _end(self, turn: _Turn) -> None:
        with self._lock:
            self._working.discard(turn)
            if not turn.may_begin:  # the thread was interrupted while it waited
                self._line.remove(turn)
                if self._line:
                    self._line[0].woken.set()
            self._begin()
            self._look()
