"""A reply on an open page while the model writes it: shown soon, masked, and never in place of what is committed."""

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from sessions_app import actions
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.session.partial_reply import shown_part
from sessions_app.models import Session
from sessions_app.runtime import partial_replies as publishing
from sessions_app.runtime.leases import Claim
from sessions_app.watching import buffer, open_pages, partial_replies
from sessions_app.watching.partial_replies import Written
from tests import builders, driving
from tests.builders import SYSTEM
from tests.corpora import secrets
from tests.driving import Desk
from tests.pages import text_at, without_random
from tests.slow_models import SlowAwaitedModel, SlowModel, talking
from tests.test_desk_live import ask, watched
from tools.services import wait_for

CARD = "4111 1111 1111 1111"


@pytest.fixture(autouse=True)
def _empty_buffer() -> Iterator[None]:
    buffer._in_memory.cache_clear()
    yield
    buffer._in_memory.cache_clear()


@pytest.fixture
def desk(db: None) -> Iterator[Desk]:
    with driving.desk() as desk:
        yield desk


def holds(session: Session, text: str) -> Callable[[], bool]:
    return lambda: partial_replies.read(session.pk).text == text


def page_of(client: Client, session: Session, tab: str = "") -> str:
    return text_at(client, f"/sessions/{session.pk}/{tab}")


def writing(session: Session, text: str, **fields: Any) -> None:
    model_calls = session.totals.get("model_calls", 0)
    written = Written("1.2.1", session.epoch, model_calls, text)
    partial_replies.write(session.pk, replace(written, **fields))


@pytest.mark.slow
@pytest.mark.parametrize("model", [SlowModel, SlowAwaitedModel])
def test_an_open_page_shows_the_reply_while_it_is_written_and_then_the_one_that_is_stored(
    desk: Desk, operator: Client, model: type
) -> None:
    seen: list[tuple[int, bool, bool]] = []

    def between(number: int) -> None:
        text = "".join(slow.chunks[:number])
        wait_for(holds(session, text), f"the text {text!r}")
        if model is SlowModel:  # in the thread that has the database of this test
            timeline, conversation = page_of(operator, session), page_of(operator, session, "conversation/")
            seen.append((number, text in timeline, text in conversation))

    slow = model(["Your windscreen ", "is covered."], between)
    desk.agent(lambda: talking(slow), stream=True)
    session = desk.start("Is it covered?")
    page_of(operator, session)
    desk.run(session)
    assert seen == ([(1, True, True), (2, True, True)] if model is SlowModel else [])
    text = page_of(operator, session)
    assert "Your windscreen is covered." in text
    assert "Reply being written" not in text
    wait_for(lambda: not partial_replies.version_of(session.pk), "the end of what was written")


def test_nothing_is_written_while_nobody_has_a_page_of_the_session_open(desk: Desk) -> None:
    looked: list[int] = []

    def note(number: int) -> None:
        looked.append(number)

    desk.agent(lambda: talking(SlowModel(["It ", "is."], note)), stream=True)
    session = desk.start("Is it covered?")
    open_pages.opened(uuid4(), 1)
    wrote: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_replies, "write", lambda *args: wrote.append(args))
        desk.run(session)
    assert (looked, wrote) == ([1, 2], [])


def test_many_chunks_are_written_at_most_four_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    texts: list[str] = []
    claim = Claim(uuid4(), epoch=3, worker="w1", attempt=1, lease_end=timezone.now(), agent="a")
    open_pages.opened(claim.session_id, 1)
    reply = publishing.ShownReply(claim, 2)

    def wait(seconds: float, *, longer_than: int | None = None) -> None:
        """Instead of waiting, the model writes ten more chunks."""
        waits.append(seconds)
        texts.append(partial_replies.read(claim.session_id).text)
        for _ in range(10):
            reply.add("x")
        if len(texts) == 6:
            reply.end()

    monkeypatch.setattr(reply, "_wait", wait)
    reply._thread = threading.current_thread()  # this one writes
    reply.add("x")
    reply._write_until_end()
    assert waits == [0.25, 9.75] * 3
    assert [len(text) for text in texts] == [1, 1, 21, 21, 41, 41]
    assert partial_replies.version_of(claim.session_id) == ""


def test_a_buffer_that_fails_fails_no_step(desk: Desk, operator: Client, caplog: Any) -> None:
    class Broken(buffer.MemoryBuffer):
        def marked(self, *keys: str) -> list[list[str]]:
            raise RuntimeError("broken")

    desk.agent(lambda: talking(SlowModel(["It ", "is."])), stream=True)
    session = desk.start("Is it covered?")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_pages, "buffer", Broken)
        session = desk.run(session)
        wait_for(lambda: "could not be shown" in caplog.text, "the line in the log")
    assert session.final_answer == "It is."


def no_buffer() -> buffer.Buffer:
    raise AssertionError("The server was asked.")


def test_where_conversations_are_kept_off_redis_replies_are_too(settings: Any) -> None:
    claim = Claim(uuid4(), epoch=3, worker="w1", attempt=1, lease_end=timezone.now(), agent="a")
    settings.REDIS_URL, settings.AGENTSTATE_MIRROR = "redis://127.0.0.1:1/0", False
    assert publishing.shown_replies(claim) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_replies, "buffer", no_buffer)
        assert partial_replies.version_of(claim.session_id) == ""
        assert partial_replies.read(claim.session_id) == Written()
    settings.REDIS_URL = ""
    assert publishing.shown_replies(claim) is not None


