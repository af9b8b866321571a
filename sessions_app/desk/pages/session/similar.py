"""Sessions like this one, as a worker stored them when the session came to rest. One query."""

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.finding import search_masking
from sessions_app.models import Session, SimilarSession


def similar_sessions(context: SessionContext) -> list[Session]:
    """The nearest first, masked. None that was compared with another masking than the present one."""
    present = search_masking.present()
    rows = SimilarSession.objects.filter(
        session=context.session_row, session__digest__masking=present, other__digest__masking=present
    )
    return context.mask.rows(row.other for row in rows.select_related("other"))
