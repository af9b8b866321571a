"""The pages of bulk actions and of saved views."""

import re
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from sessions_app.actions import bulk
from sessions_app.models import BulkAction, BulkItem, Event, SavedView, Session
from tests import builders

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_runs")]


def plain(answer) -> str:
    return re.sub(r"\s+", " ", answer.content.decode())


def hidden(text: str, name: str) -> str:
    found = re.search(rf'<input type="hidden" name="{name}" value="([^"]*)"', text)
    assert found
    return found[1]


def three() -> list[Session]:
    return [builders.queued(title="One"), builders.queued(title="Two"), builders.done(title="Three")]


def begin(client: Client, query: str = "queue=all&kind=pause", **fields):
    text = plain(client.get(f"/bulk/?{query}"))
    found = re.search(r'name="expected" value="(\d+)"', text)
    sent = {"reason": "Provider is down", "expected": found[1] if found else "3", **fields}
    return client.post(f"/bulk/?{query}", {name: value for name, value in sent.items() if value is not None})


def work() -> BulkAction:
    bulk_action = BulkAction.objects.latest("pk")
    while bulk.run_batch(bulk_action.pk):
        pass
    return bulk_action


def test_a_list_leads_to_acting_on_all_that_it_shows(operator):
    three()
    text = plain(operator.get("/?queue=running&agent=claims"))
    assert 'href="/bulk/?queue=running&amp;agent=claims"' in text
    assert 'href="/bulk/?queue=all"' in plain(operator.get("/?queue=asleep"))
    page = plain(operator.get("/bulk/?queue=running&agent=claims"))
    assert "<b>2 of 2 sessions</b>" in page
    assert "agent: claims" in page


def test_the_estimate_says_what_would_be_refused_and_why(operator):
    *_, done = three()
    text = plain(operator.get("/bulk/?queue=all&kind=pause"))
    assert "<b>2 of 3 sessions</b> can be paused. Each gets" in text
    assert re.search(
        r'1</b> will be skipped: It is not running\. <span class="soft">\s*'
        rf'<a class="link" href="/sessions/{done.pk}/">Three',
        text,
    )


def test_whatever_else_its_address_holds_only_the_filter_is_kept_so_its_page_can_be_shown(operator):
    three()
    everything = "&".join(
        ["queue=all", "kind=pause", "agent=claims", "order=oldest", *["x="] * 500, *["tag="] * 490]
    )
    assert begin(operator, everything).status_code == 302
    bulk_action = BulkAction.objects.get()
    assert bulk_action.query == "agent=claims&order=oldest&queue=all"
    assert operator.get(f"/bulk/actions/{bulk_action.pk}/").status_code == 200
    assert operator.get("/bulk/actions/").status_code == 200


@pytest.mark.slow
def test_it_is_begun_worked_off_and_its_failures_are_linked(operator):
    one, _, done = three()
    answer = begin(operator)
    bulk_action = BulkAction.objects.get()
    assert answer["Location"] == f"/bulk/actions/{bulk_action.pk}/"
    assert (bulk_action.kind, bulk_action.reason, bulk_action.query, bulk_action.actor_name) == (
        "pause",
        "Provider is down",
        "queue=all",
        "anna",
    )
    page = plain(operator.get(answer["Location"]))
    assert "<b>0 %</b>" in page
    assert 'hx-trigger="every 1s"' in page
    assert f'action="/bulk/actions/{bulk_action.pk}/stop/"' in page
    work()
    part = operator.get(answer["Location"], headers={"HX-Request": "true"})
    text = plain(part)
    assert "<html" not in text
    assert "<b>Finished</b>" in text
    assert "hx-trigger" not in text
    assert re.search(
        rf'href="/sessions/{done.pk}/">Three</a></td>\s*<td data-label="Why">It is not running\.', text
    )
    one.refresh_from_db()
    assert one.status == "paused"
    assert "pause 3" in plain(operator.get("/bulk/actions/"))


def test_a_colleague_sees_whose_sessions_were_selected_by_me(operator):
    """Their own would be others."""
    queued = builders.queued(assignee=User.objects.get(username="anna"))
    builders.queued()
    answer = begin(operator, "queue=all&assignee=me+&kind=pause")
    work()
    queued.refresh_from_db()
    assert (queued.status, BulkAction.objects.get().query) == ("paused", "assignee=anna&queue=all")
    colleague = Client()
    colleague.force_login(builders.user("supervisor", "sue"))
    text = plain(colleague.get(answer["Location"]))
    assert "assignee: anna" in text
    assert 'href="/?assignee=anna&amp;queue=all"' in text


