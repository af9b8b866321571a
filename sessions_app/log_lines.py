"""How the project's processes write their log: without characters that a terminal obeys, or that are not seen.

Models, tools and customers write a part of what is logged: names of tools, texts of exceptions. Of a task that fails
because the database is away there is one line, since many fail then, and all for the same reason.
"""

import logging

from sessions_app.invisible import shown
from sessions_app.unavailable import in_one_line, may_pass

_CARRIAGE_RETURN = "⟨U+000D⟩"


class LineFormatter(logging.Formatter):
    """Shows such characters by name, as the pages do; in the message, and in the traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).replace("\r\n", "\n")
        # With one, a terminal writes over the beginning of the line.
        return shown(text).replace("\r", _CARRIAGE_RETURN)


class FailedTasks(logging.Filter):
    """For Celery's logger of the tasks that fail: without the traceback where another attempt may succeed.

    With the log level DEBUG everything is as Celery writes it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and may_pass(error) and not logging.getLogger().isEnabledFor(logging.DEBUG):
            task = getattr(record, "data", {}).get("name", "")
            record.msg, record.args = "The task %s failed: %s", (task, in_one_line(error))
            record.exc_info = record.exc_text = None
        return True
