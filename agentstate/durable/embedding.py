"""Texts compared by meaning: a Haystack text embedder, and vectors as they are stored.

A vector is stored as bytes: 32-bit floats in the machine's order for little-endian machines, of length one, so that the
cosine of two is their product. Vectors of two embedders are never compared: `Embedder.name` says which one made them.
"""

import logging
import math
import sys
import threading
from array import array
from collections.abc import Sequence
from hashlib import sha256
from operator import mul
from typing import Any

from haystack.core.serialization import component_to_dict

from agentstate.durable.definition import canonical_text
from agentstate.durable.registry import Registration

logger = logging.getLogger(__name__)
# What an embedder is given at most; most models read less.
MOST_CHARACTERS = 8_000


class Embedder:
    """A Haystack text embedder that never fails: what it cannot embed is compared by words, or not at all."""

    def __init__(self, component: Any) -> None:
        self._component = component
        self._is_warm = False
        self._lock = threading.Lock()
        self.name = _name(component)

    def embed(self, text: str) -> bytes | None:
        """The vector of the text; None if the embedder fails, which is logged."""
        try:
            with self._lock:
                if not self._is_warm and hasattr(self._component, "warm_up"):
                    self._component.warm_up()
                self._is_warm = True
            return stored_vector(self._component.run(text=text[:MOST_CHARACTERS])["embedding"])
        except Exception:
            logger.warning(
                "A text cannot be embedded, so it is compared by its words or not at all.", exc_info=True
            )
            return None


_built: dict[str, tuple[Registration, Embedder | None]] = {}
_lock = threading.Lock()


def embedder_of(registration: Registration) -> Embedder | None:
    """The embedder that the registration names, built at its first use in this process; None without one.

    None, and a warning in the log, also if it cannot be built.
    """
    with _lock:
        cached = _built.get(registration.key)
        if cached is not None and cached[0] is registration:
            return cached[1]
        embedder = None
        if registration.embedder is not None:
            try:
                embedder = Embedder(registration.embedder())
            except Exception:
                logger.warning(
                    "The embedder of the agent %s cannot be built, so texts are compared by their words.",
                    registration.key,
                    exc_info=True,
                )
        _built[registration.key] = (registration, embedder)
        return embedder


def stored_vector(values: Sequence[float]) -> bytes:
    """:raises ValueError: for a vector of zeros."""
    length = math.sqrt(math.fsum(value * value for value in values))
    if not math.isfinite(length) or not length > 0:
        raise ValueError("The embedder returned a vector of zeros.")
    return _little_endian(array("f", (value / length for value in values))).tobytes()


def cosines(vector: bytes, others: Sequence[bytes]) -> list[float]:
    """The cosine of the vector with each of the others, 0.0 for one of another length."""
    own = _values(vector)
    return [sum(map(mul, own, _values(other))) if len(other) == len(vector) else 0.0 for other in others]


def nearest_by_meaning(vector: bytes, others: Sequence[bytes | None], limit: int) -> list[int]:
    """The indexes of the vectors that point where this one does, best first; those without a vector are left out."""
    indexes = [index for index, other in enumerate(others) if other is not None]
    scores = dict(zip(indexes, cosines(vector, [others[index] or b"" for index in indexes]), strict=True))
    ranked = sorted(indexes, key=lambda index: -scores[index])
    return [index for index in ranked if scores[index] > 0][:limit]


def _values(vector: bytes) -> "array[float]":
    values = array("f")
    values.frombytes(vector)
    return _little_endian(values)


def _little_endian(values: "array[float]") -> "array[float]":
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _name(component: Any) -> str:
    """The class and the fingerprint of what it is made of: another model makes other vectors."""
    try:
        parts: Any = component_to_dict(component, "embedder")
    except Exception:  # it cannot be serialised
        parts = str(getattr(component, "model", ""))
    fingerprint = sha256(canonical_text(parts).encode()).hexdigest()
    return f"{type(component).__name__[:60]}:{fingerprint[:16]}"
