"""Titles and customers as people from whom something is hidden see them: they find sessions by these.

Were the whole texts compared first, what is hidden in them would decide how many of the others are looked at, and how
long that takes. The masked ones stand in a table of their own, which the sweep fills while anything is hidden. Until a
session is in it, these people do not find it by a text, and by none while it was made with another masking than the
present one.
"""

from contextlib import suppress

from django.db import IntegrityError, connection, transaction
from django.db.models import BooleanField, Exists, OuterRef, Q
from django.db.models.expressions import RawSQL

from sessions_app.access.masking import HIDDEN, Mask
from sessions_app.finding.search_masking import IS_PRESENT, may_add, present
from sessions_app.models import Branch, ShownName

# The mark of what was added: each session has a first branch, and these are numbered.
MARK = "branch"
# Stands for a hidden part. No text can be entered that contains it.
GAP = chr(31)


def are_present() -> Q:
    """The condition that they were made with the present masking."""
    condition = RawSQL(IS_PRESENT, [present()], output_field=BooleanField())  # noqa: S611 - the number is a parameter
    return Q(condition)


def add(most: int, late: int) -> bool:
    """Add those of up to `most` new sessions. Two queries, and four more if there are any. Returns whether there may be
    more.

    Any number of processes may do so at once. The rows of the masking and of the mark are locked first, as by
    `search_index.rebuild`: where another process has moved the mark since it was read, nothing is added, and the next
    call reads again.

    :param late: Behind the mark, so many keys are looked through again: they may have been committed later.
    """
    mask = Mask.configured()
    if not mask.hides_anything:
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT upto FROM sessions_app_search_mark WHERE name = %s", [MARK])
        [mark] = cursor.fetchone()
    named = ShownName.objects.filter(session=OuterRef("session"))
    first = Branch.objects.filter(~Exists(named), number=1, pk__gt=mark - late).order_by("pk")
    rows = list(first.values_list("pk", "session", "session__title", "session__customer", named=False)[:most])
    if not rows:
        return False
    names = [
        ShownName(
            session_id=key, title=_shown(mask, "title", title), customer=_shown(mask, "customer", customer)
        )
        for _, key, title, customer in rows
    ]
    # A session that was deleted since it was read is not read again.
    with suppress(IntegrityError), transaction.atomic():
        if not may_add():
            return True
        with connection.cursor() as cursor:
            move = "UPDATE sessions_app_search_mark SET upto = %s WHERE name = %s AND upto = %s"
            cursor.execute(move, [max(mark, rows[-1][0]), MARK, mark])
            is_moved = cursor.rowcount == 1
        if is_moved:
            ShownName.objects.bulk_create(names, ignore_conflicts=True)
            return len(rows) == most
    return True


def _shown(mask: Mask, name: str, value: str) -> str:
    return str(mask.named(name, value)).replace(HIDDEN, GAP)
