"""What a call does, in one line for people: by its tool's policy, or else by the tool's name.

The arguments are masked before they enter the line. No queries.
"""

from collections.abc import Mapping
from string import Formatter
from typing import Any

from sessions_app.desk.pages.formats import formatted
from sessions_app.models import RegisteredAgent
from sessions_app.wording import shorten

_LONGEST = 80


def tool_of(agent: RegisteredAgent | None, name: str) -> dict[str, Any]:
    """What the agent's workers published of a tool; {} if nothing."""
    return next((tool for tool in (agent.tools if agent else []) if tool.get("name") == name), {})


def summary(agent: RegisteredAgent | None, tool: str, arguments: Mapping[str, Any]) -> str:
    """``Refund €450.00 on claim CLM-1042``, or ``Issue refund`` for a tool whose policy has no summary.

    :param arguments: Those that are shown, masked.
    """
    policy = tool_of(agent, tool).get("policy") or {}
    template = str(policy.get("summary") or "")
    if not template:
        return tool.replace("_", " ").strip().capitalize() or tool
    formats = policy.get("formats") or {}
    return "".join(
        literal + ("" if name is None else _shown(arguments.get(name), formats.get(name, "text")))
        for literal, name, _, _ in Formatter().parse(template)
    )


def _shown(value: Any, format: str) -> str:
    """The argument as text; a dash for one that the call leaves out."""
    return "–" if value is None else shorten(formatted(value, format), _LONGEST)
