"""A model that fails: what passes by itself is tried again, later and later; the rest is told at once."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage

from agentstate import ToolPolicy
from agentstate.durable.failures import MAX_DELAY, MAX_RETRY_AFTER, beginning, is_transient, retry_delay
from sessions_app import actions
from sessions_app.models import Phase, Session, Status, WaitingFor
from tests import driving, sample_agents
from tests.builders import SYSTEM
from tests.driving import Desk
from tests.dying import Died

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(db: None) -> Iterator[Desk]:
    with driving.desk(AGENTSTATE_RETRY_SECONDS=2, AGENTSTATE_MAX_ATTEMPTS=3) as desk:
        yield desk


class Answer:
    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers


class APIStatusError(Exception):
    """As OpenAI's and Anthropic's clients raise it."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"Error code: {status}")
        self.status_code = status
        self.response = Answer(headers or {})


class HTTPStatusError(Exception):
    """As httpx and requests raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"Server error '{status}'")
        self.response = type("Response", (), {"status_code": status, "headers": {}})()


class APIConnectionError(Exception):
    pass


class ReadTimeout(Exception):
    pass


class ClientError(Exception):
    """As botocore raises it: its response is a dict."""

    def __init__(self, code: str, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"An error occurred ({code}) when calling the Converse operation")
        metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers or {}}
        self.response = {"Error": {"Code": code}, "ResponseMetadata": metadata}


class APIError(Exception):
    """As Google's client raises it: ``code`` is the HTTP status, and ``status`` its name."""

    def __init__(self, code: Any, status: Any = "RESOURCE_EXHAUSTED") -> None:
        super().__init__(f"{code} {status}")
        self.code, self.status = code, status


