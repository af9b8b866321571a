"""A session that is deleted, as docs/security.md says it, leaves nothing of its texts in the tables of the desk."""

from collections.abc import Iterable
from typing import Any

import pytest
from django.db import connection

from sessions_app.finding import search, search_index, search_tables
from sessions_app.models import Session, ToolCall
from sessions_app.runtime import similar
from tests import builders
from tests.migrating import Older, migrate

pytestmark = pytest.mark.django_db
SECRET = "DE4711"


def tables() -> list[str]:
    """All of the desk, but those in which SQLite itself keeps the index of the words."""
    with connection.cursor() as cursor:
        names = [
            name for name in connection.introspection.table_names(cursor) if name.startswith("sessions_app_")
        ]
    own = ("_data", "_idx", "_docsize", "_config")
    return [name for name in names if not ("_words_" in name and name.endswith(own))]


def tables_with(text: str) -> set[str]:
    found = set()
    with connection.cursor() as cursor:
        for table in tables():
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            if text.lower() in repr(cursor.fetchall()).lower():
                found.add(table)
    return found


def words() -> int:
    """How many rows the tables of words have."""
    names = ["message", "call", *(["open_call"] if connection.vendor == "sqlite" else [])]
    counts = " + ".join(f"(SELECT count(*) FROM sessions_app_{name}_words)" for name in names)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {counts}")
        [number] = cursor.fetchone()
    return int(number)


def update_index() -> None:
    while search_index.update():
        pass


def confidential() -> Session:
    history = builders.asked(title=f"Glass {SECRET}")
    history.user(f"My account is {SECRET}.")
    history.reply(calls=[("pay", {"to": SECRET}), ("pay", {"to": "Ada"})])
    history.finish(history.calls[0], {"receipt": f"to {SECRET}"})
    builders.memory_entry(history.session, f"Her account is {SECRET}.", history.calls[0])
    return history.rest("paused")


def test_a_session_that_is_deleted_leaves_its_texts_and_their_words_in_no_table(
    settings: Any,
) -> None:
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    update_index()
    session = confidential()
    update_index()
    similar.compare(session.pk)
    assert {"sessions_app_message", "sessions_app_toolcall", "sessions_app_memoryentry"} < tables_with(SECRET)
    assert words() == 6  # with those of the whole texts
    Session.objects.get(pk=session.pk).delete()
    assert tables_with(SECRET) == set()
    assert words() == 0


def test_the_words_of_a_deleted_session_hide_no_other_from_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "NEWEST", 2)
    history, deleted = builders.asked(), builders.asked()
    history.user("My roof leaks.")
    for number in range(3):
        deleted.user(f"The roof again, {number}.")
    update_index()
    assert search.newest_sessions("roof", whole=True) == ([deleted.session.pk], True)
    Session.objects.get(pk=deleted.session.pk).delete()
    assert search.newest_sessions("roof", whole=True) == ([history.session.pk], False)


def test_a_search_that_found_words_of_rows_that_are_gone_says_that_there_may_be_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "NEWEST", 1)
    builders.asked().user("My roof leaks.")
    update_index()
    columns, values = ("", "") if connection.vendor == "sqlite" else (", marks", ", '{}'")
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO sessions_app_message_words (rowid, words{columns}) VALUES (1000000000, 'roof'{values})"
        )
    assert search.newest_sessions("roof", whole=True) == ([], True)


@pytest.mark.parametrize("add", ["_add_messages", "_add_calls", "_close_calls"])
def test_words_of_a_row_that_is_deleted_before_they_are_written_are_not_written(
    monkeypatch: pytest.MonkeyPatch, add: str
) -> None:
    history = builders.asked()
    history.reply(calls=[("pay", {"to": "Ada"})])
    if add == "_close_calls":
        update_index()
        ToolCall.objects.update(status="done", ended_at=history.session.created_at)
    read = search_index._read

    def read_before(*args: Any) -> Any:
        texts = read(*args)
        Session.objects.get(pk=history.session.pk).delete()
        return texts

    monkeypatch.setattr(search_index, "_read", read_before)
    getattr(search_index, add)(search_tables.index_of_database())
    assert words() == 0


@pytest.mark.slow
def test_words_of_rows_that_were_deleted_earlier_are_removed_by_0048(older: Older) -> None:
    apps = older("0047_state_arguments")
    session = apps.get_model("sessions_app", "Session").objects.create(agent="a")
    branch = apps.get_model("sessions_app", "Branch").objects.create(session=session, number=1)
    message = apps.get_model("sessions_app", "Message").objects.create(
        branch=branch, position=1, role="user", text="The roof leaks", body={}
    )

    mark = message.pk

    def index(keys: Iterable[int]) -> None:
        columns, values = ("", "") if connection.vendor == "sqlite" else (", marks", ", '{}'")
        with connection.cursor() as cursor:
            for key in keys:
                cursor.execute(
                    f"INSERT INTO sessions_app_message_words (rowid, words{columns}) VALUES (%s, 'roof'{values})",
                    [key],
                )
            cursor.execute("UPDATE sessions_app_search_mark SET upto = %s WHERE name = 'message'", [mark])

    index([mark, 77, -77])
    migrate("0048_words_of_deleted_rows")
    update_index()
    assert words() == 1
    message.delete()
    assert words() == 0
    migrate("0047_state_arguments")
    index([77])
    assert words() == 1
    migrate("0048_words_of_deleted_rows")
    assert words() == 0
