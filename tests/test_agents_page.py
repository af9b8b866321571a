"""What the desk shows of an agent's definitions: what changed between two, tools listed later, and lossy results."""

import html
import re
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from haystack.components.agents import Agent
from haystack.tools import Tool

from agentstate.durable.agent import make_durable
from agentstate.durable.run import run
from sessions_app import actions
from sessions_app.desk.pages import agents
from sessions_app.models import (
    AgentDefinition,
    Checkpoint,
    LossyResult,
    RegisteredAgent,
    Session,
    Status,
    ToolCall,
    Worker,
)
from tests import builders, sample_agents
from tests.adapters import OrmAdapter
from tests.builders import DEFINITION
from tests.pages import without_random

pytestmark = pytest.mark.django_db

NEW = "e" * 64
PARTS: dict[str, Any] = {
    "model": {"name": "small-1", "generator": "Generator", "generation_kwargs": {"temperature": 0}},
    "prompts": {"system": "You decide claims.\nBe kind.\nBe brief.", "user": ""},
    "tools": {
        "look_up": {"description": "Looks up.", "parameters": {"properties": {"policy": {"type": "string"}}}},
        "pay": {"description": "Pays.", "parameters": {}},
    },
    "settings": {"max_agent_steps": 100, "exit_conditions": ["text"]},
}
CHANGED: dict[str, Any] = {
    "model": {"name": "large-2", "generator": "Generator", "generation_kwargs": {"temperature": 0}},
    "prompts": {"system": "You decide claims.\nBe strict.\nBe brief.", "user": ""},
    "tools": {
        "look_up": {
            "description": "Looks up.",
            "parameters": {"properties": {"policy": {"type": "integer"}}},
        },
        "refund": {"description": "Refunds.", "parameters": {}},
    },
    "settings": {"max_agent_steps": 5, "exit_conditions": ["text"]},
}


def record(definition: str, parts: dict[str, Any]) -> None:
    AgentDefinition.objects.create(agent="claims", definition=definition, parts=parts)


def change_agent() -> None:
    record(DEFINITION, PARTS)
    record(NEW, CHANGED)
    RegisteredAgent.objects.update(definition=NEW)


def text_of(response: Any) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", response.content.decode())).split())


WHAT_CHANGED = (
    "Prompt system prompt You decide claims. - Be kind. + Be strict. Be brief. "
    "Tools look_up.parameters.properties.policy.type string → integer removed pay Pays. added refund Refunds. "
    "Model name small-1 → large-2 Settings max_agent_steps 100 → 5"
)


@pytest.mark.parametrize(
    "state, page",
    [
        ("paused", "/sessions/{}/definition-changes/"),
        ("paused", "/sessions/{}/resume/"),
        ("waiting_for_approval", "/sessions/{}/approve/?call={}"),
        ("done", "/agents/claims/"),
    ],
    ids=["page", "resume", "approve", "agent"],
)
def test_what_changed_in_an_agent_is_shown_part_by_part(operator: Client, state: str, page: str) -> None:
    session = builders.STATES[state]()
    call = ToolCall.objects.filter(branch__session=session).last()
    change_agent()
    assert WHAT_CHANGED in text_of(operator.get(page.format(session.pk, call and call.pk)))


@pytest.mark.slow
@pytest.mark.parametrize("state", ["waiting_for_approval", "in_doubt"])
@pytest.mark.parametrize("page", ["/inbox/", "/sessions/{}/"])
def test_where_an_agent_has_changed_a_link_leads_to_what_changed(
    operator: Client, page: str, state: str
) -> None:
    session = builders.STATES[state]()
    change_agent()
    address = f"/sessions/{session.pk}/definition-changes/"
    assert f'href="{address}"' in operator.get(page.format(session.pk)).content.decode()


def test_tools_that_a_toolset_has_not_listed_yet_are_not_shown_as_removed(operator: Client) -> None:
    session = builders.paused()
    record(DEFINITION, PARTS)
    record(NEW, {**CHANGED, "tools": {}, "tools_pending": True})
    RegisteredAgent.objects.update(definition=NEW)
    answer = text_of(operator.get(f"/sessions/{session.pk}/definition-changes/"))
    assert "name small-1 → large-2" in answer
    assert "removed" not in answer


def test_a_definition_that_is_not_on_record_is_said(operator: Client) -> None:
    session = builders.paused()
    RegisteredAgent.objects.update(definition=NEW)
    answer = text_of(operator.get(f"/sessions/{session.pk}/definition-changes/"))
    assert (
        "What changed cannot be shown: definition dddddddd and definition eeeeeeee are not on record."
        in answer
    )


def test_what_is_hidden_is_not_found_out_by_comparing_definitions(operator: Client, settings: Any) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["account"]
    session = builders.paused()
    record(DEFINITION, {**PARTS, "settings": {"account": "4711"}})
    record(NEW, {**PARTS, "settings": {"account": "4712"}})
    RegisteredAgent.objects.update(definition=NEW)
    answer = text_of(operator.get(f"/sessions/{session.pk}/definition-changes/"))
    assert "What changed is hidden" in answer
    assert "471" not in without_random(answer)


