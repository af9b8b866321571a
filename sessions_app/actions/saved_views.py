"""Saving a list of sessions under a name: for its owner, or for everyone.

A view is the query string of a list. It is checked by the list's own filter form, so a saved view always opens.
"""

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.http import QueryDict

from sessions_app.access import shown
from sessions_app.access.errors import Forbidden, Invalid, NotFound
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.access.typed import MOST_SAVED_VIEWS
from sessions_app.actions.base import in_one_transaction, optional_text, require_permission, required_text
from sessions_app.finding.filters import PAGING, SessionFilter
from sessions_app.finding.queues import BY_KEY, ORDERS
from sessions_app.models import SavedView, StaffPermission

LONGEST_NAME = SavedView._meta.get_field("name").max_length
# As many sessions as can be selected take 2,100 characters.
LONGEST_QUERY = 3000


@in_one_transaction
def save_view(
    *, actor: Actor, name: str, query: str, shared: bool = False, replace: bool = False
) -> SavedView:
    """Save a list's query string under a name, for the actor or, if `shared`, for everyone.

    :param replace: Overwrite the actor's own view of that name, if there is one.
    :raises Forbidden: for sharing without the permission to do so.
    :raises Invalid: for a name that the actor has used already, for an unknown filter, and beyond `MOST_SAVED_VIEWS`;
        and for what is hidden on the desk, since the view's address would show it.
    """
    user = _person(actor)
    if shared:
        require_permission(actor, StaffPermission.SHARE_VIEW)
    name = required_text("The name", name, LONGEST_NAME)
    query = _normal(query, user)
    mask = Mask.configured()
    if mask.hides(name) or shown.hides_in_query(mask, query):
        raise Invalid("A view cannot hold a value that is hidden on the desk, in its name or in its filter.")
    # Locked, so that views saved at once cannot exceed the limit together.
    User.objects.select_for_update().get(pk=user.pk)
    existing_view = SavedView.objects.filter(owner=user, name=name).first()
    if existing_view is not None and replace:
        existing_view.query, existing_view.shared = query, shared
        existing_view.save()
        return existing_view
    if existing_view is None and SavedView.objects.filter(owner=user).count() >= MOST_SAVED_VIEWS:
        raise Invalid(f"You have {MOST_SAVED_VIEWS} views, which is the most. Delete one, or replace one.")
    try:
        with transaction.atomic():
            return SavedView.objects.create(owner=user, name=name, query=query, shared=shared)
    except IntegrityError:
        raise Invalid(
            f"You already have a view named “{name}”. Choose another name, or replace it."
        ) from None


@in_one_transaction
def delete_view(*, actor: Actor, view_id: int) -> str:
    """Delete a view: the actor's own, or as a supervisor a shared one. Returns its name.

    :raises NotFound: for an unknown view, and for another person's own.
    """
    user = _person(actor)
    view = SavedView.objects.filter(pk=view_id).select_related("owner").first()
    if view is None or not (view.shared or view.owner_id == user.pk):
        raise NotFound(f"There is no view {view_id}.")
    if reason := why_not_delete(user, view, view.owner.get_username()):
        raise Forbidden(reason)
    view.delete()
    return view.name


def why_not_delete(user: User, view: SavedView, owner: str) -> str:
    """Why the user cannot delete the view of an owner of this name, "" if they can."""
    if view.owner_id == user.pk or (view.shared and user.has_perm("sessions_app.delete_savedview")):
        return ""
    return f"Only {owner} or a supervisor can delete “{view.name}”."


def _person(actor: Actor) -> User:
    require_permission(actor, StaffPermission.VIEW)
    if actor.user is None:
        raise Forbidden("Only people with an account can save views.")
    return actor.user


def _normal(query: str, user: User) -> str:
    """The query string without what is not saved: the queue, the fields in the order of the filter form, the sorting.

    :raises Invalid: for a parameter that the form does not know, or a value that it refuses.
    """
    parameters = QueryDict(optional_text("The filter", query, LONGEST_QUERY).removeprefix("?"))
    form = SessionFilter(parameters, user=user)
    unknown = sorted(parameters.keys() - form.fields.keys() - {"queue", "order", *PAGING})
    if unknown:
        raise Invalid(f"There is no filter {unknown[0]!r}.")
    if parameters.get("queue", "all") not in BY_KEY:
        raise Invalid(f"There is no queue {parameters['queue']!r}.")
    if (order := parameters.get("order")) and order not in ORDERS:
        raise Invalid(f"There is no order {order!r}.")
    for name, problems in form.errors.items():
        raise Invalid(f"{form[name].label}: {problems[0]}")
    saved = QueryDict(mutable=True)
    fields = {name: form[name].data for name in form.fields}
    for name, value in {"queue": parameters.get("queue"), **fields, "order": order}.items():
        texts = value if isinstance(value, list) else [value or ""]
        saved.setlist(name, [text.strip() for text in texts if text.strip()])
    return saved.urlencode()
