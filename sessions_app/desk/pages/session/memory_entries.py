"""The long-term memory as a session's page shows it: what its agent remembers about its customer, from all sessions."""

from dataclasses import dataclass

from agentstate.domain.words import has_word, query_words, words_of
from agentstate.durable.long_term import MOST_ENTRIES
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.history.memory_entries import discarded_among, entries_about
from sessions_app.models import MemoryEntry

PAGE = 50


@dataclass(frozen=True, slots=True)
class EntryItem:
    """An entry, masked. ``discarded``: it was remembered on a discarded branch, so agents do not recall it."""

    row: MemoryEntry
    discarded: bool


@dataclass(frozen=True, slots=True)
class EntryPage:
    """``earlier`` is the ``before`` of the page with earlier entries, None on the last."""

    entries: list[EntryItem]
    earlier: int | None


def read_page(
    context: SessionContext, *, before: int | None = None, sought: str = "", whole: bool = False
) -> EntryPage:
    """The newest entries before a key; with ``sought``, those among the newest 1,000 that have all of its words.

    Two queries; one where no entry was remembered on a discarded branch.

    :param whole: Find by what is hidden, too.
    """
    rows = entries_about(context.session_row).select_related("call__branch")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    wanted = query_words(sought)
    found = list(rows[: MOST_ENTRIES if wanted else PAGE + 1])
    if wanted:
        found = [row for row in found if _has(context, row, wanted, whole)]
    shown = found[:PAGE]
    discarded = discarded_among(shown)
    entries = [EntryItem(row, row.pk in discarded) for row in context.mask.rows(shown)]
    return EntryPage(entries, shown[-1].pk if len(found) > PAGE else None)


def _has(context: SessionContext, row: MemoryEntry, wanted: list[str], whole: bool) -> bool:
    text = row.text if whole else str(context.mask.named("text", row.text))
    vocabulary = set(words_of(text))
    return all(has_word(vocabulary, word) for word in wanted)
