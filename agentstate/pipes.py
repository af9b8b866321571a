"""How a command prints and ends: any text in any encoding, and quietly when its output is no longer read, as in
``agentstate show FILE | head``, or when it is interrupted.
"""

import codecs
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

ESCAPES: Final = "agentstate.escapes"
INTERRUPTED: Final = 130


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Write out what the command has printed, with an escape as in JSON for what the encoding of the output lacks.

    If the reader of the pipe has ended, so does the command, with code 0; Ctrl-C ends it with code 130.

    :raises SystemExit: in place of the `BrokenPipeError` or the `KeyboardInterrupt`.
    """
    try:
        with _escapes():
            yield
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes the output once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _escape(error: UnicodeError) -> tuple[str, int]:
    """For the characters that cannot be encoded: in JSON they are a part of a string, which still says the same."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(ESCAPES, _escape)


@contextmanager
def _escapes() -> Iterator[None]:
    output = sys.stdout
    if not isinstance(output, io.TextIOWrapper):
        yield
        return
    before = output.errors
    output.reconfigure(errors=ESCAPES)
    try:
        yield
    finally:
        # It writes out what is left, which a reader that has ended does not take.
        with suppress(BrokenPipeError):
            output.reconfigure(errors=before)