def test_tools_that_are_not_listed_yet_are_said(operator: Client) -> None:
    builders.agent(tools=[], tools_pending=True)
    answer = text_of(operator.get("/agents/claims/"))
    assert "The tools of its toolsets appear after its first run." in answer


ENDLESS = {"$type": "float", "value": "inf"}


def timed(seconds: Any) -> dict[str, Any]:
    return {"name": "look_up", "parameters": {}, "policy": {"timeout": seconds, "cache_ttl": seconds}}


def test_an_endless_time_that_an_earlier_version_stored_is_shown(operator: Client) -> None:
    builders.agent(
        tools=[timed(ENDLESS)], options={"semantic_cache": {"min_similarity": 0.9, "ttl": ENDLESS}}
    )
    answer = text_of(operator.get("/agents/claims/"))
    assert "cached for ∞ timeout ∞" in answer
    assert "a similarity of at least 0.9, for ∞" in answer


def test_a_time_of_an_agent_whose_name_is_hidden_is_hidden(operator: Client, settings: Any) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["ttl"]
    builders.agent(options={"semantic_cache": {"min_similarity": 0.9, "ttl": 60}})
    assert "a similarity of at least 0.9, for ••••" in text_of(operator.get("/agents/claims/"))


@pytest.mark.parametrize(
    "options, said", [({"run_async": True}, True), ({"run_async": False}, False), (None, False)]
)
def test_an_agent_that_runs_asynchronously_is_said(operator: Client, options: Any, said: bool) -> None:
    builders.agent(options=options)
    answer = text_of(operator.get("/agents/claims/"))
    assert ("Runs asynchronously, with run_async" in answer) is said


class Odd:
    def __str__(self) -> str:
        return "an odd one"


def odd(q: str) -> Any:
    return [Odd()]


def test_a_result_that_could_not_be_stored_as_it_is_is_named_on_the_agents_page(operator: Client) -> None:
    from haystack.dataclasses import ToolCall

    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    tool = Tool(name="odd", description="Odd.", parameters=schema, function=odd)
    calls = [ToolCall("odd", {"q": text}) for text in ("a", "b")]
    agent = Agent(chat_generator=sample_agents.scripted(calls, "Done."), tools=[tool])
    adapter = OrmAdapter(agent="claims")
    run(make_durable(agent), adapter.open(say="Hello"))
    seen = LossyResult.objects.get()
    assert (seen.agent, seen.tool, seen.kind) == ("claims", "odd", "tests.test_agents_page.Odd")
    assert "odd tests.test_agents_page.Odd" in text_of(operator.get("/agents/claims/"))


def with_nul(q: str) -> Any:
    return {"sizes": {1, 2}, "price": Decimal("1.50"), "note": "a\x00b"}


@pytest.mark.parametrize(
    "function, on_the_call, on_the_agent",
    [
        (with_nul, "(NUL or an unpaired surrogate) was replaced", "it a character in a text"),
        (
            odd,
            "its type, or the type of a value inside it, cannot be stored",
            "it tests.test_agents_page.Odd",
        ),
    ],
)
def test_what_of_a_result_could_not_be_stored_is_said_of_the_call_and_of_the_agent(
    operator: Client, function: Any, on_the_call: str, on_the_agent: str
) -> None:
    from haystack.dataclasses import ToolCall as Call

    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    tool = Tool(name="it", description="It.", parameters=schema, function=function)
    agent = Agent(chat_generator=sample_agents.scripted([Call("it", {"q": "a"})], "Done."), tools=[tool])
    adapter = OrmAdapter(agent="claims")
    run(make_durable(agent), adapter.open(say="Hello"))
    call = ToolCall.objects.get()
    page = text_of(operator.get(f"/sessions/{call.branch.session_id}/calls/{call.pk}/"))
    assert on_the_call in page
    assert ("was replaced by" in page) is ("Stored as text or plain data" not in page)
    assert on_the_agent in text_of(operator.get("/agents/claims/"))


def test_of_a_tool_with_results_of_both_kinds_each_call_says_its_own(operator: Client) -> None:
    from haystack.dataclasses import ToolCall as Call

    def either(q: str) -> Any:
        return with_nul(q) if q == "nul" else odd(q)

    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    tool = Tool(name="it", description="It.", parameters=schema, function=either)
    calls = [Call("it", {"q": text}, id=text) for text in ("nul", "odd")]
    agent = Agent(chat_generator=sample_agents.scripted(calls, "Done."), tools=[tool])
    run(make_durable(agent), OrmAdapter(agent="claims").open(say="Hello"))
    for call in ToolCall.objects.all():
        page = text_of(operator.get(f"/sessions/{call.branch.session_id}/calls/{call.pk}/"))
        assert ("was replaced by" in page) is (call.call_id == "nul")
        assert ("Stored as text or plain data" in page) is (call.call_id == "odd")


