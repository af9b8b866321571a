"""The inbox: all that waits for a person in one list, the oldest first, decided where it stands."""

import html
import re
from datetime import timedelta
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db.models import Q
from django.test import Client
from django.utils import timezone

from sessions_app import actions
from sessions_app.access.roles import Actor
from sessions_app.desk.pages.approvals import shown_fingerprint
from sessions_app.finding import causes, counting, inbox, inbox_counts, search_sessions
from sessions_app.finding.inbox_states import Condition
from sessions_app.models import (
    Approval,
    Message,
    RegisteredAgent,
    SavedView,
    Session,
    SessionTag,
    ToolCall,
    Worker,
)
from tests import builders
from tests.pages import poll_of, text_at, without_random

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}


@pytest.fixture
def desk(operator: Client) -> Client:
    return operator


def text_of(desk: Client, address: str = "/inbox/") -> str:
    answer = desk.get(address)
    assert answer.status_code == 200
    text = re.sub(r"</?bdi>", "", answer.content.decode())
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def titles(desk: Client, query: str = "") -> list[str]:
    """What the lines of the inbox link to, in their order."""
    page = text_at(desk, f"/inbox/?{query}")
    cards = re.findall(r'<article class="card item.*?</article>', page, re.DOTALL)
    named = [re.search(r">(?:<[^>]*>)*\s*(S\d\w*)\b", card) for card in cards]
    return [match[1] for match in named if match]


def minutes_ago(minutes: int):
    return timezone.now() - timedelta(minutes=minutes)


def all_kinds() -> None:
    builders.waiting_for_approval(title="S1approval", created_at=minutes_ago(50))
    builders.in_doubt(title="S2doubt", created_at=minutes_ago(40))
    builders.retries_used_up(title="S3failed", created_at=minutes_ago(30))
    lost = builders.lost(title="S4stuck", created_at=minutes_ago(20))
    assert lost.updated_at < minutes_ago(15)
    for build in (builders.done, builders.paused, builders.running, builders.cancelled, builders.retrying):
        build(title="S9")


@pytest.mark.slow
def test_every_kind_is_in_one_list_the_oldest_first_with_counts(desk):
    all_kinds()
    assert titles(desk) == ["S1approval", "S2doubt", "S3failed", "S4stuck"]
    assert "4 to decide, the oldest 49 min ago All 4 Approvals 1 In doubt 1 Failed 1 Stuck 1 Mine" in text_of(
        desk
    )
    assert "Inbox 4 Sessions" in text_of(desk, "/workers/")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, title",
    [("approval", "S1approval"), ("doubt", "S2doubt"), ("failed", "S3failed"), ("stuck", "S4stuck")],
)
def test_a_chip_leaves_one_kind(desk, kind, title):
    all_kinds()
    assert titles(desk, f"kind={kind}") == [title]
    assert "1 to decide, the oldest " in text_of(desk, f"/inbox/?kind={kind}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "query, said",
    [
        (
            "tool=issue_refund",
            "2 to decide, the oldest 49 min ago only issue_refund ✕ All 2 Approvals 1 In doubt 1",
        ),
        (
            "kind=doubt&tool=issue_refund",
            "1 to decide, the oldest 39 min ago only issue_refund ✕ All 2 Approvals 1",
        ),
        ("tool=issue_refund&assignee=me", "only issue_refund ✕ All 0 Approvals 0 In doubt 0 Mine 0 ✕"),
        ("tool=send_letter", "only send_letter ✕ All 0 Approvals 0 In doubt 0 Mine 0"),
    ],
)
def test_of_one_tool_all_that_is_counted_is_of_that_tool(desk, query, said):
    all_kinds()
    assert said in text_of(desk, f"/inbox/?{query}")


@pytest.mark.slow
def test_the_chips_of_the_kinds_keep_the_tool_and_that_of_the_tool_keeps_the_rest(desk):
    all_kinds()
    page = desk.get("/inbox/?kind=approval&tool=issue_refund&order=newest").content.decode()
    [chips] = re.findall(r'<nav class="chips".*?</nav>', page, re.DOTALL)
    addresses = [address.replace("&amp;", "&") for address in re.findall(r'href="([^"]+)"', chips)]
    assert addresses[0] == "/inbox/?kind=approval&order=newest"
    assert all("tool=issue_refund" in address for address in addresses[1:])


@pytest.mark.slow
def test_an_approval_without_another_of_its_tool_has_no_link_to_similar_ones(desk):
    builders.waiting_for_approval()
    assert "Similar requests" not in text_of(desk)
    builders.waiting_for_approval()
    assert text_of(desk).count("Similar requests") == 2


@pytest.mark.slow
def test_an_empty_inbox_says_so(desk):
    assert "Nothing needs attention." in text_of(desk)
    assert "Nothing matches. Show the whole inbox" in text_of(desk, "/inbox/?kind=doubt")


@pytest.mark.parametrize(
    "old, new",
    [
        ("/", "/inbox/"),
        ("/?queue=attention", "/inbox/"),
        ("/?queue=attention&agent=claims&seen=x", "/inbox/?agent=claims"),
        ("/approvals/", "/inbox/?kind=approval"),
        ("/approvals/?tool=issue_refund&after=7", "/inbox/?kind=approval&tool=issue_refund"),
    ],
)
def test_the_former_addresses_lead_to_it(desk, old, new):
    assert desk.get(old)["Location"] == new


