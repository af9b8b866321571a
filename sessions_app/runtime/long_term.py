"""The long-term memory of a run, in the database: `agentstate.durable.long_term` says what it promises.

Its methods are called where tools are. No transaction is open while a text is embedded.
"""

from collections.abc import Callable
from functools import cached_property

from agentstate.domain.words import nearest_by_words
from agentstate.durable.embedding import Embedder, nearest_by_meaning
from agentstate.durable.long_term import Entry, NotRemembered, entry_key
from sessions_app.history.memory_entries import offered_to
from sessions_app.models import CallStatus, ErasedEntry, MemoryEntry, Session, ToolCall
from sessions_app.runtime.connection import RunConnection
from sessions_app.runtime.leases import Claim

# Entries without a vector (a person edited them, or the agent had another embedder) that one recall embeds at most.
MOST_EMBEDDED = 50
NO_CUSTOMER = "Nothing is remembered across sessions here: this session names no customer."


class OrmMemory:
    """What the claimed session's agent remembers about its customer.

    :param embedder: The agent's embedder, asked for when it is first needed; None compares by words.
    """

    def __init__(
        self, connection: RunConnection, claim: Claim, embedder: Callable[[], Embedder | None]
    ) -> None:
        self._connection = connection
        self._claim = claim
        self._make_embedder = embedder

    @cached_property
    def _embedder(self) -> Embedder | None:
        return self._make_embedder()

    def remember(self, text: str, *, call: str) -> None:
        self._read_session()
        key = entry_key(call, text)
        vector = self._embedder.embed(text) if self._embedder else None
        with self._connection.transaction():
            session = self._session()
            if _is_known(key):
                return
            running = ToolCall.objects.filter(
                branch=session.current_branch, status=CallStatus.STARTED, idempotency_key=call
            )
            MemoryEntry.objects.get_or_create(
                key=key,
                defaults={
                    "session": session,
                    "call": running.order_by("-position").first(),
                    "agent": session.agent,
                    "customer": session.customer,
                    "text": text,
                    "vector": vector,
                    "embedder": self._embedder.name if self._embedder and vector else "",
                },
            )

    def recall(self, query: str, *, limit: int) -> list[Entry]:
        session = self._read_session()
        with self._connection.transaction():
            entries = offered_to(session)
        best = self._by_meaning(query, entries, limit)
        if not best:
            best = nearest_by_words(query, [entry.text for entry in entries], limit)
        return [Entry(entries[index].text, entries[index].learned_at) for index in best]

    def _by_meaning(self, query: str, entries: list[MemoryEntry], limit: int) -> list[int]:
        """Empty without an embedder, if it fails, and if nothing is near."""
        embedder = self._embedder
        vector = embedder.embed(query) if embedder and entries else None
        if embedder is None or vector is None:
            return []
        self._embed_missing(embedder, entries)
        vectors = [
            bytes(entry.vector) if entry.vector is not None and entry.embedder == embedder.name else None
            for entry in entries
        ]
        return nearest_by_meaning(vector, vectors, limit)

    def _embed_missing(self, embedder: Embedder, entries: list[MemoryEntry]) -> None:
        missing = [entry for entry in entries if entry.vector is None or entry.embedder != embedder.name]
        for entry in missing[:MOST_EMBEDDED]:
            vector = embedder.embed(entry.text)
            if vector is None:
                return
            with self._connection.transaction():
                # A person may have edited or erased it meanwhile.
                same = MemoryEntry.objects.filter(pk=entry.pk, text=entry.text)
                same.update(vector=vector, embedder=embedder.name)
            entry.vector, entry.embedder = vector, embedder.name

    def _read_session(self) -> Session:
        with self._connection.transaction():
            return self._session()

    def _session(self) -> Session:
        """:raises LeaseLost: if the claim is over: then another worker may run this call.
        :raises NotRemembered: if the session names no customer.
        """
        session = self._claim.read_session()
        if not session.customer:
            raise NotRemembered(NO_CUSTOMER)
        return session


def _is_known(key: str) -> bool:
    """Whether the entry was stored, also if a person has erased it since. One query, which sees one of the two."""
    stored, erased = (
        rows.filter(key=key).values("key") for rows in (MemoryEntry.objects, ErasedEntry.objects)
    )
    return stored.union(erased).exists()
