"""What is hidden from a person cannot be found by them either: not its words, not their beginnings."""

import pytest
from django.core.management import call_command
from django.db import connection
from django.http import QueryDict

from sessions_app.access.masking import HIDDEN, Mask
from sessions_app.finding import (
    hits,
    search,
    search_index,
    search_masking,
    search_sessions,
    search_tables,
    shown_names,
)
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.search_words import MESSAGES, OPEN_CALLS, call_tables
from sessions_app.models import Session, ShownName
from tests import builders
from tests.pages import without_tokens

pytestmark = pytest.mark.django_db

SECRET = "DE8937"


@pytest.fixture(autouse=True)
def _hidden(settings):
    settings.AGENTSTATE_MASK_KEYS = ["pin"]
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]


@pytest.fixture
def viewer():
    return builders.user("viewer", "vera")


@pytest.fixture
def supervisor():
    return builders.user("supervisor", "sue")


def update_index():
    while search_index.update():
        pass


def confidential(**fields):
    history = builders.asked(**fields)
    history.user(f"My account is {SECRET}, thanks.")
    history.reply(calls=[("pay", {"pin": 471122, "to": "Ada"})])
    history.finish(history.calls[-1], {"receipt": f"to {SECRET}"})
    return history.session


def indexed():
    """What the tables of the search contain."""
    tables = [MESSAGES, *call_tables()]
    words = "''" if connection.vendor == "sqlite" else "words::text"
    with connection.cursor() as cursor:
        cursor.execute(
            " UNION ALL ".join(f"SELECT '{table}', rowid, {words} FROM {table}" for table in tables)
        )
        return set(cursor.fetchall()) | set(ShownName.objects.values_list("title", "customer"))


def found(user, **query):
    """The titles that the list shows."""
    session_filter = SessionFilter(query, user=user)
    assert session_filter.is_valid()
    return set(Session.objects.filter(session_filter.where()).values_list("title", flat=True))


@pytest.mark.parametrize(
    "text", ["DE8937", "DE8", "de8", "471122", "471", "account is DE8937", '"is de8937"']
)
def test_a_hidden_value_is_found_only_by_who_may_reveal_it(viewer, supervisor, text):
    confidential(title="Glass")
    update_index()
    assert found(viewer, q=text) == set()
    assert found(supervisor, q=text) == {"Glass"}


@pytest.mark.parametrize("text", ["thanks", "my account is", "receipt to", "ada", "pay"])
def test_what_stands_beside_a_hidden_value_is_found_by_everybody(viewer, supervisor, text):
    confidential(title="Glass")
    update_index()
    assert found(viewer, q=text) == found(supervisor, q=text) == {"Glass"}


def test_a_call_that_had_nothing_to_hide_while_it_ran_is_found_by_its_hidden_result(viewer, supervisor):
    history = builders.refunding(title="Refund")
    update_index()
    assert found(viewer, q="issue_refund") == {"Refund"}
    history.finish(history.calls[0], {"receipt": "R-55", "to": SECRET})
    update_index()
    assert found(viewer, q="R-55") == found(supervisor, q=SECRET) == {"Refund"}
    assert found(viewer, q=SECRET) == set()


def test_a_call_with_hidden_arguments_is_found_by_them_also_after_it_has_ended(viewer, supervisor):
    history = builders.asked(title="Pay")
    history.reply(calls=[("pay", {"to": SECRET})])
    update_index()
    assert found(supervisor, q=SECRET) == {"Pay"}
    history.finish(history.calls[0], "paid")
    update_index()
    assert found(supervisor, q=f"{SECRET} paid") == found(viewer, q="paid") == {"Pay"}
    assert OPEN_CALLS not in {row[0] for row in indexed()}
    assert found(viewer, q=SECRET) == set()


