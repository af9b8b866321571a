"""Takes out of the description of an agent, as plain JSON, what looks like a credential: it is known by its name, or
is the user of a URL.
"""

import re
from typing import Any

# By these names parts have what is not to be shown, and may change without a change of the agent.
CREDENTIAL = re.compile(
    r"(api|access|private)_?key|^key$|_key$|token$|secret|passw|passphrase|^pwd$|_pwd$|^auth$|authori[sz]ation|bearer"
    r"|credential|headers|cookie|dsn$|connection_string|webhook",
    re.I,
)
NOT_SHOWN = "(not shown)"
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]*@")


def without_credentials(value: Any, *, texts_only: bool = False) -> Any:
    """The same, with `NOT_SHOWN` in place of each credential.

    :param texts_only: Leave a credential that is no text: it is described, not shown, such as one that is read from an
        environment variable.
    """
    if isinstance(value, dict):
        return {
            key: NOT_SHOWN
            if (isinstance(item, str) if texts_only else item) and CREDENTIAL.search(str(key))
            else without_credentials(item, texts_only=texts_only)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [without_credentials(item, texts_only=texts_only) for item in value]
    return _USER_OF_URL.sub("", value) if isinstance(value, str) else value
