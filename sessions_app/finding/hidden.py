"""Finding sessions by values that may be hidden: a person finds by what they may see.

Otherwise a hidden value could be guessed letter by letter, by what is found and what is not.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_

from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q

from sessions_app.access import shown
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.finding import shown_names
from sessions_app.finding.pairs import (
    capitals,
    contains_by_pairs,
    has_known_spaces,
    has_spaces_of,
    has_trigrams,
    pairs_of,
)
from sessions_app.finding.parts import opaque
from sessions_app.models import StaffPermission


def may_know_hidden(user: User) -> bool:
    """Whether nothing is hidden from the person, or they could reveal it: then an answer may depend on it."""
    return not Mask.configured().hides_anything or Actor.of(user).may(StaffPermission.REVEAL)


def has_index(text: str) -> bool:
    """Whether PostgreSQL finds the text in a field by an index. Nearly each of two characters or more it does."""
    return has_trigrams(text) or bool(pairs_of(text))


def contains(texts: Sequence[str], *names: str, whole: bool) -> Q:
    """The condition that one of the fields of a session contains each of the texts, in any case and order.

    One query on PostgreSQL, if a text is too short for the index of parts of words.

    :param texts: At least one.
    :param whole: Find by what is hidden, too.
    """
    is_indexed = connection.vendor == "postgresql"
    short = capitals([text for text in texts if is_indexed and not has_trigrams(text)])
    condition = Q()
    for name in names:
        field = name if whole else f"shown_name__{name}"
        has_each = [_has(field, text, short.get(text)) for text in texts]
        if is_indexed and name == "title":
            # Last: it takes longest where it is asked of a row.
            has_each += [has_spaces_of(field, text) for text in texts if has_known_spaces(text)]
        condition |= reduce(and_, has_each)
    return condition if whole else condition & shown_names.are_present()


def _has(field: str, text: str, capitals_of_short: str | None) -> Q:
    """
    :param capitals_of_short: The text in capitals, where it is too short for the index of parts of words.
    """
    contained = Q(**{f"{field}__icontains": text})
    if capitals_of_short is None:
        return contained
    if pairs_of(capitals_of_short):
        return contains_by_pairs(field, capitals_of_short)
    # Of the trigrams PostgreSQL would read all that there are.
    return Q(opaque(contained))


def may_find_tag(name: str, *, whole: bool) -> bool:
    """Whether sessions are found by the tag."""
    return whole or shown.tag(Mask.configured(), name) == name
