"""What a person is told once an action is done: what was done to what, with a link, and how to take it back."""

from collections.abc import Sequence

from django.contrib import messages
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from sessions_app.access.action import Action
from sessions_app.action_list import (
    ANSWER_CALL,
    ANSWER_STEP,
    EDIT_MEMORY,
    EDIT_STATE,
    PAUSE,
    REPLACE_MESSAGE,
    RESUME,
    REWIND,
    UNDO,
)
from sessions_app.addresses import address
from sessions_app.desk.forms.base import ActionForm
from sessions_app.desk.forms.batch import Outcome
from sessions_app.models import Session

# By which action each is taken back.
TAKEN_BACK_BY: dict[Action, Action] = {
    PAUSE: RESUME,
    **dict.fromkeys((REWIND, EDIT_MEMORY, EDIT_STATE, REPLACE_MESSAGE, ANSWER_CALL, ANSWER_STEP), UNDO),
}


def tell(request: HttpRequest, form: ActionForm, session: Session) -> None:
    """Tell of the action of the form, after which the session is as given. Everything shown is masked."""
    mask = form.context.mask
    parts = [
        format_html('<a href="{}">{}</a>', address("session", session.pk), mask.row(session)),
        form.subject,
        form.action.told(session),
    ]
    parts += [_comparison(form, session), _way_back(form, session)]
    messages.success(request, format_html_join(" · ", "{}", ([part] for part in parts if part)))


def tell_of_batch(request: HttpRequest, done: str, outcomes: Sequence[Outcome]) -> None:
    """``Approved: Refund €120.00 on claim CLM-1042 and 2 more``, with a link to that call."""
    first = outcomes[0]
    more = f" and {len(outcomes) - 1} more" if len(outcomes) > 1 else ""
    place = f"{address('session', first.session.pk)}#c{first.position}"
    messages.success(request, format_html('{}: <a href="{}">{}</a>{}', done, place, first.summary, more))


def _comparison(form: ActionForm, session: Session) -> SafeString | str:
    """A link that compares the branch which the action left with the present one."""
    left_branch = None
    if form.action is UNDO:
        left_branch = form.session.current_branch  # the form has the session as it was before
    elif TAKEN_BACK_BY.get(form.action) is UNDO:
        left_branch = session.current_branch.undo_to
    if left_branch is None:
        return ""
    return format_html('<a href="{}">Compare</a>', address("compare-branch", session.pk, left_branch.number))


def _way_back(form: ActionForm, session: Session) -> SafeString | str:
    action = TAKEN_BACK_BY.get(form.action)
    if action is None or action.why_not(session, form.context.actor):
        return ""
    link = address("dialog", session.pk, action.key)
    return format_html(
        '<a href="{}" hx-get="{}" hx-target="#dialog-body" hx-swap="innerHTML">{}</a>',
        link,
        link,
        action.label,
    )