@pytest.mark.parametrize(
    "name, assignee", [("anna", "nobody"), ("anna", "sue"), ("nobody", "me"), ("me", "me")]
)
def test_a_bulk_action_keeps_the_assignee_whose_sessions_were_selected(client, name, assignee):
    """That of an account whose name stands for something else cannot be said otherwise."""
    client.force_login(builders.user("operator", name))
    builders.queued(assignee=User.objects.get(username=name) if assignee == "me" else None)
    if assignee == "sue":
        builders.queued(assignee=builders.user("operator", "sue"))
    assert begin(client, f"queue=all&assignee={assignee}&kind=pause").status_code == 302
    assert BulkAction.objects.get().query == f"assignee={assignee}&queue=all"


@pytest.mark.slow
def test_many_sessions_are_assigned(operator):
    three()
    answer = begin(operator, "queue=all&kind=assign", assignee="anna")
    assert answer.status_code == 302
    work()
    assert Session.objects.filter(assignee__username="anna").count() == 3
    assert "to anna" in plain(operator.get(answer["Location"]))


@pytest.mark.slow
def test_sessions_that_come_later_are_not_meant(operator):
    three()
    begin(operator)
    late = builders.queued()
    work()
    late.refresh_from_db()
    assert late.status == "queued"


def test_a_list_that_has_changed_since_is_a_conflict_and_keeps_what_was_typed(operator):
    three()
    builders.queued()
    answer = begin(operator, expected="3")
    text = plain(answer)
    assert answer.status_code == 409
    assert "The list had 3 sessions and now has 4." in text
    assert "Provider is down" in text
    assert hidden(text, "expected") == "4"
    assert not BulkAction.objects.exists()
    assert operator.post("/bulk/?queue=all&kind=pause", {"reason": "x", "expected": "4"}).status_code == 302


@pytest.mark.parametrize("reason", [None, "", "  "])
def test_it_needs_a_reason(operator, reason):
    three()
    answer = begin(operator, reason=reason)
    assert answer.status_code == 400
    assert "Say why: the reason is kept in the audit trail." in plain(answer)
    assert not BulkAction.objects.exists()


def test_it_needs_a_login_and_the_permission(client):
    three()
    assert client.get("/bulk/")["Location"].startswith("/login/")
    assert client.post("/bulk/?queue=all")["Location"].startswith("/login/")
    client.force_login(builders.user("viewer"))
    assert "needs the operator or supervisor role." in plain(client.get("/bulk/?queue=all"))
    answer = client.post("/bulk/?queue=all&kind=cancel", {"reason": "x", "expected": "3"})
    assert answer.status_code == 403
    assert not BulkAction.objects.exists()


def test_other_methods_are_refused(operator):
    assert operator.put("/bulk/").status_code == 405
    assert operator.post("/bulk/actions/").status_code == 405
    assert operator.get("/bulk/actions/1/stop/").status_code == 405
    assert operator.get("/views/1/delete/").status_code == 405


@pytest.mark.parametrize("query", ["queue=all&status=asleep", "queue=asleep", "queue=asleep&agent=claims"])
def test_a_wrong_filter_acts_on_nothing(operator, query):
    """It would be left out, and let in sessions that nobody meant."""
    three()
    assert "The filter is invalid" in plain(operator.get(f"/bulk/?{query}"))
    answer = operator.post(f"/bulk/?{query}&kind=cancel", {"reason": "x", "expected": "3"})
    assert answer.status_code == 400
    assert "The filter is invalid" in plain(answer)
    assert not BulkAction.objects.exists()


def test_where_none_can_be_done_the_button_says_so(operator):
    builders.done()
    text = plain(operator.get("/bulk/?queue=all&kind=pause"))
    assert re.search(r'class="button first" aria-disabled="true" title="None of these can be paused."', text)
    assert "No session is chosen." in plain(operator.get("/bulk/?queue=paused&kind=pause"))


@pytest.mark.slow
def test_it_is_stopped_once(operator):
    three()
    begin(operator)
    bulk_action = BulkAction.objects.get()
    bulk.run_batch(bulk_action.pk, limit=1)
    assert operator.post(f"/bulk/actions/{bulk_action.pk}/stop/").status_code == 302
    text = plain(operator.get(f"/bulk/actions/{bulk_action.pk}/"))
    assert "Stopped by anna" in text
    assert "2</span> skipped" in text
    again = operator.post(f"/bulk/actions/{bulk_action.pk}/stop/")
    assert again.status_code == 409
    assert "already stopped by anna" in plain(again)
    assert operator.post("/bulk/actions/999/stop/").status_code == 404


