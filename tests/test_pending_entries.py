"""What PostgreSQL's indexes of words put aside, whoever fills the list sorts in, and each search reads it."""

import pytest
from django.db import connection

from tests.databases import connected

OF_ALL = """
    SELECT index.relname, tables.relname, coalesce(index.reloptions, '{}')
    FROM pg_index
    JOIN pg_class index ON index.oid = indexrelid
    JOIN pg_class tables ON tables.oid = indrelid
    JOIN pg_am ON pg_am.oid = index.relam
    WHERE amname = 'gin'
"""


@pytest.mark.slow
def test_no_index_puts_aside_so_much_that_sorting_it_in_holds_up_a_claim_or_the_end_of_a_run(
    new_database, django_db_blocker
):
    with django_db_blocker.unblock(), connected(new_database("postgres")), connection.cursor() as cursor:
        cursor.execute(OF_ALL)
        indexes = {
            name: (table, dict(each.split("=") for each in options)) for name, table, options in cursor
        }
    assert {"session_facets", "session_title_trigrams", "sessions_app_message_words_gin"} <= indexes.keys()
    most = {"sessions_app_session": 64, "sessions_app_shownname": 64}
    for name, (table, options) in indexes.items():
        if options.get("fastupdate") != "off":
            assert int(options["gin_pending_list_limit"]) <= most.get(table, 256), name
