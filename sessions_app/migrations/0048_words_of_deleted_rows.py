"""The words of a deleted message or call leave the search with it, and so do those of rows that were deleted before.

The search index is emptied, and the sweep adds everything again. Until it has, older messages and calls are not found.
`manage.py update_search` does it at once. On SQLite the tables of words hold the words themselves from now on: those of
a row cannot be removed from a table without them.
"""

import django.db.models.deletion
from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_WORDS_OF = {
    "sessions_app_message": ["sessions_app_message_words"],
    "sessions_app_toolcall": ["sessions_app_call_words", "sessions_app_open_call_words"],
}
_REMOVE = """
CREATE FUNCTION sessions_app_remove_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('DELETE FROM %I WHERE rowid IN (SELECT id FROM gone UNION ALL SELECT -id FROM gone)', TG_ARGV[0]);
    RETURN NULL;
END $$
"""


def _forwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("TRUNCATE sessions_app_message_words, sessions_app_call_words")
        schema_editor.execute(_REMOVE, params=None)
        for table, (words, *_) in _WORDS_OF.items():
            schema_editor.execute(
                f"CREATE TRIGGER {words}_go AFTER DELETE ON {table} REFERENCING OLD TABLE AS gone "
                f"FOR EACH STATEMENT EXECUTE FUNCTION sessions_app_remove_words('{words}')"
            )
    else:
        # The words are made of letters and digits of all scripts, and stand between spaces.
        _create_tables(schema_editor, "tokenize='ascii'")
        # A migration that makes one of these tables anew has to create its triggers again.
        for table, tables_of_words in _WORDS_OF.items():
            for words in tables_of_words:
                schema_editor.execute(
                    f"CREATE TRIGGER {words}_go AFTER DELETE ON {table} "
                    f"BEGIN DELETE FROM {words} WHERE rowid IN (OLD.id, -OLD.id); END"
                )
    _add_all_again(schema_editor)


def _backwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    is_postgres = schema_editor.connection.vendor == "postgresql"
    for table, tables_of_words in _WORDS_OF.items():
        for words in tables_of_words[: 1 if is_postgres else None]:
            schema_editor.execute(f"DROP TRIGGER {words}_go" + (f" ON {table}" if is_postgres else ""))
    if is_postgres:
        schema_editor.execute("DROP FUNCTION sessions_app_remove_words()")
        return
    _create_tables(schema_editor, "content=''")
    _add_all_again(schema_editor)


def _create_tables(schema_editor: BaseDatabaseSchemaEditor, option: str) -> None:
    for tables_of_words in _WORDS_OF.values():
        for words in tables_of_words:
            own = "" if option == "content=''" and "open" in words else f", {option}"
            schema_editor.execute(f"DROP TABLE {words}")
            schema_editor.execute(f"CREATE VIRTUAL TABLE {words} USING fts5(words{own})")


def _add_all_again(schema_editor: BaseDatabaseSchemaEditor) -> None:
    schema_editor.execute("UPDATE sessions_app_search_mark SET upto = 0 WHERE name IN ('message', 'toolcall')")


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0047_state_arguments")]

    operations = [
        migrations.RunPython(_forwards, _backwards),
        migrations.CreateModel(
            name="ErasedEntry",
            fields=[
                ("key", models.CharField(max_length=64, primary_key=True, serialize=False)),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="erased_entries",
                        to="sessions_app.session",
                    ),
                ),
            ],
            options={"verbose_name_plural": "erased entries"},
        ),
    ]
