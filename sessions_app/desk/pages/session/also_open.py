"""Who else has a page of the session open, in one line."""

from django.contrib.auth.models import User

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.watching import open_pages

MOST_NAMES = 4


def also_open(context: SessionContext) -> str:
    """Their names, separated by commas; "" where nobody else has. One query if another person has.

    The person of the context counts from now on as having the session open, too.
    """
    user = context.actor.user
    if user is None:
        return ""
    open_pages.opened(context.session.pk, user.pk)
    others = open_pages.users(context.session.pk) - {user.pk}
    if not others:
        return ""
    people = User.objects.filter(pk__in=others, is_active=True)
    names = sorted(context.mask.text(person.get_full_name() or person.get_username()) for person in people)
    more = len(names) - MOST_NAMES
    return ", ".join([*names[:MOST_NAMES], *([f"{more} more"] if more > 0 else [])])
