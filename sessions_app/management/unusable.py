"""Why a command cannot use the database, in one line."""

from django.db import Error

from sessions_app.management.printed import one_line

# What SQLite says; PostgreSQL has codes.
_NO_SUCH = ("no such table", "no such column", "has no column named")
_UNDEFINED_TABLE, _UNDEFINED_COLUMN = "42P01", "42703"


def is_not_migrated(error: Error) -> bool:
    """Whether a table or a column is missing, as before `manage.py migrate`."""
    code = getattr(error.__cause__, "sqlstate", None)
    return code in (_UNDEFINED_TABLE, _UNDEFINED_COLUMN) or any(text in str(error) for text in _NO_SUCH)


def why_unusable(error: Error) -> str:
    why = f"The database cannot be used: {one_line(error).rstrip('.')}."
    return f"{why} Is it migrated?" if is_not_migrated(error) else why
