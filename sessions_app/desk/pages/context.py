"""Who looks at a page, when, and what is hidden from them: one object for one request."""

from dataclasses import dataclass, field
from datetime import datetime

from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.pages.session_agents import KnownAgents
from sessions_app.desk.pages.why_not import WhyNot


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """What the read models of a page are given. `sessions_app.desk.context.page_context` makes it.

    mask: what is hidden from this person on this page.
    why_not: why the person cannot take an action; without a session, as far as their role decides it.
    agents: those that were read for this page, by their keys.
    """

    actor: Actor
    now: datetime
    mask: Mask
    why_not: WhyNot
    agents: KnownAgents = field(default_factory=dict)
