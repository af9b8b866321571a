"""Adds new messages and calls to the tables that `sessions_app.finding.search_words` reads, and the names of sessions.

The sweep calls `update`, or a process that does nothing else (`sessions_app.finding.search_follower`), so a step of a
session never waits for this, and is found a few seconds later. Any number of processes may update at once, and any of
them may be killed: each row is added once, none is left out.

A call is indexed as soon as it is requested, and again with its result once it has ended; then it never changes.

What is indexed is the masked text, under the row's key; where the mask hides something, the whole text stands under
the negative key.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from django.db import transaction
from django.db.models import Model

from agentstate.domain.words import words_of
from agentstate.names import ENDED_CALL_STATES
from sessions_app.access.masking import Mask
from sessions_app.finding import search_follower, search_masking, shown_names
from sessions_app.finding.search_tables import Doc, Index, execute, has_restarted, index_of_database
from sessions_app.finding.search_words import CALL_FIELDS, INDEXED_MESSAGES, call_text
from sessions_app.models import Message, ToolCall

# So many rows are read at once, and so many characters are enough for one transaction.
_READ_AT_ONCE = 100
_ENOUGH_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class _Text:
    """
    docs: the text as it is shown, and the whole one where that differs.
    characters: of the whole one.
    ended: it never changes again.
    """

    pk: int
    docs: list[Doc]
    characters: int
    ended: bool

    @classmethod
    def of(cls, pk: int, masked: str, whole: str, *, ended: bool = True) -> Self:
        docs = [(pk, words_of(masked))]
        if masked != whole:
            docs.append((-pk, words_of(whole)))
        return cls(pk, docs, len(whole), ended)


def update(seconds: float = 1.0) -> bool:
    """Add new rows, in short transactions, for about so many seconds. Returns whether there are more.

    What is written meanwhile is left for the next call, unless there is a whole batch of it: each look for new rows
    takes as long as to add some dozens of them.

    An index of which no masking is stored is empty, or an earlier version has made it of whole texts only.
    """
    end = time.monotonic() + seconds
    index = index_of_database()
    unknown = search_masking.stored() is None
    if has_restarted(index) or (unknown and Mask.configured().hides_anything):
        rebuild()
    elif unknown:
        search_masking.store()
    # Each of them returns whether there may be more.
    while _add_messages(index) | _add_calls(index) | _close_calls(index) | _add_names(index):
        if time.monotonic() > end:
            return True
    return False


def rebuild() -> None:
    """Empty the index; the next updates add everything again, with the present masking."""
    with transaction.atomic():
        search_masking.store()
        kept = [search_masking.NAME, search_follower.NAME]
        execute("UPDATE sessions_app_search_mark SET upto = 0 WHERE name NOT IN (%s, %s)", kept)
        index_of_database().empty()


def _add_messages(index: Index) -> bool:
    return _add(index, Message, _texts_of_messages)


def _add_calls(index: Index) -> bool:
    return _add(index, ToolCall, _texts_of_calls)


def _add(index: Index, model: type[Model], texts_of: Callable[[Sequence[int]], Iterator[_Text]]) -> bool:
    mark, keys = index.new(model)
    if not keys:
        return False
    texts, read = _read(keys, texts_of)
    ended = index.prepared(doc for text in texts if text.ended for doc in text.docs)
    still_open = index.prepared(doc for text in texts if not text.ended for doc in text.docs)
    with transaction.atomic():
        added = search_masking.may_add()
        if added:
            present = index.present(model, [text.pk for text in texts])
            docs = index.only(present, ended), index.only(present, still_open)
            added = index.add(model, mark, keys[read - 1], *docs)
    return not added or read < len(keys) or len(keys) == index.batch


def _close_calls(index: Index) -> bool:
    keys = index.ended_calls()
    if not keys:
        return False
    texts, read = _read(keys, _texts_of_calls)
    docs = index.prepared(doc for text in texts for doc in text.docs)
    with transaction.atomic():
        if may_add := search_masking.may_add():
            present = index.present(ToolCall, [text.pk for text in texts])
            index.close(keys[:read], index.only(present, docs))
    return not may_add or read < len(keys) or len(keys) == index.closed


def _add_names(index: Index) -> bool:
    return shown_names.add(index.batch, index.late)


def _read(
    keys: Sequence[int], texts_of: Callable[[Sequence[int]], Iterator[_Text]]
) -> tuple[list[_Text], int]:
    """The texts of the first rows, as many as are enough for one transaction, and of how many of the keys they are."""
    texts: list[_Text] = []
    characters = read = 0
    while read < len(keys) and characters < _ENOUGH_CHARACTERS:
        for text in texts_of(keys[read : read + _READ_AT_ONCE]):
            texts.append(text)
            characters += text.characters
        read = min(read + _READ_AT_ONCE, len(keys))
    return texts, read


def _texts_of_messages(keys: Sequence[int]) -> Iterator[_Text]:
    mask = Mask.configured()
    rows = Message.objects.filter(INDEXED_MESSAGES, pk__in=keys).values_list("pk", "role", "text")
    for pk, role, text in rows:
        yield _Text.of(pk, mask.message(role, text), text)


def _texts_of_calls(keys: Sequence[int]) -> Iterator[_Text]:
    mask = Mask.configured()
    # With the columns only that are indexed, and the status.
    for call in ToolCall.objects.filter(pk__in=keys).only("status", "tool", *CALL_FIELDS):
        ended = call.status in ENDED_CALL_STATES
        yield _Text.of(call.pk, call_text(call, mask), call_text(call, Mask.none()), ended=ended)
