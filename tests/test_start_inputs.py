"""What an agent can be given at its start: the form asks for it by type, and nothing wrong or missing is started."""

import html
import json
import re
from typing import Any

import pytest
from django.test import Client

from agentstate.durable.state.encoding import decode
from sessions_app import actions
from sessions_app.access.errors import Invalid
from sessions_app.access.roles import Actor
from sessions_app.models import InboxMessage, Session
from tests import builders

pytestmark = pytest.mark.django_db

VALUES: list[dict[str, Any]] = [
    {"name": "who", "required": True, "type": "text", "schema": {}},
    {"name": "amount", "required": False, "type": "float", "schema": {"type": "number"}},
    {"name": "urgent", "required": False, "type": "bool", "schema": {"type": "boolean"}},
    {
        "name": "ids",
        "required": False,
        "type": "list[str]",
        "schema": {"type": "array", "items": {"type": "string"}},
    },
    {"name": "document", "required": False, "type": "Document", "schema": None},
]


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(builders.user("operator", "anna"))
    builders.agent("asking", title="Asking", inputs={"prompt": False, "values": VALUES})
    builders.agent("prompted", title="Prompted", inputs={"prompt": True, "values": VALUES[:1]})
    builders.agent("plain", title="Plain")
    return client


def names(response: Any) -> list[str]:
    return re.findall(r'name="arg-(\w+)"', response.content.decode())


def text_of(response: Any) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", response.content.decode())).split())


def test_the_form_asks_for_what_the_chosen_agent_can_be_given(operator: Client) -> None:
    page = operator.get("/start/?agent=asking")
    assert names(page) == ["who", "amount", "urgent", "ids"]
    assert "Who Amount (optional) Urgent (optional)" in re.sub(" true| false", "", text_of(page))
    assert names(operator.get("/start/?agent=plain")) == []


def test_another_agent_is_chosen_without_losing_what_was_typed(operator: Client) -> None:
    sent = {"agent": "asking", "message": "My claim", "title": "Kept", "arg-who": "Ann"}
    for headers in ({}, {"HX-Request": "true"}):
        page = operator.post("/start/?choose", sent, headers=headers)
        assert page.status_code == 200
        assert names(page) == ["who", "amount", "urgent", "ids"]
        for kept in ("My claim", 'value="Kept"', 'value="Ann"'):
            assert kept in page.content.decode()
        assert ("<html" in page.content.decode()) == (not headers)
    assert not Session.objects.exists()


def test_the_values_that_were_typed_are_the_inputs_of_the_session(operator: Client) -> None:
    sent = {
        "agent": "asking", "message": "My claim", "state": '{"amount": 1, "urgent": false}',
        "arg-who": "Ann", "arg-amount": "12.5", "arg-urgent": "true", "arg-ids": "[\"a\"]",
    }  # fmt: skip
    assert operator.post("/start/", sent).status_code == 302
    assert Session.objects.get().inputs["state"] == {
        "who": "Ann", "amount": 12.5, "urgent": True, "ids": ["a"],
    }  # fmt: skip


