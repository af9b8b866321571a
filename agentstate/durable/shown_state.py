"""What a request for approval shows of the State: arguments that the tool is given besides those of the model.

Pure Python, so that whoever stores or shows a request needs no Haystack.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentstate.durable.canonical import digest_of
from agentstate.names import STAND_IN_TAG, TYPE_TAG

Json = Any
# As Python shows by default where an object is, which differs in each process and in each copy.
_ADDRESS = re.compile(r" at 0x[0-9a-f]{4,16}(?=>)")


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


def digest(value: Json) -> str:
    """The digest of a `StateArgument`.

    :param value: As the State stores it. None has no digest: a key that only ever was None is not stored.
    """
    return "" if value is None else digest_of(_as_given(value))


def _as_given(data: Json) -> Json:
    """The encoded value as a run that continues is given it: plain data in the place of objects of types that cannot be
    stored. Where that is a text, without the addresses in it, so that a hook that makes such an object again in a
    resumed step makes the same.
    """
    if isinstance(data, list):
        return [_as_given(item) for item in data]
    if not isinstance(data, dict):
        return data
    if data.get(TYPE_TAG) == STAND_IN_TAG:
        value = data["value"]
        return {**data, "value": _ADDRESS.sub("", value)} if isinstance(value, str) else _as_given(value)
    return {key: _as_given(item) for key, item in data.items()}
