"""The breakpoints of a session, as its page lists them, and those of its agent. No queries."""

import json
from dataclasses import dataclass
from typing import Any

from agentstate.durable.breakpoints import Comparison
from sessions_app.access.masking import Mask
from sessions_app.models import RegisteredAgent, Session
from sessions_app.wording import shorten


@dataclass(frozen=True, slots=True)
class BreakpointItem:
    """``condition`` is "" for every call. ``by`` is who set it."""

    number: int
    place: str
    condition: str
    once: bool
    by: str

    @property
    def details(self) -> str:
        """What is read behind the place: ``, if amount is more than 50, once``."""
        condition = f", if {self.condition}" if self.condition else ""
        return f"{condition}, once" if self.once else condition


def breakpoints_of(session: Session) -> list[BreakpointItem]:
    """Those of the session, in the order in which they were set. Give a masked copy where values are hidden."""
    return [_item(row) for row in session.breakpoints or []]


def breakpoints_of_agent(agent: RegisteredAgent | None) -> list[BreakpointItem]:
    """Those with which the agent is registered: they stop each of its sessions. Give a masked copy here too."""
    options = agent.options if agent is not None else None
    return [_item(row) for row in (options or {}).get("breakpoints", [])]


def breakpoint_text(row: dict[str, Any]) -> str:
    """Where a breakpoint stops and when: ``issue_refund, if amount is more than 50, once``."""
    item = _item(row)
    return item.place + item.details


def _item(row: dict[str, Any]) -> BreakpointItem:
    when = row.get("when")
    condition = ""
    if when:
        comparison = Comparison(when["comparison"]).text
        [(name, value)] = when["argument"].items()
        condition = f"{name} {comparison} {shorten(json.dumps(value, ensure_ascii=False), 60)}"
        if row.get("as_shown") and Mask.configured().hides_anything:
            condition += " and nothing in it is hidden"
    return BreakpointItem(
        number=row["number"],
        place=row["tool"] or "the model",
        condition=condition,
        once=bool(row.get("once")),
        by=str(row.get("by", "")),
    )
