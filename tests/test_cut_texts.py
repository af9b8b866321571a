"""A text that is cut off before it is stored holds no part of a hidden value, wherever it is cut."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from haystack import component
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.hooks import hook

from sessions_app.models import Event, ModelCall, Session
from tests import builders, driving, sample_agents
from tests.pages import text_at

pytestmark = pytest.mark.django_db

IBAN = "DE89 3704 0044 0532 0130 00"
PATTERN = r"DE\d\d( \d{4}){4} \d\d"


class Unavailable(Exception):
    status_code = 503


@pytest.fixture
def desk(db: None, settings: Any) -> Iterator[driving.Desk]:
    settings.AGENTSTATE_MASK_PATTERNS = [PATTERN]
    settings.AGENTSTATE_RETRY_SECONDS = 0.0
    with driving.desk() as desk:
        yield desk


def long_text(cut_at: int) -> str:
    """With the IBAN where the text would be cut, in the middle of it or between two of its words, and much behind."""
    filler = "so it goes " * 2000
    return f"{filler[: cut_at - 12]} {IBAN} {filler}"


def failing(error: type[Exception], cut_at: int) -> Callable[[], Agent]:
    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        raise error(long_text(cut_at))

    return lambda: Agent(chat_generator=MockChatGenerator(response_fn=reply))


@component
class Garbling:
    @component.output_types(replies=list[Any])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
        return {"replies": [long_text(440)]}


def garbling() -> Agent:
    return Agent(chat_generator=Garbling())


def raising() -> Agent:
    def broken() -> str:
        """Break."""
        raise ValueError(long_text(3900))

    agent = sample_agents.one_tool(broken)
    agent.raise_on_tool_invocation_failure = True
    return agent


def stopped() -> Agent:
    @hook
    def stop(state: State) -> None:
        state.set("stop_run", long_text(200))

    return Agent(chat_generator=sample_agents.scripted("Hello."), hooks={"before_run": [stop]})


CASES: dict[str, Callable[[], Agent]] = {
    "model": failing(ValueError, 3_990),
    "model, between words": failing(ValueError, 3_997),
    "model, again and again": failing(Unavailable, 3_980),
    "reply": garbling,
    "tool": raising,
    "exit reason": stopped,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_no_part_of_a_hidden_value_is_left_where_a_text_was_cut_off(
    desk: driving.Desk, client: Client, case: str
) -> None:
    desk.agent(CASES[case])
    session = desk.fresh(desk.run(desk.start()))
    call_errors = ModelCall.objects.values_list("error", flat=True)
    stored = [
        session.error,
        session.why,
        session.exit_reason,
        *Event.objects.values_list("reason", flat=True),
    ]
    assert max(map(len, [*stored, *call_errors])) >= 190
    for text in [*stored, *call_errors]:
        assert len(text) <= 4000
        assert not any(part in text for part in IBAN.split())
    client.force_login(builders.user("viewer"))
    for address in ("/inbox/", "/?queue=all", f"/sessions/{session.pk}/", f"/sessions/{session.pk}/audit/"):
        page = text_at(client, address)
        assert not any(part in page for part in ("DE89", "3704 ", "0044 0532", "0130 00")), address


def test_a_text_that_fits_is_stored_as_it_is_and_hidden_where_it_is_shown(
    desk: driving.Desk, client: Client
) -> None:
    desk.agent(lambda: Agent(chat_generator=MockChatGenerator(response_fn=_refuse)))
    session = desk.fresh(desk.run(desk.start()))
    assert session.error == f"ValueError: No account {IBAN}."
    client.force_login(builders.user("viewer"))
    page = client.get(f"/sessions/{session.pk}/").content.decode()
    assert "No account ••••." in page


def _refuse(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
    raise ValueError(f"No account {IBAN}.")


def test_the_name_of_what_was_revealed_holds_no_part_of_a_hidden_value(
    desk: driving.Desk, client: Client
) -> None:
    name = f"{'x' * 50} {IBAN}"
    history = builders.asked()
    history.reply(calls=[(name, {"iban": IBAN})])
    session: Session = history.rest("idle")
    client.force_login(builders.user("supervisor"))
    value = f"arguments:{history.calls[0].position}"
    assert client.post(f"/sessions/{session.pk}/reveal/", {"value": value}).status_code == 200
    recorded = str(list(Event.objects.values_list("reason", "data")))
    assert "x" * 50 in recorded
    assert not any(part in recorded for part in IBAN.split())
