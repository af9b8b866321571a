"""The words of a text, and which of some texts have most of the words of a query. Pure Python.

Case, accents and punctuation do not matter. Some scripts, such as those of Chinese, Japanese and Thai, are written
without spaces between words: there each two characters that follow each other count as a word, and so does the last
character of a run of them. So each part of such a run is found: one character is the beginning of a pair, or the last.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

MOST_CHARACTERS = 100_000
LONGEST_WORD = 100
# A query is short. What comes behind so many words adds little.
MOST_QUERY_WORDS = 50
# So many letters have to be equal where one word is the beginning of another, as in `invoice` and `invoices`.
SHORTEST_BEGINNING = 4
# The ranges of these scripts, for a class of a pattern: Thai and Lao, Burmese, Khmer, Chinese and Japanese.
UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    r"\u2e80-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
_RUN = re.compile(r"[^\W_]+")
_PART = re.compile(f"[{UNSPACED}]+|[^{UNSPACED}]+")
_UNSPACED = re.compile(f"[{UNSPACED}]")


def words_of(text: str) -> list[str]:
    """The words of the first 100,000 characters: lower case, without accents, letters and digits only."""
    text = normalized(text)
    if not _has_unspaced(text):
        return [word[:LONGEST_WORD] for word in _RUN.findall(text)]
    words = list[str]()
    for run in runs_of(text):
        for part in run:
            if is_unspaced(part):
                words += (part[place : place + 2] for place in range(len(part)))
            else:
                words.append(part[:LONGEST_WORD])
    return words


def normalized(text: str) -> str:
    """The beginning of the text as its words are compared. Some characters stand for up to eighteen others."""
    text = text[:MOST_CHARACTERS].casefold()
    if not text.isascii():
        # Twice, as the Unicode standard says (3.13, D146): some symbols stand for capital letters, such as 🄐.
        for _ in range(2):
            text = unicodedata.normalize("NFKD", text).casefold()
        for accent in filter(unicodedata.combining, set(text)):
            text = text.replace(accent, "")
    return text[:MOST_CHARACTERS]


def runs_of(text: str) -> Iterator[Sequence[str]]:
    """The letters and digits of the text that nothing separates, in parts: each of scripts with or without spaces."""
    has_unspaced = _has_unspaced(text)
    for run in _RUN.findall(text):
        yield _PART.findall(run) if has_unspaced else (run,)


def _has_unspaced(text: str) -> bool:
    return not text.isascii() and _UNSPACED.search(text) is not None


def is_unspaced(part: str) -> bool:
    """Whether the part of a run, or the word, is of a script without spaces."""
    return _UNSPACED.match(part) is not None


def is_character(word: str) -> bool:
    """Whether the word is a single character of a script without spaces: then it may be the beginning of a pair."""
    return len(word) == 1 and is_unspaced(word)


def ends_run(before: str, word: str) -> bool:
    """Whether the word is the last character of the pair before it. It says nothing that the pair does not say."""
    return is_character(word) and len(before) == 2 and before[1] == word


def query_words(text: str) -> list[str]:
    """The words of a query, each once, for `has_word`."""
    words = pairwise(["", *words_of(text)])
    return list(dict.fromkeys(word for before, word in words if not ends_run(before, word)))


def has_word(vocabulary: Iterable[str], word: str) -> bool:
    """Whether a word of a query is one of these of a text."""
    return word in vocabulary or (is_character(word) and any(other.startswith(word) for other in vocabulary))


def nearest_by_words(query: str, texts: Sequence[str], limit: int) -> list[int]:
    """The indexes of the texts that share words with the query, best first; of equal ones in their order.

    A word counts more the fewer of the texts have it. A text that shares none is left out.
    """
    wanted = query_words(query)[:MOST_QUERY_WORDS]
    vocabularies = [set(words_of(text)) for text in texts]
    scores = [0.0] * len(texts)
    for word in wanted:
        matches = [index for index, vocabulary in enumerate(vocabularies) if _has_similar(vocabulary, word)]
        for index in matches:
            scores[index] += math.log(1 + len(texts) / len(matches))
    ranked = sorted(range(len(texts)), key=lambda index: -scores[index])
    return [index for index in ranked if scores[index] > 0][:limit]


def _has_similar(vocabulary: set[str], word: str) -> bool:
    if has_word(vocabulary, word):
        return True
    if len(word) < SHORTEST_BEGINNING:
        return False
    return any(
        other.startswith(word) or (len(other) >= SHORTEST_BEGINNING and word.startswith(other))
        for other in vocabulary
    )
