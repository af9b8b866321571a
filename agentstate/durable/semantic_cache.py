"""The semantic cache of replies: the policy that turns it on for an agent, and the port of the store of a run.

    @agent("shop", embedder=OpenAITextEmbedder, semantic_cache=SemanticCache(min_similarity=0.95, ttl=3600))

Which questions may be answered from it is said in `agentstate.durable.semantic_questions`. Needs no Haystack.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from agentstate import durations

Json = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticCache:
    """An agent's policy: answer a question by the reply to one that means the same, without asking the model.

    :param min_similarity: The cosine of the two questions' vectors, from which on they count as the same. What a good
        value is depends on the embedder.
    :param ttl: Seconds for which a reply may be used.
    :raises TypeError: for what is no number.
    :raises ValueError: for a similarity that is not above 0 and at most 1, and for a time that is not positive or
        longer than ten years.
    """

    min_similarity: float = 0.95
    ttl: float = 3600

    def __post_init__(self) -> None:
        for name in ("min_similarity", "ttl"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise TypeError(f"SemanticCache: {name} must be a number, not {value!r}.")
        if not 0 < self.min_similarity <= 1:
            raise ValueError(
                f"SemanticCache: min_similarity must be above 0 and at most 1, not {self.min_similarity!r}."
            )
        if not durations.is_duration(self.ttl):
            raise ValueError(f"SemanticCache: ttl must be {durations.WITHIN}, not {self.ttl!r}.")

    def to_dict(self) -> dict[str, float]:
        """As plain JSON, for the desk."""
        return {"min_similarity": self.min_similarity, "ttl": self.ttl}


@dataclass(frozen=True, slots=True)
class Question:
    """What the model is asked.

    :param key: Equal for two questions if all that has to be equal is: a hash of whatever the model is given besides
        `text`, and of the numbers in `text`.
    :param text: The user's last message.
    :param earlier: The bodies of the messages before it, without those of the system.
    """

    key: str
    text: str
    earlier: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class CachedReply:
    """The reply to a question that means the same: its body, the id of its session, and how similar the two are."""

    body: dict[str, Json]
    session: str
    similarity: float


class ReplyStore(Protocol):
    """The store of one run, bound to the scope of its session: one agent and one customer."""

    def find(self, question: Question) -> CachedReply | None:
        """The reply to the nearest question of the scope that has the same key and is similar enough."""

    def store(self, question: Question, position: int) -> None:
        """Let the reply at this position of the session's history, which answers the question, be found.

        :param question: That of the last `find`, which found nothing.
        """
