"""Replies that may be used again for a question that means the same: the semantic cache of replies.

A row holds no text: the reply is the message of the session's history, so it is masked, found and erased as that.
"""

from django.db import models
from django.utils import timezone

from sessions_app.models.modelcall import ModelCall
from sessions_app.models.session import Session


class ReusableReply(models.Model):
    """The reply of ``call``, until ``expires_at``; ``vector`` is that of its question, made by ``embedder``.

    ``key`` is `agentstate.durable.semantic_cache.Question.key`: what has to be equal.
    """

    call = models.OneToOneField(ModelCall, on_delete=models.CASCADE, primary_key=True, related_name="+")
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="reusable_replies")
    agent = models.CharField(max_length=100)
    customer = models.CharField(max_length=200)
    key = models.CharField(max_length=64)
    vector = models.BinaryField()
    embedder = models.CharField(max_length=100)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name_plural = "reusable replies"
        indexes = [models.Index(fields=["agent", "customer", "key", "-call"], name="reply_scope")]

    def __str__(self) -> str:
        return f"reusable reply {self.pk}"

    @classmethod
    def forget_expired(cls) -> int:
        """Delete the replies that may not be used any more, and return their number."""
        return cls.objects.filter(expires_at__lte=timezone.now()).delete()[0]
