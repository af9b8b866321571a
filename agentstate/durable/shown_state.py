"""What a request for approval shows of the State: arguments that the tool is given besides those of the model.

Pure Python, so that whoever stores or shows a request needs no Haystack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Any


@dataclass(frozen=True, slots=True)
class StateArgument:
    """An argument that a tool is given from the State.

    `key` is the State's. `value` is encoded by `encode_lossy`. `digest` tells whether the tool is given the same value
    later; it is "" where the State has none, as for a value of None.
    """

    key: str
    digest: str
    value: Json = None


# By the names of the arguments; None for a tool that takes none from the State, and where that was not recorded.
FromState = Mapping[str, StateArgument]


def digests(arguments: FromState | None) -> dict[str, str]:
    return {name: argument.digest for name, argument in (arguments or {}).items()}
