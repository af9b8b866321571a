"""The tags of a session."""

from django.db import models
from django.db.models import Q
from django.db.models.expressions import RawSQL

from sessions_app.models.loading import LoadedModel
from sessions_app.models.session import Session


class SessionTag(LoadedModel):
    """One of a session's tags, lower case."""

    # The index of `tag_once` begins with it.
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="tags", db_index=False)
    name = models.CharField(max_length=50)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["session", "name"], name="tag_once")]
        # With the session: of a tag that tens of thousands have, PostgreSQL need not read the rows.
        indexes = [models.Index(fields=["name", "session"], name="tag_sessions")]

    def __str__(self) -> str:
        return self.name


def has_tag(name: str) -> Q:
    """The condition that a session has the tag, in a form that `sessions_app.models.conditions` knows."""
    tagged = f"SELECT session_id FROM {SessionTag._meta.db_table} WHERE name = %s"  # noqa: S608 - a table
    return Q(pk__in=RawSQL(tagged, [name]))  # noqa: S611 - as above
