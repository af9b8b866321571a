"""A tool's own output handlers get what the tool returned, and the model sees what it sees of a plain agent."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from haystack import Document
from haystack.components.agents import Agent
from haystack.dataclasses import (
    ChatMessage,
    ExtractedAnswer,
    FileContent,
    ImageContent,
    ReasoningContent,
    SparseEmbedding,
    TextContent,
    ToolCall,
    ToolCallResult,
)
from haystack.tools import Tool
from pydantic import BaseModel

from agentstate import ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.durable.definition import fingerprint
from agentstate.durable.run import run
from agentstate.durable.state.encoding import decode, encode
from agentstate.journals import MemoryJournal
from tests.dying import Died
from tests.sample_agents import scripted
from tests.test_durable_run import DyingJournal, comparable, killed_at

pytestmark = pytest.mark.usefixtures("no_effects")

PIXEL = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
).decode()
IMAGE = ImageContent(base64_image=PIXEL, mime_type="image/png", validation=False)
FILE = FileContent(base64_data=PIXEL, mime_type="application/pdf", filename="a.pdf")
TEXT = TextContent("some text")


@dataclass
class Order:
    number: int
    title: str


class Invoice(BaseModel):
    number: int
    lines: list[str]


def order_title(order: Order) -> str:
    return f"Order {order.number}: {order.title}"


def invoice_lines(invoice: Invoice) -> str:
    return " + ".join(invoice.lines)


def fails(value: Any) -> str:
    raise ValueError("this handler fails")


class Grade(str, Enum):  # noqa: UP042 - a StrEnum has its text as that of `str`, too
    HIGH = "high"


class Clerk:
    def title(self, order: Order) -> str:
        return order.title.upper()


ORDER = Order(1042, "shoes")
INVOICE = Invoice(number=7, lines=["shoes", "laces"])
ANSWER = ExtractedAnswer(
    query="who?", score=0.5, data="Ann", document=Document(id="d", content="Ann did."), context="Ann did."
)
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "a dataclass": (lambda: ORDER, {}),
    "a dataclass to a handler": (lambda: ORDER, {"outputs_to_string": {"handler": order_title}}),
    "a dataclass to a method": (lambda: ORDER, {"outputs_to_string": {"handler": Clerk().title}}),
    "a dataclass to a handler that fails": (lambda: ORDER, {"outputs_to_string": {"handler": fails}}),
    "a list of dataclasses": (lambda: [ORDER, ORDER], {}),
    "a pydantic object": (lambda: INVOICE, {}),
    "a pydantic object to a handler": (lambda: INVOICE, {"outputs_to_string": {"handler": invoice_lines}}),
    "an object in a dict": (lambda: {"order": ORDER, "n": 1}, {}),
    "an object in a dict to a handler": (
        lambda: {"order": ORDER, "n": 1},
        {"outputs_to_string": {"source": "order", "handler": order_title}},
    ),
    "a part of a dict with an object": (
        lambda: {"order": ORDER, "n": 1},
        {"outputs_to_string": {"source": "order"}},
    ),
    "several outputs": (
        lambda: {"order": ORDER, "invoice": INVOICE},
        {
            "outputs_to_string": {
                "title": {"source": "order", "handler": order_title},
                "lines": {"source": "invoice", "handler": invoice_lines},
                "all": {"source": "order"},
            }
        },
    ),
    "an enum that is a text": (lambda: Grade.HIGH, {}),
    "an enum that is a text in a dict": (
        lambda: {"grade": Grade.HIGH, "n": 1},
        {"outputs_to_string": {"source": "grade"}},
    ),
    "several outputs with an enum that is a text": (
        lambda: {"grade": Grade.HIGH, "n": 1},
        {"outputs_to_string": {"grade": {"source": "grade"}, "n": {"source": "n"}}},
    ),
    "text and state": (
        lambda: {"order": ORDER, "docs": [Document(id="d", content="it")]},
        {
            "outputs_to_string": {"source": "order", "handler": order_title},
            "outputs_to_state": {"docs": {"source": "docs"}},
        },
    ),
    "an extracted answer": (lambda: ANSWER, {}),
    "an extracted answer to a handler": (
        lambda: ANSWER,
        {"outputs_to_string": {"handler": lambda answer: answer.document.content}},
    ),
    "an image": (lambda: [IMAGE], {"outputs_to_string": {"raw_result": True}}),
    "text, image and file": (lambda: [TEXT, IMAGE, FILE], {"outputs_to_string": {"raw_result": True}}),
    "an image in a dict": (
        lambda: {"image": [IMAGE], "n": 1},
        {"outputs_to_string": {"source": "image", "raw_result": True}},
    ),
}


def build(case: str) -> Agent:
    function, options = CASES[case]
    tool = Tool(
        name="it",
        description="it",
        parameters={"type": "object", "properties": {}},
        function=function,
        **options,
    )
    return Agent(
        chat_generator=scripted([ToolCall("it", {}, id="x1")], "Over."),
        tools=[tool],
        state_schema={"docs": {"type": list[Document]}},
    )


@pytest.mark.parametrize("case", CASES)
def test_the_model_and_the_state_get_the_same_of_a_result_as_in_a_plain_run(case: str) -> None:
    plain = build(case).run([ChatMessage.from_user("hi")])
    outcome = run(make_durable(build(case)), MemoryJournal.open(say="hi"))
    assert outcome.result is not None, outcome.why
    assert comparable(outcome.result) == comparable(plain)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_they_get_the_same_after_a_kill_at_any_write(case: str, committed: bool) -> None:
    plain = build(case).run([ChatMessage.from_user("hi")])
    durable = make_durable(build(case), policies={"it": ToolPolicy(idempotent=True)})
    number, died = 0, True
    while died:
        number += 1
        died, outcome = killed_at(number, committed, durable, {})
        assert outcome.result is not None, f"write {number}: {outcome.why}"
        assert comparable(outcome.result) == comparable(plain), f"write {number}"
    assert number > 4


def test_a_handler_is_called_once_also_where_its_call_is_replayed() -> None:
    seen: list[Any] = []

    def handler(order: Order) -> str:
        seen.append(order)
        return order.title

    CASES["counted"] = (lambda: ORDER, {"outputs_to_string": {"handler": handler}})
    try:
        durable = make_durable(build("counted"))
    finally:
        del CASES["counted"]
    journal = DyingJournal.open(say="hi")
    assert isinstance(journal, DyingJournal)
    journal.dies_at, journal.committed = 4, True  # the end of the call
    with pytest.raises(Died):
        run(durable, journal)
    assert run(durable, MemoryJournal.open(journal.store)).status == "idle"
    assert seen == [ORDER]


@pytest.mark.parametrize(
    "value",
    [
        ANSWER,
        IMAGE,
        FILE,
        TEXT,
        ReasoningContent("hm", {"n": 1}),
        SparseEmbedding([1, 2], [0.5, 0.25]),
        ToolCall("it", {"a": 1}, id="c1"),
        ToolCallResult(result="yes", origin=ToolCall("it", {}), error=False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_haystacks_own_types_are_stored_as_they_are(value: Any) -> None:
    decoded = decode(encode({"value": [value]}))["value"][0]
    assert type(decoded) is type(value)
    assert decoded == value


@pytest.mark.parametrize("case", ["a dataclass to a handler", "a dataclass to a method"])
def test_running_a_tool_does_not_change_the_agents_definition(case: str) -> None:
    agent = build(case)
    before = fingerprint(agent)
    run(make_durable(agent), MemoryJournal.open(say="hi"))
    assert fingerprint(agent) == before
