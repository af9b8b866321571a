"""On which page of a session a row of its history stands: the timeline, or that of a discarded branch. No queries."""

from sessions_app.addresses import address
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.models import Branch


def page_of(context: SessionContext, branch: Branch, position: int) -> str:
    """The address of the page on which a row of the branch stands.

    :param branch: One of the session's, unless the session shows the row.
    """
    if context.branch.sees(branch.pk, position):
        return address("session", context.session.pk, at=position, queue=context.queue)
    return address("discarded", context.session.pk, branch.number, at=position, queue=context.queue)
