"""The admin: finds stuck sessions, edits nothing, and acts only through the actions, with a reason."""

import re
from datetime import UTC, datetime

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sessions_app.admin.base import UncountedPaginator
from sessions_app.models import Event, Session
from tests import builders

pytestmark = pytest.mark.django_db
LIST = "/admin/sessions_app/session/"


@pytest.fixture
def states() -> dict[str, Session]:
    return {name: build(title=name) for name, build in builders.STATES.items()}


def test_operators_have_no_business_there(client):
    client.force_login(builders.user("operator"))
    assert client.get(LIST).status_code == 302
    client.force_login(builders.user("supervisor"))
    assert client.get(LIST).status_code == 200


@pytest.mark.slow
def test_every_table_can_be_looked_at_and_none_can_be_edited(supervisor, states):
    ours = [
        model for model in apps.get_app_config("sessions_app").get_models() if admin.site.is_registered(model)
    ]
    assert Session in ours
    for model in ours:
        name = model._meta.model_name
        assert supervisor.get(f"/admin/sessions_app/{name}/").status_code == 200
        assert supervisor.get(f"/admin/sessions_app/{name}/add/").status_code == 403
        row = model._default_manager.first()
        if row is None:
            continue
        assert supervisor.get(f"/admin/sessions_app/{name}/{row.pk}/change/").status_code == 200
        assert supervisor.post(f"/admin/sessions_app/{name}/{row.pk}/change/", {}).status_code == 403
        assert (
            supervisor.post(f"/admin/sessions_app/{name}/{row.pk}/delete/", {"post": "yes"}).status_code
            == 403
        )


@pytest.mark.slow
def test_a_session_is_shown_with_its_history_and_the_way_to_the_desk(supervisor, states):
    session = states["waiting_for_approval"]
    text = supervisor.get(f"{LIST}{session.pk}/change/").content.decode()
    assert f'href="/sessions/{session.pk}/"' in text
    assert "issue_refund" in text
    assert "Waiting for approval" in text


def test_times_are_those_of_a_clock_with_24_hours_and_say_their_zone(supervisor):
    session = builders.done()
    at = datetime(2025, 5, 3, 15, 4, 5, tzinfo=UTC)
    Session.objects.filter(pk=session.pk).update(updated_at=at, created_at=at)
    for address in (LIST, f"{LIST}{session.pk}/change/"):
        text = supervisor.get(address).content.decode()
        assert "03 May 2025, 15:04:05 UTC" in text
        assert re.search(r"[ap]\.m\.|midnight|noon", text) is None


@pytest.mark.slow
def test_stuck_sessions_are_found(supervisor, states):
    text = supervisor.get(f"{LIST}?queue=stuck").content.decode()
    assert f"{states['lost'].pk}/change/" in text
    assert f"{states['done'].pk}/change/" not in text


@pytest.mark.slow
def test_acting_asks_for_a_reason_first_and_then_does_it_through_the_action(supervisor, states):
    chosen = {
        "action": "resume",
        "_selected_action": [str(states["retries_used_up"].pk), str(states["done"].pk)],
    }
    text = supervisor.post(LIST, chosen).content.decode()
    assert 'name="reason"' in text
    assert Session.objects.get(title="retries_used_up").status == "waiting"
    answer = supervisor.post(LIST, chosen | {"reason": "The provider is back"}, follow=True)
    assert Session.objects.get(title="retries_used_up").status == "queued"
    assert Event.objects.filter(kind="resumed", actor_name="sue", reason="The provider is back").count() == 1
    # The one that could not be resumed says why.
    said = [str(message) for message in answer.context["messages"]]
    assert said == ["done: It has finished. Send it a message to continue.", "Resume: done for 1."]


