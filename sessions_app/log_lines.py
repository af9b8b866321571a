"""How the project's processes write their log: without characters that a terminal obeys, or that are not seen.

Models, tools and customers write a part of what is logged: names of tools, texts of exceptions.
"""

import logging

from sessions_app.invisible import shown

_CARRIAGE_RETURN = "⟨U+000D⟩"


class LineFormatter(logging.Formatter):
    """Shows such characters by name, as the pages do; in the message, and in the traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).replace("\r\n", "\n")
        # With one, a terminal writes over the beginning of the line.
        return shown(text).replace("\r", _CARRIAGE_RETURN)
