"""Finding sessions by values that may be hidden: a person finds by what they may see.

Otherwise a hidden value could be guessed letter by letter, by what is found and what is not.
"""

from django.contrib.auth.models import User
from django.db.models import Q

from sessions_app.access import shown
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.finding.keys import are
from sessions_app.models import Session, SessionTag, StaffPermission

# Of the sessions that contain a text, so many are looked at to see whether it is hidden there, those that changed last.
MOST = 2_000


def may_know_hidden(user: User) -> bool:
    """Whether nothing is hidden from the person, or they could reveal it: then an answer may depend on it."""
    return not Mask.configured().hides_anything or Actor.of(user).may(StaffPermission.REVEAL)


def contains(text: str, *names: str, whole: bool) -> Q:
    """The condition that one of the fields of a session contains the text, in any case.

    :param whole: Find by what is hidden, too. Without it, this makes one query.
    """
    condition = Q()
    for name in names:
        condition |= Q(**{f"{name}__icontains": text})
    if whole:
        return condition
    # What is visible of a value is a part of it, so no session is missed by asking the database first.
    candidates = Session.objects.filter(condition).order_by("-updated_at", "-id").values_list("pk", *names)
    mask, wanted = Mask.configured(), text.casefold()

    def is_visible(name: str, value: str) -> bool:
        return wanted in value.casefold() and wanted in str(mask.named(name, value)).casefold()

    rows = candidates[:MOST]
    return are([pk for pk, *values in rows if any(map(is_visible, names, values))])


def is_tagged(name: str, *, whole: bool) -> Q:
    """The condition that a session has the tag. No query."""
    if not whole and shown.tag(Mask.configured(), name) != name:
        return Q(pk__in=[])
    return Q(pk__in=SessionTag.objects.filter(name=name).values("session"))
