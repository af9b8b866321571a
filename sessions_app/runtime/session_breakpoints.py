"""The breakpoints that people have set on a session, as the engine is given them.

Where a session stops tells what a condition was compared with. So the condition of a person who may not see hidden
values is compared with the arguments as they are shown: one in which anything is hidden never meets it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from agentstate.durable.breakpoints import Breakpoint
from sessions_app.access.masking import Mask

Json = Any


class _ComparesWhatIsShown(Breakpoint):
    """One whose condition is not met by an argument in which a value is hidden."""

    __slots__ = ()

    def stops(self, tool: str, arguments: Mapping[str, Json]) -> bool:
        return self.tool == tool and Breakpoint.stops(self, tool, _without_hidden(arguments))


def of_rows(rows: Iterable[Mapping[str, Json]] | None) -> tuple[Breakpoint, ...]:
    """Those of `Session.breakpoints`."""
    return tuple(
        (_ComparesWhatIsShown if row.get("as_shown") else Breakpoint).from_dict(row) for row in rows or ()
    )


def _without_hidden(arguments: Mapping[str, Json]) -> Mapping[str, Json]:
    """The arguments in which nothing is hidden; also by their column's name, and by what stands beside them."""
    mask = Mask.configured()
    if not mask.hides_anything:
        return arguments
    shown = mask.column("arguments", dict(arguments))
    return {name: value for name, value in arguments.items() if name in shown and shown[name] == value}