@pytest.mark.slow
def test_filters_and_mine_narrow_all_kinds_and_the_counts(desk):
    all_kinds()
    mine = Session.objects.get(title="S2doubt")
    mine.assignee = User.objects.get(username="anna")
    mine.save()
    assert titles(desk, "assignee=me") == ["S2doubt"]
    assert "All 1 Approvals 0 In doubt 1 Failed 0 Stuck 0 Mine 1 ✕" in text_of(desk, "/inbox/?assignee=me")
    assert "All 4 Approvals 1 In doubt 1 Failed 1 Stuck 1 Mine 1" in text_of(desk)
    assert "Stuck 1 Mine 0" in text_of(desk, "/inbox/?kind=approval")
    assert titles(desk, "q=S3failed") == ["S3failed"]
    assert titles(desk, "customer=nobody") == []


@pytest.mark.slow
def test_saved_views_are_chips_of_the_inbox_and_one_of_it_opens_there(desk):
    all_kinds()
    owner = User.objects.get(username="anna")
    SavedView.objects.create(owner=owner, name="Ada's", query="queue=attention&customer=Ada")
    page = desk.get("/?queue=attention&customer=Ada", follow=True).content.decode()
    assert '<a href="/?queue=attention&amp;customer=Ada" aria-current="page">' in page
    assert 'href="/views/save/?queue=attention"' in desk.get("/inbox/?kind=approval").content.decode()
    SavedView.objects.all().delete()
    assert "Save this view" not in text_of(desk)


@pytest.mark.slow
def test_the_inbox_of_the_demo_says_what_to_type(desk):
    builders.agent("letters", model="scripted demo model")
    assert "Demo data." not in text_of(desk)
    builders.History(agent_key="letters", title="Made for the demo").event("finished", Actor.system("demo"))
    assert "Demo data. Try: Send a letter to POL-8807" in text_of(desk)
    RegisteredAgent.objects.update(model="gpt-5")
    assert "Demo data." not in text_of(desk)


@pytest.mark.slow
@pytest.mark.parametrize("oldest_first", [True, False], ids=["oldest first", "newest first"])
def test_pages_follow_each_other_without_loss_or_repetition(oldest_first):
    all_kinds()
    same = minutes_ago(10)
    for _ in range(3):
        builders.waiting_for_approval(created_at=same)
        builders.in_doubt(created_at=same)
    now = timezone.now()
    whole = [(entry.kind, entry.key) for entry in inbox.read_page(now).entries]
    assert len(whole) == 10
    if not oldest_first:
        whole.reverse()
    paged, after = [], ""
    while True:
        page = inbox.read_page(now, after=after, oldest_first=oldest_first, limit=3)
        paged += [(entry.kind, entry.key) for entry in page.entries]
        if not page.next:
            break
        after = page.next
    assert paged == whole


@pytest.mark.parametrize("oldest_first", [True, False], ids=["oldest first", "newest first"])
def test_a_page_ends_before_it_has_too_many_forms(oldest_first, monkeypatch):
    monkeypatch.setattr(inbox, "PAGE_OF_CALLS", 3)
    kinds = ["approval", "stuck", "doubt", "stuck", "approval", "stuck", "doubt", "stuck"]
    builds = {
        "approval": builders.waiting_for_approval,
        "doubt": builders.in_doubt,
        "stuck": builders.running,
    }
    for minutes, kind in enumerate(kinds):
        at = minutes_ago(600 - minutes)
        session = builds[kind](created_at=at)
        if kind == "stuck":
            Session.objects.filter(pk=session.pk).update(updated_at=at)
    pages: list[list[str]] = []
    after = ""
    while not pages or after:
        page = inbox.read_page(timezone.now(), after=after, oldest_first=oldest_first)
        pages.append([entry.kind for entry in page.entries])
        after = page.next
    first = kinds if oldest_first else kinds[::-1]
    at = 6 if oldest_first else 7
    assert pages == [first[:at], first[at:]]


@pytest.mark.slow
def test_the_order_of_the_inbox_is_said_and_can_be_changed(desk):
    all_kinds()
    oldest = titles(desk)
    assert "Oldest first · newest first" in text_of(desk)
    assert titles(desk, "order=newest") == oldest[::-1]
    newest = desk.get("/inbox/?order=newest").content.decode()
    assert "Newest first · oldest first" in text_of(desk, "/inbox/?order=newest")
    assert 'href="/inbox/?order=newest&amp;kind=failed"' in newest
    # What is decided there leads back to the same order.
    assert "back=inbox%3Forder%3Dnewest%23" in newest


@pytest.mark.parametrize(
    "after", ["x", "2026-01-01T00:00:00+00:00_approval_x", "2026-01-01T00:00:00+00:00_other_1"]
)
def test_an_address_that_names_no_page_is_refused(desk, after):
    assert desk.get("/inbox/", {"after": after}).status_code == 400


