"""The session as JSON: its facts, and a page of its history."""

from typing import Any

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.page_bounds import page_bounds
from sessions_app.history.export import session_json

PAGE = 100


def read_page(context: SessionContext, *, before: int | None = None) -> dict[str, Any]:
    """`session_json` for the rows of `PAGE` steps, without big results. At most nine queries.

    ``earlier`` is the ``before`` of the page before it, None on the first.
    """
    bounds = page_bounds(context, before=before, limit=PAGE)
    payload = session_json(
        context.session_row, mask=context.mask, after=bounds.after, upto=bounds.upto, big_results=False
    )
    return payload | {"earlier": bounds.earlier}