@pytest.mark.slow
def test_lists_are_as_cheap_for_many_as_for_few(supervisor):
    def queries_of(address: str, rows: int) -> int:
        with CaptureQueriesContext(connection) as queries:
            page = supervisor.get(address).content.decode()
        assert page.count('/change/">') == rows
        return len(queries)

    lists = (LIST, "/admin/sessions_app/toolcall/")
    builders.asked().lookup("POL-1")
    few = [queries_of(address, 1) for address in lists]
    for number in range(30):
        builders.asked().lookup(f"POL-{number}")
    assert [queries_of(address, 31) for address in lists] == few
    assert max(few) <= 12


@pytest.mark.slow
def test_the_page_of_a_session_is_as_cheap_with_many_requests_as_with_one(
    supervisor, django_assert_max_num_queries
):
    history = builders.asked()
    history.reply(calls=[("issue_refund", {"claim": f"CLM-{number}", "amount": 120}) for number in range(20)])
    for call in history.calls:
        history.ask(call)
    session = history.rest("waiting", waiting_for="approval", why="Waits")
    with django_assert_max_num_queries(12):
        page = supervisor.get(f"{LIST}{session.pk}/change/").content.decode()
    assert page.count("issue_refund") >= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "query, expected",
    [
        ("waiting_for=approval", {"waiting_for_approval"}),
        ("waiting_for=doubt", {"in_doubt"}),
        ("phase=error", {"failed"}),
    ],
)
def test_the_list_is_filtered_by_phase_and_by_what_a_session_waits_for(supervisor, states, query, expected):
    listed = supervisor.get(f"{LIST}?{query}").context["cl"].result_list
    name, _, value = query.partition("=")
    wanted = set(Session.objects.filter(**{name: value}).values_list("title", flat=True))
    assert {session.title for session in listed} == wanted
    assert expected <= wanted


@pytest.mark.slow
def test_sessions_are_released_and_requeued_with_a_reason(supervisor, states):
    for action, names in (("release", ["running"]), ("requeue", ["lost", "retries_used_up"])):
        chosen = {"action": action, "_selected_action": [str(states[name].pk) for name in names]}
        assert 'name="reason"' in supervisor.post(LIST, chosen).content.decode()
        supervisor.post(LIST, chosen | {"reason": "The worker hangs"})
        for name in names:
            assert Session.objects.get(title=name).status == "queued"
    assert Event.objects.filter(kind="released", reason="The worker hangs").count() == 2


@pytest.mark.slow
def test_the_repairs_of_a_stuck_session_are_one_click_away(supervisor, states):
    doubt = states["in_doubt"]
    text = supervisor.get(f"{LIST}{doubt.pk}/change/").content.decode()
    assert f'href="/sessions/{doubt.pk}/memory/"' in text
    assert f'href="/sessions/{doubt.pk}/decide/?call=' in text
    assert f'href="/sessions/{doubt.pk}/release/"' not in text
    running = states["running"]
    text = supervisor.get(f"{LIST}{running.pk}/change/").content.decode()
    assert f'href="/sessions/{running.pk}/release/"' in text
    # What cannot be done while a worker runs it is not offered.
    assert f'href="/sessions/{running.pk}/memory/"' not in text


@pytest.mark.slow
def test_the_page_that_asks_for_a_reason_counts_its_sessions_and_has_a_way_back(supervisor, states):
    for names, heading in ((["paused"], "Resume 1 session"), (["paused", "failed"], "Resume 2 sessions")):
        chosen = {"action": "resume", "_selected_action": [str(states[name].pk) for name in names]}
        text = supervisor.post(LIST, chosen).content.decode()
        assert f"<h1>{heading}</h1>" in text
        assert f'<a class="closelink" href="{LIST}">Cancel</a>' in text


