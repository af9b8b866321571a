"""The semantic cache of replies in the database: `agentstate.durable.semantic_cache` says what it promises.

A reply is used again in sessions of the same agent and customer, for as long as its session shows it, and no person has
replaced a message there since. A session that a person has rewound, repaired or forked asks the model: the person
wanted to see something else. No transaction is open while a question is embedded.
"""

from collections.abc import Callable
from datetime import timedelta

from django.utils import timezone

from agentstate.durable.embedding import Embedder, cosines
from agentstate.durable.semantic_cache import CachedReply, Question, SemanticCache
from sessions_app.access.masking import Mask
from sessions_app.history import repairs
from sessions_app.history.message_rows import unpack
from sessions_app.models import Branch, Message, ModelCall, ReusableReply, Session
from sessions_app.runtime.connection import RunConnection
from sessions_app.runtime.leases import Claim

# So many replies to questions with the same key are looked at, the newest.
MOST_REPLIES = 200


class OrmReplyStore:
    """The replies that the claimed session may use, and those that it gives.

    :param embedder: The agent's embedder, asked for when it is first needed; None finds nothing.
    """

    def __init__(
        self,
        connection: RunConnection,
        claim: Claim,
        policy: SemanticCache,
        embedder: Callable[[], Embedder | None],
    ) -> None:
        self._connection = connection
        self._claim = claim
        self._policy = policy
        self._embedder = embedder
        # That of the last question, with its embedder's name, if its reply may be stored.
        self._vector: tuple[bytes, str] | None = None

    def find(self, question: Question) -> CachedReply | None:
        self._vector = None
        with self._connection.transaction():
            session = self._claim.read_session()
        # What is hidden could be found out by asking with a guess, and must not go to the embedder's server.
        if not session.customer or Mask.configured().hides([question.text, *question.earlier]):
            return None
        embedder = self._embedder()
        vector = embedder.embed(question.text) if embedder else None
        if embedder is None or vector is None:
            return None
        self._vector = vector, embedder.name
        if session.current_branch.left_another_branch:
            return None
        with self._connection.transaction():
            return self._nearest(session, question, vector, embedder.name)

    def store(self, question: Question, position: int) -> None:
        if self._vector is None:
            return
        vector, embedder = self._vector
        with self._connection.transaction():
            session = self._claim.read_session()
            call = ModelCall.objects.get(branch=session.current_branch, position=position - 1)
            ReusableReply.objects.get_or_create(
                call=call,
                defaults={
                    "session": session,
                    "agent": session.agent,
                    "customer": session.customer,
                    "key": question.key,
                    "vector": vector,
                    "embedder": embedder,
                    "expires_at": timezone.now() + timedelta(seconds=self._policy.ttl),
                },
            )

    def _nearest(
        self, session: Session, question: Question, vector: bytes, embedder: str
    ) -> CachedReply | None:
        rows = ReusableReply.objects.filter(
            agent=session.agent,
            customer=session.customer,
            key=question.key,
            embedder=embedder,
            expires_at__gt=timezone.now(),
        )
        newest = list(rows.select_related("call", "session__branch").order_by("-call")[:MOST_REPLIES])
        shown = [
            row for row in newest if row.session.current_branch.sees(row.call.branch_id, row.call.position)
        ]
        shown = _unchanged(shown)
        scores = cosines(vector, [bytes(row.vector) for row in shown])
        best = max(range(len(shown)), key=scores.__getitem__, default=None)
        # A cosine is rounded: that of equal vectors may be below 1.
        if best is None or scores[best] < self._policy.min_similarity - 1e-6:
            return None
        call = shown[best].call
        reply = Message.objects.get(branch=call.branch_id, position=call.position + 1)
        return CachedReply(unpack(reply), str(shown[best].session_id), min(1.0, scores[best]))


def _unchanged(replies: list[ReusableReply]) -> list[ReusableReply]:
    """The replies since which no person has changed what their session says, such as the reply or its question.

    One query if any of their sessions has left a branch, else none.
    """
    since: dict[Branch, int] = {}
    for row in replies:
        branch = row.session.current_branch
        since[branch] = min(since.get(branch, row.call.position), row.call.position)
    changed = {
        pk: {event.branch_id for event in events if event.data.get("what") in repairs.OF_WHAT_WAS_SAID}
        for pk, events in repairs.on_each(since).items()
    }
    return [row for row in replies if not _later_branches(row) & changed[row.session.current_branch.pk]]


def _later_branches(row: ReusableReply) -> set[int]:
    """The keys of the branches with the rest of its session's history."""
    segments = [pk for pk, _ in row.session.current_branch.segments()]
    return set(segments[segments.index(row.call.branch_id) + 1 :])
