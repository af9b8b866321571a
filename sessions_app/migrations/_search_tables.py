"""The tables in which words are looked up: tsvectors on PostgreSQL, FTS5 on SQLite. See `sessions_app.finding.search_index`.

``rowid`` is the key of the message or call. These tables can be filled again from the rows at any time.
"""

from django.apps.registry import Apps
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_MARKS = [
    "CREATE TABLE sessions_app_search_mark (name varchar(20) PRIMARY KEY, upto bigint NOT NULL)",
    "INSERT INTO sessions_app_search_mark VALUES ('message', 0), ('toolcall', 0)",
]
_POSTGRES = [
    "CREATE TABLE sessions_app_message_words (rowid bigint PRIMARY KEY, words tsvector NOT NULL)",
    "CREATE TABLE sessions_app_call_words (rowid bigint PRIMARY KEY, words tsvector NOT NULL, ended boolean NOT NULL)",
    "CREATE INDEX sessions_app_message_words_gin ON sessions_app_message_words USING gin (words)",
    "CREATE INDEX sessions_app_call_words_gin ON sessions_app_call_words USING gin (words)",
    "CREATE INDEX sessions_app_call_words_open ON sessions_app_call_words (rowid) WHERE NOT ended",
    *_MARKS,
]
# Without content: the texts themselves are stored once, in the rows. Such a table can only be added to, so calls
# that have not ended have another one.
_SQLITE = [
    "CREATE VIRTUAL TABLE sessions_app_message_words USING fts5(words, content='')",
    "CREATE VIRTUAL TABLE sessions_app_call_words USING fts5(words, content='')",
    "CREATE VIRTUAL TABLE sessions_app_open_call_words USING fts5(words)",
    *_MARKS,
]
_BACK = [
    "DROP TABLE sessions_app_search_mark",
    "DROP TABLE IF EXISTS sessions_app_open_call_words",
    "DROP TABLE sessions_app_call_words",
    "DROP TABLE sessions_app_message_words",
]


def create(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for statement in {"postgresql": _POSTGRES, "sqlite": _SQLITE}[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


def drop(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for statement in _BACK:
        schema_editor.execute(statement)