class ClientResponseError(Exception):
    """As aiohttp raises it."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        super().__init__(status)
        self.status, self.headers = status, headers


class RateLimitError(Exception):
    def __init__(self, retry_after: Any = None) -> None:
        super().__init__("slow down")
        self.retry_after = retry_after


class TooManyRequestsException(Exception):
    pass


class ThrottlingError(Exception):
    pass


class OverloadedError(Exception):
    pass


class ServiceUnavailable(Exception):
    pass


def wrapped(cause: Exception) -> Exception:
    error = RuntimeError("the generator gave up")
    error.__cause__ = cause
    return error


def raised_while_handling(other: Exception, error: Exception, *, hides_it: bool = False) -> Exception:
    try:
        try:
            raise other
        except Exception:
            if hides_it:
                raise error from None
            raise error  # noqa: B904
    except Exception as raised:
        return raised


TRANSIENT = [
    TimeoutError("timed out"),
    ConnectionResetError("reset by peer"),
    APIConnectionError("no route"),
    ReadTimeout(),
    APIStatusError(429),
    APIStatusError(500),
    APIStatusError(503),
    HTTPStatusError(502),
    wrapped(APIStatusError(529)),
    wrapped(TimeoutError()),
    wrapped(ClientError("ThrottlingException", 429)),
    ClientError("ThrottlingException", 400),
    ClientError("InternalServerException", 500),
    APIError(429),
    APIError("unavailable", 503),
    ClientResponseError(503, {}),
    RateLimitError(),
    TooManyRequestsException(),
    ThrottlingError(),
    OverloadedError(),
    ServiceUnavailable(),
    raised_while_handling(TimeoutError(), RuntimeError("no answer")),
]
PERMANENT = [
    APIStatusError(400),
    APIStatusError(401),
    APIStatusError(404),
    HTTPStatusError(403),
    ValueError("no such model"),
    wrapped(APIStatusError(401)),
    KeyError("choices"),
    wrapped(ClientError("ValidationException", 400)),
    APIError(404),
    APIError(-32000),
    APIError("rate_limit_exceeded"),
    raised_while_handling(TimeoutError("no DNS"), ValueError("The API key is invalid"), hides_it=True),
]


def name(error: Exception) -> str:
    return f"{type(error).__name__} {error}"


def failing(
    *errors: Exception | None, build: Callable[[], Agent] = sample_agents.refunds
) -> Callable[[], Agent]:
    """The agent with a model that raises the n-th error when it is asked for the n-th time; None lets it answer."""
    left = list(errors)

    def make() -> Agent:
        agent = build()
        answer = agent.chat_generator.response_fn  # type: ignore[attr-defined]

        def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
            error = left.pop(0) if left else None
            if error is not None:
                sample_agents.effect("asked in vain")
                raise error
            replied: ChatMessage = answer(messages, tools)
            return replied

        return agent.clone(chat_generator=MockChatGenerator(response_fn=reply))

    return make


def asked() -> int:
    return sum(effect.startswith(("model", "asked")) for effect in sample_agents.effects)


def effects() -> list[str]:
    return sorted(effect for effect in sample_agents.effects if effect.startswith(("refund", "fast")))


ALL = ["fast(look)", "refund(A1,100)", "refund(B2,7)"]


def delay(session: Session) -> float:
    assert session.next_run_at is not None
    return (session.next_run_at - timezone.now()).total_seconds()


# Which are which


@pytest.mark.parametrize("error", TRANSIENT, ids=name)
def test_what_passes_by_itself_is_recognised(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize("error", PERMANENT, ids=name)
def test_what_does_not_pass_is_recognised(error: Exception) -> None:
    assert not is_transient(error)


def test_the_delay_doubles_up_to_a_limit_unless_the_server_says_how_long() -> None:
    assert [retry_delay(TimeoutError(), attempt, 2.0) for attempt in (1, 2, 3, 20)] == [2, 4, 8, MAX_DELAY]
    assert retry_delay(APIStatusError(429, {"retry-after": "7"}), 3, 2.0) == 7
    assert retry_delay(wrapped(APIStatusError(429, {"retry-after": "1.5"})), 3, 2.0) == 1.5
    assert retry_delay(APIStatusError(429, {"retry-after": "soon"}), 1, 2.0) == 2


def test_a_server_that_says_when_is_asked_again_then_up_to_a_day_later() -> None:
    said = [retry_delay(APIStatusError(429, {"retry-after": after}), 1, 2.0) for after in ("7200", "9" * 400)]
    assert said == [7200, MAX_RETRY_AFTER]
    assert (
        retry_delay(wrapped(ClientError("ThrottlingException", 429, {"Retry-After": "900"})), 1, 2.0) == 900
    )
    assert retry_delay(ClientResponseError(429, {"Retry-After": "900"}), 1, 2.0) == 900
    assert [retry_delay(RateLimitError(after), 1, 2.0) for after in (900, 0.5, None, "soon")] == [
        900,
        0.5,
        2,
        2,
    ]


def test_a_server_may_name_the_time_of_the_next_try() -> None:
    at = datetime.now(UTC) + timedelta(seconds=60)
    header = at.strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert 55 < retry_delay(APIStatusError(503, {"retry-after": header}), 1, 2.0) <= 60
    past = (at - timedelta(hours=1)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert retry_delay(APIStatusError(503, {"retry-after": past}), 1, 2.0) == 0


# Transient ones


@pytest.mark.slow
@pytest.mark.parametrize("error", TRANSIENT, ids=name)
def test_a_passing_failure_is_tried_again_later_and_the_session_ends(desk: Desk, error: Exception) -> None:
    desk.agent(failing(error))
    session = desk.start()
    assert desk.drive(session) == "queued"
    after = desk.fresh(session)
    assert (after.status, after.phase, after.attempt) == (Status.QUEUED, Phase.PLANNING, 1)
    assert 0 < delay(after) <= 2
    assert type(error).__name__ in after.why
    assert "attempt 1 of 3" in after.why
    told = desk.last_event(session)
    assert (told.kind, told.reason, told.actor_name) == ("retry", after.why, "w1")
    assert desk.drive(session) == "busy"  # it is not due yet

    session = desk.run(desk.due(session))
    assert (session.status, session.phase, session.why, session.error) == (Status.IDLE, Phase.DONE, "", "")
    assert effects() == ALL
    assert asked() == 3
    failed, *replied = desk.model_calls(session)
    assert failed.error.startswith(type(error).__name__)
    assert failed.started_at <= failed.ended_at
    assert [call.error for call in replied] == ["", ""]
    assert (session.totals["model_calls"], session.totals["failed_model_calls"]) == (2, 1)


def test_what_the_server_asks_for_is_the_delay(desk: Desk) -> None:
    desk.agent(failing(APIStatusError(429, {"retry-after": "77"})))
    session = desk.start()
    desk.drive(session)
    assert 70 < delay(desk.fresh(session)) <= 77


def test_a_quota_that_lasts_for_hours_takes_one_attempt(desk: Desk) -> None:
    desk.agent(failing(APIStatusError(429, {"retry-after": "7200"})))
    session = desk.start()
    desk.drive(session)
    assert 7190 < delay(desk.fresh(session)) <= 7200
    assert desk.drive(session) == "busy"
    assert desk.run(desk.due(session)).phase == Phase.DONE
    assert asked() == 3


def test_after_too_many_failures_a_person_is_asked_and_told_why(desk: Desk) -> None:
    desk.agent(failing(*[TimeoutError("slow")] * 3))
    session = desk.start()
    delays = []
    for _ in range(2):
        assert desk.drive(session) == "queued"
        delays.append(round(delay(desk.fresh(session))))
        desk.due(session)
    assert desk.drive(session) == "waiting"
    assert delays == [2, 4]
    after = desk.fresh(session)
    assert (after.status, after.waiting_for, after.phase) == (
        Status.WAITING,
        WaitingFor.RETRIES,
        Phase.PLANNING,
    )
    assert after.why == "The model failed 3 times without progress, at last with TimeoutError: slow"
    told = desk.last_event(session)
    assert (told.kind, told.reason) == ("gave_up", after.why)
    assert [call.error for call in desk.model_calls(session)] == ["TimeoutError: slow"] * 3
    assert after.totals["failed_model_calls"] == 3
    assert desk.drive(session) == "busy"

    desk.resume(session)
    after = desk.run(session)
    assert (after.status, after.phase, after.attempt) == (Status.IDLE, Phase.DONE, 0)
    assert asked() == 3 + 2
    assert effects() == ALL


@pytest.mark.slow
def test_resuming_begins_to_count_anew(desk: Desk) -> None:
    desk.agent(failing(*[TimeoutError("slow")] * 5))
    session = desk.start()
    for _ in range(3):
        desk.drive(desk.due(session))
    desk.resume(session)
    assert desk.drive(session) == "queued"
    assert "attempt 1 of 3" in desk.fresh(session).why
    assert desk.run(desk.due(session)).phase == Phase.DONE


def test_whoever_does_not_want_to_wait_resumes_it_at_once(desk: Desk) -> None:
    desk.agent(failing(APIStatusError(503, {"retry-after": "200"})))
    session = desk.start()
    desk.drive(session)
    assert desk.drive(session) == "busy"
    desk.resume(session)
    assert desk.run(session).phase == Phase.DONE


@pytest.mark.slow
def test_failures_with_progress_between_them_do_not_add_up(desk: Desk) -> None:
    """Each reply that arrived counts as progress, however often the model fails in between."""
    slow = TimeoutError("slow")
    desk.agent(
        failing(
            slow, slow, None, slow, slow, None, slow, slow, None, slow, slow, build=sample_agents.long_run
        )
    )
    session = desk.run(desk.start())
    assert session.phase == Phase.DONE
    assert desk.events(session).count("retry") == 8
    assert len(effects()) == 6


def test_a_tool_that_ended_is_progress_too(desk: Desk) -> None:
    """A worker that comes after lost ones and gets a tool's call done is not blamed for their attempts."""
    idempotent = {name: ToolPolicy(idempotent=True) for name in ("fast", "refund")}
    desk.agent(failing(None, TimeoutError("slow")), policies=idempotent)
    session = desk.start()
    # Two workers were lost in the tool before this one.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sessions_app.runtime.journal.OrmJournal.finish_call", _lost)
        with pytest.raises(Died):
            desk.drive(session)
    Session.objects.filter(pk=session.pk).update(attempt=2, lease_expires_at=timezone.now() - timedelta(1))
    assert desk.drive(session) == "queued"
    assert "attempt 1 of 3" in desk.fresh(session).why


