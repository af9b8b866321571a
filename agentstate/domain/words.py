"""The words of a text, and which of some texts have most of the words of a query. Pure Python.

Case, accents and punctuation do not matter.
"""

import math
import re
import unicodedata
from collections.abc import Sequence

MOST_CHARACTERS = 100_000
LONGEST_WORD = 100
# A query is short. What comes behind so many words adds little.
MOST_QUERY_WORDS = 50
# So many letters have to be equal where one word is the beginning of another, as in `invoice` and `invoices`.
SHORTEST_BEGINNING = 4


def words_of(text: str) -> list[str]:
    """The words of the first 100,000 characters: lower case, without accents, letters and digits only."""
    text = text[:MOST_CHARACTERS].casefold()
    if not text.isascii():
        # Twice, as the Unicode standard says (3.13, D146): some symbols stand for capital letters, such as 🄐.
        for _ in range(2):
            text = unicodedata.normalize("NFKD", text).casefold()
        for accent in filter(unicodedata.combining, set(text)):
            text = text.replace(accent, "")
    return [word[:LONGEST_WORD] for word in re.findall(r"[^\W_]+", text)]


def nearest_by_words(query: str, texts: Sequence[str], limit: int) -> list[int]:
    """The indexes of the texts that share words with the query, best first; of equal ones in their order.

    A word counts more the fewer of the texts have it. A text that shares none is left out.
    """
    wanted = list(dict.fromkeys(words_of(query)))[:MOST_QUERY_WORDS]
    vocabularies = [set(words_of(text)) for text in texts]
    scores = [0.0] * len(texts)
    for word in wanted:
        matches = [index for index, vocabulary in enumerate(vocabularies) if _has(vocabulary, word)]
        for index in matches:
            scores[index] += math.log(1 + len(texts) / len(matches))
    ranked = sorted(range(len(texts)), key=lambda index: -scores[index])
    return [index for index in ranked if scores[index] > 0][:limit]


def _has(vocabulary: set[str], word: str) -> bool:
    if word in vocabulary:
        return True
    if len(word) < SHORTEST_BEGINNING:
        return False
    return any(
        other.startswith(word) or (len(other) >= SHORTEST_BEGINNING and word.startswith(other))
        for other in vocabulary
    )