def test_mine_are_those_of_the_lines_that_the_filter_leaves(desk):
    mine, other = (builders.waiting_for_approval(customer="Anna Lindqvist") for _ in range(2))
    builders.in_doubt(customer="Anna Lindqvist")
    builders.waiting_for_approval(customer="Bo Ek")
    Session.objects.filter(pk=mine.pk).update(assignee=User.objects.get())
    Session.objects.filter(pk=other.pk).update(assignee=builders.user("operator", "other"))
    assert "All 3 Approvals 2 In doubt 1 Failed 0 Stuck 0 Mine 1" in text_of(
        desk, "/inbox/?customer=lindqvist"
    )
    assert "All 4 Approvals 3 In doubt 1 Failed 0 Stuck 0 Mine 1" in text_of(desk)


@pytest.mark.slow
def test_the_inbox_costs_the_same_queries_for_many_lines_as_for_few(desk, django_assert_num_queries):
    all_kinds()
    with django_assert_num_queries(23):
        desk.get("/inbox/")
    for _ in range(4):
        all_kinds()
    with django_assert_num_queries(23):
        desk.get("/inbox/")


@pytest.mark.parametrize("query", ["", "?kind=failed", "?assignee=me", "?kind=approval&tool=issue_refund"])
def test_the_bar_counts_all_that_waits_however_the_inbox_is_filtered(desk, query):
    for _ in range(2):
        all_kinds()
    of_desk, of_inbox = (
        desk.get(address).context["waiting_for_people"] for address in ("/workers/", f"/inbox/{query}")
    )
    assert str(of_inbox) == str(of_desk) != "0"


@pytest.mark.slow
def test_an_open_inbox_without_news_reads_none_of_what_its_lines_show(desk, django_assert_num_queries):
    all_kinds()
    address = poll_of(desk.get("/inbox/").content.decode())
    with django_assert_num_queries(8):
        assert desk.get(address, headers=HTMX).status_code == 204


@pytest.mark.slow
def test_an_open_inbox_is_drawn_again_when_the_time_that_is_left_to_decide_has_become_less(desk, monkeypatch):
    session = builders.waiting_for_approval()
    Approval.objects.filter(session=session).update(expires_at=timezone.now() + timedelta(minutes=50))
    address = poll_of(desk.get("/inbox/").content.decode())
    assert desk.get(address, headers=HTMX).status_code == 204
    later = timezone.now() + timedelta(minutes=10)
    monkeypatch.setattr("django.utils.timezone.now", lambda: later)
    assert desk.get(address, headers=HTMX).status_code == 200


@pytest.mark.slow
def test_counts_are_exact_up_to_99():
    now = timezone.now()
    for _ in range(100):
        builders.History(created_at=now).rest("queued", next_run_at=now - timedelta(hours=1))
    numbers = inbox_counts.counts(now)
    assert str(numbers["stuck"]) == "99+"
    assert str(counting.total(numbers.values())) == "99+"
    Session.objects.filter(pk=Session.objects.earliest("pk").pk).delete()
    assert str(inbox_counts.counts(now)["stuck"]) == "99"


@pytest.mark.slow
def test_sessions_that_failed_for_one_reason_are_one_line_that_opens_into_all_of_them(desk):
    for number in range(10):
        builders.failed(title=f"S{number}", created_at=minutes_ago(60 - number))
    builders.retries_used_up(title="S20")
    text = text_of(desk)
    assert "All 2 Approvals 0 In doubt 0 Failed 2" in text
    assert "10 sessions: HTTP 401 from the model Claims desk first 59 min ago · last 50 min ago" in text
    page = desk.get("/inbox/").content.decode()
    cause = Session.objects.get(title="S3").failure
    assert f'href="/?queue=all&amp;failure={cause}"' in page
    opened = desk.get(f"/?queue=all&failure={cause}").content.decode()
    assert sorted(re.findall(r"data-row>(S\d+)<", opened)) == [f"S{number}" for number in range(10)]
    assert f"/bulk/?queue=all&amp;failure={cause}&amp;kind=resume" in page
    bulk = text_of(desk, f"/bulk/?queue=all&failure={cause}&kind=resume")
    assert "10 sessions" in bulk


@pytest.mark.parametrize(
    "query", ["customer=Ada", "tag=vip&since=7d", "assignee=me&agent=claims&status=idle", "q=Ada", "pick"]
)
def test_a_line_of_a_filtered_inbox_opens_into_the_sessions_that_it_counts_and_no_others(desk, query):
    me = User.objects.get()
    for number in range(5):
        is_of_ada = number in (1, 3)
        session = builders.failed(
            title=f"S{number}",
            customer="Ada Byron" if is_of_ada else "Greta",
            created_at=minutes_ago(9 - number),
        )
        if is_of_ada:
            SessionTag.objects.create(session=session, name="vip")
            Session.objects.filter(pk=session.pk).update(assignee=me)
    if query == "pick":
        picked = Session.objects.filter(customer="Ada Byron").values_list("pk", flat=True)
        query = "&".join(f"pick={key}" for key in picked)
    page = text_at(desk, f"/inbox/?{query}&nosuch=1&kind=failed&order=newest")
    links = dict(re.findall(r'href="([^"]+)">\s*(Open the 2|Try all 2 again|Assign)', page))
    by_label = {label: html.unescape(address) for address, label in links.items()}
    opened = desk.get(by_label["Open the 2"]).content.decode()
    assert sorted(re.findall(r"data-row>(S\d)<", opened)) == ["S1", "S3"]
    assert "nosuch" not in by_label["Open the 2"]
    for label in ("Try all 2 again", "Assign"):
        assert "2 of 2 sessions" in text_of(desk, by_label[label])


