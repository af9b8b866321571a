"""What agents learned in one session and may use in later ones of the same agent and customer: the long-term memory.

An entry belongs to the session from which it was learned, and is deleted with it. Its call says on which branch that
was, so an entry that was learned on a discarded branch is known as such, and again offered after an undo.
"""

from django.db import models
from django.utils import timezone

from sessions_app.models.loading import LoadedModel
from sessions_app.models.session import Session
from sessions_app.models.toolcall import ToolCall


class MemoryEntry(LoadedModel):
    """``key`` is `agentstate.durable.long_term.entry_key`: one call stores a text once.

    ``vector`` is that of the text, made by ``embedder``; None where nothing has embedded the text as it is now.
    """

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="memory_entries")
    call = models.ForeignKey(
        ToolCall,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="memory_entries",
        help_text="The call that remembered it.",
    )
    agent = models.CharField(max_length=100)
    customer = models.CharField(max_length=200)
    text = models.TextField()
    key = models.CharField(max_length=64, unique=True)
    vector = models.BinaryField(null=True, blank=True)
    embedder = models.CharField(max_length=100, blank=True, default="")
    learned_at = models.DateTimeField(default=timezone.now)
    edited_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "memory entries"
        indexes = [models.Index(fields=["agent", "customer", "-id"], name="memory_scope")]

    def __str__(self) -> str:
        return f"memory entry {self.pk}"


class ErasedEntry(models.Model):
    """That an entry with this ``key`` was erased: its call, which may run again, must not store it again.

    The key tells nothing of the text to anyone who does not know it already.
    """

    key = models.CharField(max_length=64, primary_key=True)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="erased_entries")

    class Meta:
        verbose_name_plural = "erased entries"

    def __str__(self) -> str:
        return f"erased entry {self.pk}"