@pytest.mark.parametrize("text", ["cafe", "strasse", "café", "am cafe", "straß"])
def test_what_is_found_in_another_notation_is_shown_beside_a_hidden_value_too(text):
    history = builders.asked()
    history.user(f"My account is {SECRET}, Straße am Café.")
    session = history.rest("idle")
    update_index()
    for whole in (False, True):
        for found_here in (
            hits.in_session(session, text, mask=Mask.configured(), whole=whole),
            hits.first_in_each([session], text, mask=Mask.configured(), whole=whole)[session.pk],
        ):
            assert ["".join(part for part, _ in hit.parts) for hit in found_here] == [
                "My account is ••••, Straße am Café."
            ]


@pytest.mark.parametrize("text", [SECRET, "de8", '"is de8937"', '"de8937 strasse"'])
def test_what_is_found_by_nothing_that_is_shown_is_not_among_the_hits(text):
    history = builders.asked(title="Glass")
    history.user(f"My account is {SECRET}, Straße am Café.")
    session = history.rest("idle")
    update_index()
    assert found(builders.user("supervisor"), q=text) == {"Glass"}
    for whole in (False, True):
        assert hits.in_session(session, text, mask=Mask.configured(), whole=whole) == []


@pytest.mark.slow
def test_within_a_session_nobody_finds_it_and_everybody_finds_what_stands_beside_it(client, stopped_clock):
    session = confidential()
    session.refresh_from_db()
    update_index()

    def answer(text):
        page = client.get(f"/sessions/{session.pk}/find/", {"q": text})
        assert page.status_code == 200
        return without_tokens(page.content.decode())

    for role in ("viewer", "supervisor"):
        client.force_login(builders.user(role))
        assert answer("471122").replace("471122", "471123") == answer("471123")
        beside = answer("Ada")
        assert "<mark>Ada</mark>" in beside
        assert HIDDEN in beside
        assert "471122" not in beside


def test_an_index_made_with_another_masking_tells_nothing_to_who_may_not_reveal(viewer, supervisor, settings):
    settings.AGENTSTATE_MASK_KEYS = settings.AGENTSTATE_MASK_PATTERNS = []
    confidential(title="Glass")
    update_index()
    assert found(viewer, q=SECRET) == {"Glass"}
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    assert found(viewer, q=SECRET) == found(viewer, q="thanks") == set()
    assert found(supervisor, q=SECRET) == found(supervisor, q="thanks") == {"Glass"}
    call_command("rebuild_search")
    assert found(viewer, q=SECRET) == set()
    assert found(viewer, q="thanks") == {"Glass"}
    assert found(supervisor, q=SECRET) == {"Glass"}


@pytest.mark.parametrize("others", [[], [r"XX\d+"]], ids=["nothing", "something else"])
def test_what_a_process_with_other_settings_adds_tells_nothing_to_who_may_not_reveal(
    client, viewer, supervisor, settings, others
):
    """Such as a command in a shell without these variables. The desk has the former settings before and after it."""
    mine = settings.AGENTSTATE_MASK_PATTERNS
    builders.done(title="Before", customer="Zoe")
    update_index()
    settings.AGENTSTATE_MASK_PATTERNS = others
    confidential(title=f"Glass {SECRET}", customer=f"Ada {SECRET}")
    update_index()
    settings.AGENTSTATE_MASK_PATTERNS = mine
    update_index()
    for query in ({"q": SECRET}, {"q": SECRET[:4]}, {"q": "Glass"}, {"customer": SECRET}):
        assert found(viewer, **query) == set()
    assert found(supervisor, q=SECRET) == {f"Glass {SECRET}"}
    client.force_login(viewer)
    assert "rebuild_search" in client.get("/workers/").content.decode()
    connection.check_constraints()  # else PostgreSQL cannot empty the tables in the transaction of this test
    call_command("rebuild_search")
    assert "rebuild_search" not in client.get("/workers/").content.decode()
    assert found(viewer, q=SECRET) == found(viewer, customer=SECRET) == set()
    assert found(viewer, q="thanks") == found(viewer, customer="Ada") == {f"Glass {SECRET}"}