def test_a_filter_that_is_invalid_leaves_out_no_line_and_no_session_behind_it(desk):
    for number in range(2):
        builders.failed(title=f"S{number}")
    page = text_at(desk, "/inbox/?since=ever")
    address = re.search(r'href="([^"]+)">\s*Try all 2 again', page)
    assert address
    assert "since" not in address[1]
    assert "2 of 2 sessions" in text_of(desk, html.unescape(address[1]))


@pytest.mark.parametrize(
    "query, sentence, listed",
    [
        ("", "Open the failed sessions", ["S0", "S1", "S2"]),
        ("customer=Ada", "Open the failed sessions", ["S0", "S1"]),
        ("status=waiting", "Open the sessions", ["S3", "S4"]),
        ("phase=error", "Open the sessions", ["S0", "S1", "S2"]),
    ],
)
def test_from_more_causes_than_are_listed_those_sessions_are_opened_that_the_filter_leaves(
    desk, monkeypatch, query, sentence, listed
):
    monkeypatch.setattr(causes, "MOST_CAUSES", 1)
    for number, agent in enumerate(("claims", "letters")):
        builders.failed(title=f"S{number}", customer="Ada Byron", agent_key=agent)
    builders.failed(title="S2", customer="Greta")
    builders.retries_used_up(title="S3")
    builders.retries_used_up(title="S4", agent_key="letters")
    page = text_at(desk, f"/inbox/?{query}")
    address = re.search(rf'href="([^"]+)">\s*{sentence}<', page)
    assert address
    opened = desk.get(html.unescape(address[1])).content.decode()
    assert sorted(re.findall(r"data-row>(S\d)<", opened)) == listed


@pytest.mark.parametrize("kind", ["", "failed"])
def test_numbers_of_a_search_that_did_not_look_at_all_matches_may_be_more(desk, monkeypatch, kind):
    for number in range(4):
        builders.failed(title=f"Ada {number}", created_at=minutes_ago(9 - number))
    mine = builders.retries_used_up(title="Ada", created_at=minutes_ago(2))
    Session.objects.filter(pk=mine.pk).update(assignee=User.objects.get())
    builders.waiting_for_approval(title="Ada", created_at=minutes_ago(1))
    text = text_of(desk, f"/inbox/?q=Ada&kind={kind}")
    assert "All 3 Approvals 1 In doubt 0 Failed 2 Stuck 0 Mine 1" in text
    assert "Open the 4" in text
    # Those that changed last, the one that waits, and the one that failed first.
    monkeypatch.setattr(search_sessions, "MOST_NAMED", 3)
    monkeypatch.setattr(search_sessions, "FEW", 2)
    monkeypatch.setattr(search_sessions, "FIRST", 2)
    text = text_of(desk, f"/inbox/?q=Ada&kind={kind}")
    assert "There may be more matches. Add a word to narrow the search." in text
    assert "All 3+ Approvals 1+ In doubt 0+ Failed 2+ Stuck 0+ Mine 1+" in text
    assert "Open the 2+" in text
    # The other cause has one session, which is a line of its own.
    assert "1+ sessions" not in text
    Session.objects.filter(pk=mine.pk).update(assignee=None)
    assert "Mine 0+" in text_of(desk, f"/inbox/?q=Ada&kind={kind}")
    assert "Mine 0+ ✕" in text_of(desk, f"/inbox/?q=Ada&kind={kind}&assignee=me")


def test_causes_are_found_without_reading_their_members():
    keys = set()
    for agent in ("claims", "letters", "shop"):
        keys.add(builders.failed(agent_key=agent).failure)
    found = causes.read_causes(kinds=("failed",))["failed"]
    assert {cause.key for cause in found} == keys - {None}
    assert [cause.number.number for cause in found] == [1, 1, 1]
    none: dict[str, list[causes.Cause]] = {"failed": [], "changed": []}
    assert causes.read_causes(Condition.of(Q(title="none"))) == none
    assert causes.read_causes(Condition.of(Q(pk__in=[]))) == none
    assert causes.read_causes()["changed"] == []
    assert causes.read_causes(kinds=()) == {}


def failures_of_causes(number: int) -> list[UUID]:
    """The keys of sessions that failed for a cause each, the oldest first. Their causes have the contrary order."""
    sessions = [
        Session(
            agent="claims",
            status="idle",
            phase="error",
            failure=UUID(int=number - place),
            updated_at=minutes_ago(number - place),
        )
        for place in range(number)
    ]
    return [session.pk for session in Session.objects.bulk_create(sessions)]


def test_each_of_hundreds_of_causes_is_on_a_page_the_oldest_on_the_first():
    sessions = failures_of_causes(230)
    page = inbox.read_page(timezone.now())
    lines = page.entries
    while page.next:
        page = inbox.read_page(timezone.now(), after=page.next)
        lines += page.entries
    assert [line.key for line in lines] == sessions
    assert not page.more_causes


