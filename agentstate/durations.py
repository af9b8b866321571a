"""The longest time that a policy may name, and which numbers of seconds are one. Pure Python.

An endless time, or one of thousands of years, cannot be added to the present moment, nor waited for by a thread.
"""

from typing import Final

LONGEST_SECONDS: Final = 10 * 365 * 24 * 60 * 60
"""Ten years."""

WITHIN: Final = "more than 0 seconds and at most ten years (315,360,000 seconds)"
"""What a time must be, for errors."""


def is_duration(seconds: float) -> bool:
    """Whether it is a time that every clock can add; neither an endless one is, nor NaN."""
    return 0 < seconds <= LONGEST_SECONDS
