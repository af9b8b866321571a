"""What people have decided about a session's calls, as its run reads it while it goes on."""

from typing import Any

from sessions_app.access.shown import cut_off
from sessions_app.models import Approval, Branch, ToolCall, pre_approved_tools
from sessions_app.runtime.commits import FencedCommits
from sessions_app.runtime.step_rows import LONGEST_TOOL_NAME

Json = Any


class DecisionsRead(FencedCommits):
    """Two methods of `agentstate.durable.port.Journal`, each with one query."""

    # The current branch of the session, once it is loaded.
    _branch: Branch

    def allowed(self) -> frozenset[str]:
        with self._transaction():
            return pre_approved_tools(self.claim.session_id)

    def approved(self, tool: str) -> tuple[dict[str, Json], ...]:
        calls = ToolCall.objects.visible_on(self._branch).filter(
            tool=cut_off(tool, LONGEST_TOOL_NAME),
            approval__decision=Approval.Decision.APPROVED,
            approval__edited__isnull=True,
        )
        with self._transaction():
            rows = list(calls.order_by("position").values_list("arguments", "sent"))
        return tuple(arguments if sent is None else sent for arguments, sent in rows)
