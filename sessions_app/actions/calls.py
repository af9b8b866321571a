"""The tool call that a person decides about: finding it, and what is left to decide."""

from collections.abc import Iterable, Sequence

from django.db.models import QuerySet

from agentstate.durable.run_end import late_sentence, were_late, were_started
from sessions_app.access.errors import Invalid, NotFound
from sessions_app.models import Session, ToolCall


def why_of_others(why: str, decided: Iterable[str], left: Sequence[str]) -> str:
    """The reason for which a session waits that has calls in doubt, once some of them are decided.

    :param decided: The tools of those, and `left` of the others.
    """
    tools = [*decided, *left]
    late = {tool: sentence for tool in tools if (sentence := late_sentence(tool, why))}
    if still_late := [late[tool] for tool in left if tool in late]:
        return why.replace(were_late(late.values()), were_late(still_late), 1)
    return why.replace(were_started(tools), were_started(left), 1)


def find_call(session: Session, call_id: int | str, preferred: QuerySet[ToolCall]) -> ToolCall:
    """The call of this session. A model may give several calls the same id: then the `preferred` one is meant.

    :param call_id: The row's primary key, or as text the id that the model gave the call.
    :raises NotFound: if this session has no such call: on any branch, or for a text in its current history.
    """
    calls = ToolCall.objects.filter(branch__session=session)
    if isinstance(call_id, int):
        matches = list(calls.filter(pk=call_id))
    else:
        named = calls.filter(call_id=call_id, branch=session.branch).order_by("-position")
        matches = list(named & preferred) or list(named[:1])
    if not matches and isinstance(call_id, int):
        raise NotFound("This session has no such call, on any branch.")
    if not matches:
        raise NotFound(f"This session has no call {call_id} in its current history.")
    if len(matches) > 1:
        raise Invalid(f"{len(matches)} open calls are named {call_id}. Decide them on the session's page.")
    return matches[0]
