"""Ends a command quietly when its output is no longer read, as in ``agentstate show FILE | head``."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_with_its_reader() -> Iterator[None]:
    """Write out what the command has printed; if the reader of the pipe has ended, so does the command, with code 0.

    :raises SystemExit: in place of the `BrokenPipeError`.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes the output once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
