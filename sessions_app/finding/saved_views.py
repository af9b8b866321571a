"""The saved views that a user can open, and how many sessions, or lines of the inbox, each of them shows."""

from collections.abc import Sequence
from datetime import datetime
from itertools import islice

from django.contrib.auth.models import User
from django.db.models import F, Q, QuerySet
from django.http import QueryDict

from sessions_app.finding import inbox_counts, queues
from sessions_app.finding.counting import Count, count_each, to_count, total
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.inbox_states import Condition, Matches
from sessions_app.models import SavedView
from sessions_app.models.compiled import compiled
from sessions_app.models.selects import Sql

# A search has queries of its own, and looks at every session for a text that none has: too much for a chip.
NOT_COUNTED = ("q", "customer")
# Everyone can share views, so a person may see very many.
MOST_COUNTED = 50


def views_for(user: User) -> tuple[list[SavedView], list[SavedView]]:
    """The user's own views, and those that other users share, by name, annotated with ``owner_name``. One query."""
    views = _views(user.pk)
    own_views = [view for view in views if view.owner_id == user.pk]
    return own_views, [view for view in views if view.owner_id != user.pk]


@compiled
def _views(user: int) -> QuerySet[SavedView]:
    views = SavedView.objects.filter(Q(owner=user) | Q(shared=True))
    return views.annotate(owner_name=F("owner__username")).order_by("name", "pk")


def count_views(views: Sequence[SavedView], user: User, now: datetime) -> dict[int, Count]:
    """By the views' keys, how much each shows to the user, up to `counting.MOST`. At most one query.

    A view that searches for words is not counted, nor any after the first `MOST_COUNTED` different ones.
    """
    filters = {view.query: QueryDict(view.query) for view in views}
    countable = [query for query, names in filters.items() if names.keys().isdisjoint(NOT_COUNTED)]
    selects = {query: _counted(filters[query], user, now) for query in countable[:MOST_COUNTED]}
    numbers = iter(count_each([select for parts in selects.values() for select in parts]))
    counted = {query: total(islice(numbers, len(parts))) for query, parts in selects.items()}
    return {view.pk: counted[view.query] for view in views if view.query in counted}


def _counted(parameters: QueryDict, user: User, now: datetime) -> list[Sql]:
    where = SessionFilter(parameters, user=user).where()
    # Without a query the address of the desk opens the inbox.
    queue = parameters.get("queue", "all") if parameters else queues.ATTENTION.key
    if queue == queues.ATTENTION.key:
        return inbox_counts.counted_lines(now, Condition.of(where, Matches.SOME) if where else None)
    return [to_count(*queues.parts(queue, now, where))]