@pytest.mark.slow
def test_the_agents_page_costs_the_same_whatever_is_on_record(
    operator: Client, django_assert_num_queries: Any
) -> None:
    builders.done()
    with django_assert_num_queries(8):
        operator.get("/agents/claims/")
    change_agent()
    for number in range(30):
        LossyResult.objects.create(agent="claims", tool="pay", kind=f"Kind{number}")
    with django_assert_num_queries(8):
        operator.get("/agents/claims/")


def store_sessions(number: int, agent: str, status: Status) -> None:
    now = timezone.now()
    times = {Status.QUEUED: {"next_run_at": now}, Status.RUNNING: {"lease_expires_at": now}}
    waiting_for = "approval" if status == Status.WAITING else ""
    Session.objects.bulk_create(
        Session(agent=agent, status=status, waiting_for=waiting_for, **times.get(status, {}))
        for _ in range(number)
    )


def test_the_list_counts_the_sessions_of_each_agent_exactly_up_to_99(
    operator: Client, django_assert_num_queries: Any
) -> None:
    for key in ("few", "many", "none"):
        builders.agent(key, title=f"The {key}", model="m", tools={}, definition="0" * 64)
    for status in (Status.QUEUED, Status.RUNNING):
        store_sessions(1, "few", status)
        store_sessions(50, "many", status)
    store_sessions(97, "few", Status.PAUSED)
    store_sessions(99, "many", Status.WAITING)
    store_sessions(1, "gone", Status.IDLE)
    with django_assert_num_queries(5):
        text = text_of(operator.get("/agents/"))
    # Running, waiting, all.
    assert "The few few m 0 2 0 99 " in text
    assert "The many many m 0 99+ 99 99+ " in text
    assert "The none none m 0 0 0 0" in text


def test_the_list_says_what_each_agent_is_for(operator: Client) -> None:
    builders.agent("letters", title="Letter room", description="Sends letters to policy holders.")
    text = text_of(operator.get("/agents/"))
    assert "Letter room letters Sends letters to policy holders." in text


def test_what_forks_share_counts_once_on_the_agents_page(operator: Client) -> None:
    source = builders.done()
    source.totals |= {"model_calls": 3, "prompt_tokens": 100}
    source.save()
    end = Checkpoint.objects.filter(branch=source.branch).latest("position")
    end.totals = source.totals
    end.save()
    forking: dict[str, Any] = {
        "actor": builders.SYSTEM,
        "session_id": source.pk,
        "reason": "Try",
        "checkpoint_id": end.pk,
    }
    forks = [actions.fork(**forking) for _ in range(3)]
    forks[0].totals = {**forks[0].totals, "model_calls": 5, "prompt_tokens": 130}
    forks[0].save()
    start = Checkpoint.objects.filter(branch=source.branch).earliest("position")
    rewinding: dict[str, Any] = {"actor": builders.SYSTEM, "session_id": forks[1].pk, "reason": "Try"}
    actions.rewind(**rewinding, checkpoint_id=start.pk)
    summed = agents.totals(RegisteredAgent.objects.get(key="claims"))
    assert summed.count == 4
    assert {name: summed.totals[name] for name in ("model_calls", "prompt_tokens")} == {
        "model_calls": 5,
        "prompt_tokens": 130,
    }
    assert summed.totals["edges"] == source.totals["edges"]
    page = text_of(operator.get("/agents/claims/"))
    assert "Model calls 5" in page
    assert (
        "Of the last 4 sessions: their current histories, without discarded steps; of a fork only what came after "
        "it was forked." in page
    )


def test_the_page_of_a_session_that_was_rewound_says_what_its_totals_count(operator: Client) -> None:
    session = builders.done()
    address = f"/sessions/{session.pk}/"
    said = "the current history; not what was discarded"
    assert said not in text_of(operator.get(address))
    start = Checkpoint.objects.filter(branch=session.branch).earliest("position")
    by: dict[str, Any] = {
        "actor": builders.SYSTEM,
        "session_id": session.pk,
        "reason": "Try",
        "checkpoint_id": start.pk,
    }
    actions.rewind(**by)
    page = text_of(operator.get(address))
    assert "tokens in the current history 0" in page
    assert said in page
    fork = actions.fork(**by)
    assert (
        "the current history, also what it shares with the session that it was forked from; "
        "not what was discarded" in text_of(operator.get(f"/sessions/{fork.pk}/"))
    )


def test_where_no_agent_of_a_running_worker_could_be_loaded_no_page_says_to_start_a_worker(
    operator: Client,
) -> None:
    assert "Start a worker, then reload this page." in text_of(operator.get("/start/"))
    assert "and start a worker." in text_of(operator.get("/agents/"))
    Worker.objects.create(name="desk:1")
    for address in ("/start/", "/agents/", "/workers/"):
        text = text_of(operator.get(address))
        assert "A worker is running, but it has published no agent" in text, address
        assert "check --deploy" in text
        assert "tart a worker" not in text
    builders.agent("letters", title="Letter room")
    for address in ("/start/", "/agents/", "/workers/"):
        assert "has published no agent" not in text_of(operator.get(address)), address