@pytest.mark.parametrize("query", ["", "agent=claims"])
def test_the_inbox_says_that_there_are_more_causes_than_it_lists(desk, monkeypatch, query):
    monkeypatch.setattr(causes, "MOST_CAUSES", 3)
    failures_of_causes(3)
    assert "more causes" not in text_of(desk, f"/inbox/?{query}")
    page = desk.get(f"/inbox/?{query}", headers=HTMX).content.decode()
    builders.failed()
    assert "There are more causes of failures than the 3 that are listed." in text_of(
        desk, f"/inbox/?{query}"
    )
    assert desk.get(poll_of(page)).status_code == 200
    assert "more causes" not in text_of(desk, f"/inbox/?{query}&kind=approval")


@pytest.mark.slow
def test_a_card_says_what_will_happen_why_and_until_when(desk):
    history = builders.refunding(customer="Maria Santos")
    history.ask(history.calls[-1], expires_at=timezone.now() + timedelta(minutes=53, seconds=30))
    history.rest("waiting", waiting_for="approval")
    text = text_of(desk)
    assert "Issue refund moves money requested 9 min ago · expires in 53 min" in text
    assert "Customer “Is my windscreen covered by POL-7?” lookup_policy policy: POL-7, status: active" in text
    assert "Claim CLM-1042 Amount 120" in text
    assert re.search(
        r'<time datetime="[^"]+" title="\d+ \w+ \d{4}, [\d:]+ \w+" data-left="expires in {}">expires in',
        desk.get("/inbox/").content.decode(),
    )


@pytest.mark.slow
def test_what_the_agent_noted_for_itself_is_no_finding(desk):
    history = builders.looked_up()
    ToolCall.objects.update(result={"policy": "POL-7", "active": True, "limit": 500.0, "claims": ["CLM-1"]})
    history.lookup()
    newest = ToolCall.objects.latest("position")
    ToolCall.objects.filter(pk=newest.pk).update(tool="take_note", result="Noted.")
    history.reply("I refund it.", [("issue_refund", {"claim": "CLM-1042", "amount": 120})])
    history.ask(history.calls[-1])
    history.rest("waiting", waiting_for="approval")
    text = text_of(desk)
    # In an order of the database's own: PostgreSQL stores the keys of JSON sorted.
    assert all(fact in text for fact in ("lookup_policy ", "policy: POL-7", "active: yes", "limit: 500"))
    assert "Noted." not in text


def refunding_after(history: builders.History, policy: str = "POL-7") -> Session:
    history.reply("I refund it.", [("issue_refund", {"claim": "CLM-1042", "policy": policy, "amount": 120})])
    history.ask(history.calls[-1])
    return history.rest("waiting", waiting_for="approval")


def go_on(session: Session) -> builders.History:
    """The session as its next worker finds it, to be continued by hand."""
    return builders.History.of(session, step=1, now=timezone.now())


def correct(session: Session, role: str, text: str, **how) -> Session:
    row = Message.objects.filter(branch__session=session, role=role).latest("position")
    actor = Actor.of(User.objects.filter(username="sue").first() or builders.user("supervisor", "sue"))
    return actions.replace_message(
        actor=actor, session_id=session.pk, position=row.position, text=text, reason="It was wrong", **how
    )


@pytest.mark.slow
def test_a_finding_that_a_person_corrected_is_the_one_that_the_model_read(desk):
    history = builders.looked_up()
    session = refunding_after(history)
    correct(session, "tool", '{"policy": "POL-7", "status": "lapsed", "limit": 80.0}', rewind=True)
    refunding_after(go_on(session))
    text = text_of(desk)
    assert "lookup_policy policy: POL-7, status: lapsed, limit: 80 (corrected by sue) Claim" in text
    assert "status: active" not in text
    correct(session, "tool", "It is in arrears.", rewind=True)
    refunding_after(go_on(session))
    assert "lookup_policy It is in arrears. (corrected by sue) Claim" in text_of(desk)


@pytest.mark.slow
def test_words_that_a_person_corrected_are_those_that_the_model_read(desk):
    session = refunding_after(builders.looked_up())
    correct(session, "user", "Is my windscreen covered by POL-8?", rewind=True)
    history = go_on(session)
    history.lookup("POL-8")
    refunding_after(history)
    text = text_of(desk)
    assert "Customer “Is my windscreen covered by POL-8?” (corrected by sue) lookup_policy" in text
    assert "covered by POL-7" not in text


@pytest.mark.slow
def test_a_correction_after_the_call_was_asked_for_says_that_the_model_had_asked_before(desk):
    session = refunding_after(builders.looked_up())
    correct(session, "tool", "It has lapsed.")
    assert "It has lapsed. (corrected by sue after the call was requested)" in text_of(desk)


