"""The tools that a `SearchableToolset` has found: after a restart the run finds the same ones again.

A toolset keeps them in the copy of one run. Their names are on record in each checkpoint; the searches that found them
may have left the context. A search has no effects.
"""

from collections.abc import Iterable, Iterator, Sequence

from haystack.components.agents.state import State
from haystack.tools import SearchableToolset, Tool, Toolset


class ToolsNotFoundAgain(Exception):
    """The tools at hand after a restart are not those on record."""


def search_tool_name(item: Tool | Toolset) -> str | None:
    """The name of the tool by which the toolset is searched; None for anything else."""
    if not isinstance(item, SearchableToolset):
        return None
    return str(getattr(item, "_search_tool_name", "search_tools"))


def find_again(items: Iterable[Tool | Toolset], state: State, names: Sequence[str]) -> None:
    """Let the run's toolsets find the tools of these names, in this order."""
    at_hand: dict[str, Tool] = {tool.name: tool for tool in state.data["tools"]}
    catalogs = list(_catalogs(items))
    for name in names:
        for search_name, catalog in catalogs:
            if name not in at_hand and name in catalog and search_name in at_hand:
                keywords = f"{name} {catalog[name].description}"
                at_hand[search_name].invoke(tool_keywords=keywords, k=1)


def check_found(items: Iterable[Tool | Toolset], state: State, names: Sequence[str]) -> None:
    """:raises ToolsNotFoundAgain: if the found tools at hand are not those of these names."""
    at_hand = {tool.name for tool in state.data["tools"]}
    found_names = {name for search, catalog in _catalogs(items) if search in at_hand for name in catalog}
    if different := sorted((at_hand ^ set(names)) & found_names):
        raise ToolsNotFoundAgain(
            "After a restart the searchable toolset offers different tools than before: "
            f"{', '.join(different)}. Rewind the session to a step before the search."
        )


def _catalogs(items: Iterable[Tool | Toolset]) -> Iterator[tuple[str, dict[str, Tool]]]:
    for item in items:
        name = search_tool_name(item)
        if name is not None and isinstance(item, SearchableToolset):
            yield name, {tool.name: tool for tool in item.get_selectable_tools()}