@pytest.mark.parametrize("add", ["_add_messages", "_add_calls", "_close_calls", "_add_names"])
def test_nothing_is_added_with_a_masking_that_is_no_longer_that_of_the_index(monkeypatch, add):
    """It has changed between the two statements that look."""
    history = builders.asked(title="Glass")
    history.user("thanks")
    history.reply(calls=[("pay", {"to": "Ada"})])
    if add == "_close_calls":
        update_index()
        history.finish(history.calls[-1], {"receipt": "to Ada"})
    search_masking.store()
    before = indexed()
    index = search_tables.Sqlite() if connection.vendor == "sqlite" else search_tables.Postgres()

    def changed():
        with connection.cursor() as cursor:
            cursor.execute("UPDATE sessions_app_search_mark SET upto = -1 WHERE name = 'masking'")

    monkeypatch.setattr(search_masking, "note_present", changed)
    assert getattr(search_index, add)(index)
    assert indexed() == before
    monkeypatch.undo()
    assert not getattr(search_index, add)(index)
    assert indexed() != before


def test_an_index_of_an_earlier_version_is_made_anew_where_something_is_hidden(viewer, settings):
    session = confidential(title="Glass")
    settings.AGENTSTATE_MASK_KEYS = settings.AGENTSTATE_MASK_PATTERNS = []
    update_index()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM sessions_app_search_mark WHERE name = 'masking'")
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    assert found(viewer, q="thanks") == set()
    update_index()
    assert found(viewer, q="thanks") == {session.title}
    assert found(viewer, q=SECRET) == set()


def test_an_index_of_an_earlier_version_is_kept_where_nothing_is_hidden(viewer, settings):
    settings.AGENTSTATE_MASK_KEYS = settings.AGENTSTATE_MASK_PATTERNS = []
    confidential(title="Glass")
    update_index()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM sessions_app_search_mark WHERE name = 'masking'")
    search_index.update(seconds=0)
    keys, _ = search.newest_sessions("thanks", whole=False)
    assert len(keys) == 1


@pytest.mark.slow
def test_the_workers_page_says_that_the_index_must_be_made_anew(client, settings):
    client.force_login(builders.user("viewer"))
    update_index()
    assert "rebuild_search" not in client.get("/workers/").content.decode()
    settings.AGENTSTATE_MASK_KEYS = ["other"]
    assert "rebuild_search" in client.get("/workers/").content.decode()
    call_command("rebuild_search")
    assert "rebuild_search" not in client.get("/workers/").content.decode()


@pytest.mark.parametrize("name, field", [("q", "title"), ("q", "customer"), ("customer", "customer")])
def test_titles_and_customers_are_compared_as_they_are_shown(viewer, supervisor, name, field):
    session = builders.done(**{"title": "Plain", field: f"Ada {SECRET} Byron"})
    title = session.title
    assert found(viewer, **{name: "Ada"}) == set()
    update_index()
    for text in (SECRET, SECRET[:3], f"Ada {SECRET}", "8937 byr", "•"):
        assert found(viewer, **{name: text}) == set(), text
    for text in (SECRET, SECRET[:3], f"Ada {SECRET}", "8937 byr"):
        assert found(supervisor, **{name: text}) == {title}, text
    for text in ("Ada", "byron", " Byron", "n", "a "):
        assert found(viewer, **{name: text}) == found(supervisor, **{name: text}) == {title}, text


def test_what_is_hidden_in_newer_sessions_does_not_decide_which_older_ones_are_found(viewer, monkeypatch):
    monkeypatch.setattr(search_sessions, "MOST_NAMED", 2)
    builders.done(title="Flight 8937")
    for number in range(3):
        builders.done(title=f"Account {SECRET} of {number}", customer=f"DE89{number}")
    update_index()
    assert found(viewer, q="8937") == {"Flight 8937"}
    assert found(viewer, q="89") == {"Flight 8937"}


