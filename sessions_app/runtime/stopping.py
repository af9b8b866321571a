"""Whether this worker is about to end: then each session that it runs gives way at the end of its step.

A worker that is told to end waits for its tasks, and a session may run for hours.
"""

import mmap


class SharedFlag:
    """A flag of this process and of those that are forked from it. It may be set in a signal handler."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    def set(self) -> None:
        self._memory[0] = 1

    def clear(self) -> None:
        self._memory[0] = 0

    def is_set(self) -> bool:
        return self._memory[0] == 1


stopping = SharedFlag()