def test_values_are_stored_with_their_keys_in_order(operator: Client) -> None:
    value = {"name": "b", "id": 1, "a": [{"z": 1, "y": 2}]}
    kwargs = {"response_format": {"type": "object", "properties": {"b": {}, "a": {}}}}
    started = actions.start(
        actor=Actor.system("test"), agent="plain", message="Hi", state={"x": value}, generation_kwargs=kwargs
    )
    started.refresh_from_db()
    for given, name in ((value, "state"), (kwargs, "generation_kwargs")):
        [stored] = started.inputs[name].values()
        assert '"ordered"' in json.dumps(stored)
        assert json.dumps(decode(stored)) == json.dumps(given.get("response_format", given))


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"arg-who": ""}, "The agent's prompt needs a value for who."),
        (
            {"arg-amount": "a lot"},
            "Start a session Amount (optional) must be a number, not “a lot”. Agent Asking",
        ),
        ({"arg-amount": "1e999"}, "Amount (optional): Write a number that can be stored. Agent Asking"),
        ({"arg-urgent": "maybe"}, "Urgent (optional) must be true or false, not “maybe”. Agent Asking"),
        (
            {"arg-ids": "{"},
            "session Ids (optional, JSON): This is not JSON: a name in double quotes is missing at line 1, column 2",
        ),
        ({"arg-ids": "[1]"}, "The value of ids is wrong: …"),
        ({"state": '{"urgent": "yes"}'}, "The value of urgent is wrong: it must be true or false."),
        (
            {"state": '{"urgnt": true, "tools": []}'},
            "takes no value for tools, urgnt. Its state keys and the variables of its prompts are: amount, ids, …",
        ),
        (
            {"state": '{"document": {"content": "x"}}'},
            "document is of the type Document, which cannot be given as JSON.",
        ),
    ],
)
def test_a_value_that_is_missing_or_of_another_type_is_refused_and_the_rest_is_kept(
    operator: Client, wrong: dict[str, str], said: str
) -> None:
    sent = {"agent": "asking", "message": "My claim", "arg-who": "Ann", **wrong}
    answer = operator.post("/start/", sent)
    assert answer.status_code == 400
    assert said.rstrip("…") in text_of(answer)
    assert "My claim" in answer.content.decode()
    assert not Session.objects.exists()


@pytest.mark.parametrize(
    "name", ["self", "tools", "messages", "streaming_callback", "hook_context", "generation_kwargs", "other"]
)
def test_no_argument_of_a_run_is_set_by_the_values_of_the_state(operator: Client, name: str) -> None:
    builders.agent("bare", inputs={"prompt": False, "values": []})
    with pytest.raises(
        Invalid,
        match=f"takes no value for {name}. Its state keys .* are: none.",
    ):
        actions.start(actor=builders.SYSTEM, agent="bare", message="hi", state={name: 1})
    assert not Session.objects.exists()


def test_values_are_not_checked_of_an_agent_of_which_none_are_published(operator: Client) -> None:
    started = actions.start(actor=builders.SYSTEM, agent="plain", message="hi", state={"policy": 1})
    assert started.inputs["state"] == {"policy": 1}


@pytest.mark.usefixtures("operator")
def test_numbers_that_databases_change_reach_the_agent_as_they_are() -> None:
    given = {"large": 1e300, "whole": 1e16, "zero": -0.0, "list": [1e22, 0.5], "count": 10**20}
    started = actions.start(actor=builders.SYSTEM, agent="plain", message="hi", state=given)
    stored = Session.objects.get(pk=started.pk).inputs["state"]
    assert repr({name: decode(stored[name]) for name in given}) == repr(given)


def test_an_agent_with_a_prompt_of_its_own_starts_without_a_message(operator: Client) -> None:
    assert operator.post("/start/", {"agent": "prompted", "arg-who": "Ann"}).status_code == 302
    session = Session.objects.get()
    assert (session.status, session.inputs["state"]) == ("queued", {"who": "Ann"})
    assert not InboxMessage.objects.exists()
    assert operator.get(f"/sessions/{session.pk}/").status_code == 200
    with pytest.raises(Invalid, match="The message is missing"):
        actions.start(actor=builders.SYSTEM, agent="asking", state={"who": "Ann"})


def test_what_was_typed_for_another_agent_is_not_dropped_silently(operator: Client) -> None:
    sent = {"agent": "plain", "message": "My claim", "arg-who": "Ann", "arg-amount": ""}
    answer = operator.post("/start/", sent)
    assert answer.status_code == 400
    assert "The agent has no input who: the form showed another agent" in text_of(answer)
    assert not Session.objects.exists()
    assert operator.post("/start/", sent | {"arg-who": ""}).status_code == 302


def test_an_address_with_the_chosen_agent_takes_the_place_of_the_forms(operator: Client) -> None:
    sent = {"agent": "asking", "message": "My claim"}
    chosen = operator.post("/start/?choose", sent, headers={"HX-Request": "true"})
    assert chosen["HX-Replace-Url"] == "/start/?agent=asking"
    assert "HX-Replace-Url" not in operator.post("/start/?choose", sent)