@pytest.mark.slow
def test_what_is_hidden_stays_hidden_in_a_corrected_finding(desk, settings):
    settings.AGENTSTATE_MASK_KEYS = ["limit"]
    settings.AGENTSTATE_MASK_PATTERNS = ["POL-[0-9]+"]
    session = refunding_after(builders.looked_up())
    correct(session, "tool", r'{"policy": "POL\u002d7", "status": "lapsed", "limit": 80.0}', rewind=True)
    refunding_after(go_on(session))
    text = text_of(desk)
    assert "policy: ••••, status: lapsed" in text
    assert "80.0" not in text
    assert "d7" not in without_random(text)


@pytest.mark.slow
def test_findings_are_about_what_the_call_is_about(desk):
    history = builders.looked_up()
    for policy in ("POL-8", "POL-9"):
        history.lookup(policy)
    session = refunding_after(history, policy="POL-7")
    text = text_of(desk)
    assert "lookup_policy policy: POL-7, status: active Claim" in text
    assert "POL-9" not in text
    Session.objects.filter(pk=session.pk).delete()
    history = builders.looked_up()
    for policy in ("POL-8", "POL-9"):
        history.lookup(policy)
    refunding_after(history, policy="none of them")
    text = text_of(desk)
    assert (
        "lookup_policy policy: POL-8, status: active lookup_policy policy: POL-9, status: active Claim"
        in text
    )


@pytest.mark.slow
@pytest.mark.parametrize("keys, patterns", [(["policy"], []), ([], ["POL-[0-9]+"]), (["arguments"], [])])
def test_which_findings_are_shown_does_not_tell_whether_two_hidden_values_are_equal(
    desk, settings, keys, patterns
):
    settings.AGENTSTATE_MASK_KEYS, settings.AGENTSTATE_MASK_PATTERNS = keys, patterns
    found = []
    for asked in ("POL-7", "POL-8", "none of them"):
        history = builders.asked()
        for number in (7, 8, 9):
            history.reply(calls=[("lookup_policy", {"policy": f"POL-{number}"})])
            history.finish(history.calls[-1], f"Found in file {number}")
            history.checkpoint("step")
        session = refunding_after(history, policy=asked)
        found.append(re.findall(r"Found in file \d", text_of(desk)))
        Session.objects.filter(pk=session.pk).delete()
    assert found[0] == found[1] == found[2] != []


def test_what_is_hidden_stays_hidden_in_the_words_and_the_findings(desk, settings):
    settings.AGENTSTATE_MASK_PATTERNS = ["POL-[0-9]+"]
    builders.waiting_for_approval()
    page = desk.get("/inbox/").content.decode()
    assert "POL-7" not in page
    assert "covered by ••••" in page


def test_an_approval_decided_in_the_inbox_returns_to_it_as_it_was_filtered(desk):
    session = builders.waiting_for_approval()
    approval = Approval.objects.get(session=session)
    sent = {
        "version": session.version,
        "call_id": approval.call_id,
        "fingerprint": shown_fingerprint(approval),
        "back": "inbox?kind=approval&agent=claims",
    }
    answer = desk.post(f"/sessions/{session.pk}/approve/", sent)
    assert answer["Location"] == "/inbox/?kind=approval&agent=claims#inbox-heading"


@pytest.mark.slow
def test_rejecting_from_the_inbox_stays_in_the_inbox(desk):
    session = builders.waiting_for_approval()
    page = desk.get("/inbox/?kind=approval").content.decode()
    address = re.search(rf'href="(/sessions/{session.pk}/reject/[^"]+)"', page)
    assert address is not None
    dialog = desk.get(address[1].replace("&amp;", "&")).content.decode()
    back = re.search(r'name="back" value="([^"]+)"', dialog)
    assert back is not None
    call = ToolCall.objects.get(branch=session.branch, status="planned")
    sent = {
        "version": session.version,
        "call_id": call.pk,
        "message": "No",
        "back": back[1].replace("&amp;", "&"),
    }
    answer = desk.post(f"/sessions/{session.pk}/reject/", sent)
    assert answer["Location"] == "/inbox/?kind=approval#inbox-heading"


@pytest.mark.slow
def test_after_a_decision_the_keyboard_goes_on_at_the_next_line(desk):
    first, second = builders.waiting_for_approval(), builders.waiting_for_approval()
    following = Approval.objects.get(session=second)
    for session, place in ((first, f"line-approval-{following.pk}"), (second, "inbox-heading")):
        page = desk.get("/inbox/?kind=approval").content.decode()
        assert re.search(rf'id="{place}"\s+tabindex="-1"', page)
        back = re.search(
            rf'action="/sessions/{session.pk}/approve/[^"]*".*?name="back" value="([^"]+)"', page, re.DOTALL
        )
        assert back is not None
        approval = Approval.objects.get(session=session)
        sent = {
            "version": session.version,
            "call_id": approval.call_id,
            "fingerprint": shown_fingerprint(approval),
            "back": back[1].replace("&amp;", "&"),
        }
        assert back[1] == f"inbox?kind=approval#{place}"
        htmx = {
            "HX-Request": "true",
            "HX-Current-URL": "http://testserver/inbox/?kind=approval#line-approval-1",
        }
        answer = desk.post(f"/sessions/{session.pk}/approve/", sent, headers=htmx)
        assert answer["HX-Redirect"] == f"/inbox/?kind=approval#{place}"
        # A browser does not load its own address again for another place on the page.
        assert answer["HX-Refresh"] == "true"


