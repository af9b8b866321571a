"""Sessions are found by the text of their history, a few seconds later, and no search text is an error."""

import re
import threading
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentstate.domain.words import words_of
from sessions_app import actions, tasks
from sessions_app.access.masking import Mask
from sessions_app.finding import (
    filters,
    hidden,
    hits,
    newest,
    queues,
    search,
    search_index,
    search_masking,
    search_sessions,
    search_tables,
    search_words,
    shown_names,
)
from sessions_app.finding.filters import FirstOfList, SessionFilter
from sessions_app.finding.queues import QUEUES
from sessions_app.finding.session_list import condition_of, read_list
from sessions_app.models import Branch, Message, Session, ToolCall
from tests import builders

pytestmark = pytest.mark.django_db
NOTHING_HIDDEN = Mask.none()


@pytest.fixture
def index():
    """Adds what is new to the index. What the sweep does."""

    def update():
        assert search_index.update() is False

    return update


def found(text):
    keys, more = search.newest_sessions(text, whole=True)
    assert not more
    return set(Session.objects.filter(pk__in=keys))


@contextmanager
def rolled_back():
    """What is written within is gone behind it. Without it, each example would look among the rows of all before."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def small_batches(monkeypatch, size):
    for index in (search_tables.Sqlite, search_tables.Postgres):
        monkeypatch.setattr(index, "batch", size)


def parts(session, text, mask=NOTHING_HIDDEN, whole=True):
    return [hit.parts for hit in hits.in_session(session, text, mask=mask, whole=whole)]


def marked(session, text):
    return [[piece for piece, is_match in hit if is_match] for hit in parts(session, text)]


def test_a_message_is_found_after_the_next_sweep():
    session = builders.done()
    other = builders.asked()
    other.user("My roof leaks.")
    assert found("roof") == set()
    tasks.sweep()
    assert found("roof") == {other.session}
    assert found("windscreen") == {session, other.session}


def test_no_session_is_found_by_the_instructions_of_its_agent(index):
    history = builders.History()
    history.system("You work at the claims desk. Ask before you pay a refund.")
    history.user("My roof leaks.")
    index()
    assert found("refund") == found("desk") == set()
    assert found("roof") == {history.session}


def test_what_a_person_has_written_in_place_of_the_instructions_is_found(index):
    history = builders.History()
    history.message("system", "Pay no refund today.", author="sue")
    index()
    assert found("refund") == {history.session}


def test_calls_are_found_by_name_arguments_and_result(index):
    history = builders.asked()
    history.reply(calls=[("lookup_policy", {"policy": {"number": "POL-77"}, "copies": 3})])
    history.finish(history.calls[0], {"status": "lapsed", "lines": ["first\nsecond"]})
    builders.asked()
    index()
    for text in (
        "lookup_policy",
        "lookup",
        "pol-77",
        "77",
        "lapsed",
        "status",
        "second",
        "3",
        "lookup lapsed",
    ):
        assert found(text) == {history.session}, text


def test_a_call_is_found_while_it_waits_and_by_its_result_once_it_has_ended(index):
    history = builders.refunding()
    index()
    assert found("issue_refund") == {history.session}
    history.finish(history.calls[0], {"receipt": "R-55"})
    index()
    index()
    assert found("issue_refund 1042 R-55") == {history.session}
    assert marked(history.session, "issue_refund") == [["issue_refund"]]


def test_a_call_is_found_by_its_error_and_by_the_arguments_that_ran(index):
    history = builders.refunding()
    history.finish(
        history.calls[0], error="PaymentGatewayError: closed", sent={"claim": "CLM-9", "amount": 1}
    )
    index()
    assert found("paymentgatewayerror") == found("clm-9") == found("clm-1042") == {history.session}


def test_a_result_is_found_in_whatever_form_it_is_stored(index):
    history = builders.refunding()
    ordered = {
        "$type": "ordered",
        "keys": ["receipt", "due"],
        "value": {"due": {"$type": "date", "value": "2026-05-01"}},
    }
    history.finish(history.calls[0], [ordered, {"$type": "dict", "value": [[1, "courier"]]}])
    index()
    assert found("courier") == found("2026-05-01") == found("due 2026") == {history.session}


def test_every_word_must_be_in_the_same_message(index):
    history = builders.History()
    history.user("The windscreen is broken.")
    history.user("The mirror too.")
    index()
    assert found("windscreen broken") == {history.session}
    assert found("broken windscreen") == {history.session}
    assert found("windscreen mirror") == set()


@pytest.mark.parametrize(
    "text",
    ["windsc", "is winds", "WINDSCREEN", '"my windscreen"', "CLM-1042", "clm 1042", "müller", "muller"],
)
def test_a_text_is_found_in_several_notations(text, index):
    history = builders.History()
    history.user("Müller here: is my windscreen (claim CLM-1042) covered?")
    index()
    assert found(text) == {history.session}


@pytest.mark.parametrize(
    "text", ["windscreens", "wi", '"windscreen my"', "1042-CLM", "LM-1042", "--", "*", '""']
)
def test_a_text_that_does_not_occur_is_not_found(text, index):
    history = builders.History()
    history.user("Is my windscreen (claim CLM-1042) covered?")
    index()
    assert found(text) == set()
    assert parts(history.session, text) == []


def test_a_blank_search_leaves_every_session_in():
    session = builders.asked().session
    session_filter = SessionFilter({"q": " "}, user=builders.user())
    assert set(Session.objects.filter(session_filter.where())) == {session}


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.text(max_size=60))
@example('"')
@example("a OR NOT b AND (c")
@example("words: a* ^b NEAR(c d, 2) {col}: -x")
@example("a & !b | (c <-> d) :*")
@example("it's \\' '' \\")
@example("\x00 a\x00b")
@example("\ud800 a \udfff")
@example("%s %(x)s %")
@example("²½ ﬁ ß İ 한글 शब्द")
@example("x" * 5000)
def test_no_text_is_an_error(text):
    found(text)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=40))
@example("ﬁ ß İ Å 🄐")
@example("x" * 5000)
@example(" ".join(f"w{n}" for n in range(20_000)))
def test_any_text_can_be_stored_and_is_found_by_its_words(text):
    words = words_of(text)[: search_words.MOST_WORDS]
    history = builders.History()
    history.user(text)
    assert search_index.update(seconds=60) is False
    if words:
        assert history.session in found(" ".join(words))


def test_discarded_messages_are_found_and_marked_as_not_visible(index):
    session = builders.rewound()
    index()
    assert found("covers") == {session}
    (hit,) = hits.in_session(session, "covers", mask=NOTHING_HIDDEN, whole=True)
    assert (hit.visible, hit.branch, hit.kind) == (False, 1, "message")
    assert all(
        hit.visible for hit in hits.in_session(session, "lookup_policy", mask=NOTHING_HIDDEN, whole=True)
    )


def test_a_fork_is_found_by_what_it_shares_and_not_by_later_messages_of_its_source(index):
    history = builders.looked_up()
    fork = builders.fork_of(history.session)
    history.session.refresh_from_db()
    history.user("Never mind the umbrella.")
    index()
    assert found("windscreen") == {history.session, fork}
    assert found("umbrella") == {history.session}
    again = Session.objects.select_related("branch").get(pk=fork.pk)
    assert [hit.anchor for hit in hits.in_session(again, "windscreen", mask=NOTHING_HIDDEN, whole=True)] == [
        "m3"
    ]
    assert hits.in_session(again, "umbrella", mask=NOTHING_HIDDEN, whole=True) == []


def test_a_fork_of_a_fork_is_found_too(index):
    fork = builders.forked()
    assert fork.forked_from is not None
    again = actions.fork(
        actor=builders.SYSTEM,
        session_id=fork.pk,
        checkpoint_id=fork.forked_from.pk,
        reason="And another",
    )
    index()
    assert again in found("windscreen")


def test_a_tool_result_is_found_once_and_a_repaired_one_by_its_new_text(index):
    history = builders.looked_up()
    result = Message.objects.get(branch=history.branch, role="tool")
    actions.replace_message(
        actor=builders.SYSTEM,
        session_id=history.rest("paused").pk,
        position=result.position,
        text="The policy is suspended.",
        reason="It had lapsed",
    )
    index()
    session = Session.objects.select_related("branch").get(pk=history.session.pk)
    assert marked(session, "active") == [["active"]]
    assert marked(session, "suspended") == [["suspended"]]


def test_a_hit_shows_the_surroundings_of_the_match(index):
    history = builders.History()
    history.user("x " * 100 + "is my <b>windscreen</b> covered? " + "y " * 100)
    index()
    (hit,) = parts(history.session, "my windsc")
    assert [piece for piece, is_match in hit if is_match] == ["my", "windscreen"]
    assert "".join(piece for piece, _ in hit).strip("…xy ") == "is my <b>windscreen</b> covered?"
    assert hit[0] == hit[-1] == ("…", False)


def test_hits_come_newest_first_with_a_bounded_number_of_queries(index, django_assert_num_queries):
    history = builders.asked()
    for number in range(30):
        history.user(f"windscreen {number}")
    index()
    session = Session.objects.select_related("branch").get(pk=history.session.pk)
    with django_assert_num_queries(3):
        found = hits.in_session(session, "windscreen", mask=NOTHING_HIDDEN, whole=True, limit=5)
    assert [hit.position for hit in found] == sorted((hit.position for hit in found), reverse=True)
    assert len(found) == 5


# How PostgreSQL finds the hits in short sessions, in long ones of a rare word, and in long ones of a common word.
@pytest.mark.parametrize(
    "walked, near, newest", [(10_000, 100, 1_000), (0, 100, 1_000), (0, 0, 1_000), (0, 0, 1), (0, 2, 1)]
)
def test_the_newest_hits_of_each_session_are_found_whatever_the_sessions_and_the_words_are(
    index, monkeypatch, walked, near, newest
):
    monkeypatch.setattr(hits, "WALKED", walked)
    monkeypatch.setattr(hits, "NEAR", near)
    monkeypatch.setattr(hits, "NEWEST", newest)
    source = builders.looked_up()
    fork = builders.fork_of(source.session)
    later = [source.user(f"windscreen {number}").position for number in range(3)]
    rewound, other = builders.rewound(), builders.asked().session
    index()
    listed = list(Session.objects.order_by("pk"))
    found = hits.first_in_each(listed, "windscreen", mask=NOTHING_HIDDEN, whole=True)
    positions = {session: [hit.position for hit in found[session.pk]] for session in listed}
    # The fork shows what it shares with its source, though all newer hits of that branch are behind it.
    assert positions[source.session] == later[:0:-1]
    assert positions[fork] == [3]
    assert positions[other] == [3]
    for session in Session.objects.select_related("branch"):
        in_it = hits.in_session(session, "windscreen", mask=NOTHING_HIDDEN, whole=True)
        # Where one of the newest rows matches, older ones are not looked for.
        expected = [hit.position for hit in in_it][: len(positions[session]) if near == 2 else 2]
        assert positions[session] == expected
        assert bool(in_it) == bool(positions[session])
    (discarded,) = hits.in_session(
        Session.objects.select_related("branch").get(pk=rewound.pk), "covers", mask=NOTHING_HIDDEN, whole=True
    )
    assert not discarded.visible
    assert hits.first_in_each(listed, "nowhere", mask=NOTHING_HIDDEN, whole=True) == {
        session.pk: [] for session in listed
    }


def test_hits_are_found_in_a_session_with_very_many_branches(index):
    session = builders.done()
    Branch.objects.bulk_create(
        Branch(session=session, number=number, parent=session.branch) for number in range(2, 1_100)
    )
    index()
    assert parts(session, "windscreen")


def test_a_session_that_is_gone_when_its_hits_are_looked_for_has_none(index):
    session = builders.done()
    index()
    branch = Branch.objects.get(session=session)
    Session.objects.filter(pk=session.pk).update(branch=None)
    session.branch_id = branch.pk
    branch.delete()
    assert hits.first_in_each([session], "windscreen", mask=NOTHING_HIDDEN, whole=True) == {}


def test_hidden_values_are_neither_shown_nor_confirmed_by_a_hit(index):
    history = builders.asked()
    history.reply(calls=[("pay", {"iban": "DE8937", "to": "Ada"})])
    history.user("My account is DE8937, thanks.")
    index()
    mask = Mask.of(["iban"], [r"DE\d+"])
    assert parts(history.session, "de8937", mask) == []
    (hit,) = parts(history.session, "pay ada", mask)
    assert "DE8937" not in str(hit)


def test_it_composes_with_other_filters(index):
    supervisor = builders.user("supervisor")
    session = builders.done()
    builders.paused()
    index()
    session_filter = SessionFilter({"q": "windscreen", "status": "idle"}, user=supervisor)
    assert list(Session.objects.filter(session_filter.where())) == [session]
    session_filter = SessionFilter({"q": "windscreen", "status": "cancelled"}, user=supervisor)
    assert list(Session.objects.filter(session_filter.where())) == []


def test_the_list_finds_histories_as_well_as_titles(index):
    history, titled = builders.done(title="x"), builders.paused(title="It covers much")
    builders.running(title="y")
    index()
    session_filter = SessionFilter({"q": "covers"}, user=builders.user())
    assert set(Session.objects.filter(session_filter.where())) == {history, titled}


@pytest.mark.parametrize("near, wide", [(0, 1), (0, 3), (1, 1), (2, 1), (1, 3), (1, 9), (2, 9), (100, 100)])
def test_the_newest_messages_with_several_words_are_found_wherever_they_are(index, monkeypatch, near, wide):
    monkeypatch.setattr(search_words, "NEAR_ROWS", near)
    monkeypatch.setattr(search_words, "WIDE_ROWS", wide)
    texts = ["roof leaks", "leaks", "the roof", "a roof that leaks", "leaks", "roof: leaks again"]
    histories = [builders.History() for _ in texts]
    for history, text in zip(histories, texts, strict=True):
        history.user(text)
    index()
    sessions = [history.session for history in histories]
    assert found("roof leaks") == {sessions[place] for place in (0, 3, 5)}
    assert found('"roof leaks"') == {sessions[place] for place in (0, 5)}
    for limit, newest_of_all in ((1, [5]), (2, [5, 3]), (3, [5, 3, 0])):
        monkeypatch.setattr(search, "NEWEST", limit)
        keys, more = search.newest_sessions("roof leaks", whole=True)
        assert set(keys) == {sessions[place].pk for place in newest_of_all}
        assert more


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=8), min_size=1, max_size=5),
    st.lists(st.sampled_from("abcd"), min_size=2, max_size=3),
)
def test_a_quoted_phrase_is_found_where_its_words_follow_each_other_and_nowhere_else(index, said, phrase):
    # With one mark for all pairs, and with many.
    for marks in (1, search_words.MARKS):
        with mock.patch.object(search_words, "MARKS", marks):
            histories = [builders.History() for _ in said]
            for history, words in zip(histories, said, strict=True):
                history.user(" ".join(words))
            index()
            ours = {history.session for history in histories}
            expected = {
                history.session
                for history, words in zip(histories, said, strict=True)
                if f" {' '.join(phrase)} " in f" {' '.join(words)} "
            }
            assert found(f'"{" ".join(phrase)}"') & ours == expected


@pytest.mark.parametrize("near", [1, 2, 100])
def test_titles_and_customers_are_found_by_their_parts_in_any_order(monkeypatch, near):
    monkeypatch.setattr(newest, "NEAR_SESSIONS", near)
    supervisor = builders.user("supervisor")
    leak, storm = builders.done(title="Roof leaks in a storm"), builders.done(title="Storm damage to a roof")
    named = builders.done(title="x", customer="Greta Lindqvist")

    def titled(text):
        return set(Session.objects.filter(SessionFilter({"q": text}, user=supervisor).where()))

    assert titled("storm roof") == {leak, storm}
    assert titled('"a roof"') == titled('roof "a roof"') == {storm}
    assert titled("lindqvist greta") == titled('"greta lindqvist"') == titled("Greta Lindqvist") == {named}
    assert titled("roof lindqvist") == titled('"roof storm"') == titled('""') == titled('"') == set()
    assert titled(str(named.pk)) == {named}


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(
    st.lists(st.text("abB1-§ ", max_size=8), min_size=1, max_size=6),
    st.text("abA1-§ ", min_size=1, max_size=5).filter(lambda text: text.strip()),
    st.integers(1, 8),
)
@rolled_back()
def test_a_title_or_a_name_is_found_by_any_text_that_it_contains(titles, text, near):
    """However many of the newest sessions are read before the index is asked."""
    supervisor = builders.user("supervisor")
    for _ in range(near):  # so that there are always more than those that are read first
        builders.done(title="", customer="")
    titled = [builders.done(title=title, customer="") for title in titles]
    named = [builders.done(title="", customer=title) for title in titles]

    found = {title for title in titles if all(part in title.lower() for part in text.lower().split())}
    with (
        mock.patch.multiple(newest, NEAR_SESSIONS=near, WIDE_SESSIONS=2 * near),
        mock.patch.object(search_sessions, "MOST_NAMED", 2),
    ):
        search_filter = SessionFilter({"q": text}, user=supervisor)
        shown = set(Session.objects.filter(search_filter.where()))
        expected = {
            row for row, title in zip([*titled, *named], [*titles, *titles], strict=True) if title in found
        }
        if search_filter.found.cut:
            # As many as are listed; fewer where there is no index, and only the newest sessions are looked at.
            assert shown <= expected
            assert len(shown) == 2 or not any(map(hidden.has_index, text.split()))
        else:
            assert shown == expected
        by_customer = SessionFilter({"customer": text.strip()}, user=supervisor)
        whole = text.strip().lower()
        expected = {row for row in named if whole in row.customer.lower()}
        shown = set(Session.objects.filter(by_customer.where()))
        assert shown == expected or (
            by_customer.found.cut and not hidden.has_index(whole) and shown < expected
        )
        # As those find from whom something is hidden, though nothing is here.
        with override_settings(AGENTSTATE_MASK_PATTERNS=["nothing like this"]):
            _store_shown_names()
            as_shown = hidden.contains([whole], "customer", whole=False)
            assert set(Session.objects.filter(as_shown)) == expected


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(
    st.lists(st.text("abA- \t\x1fßéi", max_size=12), min_size=1, max_size=6),
    st.text("abA- \tßéi", min_size=3, max_size=8).filter(lambda text: text.strip()),
    st.integers(1, 8),
)
@rolled_back()
def test_a_quoted_text_is_found_in_each_title_that_contains_it_whatever_stands_around_its_spaces(
    titles, text, near
):
    supervisor = builders.user("supervisor")
    # Also as one that somebody searches for a part of.
    titles = [*titles, text, f"x {text} x", f"xa {text}a x", f"a{text} b", text.replace(" ", "  ")]
    sessions = [builders.done(title=title, customer="") for title in titles]
    expected = {
        row for row, title in zip(sessions, titles, strict=True) if _capitals(text) in _capitals(title)
    }
    with mock.patch.multiple(newest, NEAR_SESSIONS=near, WIDE_SESSIONS=2 * near):
        session_filter = SessionFilter({"q": f'"{text}"'}, user=supervisor)
        assert set(Session.objects.filter(session_filter.where())) == expected
        with override_settings(AGENTSTATE_MASK_PATTERNS=["nothing like this"]):
            _store_shown_names()
            as_shown = hidden.contains([text], "title", whole=False)
            assert set(Session.objects.filter(as_shown)) == expected


@pytest.mark.parametrize(
    "title",
    [
        "Is a car covered in plan B for a home?",
        " Is a  car covered",
        "a b c de f",
        "x a bb a x",
        "A",
        " ",
        "ab  c d   ef",
        "\ta b\x1f c\nde fg",
        "I \u0131i \u0130 stra\u00dfe \u00df a STRASSE o",
        "100 % a_b \\ c d",
    ],
)
def test_each_part_of_a_title_finds_it(settings, title):
    session = builders.done(title=title, customer="")
    settings.AGENTSTATE_MASK_PATTERNS = ["nothing like this"]
    _store_shown_names()
    for start in range(len(title)):
        parts = [title[start:end] for end in range(start + 1, len(title) + 1)]
        for whole in (True, False):
            found = Session.objects.filter(hidden.contains(parts, "title", whole=whole))
            assert list(found) == [session], (title[start:], whole)


def _store_shown_names():
    """With the present masking, as the sweep does."""
    search_masking.store()
    while shown_names.add(1_000, 10_000):
        pass


def _capitals(text):
    """As the database compares texts: SQLite knows the capitals of ASCII only."""
    if connection.vendor == "sqlite":
        return "".join(each.upper() if each.isascii() else each for each in text)
    with connection.cursor() as cursor:
        cursor.execute("SELECT upper(%s::text)", [text])
        return cursor.fetchone()[0]


@pytest.mark.parametrize(
    "text",
    ["Bo", "bo", "李明", "राम", "½²", "--", "o’", "B.", "5%", "a_", "\\n", "éa", "Ⅻ.", "İs", "aß", "😀😀"],
)
def test_a_text_of_two_characters_is_found_wherever_it_stands(text):
    supervisor = builders.user("supervisor")
    sessions = {
        builders.done(title=title.format(text), customer="")
        for title in ("{}", "({})", "x{}y", "Claim/{}", "王-{}", "\u00a0{}", "a\n{}", "{0} and {0}")
    }
    sessions |= {
        builders.done(title="", customer=f"Ada {text}"),
        builders.done(title="", customer=f"O’{text}"),
    }
    builders.done(title=f"{text[0]} {text[1:]}", customer=f"{text[0]}x{text[1:]}")
    session_filter = SessionFilter({"q": text}, user=supervisor)
    assert set(Session.objects.filter(session_filter.where())) == sessions
    assert not session_filter.found.cut
    named = Session.objects.filter(SessionFilter({"customer": text}, user=supervisor).where())
    assert {session.customer for session in named} == {f"Ada {text}", f"O’{text}"}


@pytest.mark.parametrize(
    "title, customer, keys, text",
    [("Klass, code {}", "", [], "aß"), ("STRASSE", "{}", ["customer"], "straße")],
    ids=["pattern", "key"],
)
def test_whether_a_title_is_found_does_not_depend_on_what_is_hidden(settings, title, customer, keys, text):
    """Letters that are two in some form: a comparison of our own must find no more than that of the database."""
    settings.AGENTSTATE_MASK_PATTERNS, settings.AGENTSTATE_MASK_KEYS = [r"code \w+"], keys
    operator = builders.user("operator")
    for hidden_value in (f"{text}q", "other"):
        builders.done(title=title.format(hidden_value), customer=customer.format(hidden_value))
        found_by_it = SessionFilter({"q": text}, user=operator).where()
        assert not Session.objects.filter(found_by_it).exists(), hidden_value


@pytest.mark.parametrize(
    "module, limit", [(newest, "NEAR_SESSIONS"), (filters, "MOST_OF_CHARACTER")], ids=["looked-at", "listed"]
)
def test_a_customer_is_found_by_a_character_among_the_newest_sessions_and_the_list_says_so(
    client, monkeypatch, module, limit
):
    client.force_login(builders.user("supervisor"))
    old, new = builders.done(customer="§ 1"), builders.done(customer="2 §")
    Session.objects.filter(pk=old.pk).update(updated_at=timezone.now() - timedelta(days=1))
    says_so = "There may be more matches"

    def page():
        return client.get("/?queue=all&customer=%C2%A7").content.decode()

    assert str(old.pk) in page()
    assert says_so not in page()
    monkeypatch.setattr(module, limit, 1)
    is_cut = connection.vendor == "postgresql"
    assert str(new.pk) in page()
    assert (str(old.pk) not in page()) == (says_so in page()) == is_cut
    without_any = client.get("/?queue=all&customer=%C2%A7&tag=nobodys").content.decode()
    assert ('<span class="count">0+</span>' in without_any) == is_cut


def test_a_character_is_found_in_the_titles_of_the_newest_sessions_and_more_may_be_elsewhere(monkeypatch):
    supervisor = builders.user("supervisor")
    old, new = builders.done(title="At the §"), builders.done(title="§ again")
    of_agent = builders.done(title="x")
    Session.objects.filter(pk=of_agent.pk).update(agent="§")
    moment = timezone.now()
    for days, session in enumerate([new, of_agent, old]):
        Session.objects.filter(pk=session.pk).update(updated_at=moment - timedelta(days=days))

    def titled():
        session_filter = SessionFilter({"q": "§"}, user=supervisor)
        return set(Session.objects.filter(session_filter.where())), session_filter.found.cut

    assert titled() == ({old, new, of_agent}, False)
    monkeypatch.setattr(newest, "NEAR_SESSIONS", 1)
    is_cut = connection.vendor == "postgresql"
    assert titled() == ({new, of_agent} if is_cut else {old, new, of_agent}, is_cut)
    monkeypatch.setattr(search_sessions, "MOST_NAMED", 1)
    assert titled() == ({new}, True)


@pytest.mark.slow
def test_the_index_grows_in_batches_and_misses_nothing(index, monkeypatch):
    small_batches(monkeypatch, 3)
    sessions = {builders.done() for _ in range(4)} | {builders.running()}
    assert search_index.update(seconds=0) is True
    index()
    assert found("windscreen") == found("lookup_policy") == sessions


def test_what_is_less_than_a_batch_takes_one_look(monkeypatch):
    index = type(_of_this_database())
    look, looked = index.new, []

    def new(self, model):
        looked.append(model)
        return look(self, model)

    monkeypatch.setattr(index, "new", new)
    session = builders.done()
    assert search_index.update() is False
    assert looked == [Message, ToolCall]
    assert found("windscreen") == found("lookup_policy") == {session}


def _of_this_database():
    return search_tables.Sqlite() if connection.vendor == "sqlite" else search_tables.Postgres()


def _still_open():
    """The calls that are indexed as such that have not ended, by the keys of their rows in the index."""
    sql = "SELECT rowid FROM sessions_app_open_call_words"
    if connection.vendor == "postgresql":
        sql = "SELECT rowid FROM sessions_app_call_words WHERE NOT ended"
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return {key for (key,) in cursor.fetchall()}


def test_ended_calls_are_indexed_again_in_batches_and_none_is_left(index, monkeypatch):
    for each in (search_tables.Sqlite, search_tables.Postgres):
        monkeypatch.setattr(each, "closed", 2)
    sessions = {builders.waiting_for_approval() for _ in range(5)}
    index()
    assert len(_still_open()) == 5
    ToolCall.objects.filter(status="planned").update(
        status="rejected", ended_at=timezone.now(), error="too late"
    )
    assert search_index.update() is False
    assert _still_open() == set()
    assert found("too late") == sessions


def test_a_call_that_is_not_read_yet_stays_in_the_index_as_it_was(index, monkeypatch):
    monkeypatch.setattr(search_index, "_READ_AT_ONCE", 1)
    monkeypatch.setattr(search_index, "_ENOUGH_CHARACTERS", 1)
    sessions = {builders.waiting_for_approval() for _ in range(2)}
    index()
    ToolCall.objects.filter(status="planned").update(status="rejected", ended_at=timezone.now())
    assert search_index._close_calls(_of_this_database()) is True
    assert len(_still_open()) == 1
    assert found("issue_refund") == sessions


def test_an_open_call_that_is_deleted_leaves_the_index(index):
    session = builders.waiting_for_approval()
    index()
    assert len(_still_open()) == 1
    session.approvals.all().delete()
    ToolCall.objects.filter(status="planned").delete()
    index()
    assert _still_open() == set()


def test_an_ended_call_is_left_to_the_next_look_where_the_index_was_emptied_meanwhile(index, monkeypatch):
    session = builders.waiting_for_approval()
    index()
    ToolCall.objects.filter(status="planned").update(status="rejected", ended_at=timezone.now())
    connection.check_constraints()  # else PostgreSQL cannot empty the tables in the transaction of this test
    may_add = search_masking.may_add

    def emptied():
        search_index.rebuild()
        return may_add()

    monkeypatch.setattr(search_masking, "may_add", emptied)
    assert search_index._close_calls(_of_this_database()) is False
    monkeypatch.undo()
    assert found("issue_refund") == set()
    index()
    assert found("issue_refund") == {session}


def test_it_looks_again_where_another_process_was_faster(index, monkeypatch):
    history = builders.asked()
    read, begun = search_index._read, list[bool]()

    def read_meanwhile(keys, texts_of):
        found_texts = read(keys, texts_of)
        if not begun:
            begun.append(True)
            search_index.update()  # by another process
            history.user("And the cellar is wet.")
        return found_texts

    monkeypatch.setattr(search_index, "_read", read_meanwhile)
    history.user("My roof leaks.")
    assert search_index._add_messages(_of_this_database()) is (connection.vendor == "sqlite")
    index()
    assert found("roof") == found("cellar") == {history.session}


def test_adding_again_changes_nothing(index):
    session = builders.done()
    index()
    before = marked(session, "windscreen")
    index()
    assert marked(session, "windscreen") == before
    assert found("windscreen") == {session}


def test_a_session_that_is_deleted_is_not_found(index):
    session = builders.waiting_for_approval()
    index()
    Session.objects.filter(pk=session.pk).update(branch=None)
    session.delete()
    index()
    assert found("windscreen") == found("issue_refund") == set()


def test_the_index_can_be_made_anew(index):
    session = builders.waiting_for_approval()
    index()
    search_index.rebuild()
    assert found("windscreen") == set()
    index()
    assert found("windscreen") == found("issue_refund") == {session}


if connection.vendor == "postgresql":
    # SQLite commits rows in the order of their keys.
    def test_a_row_that_is_committed_after_one_with_a_higher_key_is_found(index):
        history = builders.asked()
        late = history.user("My roof leaks.")
        Message.objects.filter(pk=late.pk).delete()
        history.user("And the cellar is wet.")
        index()
        late.save(force_insert=True)
        index()
        assert found("roof") == {history.session}

    def test_to_index_ended_calls_again_takes_as_many_statements_for_many_as_for_one(index):
        def statements(number):
            sessions = [builders.waiting_for_approval() for _ in range(number)]
            index()
            ToolCall.objects.filter(status="planned").update(status="rejected", ended_at=timezone.now())
            with CaptureQueriesContext(connection) as captured:
                index()
            for session in sessions:
                assert marked(session, "issue_refund") == [["issue_refund"]]
            return len(captured)

        assert statements(1) == statements(8)

    def test_rows_are_added_in_the_order_of_their_keys_whether_or_not_they_have_ended():
        """Two processes may add the same ones: neither waits for a row of the other while that waits for its own."""
        search_index.rebuild()  # the rows stand in their table in the order in which they are added
        index = search_tables.Postgres()
        ended, still_open = ([(key, ["roof"]) for key in keys] for keys in ([4, -4, 2], [3, 1]))
        index.add(ToolCall, 0, 0, index.prepared(ended), index.prepared(still_open))
        with connection.cursor() as cursor:
            cursor.execute("SELECT rowid, ended FROM sessions_app_call_words ORDER BY ctid")
            assert cursor.fetchall() == [(-4, True), (1, False), (2, True), (3, False), (4, True)]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_two_processes_may_add_at_the_same_time(monkeypatch):
    small_batches(monkeypatch, 2)
    sessions = {builders.waiting_for_approval() for _ in range(4)}
    threads = [threading.Thread(target=_update_in_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found("windscreen") == sessions
    for session in sessions:
        assert marked(session, "issue_refund") == [["issue_refund"]]
    ToolCall.objects.filter(status="planned").update(status="rejected", ended_at=timezone.now())
    monkeypatch.undo()
    threads = [threading.Thread(target=_update_in_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found("issue_refund") == sessions
    for session in sessions:
        assert marked(session, "issue_refund") == [["issue_refund"]]


def _update_in_thread():
    try:
        while search_index.update():
            pass
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_after_a_flush_the_old_index_does_not_match_new_rows():
    builders.done()
    assert search_index.update() is False
    call_command("flush", interactive=False, verbosity=0)
    call_command("migrate", verbosity=0)
    history = builders.History()
    for number in range(3):
        history.user(f"roof {number}")
    assert search_index.update() is False
    assert found("windscreen") == set()
    assert found("roof") == {history.session}


def three_roofs(index):
    sessions = []
    for number in range(3):
        history = builders.asked()
        history.user(f"The roof of house {number}")
        sessions.append(history.session)
    index()
    return sessions


def newest_only(monkeypatch):
    """Of all sessions a search finds by the newest message, the newest call and the newest title that match."""
    monkeypatch.setattr(search, "NEWEST", 1)
    monkeypatch.setattr(search_sessions, "MOST_NAMED", 1)


def look_through(monkeypatch, number):
    """Of a list of more sessions than that, a search looks through so many."""
    monkeypatch.setattr(search_sessions, "FEW", number)
    monkeypatch.setattr(search_sessions, "FIRST", number)


def listed(text, queue="all", user=None, oldest_first=None, **query):
    """The sessions that the list has, and whether there may be more."""
    session_filter = SessionFilter({"q": text, **query}, user=user or builders.user("supervisor"))
    where = condition_of(queue, timezone.now(), session_filter, oldest_first=oldest_first)
    found = set(queues.select(queue, timezone.now(), where))
    return found, session_filter.found.is_cut_listed


def test_a_word_that_very_many_messages_have_finds_the_newest_and_more_beside_a_filter(index, monkeypatch):
    newest_only(monkeypatch)
    supervisor, sessions = builders.user("supervisor"), three_roofs(index)
    elsewhere = builders.asked(agent_key="letters")
    elsewhere.user("The roof of a letter")
    index()
    look_through(monkeypatch, 1)
    assert listed("roof", user=supervisor) == ({elsewhere.session}, True)
    assert listed("roof", agent="claims", user=supervisor) == ({sessions[2]}, True)
    look_through(monkeypatch, 3)
    assert listed("roof", agent="claims", user=supervisor) == (set(sessions), False)
    assert listed("roof", "done", user=supervisor) == (set(), False)
    assert listed("cellar", agent="claims", user=supervisor) == (set(), False)


def test_a_long_session_that_has_the_newest_matches_hides_no_others(index, monkeypatch):
    monkeypatch.setattr(search, "NEWEST", 5)
    sessions = three_roofs(index)
    long = builders.asked()
    for number in range(8):
        long.user(f"The roof again, {number}")
    index()
    assert search.newest_sessions("roof", whole=True) == ([long.session.pk], True)
    assert listed("roof") == ({*sessions, long.session}, False)
    # Where as many sessions are found as are looked through, these are enough.
    look_through(monkeypatch, 1)
    assert listed("roof") == ({long.session}, True)


def test_of_long_sessions_the_newest_positions_are_looked_through_and_the_list_says_so(index, monkeypatch):
    newest_only(monkeypatch)
    early = builders.asked()
    early.user("The roof leaks")
    for number in range(4):
        early.user(f"Wait, {number}")
    late = builders.asked()
    for number in range(4):
        late.user(f"Wait, {number}")
    late.user("The roof leaks")
    newest_of_all = builders.asked()
    newest_of_all.user("The roof leaks")
    index()
    sessions = {early.session, late.session, newest_of_all.session}
    for days, history in enumerate((newest_of_all, late, early)):
        moment = timezone.now() - timedelta(days=days)
        Session.objects.filter(pk=history.session.pk).update(updated_at=moment)
    assert listed("roof leaks") == (sessions, False)
    monkeypatch.setattr(search_sessions, "POSITIONS_OF_FEW", 20)
    monkeypatch.setattr(search_sessions, "NEWEST_POSITIONS", 3)
    assert listed("roof leaks") == ({late.session, newest_of_all.session}, True)
    # Sessions are looked through from the first of the list on until they have too many positions.
    monkeypatch.setattr(search_sessions, "MOST_POSITIONS", 5)
    assert listed("roof leaks") == ({newest_of_all.session}, True)


def test_a_search_looks_through_the_sessions_with_which_its_list_begins(index, monkeypatch, client):
    newest_only(monkeypatch)
    sessions = [builders.done() for _ in range(5)]
    for days, session in enumerate(sessions):
        Session.objects.filter(pk=session.pk).update(updated_at=timezone.now() - timedelta(days=days))
    index()
    look_through(monkeypatch, 2)
    # All are called so; the last one has the newest message.
    first, last = sessions[0], sessions[-1]
    assert listed("windscreen", "done") == ({*sessions[:2], last}, True)
    for beside in ({}, {"since": "7d"}, {"agent": "claims"}, {"agent": "claims", "since": "7d"}):
        for queue in ("done", "all"):
            found = listed("windscreen", queue, oldest_first=True, **beside)
            assert found == ({first, *sessions[3:]}, True), (queue, beside)
    client.force_login(builders.user("supervisor"))
    query = {"queue": "done", "q": "windscreen", "order": "oldest"}
    assert client.get("/bulk/", {**query, "kind": "assign"}).context["estimate"].total == 3
    rows = client.get("/", query).context["rows"]
    assert [row.pk for row in rows] == [session.pk for session in (last, sessions[3], first)]


@pytest.fixture
def small_queue(index, monkeypatch):
    """Paused sessions, and newer ones elsewhere that a search finds first: one message, one call and one title."""
    sessions = {
        "discarded": builders.rewound(),
        "shared": builders.forked(),
        "call": builders.looked_up().session,
        "titled": builders.queued(title="It covers the roof"),
        "customer": builders.queued(title="A question", customer="Covers & Sons"),
        "other": builders.queued(title="Cellar", agent_key="letters"),
        "open": builders.waiting_for_approval(title="Garage"),
    }
    Session.objects.filter(pk__in=[each.pk for each in sessions.values()]).update(
        status="paused", next_run_at=None, waiting_for="", updated_at=timezone.now() - timedelta(days=1)
    )
    for number in range(3):
        builders.done(title=f"It covers roof {number}")
    index()
    newest_only(monkeypatch)
    names = {session.pk: name for name, session in sessions.items()}
    supervisor = builders.user("supervisor")

    def listed(text, **also):
        session_filter = SessionFilter({"q": text, **also}, user=supervisor)
        page = read_list(
            "paused", now=timezone.now(), session_filter=session_filter, after="", oldest_first=False
        )
        numbers = {each.queue.key: str(each.number) for each in page.counts}
        return {names[each.pk] for each in page.sessions}, numbers, session_filter.found.is_cut_listed

    return SimpleNamespace(listed=listed, sessions=sessions)


def test_a_search_in_a_small_queue_finds_all_that_match_of_its_sessions(small_queue):
    found, numbers, is_cut = small_queue.listed("covers")
    assert found == {"discarded", "titled", "customer"}
    assert numbers["paused"] == "3"
    assert numbers["done"].endswith("+")
    assert not is_cut
    assert small_queue.listed("windscreen")[0] == {"discarded", "shared", "call", "open"}
    assert small_queue.listed("lookup_policy")[0] == {"discarded", "shared", "call", "open"}
    assert small_queue.listed("issue_refund")[0] == {"open"}
    assert small_queue.listed("roof covers")[0] == {"titled"}
    assert small_queue.listed("letters")[0] == {"other"}
    assert small_queue.listed(str(small_queue.sessions["other"].pk)[:-3])[0] == {"other"}
    assert small_queue.listed("nosuchword") == (set(), dict.fromkeys(numbers, "0"), False)
    assert small_queue.listed("!")[0] == set()


@pytest.mark.parametrize("limit", ["FEW", "POSITIONS_OF_FEW"])
def test_a_search_in_a_large_queue_finds_the_newest_matches_of_all_sessions_and_says_so(
    small_queue, monkeypatch, limit
):
    monkeypatch.setattr(search_sessions, "FIRST", 1)
    monkeypatch.setattr(search_sessions, limit, 5)
    found, numbers, is_cut = small_queue.listed("covers")
    assert found == set()
    assert numbers["paused"] == "0+"
    assert is_cut
    monkeypatch.setattr(search_sessions, "FEW", 7)
    monkeypatch.setattr(search_sessions, "POSITIONS_OF_FEW", 1_000)
    assert len(small_queue.listed("covers")[0]) == 3


def test_a_search_in_a_small_queue_finds_by_nothing_that_is_hidden(index, monkeypatch, settings):
    settings.AGENTSTATE_MASK_PATTERNS = ["roof"]
    history = builders.asked(title="The roof of a house", agent_key="letters")
    history.user("The roof leaks into the cellar")
    session = history.rest("paused")
    for _ in range(2):
        newer = builders.asked(title="The roof of a house")
        newer.user("The roof leaks into the cellar")
    index()
    newest_only(monkeypatch)

    def found(role, text):
        session_filter = SessionFilter({"q": text}, user=builders.user(role))
        where = condition_of("paused", timezone.now(), session_filter)
        return {*Session.objects.filter(where, status="paused")}

    for text in ("roof", "roof leaks", "roof house"):
        assert found("supervisor", text) == {session}
        assert found("viewer", text) == set()
    for text in ("cellar", "leaks into", "house", "letters", str(session.pk)):
        assert found("supervisor", text) == found("viewer", text) == {session}
    # The words were stored with another masking than the present one.
    settings.AGENTSTATE_MASK_PATTERNS = ["roof", "cellar"]
    for text in ("cellar", "leaks into"):
        assert found("viewer", text) == set()
        assert found("supervisor", text) == {session}


def test_a_search_in_a_small_queue_is_complete_beside_another_filter(small_queue):
    for also, found in (
        ({"agent": "claims"}, {"discarded", "titled", "customer"}),
        ({"customer": "Sons"}, {"customer"}),
        ({"agent": "letters"}, set()),
        ({"pick": [str(small_queue.sessions["titled"].pk)]}, {"titled"}),
    ):
        assert small_queue.listed("covers", **also)[0] == found
        assert not small_queue.listed("covers", **also)[2]


def test_pages_of_a_search_in_a_small_queue_follow_each_other(small_queue, monkeypatch):
    monkeypatch.setattr(queues, "PAGE_OF_FOUND", 1)
    session_filter = SessionFilter({"q": "covers"}, user=builders.user("supervisor"))
    for oldest_first in (False, True):
        found, after = [], ""
        while True:
            page = read_list(
                "paused",
                now=timezone.now(),
                session_filter=session_filter,
                after=after,
                oldest_first=oldest_first,
            )
            found += [session.pk for session in page.sessions]
            if not page.next:
                break
            after = page.next
        expected = sorted(small_queue.sessions[name].pk for name in ("discarded", "titled", "customer"))
        assert found == (expected if oldest_first else expected[::-1])


def test_a_search_in_an_empty_queue_is_complete(small_queue):
    Session.objects.filter(status="paused").update(status="idle", phase="done", previous_phase="")
    found, numbers, is_cut = small_queue.listed("covers")
    assert (found, numbers["paused"], is_cut) == (set(), "0", False)


def test_a_bulk_action_is_of_the_sessions_that_the_list_shows(index, monkeypatch, client):
    for number in range(3):
        builders.done(title=f"Roof {number}")
    builders.paused(title="Roof")
    index()
    newest_only(monkeypatch)
    look_through(monkeypatch, 2)
    client.force_login(builders.user("supervisor"))
    for queue in ("all", "done", "paused"):
        listed = client.get("/", {"queue": queue, "q": "roof"}).context
        begun = client.get("/bulk/", {"queue": queue, "q": "roof", "kind": "assign"}).context
        assert len(listed["rows"]) == {"all": 2, "done": 2, "paused": 1}[queue]
        assert begun["estimate"].total == len(listed["rows"])
        assert begun["is_cut"] == listed["is_cut"] == (queue != "paused")


def test_what_a_search_says_does_not_tell_whether_sessions_have_a_hidden_tag(index, monkeypatch, settings):
    settings.AGENTSTATE_MASK_PATTERNS = ["most"]
    newest_only(monkeypatch)
    viewer, sessions = builders.user("viewer"), three_roofs(index)
    for session in sessions:
        session.tags.create(name="most")
    for tag in ("most", "MOST", "nosuchtag"):
        session_filter = SessionFilter({"q": "roof", "tag": tag}, user=viewer)
        no_sessions: FirstOfList = lambda where, facets: ([], True)  # noqa: E731
        for first in (None, no_sessions):
            assert not Session.objects.filter(session_filter.where(first=first)).exists()
            assert session_filter.found.cut
            assert session_filter.found.has_all_listed == bool(first)
        assert listed("roof", user=viewer, tag=tag) == (set(), False)
        for queue in ("stuck", "done", "attention"):
            assert listed("roof", queue, user=viewer, tag=tag) == (set(), False)


def test_a_list_of_the_newest_matches_only_says_so_and_counts_no_queue_as_complete(
    index, monkeypatch, client
):
    monkeypatch.setattr(search, "NEWEST", 2)
    look_through(monkeypatch, 2)
    three_roofs(index)
    builders.done()
    client.force_login(builders.user("supervisor"))

    def page(**query):
        text = client.get("/", {"q": "roof", **query}).content.decode()
        return re.sub(r"\s+", " ", text)

    newest, of_queue = page(queue="all"), page(queue="done")
    assert "There may be more matches: choose a queue, or add a filter or a word" in newest
    assert "<b>2+ results</b>" in newest
    assert newest.count('<span class="count">0+</span>') == len(QUEUES) - 1
    assert "There may be more matches" not in of_queue
    assert '<span class="count">0</span>' in of_queue
    for _ in range(2):
        builders.done()
    for query in ({"queue": "done"}, {"queue": "all", "status": "idle"}):
        assert "There may be more matches: add a word to narrow the search." in page(**query)


@pytest.mark.parametrize(
    "address, said",
    [
        ("/inbox/?q=roof&agent=claims", ["There may be more matches. Add a word to narrow the search."]),
        (
            "/bulk/?q=roof",
            ["More sessions may match than are selected: add a word to narrow it.", "of 2 sessions"],
        ),
    ],
)
def test_an_inbox_and_a_bulk_action_say_that_they_have_the_newest_matches_only(
    address, said, index, monkeypatch, client
):
    for _ in range(3):
        builders.waiting_for_approval(title="Garage")
    three_roofs(index)
    client.force_login(builders.user("supervisor"))
    assert said[0] not in client.get(address).content.decode()
    monkeypatch.setattr(search, "NEWEST", 2)
    look_through(monkeypatch, 2)
    text = client.get(address).content.decode()
    assert all(sentence in text for sentence in said)


@pytest.fixture
def full_inbox(index, monkeypatch):
    """Eight sessions that have failed long ago for one cause, two that wait since, and newer ones that need nobody."""
    newest_only(monkeypatch)
    failed = [builders.failed() for _ in range(8)]
    Session.objects.filter(pk__in=[session.pk for session in failed]).update(
        updated_at=timezone.now() - timedelta(days=1)
    )
    waiting = [builders.waiting_for_approval() for _ in range(2)]
    for _ in range(3):
        builders.done()
    index()
    return failed, waiting


@pytest.mark.slow
@pytest.mark.parametrize(
    "beside",
    [
        {},
        {"agent": "claims"},
        {"since": "30d"},
        {"phase": "executing"},
        {"phase": "executing", "agent": "claims"},
        {"status": "waiting"},
    ],
)
def test_a_search_in_the_inbox_looks_through_as_many_sessions_of_each_kind_of_its_lines(
    beside, full_inbox, monkeypatch, client
):
    failed, waiting = full_inbox
    look_through(monkeypatch, 8)
    client.force_login(builders.user("supervisor"))
    page = client.get("/inbox/", {"q": "windscreen", **beside})
    text = page.content.decode()
    for session in waiting:
        assert f"/sessions/{session.pk}/" in text
    found, _ = listed("windscreen", "attention", **beside)
    assert bool(found & set(failed)) == ("phase" not in beside and "status" not in beside)
    # Beside a filter no stuck sessions are looked through, and of all there are more.
    assert page.context["is_cut"] == ("status" not in beside)
    assert "/sessions/" not in client.get("/inbox/", {"q": "windscreen cellar", **beside}).content.decode()


def test_an_inbox_whose_sessions_are_all_looked_through_says_nothing_of_more(full_inbox, client):
    client.force_login(builders.user("supervisor"))
    page = client.get("/inbox/", {"q": "windscreen"})
    assert not page.context["is_cut"]
    assert "There may be more matches" not in page.content.decode()
    assert not client.get("/inbox/", {"q": "windscreen", "agent": "claims"}).context["is_cut"]


@pytest.mark.parametrize("beside", [{}, {"status": "paused"}, {"agent": "claims"}])
def test_a_search_in_the_inbox_finds_a_call_in_doubt_of_a_paused_session(beside, index, monkeypatch, client):
    newest_only(monkeypatch)
    paused = builders.in_doubt()
    Session.objects.filter(pk=paused.pk).update(
        status="paused", waiting_for="", updated_at=timezone.now() - timedelta(days=1)
    )
    for _ in range(2):
        builders.waiting_for_approval()
    for _ in range(2):
        builders.done()
    index()
    client.force_login(builders.user("supervisor"))
    query = {"q": "windscreen", "kind": "doubt", **beside}
    page = client.get("/inbox/", query)
    assert (f"/sessions/{paused.pk}/" in page.content.decode(), page.context["is_cut"]) == (True, False)
    # Where the queue is long, none of the paused sessions is looked through beside a filter.
    look_through(monkeypatch, 1)
    page = client.get("/inbox/", query)
    assert (f"/sessions/{paused.pk}/" in page.content.decode(), page.context["is_cut"]) == (False, True)


def test_a_search_in_the_inbox_looks_through_the_sessions_with_which_it_begins_in_either_order(
    full_inbox, monkeypatch, client
):
    failed, _ = full_inbox
    for days, session in enumerate(failed):
        Session.objects.filter(pk=session.pk).update(updated_at=timezone.now() - timedelta(days=days + 1))
    # One that waits, and one that has failed, which is a line of its own then.
    look_through(monkeypatch, 2)
    client.force_login(builders.user("supervisor"))
    for order, first in (("oldest", failed[-1]), ("newest", failed[0])):
        page = client.get("/inbox/", {"q": "windscreen", "kind": "failed", "order": order}).content.decode()
        assert [each for each in failed if f"/sessions/{each.pk}/" in page] == [first]


def test_a_fork_shows_where_the_text_is_in_what_it_shares_with_a_source_that_has_newer_hits(
    index, monkeypatch
):
    source = builders.looked_up()
    fork = builders.fork_of(source.session)
    newer = source.user("windscreen again")
    index()
    monkeypatch.setattr(hits, "WALKED", 0)
    monkeypatch.setattr(hits, "NEAR", 1)
    both = list(Session.objects.order_by("pk"))
    found = hits.first_in_each(both, "windscreen", mask=NOTHING_HIDDEN, whole=True)
    assert newer.position in [hit.position for hit in found[source.session.pk]]
    assert [hit.position for hit in found[fork.pk]] == [3]


def test_of_sessions_with_the_words_in_their_titles_those_that_changed_last_are_listed(monkeypatch):
    monkeypatch.setattr(search_sessions, "MOST_NAMED", 2)
    sessions = [builders.asked(title=f"Roof {number}").session for number in range(3)]
    for days, session in enumerate(sessions):
        Session.objects.filter(pk=session.pk).update(updated_at=timezone.now() - timedelta(days=days))
    session_filter = SessionFilter({"q": "Roof"}, user=builders.user("supervisor"))
    assert set(Session.objects.filter(session_filter.where())) == set(sessions[:2])
    assert session_filter.found is not None
    assert session_filter.found.cut
    assert listed("Roof") == (set(sessions), False)
    look_through(monkeypatch, 2)
    assert listed("Roof") == (set(sessions[:2]), True)
