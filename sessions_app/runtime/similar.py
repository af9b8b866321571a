"""Finds the sessions that are most like one that has come to rest, and stores the nearest ten for its page.

A session is compared by what its title, its customer's messages and its answer say as they are masked for everyone:
otherwise the list would tell that two sessions share a hidden value. Candidates are found by words, at most 10,000;
with the agent's embedder they are then compared by meaning. No transaction is open while a text is embedded. A process
that has not the agent, or for which its embedder fails, leaves a session the vector that it has.
"""

import math
from collections.abc import Iterable
from uuid import UUID

from django.db import transaction

from agentstate.domain.words import is_unspaced, words_of
from agentstate.durable.embedding import embedder_of, nearest_by_meaning
from agentstate.durable.registry import AgentNotRegistered, registry
from sessions_app.access.masking import Mask
from sessions_app.finding import search_masking
from sessions_app.models import Message, Session, SessionDigest, SessionWord, SimilarSession

NEAREST = 10
MOST_CANDIDATES = 10_000
# Long words are rarer, so the longest stand for a session.
MOST_WORDS = 40
SHORTEST_WORD = 3
MOST_MESSAGES = 20


def compare(session_id: UUID) -> bool:
    """Store what the session is about, and its nearest. Does nothing for a session that is gone.

    :returns: False if the session should have a vector that could not be made here.
    """
    session = Session.objects.select_related("branch").filter(pk=session_id, branch__isnull=False).first()
    if session is None:
        return True
    masking = search_masking.present()
    text = _text(session)
    words = _words(text)
    vector, name, is_embedded = _vector(session, text, masking)
    _store_digest(session, words, masking, vector, name)
    candidates = _candidates(session, words)
    nearest = _by_meaning(candidates, vector, name, masking)
    by_meaning = bool(nearest)
    nearest = nearest or candidates[:NEAREST]
    with transaction.atomic():
        if not Session.objects.select_for_update().filter(pk=session_id).exists():
            return True
        SimilarSession.objects.filter(session=session).delete()
        there = set(Session.objects.filter(pk__in=nearest).values_list("pk", flat=True))
        SimilarSession.objects.bulk_create(
            SimilarSession(session=session, other_id=other, rank=rank, by_meaning=by_meaning)
            for rank, other in enumerate((pk for pk in nearest if pk in there), 1)
        )
    return is_embedded


def _text(session: Session) -> str:
    mask = Mask.configured()
    messages = Message.objects.visible_on(session.current_branch).filter(role=Message.Role.USER)
    texts = messages.order_by("position").values_list("text", flat=True)[:MOST_MESSAGES]
    masked = [mask.message(Message.Role.USER, text) for text in texts]
    shown = mask.row(session)
    return "\n".join(filter(None, [shown.title, *masked, shown.final_answer]))


def _words(text: str) -> list[str]:
    words = {word for word in words_of(text) if len(word) >= (2 if is_unspaced(word) else SHORTEST_WORD)}
    return sorted(words, key=lambda word: (-len(word), word))[:MOST_WORDS]


def _vector(session: Session, text: str, masking: int) -> tuple[bytes | None, str, bool]:
    """The vector of the text, the name of its embedder, and whether that is all that the agent asks for.

    Where it cannot be made here, the vector that is stored, unless what is hidden now may be in it.
    """
    try:
        registration = registry.get(session.agent)
    except AgentNotRegistered:
        registration = None
    if registration is not None:
        if registration.embedder is None or not text:
            return None, "", True
        embedder = embedder_of(registration)
        vector = embedder.embed(text) if embedder else None
        if embedder and vector:
            return vector, embedder.name, True
    stored = SessionDigest.objects.filter(session=session, vector__isnull=False).first()
    if stored is None or stored.vector is None:
        return None, "", registration is None
    if stored.masking != masking:
        return None, "", False
    return bytes(stored.vector), stored.embedder, False


def _store_digest(
    session: Session, words: Iterable[str], masking: int, vector: bytes | None, embedder: str
) -> None:
    with transaction.atomic():
        if not Session.objects.select_for_update().filter(pk=session.pk).exists():
            return
        values = {"masking": masking, "vector": vector, "embedder": embedder}
        SessionDigest.objects.update_or_create(session=session, defaults=values)
        SessionWord.objects.filter(session=session).delete()
        SessionWord.objects.bulk_create(SessionWord(session=session, word=word) for word in words)


def _candidates(session: Session, words: list[str]) -> list[UUID]:
    """The sessions that share words with this one, best first; of each word the newest. One query for each word."""
    scores: dict[UUID, float] = {}
    limit = MOST_CANDIDATES // max(1, len(words))
    for word in words:
        rows = SessionWord.objects.filter(word=word).exclude(session=session).order_by("-session")
        keys = list(rows.values_list("session_id", flat=True)[:limit])
        for pk in keys:
            scores[pk] = scores.get(pk, 0.0) + math.log(1 + limit / len(keys))
    return sorted(scores, key=lambda pk: (-scores[pk], pk))


def _by_meaning(candidates: list[UUID], vector: bytes | None, embedder: str, masking: int) -> list[UUID]:
    """Empty without a vector, and if no candidate has one of the same embedder."""
    if vector is None:
        return []
    digests = SessionDigest.objects.filter(
        session__in=candidates, embedder=embedder, masking=masking, vector__isnull=False
    )
    rows = list(digests.values_list("session_id", "vector"))
    best = nearest_by_meaning(vector, [bytes(other) for _, other in rows if other is not None], NEAREST)
    return [rows[index][0] for index in best]
