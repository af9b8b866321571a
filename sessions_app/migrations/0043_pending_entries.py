"""How many new entries PostgreSQL's GIN indexes put aside before they are sorted in.

The transaction that fills the list sorts it in. With the default of 4 MB that took up to a second, in whichever claim,
or end of a run, came to it; and each search reads the list. Without a list an update of a session takes five times as
long. Texts are added many at a time, so their lists are longer.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_KB = {
    64: (
        "session_title_trigrams",
        "session_title_pairs",
        "session_customer_trigrams",
        "session_customer_pairs",
        "session_customer_open",
        "shown_title_trigrams",
        "shown_title_pairs",
        "shown_customer_trigrams",
        "shown_customer_pairs",
    ),
    256: (
        "sessions_app_message_words_gin",
        "sessions_app_message_words_marks",
        "sessions_app_call_words_gin",
        "sessions_app_call_words_marks",
    ),
}


def _shorten(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    _alter(schema_editor, "SET (gin_pending_list_limit = {})")


def _reset(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    _alter(schema_editor, "RESET (gin_pending_list_limit)")


def _alter(schema_editor: BaseDatabaseSchemaEditor, change: str) -> None:
    """Those by trigrams are missing where the server does not have them."""
    if schema_editor.connection.vendor == "postgresql":
        for kb, names in _KB.items():
            for name in names:
                schema_editor.execute(f"ALTER INDEX IF EXISTS {name} {change.format(kb)}")


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0042_words_by_age")]

    operations = [migrations.RunPython(_shorten, _reset)]
