"""Which names of tools are known: those of the agents that workers have published.

A model may request a tool by any name. The names that developers gave hold no value of a customer, and the desk looks
up by them how a call is shown, so a mask leaves them as they are; see `Mask.tool`.
"""

from collections.abc import Callable
from functools import lru_cache
from time import monotonic

from sessions_app.models import RegisteredAgent

# Seconds after which the names are read again.
READ_AGAIN_AFTER = 60


def is_known(name: str, now: Callable[[], float] = monotonic) -> bool:
    """At most one query a minute."""
    return name in names_at(int(now() // READ_AGAIN_AFTER))


@lru_cache(maxsize=1)
def names_at(minute: int) -> frozenset[str]:
    published = RegisteredAgent.objects.values_list("tools", flat=True)
    return frozenset(str(tool["name"]) for tools in published for tool in tools)
