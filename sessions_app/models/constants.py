"""SQL for SQLite in which values stand as constants.

SQLite uses an index with a condition only where it sees in the statement itself that the condition is met: it plans
without the values of the parameters.
"""

import re
from collections.abc import Collection, Sequence
from itertools import count
from typing import Any


def with_constants(sql: str, parameters: Sequence[Any], places: Collection[int]) -> str | None:
    """The SQL with all parameters but these as constants; None where one of them is neither a whole number nor a text.

    :param sql: As Django makes it for SQLite, with ``%s`` for each parameter.
    :param places: The indexes of those that stay parameters, in their order.
    """
    indexes = count()
    constants = [_constant(value) for value in parameters]
    if any(constant is None for index, constant in enumerate(constants) if index not in places):
        return None

    def written(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%%"
        index = next(indexes)
        return "%s" if index in places else str(constants[index])

    return re.sub("%[%s]", written, sql)


def _constant(value: Any) -> str | None:
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str) and "\0" not in value:
        return "'" + value.replace("'", "''").replace("%", "%%") + "'"
    return None
