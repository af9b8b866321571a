"""The long-term memory on the desk: scoped, offered while its history is shown, read by staff, edited and erased."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.test import Client
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall as Call
from pytest_django import DjangoAssertNumQueries

from agentstate.durable.long_term import MOST_ENTRIES
from agentstate.durable.long_term_tools import long_term_tools
from sessions_app import actions
from sessions_app.access.errors import Forbidden, Invalid, Moved, NotFound
from sessions_app.desk.pages.session import consequences, discarded, memory_entries
from sessions_app.models import Checkpoint, Event, MemoryEntry, Message, Session, ToolCall
from sessions_app.runtime.long_term import OrmMemory
from tests import builders, driving, sample_agents
from tests.dying import Died
from tests.test_long_term_memory import Topics

pytestmark = pytest.mark.django_db

MAIL = "She wants e-mails, no calls."


@pytest.fixture
def desk(transactional_db: None) -> Iterator[driving.Desk]:
    """A run opens and commits transactions of its own, also in threads."""
    with driving.desk() as made:
        yield made


def learner(text: str = MAIL) -> Agent:
    calls = [Call("remember", {"text": text}, id="r")]
    return Agent(chat_generator=sample_agents.scripted(calls, "Noted."), tools=long_term_tools())


def asker() -> Agent:
    calls = [Call("recall", {"query": "Does she like calls?"}, id="q")]
    return Agent(chat_generator=sample_agents.scripted(calls, "As she likes."), tools=long_term_tools())


def learned(desk: driving.Desk, customer: str = "Ada", **options: Any) -> Session:
    desk.agent(learner, **options)
    return desk.run(desk.start(customer=customer))


def recalled(desk: driving.Desk, customer: str = "Ada", **options: Any) -> str:
    desk.agent(asker, **options)
    [call] = desk.calls(desk.run(desk.start(customer=customer)))
    return str(call.result)


def rewind_to_start(session: Session) -> Session:
    start = Checkpoint.objects.filter(branch__session=session, kind="start").get()
    return actions.rewind(
        actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="Wrong"
    )


@pytest.mark.slow
def test_what_a_session_learned_a_later_one_of_the_same_customer_recalls(desk: driving.Desk) -> None:
    session = learned(desk)
    entry = MemoryEntry.objects.get()
    assert (entry.agent, entry.customer, entry.text) == (driving.KEY, "Ada", MAIL)
    assert (entry.session, entry.call) == (session, desk.calls(session)[0])
    assert recalled(desk).endswith(f": {MAIL}")


@pytest.mark.slow
def test_nothing_of_another_customer_or_another_agent_is_recalled(desk: driving.Desk) -> None:
    learned(desk)
    assert recalled(desk, customer="Bob") == "Nothing is remembered about this."
    MemoryEntry.objects.update(agent="another")
    assert recalled(desk) == "Nothing is remembered about this."


@pytest.mark.slow
def test_a_session_without_a_customer_remembers_and_recalls_nothing(desk: driving.Desk) -> None:
    why = "Nothing is remembered across sessions here: this session names no customer."
    [call] = desk.calls(learned(desk, customer=""))
    assert call.result == why
    assert not MemoryEntry.objects.exists()
    assert recalled(desk, customer="") == why


def test_a_call_that_runs_again_after_a_kill_stores_nothing_twice(
    desk: driving.Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OrmMemory.remember

    def dies(self: OrmMemory, text: str, *, call: str) -> None:
        real(self, text, call=call)
        raise Died

    desk.agent(learner)
    session = desk.start(customer="Ada")
    with monkeypatch.context() as patch:
        patch.setattr(OrmMemory, "remember", dies)
        with pytest.raises(Died):
            desk.drive(session)
    assert MemoryEntry.objects.count() == 1
    Session.objects.update(lease_expires_at="2020-01-01T00:00:00Z")
    desk.run(session)
    assert MemoryEntry.objects.count() == 1
    assert [(call.status, call.attempt) for call in desk.calls(session)] == [("done", 2)]


@pytest.mark.slow
def test_what_was_remembered_on_a_discarded_branch_is_an_effect_and_is_not_recalled_until_an_undo(
    desk: driving.Desk,
) -> None:
    session = rewind_to_start(learned(desk))
    [item] = discarded.discarded_branches(builders.context_of(session))
    assert item.effects == 1
    assert recalled(desk) == "Nothing is remembered about this."
    actions.undo(actor=builders.SYSTEM, session_id=session.pk, reason="Right after all")
    assert recalled(desk).endswith(f": {MAIL}")


@pytest.mark.slow
def test_a_rewind_says_that_what_was_remembered_is_not_undone(desk: driving.Desk) -> None:
    session = learned(desk)
    start = Checkpoint.objects.filter(branch__session=session, kind="start").get()
    effects = consequences.of_rewind(builders.context_of(session), start).effects
    assert [effect.call.tool for effect in effects] == ["remember"]
    MemoryEntry.objects.all().delete()
    assert consequences.of_rewind(builders.context_of(session), start).effects == []


@pytest.mark.slow
def test_a_fork_recalls_what_its_own_history_shows_though_its_source_has_discarded_it(
    desk: driving.Desk,
) -> None:
    session = learned(desk)
    end = Checkpoint.objects.filter(branch__session=session).latest("position")
    fork = actions.fork(
        actor=builders.SYSTEM, session_id=session.pk, checkpoint_id=end.pk, reason="Try", message="And now?"
    )
    rewind_to_start(session)
    desk.agent(asker)
    desk.run(fork)
    assert str(desk.calls(fork)[-1].result).endswith(f": {MAIL}")


def test_a_repair_of_the_step_that_remembered_discards_nothing(desk: driving.Desk) -> None:
    history = builders.asked(customer="Ada")
    history.reply(calls=[("remember", {"text": MAIL})])
    call = history.finish(history.calls[-1], "Remembered.")
    builders.memory_entry(history.session, MAIL, call)
    question = Message.objects.get(branch=history.branch, role="user")
    session = history.rest("paused")
    actions.replace_message(
        actor=builders.SYSTEM, session_id=session.pk, position=question.position, text="Hi", reason="Wrong"
    )
    copy = ToolCall.objects.get(copy_of=call)
    assert desk.fresh(session).branch_id == copy.branch_id
    [item] = memory_entries.read_page(builders.context_of(session)).entries
    assert not item.discarded


@pytest.mark.slow
def test_with_an_embedder_entries_are_found_by_meaning_also_those_that_a_person_edited(
    desk: driving.Desk,
) -> None:
    session = learned(desk, embedder=Topics)
    entry = MemoryEntry.objects.get()
    assert entry.vector is not None
    actions.edit_entry(
        actor=builders.SYSTEM,
        session_id=session.pk,
        entry_id=entry.pk,
        text="Write mails to her",
        reason="She said so",
    )
    entry.refresh_from_db()
    assert entry.vector is None
    assert entry.embedder == ""
    # It shares no word with the query.
    assert recalled(desk, embedder=Topics).endswith(": Write mails to her")
    entry.refresh_from_db()
    assert entry.vector is not None
    assert entry.embedder.startswith("Topics:")


@pytest.mark.slow
def test_an_erased_entry_is_in_no_table_and_the_audit_trail_does_not_say_what_it_was(
    desk: driving.Desk,
) -> None:
    session = learned(desk)
    entry = MemoryEntry.objects.get()
    actions.erase_entry(
        actor=builders.SYSTEM, session_id=session.pk, entry_id=entry.pk, reason="She asked us to"
    )
    assert not MemoryEntry.objects.exists()
    assert recalled(desk) == "Nothing is remembered about this."
    event = Event.objects.filter(session=session).latest("position")
    assert (event.kind, event.reason, event.data) == ("memory_erased", "She asked us to", {"entry": entry.pk})
    assert event.description == "erased an entry of the long-term memory"


@pytest.mark.slow
def test_an_entry_that_is_erased_before_its_call_runs_again_does_not_come_back(
    desk: driving.Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OrmMemory.remember

    def dies(self: OrmMemory, text: str, *, call: str) -> None:
        real(self, text, call=call)
        raise Died

    desk.agent(learner)
    session = desk.start(customer="Ada")
    with monkeypatch.context() as patch:
        patch.setattr(OrmMemory, "remember", dies)
        with pytest.raises(Died):
            desk.drive(session)
    entry = MemoryEntry.objects.get()
    actions.erase_entry(
        actor=builders.SYSTEM, session_id=session.pk, entry_id=entry.pk, reason="She asked us to"
    )
    Session.objects.update(lease_expires_at="2020-01-01T00:00:00Z")
    desk.run(session)
    assert [(call.status, call.attempt) for call in desk.calls(session)] == [("done", 2)]
    assert not MemoryEntry.objects.exists()


@pytest.mark.slow
def test_deleting_a_session_deletes_what_was_learned_from_it(desk: driving.Desk) -> None:
    session = learned(desk)
    Session.objects.filter(pk=session.pk).update(branch=None)
    Session.objects.get(pk=session.pk).delete()
    assert not MemoryEntry.objects.exists()


def test_editing_and_erasing_are_refused_with_the_reason_and_change_nothing() -> None:
    session = builders.paused()
    entry = builders.memory_entry(session, MAIL)
    other = builders.paused()
    edit: dict[str, Any] = {"session_id": session.pk, "entry_id": entry.pk, "text": "x", "reason": "r"}
    erase = {name: edit[name] for name in ("session_id", "entry_id", "reason")}
    with pytest.raises(Forbidden, match="Editing the long-term memory needs the supervisor role"):
        actions.edit_entry(actor=builders.actor("operator"), **edit)
    with pytest.raises(Forbidden):
        actions.erase_entry(actor=builders.actor("operator"), **erase)
    with pytest.raises(NotFound, match="that was learned from this session"):
        actions.erase_entry(actor=builders.SYSTEM, **erase | {"session_id": other.pk})
    with pytest.raises(Moved):
        actions.edit_entry(actor=builders.SYSTEM, expected_version=session.version - 1, **edit)
    with pytest.raises(Invalid, match="The reason is missing"):
        actions.erase_entry(actor=builders.SYSTEM, **erase | {"reason": " "})
    with pytest.raises(Invalid, match="The memory is missing"):
        actions.edit_entry(actor=builders.SYSTEM, **edit | {"session_id": entry.pk, "text": " "})
    with pytest.raises(Invalid, match="at most 2000 are allowed"):
        actions.edit_entry(actor=builders.SYSTEM, **edit | {"text": "x" * 2001})
    entry.refresh_from_db()
    assert entry.text == MAIL
    assert not Event.objects.filter(kind__startswith="memory").exists()


def _refund(session: Session) -> ToolCall:
    return ToolCall.objects.filter(branch__session=session).latest("position")


@pytest.mark.slow
def test_the_tab_shows_what_is_remembered_about_the_customer_and_where_it_was_learned(
    supervisor: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    history = builders.asked(title="First", customer="Ada")
    call = history.lookup()
    builders.memory_entry(history.session, MAIL, call)
    discarding = builders.done(title="Rewound", customer="Ada")
    builders.memory_entry(discarding, "She moved to Ulm", _refund(discarding))
    rewind_to_start(discarding)
    builders.memory_entry(builders.paused(customer="Bob"), "He is Bob")
    session = builders.paused(title="Second", customer="Ada")
    address = f"/sessions/{session.pk}/memories/"
    supervisor.get(address)
    with django_assert_num_queries(10):
        page = supervisor.get(address).content.decode()
    assert MAIL in page
    assert "He is Bob" not in page
    assert f"/sessions/{history.session.pk}/?at={call.position}#c{call.position}" in page
    assert f"call {call.position}" in page
    assert page.count("Learned in discarded history: agents do not recall it.") == 1
    assert f"/sessions/{history.session.pk}/edit-entry/?entry=" in page
    found = supervisor.get(address, {"q": "MAILS"}).content.decode()
    assert MAIL in found
    assert "She moved to Ulm" not in found
    none = supervisor.get(address, {"q": "nowhere"}).content.decode()
    assert f"Only the newest {MOST_ENTRIES:,} entries are searched." in none


@pytest.mark.slow
def test_an_entry_is_edited_and_erased_from_its_page(supervisor: Client) -> None:
    session = builders.paused(customer="Ada")
    entry = builders.memory_entry(session, MAIL)
    address = f"/sessions/{session.pk}/edit-entry/"
    page = supervisor.get(address, {"entry": entry.pk}).content.decode()
    assert MAIL in page
    fields = {
        "version": session.version,
        "entry": entry.pk,
        "text": "Calls are fine",
        "reason": "She said so",
    }
    # The text to be edited stands in its field, and nowhere else.
    assert page.count(MAIL) == 1
    assert supervisor.post(address, fields)["Location"] == f"/sessions/{session.pk}/memories/"
    entry.refresh_from_db()
    assert entry.text == "Calls are fine"
    assert entry.edited_at is not None
    session.refresh_from_db()
    erase = {"version": session.version, "entry": entry.pk, "reason": "She asked us to"}
    erasing = f"/sessions/{session.pk}/erase-entry/"
    assert "Calls are fine" in supervisor.get(erasing, {"entry": entry.pk}).content.decode()
    assert supervisor.post(erasing, erase)["Location"] == f"/sessions/{session.pk}/memories/"
    assert supervisor.get(address, {"entry": entry.pk}).status_code == 404
    trail = supervisor.get(f"/sessions/{session.pk}/audit/").content.decode()
    assert "Erased an entry of the long-term memory" in trail
    assert "Calls are fine" not in trail


def test_an_entry_that_is_sent_back_as_it_was_shown_is_not_changed(supervisor: Client) -> None:
    session = builders.paused(customer="Ada")
    entry = builders.memory_entry(session, "Prefers mail,\r\nno calls ")
    fields = {
        "version": session.version,
        "entry": entry.pk,
        "text": "Prefers mail,\r\nno calls ",
        "reason": "None",
    }
    answer = supervisor.post(f"/sessions/{session.pk}/edit-entry/", fields)
    assert answer.status_code == 400
    assert "Nothing was changed." in answer.content.decode()
    entry.refresh_from_db()
    assert (entry.text, entry.edited_at) == ("Prefers mail,\r\nno calls ", None)


@pytest.mark.slow
def test_what_is_hidden_in_an_entry_is_shown_searched_and_edited_by_the_same_rules(
    client: Client, supervisor: Client, settings: LazySettings
) -> None:
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    session = builders.paused(customer="Ada")
    entry = builders.memory_entry(session, "Her account is DE123, she says")
    address = f"/sessions/{session.pk}/memories/"
    page = supervisor.get(address).content.decode()
    assert "DE123" not in page
    assert f'value="entry:{entry.pk}"' in page
    assert "Her account is" in supervisor.get(address, {"q": "DE123"}).content.decode()
    shown = supervisor.post(f"/sessions/{session.pk}/reveal/", {"value": f"entry:{entry.pk}"})
    assert "DE123" in shown.content.decode()
    assert Event.objects.latest("pk").data == {"what": f"entry {entry.pk} of the long-term memory"}
    session.refresh_from_db()
    form = supervisor.get(f"/sessions/{session.pk}/edit-entry/", {"entry": entry.pk}).content.decode()
    assert "DE123" not in form
    typed = {
        "version": session.version,
        "entry": entry.pk,
        "text": "Her account is ••••, she says",
        "reason": "r",
    }
    supervisor.post(f"/sessions/{session.pk}/edit-entry/", typed)
    entry.refresh_from_db()
    assert entry.text == "Her account is DE123, she says"
    client.force_login(builders.user("operator"))
    assert "Her account is" not in client.get(address, {"q": "DE123"}).content.decode()
    assert "Her account is" in client.get(address, {"q": "account"}).content.decode()
    assert "edit-entry" not in client.get(address).content.decode()


@pytest.mark.slow
def test_the_memory_is_read_edited_and_erased_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = builders.paused(customer="Ada")
    entry = builders.memory_entry(builders.paused(customer="Ada"), MAIL)
    call_command("agent", "memory", str(session.pk))
    output = capsys.readouterr().out
    assert MAIL in output
    assert str(entry.session_id) in output
    with pytest.raises(CommandError, match="that was learned from this session"):
        call_command("agent", "erase-entry", str(session.pk), str(entry.pk), "--reason", "r")
    call_command(
        "agent", "edit-entry", str(entry.session_id), str(entry.pk), "Calls are fine", "--reason", "r"
    )
    entry.refresh_from_db()
    assert entry.text == "Calls are fine"
    call_command("agent", "erase-entry", str(entry.session_id), str(entry.pk), "--reason", "r")
    assert not MemoryEntry.objects.exists()
