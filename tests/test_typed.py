"""What people type: its limits, which hold in the actions, and the readers of numbers, times and JSON."""

import contextlib
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from agentstate.durable.registry import Registration, agent
from sessions_app import actions
from sessions_app.access import typed
from sessions_app.access.errors import Forbidden, Invalid
from sessions_app.access.roles import Actor
from sessions_app.models import Approval, SavedView, Session
from tests import builders
from tests.builders import SYSTEM
from tests.corpora import malformed
from tests.test_desk_posts import remembering


def start(**fields: Any) -> Session:
    builders.agent()
    return actions.start(actor=SYSTEM, **{"agent": "claims", "message": "Hello", **fields})


@pytest.mark.parametrize("text", malformed.TEXTS.values(), ids=malformed.TEXTS)
def test_every_reader_reads_any_text_or_refuses_it_at_once(text):
    began = time.process_time()
    for reader in (typed.whole_number, typed.read_time, typed.read_number, typed.read_json):
        with contextlib.suppress(Invalid):
            reader(text)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "text, number",
    [("0", 0), ("17", 17), ("9223372036854775807", 2**63 - 1), ("007", 7)]
    + [(text, None) for text in ("", "-1", "1.0", "1e3", " 1", "1_0", "\u0661", "\u00b2", str(2**63))],
)
def test_a_key_is_a_64_bit_number_in_decimal_digits(text, number):
    assert typed.whole_number(text) == number


@pytest.mark.parametrize(
    "text", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", "2026-01-01T00:00:00", "x", ""]
)
def test_a_time_that_has_no_date_in_utc_is_not_one(text):
    assert typed.read_time(text) is None


def test_a_time_is_read_in_utc():
    assert typed.read_time("2026-01-01T01:00:00+01:00") == datetime(2026, 1, 1, tzinfo=UTC)


def test_json_may_be_100_deep_and_256_kb_long():
    assert typed.read_json("[" * 100 + "]" * 100)
    assert typed.read_json('"' + "[" * 200 + '"') == "[" * 200
    assert typed.read_json(json.dumps("w" * (256 * 1024 - 2)))
    with pytest.raises(Invalid, match="nested too deeply: at most 100 levels"):
        typed.read_json("[" * 101 + "]" * 101)
    with pytest.raises(Invalid, match="too long: it has 257 KB, and at most 256 KB are allowed"):
        typed.read_json(json.dumps("w" * (256 * 1024 - 1)))


@pytest.mark.parametrize(
    "size, said", [(1, "101"), (101, "101"), (1024, "101"), (1025, "102"), (10**6, "1,077")]
)
def test_a_text_that_is_too_long_is_said_to_be_longer_than_what_fits(size, said):
    with pytest.raises(Invalid, match=f"it has {said} KB, and at most 100 KB are allowed"):
        typed.check_text("The message", "x" * (typed.MESSAGE_BYTES + size), most_bytes=typed.MESSAGE_BYTES)


def test_a_number_of_4000_digits_is_refused_as_json_and_alone():
    for reader in (typed.read_json, typed.read_number):
        with pytest.raises(Invalid):
            reader(malformed.LONG_NUMBER)
    assert typed.read_number("500") == 500
    assert isinstance(typed.read_number("500"), int)


@pytest.mark.parametrize("text, number", [(" 500\n", 500), ("-1", -1), ("0.50", 0.5), ("1e3", 1000.0)])
def test_a_number_is_read_as_json_writes_it(text, number):
    assert typed.read_number(text) == number


@pytest.mark.parametrize(
    "text", ["1_0", "\uff11\uff12", "\u0661", "1_000.5", "+5", "05", ".5", "5.", "0x10", "nan", ""]
)
def test_what_only_python_reads_as_a_number_is_refused(text):
    with pytest.raises(Invalid, match="Enter a number, not"):
        typed.read_number(text)


# The limits, in the actions


@pytest.mark.django_db
def test_a_session_has_at_most_20_tags_of_50_characters():
    assert start(tags=[f"{n} {'t' * 45}" for n in range(20)]).tags.count() == 20
    with pytest.raises(Invalid, match="There are 21 tags, and a session has at most 20"):
        start(tags=[str(n) for n in range(21)])
    with pytest.raises(Invalid, match="A tag is 51 characters long; at most 50 are allowed"):
        start(tags=["t" * 51])
    assert Session.objects.count() == 1


@pytest.mark.django_db
def test_a_message_has_at_most_100_kb():
    fits, long = "ü" * 50 * 1024, "ü" * 50 * 1024 + "x"
    session = start(message=fits)
    actions.send_message(actor=SYSTEM, session_id=session.pk, text=fits)
    for action in (
        lambda: start(message=long),
        lambda: actions.send_message(actor=SYSTEM, session_id=session.pk, text=long),
        lambda: actions.note(actor=SYSTEM, session_id=session.pk, text="x" * 2001),
        lambda: actions.cancel(actor=SYSTEM, session_id=session.pk, reason=long),
    ):
        with pytest.raises(Invalid, match=r"at most (100 KB|2000) are allowed"):
            action()


