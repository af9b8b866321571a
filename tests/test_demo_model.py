"""The scripted demo model reads what was written, picks tools by it, and tells what the tools answered."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall

from agentstate.demo import agents, ledger, records, scripted
from agentstate.durable.failures import is_transient


@pytest.fixture(autouse=True)
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSTATE_DEMO_DIR", str(tmp_path))
    monkeypatch.setenv("AGENTSTATE_DEMO_DELAY", "0")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@dataclass
class Talk:
    """A conversation with an agent, turn by turn; `steps` are the tools of each step of the last turn."""

    agent: Agent
    inputs: dict[str, Any] = field(default_factory=dict)
    history: list[ChatMessage] = field(default_factory=list)
    steps: list[list[str]] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str) -> str:
        before = [message for message in self.history if not message.is_from("system")]
        result = self.agent.run(messages=[*before, ChatMessage.from_user(text)], **self.inputs)
        new = result["messages"][len(before) + 2 :]
        self.history = result["messages"]
        self.steps = [
            [call.tool_name for call in message.tool_calls] for message in new if message.tool_calls
        ]
        self.calls = [call for message in new for call in message.tool_calls]
        self.state = result
        return result["last_message"].text or ""

    def arguments_of(self, tool: str) -> dict[str, Any]:
        return next(call.arguments for call in self.calls if call.tool_name == tool)


@pytest.fixture(scope="module")
def claims_agent() -> Agent:
    return agents.claims_desk()


@pytest.fixture
def claims(claims_agent: Agent) -> Talk:
    return Talk(claims_agent)


def test_a_conversation_goes_on_from_turn_to_turn(claims):
    answer = claims.say("what is my policy status")
    assert claims.calls[0].arguments == {"policy_number": "POL-8801"}
    assert "POL-8801" in answer
    assert "active" in answer

    answer = claims.say("also check whether my deductible applies")
    assert claims.steps == [["check_deductible"]]
    assert answer == "A deductible of $500.00 applies to each loss on policy POL-8801."

    answer = claims.say("look up claim CLM-1042")
    assert claims.steps == [["look_up_claim"]]
    assert "Rear-ended at a red light" in answer

    answer = claims.say("and does my deductible apply there?")
    assert claims.steps == [["look_up_claim"], ["check_deductible"]]
    assert "does not apply to claim CLM-1042, because the other driver was found at fault" in answer


def test_the_customer_is_whoever_the_session_says(claims_agent):
    talk = Talk(claims_agent, {"policy_number": "POL-8808"})
    assert "Tom Becker" in talk.say("What is the status of my policy?")
    assert "tennis ball" in talk.say("And of my claim?")


def test_a_refund_is_looked_into_paid_exactly_and_confirmed(claims):
    answer = claims.say("Please refund the deductible on claim CLM-1047, policy POL-8806.")
    assert claims.steps == [
        ["look_up_claim", "look_up_policy", "search_knowledge"],
        ["check_deductible"],
        ["make_plan", "take_note"],
        ["issue_refund"],
        ["send_letter", "complete_step"],
        ["complete_step"],
    ]
    assert claims.arguments_of("issue_refund") == {
        "claim_number": "CLM-1047",
        "amount": 750.0,
        "reason": "Deductible waived: the storm was declared a catastrophe and the policy waives it then",
    }
    assert [entry["amount"] for entry in ledger.entries("refunds")] == ["750.00"]
    assert [entry["to"] for entry in ledger.entries("letters")] == ["Aiko Tanaka"]
    assert "RF-0001" in answer
    assert "LT-0001" in answer
    assert claims.state["docs"][0].id == "KB-101"
    memory = claims.state["working_memory"]
    assert memory["goal"] == "Refund $750.00 on CLM-1047"
    assert memory["completed"] == memory["plan"]
    assert len(memory["plan"]) == 2
    assert "declared a catastrophe" in memory["notes"][0]


def test_a_refund_that_was_made_is_not_made_again(claims):
    claims.say("Refund CLM-1042")
    assert "refunded already: RF-0001" in claims.say("Refund CLM-1042 please")
    assert len(ledger.entries("refunds")) == 1


@pytest.mark.parametrize(
    "claim, why", [("CLM-1043", "the deductible applies to it"), ("CLM-1044", "nothing was withheld")]
)
def test_nothing_is_refunded_that_is_not_due(claims, claim, why):
    assert (
        claims.say(f"I want my money back on {claim}")
        == f"There is nothing to refund on claim {claim}: {why}."
    )
    assert ledger.entries("refunds") == []


def test_several_refunds_are_made_one_after_the_other(claims):
    answer = claims.say("Refund CLM-1042 and CLM-1045")
    assert [entry["claim_number"] for entry in ledger.entries("refunds")] == ["CLM-1042", "CLM-1045"]
    assert [step for step in claims.steps if "issue_refund" in step] == [["issue_refund"], ["issue_refund"]]
    assert "RF-0001" in answer
    assert "RF-0002" in answer


def test_a_claim_that_is_not_named_is_asked_for_and_then_used(claims):
    question = claims.say("I want a refund")
    assert question.endswith("Which do you mean: CLM-1042 or CLM-1050?")
    assert "RF-0001" in claims.say("CLM-1042")


@pytest.mark.parametrize("text", ["look up claim CLM-9999", "refund CLM-9999", "deductible of CLM-9999?"])
def test_an_unknown_claim_is_said_to_be_unknown(claims, text):
    assert "There is no claim CLM-9999 on file." in claims.say(text)
    assert ledger.entries("refunds") == []


def test_a_letter_that_a_person_says_was_printed_needs_no_number(claims_agent):
    request = "Send a letter to POL-8807 saying that we are closed on Friday."
    looked_up = {"holder": "Greta Lindqvist", "number": "POL-8807"}
    history = [ChatMessage.from_user(request)]
    generator = claims_agent.chat_generator
    for result in (looked_up, {"status": "printed"}):
        reply = generator.run(messages=history, tools=claims_agent.tools)["replies"][0]
        history.append(reply)
        history += [ChatMessage.from_tool(json.dumps(result), origin=call) for call in reply.tool_calls]
    answer = generator.run(messages=history, tools=claims_agent.tools)["replies"][0]
    assert answer.text == "A letter to Greta Lindqvist is with the printing service."


def test_letters_to_several_holders_go_out_in_one_step(claims):
    answer = claims.say("Send a letter to POL-8802 and POL-8803 saying that we are closed on Friday.")
    assert claims.steps == [["look_up_policy", "look_up_policy"], ["send_letter", "send_letter"]]
    assert {entry["text"] for entry in ledger.entries("letters")} == {"We are closed on Friday."}
    assert "Daniel Okafor" in answer
    assert "Priya Raman" in answer


def test_a_letter_about_a_claim_goes_to_the_holder_of_its_policy(claims):
    claims.say("Write to the customer about CLM-1044")
    (entry,) = ledger.entries("letters")
    assert entry["to"] == "Priya Raman"
    assert "waiting for the police report" in entry["text"]


@pytest.mark.parametrize(
    "question, article",
    [
        ("Is hail covered?", "KB-103"),
        ("How long does a claim take?", "KB-107"),
        ("When is a deductible refunded?", "KB-101"),
        ("What happens if a policy lapses?", "KB-106"),
    ],
)
def test_a_general_question_is_answered_from_the_knowledge_base(claims, question, article):
    answer = claims.say(question)
    assert claims.steps == [["search_knowledge"]]
    assert article in answer
    assert claims.state["docs"]


def test_several_things_are_looked_up_at_once(claims):
    answer = claims.say("Look up CLM-1042 and CLM-1047, and is hail covered?")
    assert claims.steps == [["look_up_claim", "look_up_claim", "search_knowledge"]]
    assert all(words in answer for words in ("CLM-1042", "CLM-1047", "KB-103"))


@pytest.mark.parametrize(
    "text, answer",
    [
        ("Hello!", "Hello! I can look up a claim"),
        ("thanks", "You are welcome."),
        ("blorp", "I am not sure what you mean."),
        ("", "I am not sure what you mean."),
        ("never mind", "All right"),
    ],
)
def test_small_talk_and_nonsense_call_no_tool(claims, text, answer):
    assert claims.say(text).startswith(answer)
    assert claims.calls == []


def test_a_request_that_is_replaced_is_dropped(claims):
    history = [ChatMessage.from_user("Refund CLM-1042"), ChatMessage.from_user("look up POL-8804 instead")]
    wanted = scripted.reply(history, claims.agent.tools).tool_calls
    assert [call.tool_name for call in wanted] == ["look_up_policy"]


def test_a_message_that_comes_in_between_is_taken_up_beside_the_first(claims):
    messages = [
        ChatMessage.from_user("Look up claim CLM-1042"),
        ChatMessage.from_assistant(
            tool_calls=[ToolCall("look_up_claim", {"claim_number": "CLM-1042"}, id="1")]
        ),
        _answer("look_up_claim", {"claim_number": "CLM-1042"}, "1", json.dumps(records.claim("CLM-1042"))),
        ChatMessage.from_user("and CLM-1047 too"),
    ]
    wanted = scripted.reply(messages, claims.agent.tools).tool_calls
    assert [call.arguments for call in wanted] == [{"claim_number": "CLM-1047"}]


@pytest.mark.slow
def test_the_research_desk_reads_every_source_step_by_step():
    talk = Talk(agents.research_desk())
    answer = talk.say("Research the storm damage of the year")
    assert len(talk.steps) >= 13
    memory = talk.state["working_memory"]
    assert memory["goal"] == "Research the storm damage of the year"
    assert memory["completed"] == memory["plan"] == [source["title"] for source in records.sources()]
    assert answer.startswith("I have read 14 of 14 sources.")
    for source in records.sources():
        assert source["finding"] in answer


def test_the_research_desk_reads_only_the_sources_that_are_named():
    talk = Talk(agents.research_desk())
    talk.say("Research S02 and S05")
    read = [call.arguments["source"] for call in talk.calls if call.tool_name == "slow_research"]
    assert read == ["S02", "S05"]


def test_the_letter_room_writes_letters_and_nothing_else():
    talk = Talk(agents.letter_room())
    assert talk.say("Send a letter") == "Which policy is the letter for?"
    assert "LT-0001" in talk.say("POL-8804")
    assert talk.say("Refund CLM-1042").startswith(
        "I am not sure what you mean. I can look up a policy or send"
    )


# What a person does to a call, as the model is shown it.


def _answer(
    tool: str, arguments: dict[str, Any], call_id: str, text: str, error: bool = False
) -> ChatMessage:
    return ChatMessage.from_tool(text, origin=ToolCall(tool, arguments, id=call_id), error=error)


def _until(talk: Talk, tool: str, text: str) -> list[ChatMessage]:
    """The conversation up to the moment where the model has asked for `tool`."""
    talk.say(text)
    index = next(
        index
        for index, message in enumerate(talk.history)
        if any(call.tool_name == tool for call in message.tool_calls)
    )
    return talk.history[: index + 1]


def test_the_customer_is_told_that_a_refund_was_rejected_and_why(claims):
    messages = _until(claims, "issue_refund", "Refund CLM-1042")
    call = messages[-1].tool_calls[0]
    rejected = ChatMessage.from_tool("the case goes to the legal department first", origin=call, error=True)
    messages = [*messages, rejected]
    reply = scripted.reply(messages, claims.agent.tools)
    (note,) = reply.tool_calls
    assert note.tool_name == "take_note"
    reply = scripted.reply(
        [*messages, reply, ChatMessage.from_tool("Noted.", origin=note)], claims.agent.tools
    )
    assert reply.tool_calls == []
    assert reply.text == (
        "I am sorry: the refund of $500.00 on claim CLM-1042 was not made. "
        "The case goes to the legal department first."
    )


def test_a_refund_that_a_person_lowered_is_told_as_it_was_paid(claims):
    messages = _until(claims, "issue_refund", "Refund CLM-1042")
    edited = copy.deepcopy(messages[-1].tool_calls[0])
    edited.arguments["amount"] = 450.0
    messages = [
        *messages[:-1],
        ChatMessage.from_user("A person changed the arguments of 'issue_refund'."),
        ChatMessage.from_assistant(tool_calls=[edited]),
        ChatMessage.from_tool('{"refund": "RF-0009", "amount": "450.00"}', origin=edited),
    ]
    reply = scripted.reply(messages, claims.agent.tools)
    assert [call.tool_name for call in reply.tool_calls] == ["send_letter", "complete_step"]
    assert "We have refunded $450.00" in reply.tool_calls[0].arguments["text"]


@pytest.mark.parametrize(
    "text, error, told",
    [
        ("It was printed, job 88", False, "About the letter to Greta Lindqvist: It was printed, job 88."),
        ("nobody at the printer", True, "A letter to Greta Lindqvist was not sent: Nobody at the printer."),
        ("88", False, "About the letter to Greta Lindqvist: 88."),
    ],
)
def test_what_a_person_entered_for_a_call_in_doubt_is_passed_on(claims, monkeypatch, text, error, told):
    monkeypatch.setattr("agentstate.demo.tools.time.sleep", lambda seconds: None)
    messages = _until(claims, "send_letter", "Send a letter to POL-8807")
    entered = ChatMessage.from_tool(text, origin=messages[-1].tool_calls[0], error=error)
    assert scripted.reply([*messages, entered], claims.agent.tools).text == told


@pytest.mark.parametrize(
    "text", ['{"unexpected": 1}', '{"number": "CLM-1042", "damage": "much"}', "[]", "17"]
)
def test_a_result_that_a_person_replaced_by_something_odd_does_no_harm(claims, text):
    messages = _until(claims, "look_up_claim", "Look up CLM-1042")
    replaced = ChatMessage.from_tool(text, origin=messages[-1].tool_calls[0])
    reply = scripted.reply([*messages, replaced], claims.agent.tools)
    assert reply.text
    assert reply.tool_calls == []


# The model as a model.


def _requests() -> list[str]:
    return ["Refund CLM-1042", "Look up CLM-1042 and POL-8802", "blorp", "Send a letter to POL-8801"]


@pytest.mark.parametrize("text", _requests())
def test_the_same_conversation_gets_the_same_reply_and_stays_as_it_was(claims, text):
    claims.say(text)
    for length in range(1, len(claims.history)):
        if claims.history[length].is_from("assistant"):
            shown: Sequence[ChatMessage] = claims.history[:length]
            before = copy.deepcopy(shown)
            again = scripted.reply(list(shown), claims.agent.tools)
            assert shown == before
            assert again.text == claims.history[length].text
            assert again.tool_calls == claims.history[length].tool_calls


def test_every_call_has_an_id_of_its_own(claims):
    claims.say("Refund CLM-1042")
    claims.say("Look up CLM-1042")
    ids = [call.id for message in claims.history for call in message.tool_calls]
    assert len(ids) == len(set(ids)) == 11


def test_usage_grows_with_the_conversation(claims):
    claims.say("Look up CLM-1042")
    first, last = (message for message in claims.history if message.is_from("assistant"))
    assert first.meta["model"] == "scripted demo model"
    assert 0 < first.meta["usage"]["prompt_tokens"] < last.meta["usage"]["prompt_tokens"]
    for message in (first, last):
        usage = message.meta["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["completion_tokens"] > 0


def test_the_archived_ledger_is_refused_for_good(claims):
    with pytest.raises(scripted.ModelServerError, match=r"HTTP 400: .* ARC-0413 ") as raised:
        claims.say("What was paid on ARC-0413?")
    assert not is_transient(raised.value)


def test_after_a_refusal_another_request_works(claims):
    messages = [
        ChatMessage.from_user("What was paid on ARC-0413?"),
        ChatMessage.from_user("Look up CLM-1042"),
    ]
    assert scripted.reply(messages, claims.agent.tools).tool_calls[0].tool_name == "look_up_claim"


def test_at_rush_hour_each_request_is_served_at_the_third_attempt(claims):
    for _ in range(2):
        for _ in range(2):
            with pytest.raises(scripted.ModelServerError, match="HTTP 503") as raised:
                claims.say("It is rush hour: look up CLM-1042")
            assert is_transient(raised.value)
        assert "Rear-ended" in claims.say("It is rush hour: look up CLM-1042")


def test_the_model_takes_its_time(claims, monkeypatch):
    waited: list[float] = []
    sleep: Callable[[float], None] = waited.append
    monkeypatch.setattr("agentstate.demo.tools.time.sleep", sleep)
    monkeypatch.setenv("AGENTSTATE_DEMO_DELAY", "0.25")
    claims.say("Look up CLM-1042")
    assert waited == [0.25, 0.25]


def test_a_streamed_reply_comes_word_by_word_and_is_the_one_that_comes_at_once(monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr("agentstate.demo.tools.delay", lambda times=1: waits.append(times))
    generator = scripted.ScriptedChatGenerator()
    messages = [ChatMessage.from_user("hello")]
    (whole,) = generator.run(messages)["replies"]
    chunks: list[str] = []
    (streamed,) = generator.run(messages, streaming_callback=lambda chunk: chunks.append(chunk.content))[
        "replies"
    ]
    assert (streamed.text, streamed.meta) == (whole.text, whole.meta)
    assert whole.text
    assert len(chunks) == len(whole.text.split()) > 3
    assert "".join(chunks) == whole.text
    # The whole reply takes one wait, the streamed one that and a short one for each word.
    assert waits == [1, 1] + [0.1] * len(chunks)
