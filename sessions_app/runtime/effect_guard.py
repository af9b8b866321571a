"""What a run knows of effects that its session's history does not show, and when it has to look for them.

A session that was never rewound, repaired or forked has none, and costs no query. Its own discarded branches do not
change while a run has its lease. Sessions that share its history by a fork do: so each commit of the run tells whether
there are any, and the start of a call looks again. Used inside the journal's transactions.
"""

from typing import Any

from agentstate.durable.policy import EffectScope
from agentstate.durable.port import EffectElsewhere
from agentstate.durable.records import EarlierEffects
from sessions_app.history import effects
from sessions_app.models import CallStatus, Session, ToolCall
from sessions_app.runtime import statements

Json = Any


class EffectGuard:
    """
    :param session: As loaded by the run, with its branch. Its first fork may be made while it runs: then `Session.line`
        of both is the key of this session, and the run sets `is_in_line`.
    """

    def __init__(self, session: Session) -> None:
        self._branch = session.current_branch
        self._line = session.line or session.pk
        self.is_in_line = session.line is not None
        self._has_discarded_branches = effects.has_discarded_branches(self._branch)

    @property
    def may_find_effects(self) -> bool:
        return self._has_discarded_branches or self.is_in_line

    def earlier_effects(
        self, tool: str, arguments: dict[str, Json], *, position: int, scope: EffectScope
    ) -> EarlierEffects | None:
        """As `Journal.earlier_effects`."""
        line = self._line if self.is_in_line else None
        return effects.earlier_effects(self._branch, line, tool, arguments, position=position, scope=scope)

    def check_start(self, position: int, sent: dict[str, Json] | None, scope: EffectScope) -> None:
        """Look once more for effects in the sessions that share the history by a fork, before the call at the position
        is recorded as started.

        :raises EffectElsewhere: if a person has to decide about one of them.
        """
        if not self.is_in_line:
            return
        statements.lock_line(self._line)
        calls = ToolCall.objects.only("tool", "arguments", "status")
        call = calls.get(branch=self._branch, position=position)
        if call.status != CallStatus.PLANNED:
            return  # an interrupted call of an idempotent tool: it is the same call, with the same key
        arguments = call.arguments if sent is None else sent
        earlier = self.earlier_effects(call.tool, arguments, position=position, scope=scope)
        if earlier is not None and earlier.needs_decision:
            raise EffectElsewhere(earlier)
