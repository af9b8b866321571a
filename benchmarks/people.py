"""A supervisor who is signed in, for requests to the pages."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.test import Client


def supervisor() -> "Client":
    """A client that Django's views answer without a web server between."""
    from django.contrib.auth.models import User
    from django.test import Client

    from sessions_app.access.roles import give_role
    from sessions_app.models import Role

    user, _ = User.objects.get_or_create(username="benchmark")
    give_role(user, Role.SUPERVISOR)
    client = Client(HTTP_HOST="localhost")
    client.force_login(user)
    return client


def print_cookies(logins: int) -> None:
    """The cookies by which the supervisor is signed in, so many times, for other clients: one on each line."""
    from django.conf import settings

    name = settings.SESSION_COOKIE_NAME
    for _ in range(logins):
        print(f"{name}={supervisor().cookies[name].value}")
