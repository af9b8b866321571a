"""Starting a session, and sending a message to its agent."""

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import (
    ChatMessage,
    FileContent,
    ImageContent,
    ReasoningContent,
    TextContent,
    ToolCall,
    ToolCallResult,
)
from haystack.dataclasses.image_content import IMAGE_MIME_TYPES
from kombu.exceptions import OperationalError
from pytest_django import DjangoCaptureOnCommitCallbacks

from agentstate.celery import app
from agentstate.durable.agent import make_durable
from agentstate.durable.run import run
from sessions_app import actions, wake
from sessions_app.access import message_parts, typed
from sessions_app.access.errors import Forbidden, Invalid, Refused
from sessions_app.access.roles import Actor
from sessions_app.actions import chat_messages
from sessions_app.models import Message, ModelCall, Phase, Session, Status
from sessions_app.runtime import leases
from sessions_app.runtime.journal import OrmJournal
from tests import builders, sample_agents

pytestmark = pytest.mark.django_db


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions for which a wake-up was sent."""
    sent: list[str] = []
    monkeypatch.setattr(app, "send_task", lambda task, arguments: sent.append(*arguments))
    return sent


def start(**fields: Any) -> Session:
    builders.agent()
    return actions.start(
        **{"actor": builders.SYSTEM, "agent": "claims", "message": "Is my windscreen covered?", **fields}
    )


def test_a_started_session_is_queued_and_plans() -> None:
    session = start()
    session.refresh_from_db()
    assert (session.phase, session.previous_phase) == (Phase.PLANNING, Phase.IDLE)
    assert session.status == Status.QUEUED
    assert session.next_run_at is not None
    assert session.totals["edges"] == {"idle>planning": 1}
    assert [branch.number for branch in session.branches.all()] == [1]
    assert session.branch is not None
    assert [message.text for message in session.inbox.all()] == ["Is my windscreen covered?"]
    assert [event.kind for event in session.events.all()] == ["started"]


def test_a_started_session_keeps_what_it_was_given() -> None:
    user = builders.user()
    session = start(
        actor=Actor.of(user),
        title=" Windscreen ",
        customer="Ada",
        tags=["Motor", "glass", "motor "],
        state={"policy": "POL-7"},
        generation_kwargs={"temperature": 0},
        reason="by phone",
    )
    session.refresh_from_db()
    assert (session.title, session.customer) == ("Windscreen", "Ada")
    assert sorted(session.tags.values_list("name", flat=True)) == ["glass", "motor"]
    assert session.inputs == {"state": {"policy": "POL-7"}, "generation_kwargs": {"temperature": 0}}
    assert session.inbox.get().author == user
    event = session.events.get()
    assert (event.actor, event.actor_name, event.reason) == (user, user.username, "by phone")


def test_the_title_is_the_beginning_of_the_message_if_none_is_given() -> None:
    assert start(message="One\ntwo  three " + "x" * 200).title == ("One two three " + "x" * 200)[:80]


def test_a_started_session_wakes_a_worker_once_it_is_committed(
    woken: list[str], django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        session = start()
        assert woken == []
    assert woken == [str(session.pk)]


def test_a_wake_up_that_cannot_be_sent_is_only_logged(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    def down(*args: object) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(app, "send_task", down)
    with django_capture_on_commit_callbacks(execute=True):
        session = start()
    session.refresh_from_db()
    assert session.status == Status.QUEUED
    assert "connection refused" in caplog.text
    assert str(session.pk) in caplog.text


def test_nothing_is_woken_by_a_transaction_that_fails(
    woken: list[str], django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    def fail() -> None:
        with transaction.atomic():
            wake.wake(builders.done().pk)
            raise ZeroDivisionError

    with django_capture_on_commit_callbacks(execute=True), pytest.raises(ZeroDivisionError):
        fail()
    assert woken == []


def test_an_unknown_agent_is_refused_and_the_known_ones_are_named() -> None:
    builders.agent("letters")
    with pytest.raises(Invalid, match=r"no agent 'nobody'. There are: claims, letters\."):
        start(agent="nobody")
    assert not Session.objects.exists()


def test_without_any_published_agent_the_error_says_so() -> None:
    with pytest.raises(Invalid, match="no worker has published"):
        actions.start(actor=builders.SYSTEM, agent="claims", message="Hello")


def test_an_agent_that_cannot_be_built_starts_no_session() -> None:
    builders.agent("broken", problem="The factory failed: no API key.")
    with pytest.raises(Refused, match="no API key"):
        start(agent="broken")
    assert not Session.objects.exists()


def test_a_viewer_may_not_start_a_session() -> None:
    with pytest.raises(Forbidden):
        start(actor=builders.actor("viewer"))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"message": " "}, "The message is missing"),
        ({"message": "a\x00b"}, "The message contains NUL"),
        ({"message": "a\ud800b"}, "not valid Unicode"),
        ({"title": "x" * 201}, "201 characters long; at most 200"),
        ({"customer": "a\x00"}, "The customer contains NUL"),
        ({"customer": None}, "The customer must be a text, not None."),
        ({"customer": 5}, "The customer must be a text, not an int."),
        ({"title": None}, "The title must be a text, not None."),
        ({"message": ["Hello"]}, "The message must be a text, not a list."),
        ({"tags": "abc"}, "Give the tags as a list of texts"),
        ({"tags": {"abc": 1}}, "Give the tags as a list of texts"),
        ({"tags": None}, "Give the tags as a list of texts"),
        ({"tags": ["abc", 5]}, "Give the tags as a list of texts"),
        ({"tags": [" "]}, "A tag is missing"),
        ({"tags": ["x" * 51]}, "at most 50"),
        # In lower case it is twice as long.
        ({"tags": ["İ" * 50]}, "A tag is 100 characters long; at most 50 are allowed."),
        ({"state": ["a"]}, "The state must be a JSON object"),
        ({"state": {"a": {1, 2}}}, "plain JSON values"),
        ({"state": {"a": float("nan")}}, "NaN"),
        ({"state": {"a": [{"b": "\x00"}]}}, "The state contains NUL"),
        ({"state": {"\x00": 1}}, "The state contains NUL"),
        ({"generation_kwargs": "hot"}, "The generation kwargs must be a JSON object"),
        ({"reason": "\x00"}, "The reason contains NUL"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        start(**fields)
    assert not Session.objects.exists()


def test_a_backslash_before_u0000_is_no_nul_character() -> None:
    assert start(state={"a": "\\u0000"}).inputs["state"] == {"a": "\\u0000"}


@pytest.mark.parametrize("build", [builders.done, builders.failed])
def test_a_message_to_an_ended_session_begins_its_next_turn(
    build: Any, woken: list[str], django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    session = build()
    before = session.phase
    with django_capture_on_commit_callbacks(execute=True):
        actions.send_message(actor=builders.SYSTEM, session_id=session.pk, text="And the mirror?")
    session.refresh_from_db()
    assert (session.status, session.phase, session.previous_phase) == (Status.QUEUED, Phase.PLANNING, before)
    assert session.totals["edges"][f"{before}>planning"] == 1
    assert (session.error, session.final_answer) == ("", "")
    assert woken == [str(session.pk)]


@pytest.mark.parametrize(
    "build",
    [builders.queued, builders.running, builders.waiting_for_approval, builders.in_doubt, builders.paused],
)
def test_a_message_to_a_session_at_work_only_waits_in_its_inbox(build: Any, woken: list[str]) -> None:
    session = build()
    before = (session.status, session.phase, session.next_run_at, session.epoch, session.lease_expires_at)
    actions.send_message(actor=builders.SYSTEM, session_id=session.pk, text="One more thing")
    session.refresh_from_db()
    assert (
        session.status,
        session.phase,
        session.next_run_at,
        session.epoch,
        session.lease_expires_at,
    ) == before
    last = session.inbox.last()
    assert last is not None
    assert last.text == "One more thing"
    event = session.events.last()
    assert event is not None
    assert event.data == {"inbox": last.pk}


@pytest.mark.parametrize("text", ["", " ", "\x00"])
def test_an_empty_message_is_refused(text: str) -> None:
    session = builders.done()
    with pytest.raises(Invalid):
        actions.send_message(actor=builders.SYSTEM, session_id=session.pk, text=text)
    assert not session.inbox.exists()


PICTURE = {"image": {"base64_image": "iVBORw0KGgo=", "mime_type": "image/png", "validation": False}}
LETTER = {"file": {"base64_data": "aGVsbG8=", "mime_type": "application/pdf", "filename": "letter.pdf"}}
CALL = {"tool_name": "look_up", "arguments": {"q": "x"}, "id": "1", "extra": None}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "meta": {"$type": "document"}, "name": None, "content": [{"text": "Find x."}]},
    {"role": "assistant", "meta": {}, "name": None, "content": [{"text": "I look."}, {"tool_call": CALL}]},
    {
        "role": "tool",
        "meta": {},
        "name": None,
        "content": [{"tool_call_result": {"result": "It is x.", "origin": CALL, "error": False}}],
    },
    {"role": "assistant", "meta": {}, "name": None, "content": [{"text": "Here."}]},
    {"role": "user", "meta": {}, "name": None, "content": [{"text": "And this?"}, PICTURE, LETTER]},
]


@pytest.mark.slow
def test_a_session_started_with_a_history_and_pictures_gives_the_model_what_a_plain_run_gives_it(
    client: Client,
) -> None:
    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        given.append([message.to_dict() for message in messages])
        return ChatMessage.from_assistant("It is y.")

    given: list[Any] = []
    agent = Agent(chat_generator=MockChatGenerator(response_fn=reply), system_prompt="Be kind.")
    agent.run([ChatMessage.from_dict(message) for message in HISTORY])
    session = start(message="", messages=HISTORY, actor=Actor.of(builders.user(name="anna")))
    claim = leases.claim(session.pk, "tests")
    assert claim is not None
    assert run(make_durable(agent), OrmJournal(claim)).status == "idle"
    assert given[1] == given[0]
    session.refresh_from_db()
    assert session.title == "And this?"
    client.force_login(builders.user())
    call = ModelCall.objects.get()
    page = client.get(f"/sessions/{session.pk}/model-calls/{call.pk}/").content.decode()
    for what in ("image/png", "letter.pdf", "result of look_up", "It is x."):
        assert what in page
    timeline = client.get(f"/sessions/{session.pk}/").content.decode()
    assert "Agent, earlier" in timeline
    assert list(Message.objects.filter(role="assistant").values_list("author", flat=True)) == ["", "", ""]


@pytest.mark.parametrize("length, title", [(4, "Find x."), (2, "Find x."), (5, "And this?")])
def test_an_agent_with_a_prompt_of_its_own_answers_it_behind_any_history_as_in_a_plain_run(
    length: int, title: str
) -> None:
    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        given.append([message.to_dict() for message in messages])
        return ChatMessage.from_assistant("Hello, Ann.")

    given: list[Any] = []
    agent = Agent(chat_generator=MockChatGenerator(response_fn=reply), user_prompt="Greet Ann.")
    agent.run([ChatMessage.from_dict(message) for message in HISTORY[:length]])
    builders.agent("greeter", inputs={"prompt": True, "values": []})
    session = actions.start(actor=builders.SYSTEM, agent="greeter", messages=HISTORY[:length])
    assert session.title == title
    claim = leases.claim(session.pk, "tests")
    assert claim is not None
    assert run(make_durable(agent), OrmJournal(claim)).status == "idle"
    assert [message["role"] for message in given[1]][-2:] == [HISTORY[length - 1]["role"], "user"]
    assert given[1] == given[0]


@pytest.mark.parametrize(
    "messages, said",
    [
        ([{"role": "user", "content": []}], "Message 1 is not a message"),
        ([{"role": "user", "content": [{"texts": "x"}]}], "Message 1 is not a message"),
        (["Hello"], "Message 1 is not a message"),
        ([*HISTORY, {"role": "robot", "content": [{"text": "x"}]}], "Message 6 is not a message"),
        (HISTORY[:2], "The last message must be the user's"),
        ([{"role": "user", "content": [{"text": "x" * 5_000_001}]}], "Message 1 is too long"),
    ],
)
def test_messages_that_are_none_are_refused(messages: list[Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        start(message="", messages=messages)
    with pytest.raises(Invalid, match="not both"):
        start(messages=HISTORY)
    assert not Session.objects.exists()


def test_pictures_and_files_of_a_later_message_reach_the_model_as_in_a_plain_run() -> None:
    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        given.append([message.to_dict() for message in messages])
        return ChatMessage.from_assistant("Fine.")

    given: list[Any] = []
    agent = Agent(chat_generator=MockChatGenerator(response_fn=reply))
    later: list[dict[str, Any]] = [
        {"role": "user", "meta": {}, "name": None, "content": [{"text": "See:"}, PICTURE]},
        {"role": "user", "meta": {}, "name": None, "content": [LETTER]},
    ]
    first = agent.run([ChatMessage.from_user("Hello")])["messages"]
    agent.run([*first, *map(ChatMessage.from_dict, later)])
    session = start(message="Hello")
    for send in (False, True):
        if send:
            actions.send_message(actor=builders.SYSTEM, session_id=session.pk, messages=later)
        claim = leases.claim(session.pk, "tests")
        assert claim is not None
        assert run(make_durable(agent), OrmJournal(claim)).status == "idle"
    assert given[2:] == given[:2]


@pytest.mark.parametrize(
    "sent, said",
    [
        ({"messages": HISTORY}, "Only user messages can be sent"),
        ({"messages": [{"role": "user", "content": []}]}, "Message 1 is not a message"),
        ({"messages": HISTORY[4:], "text": "x"}, "not both"),
        ({}, "The message is missing"),
    ],
)
def test_what_cannot_be_sent_is_refused(sent: dict[str, Any], said: str) -> None:
    session = builders.done()
    with pytest.raises(Invalid, match=said):
        actions.send_message(actor=builders.SYSTEM, session_id=session.pk, **sent)
    assert not session.inbox.exists()


RESULT = {"result": "It is x.", "origin": CALL, "error": False}
NOT_BUILT: list[tuple[dict[str, Any], str]] = [
    ({"image": {"mime_type": "image/png"}}, "the image of its part 1 has no base64_image"),
    ({"image": {"base64_image": "a"}}, "the image of its part 1 has a base64_image that is not base64"),
    ({"image": {"base64_image": "YQ==", "mime_type": "text/plain"}}, "which is none of an image"),
    ({"image": {"base64_image": 5}}, "has a base64_image that is not a text"),
    (
        {"image": {"base64_image": "UEsDBAoAAAAAAA=="}},
        "has no mime_type, and its data are of the type 'applic",
    ),
    ({"file": {"base64_data": "é"}}, "the file of its part 1 has a base64_data that is not base64"),
    ({"file": {"base64_data": "YQ==", "name": "a.txt"}}, "has a key 'name', which is unknown"),
    ({"tool_call": {"tool_name": "look_up"}}, "the tool_call of its part 1 has no arguments"),
    ({"tool_call_result": {"x": 1}}, "the tool_call_result of its part 1 has no result"),
    ({"tool_call_result": {**RESULT, "origin": {}}}, "has an origin that has no tool_name"),
    (
        {"tool_call_result": {**RESULT, "result": [{"image": {}}]}},
        "the image of its part 1 has no base64_image",
    ),
    ({"tool_call_result": {**RESULT, "result": [{"reasoning": {}}]}}, "one of the keys text, image, file"),
    ({"reasoning": {"text": "x"}}, "the reasoning of its part 1 has no reasoning_text"),
]


@pytest.mark.parametrize("part, said", NOT_BUILT)
def test_a_message_that_no_worker_can_build_is_refused_with_what_is_wrong(
    part: dict[str, Any], said: str
) -> None:
    messages = [{"role": "user", "content": [part]}]
    with pytest.raises((TypeError, ValueError, AttributeError, KeyError)):
        ChatMessage.from_dict(copy.deepcopy(messages[0]))
    session = builders.done()
    with pytest.raises(Invalid, match=re.escape(said)):
        actions.send_message(actor=builders.SYSTEM, session_id=session.pk, messages=messages)
    assert not session.inbox.exists()
    with pytest.raises(Invalid, match=re.escape(said)):
        start(message="", messages=messages)
    assert Session.objects.count() == 1


def test_what_is_known_of_the_parts_of_a_message_is_what_haystack_builds_them_of() -> None:
    kinds: dict[str, type] = {
        "image": ImageContent,
        "file": FileContent,
        "tool_call": ToolCall,
        "tool_call_result": ToolCallResult,
        "reasoning": ReasoningContent,
    }
    assert kinds.keys() == message_parts.PARTS.keys()
    for kind, cls in kinds.items():
        fields = dataclasses.fields(cls)
        missing = dataclasses.MISSING
        required = {f.name for f in fields if f.default is missing and f.default_factory is missing}
        known = message_parts.PARTS[kind]
        assert known.required.keys() == required
        assert known.all().keys() == {f.name for f in fields}
    assert message_parts.IMAGE_MIME_TYPES == IMAGE_MIME_TYPES


@pytest.mark.parametrize("names", [["fast"], [], None])
def test_a_session_uses_the_tools_that_it_was_started_with(names: list[str] | None) -> None:
    given: list[list[str]] = []

    def reply(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        given.append([tool.name for tool in tools or ()])
        return ChatMessage.from_assistant("Fine.")

    agent = Agent(
        chat_generator=MockChatGenerator(response_fn=reply), tools=[sample_agents.fast, sample_agents.slow]
    )
    agent.run([ChatMessage.from_user("Hello")], tools=names)
    builders.agent("two", tools=[{"name": "fast"}, {"name": "slow"}])
    session = start(agent="two", message="Hello", tools=names)
    claim = leases.claim(session.pk, "tests")
    assert claim is not None
    assert run(make_durable(agent), OrmJournal(claim)).status == "idle"
    assert given[1] == given[0]


@pytest.mark.parametrize(
    "tools, said",
    [
        (["quick"], "The agent has no tools quick. It has: fast."),
        ("fast", "Name the tools by a list of their names"),
        ([object()], "a worker could not find an object again"),
        (5, "Name the tools by a list of their names"),
    ],
)
def test_tools_that_a_session_cannot_use_are_refused(tools: Any, said: str) -> None:
    builders.agent("two", tools=[{"name": "fast"}])
    with pytest.raises(Invalid, match=said):
        start(agent="two", tools=tools)
    assert not Session.objects.exists()


def test_the_documentation_says_how_long_a_message_may_be() -> None:
    promises = (Path(__file__).parent.parent / "docs" / "promises.md").read_text()
    [row] = [line for line in promises.splitlines() if line.startswith("| how much |")]
    for limit in (
        f"a text of at most {typed.MESSAGE_BYTES // typed.KB} KB",
        f"{chat_messages.MOST_BYTES:,} bytes as JSON",
        f"{typed.JSON_BYTES // typed.KB} KB each",
    ):
        assert limit in row


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.mark.parametrize("after_json", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        ChatMessage.from_tool(
            (TextContent("a"), ImageContent(PNG, mime_type="image/png")), origin=ToolCall("look_up", {})
        ),
        ChatMessage.from_tool(
            [TextContent("a"), ImageContent(PNG, mime_type="image/png")], origin=ToolCall("look_up", {})
        ),
        ChatMessage.from_user(content_parts=[TextContent("a"), ImageContent(PNG, meta=None)]),  # type: ignore[arg-type]
    ],
)
def test_what_haystack_writes_of_a_message_that_it_can_read_again_is_taken(
    message: ChatMessage, after_json: bool
) -> None:
    written = message.to_dict()
    written = json.loads(json.dumps(written)) if after_json else written
    ChatMessage.from_dict(json.loads(json.dumps(written)))
    assert message_parts.why_not_built(written, ["user", "tool"]) == ""
