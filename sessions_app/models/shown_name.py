"""The name of a session as people from whom something is hidden see it: they find the session by this name."""

from django.db import models

from sessions_app.models.session import Session


class ShownName(models.Model):
    """The masked title and customer of a session, which never change: see `sessions_app.finding.shown_names`.

    The sweep makes it, and it is deleted with its session.
    """

    session = models.OneToOneField(
        Session, on_delete=models.CASCADE, primary_key=True, related_name="shown_name"
    )
    title = models.TextField()
    customer = models.TextField()

    def __str__(self) -> str:
        return self.title