@pytest.mark.slow
def test_a_viewer_sees_it_and_cannot_stop_it(operator, client):
    three()
    begin(operator)
    bulk_action = BulkAction.objects.get()
    client.force_login(builders.user("viewer"))
    text = plain(client.get(f"/bulk/actions/{bulk_action.pk}/"))
    assert re.search(
        r'aria-disabled="true" title="[^"]* needs the operator or supervisor role\.[^>]*>Stop<', text
    )
    assert client.post(f"/bulk/actions/{bulk_action.pk}/stop/").status_code == 403
    assert BulkItem.objects.filter(outcome="").count() == 3


def test_an_unknown_act_is_not_found(operator):
    assert operator.get("/bulk/actions/999/").status_code == 404


@pytest.mark.slow
def test_its_pages_are_as_cheap_for_many_sessions_as_for_few(operator, django_assert_num_queries):
    for sessions in (3, 40):
        for _ in range(sessions):
            builders.done()
        with django_assert_num_queries(7):
            operator.get("/bulk/?queue=all&kind=pause")
        begin(operator, expected=str(Session.objects.count()))
        bulk_action = work()
        with django_assert_num_queries(8):
            operator.get(f"/bulk/actions/{bulk_action.pk}/")
        with django_assert_num_queries(6):
            operator.get("/bulk/actions/")


# Saved views


def save(client: Client, **fields):
    return client.post("/views/save/", {"name": "Glass", "query": "queue=all&tag=glass", **fields})


@pytest.mark.slow
def test_a_list_is_kept_under_a_name_and_opened_from_the_desk(operator):
    builders.done(title="Mirror", tags=["glass"])
    builders.done(title="Roof")
    text = plain(operator.get("/?queue=all&tag=glass"))
    assert 'href="/views/save/?queue=all&amp;tag=glass"' in text
    form = plain(operator.get("/views/save/?queue=all&tag=glass"))
    assert hidden(form, "query") == "queue=all&amp;tag=glass"
    answer = save(operator)
    assert answer["Location"] == "/?queue=all&tag=glass"
    text = plain(operator.get(answer["Location"]))
    assert re.search(r'<a href="/\?queue=all&amp;tag=glass" aria-current="page">Glass', text)
    assert ">Mirror</a>" in text
    assert ">Roof</a>" not in text
    assert 'aria-current="page">Glass' not in plain(operator.get("/?queue=all"))


def test_a_view_is_its_owners_unless_it_is_for_everybody(operator):
    save(operator)
    save(operator, name="Roofs", query="queue=all&q=roof", shared="on")
    operator.force_login(builders.user("viewer"))
    text = plain(operator.get("/?queue=all"))
    assert ">Glass" not in text
    assert '>Roofs <span class="soft">anna</span>' in text


def test_a_view_opens_as_a_sheet_with_htmx(operator):
    part = operator.get("/views/save/?queue=all", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in part
    assert "<form" in part


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"name": ""}, "Enter a name."),
        ({"name": "x" * 61}, "at most 60"),
        ({"query": "colour=red"}, "There is no filter &#x27;colour&#x27;."),
        ({"query": "status=asleep"}, "Select a valid choice"),
    ],
)
def test_a_view_that_cannot_be_kept_is_refused_and_what_was_typed_stays(operator, fields, said):
    answer = save(operator, **fields)
    assert answer.status_code == 400
    assert said in plain(answer)
    assert hidden(plain(answer), "query")
    assert not SavedView.objects.exists()


def test_a_name_is_used_once_or_replaced(operator):
    save(operator)
    answer = save(operator, query="queue=all&tag=storm")
    assert answer.status_code == 400
    assert "You already have a view named “Glass”" in plain(answer)
    assert save(operator, query="queue=all&tag=storm", replace="on").status_code == 302
    assert SavedView.objects.get().query == "queue=all&tag=storm"


@pytest.mark.slow
def test_a_view_is_deleted_by_its_owner_or_a_supervisor(operator):
    save(operator, shared="on")
    view = SavedView.objects.get()
    operator.force_login(builders.user("viewer"))
    assert "Only anna or a supervisor can delete" in plain(operator.get("/views/"))
    answer = operator.post(f"/views/{view.pk}/delete/")
    assert answer.status_code == 403
    assert "Only anna or a supervisor" in plain(answer)
    operator.force_login(builders.user("supervisor"))
    assert f'action="/views/{view.pk}/delete/"' in plain(operator.get("/views/"))
    assert operator.post(f"/views/{view.pk}/delete/")["Location"] == "/views/"
    assert operator.post(f"/views/{view.pk}/delete/").status_code == 404


