"""The demo agents are registered as they should be, with a scripted model or a real one, and survive restarts."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from haystack.dataclasses import ChatMessage

from agentstate.demo import agents
from agentstate.durable.agent import describe
from agentstate.durable.registry import registry
from tools.processes import PROJECT, environment


@pytest.fixture(autouse=True)
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSTATE_DEMO_DIR", str(tmp_path))
    monkeypatch.setenv("AGENTSTATE_DEMO_DELAY", "0")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.mark.parametrize("key", ["claims", "research", "letters"])
def test_each_is_registered_and_can_be_built(key):
    registration = registry.get(key)
    told = describe(registration)
    assert told.problem == ""
    assert told.model == "scripted demo model"
    assert registration.description
    assert all(tool["description"] for tool in told.tools)
    assert all(
        about["description"] for tool in told.tools for about in tool["parameters"]["properties"].values()
    )


def test_those_with_long_answers_stream_them():
    assert [key for key in ("claims", "research", "letters") if registry.get(key).stream] == [
        "claims",
        "research",
    ]


@pytest.mark.parametrize("key", ["claims", "research", "letters"])
def test_the_same_agent_has_the_same_definition_each_time_it_is_built(key):
    from agentstate.durable.definition import fingerprint

    factory = registry.get(key).factory
    assert fingerprint(factory()) == fingerprint(factory())


def test_what_moves_money_or_leaves_the_house_is_not_repeated_by_itself():
    registration = registry.get("claims")
    refund = registration.policy("issue_refund")
    assert refund.approval
    assert not refund.idempotent
    assert refund.approval_ttl == 3600
    assert refund.effect == "moves money, cannot be undone"
    letter = registration.policy("send_letter")
    assert not letter.idempotent
    assert letter.timeout
    for tool in ("look_up_policy", "look_up_claim", "check_deductible", "search_knowledge"):
        assert registration.policy(tool).idempotent
        assert registration.policy(tool).cache_ttl


class ModelServer(BaseHTTPRequestHandler):
    """Answers every chat completion in the same words, and keeps what it was asked."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append({"path": self.path, "key": self.headers["authorization"], **body})
        message = {"role": "assistant", "content": "I am a real model."}
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
        }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test says what went wrong."""


@pytest.fixture
def model_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []
    handler = type("Handler", (ModelServer,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_with_a_key_they_ask_the_model_server_that_the_environment_names(model_server, monkeypatch):
    url, asked = model_server
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-this-test")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("AGENTSTATE_DEMO_MODEL", "some-model")
    with closing(agents.claims_desk()) as agent:
        result = agent.run(messages=[ChatMessage.from_user("Hello")], policy_number="POL-8804")
    assert result["last_message"].text == "I am a real model."
    (request,) = asked
    assert request["path"] == "/v1/chat/completions"
    assert request["key"] == "Bearer sk-for-this-test"
    assert request["model"] == "some-model"
    assert "holder of policy POL-8804" in str(request["messages"][0]["content"])
    assert "issue_refund" in {tool["function"]["name"] for tool in request["tools"]}


ONE_TURN = """
import sys
from agentstate.demo import agents
from agentstate.durable.agent import build
from agentstate.durable.registry import registry
from agentstate.durable.run import run
from agentstate.journals.file import FileJournal

with FileJournal.open(sys.argv[1], say=sys.argv[2]) as journal:
    outcome = run(build(registry.get("claims")), journal)
messages = outcome.result["messages"]
print(len([message for message in messages if message.is_from("user")]))
print(messages[-1].text)
"""


@pytest.mark.slow
def test_a_conversation_goes_on_in_other_processes(tmp_path):
    """One turn a process, with nothing between them but a file."""
    env = environment(AGENTSTATE_DEMO_DELAY="0", HAYSTACK_TELEMETRY_ENABLED="false")

    def turn(text: str) -> tuple[str, str]:
        command = [sys.executable, "-c", ONE_TURN, str(tmp_path / "session.jsonl"), text]
        done = subprocess.run(command, env=env, cwd=PROJECT, capture_output=True, text=True, check=True)
        said, _, answer = done.stdout.partition("\n")
        return said, answer.strip()

    assert turn("what is my policy status")[1].startswith(
        "Policy POL-8801 (Comprehensive car, Maria Santos) is"
    )
    assert turn("also check whether my deductible applies") == (
        "2",
        "A deductible of $500.00 applies to each loss on policy POL-8801.",
    )
    said, answer = turn("look up claim CLM-1042")
    assert said == "3"
    assert answer.startswith("Claim CLM-1042 on policy POL-8801")