@pytest.mark.slow
def test_no_value_of_the_conversation_is_shown_even_where_nothing_is_configured_as_hidden(supervisor):
    history = builders.asked(title="About rain", customer="Ada Lovelace")
    history.reply("It is wet", [("send_letter", {"text": "Dear Ada"})])
    history.finish(history.calls[-1], {"receipt": "R-55"})
    history.event("noted", reason="She called", note="twice")
    history.rest(
        "waiting", waiting_for="retries", why="The model hangs", error="HTTP 500", final_answer="Yes"
    )
    values = ["Ada", "It is wet", "R-55", "windscreen", "She called", "twice", "hangs", "HTTP 500", "Covered"]
    for model in apps.get_app_config("sessions_app").get_models():
        if not admin.site.is_registered(model):
            continue
        here = f"/admin/sessions_app/{model._meta.model_name}/"
        rows = model._default_manager.values_list("pk", flat=True)
        for address in [here, *(f"{here}{pk}/change/" for pk in rows)]:
            answer = supervisor.get(address)
            assert answer.status_code == 200, address
            text = answer.content.decode()
            assert [value for value in values if value in text] == [], address


@pytest.mark.slow
def test_a_hidden_part_of_a_title_is_hidden_here_too(supervisor, settings):
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    session = builders.done(title="About DE89")
    chosen = {"action": "resume", "_selected_action": [str(session.pk)]}
    for answer in (
        supervisor.get(LIST),
        supervisor.get(f"{LIST}{session.pk}/change/"),
        supervisor.get(f"{LIST}{session.pk}/history/"),
        supervisor.get("/admin/sessions_app/event/"),
        supervisor.post(LIST, chosen),
        supervisor.post(LIST, chosen | {"reason": "Why not"}, follow=True),
    ):
        assert answer.status_code == 200
        assert "About ••••" in answer.content.decode()
        assert "DE89" not in answer.content.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, field", [("event", "session"), ("sessiontag", "session"), ("approval", "call")]
)
def test_no_row_is_named_by_the_autocompletion_of_the_admin(supervisor, states, model, field):
    names = {"app_label": "sessions_app", "model_name": model, "field_name": field, "term": ""}
    assert supervisor.get("/admin/autocomplete/", names).status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    "table, query",
    [
        ("session", "title__startswith=Ab"),
        ("session", "customer=Ada"),
        ("session", "error__contains=x"),
        ("session", "branch__messages__text__contains=x"),
        ("toolcall", "arguments__contains=x"),
        ("message", "text__startswith=x"),
        ("event", "reason=x"),
    ],
)
def test_no_list_can_be_filtered_by_a_value_of_the_conversation(supervisor, states, table, query):
    assert supervisor.get(f"/admin/sessions_app/{table}/?{query}").status_code == 400


def test_the_search_of_the_admin_does_not_look_into_titles_and_customers(supervisor):
    session = builders.done(title="About rain", customer="Ada")
    for text, number in (("rain", 0), ("Ada", 0), (str(session.pk)[:8], 1)):
        page = supervisor.get(LIST, {"q": text}).content.decode()
        assert page.count(f"{session.pk}/change/") == number, text


@pytest.mark.slow
def test_what_can_be_done_on_the_desk_is_one_click_away(supervisor, states):
    text = supervisor.get(f"{LIST}{states['retries_used_up'].pk}/change/").content.decode()
    for action in ("resume", "rewind", "fork", "cancel", "step"):
        assert f'href="/sessions/{states["retries_used_up"].pk}/{action}/"' in text, action
    assert f'href="/sessions/{states["done"].pk}/pause/"' not in text


def test_the_admin_has_the_desks_name_and_colours_and_a_way_back(client):
    client.force_login(builders.user("supervisor"))
    page = client.get("/admin/").content.decode()
    assert '<a href="/">Back to the desk</a>' in page
    assert "AgentState admin" in page
    assert "Django" not in page
    assert 'href="/static/desk/admin.css"' in page
    assert 'rel="icon"' in page
    assert 'rel="icon"' in client.get("/no-such-page/").content.decode()