def test_views_need_a_login(client):
    for address in ("/views/", "/views/save/"):
        assert client.get(address)["Location"].startswith("/login/")
    assert client.post("/views/1/delete/")["Location"].startswith("/login/")
    client.force_login(builders.user(None))
    assert client.get("/views/").status_code == 403


def test_only_the_ticked_sessions_are_chosen(operator):
    one, _, _ = three()
    page = plain(operator.get(f"/bulk/?queue=all&pick=&pick={one.pk}"))
    assert "<b>1 of 1 session</b>" in page
    assert "sessions: 1 selected" in page
    begin(operator, f"queue=all&kind=pause&pick=&pick={one.pk}")
    assert list(BulkItem.objects.values_list("session", flat=True)) == [one.pk]


@pytest.mark.parametrize("pick", ["", "not-an-id"])
def test_where_nothing_is_ticked_nothing_is_chosen(operator, pick):
    three()
    page = operator.get(f"/bulk/?queue=all&pick={pick}")
    assert page.status_code == 400
    assert "can be paused" not in plain(page)
    assert begin(operator, f"queue=all&kind=pause&pick={pick}").status_code == 400
    assert not BulkAction.objects.exists()


@pytest.mark.parametrize(
    "queue, title",
    [("paused", "Resume"), ("running", "Pause"), ("done", "Assign"), ("waiting", "Assign"), ("all", "Pause")],
)
def test_a_bulk_action_opens_on_what_most_of_the_sessions_allow(operator, queue, title):
    builders.paused()
    builders.done()
    builders.queued()
    builders.queued()
    builders.waiting_for_approval()
    page = plain(operator.get(f"/bulk/?queue={queue}"))
    assert re.search(rf'<a href="[^"]*" aria-current="page">{title}', page)


@pytest.mark.slow
def test_the_result_lists_what_was_done_leads_back_and_offers_the_reverse(operator):
    one, two, done = three()
    address = begin(operator)["Location"]
    bulk_action = work()
    page = plain(operator.get(address))
    done_part = page.split("<h2>Done</h2>")[1]
    assert f'href="/sessions/{one.pk}/"' in done_part
    assert f'href="/sessions/{two.pk}/"' in done_part
    assert f'href="/sessions/{done.pk}/"' not in done_part.split("Refused")[0]
    assert '<a class="button" href="/?queue=all">Back to the list</a>' in page
    reverse = f"queue=all&bulk={bulk_action.pk}&kind=resume"
    assert f'href="/bulk/?{reverse}"'.replace("&", "&amp;") in page
    assert "Resume these 2…" in page
    begin(operator, reverse)
    work()
    assert set(Session.objects.filter(status="queued")) == {one, two}


@pytest.mark.slow
def test_the_result_of_trying_again_says_which_cause_and_how_many(operator):
    first = builders.failed()
    key = first.failure
    second = builders.failed()
    Event.objects.filter(kind="failed").update(reason=first.error)
    assert second.failure == key
    operator.post(
        f"/bulk/?queue=all&failure={key}&kind=resume", {"expected": 2, "reason": "It answers again"}
    )
    bulk_action = work()
    Session.objects.update(failure=None)
    page = plain(operator.get(f"/bulk/actions/{bulk_action.pk}/"))
    assert "<h1> Bulk action: resume 2 sessions </h1>" in page
    assert "<b>Cause:</b> HTTP 401 from the model, Claims desk" in page
    for session in (first, second):
        link = f'<a class="link" href="/sessions/{session.pk}/">{session}</a>'
        assert f'{link} <span class="pill running">Queued</span>' in page
    assert "Pause these 2…" in page


@pytest.mark.slow
def test_a_later_page_of_the_refused_stays_while_the_action_is_under_way(operator):
    three()
    begin(operator)
    bulk_action = BulkAction.objects.get()
    first, second, _ = BulkItem.objects.order_by("pk")
    BulkItem.objects.filter(pk__in=[first.pk, second.pk]).update(
        outcome="refused", why="It has finished.", done_at=timezone.now()
    )
    page = operator.get(f"/bulk/actions/{bulk_action.pk}/?after={first.pk}").content.decode()
    [polled] = re.findall(r'id="progress"\s+hx-get="([^"]+)"', page)
    part = operator.get(unescape(polled), headers={"HX-Request": "true"}).content.decode()
    for text in (page, part):
        assert str(second.session_id) in text
        assert str(first.session_id) not in text