def _lost(*args: Any, **kwargs: Any) -> Any:
    raise Died


def test_a_pause_that_was_asked_for_comes_before_the_next_try(desk: Desk) -> None:
    def asks() -> Agent:
        agent = failing(TimeoutError("slow"))()
        inner = agent.chat_generator.response_fn  # type: ignore[attr-defined]

        def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
            if not desk.fresh(session).stop_request:
                actions.pause(actor=SYSTEM, session_id=session.pk, reason="lunch")
            answer: ChatMessage = inner(messages, tools)
            return answer

        return agent.clone(chat_generator=MockChatGenerator(response_fn=reply))

    desk.agent(asks)
    session = desk.start()
    assert desk.drive(session) == "paused"
    after = desk.fresh(session)
    assert (after.status, after.next_run_at, after.stop_request) == (Status.PAUSED, None, "")
    assert desk.events(session)[-1] == "paused"


# Permanent ones


@pytest.mark.slow
@pytest.mark.parametrize("error", PERMANENT, ids=name)
def test_a_lasting_failure_is_told_at_once_and_goes_on_when_it_is_mended(
    desk: Desk, error: Exception
) -> None:
    desk.agent(failing(error))
    session = desk.start()
    assert desk.drive(session) == "idle"
    after = desk.fresh(session)
    assert (after.status, after.phase, after.attempt, after.next_run_at) == (
        Status.IDLE,
        Phase.ERROR,
        0,
        None,
    )
    assert after.error.startswith(f"{type(error).__name__}: ")
    told = desk.last_event(session)
    assert (told.kind, told.reason) == ("failed", after.error)
    [failed] = desk.model_calls(session)
    assert failed.error == after.error

    desk.resume(session)
    after = desk.run(session)
    assert (after.status, after.phase, after.error) == (Status.IDLE, Phase.DONE, "")
    assert asked() == 1 + 2
    assert effects() == ALL