def test_each_value_of_a_list_names_its_column_as_a_phone_shows_it(supervisor):
    builders.done(title="<b>Roof</b>")
    page = supervisor.get(LIST).content.decode()
    row = page[page.index("<tbody>") : page.index("</tbody>")]
    assert re.findall(r'<td data-label="([^"]*)"', row) == [
        *("State", "Agent", "Worker", "Attempt", "Updated at", "Desk"),
    ]
    assert "&lt;b&gt;Roof&lt;/b&gt;" in row
    assert "<b>" not in row


@pytest.mark.slow
def test_the_admin_says_what_was_done_as_the_desk_does(client):
    client.force_login(builders.user("supervisor"))
    session = builders.retries_used_up()
    for address in ("/admin/sessions_app/event/", f"/admin/sessions_app/session/{session.pk}/change/"):
        page = client.get(address).content.decode()
        assert "Gave up after repeated attempts" in page
        assert "gave_up" not in page


def test_the_admin_finds_a_session_by_the_beginning_of_its_id_with_and_without_dashes(supervisor):
    session, other = builders.done(), builders.failed()
    beginning = str(session.pk)
    for text in (beginning, beginning.replace("-", ""), beginning[:30].upper()):
        page = supervisor.get(LIST, {"q": text}).content.decode()
        assert f"{session.pk}/change/" in page
        assert f"{other.pk}/change/" not in page


@pytest.mark.slow
def test_a_list_of_the_admin_is_counted_by_the_database_and_up_to_a_limit(supervisor, monkeypatch):
    monkeypatch.setattr(UncountedPaginator, "MOST", 2)
    for _ in range(3):
        builders.done()
    with CaptureQueriesContext(connection) as queries:
        page = supervisor.get(LIST).content.decode()
    assert "2 sessions" in page
    counts = [query["sql"] for query in queries if query["sql"].startswith("SELECT COUNT(*)")]
    assert any("LIMIT 2)" in sql for sql in counts)


def test_the_list_of_sessions_is_sorted_by_what_has_an_index_only(supervisor, states):
    page = supervisor.get("/admin/sessions_app/session/").content.decode()
    assert "column-agent" in page
    assert re.findall(r'class="sort(?:able|ed \w+) column-(\w+)', page) == ["updated_at"]


def test_more_sessions_than_a_form_can_name_are_refused_before_a_reason_is_asked_for(supervisor, monkeypatch):
    monkeypatch.setattr("sessions_app.admin.sessions.MOST_AT_ONCE", 2)
    paused = [builders.paused() for _ in range(3)]
    chosen = {"action": "resume", "select_across": "1", "_selected_action": [str(paused[0].pk)]}
    answer = supervisor.post(LIST, chosen, follow=True)
    assert 'name="reason"' not in answer.content.decode()
    assert [str(message) for message in answer.context["messages"]] == [
        "Resume: at most 2 sessions can be selected here, so none was changed. The list of sessions on the desk has "
        "bulk actions for any number."
    ]
    chosen = {"action": "resume", "_selected_action": [str(session.pk) for session in paused[:2]]}
    assert 'name="reason"' in supervisor.post(LIST, chosen).content.decode()


def test_django_takes_the_form_of_the_most_sessions_that_can_be_selected(settings):
    from sessions_app.admin.sessions import MOST_AT_ONCE

    assert MOST_AT_ONCE + 50 <= settings.DATA_UPLOAD_MAX_NUMBER_FIELDS


@pytest.mark.parametrize("letters, status", [(1_990, 302), (1_991, 200)])
def test_a_line_end_of_a_reason_counts_once_here_too(supervisor, letters, status):
    session = builders.paused()
    reason = "\r\n".join(["a" * (letters - 10)] + ["b"] * 10)
    chosen = {"action": "resume", "_selected_action": [str(session.pk)], "reason": reason}
    assert len(reason.replace("\r\n", "\n")) == letters + 10
    assert supervisor.post(LIST, chosen).status_code == status
