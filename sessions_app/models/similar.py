"""Sessions like another one: what each session is about, as words and as a vector, and the nearest of each.

All of it is made of masked texts by `sessions_app.runtime.similar`, and can be made again at any time. It is deleted
with its session.
"""

from django.db import models

from sessions_app.models.session import Session


class SessionDigest(models.Model):
    """What a session was about when it last came to rest.

    ``masking`` is that of `sessions_app.finding.search_masking`; ``vector`` was made by ``embedder``.
    """

    session = models.OneToOneField(Session, on_delete=models.CASCADE, primary_key=True, related_name="digest")
    masking = models.BigIntegerField()
    vector = models.BinaryField(null=True, blank=True)
    embedder = models.CharField(max_length=100, blank=True, default="")

    def __str__(self) -> str:
        return f"digest of {self.session_id}"


class SessionWord(models.Model):
    """One of the words of a session's digest."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="words", db_index=False)
    word = models.CharField(max_length=100)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["session", "word"], name="session_word_once")]
        indexes = [models.Index(fields=["word", "-session"], name="session_word")]

    def __str__(self) -> str:
        return self.word


class SimilarSession(models.Model):
    """``other`` is one of the ten sessions that are most like ``session``; ``rank`` 1 is the nearest."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="similar", db_index=False)
    # Without a constraint in the database: it would lock the rows of all ten sessions when they are stored, in no
    # order, and two sessions that come to rest together could wait for each other.
    other = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="+", db_constraint=False)
    rank = models.PositiveSmallIntegerField()
    by_meaning = models.BooleanField(default=False)

    class Meta:
        ordering = ["rank"]
        constraints = [models.UniqueConstraint(fields=["session", "rank"], name="similar_rank_once")]

    def __str__(self) -> str:
        return f"{self.rank}. {self.other_id}"
