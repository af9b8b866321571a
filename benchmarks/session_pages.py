"""Every page and form of a session, by names that are the same for each session.

`NOT_MEASURED` says of the addresses of the desk that no benchmark asks for why that is.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sessions_app.models import Session

# The last position of a session of some ten steps.
SHORT = 60
# The sessions whose pages are asked for.
LONGEST, TENTH, BRIEF = "the longest session", "a session of a tenth of that", "a short session"
TABS = (
    "",
    "?show=errors",
    "?show=tools",
    "?show=people",
    "?tool=look_up_policy",
    "?phase=planning",
    "?edge=planning-executing",
    "conversation/",
    "state/",
    "memories/",
    "checkpoints/",
    "audit/",
    "json/",
    "definition-changes/",
    "find/?q=policy",
)
# Pages whose addresses name a row of the session: by the name of the address in the desk's URLs.
OF_ROWS = ("earlier", "call", "model-call", "compare", "also-open")
# By the name of the address.
NOT_MEASURED = {
    "keys": "a page without a query of its own",
    "approvals": "redirects to the inbox",
    "tails": "redirects to the discarded branch",
    "compare-branch": "redirects to the comparison",
    "compare-source": "redirects to the comparison",
    "decide-batch": "only takes decisions",
    "save_view": "only saves",
    "delete_view": "only deletes",
    "bulk_stop": "only stops",
    "reveal": "only writes to the audit trail",
    "news": "a stream: the part Open pages measures it",
    "top": "a part of what the poll of the timeline answers",
}


def asked_for() -> dict[str, "Session"]:
    """Paused sessions of three lengths that are no forks and have called a tool. A small database may have fewer."""
    from django.db.models import Exists, OuterRef

    from sessions_app.models import Session, ToolCall

    has_called = Exists(ToolCall.objects.filter(branch__session=OuterRef("pk")))
    paused = Session.objects.filter(has_called, status="paused", forked_from=None)
    longest = list(paused.order_by("-position"))
    short = next((session for session in longest if session.position <= SHORT), longest[-1])
    return {LONGEST: longest[0], TENTH: longest[:2][-1], BRIEF: short}


def tabs(session: "Session") -> Iterator[tuple[str, str]]:
    """The name and the address of each tab, and of the branch that the session has left, if it has left one."""
    for tab in (*TABS, *(["branches/1/"] if session.current_branch.number > 1 else [])):
        yield tab, f"/sessions/{session.pk}/{tab}"


def forms(session: "Session") -> Iterator[tuple[str, str]]:
    """The dialog of each action: about the newest call, checkpoint and message of the session, its first breakpoint and
    a memory of its own, as far as the action is about one.
    """
    from sessions_app.action_list import ACTIONS, EDIT_ENTRY, ERASE_ENTRY, REMOVE_BREAKPOINT
    from sessions_app.desk.forms import form_of
    from sessions_app.models import Checkpoint, MemoryEntry

    newest = Checkpoint.objects.visible_on(session.current_branch).latest("position")
    entry = MemoryEntry.objects.filter(session=session).values_list("pk", flat=True).first()
    row = f"call={_newest_call(session)}&checkpoint={newest.pk}"
    if entry is not None:
        row += f"&entry={entry}"
    for key, action in ACTIONS.items():
        is_there = {REMOVE_BREAKPOINT: bool(session.breakpoints), EDIT_ENTRY: entry, ERASE_ENTRY: entry}
        if form_of(action) is not None and is_there.get(action, True):
            yield f"{key}/", f"/sessions/{session.pk}/{key}/?{row}&number=1"


def of_rows(session: "Session") -> Iterator[tuple[str, str]]:
    """The pages of `OF_ROWS`; the newest checkpoint is compared with the first."""
    from sessions_app.models import Checkpoint, ModelCall

    here = f"/sessions/{session.pk}"
    model_call = ModelCall.objects.visible_on(session.current_branch).latest("position")
    yield "also-open/", f"{here}/also-open/"
    yield "earlier/", f"{here}/earlier/?before={session.position // 2}"
    yield "calls/", f"{here}/calls/{_newest_call(session)}/"
    yield "model-calls/", f"{here}/model-calls/{model_call.pk}/"
    points = Checkpoint.objects.visible_on(session.current_branch)
    first, last = points.earliest("position"), points.latest("position")
    yield "compare/", f"/compare/?a={first.pk}&b={last.pk}"


def _newest_call(session: "Session") -> int:
    from sessions_app.models import ToolCall

    return ToolCall.objects.visible_on(session.current_branch).latest("position").pk