def test_a_name_that_is_hidden_whole_finds_nothing(viewer, supervisor, settings):
    settings.AGENTSTATE_MASK_KEYS = ["customer"]
    search_index.rebuild()
    builders.done(title="Glass", customer="Ada •••• Byron")
    update_index()
    for text in ("Ada", "y", "•", "••••", "glass ada"):
        assert found(viewer, q=text) == found(viewer, customer=text) == set(), text
    assert found(viewer, q="glass") == found(supervisor, customer="Ada") == {"Glass"}


def test_of_very_many_titles_the_newest_are_listed_and_the_page_may_say_so(viewer, monkeypatch):
    monkeypatch.setattr(search_sessions, "MOST_NAMED", 2)
    for number in range(3):
        builders.done(title=f"Ada {number}")
    update_index()
    search_filter = SessionFilter({"q": "Ada"}, user=viewer)
    assert set(Session.objects.filter(search_filter.where()).values_list("title", flat=True)) == {
        "Ada 1",
        "Ada 2",
    }
    assert search_filter.found.cut


def test_names_are_kept_only_while_something_is_hidden(viewer, settings):
    settings.AGENTSTATE_MASK_KEYS = settings.AGENTSTATE_MASK_PATTERNS = []
    search_index.rebuild()
    builders.done(title="Early")
    update_index()
    assert not ShownName.objects.exists()
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    assert found(viewer, q="early") == set()
    call_command("rebuild_search")
    late = builders.done(title=f"Late {SECRET}")
    update_index()
    assert {row.title for row in ShownName.objects.all()} == {"Early", "Late \x1f"}
    assert found(viewer, q="early") == {"Early"}
    late.delete()
    assert [row.title for row in ShownName.objects.all()] == ["Early"]


def test_a_hidden_tag_is_found_only_by_who_may_reveal_it(viewer, supervisor):
    builders.done(title="Tagged", tags=[SECRET.lower(), "glass"])
    assert found(viewer, tag="glass") == {"Tagged"}
    builders.done(title="Other", tags=["de1"])
    assert found(viewer, tag="de8937") == found(viewer, tag="de9999")


def test_filters_ask_the_database_as_often_whatever_is_hidden(
    viewer, supervisor, settings, django_assert_num_queries
):
    parameters = QueryDict("q=Ada&customer=Byron")
    for user in (viewer, supervisor):
        session_filter = SessionFilter(parameters, user=user)
        user.has_perm("sessions_app.view_session")  # its permissions are read once
        with django_assert_num_queries(2):
            session_filter.where()
    settings.AGENTSTATE_MASK_KEYS = settings.AGENTSTATE_MASK_PATTERNS = []
    session_filter = SessionFilter(parameters, user=viewer)
    with django_assert_num_queries(2):
        session_filter.where()


def test_there_may_be_more_names_where_as_many_were_added_as_are_at_once():
    late = search_tables.LATE
    for title in ("Ada", "Bob", "Cleo"):
        builders.History(title=title)
    assert shown_names.add(2, late) is True
    assert shown_names.add(2, late) is False
    assert ShownName.objects.count() == 3


def test_names_that_are_added_while_the_index_is_emptied_are_all_added_in_the_end(viewer, monkeypatch):
    for number in range(5):
        builders.paused(title=f"Alpha {number}")
    update_index()
    builders.paused(title="Alpha 5")
    shown = shown_names._shown

    def meanwhile(*values):
        monkeypatch.setattr(shown_names, "_shown", shown)
        connection.check_constraints()  # PostgreSQL cannot truncate before they are
        search_index.rebuild()  # by another process
        return shown(*values)

    monkeypatch.setattr(shown_names, "_shown", meanwhile)
    update_index()
    assert found(viewer, q="alpha") == {f"Alpha {number}" for number in range(6)}