@pytest.mark.parametrize("back", ["inbox#x", "inbox#line-approval-1' onclick=", "inbox#"])
def test_only_a_line_can_be_named_to_go_on_at(desk, back):
    session = builders.paused()
    answer = desk.post(
        f"/sessions/{session.pk}/resume/", {"version": session.version, "reason": "x", "back": back}
    )
    assert answer["Location"] == "/inbox/#inbox-heading"
    assert "HX-Refresh" not in answer


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example/", "inbox/../../x", "javascript:x"])
def test_no_other_page_can_be_named_to_return_to(desk, back):
    session = builders.paused()
    sent = {"version": session.version, "reason": "x", "back": back}
    answer = desk.post(f"/sessions/{session.pk}/resume/", sent)
    assert answer["Location"] == f"/sessions/{session.pk}/"


@pytest.mark.slow
def test_like_approvals_are_edited_one_by_one_and_decided_together(desk):
    approvals = [
        Approval.objects.get(session=builders.waiting_for_approval(title=f"S{number}")) for number in range(3)
    ]
    page = desk.get("/inbox/?tool=issue_refund").content.decode()
    names = [f"arg-{approval.pk}-amount" for approval in approvals]
    assert all(f'name="{name}"' in page for name in names)
    sent = {
        "call": [f"{approval.pk}:{shown_fingerprint(approval)}" for approval in approvals],
        "decision": "approve",
        "tool": "issue_refund",
        **dict.fromkeys(names, "120"),
        names[1]: "99.5",
    }
    assert desk.post("/approvals/batch/", sent).status_code == 302
    edited = list(Approval.objects.order_by("pk").values_list("decision", "edited"))
    assert edited == [
        ("approved", None),
        ("approved", {"claim": "CLM-1042", "amount": 99.5}),
        ("approved", None),
    ]


def test_a_wrong_argument_stops_only_its_own_call(desk):
    approvals = [Approval.objects.get(session=builders.waiting_for_approval()) for _ in range(2)]
    sent = {
        "call": [f"{approval.pk}:{shown_fingerprint(approval)}" for approval in approvals],
        "decision": "approve",
        "tool": "issue_refund",
        f"arg-{approvals[0].pk}-amount": "much",
    }
    answer = desk.post("/approvals/batch/", sent)
    assert answer.status_code == 409
    assert "Amount must be a number, not “much”." in answer.content.decode()
    assert list(Approval.objects.order_by("pk").values_list("decision", flat=True)) == ["", "approved"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "worker, sentence",
    [
        ({"stopped_at": 3}, "Worker host:7 stopped 3 min ago: it cannot finish the call."),
        (
            {"beat_at": 5},
            "Worker host:7 is offline: its last heartbeat was 5 min ago.",
        ),
        ({}, "Worker host:7 is online."),
        (None, "Worker host:7 is unknown."),
    ],
)
def test_a_call_in_doubt_says_all_that_is_known_of_it(desk, worker, sentence):
    session = builders.in_doubt(title="S1")
    call = ToolCall.objects.get(branch=session.branch, status="doubt")
    ToolCall.objects.filter(pk=call.pk).update(worker="host:7")
    if worker is not None:
        Worker.objects.create(name="host:7", **{field: minutes_ago(age) for field, age in worker.items()})
    text = text_of(desk)
    assert "In doubt Issue refund moves money" in text
    assert "on host:7 and never reported back" in text
    assert sentence in text
    assert f"idempotency key {call.idempotency_key} Copy" in text
    assert "Claim CLM-1042 Amount 120" in text
    dialog = text_of(desk, f"/sessions/{session.pk}/decide/?call={call.pk}&decision=again")
    warns = "may still finish the call" in dialog
    assert warns is (worker is None or "stopped_at" not in worker)


@pytest.mark.slow
def test_the_three_outcomes_open_the_same_dialog_with_one_chosen(desk):
    session = builders.in_doubt()
    call = ToolCall.objects.get(branch=session.branch, status="doubt")
    for decision in ("result", "again", "skip"):
        for page in ("/inbox/", f"/sessions/{session.pk}/"):
            assert re.search(
                rf"/sessions/{session.pk}/decide/\?call={call.pk}&amp;decision={decision}",
                desk.get(page).content.decode(),
            ), page
        dialog = desk.get(
            f"/sessions/{session.pk}/decide/?call={call.pk}&decision={decision}"
        ).content.decode()
        [chosen] = re.findall(r"<input[^>]*checked[^>]*>", dialog)
        assert f'value="{decision}"' in chosen


@pytest.mark.slow
def test_an_open_inbox_is_sent_again_only_when_it_has_changed(desk):
    session = builders.waiting_for_approval()
    address = poll_of(desk.get("/inbox/").content.decode())
    assert desk.get(address, headers=HTMX).status_code == 204
    Session.objects.filter(pk=session.pk).update(version=99)  # its forms would be refused
    answer = desk.get(address, headers=HTMX)
    assert answer.status_code == 200
    assert "<html" not in answer.content.decode()