@pytest.mark.django_db
def test_a_reason_has_at_most_2000_characters_wherever_it_is_given():
    fits, long = "x" * 2000, "x" * 2001
    session, waiting = builders.paused(), builders.waiting_for_approval()
    call = Approval.objects.get(session=waiting).call_id
    for action in (
        lambda reason: actions.resume(actor=SYSTEM, session_id=session.pk, reason=reason),
        lambda reason: actions.approve(actor=SYSTEM, session_id=waiting.pk, call_id=call, reason=reason),
    ):
        with pytest.raises(Invalid, match="The reason is 2001 characters long; at most 2000 are allowed"):
            action(long)
        action(fits)
    with pytest.raises(CommandError, match="The reason is 2001 characters long"):
        call_command("agent", "cancel", str(session.pk), "--reason", long)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value, problem",
    [
        (malformed.nested(101), "nested too deeply"),
        (malformed.nested(100_000), "nested too deeply"),
        ("w" * 256 * 1024, "at most 256 KB are allowed"),
        (int("7" * 4000), "more than 300 digits"),
        (float("nan"), "plain JSON values only"),
        ("a\x00b", "NUL"),
        (["\ud800"], "not valid Unicode"),
        ({"a": object()}, "plain JSON values only"),
    ],
    ids=["101 deep", "100,000 deep", "256 KB", "4,000 digits", "NaN", "NUL", "a surrogate", "an object"],
)
def test_json_beyond_the_limits_is_refused_wherever_it_is_given(value, problem):
    session, waiting = remembering(), builders.waiting_for_approval()
    approval = Approval.objects.get(session=waiting)
    for action in (
        lambda: start(state={"a": value}),
        lambda: start(generation_kwargs={"a": value}),
        lambda: actions.edit_state(
            actor=SYSTEM, session_id=session.pk, values={"limit": value}, reason="Rain"
        ),
        lambda: actions.approve(
            actor=SYSTEM, session_id=waiting.pk, call_id=approval.call_id, edited={"claim": value}
        ),
    ):
        with pytest.raises(Invalid, match=problem):
            action()


@pytest.mark.slow
@pytest.mark.django_db
def test_the_command_line_has_the_same_limits():
    builders.agent()
    for state in (malformed.DEEP_JSON, f'{{"a": {malformed.LONG_NUMBER}}}', "[]", "{"):
        with pytest.raises(CommandError):
            call_command("agent", "start", "claims", "Hello", "--state", state)
    with pytest.raises(CommandError, match="at most 100 KB are allowed"):
        call_command("agent", "start", "claims", "w" * 102_401)
    with pytest.raises(CommandError, match="at most 20"):
        call_command("agent", "start", "claims", "Hello", *(f"--tag={n}" for n in range(21)))
    assert not Session.objects.exists()


@pytest.mark.slow
@pytest.mark.django_db
def test_a_person_has_at_most_50_views_and_may_still_replace_one():
    actor, other = builders.actor(), builders.actor()
    for n in range(50):
        actions.save_view(actor=actor, name=f"{n}", query="queue=all")
    with pytest.raises(Invalid, match="You have 50 views"):
        actions.save_view(actor=actor, name="One more", query="queue=all")
    actions.save_view(actor=actor, name="7", query="queue=done", replace=True)
    actions.save_view(actor=other, name="7", query="queue=done")
    assert SavedView.objects.filter(owner=actor.user).count() == 50


@pytest.mark.django_db
def test_sharing_a_view_needs_a_permission_and_the_form_says_so(client):
    viewer = builders.user("viewer", "vera")
    actor = Actor.of(viewer)
    for shared in (False, True):
        actions.save_view(actor=builders.actor(), name="Roofs", query="queue=all", shared=shared)
    actions.save_view(actor=actor, name="Mine", query="queue=all")
    with pytest.raises(Forbidden, match="Sharing a view needs the operator or supervisor role"):
        actions.save_view(actor=actor, name="Ours", query="queue=all", shared=True)
    client.force_login(viewer)
    page = client.get("/views/save/?queue=all").content.decode()
    assert 'name="shared" disabled' in page
    assert "Share with everyone. Sharing a view needs the operator or supervisor role." in page
    answer = client.post("/views/save/", {"name": "Ours", "query": "queue=all", "shared": "on"})
    assert answer.status_code == 403
    assert 'value="Ours"' in answer.content.decode()
    assert not SavedView.objects.filter(name="Ours").exists()


@pytest.mark.parametrize("key", ["a/b", "", "/", "a b", "ä", "a\x00", ".a", "a" * 101, "a\n"])
def test_an_agent_key_that_could_not_stand_in_an_address_is_refused_at_registration(key):
    with pytest.raises(ValueError, match="is invalid"):
        agent(key)(lambda: None)
    with pytest.raises(ValueError, match="is invalid"):
        Registration(key=key, title="x", factory=lambda: None)


@pytest.mark.parametrize(
    "text, what",
    [
        ("two rooms", "a value is missing at line 1, column 1"),
        ("1 2", "there is more text after the value at line 1, column 3"),
        ("{a: 1}", "a name in double quotes is missing at line 1, column 2"),
        ("[1,\n2", "a comma or a closing bracket is missing at line 2, column 2"),
    ],
)
def test_what_is_wrong_with_a_text_that_is_not_json_is_said_in_words(text: str, what: str) -> None:
    with pytest.raises(Invalid, match=f"^This is not JSON: {what}. Put texts in double quotes.$"):
        typed.read_json(text)