def test_a_lasting_failure_in_the_middle_repeats_nothing_that_was_done(desk: Desk) -> None:
    desk.agent(failing(None, APIStatusError(401)))
    session = desk.start()
    assert desk.drive(session) == "idle"
    assert effects() == ALL
    desk.resume(session)
    assert desk.run(session).final_answer == "Refund handled."
    assert effects() == ALL
    assert asked() == 3
    assert [call.attempt for call in desk.calls(session)] == [1, 1, 1]


def test_a_message_is_another_way_to_go_on_after_a_failure(desk: Desk) -> None:
    desk.agent(failing(APIStatusError(401), build=sample_agents.plain_talk))
    session = desk.start()
    desk.drive(session)
    desk.say(session, "Are you there?")
    after = desk.run(session)
    assert (after.phase, after.final_answer) == (Phase.DONE, "Hello.")
    assert [text for role, text in desk.texts(session) if role == "user"] == ["hi", "Are you there?"]


def test_an_error_text_of_any_kind_can_be_stored(desk: Desk) -> None:
    desk.agent(failing(ValueError("nul \x00 and \ud800 and " + "much " * 5000)))
    session = desk.start()
    desk.drive(session)
    after = desk.fresh(session)
    assert after.phase == Phase.ERROR
    assert "\x00" not in after.error
    assert len(after.error) <= 4000


def test_an_error_that_has_no_text_of_its_own_does_not_hide_itself(desk: Desk) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text for you")

    desk.agent(failing(Mute(), ValueError()))
    session = desk.start()
    desk.drive(session)
    assert desk.fresh(session).error.startswith("Mute: ")
    desk.resume(session)
    desk.drive(session)
    assert desk.fresh(session).error == "ValueError: no message"


def test_a_summariser_that_fails_is_the_hooks_business_and_stops_the_run_clearly(desk: Desk) -> None:
    def build() -> Agent:
        agent = sample_agents.summarising()
        [hook] = agent.hooks["before_llm"]
        left: list[Exception] = [ValueError("no summary today")]

        def summary(messages: list[ChatMessage]) -> str:
            if left:
                raise left.pop()
            return "They talked."

        hook.compactor.chat_generator = MockChatGenerator(response_fn=summary)  # type: ignore[attr-defined]
        return agent

    desk.agent(build)
    session = desk.start()
    while desk.drive(session) == "queued":
        desk.due(session)
    after = desk.fresh(session)
    if after.phase == Phase.ERROR:
        assert "no summary today" in after.error
        desk.resume(session)
        after = desk.run(session)
    assert (after.phase, after.final_answer) == (Phase.DONE, "Counted.")
    assert effects() == [f"fast(q{n})" for n in range(7)]


@pytest.mark.slow
def test_a_followup_turn_may_fail_and_the_turn_before_it_stays(desk: Desk) -> None:
    desk.agent(failing(None, None, APIStatusError(400)))
    session = desk.run(desk.start())
    assert session.final_answer == "Refund handled."
    desk.say(session, "again")
    desk.drive(session)
    after = desk.fresh(session)
    assert (after.phase, after.final_answer) == (Phase.ERROR, "")
    assert ("assistant", "Refund handled.") in desk.texts(session)


@pytest.mark.parametrize(
    "text, most, shown",
    [
        ("as it is", 8, "as it is"),
        ("one two three", 12, "one two…"),
        ("one two three", 8, "one two…"),
        ("one\ntwo three", 6, "one…"),
        ("DE89370400440532013000", 10, "…"),
    ],
)
def test_a_long_error_is_cut_between_two_words(text: str, most: int, shown: str) -> None:
    assert beginning(text, most) == shown
    assert len(beginning(text, most)) <= most


class Unread(Exception):
    """Of a client whose response must be read before it is asked."""

    @property
    def response(self) -> Any:
        raise RuntimeError("the response was not read")


def test_an_error_that_cannot_be_asked_is_like_one_that_says_nothing() -> None:
    assert not is_transient(Unread("no"))
    assert retry_delay(Unread("no"), 1, 2.0) == 2.0
