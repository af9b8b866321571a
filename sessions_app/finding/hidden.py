"""Finding sessions by values that may be hidden: a person finds by what they may see.

Otherwise a hidden value could be guessed letter by letter, by what is found and what is not.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from string import ascii_lowercase, ascii_uppercase

from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q, Value
from django.db.models.functions import Upper

from sessions_app.access import shown
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.finding.keys import are
from sessions_app.finding.newest import matching_sessions, opaque
from sessions_app.finding.pairs import has_pairs, has_trigrams, pairs_of
from sessions_app.models import Session, SessionTag, StaffPermission

_ASCII_CAPITALS = str.maketrans(ascii_lowercase, ascii_uppercase)
# Of the sessions that contain a text, so many are looked at to see whether it is hidden there, those that changed last.
MOST = 2_000


def may_know_hidden(user: User) -> bool:
    """Whether nothing is hidden from the person, or they could reveal it: then an answer may depend on it."""
    return not Mask.configured().hides_anything or Actor.of(user).may(StaffPermission.REVEAL)


def has_index(text: str) -> bool:
    """Whether PostgreSQL finds the text in a field by an index. Nearly each of two characters or more it does."""
    return has_trigrams(text) or bool(pairs_of(text))


def contains(texts: Sequence[str], *names: str, whole: bool) -> Q:
    """The condition that one of the fields of a session contains each of the texts, in any case and order.

    :param texts: At least one.
    :param whole: Find by what is hidden, too. Without it, this makes one query, or two for several texts.
    """
    condition = Q()
    for name in names:
        condition |= reduce(and_, [_has(name, text) for text in texts])
    if whole:
        return condition
    # What is visible of a value is a part of it, so no session is missed by asking the database first.
    found = condition if len(texts) == 1 else are(matching_sessions(condition, MOST))
    candidates = Session.objects.filter(found).order_by("-updated_at", "-id")
    rows = list(candidates.values_list("pk", Upper(Value("ä")), *names, named=False)[:MOST])
    beyond_ascii = any(letter == "Ä" for _, letter, *_ in rows[:1])
    mask, wanted = Mask.configured(), [_capitals(text, beyond_ascii) for text in texts]

    def is_visible(name: str, value: str) -> bool:
        seen = [_capitals(text, beyond_ascii) for text in (value, str(mask.named(name, value)))]
        return all(text in each for text in wanted for each in seen)

    return are([pk for pk, _, *values in rows if any(map(is_visible, names, values))])


def _capitals(text: str, beyond_ascii: bool) -> str:
    """The text as this database compares it. Where more were equal here than there, what is hidden would decide."""
    if not beyond_ascii:
        return text.translate(_ASCII_CAPITALS)
    capitals = text.upper()
    if len(capitals) == len(text):
        return capitals
    # Of a letter that becomes two, such as ß.
    return "".join([capital if len(capital := letter.upper()) == 1 else letter for letter in text])


def _has(name: str, text: str) -> Q:
    contained = Q(**{f"{name}__icontains": text})
    if has_trigrams(text) or connection.vendor == "sqlite":
        return contained
    if pairs_of(text):
        return contained & has_pairs(name, text)
    # Of the trigrams PostgreSQL would read all that there are.
    return Q(opaque(contained))


def is_tagged(name: str, *, whole: bool) -> Q:
    """The condition that a session has the tag. No query."""
    if not whole and shown.tag(Mask.configured(), name) != name:
        return Q(pk__in=[])
    return Q(pk__in=SessionTag.objects.filter(name=name).values("session"))