@pytest.mark.slow
def test_a_viewer_sees_the_inbox_and_decides_nothing(client):
    all_kinds()
    client.force_login(builders.user("viewer"))
    page = client.get("/inbox/").content.decode()
    assert "Deciding an approval needs the operator or supervisor role." in page
    assert "Fingerprint" not in page
    assert "/decide/" not in page
    assert 'class="edit"' not in page


def test_a_refused_dialog_comes_back_as_a_part_and_a_done_one_sends_the_browser_on(desk):
    session = builders.paused()
    address = f"/sessions/{session.pk}/resume/"
    refused = desk.post(address, {"version": session.version, "reason": ""}, headers=HTMX)
    assert refused.status_code == 400
    assert refused.content.decode().lstrip().startswith("<form")
    assert "Say why" in refused.content.decode()
    done = desk.post(address, {"version": session.version, "reason": "Lunch is over"}, headers=HTMX)
    assert (done.status_code, done["HX-Redirect"]) == (200, f"/sessions/{session.pk}/")


@pytest.mark.slow
def test_the_person_is_told_what_was_done_to_what_with_a_link_and_a_way_back(desk):
    session = builders.queued(title="Roof <b>")
    sent = {"version": session.version, "reason": "Lunch"}
    page = desk.post(f"/sessions/{session.pk}/pause/", sent, follow=True).content.decode()
    toast = re.search(r'<p class="toast success">(.*?)</p>', page, re.DOTALL)
    assert toast is not None
    assert f'<a href="/sessions/{session.pk}/">Roof &lt;b&gt;</a> · Paused.' in toast[1]
    assert f'<a href="/sessions/{session.pk}/resume/" hx-get="/sessions/{session.pk}/resume/"' in toast[1]


@pytest.mark.slow
@pytest.mark.parametrize("oldest_first", [True, False])
def test_pages_of_stuck_lines_have_each_session_once_whatever_it_is_stuck_for(oldest_first):
    now = timezone.now()
    sessions = []
    for number, build in enumerate(
        [builders.lost, builders.running, builders.waiting_for_approval, builders.queued] * 2
    ):
        session = build(title=f"S{number}", created_at=minutes_ago(60))
        values = {"updated_at": now - timedelta(minutes=60 + number)}
        if build is builders.queued:
            values["next_run_at"] = now - timedelta(minutes=5)
        if build is builders.waiting_for_approval:
            Approval.objects.filter(session=session).update(expires_at=now - timedelta(minutes=5))
        Session.objects.filter(pk=session.pk).update(**values)
        sessions.append(session.pk)
    builders.paused()
    listed, after = [], ""
    while True:
        page = inbox.read_page(now, kinds=("stuck",), after=after, oldest_first=oldest_first, limit=3)
        listed.append([entry.key for entry in page.entries])
        if not (after := page.next):
            break
    assert [len(keys) for keys in listed] == [3, 3, 2]
    assert [key for keys in listed for key in keys] == (sessions[::-1] if oldest_first else sessions)
    assert (inbox_counts.counts(now)["stuck"].number, inbox_counts.counts(now)["approval"].number) == (8, 0)


@pytest.mark.parametrize("action, told", [("pause", "Asked to pause"), ("cancel", "Asked to end")])
def test_a_session_whose_call_still_runs_is_not_said_to_have_stopped(
    operator: Client, action: str, told: str
) -> None:
    session = builders.running()
    sent = {"version": session.version, "reason": "lunch"}
    page = operator.post(f"/sessions/{session.pk}/{action}/", sent, follow=True).content.decode()
    assert f"{told}. The session stops when its current call ends." in page
    waiting = builders.queued()
    page = operator.post(
        f"/sessions/{waiting.pk}/{action}/", {"version": waiting.version, "reason": "lunch"}, follow=True
    ).content.decode()
    assert told not in page


@pytest.mark.slow
def test_beside_the_chip_of_ones_own_sessions_the_other_filters_stay_shown_and_can_be_taken_off(desk):
    anna = User.objects.get(username="anna")
    for number, customer in enumerate(("Ada", "Ada", "Bo")):
        builders.waiting_for_approval(title=f"S{number}", customer=customer, assignee=anna)
    page = desk.get("/inbox/?customer=ada&assignee=me").content.decode()
    assert 'Mine <span class="num">2</span> ✕' in page
    [address] = re.findall(r'<a href="([^"]+)" aria-current="true">\s*customer ada ✕', page)
    assert titles(desk, html.unescape(address).partition("?")[2]) == titles(desk, "assignee=me")
    assert len(titles(desk, "assignee=me")) == 3
    # One's own sessions alone are no other filter.
    assert "✕" not in desk.get("/inbox/?assignee=me").content.decode().replace("</span> ✕", "")


@pytest.mark.slow
def test_a_later_page_whose_lines_are_gone_does_not_say_that_nothing_waits(desk):
    sessions = [builders.waiting_for_approval(created_at=minutes_ago(60 - n)) for n in range(11)]
    [following] = re.findall(r'href="([^"]+)" rel="next"', desk.get("/inbox/").content.decode())
    actions.cancel(actor=builders.SYSTEM, session_id=sessions[-1].pk, reason="Gone")
    text = text_of(desk, html.unescape(following))
    assert "Nothing is left on this page." in text
    assert "Nothing needs attention." not in text
    assert "First page" in text
