"""The saved views that a user can open."""

from django.contrib.auth.models import User
from django.db.models import Q

from sessions_app.models import SavedView


def views_for(user: User) -> tuple[list[SavedView], list[SavedView]]:
    """The user's own views, and those that other users share, by name. One query."""
    views = (
        SavedView.objects.filter(Q(owner=user) | Q(shared=True))
        .select_related("owner")
        .order_by("name", "pk")
    )
    own_views = [view for view in views if view.owner_id == user.pk]
    return own_views, [view for view in views if view.owner_id != user.pk]
