"""Pauses Python's garbage collector while a conversation is read and built.

Its thousands of messages are new objects that all stay, and none of them refers back to another. The collector would
look through them again and again, each time through more of them: of 5,000 steps that takes longer than the rest.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_pause = threading.Lock()


@contextmanager
def paused() -> Iterator[None]:
    """No garbage is collected in this process inside, in whichever thread, unless another thread's pause ends before.

    A pause does not prolong that of another thread, so a process that always loads some session collects in between.
    """
    if not gc.isenabled() or not _pause.acquire(blocking=False):
        yield
        return
    try:
        gc.disable()
        yield
    finally:
        gc.enable()
        _pause.release()
