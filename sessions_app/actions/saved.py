"""Saving what somebody often filters sessions by: for themselves, or for everybody.

A view is the query string of a list. It is checked by the list's own filter form, so a saved view always opens.
"""

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.http import QueryDict

from sessions_app.access.errors import Forbidden, Invalid, NotFound
from sessions_app.access.roles import Actor
from sessions_app.actions.base import fit, given, require
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.queues import BY_KEY
from sessions_app.models import SavedView

LONGEST_NAME = SavedView._meta.get_field("name").max_length
LONGEST_QUERY = 2000
# Where a list was scrolled to, or last looked at, is no part of what it shows.
PASSING = ("after", "seen")


@transaction.atomic(durable=True)
def save_view(
    *, actor: Actor, name: str, query: str, shared: bool = False, replace: bool = False
) -> SavedView:
    """Keep a list's query string under a name, for the actor or, if `shared`, for everybody.

    :param replace: Put it in the place of the actor's own view of that name, if there is one.
    :raises Invalid: for a name that the actor has used already, and for a filter that there is not.
    """
    user = _person(actor)
    name = given("The name", name, LONGEST_NAME)
    query = _normal(query, user)
    present = SavedView.objects.select_for_update().filter(owner=user, name=name).first()
    if present is not None and replace:
        present.query, present.shared = query, shared
        present.save()
        return present
    try:
        with transaction.atomic():
            return SavedView.objects.create(owner=user, name=name, query=query, shared=shared)
    except IntegrityError:
        raise Invalid(
            f"You already have a view named “{name}”. Choose another name, or replace it."
        ) from None


@transaction.atomic(durable=True)
def delete_view(*, actor: Actor, view_id: int) -> None:
    """Remove a view: one's own, or as a supervisor a shared one.

    :raises NotFound: if there is none, or it is somebody's own.
    """
    user = _person(actor)
    view = SavedView.objects.filter(pk=view_id).first()
    if view is None or not (view.shared or view.owner_id == user.pk):
        raise NotFound(f"There is no view {view_id}.")
    if not may_delete(user, view):
        raise Forbidden(f"Only {view.owner.get_username()} or a supervisor can delete “{view.name}”.")
    view.delete()


def may_delete(user: User, view: SavedView) -> bool:
    return view.owner_id == user.pk or (view.shared and user.has_perm("sessions_app.delete_savedview"))


def _person(actor: Actor) -> User:
    require(actor, "view")
    if actor.user is None:
        raise Forbidden("Views are kept for people with an account.")
    return actor.user


def _normal(query: str, user: User) -> str:
    """The query string with what matters to the list, in the order of its form.

    :raises Invalid: for what the form does not know or would not take.
    """
    given_query = QueryDict(fit("The filter", query, LONGEST_QUERY).removeprefix("?"))
    form = SessionFilter(given_query, user=user)
    unknown = sorted(given_query.keys() - form.fields.keys() - {"queue", *PASSING})
    if unknown:
        raise Invalid(f"There is no filter {unknown[0]!r}.")
    if given_query.get("queue", "all") not in BY_KEY:
        raise Invalid(f"There is no queue {given_query['queue']!r}.")
    for name, problems in form.errors.items():
        raise Invalid(f"{form[name].label}: {problems[0]}")
    kept = QueryDict(mutable=True)
    for name in ("queue", *form.fields):
        if value := given_query.get(name, "").strip():
            kept[name] = value
    return kept.urlencode()