@pytest.mark.parametrize("tab", ["", "conversation/"])
def test_a_poll_brings_only_the_reply_and_then_204(
    operator: Client, tab: str, django_assert_num_queries: Any
) -> None:
    session = builders.looked_up().rest("running")
    text = page_of(operator, session, tab)
    element = re.search(r'id="(?:sentinel|talk)"\s+hx-get="([^"]+)"[^>]*hx-include="#reply-version', text)
    assert element is not None
    address = element[1].replace("&amp;", "&")
    with django_assert_num_queries(1):
        assert ask(operator, f"{address}&reply=").status_code == 204
    writing(session, "Your windscreen is")
    with django_assert_num_queries(3):
        answer = ask(operator, f"{address}&reply=")
    assert (answer["HX-Retarget"], answer["HX-Reswap"]) == ("#reply", "outerHTML")
    part = answer.content.decode()
    assert "Your windscreen is" in part
    assert 'value="1.2.1"' in part
    assert "sentinel" not in part
    with django_assert_num_queries(1):
        assert ask(operator, f"{address}&reply=1.2.1").status_code == 204


@pytest.mark.slow
def test_what_is_committed_takes_the_place_of_what_was_being_written(operator: Client) -> None:
    history = builders.looked_up()
    session = history.rest("running")
    writing(session, "Your windscreen is")
    address = watched(operator, session)
    history.reply("Your windscreen is covered.")
    history.add(model_calls=1)
    text = ask(operator, f"{address}&reply=1.2.1").content.decode()
    assert "Your windscreen is covered." in text
    assert "Reply being written" not in text


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"epoch": 99}, {"model_calls": 99}])
def test_what_another_run_or_call_has_left_is_not_shown(operator: Client, other: dict[str, int]) -> None:
    session = builders.looked_up().rest("running")
    writing(session, "Left behind", **other)
    assert "Left behind" not in page_of(operator, session)


@pytest.mark.slow
def test_the_text_of_a_lost_run_disappears_when_the_session_is_queued_again(operator: Client) -> None:
    session = builders.lost()
    writing(session, "Left behind")
    assert "Left behind" in page_of(operator, session)
    actions.release(actor=SYSTEM, session_id=session.pk, reason="It hangs")
    assert "Left behind" not in page_of(operator, session)


@pytest.mark.slow
def test_who_has_lost_the_permission_is_not_shown_the_reply(operator: Client) -> None:
    session = builders.looked_up().rest("running")
    address = watched(operator, session)
    writing(session, "Your windscreen is")
    User.objects.get(username="anna").groups.clear()
    answer = ask(operator, f"{address}&reply=")
    assert answer.status_code == 403
    assert "Your windscreen is" not in answer.content.decode()


def masking(*patterns: str, keys: tuple[str, ...] = ()) -> Mask:
    return Mask.of(keys, patterns)


CARDS = masking(r"\d{4}( \d{4}){3}")


def test_a_hidden_value_is_never_shown_however_it_is_cut_into_chunks() -> None:
    text = f"We have your card. Its number is {CARD}. Please check it. Thank you.\n\nGoodbye."
    for end in range(len(text) + 1):
        shown, _ = shown_part(text[:end], CARDS)
        assert "4111" not in shown
        assert "1111" not in shown
    assert shown_part(text, CARDS) == (
        "We have your card. Its number is ••••. Please check it. Thank you.",
        8,
    )


@pytest.mark.parametrize(
    "text, shown",
    [
        ("It is cov", ""),
        ("It is covered. And the mirr", "It is covered."),
        ("It is covered.\n\nThe mirr", "It is covered."),
        ('He wrote "Yes. And no. ', ""),
        ('Done. {"value": "x. y. ', "Done."),
        ("-----BEGIN KEY-----\nabc. def\n", ""),
    ],
)
def test_what_may_yet_be_hidden_is_held_back_to_the_end_of_a_sentence_of_prose(text: str, shown: str) -> None:
    assert shown_part(text, CARDS)[0] == shown


def test_a_value_that_stands_before_the_name_that_hides_it_is_not_shown_meanwhile() -> None:
    mask = masking(keys=("password",))
    text = 'Here it is. {"value": "hunter2", "name": "password"} Anything else? Ask me.'
    for end in range(len(text) + 1):
        assert "hunter2" not in shown_part(text[:end], mask)[0]


def test_where_nothing_is_masked_every_character_is_shown() -> None:
    assert shown_part("It is cov", Mask.none()) == ("It is cov", 0)


def test_a_page_says_how_much_it_holds_back(operator: Client, settings: Any) -> None:
    settings.AGENTSTATE_MASK_PATTERNS = [r"\d{4}( \d{4}){3}"]
    session = builders.looked_up().rest("running")
    writing(session, f"It is covered. Your card {CARD[:9]}")
    text = page_of(operator, session)
    assert "It is covered." in text
    assert "4111" not in without_random(text)
    assert re.search(r"19 more characters written,\s+shown at the end of a sentence", text)


@pytest.mark.parametrize("between", [" ", "\n", "\n\n"])
def test_no_beginning_of_a_reply_shows_a_secret_or_a_part_of_one(between: str) -> None:
    mask = Mask.of(secrets.KEYS, secrets.PATTERNS)
    text = between.join(["Here it is.", *secrets.TEXT.split("\n"), "Thank you. Goodbye."])
    parts = [value[:6] for value in secrets.VALUES]
    for end in range(len(text) + 1):
        shown, held_back = shown_part(text[:end], mask)
        assert [part for part in parts if part in shown] == []
        assert held_back <= end
