"""The forms of the desk. Each reads what a person typed and calls one function of `sessions_app.actions`."""

from sessions_app.access.action import Action
from sessions_app.actions import BY_REASON
from sessions_app.desk.forms import breakpoints, calls, memory_entries, repair, session
from sessions_app.desk.forms.base import ActionForm, ReasonForm

FORMS = session.FORMS | calls.FORMS | breakpoints.FORMS | memory_entries.FORMS | repair.FORMS


def form_of(action: Action) -> type[ActionForm] | None:
    """The form of an action; None for one that has no dialog."""
    return FORMS.get(action) or (ReasonForm if action in BY_REASON else None)
