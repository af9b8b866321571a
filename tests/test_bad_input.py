"""Whatever agents, models, tools and people hand in: the session says clearly what is wrong, and nothing is lost."""

import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import uuid4

import pytest
from django.db import OperationalError
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from haystack import Document, component
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage
from haystack.dataclasses import ToolCall as Call
from haystack.hooks import hook
from haystack.tools import Tool, tool

from agentstate import ToolPolicy
from sessions_app import actions
from sessions_app.access.errors import Invalid, NotFound
from sessions_app.models import CallStatus, Checkpoint, LossyResult, Phase, Session, Status, WaitingFor
from sessions_app.runtime.journal import OrmJournal
from sessions_app.runtime.worker import drive
from tests import driving, sample_agents
from tests.builders import SYSTEM, user
from tests.driving import KEY, Desk
from tests.dying import Died
from tests.sample_agents import effect, effects, scripted

pytestmark = pytest.mark.django_db


def after_death(desk: Desk, session: Session) -> Session:
    Session.objects.filter(pk=session.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    return desk.run(session)


def told(desk: Desk, session: Session) -> list[str]:
    """What the model was told of its calls."""
    return [text for role, text in desk.texts(session) if role == "tool"]


# Sessions and agents that are not there


def test_a_session_that_there_is_not_is_nobodys_business(db: None) -> None:
    nobody = uuid4()
    assert drive(nobody, worker="w1") == "busy"
    for action in (actions.pause, actions.resume, actions.cancel, actions.undo):
        with pytest.raises(NotFound, match=f"There is no session {nobody}"):
            action(actor=SYSTEM, session_id=nobody, reason="x")
    with pytest.raises(NotFound):
        actions.send_message(actor=SYSTEM, session_id="no uuid at all", text="hello")


def waits_for_its_agent(desk: Desk, session: Session, *words: str) -> None:
    """The session waits, says what is wrong, and goes on when the agent is there."""
    assert desk.drive(session) == "waiting"
    after = desk.fresh(session)
    assert (after.status, after.waiting_for) == (Status.WAITING, WaitingFor.CHANGED)
    for word in words:
        assert word in after.why
    told = desk.last_event(session)
    assert (told.kind, told.reason) == ("changed", after.why)
    desk.agent(sample_agents.refunds)
    desk.resume(session)
    after = desk.run(session)
    assert (after.status, after.phase, after.why) == (Status.IDLE, Phase.DONE, "")
    assert effects.count("refund(A1,100)") == 1


def stopped_after_a_step(desk: Desk) -> Session:
    desk.agent(sample_agents.refunds)
    session = desk.start()
    assert desk.drive(session, slice_seconds=0) == "queued"
    assert effects.count("refund(A1,100)") == 1
    return session


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True], ids=["at the start", "in the middle"])
def test_an_agent_that_is_gone_from_the_registry(desk: Desk, begun: bool) -> None:
    desk.agent(sample_agents.refunds)
    session = stopped_after_a_step(desk) if begun else desk.start()
    driving.unregister(KEY)
    waits_for_its_agent(
        desk, session, f"No agent is registered as '{KEY}'", "Add its module to AGENTSTATE_AGENTS"
    )


@pytest.mark.slow
def test_a_factory_that_fails(desk: Desk) -> None:
    session = stopped_after_a_step(desk)

    def build() -> Agent:
        raise RuntimeError("no key for the model")

    desk.agent(build)
    waits_for_its_agent(desk, session, "The factory", KEY, "RuntimeError: no key for the model")


@pytest.mark.slow
def test_a_factory_that_returns_something_else(desk: Desk) -> None:
    session = stopped_after_a_step(desk)
    desk.agent(lambda: "an agent")  # type: ignore[arg-type, return-value]
    waits_for_its_agent(desk, session, "returned a str, not a Haystack Agent")


@pytest.mark.slow
def test_a_policy_for_a_tool_that_the_agent_lacks(desk: Desk) -> None:
    session = stopped_after_a_step(desk)
    desk.agent(sample_agents.refunds, policies={"refunt": ToolPolicy(approval=True)})
    waits_for_its_agent(desk, session, "policies for tools that it lacks: refunt", "It has: fast, refund")


def test_a_module_that_cannot_be_imported(desk: Desk, settings: Any) -> None:
    desk.agent(sample_agents.refunds)
    session = desk.start()
    settings.AGENTSTATE_AGENTS = ["no.such.module"]
    driving.unregister(KEY)
    assert desk.drive(session) == "waiting"
    assert "'no.such.module' cannot be imported" in desk.fresh(session).why
    settings.AGENTSTATE_AGENTS = []
    desk.agent(sample_agents.refunds)
    desk.resume(session)
    assert desk.run(session).phase == Phase.DONE


# An agent that has changed


def prompted(words: str, steps: int = 2) -> Callable[[], Agent]:
    return lambda: sample_agents.long_run(steps, system_prompt=words)


@pytest.mark.slow
def test_an_agent_that_changed_in_the_middle_waits_for_a_person_who_lets_it_go_on_as_it_is_now(
    desk: Desk,
) -> None:
    desk.agent(prompted("Be kind."))
    session = desk.start()
    desk.drive(session, slice_seconds=0)
    before = desk.fresh(session).definition
    desk.agent(prompted("Be brief."))
    assert desk.drive(session) == "waiting"
    after = desk.fresh(session)
    assert (after.status, after.waiting_for, after.phase) == (
        Status.WAITING,
        WaitingFor.CHANGED,
        Phase.REFLECTING,
    )
    assert "The agent has changed since the session last ran" in after.why
    assert "Resume to continue with the agent as it is now" in after.why
    assert effects.count("fast(q0)") == 1

    desk.resume(session)
    after = desk.run(session)
    assert (after.phase, after.final_answer) == (Phase.DONE, "Long done.")
    assert after.definition != before
    assert Checkpoint.objects.filter(branch=after.branch).latest("position").definition == after.definition
    assert effects.count("fast(q0)") == effects.count("fast(q1)") == 1


@pytest.mark.slow
def test_one_that_changes_again_waits_again(desk: Desk) -> None:
    desk.agent(prompted("one", 9))
    session = desk.start()
    desk.drive(session, slice_seconds=0)
    for words in ("two", "three"):
        desk.agent(prompted(words, 9))
        assert desk.drive(session) == "waiting"
        desk.resume(session)
        # In the middle of a slice, where a step's checkpoint goes with its reply.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OrmJournal, "finish_call", _dies_at(OrmJournal.finish_call, 3))
            with pytest.raises(Died):
                desk.drive(session)
        Session.objects.filter(pk=session.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    desk.agent(prompted("four", 9))
    assert desk.drive(session) == "waiting"


def _dies_at(method: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The method, after whose n-th call the process dies."""
    calls = iter(range(1, number + 1))

    def dying(*args: Any, **kwargs: Any) -> Any:
        answer = method(*args, **kwargs)
        if next(calls) == number:
            raise Died
        return answer

    return dying


@pytest.mark.slow
def test_between_two_turns_an_agent_may_change(desk: Desk) -> None:
    desk.agent(prompted("one"))
    session = desk.run(desk.start())
    desk.agent(prompted("two"))
    desk.say(session, "again")
    after = desk.run(session)
    assert after.phase == Phase.DONE
    assert [text for role, text in desk.texts(session) if role == "system"] == ["one", "two"]


# Tools


class Thing:
    def __str__(self) -> str:
        return "a thing"

    def use(self) -> str:
        return "used"


class Stubborn:
    def __repr__(self) -> str:
        raise RuntimeError("no text for you")


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {"a": 1}
    value["itself"] = [value]
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    return value


RESULTS: dict[str, tuple[Callable[[], Any], bool]] = {
    "an object": (Thing, True),
    "an object inside": (lambda: {"zz": [Thing()], "a": 1}, True),
    "an object without text": (Stubborn, True),
    "a generator": (lambda: (n for n in range(3)), True),
    "a class": (lambda: Thing, True),
    "an open file": (lambda: open("/dev/null", "rb"), True),  # noqa: SIM115
    "itself": (cyclic, True),
    "no bottom": (deep, True),
    "NUL characters": (lambda: "a\x00b", True),
    "lone surrogates": (lambda: ["\ud800"], True),
    "NaN": (lambda: {"n": math.nan, "inf": math.inf}, False),
    "huge numbers": (lambda: [1e300, -0.0, 10**30], False),
    "a number without end": (lambda: [10**5000], True),
    "bytes": (lambda: b"\x00\xff", False),
    "nothing": (lambda: None, False),
    "empty text": (lambda: "", False),
    "Python's own": (lambda: {1: (2, {3}), "d": Decimal("1.0"), "t": timedelta(1)}, False),
    "keys in no order": (lambda: {"zebra": 1, "ant": {"zz": 1, "b": 2}, "": None}, False),
    "documents": (lambda: {"docs": [Document(content="d", meta={"zz": 1, "a": math.nan})]}, False),
    "a message": (lambda: ChatMessage.from_user("hi"), False),
    "10 MB": (lambda: "x" * 10_000_000, False),
    "10 MB inside": (lambda: {"n": ["y" * 10_000_000]}, False),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("what", RESULTS)
def test_whatever_a_tool_returns_the_session_goes_on_and_a_replay_tells_the_model_the_same(
    desk: Desk, what: str
) -> None:
    value, lossy = RESULTS[what]
    desk.agent(lambda: sample_agents.one_tool(value))
    session = desk.run(desk.start())
    assert (session.status, session.phase, session.error) == (Status.IDLE, Phase.DONE, "")
    [call] = desk.calls(session)
    assert (call.status, call.lossy) == (CallStatus.DONE, lossy)
    [undisturbed] = told(desk, session)

    session = desk.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OrmJournal, "finish_call", _dies_at(OrmJournal.finish_call, 1))
        with pytest.raises(Died):
            desk.drive(session)
    session = after_death(desk, session)
    assert session.phase == Phase.DONE
    # An address in memory is no part of what a thing is.
    assert told(desk, session)[0].partition(" at 0x")[0] == undisturbed.partition(" at 0x")[0]


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no money"),
        ValueError("nul \x00 \ud800"),
        KeyError(1),
        ValueError("long " * 100_000),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_tool_that_raises_is_an_error_for_the_model(desk: Desk, error: Exception) -> None:
    def it() -> str:
        effect("it")
        raise error

    desk.agent(lambda: sample_agents.one_tool(it))
    session = desk.run(desk.start())
    assert session.phase == Phase.DONE
    [call] = desk.calls(session)
    assert call.status == CallStatus.FAILED
    assert call.error
    assert call.error == told(desk, session)[0]
    assert effects.count("it") == 1
    assert session.totals["tool_errors"] == 1


def test_a_tool_that_ends_the_process_does_not_end_the_worker(desk: Desk) -> None:
    """As a command-line parser does on bad arguments."""

    def it() -> str:
        raise SystemExit(2)

    desk.agent(lambda: sample_agents.one_tool(it))
    session = desk.run(desk.start())
    assert session.phase == Phase.DONE
    [call] = desk.calls(session)
    assert call.status == CallStatus.FAILED
    assert "SystemExit" in call.error


def test_a_tool_that_is_no_longer_there_is_an_error_for_the_model(desk: Desk) -> None:
    desk.agent(
        lambda: Agent(
            chat_generator=scripted([Call("gone", {}, id="g1")], "Sorry."), tools=[sample_agents.fast]
        )
    )
    session = desk.run(desk.start())
    assert (session.phase, session.final_answer) == (Phase.DONE, "Sorry.")
    [call] = desk.calls(session)
    assert (call.status, call.attempt) == (CallStatus.FAILED, 0)
    assert "gone" in call.error


def test_arguments_that_do_not_fit_are_an_error_for_the_model(desk: Desk) -> None:
    calls = [
        Call("fast", {"q": 1, "nonsense": True}, id="c1"),
        Call("fast", {}, id="c2"),
        Call("fast", {"q": "a"}, id="c3"),
    ]
    desk.agent(lambda: Agent(chat_generator=scripted(calls, "Done."), tools=[sample_agents.fast]))
    session = desk.run(desk.start())
    assert session.phase == Phase.DONE
    assert [call.status for call in desk.calls(session)] == [
        CallStatus.FAILED,
        CallStatus.FAILED,
        CallStatus.DONE,
    ]


# State


@tool(outputs_to_state={"thing": {"source": "thing"}})
def finds() -> dict[str, Any]:
    """Finds a thing."""
    effect("finds")
    return {"thing": Thing()}


@tool
def puts(q: Annotated[str, "what"], state: State) -> str:
    """Puts a thing into the State."""
    effect(f"puts({q})")
    state.set("thing", Thing())
    return "put"


def keeps(*calls: Call) -> Callable[[], Agent]:
    return lambda: Agent(
        chat_generator=scripted(list(calls), "Kept."),
        tools=[finds, puts],
        state_schema={"thing": {"type": Any}},
    )


def test_what_a_tool_returned_goes_into_the_state_as_it_could_be_stored(desk: Desk) -> None:
    desk.agent(keeps(Call("finds", {}, id="c1")))
    session = desk.run(desk.start())
    assert session.phase == Phase.DONE
    assert desk.calls(session)[0].lossy


@tool
def looks(state: State) -> str:
    """Looks at the thing."""
    thing = state.get("thing")
    return f"{thing}: {thing.use()}"


def puts_and_looks() -> Agent:
    return Agent(
        chat_generator=scripted([Call("puts", {"q": "a"}, id="c1")], [Call("looks", {}, id="c2")], "Seen."),
        tools=[puts, looks],
        state_schema={"thing": {"type": Any}},
    )


def test_a_tool_may_put_into_the_state_what_cannot_be_stored_and_the_call_the_state_and_the_agent_name_it(
    desk: Desk, client: Client
) -> None:
    desk.agent(puts_and_looks)
    session = desk.run(desk.start())
    assert (session.phase, session.error) == (Phase.DONE, "")
    assert told(desk, session) == ["put", "a thing: used"]
    puts_call, looks_call = desk.calls(session)
    assert (puts_call.lossy, looks_call.lossy) == (True, False)
    assert [(each.tool, each.kind) for each in LossyResult.objects.all()] == [
        ("puts", "tests.test_bad_input.Thing")
    ]
    assert puts_call.state == {
        "thing": {"set": {"$type": "stand_in", "value": "a thing", "of": "tests.test_bad_input.Thing"}}
    }
    client.force_login(user("operator", "anna"))
    for address, words in {
        reverse(
            "call", args=[session.pk, puts_call.pk]
        ): "tests.test_bad_input.Thing: a type that cannot be stored",
        reverse("state", args=[session.pk]): "Replaces tests.test_bad_input.Thing, which cannot be stored",
        reverse("session", args=[session.pk]): "what it wrote to the State, cannot be stored as it was",
    }.items():
        page = client.get(address)
        assert words in " ".join(page.content.decode().split())


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before_llm", "after_tool"])
def test_what_a_hook_puts_into_the_state_and_cannot_be_stored_is_told_once_on_the_timeline(
    desk: Desk, client: Client, point: str
) -> None:
    @hook
    def puts_another(state: State) -> None:
        state.set("thing", Thing())

    desk.agent(
        lambda: sample_agents.long_run(
            3, state_schema={"thing": {"type": Any}}, hooks={point: [puts_another]}
        )
    )
    session = desk.start()
    while desk.drive(session, slice_seconds=0) == "queued":  # each step is run by another worker
        desk.due(session)
    assert desk.events(session) == ["started", "not_stored", "finished"]
    page_session = desk.fresh(session)
    desk.say(page_session, "and again?")
    assert desk.events(desk.run(page_session)).count("not_stored") == 1
    client.force_login(user("operator", "anna"))
    page = client.get(reverse("session", args=[session.pk]))
    assert (
        "A state value could not be stored: thing (tests.test_bad_input.Thing). A run that "
        "continues has its text or its plain data instead."
    ) in " ".join(page.content.decode().replace("<bdi>", "").split())


@pytest.mark.parametrize("death", ["before the checkpoint", "behind it"])
def test_a_run_that_continues_without_it_has_its_text_and_a_tool_that_needs_more_is_told_why(
    desk: Desk, death: str
) -> None:
    desk.agent(puts_and_looks, policies={"looks": ToolPolicy(idempotent=True)})
    session = desk.start()
    method = "finish_call" if death == "before the checkpoint" else "reply"
    with pytest.MonkeyPatch.context() as patch:
        number = 1 if method == "finish_call" else 2
        patch.setattr(OrmJournal, method, _dies_at(getattr(OrmJournal, method), number))
        with pytest.raises(Died):
            desk.drive(session)
    session = after_death(desk, session)
    assert (session.phase, session.final_answer) == (Phase.DONE, "Seen.")
    assert effects.count("puts(a)") == 1
    first, second = told(desk, session)
    assert first == "put"
    assert "this is only the text of a tests.test_bad_input.Thing, which could not be stored" in second


def test_without_a_value_that_the_prompt_needs_no_session_is_started(desk: Desk) -> None:
    desk.agent(sample_agents.prompted)
    with pytest.raises(Invalid, match="needs a value for who"):
        desk.start()
    assert not Session.objects.exists()


def test_a_hook_that_raises_is_told_and_the_session_goes_on_when_it_is_mended(desk: Desk) -> None:
    faults = [ValueError("the hook is broken")]

    @hook
    def broken(state: State) -> None:
        if faults and state.data["step_count"] == 2:
            raise faults.pop()

    desk.agent(lambda: sample_agents.long_run(4, hooks={"before_llm": [broken]}))
    session = desk.start()
    assert desk.drive(session) == "idle"
    assert desk.fresh(session).error == "ValueError: the hook is broken"
    desk.resume(session)
    assert desk.run(session).final_answer == "Long done."
    assert [each for each in effects if each.startswith("fast")] == [f"fast(q{n})" for n in range(4)]


# Models


@component
class Says:
    """A model that answers the given things, one after the other, and then "Over."."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
        effect("model")
        answer = self.answers.pop(0) if self.answers else ChatMessage.from_assistant("Over.")
        return {"replies": [answer]} if isinstance(answer, ChatMessage) else answer


def saying(*answers: Any) -> Callable[[], Agent]:
    return lambda: Agent(chat_generator=Says(*answers), tools=[sample_agents.fast])


def asking_for(tool: Any, arguments: Any) -> dict[str, Any]:
    return {"replies": [ChatMessage.from_assistant("x", tool_calls=[Call(tool, arguments, id="c1")])]}


GARBAGE: dict[str, Any] = {
    "nothing": None,
    "text": "hello",
    "no replies": {"answer": 1},
    "replies that are no list": {"replies": "hello"},
    "texts": {"replies": ["hello"]},
    "a user's words": {"replies": [ChatMessage.from_user("hello")]},
    "arguments that are text": asking_for("fast", "{q:"),
    "arguments that are a list": asking_for("fast", ["a"]),
    "arguments that are nothing": asking_for("fast", None),
    "a tool that is a number": asking_for(7, {}),
    "NUL": "a\x00b",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", GARBAGE)
def test_an_answer_that_is_no_reply_is_told_and_asked_for_again_on_resume(desk: Desk, what: str) -> None:
    desk.agent(saying(GARBAGE[what]))
    session = desk.start()
    assert desk.drive(session) == "idle"
    after = desk.fresh(session)
    assert (after.status, after.phase) == (Status.IDLE, Phase.ERROR)
    assert after.error.startswith("GarbledReply: ")
    [failed] = desk.model_calls(session)
    assert failed.error == after.error
    desk.resume(session)
    after = desk.run(session)
    assert (after.phase, after.final_answer) == (Phase.DONE, "Over.")
    assert effects.count("model") == 2


def calling(*calls: Call, text: str = "x", **fields: Any) -> ChatMessage:
    return ChatMessage.from_assistant(text, tool_calls=list(calls), **fields)


ODD_REPLIES: dict[str, tuple[ChatMessage, list[str]]] = {
    "calls without ids": (
        calling(Call("fast", {"q": "a"}), Call("fast", {"q": "b"})),
        ["fast(a)", "fast(b)"],
    ),
    "an empty id": (calling(Call("fast", {"q": "a"}, id="")), ["fast(a)"]),
    "an id twice": (
        calling(Call("fast", {"q": "a"}, id="c"), Call("fast", {"q": "b"}, id="c")),
        ["fast(a)", "fast(b)"],
    ),
    "a call twice": (
        calling(Call("fast", {"q": "a"}, id="c"), Call("fast", {"q": "a"}, id="c")),
        ["fast(a)", "fast(a)"],
    ),
    "a huge id": (calling(Call("fast", {"q": "a"}, id="i" * 5000)), ["fast(a)"]),
    "an id with NUL": (calling(Call("fast", {"q": "a"}, id="c\x001")), ["fast(a)"]),
    "arguments with NUL": (calling(Call("fast", {"q": "a\x00b"}, id="c1")), ["fast(a\ufffdb)"]),
    "arguments with a lone surrogate": (calling(Call("fast", {"q": "\ud800"}, id="c1")), ["fast(\ufffd)"]),
    "a tool with NUL": (calling(Call("fa\x00st", {"q": "a"}, id="c1")), []),
    "a tool of huge name": (calling(Call("fast" * 1000, {"q": "a"}, id="c1")), []),
    "no such tool": (calling(Call("nonsense", {"q": "a"}, id="c1")), []),
    "text with NUL": (calling(Call("fast", {"q": "a"}, id="c1"), text="a\x00b\ud800"), ["fast(a)"]),
    "huge text": (calling(Call("fast", {"q": "a"}, id="c1"), text="w" * 5_000_000), ["fast(a)"]),
    "many calls": (
        calling(*[Call("fast", {"q": str(n)}, id=f"c{n}") for n in range(100)]),
        [f"fast({n})" for n in range(100)],
    ),
    "usage that is text": (calling(Call("fast", {"q": "a"}, id="c1"), meta={"usage": "a lot"}), ["fast(a)"]),
    "usage that is absurd": (
        calling(
            Call("fast", {"q": "a"}, id="c1"),
            meta={"usage": {"prompt_tokens": -5, "completion_tokens": 2**70}, "model": 7},
        ),
        ["fast(a)"],
    ),
    "meta that is no JSON": (
        calling(
            Call("fast", {"q": "a"}, id="c1"), meta={"raw": Thing(), "at": timezone.now(), "model": "m\x00"}
        ),
        ["fast(a)"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("died", [False, True], ids=["undisturbed", "and the worker dies"])
@pytest.mark.parametrize("what", ODD_REPLIES)
def test_an_odd_reply_is_carried_as_far_as_it_goes(desk: Desk, what: str, died: bool) -> None:
    message, expected = ODD_REPLIES[what]
    desk.agent(saying(message), policies={"fast": ToolPolicy(idempotent=True)})
    session = desk.start()
    if died:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OrmJournal, "reply", _dies_at(OrmJournal.reply, 1))
            with pytest.raises(Died):
                desk.drive(session)
        session = after_death(desk, session)
    else:
        session = desk.run(session)
    assert (session.status, session.phase, session.error) == (Status.IDLE, Phase.DONE, "")
    assert session.final_answer == "Over."
    assert sorted(each for each in effects if each != "model") == sorted(expected)
    assert effects.count("model") == 2
    calls = desk.calls(session)
    assert len({call.call_id for call in calls}) == len(calls) == len(message.tool_calls)
    assert all(call.call_id and call.ended_at for call in calls)
    assert len(told(desk, session)) == len(calls)


def test_a_model_that_says_nothing_at_all_runs_into_the_limit_of_steps(desk: Desk) -> None:
    desk.agent(
        lambda: Agent(
            chat_generator=Says(*[{"replies": []}] * 9), tools=[sample_agents.fast], max_agent_steps=3
        )
    )
    session = desk.run(desk.start())
    assert (session.phase, session.exit_reason) == (Phase.DONE, "max_agent_steps")
    assert effects.count("model") == 3


# People


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "", "  "], ids=["NUL", "surrogate", "empty", "blank"])
def test_words_that_cannot_be_stored_are_refused_and_nothing_is_changed(desk: Desk, text: str) -> None:
    desk.agent(sample_agents.plain_talk)
    session = desk.run(desk.start())
    before = (session.version, desk.events(session))
    with pytest.raises(Invalid):
        desk.say(session, text)
    with pytest.raises(Invalid):
        desk.start(text)
    with pytest.raises(Invalid):
        actions.cancel(actor=SYSTEM, session_id=session.pk, reason=text)
    assert (desk.fresh(session).version, desk.events(session)) == before
    assert Session.objects.count() == 1
    assert not session.inbox.exists()


def test_any_words_that_can_be_stored_reach_the_agent_as_they_are(desk: Desk) -> None:
    desk.agent(sample_agents.plain_talk)
    words = "“Grüße” \U0001f600 \u202e {{ who }} {% raw %} <script> ' \" \\ \x7f \u2028 " + "w" * 100_000
    session = desk.run(desk.start(words))
    assert ("user", words) in desk.texts(session)


# The database


def test_a_database_that_does_not_answer_loses_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    # A call that the cache may answer starts by a commit of its own, and so do those of its step.
    policies = {"refund": ToolPolicy(idempotent=True), "fast": ToolPolicy(cache_ttl=60)}
    desk.agent(sample_agents.refunds, policies=policies)
    session = desk.start()

    def away(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr("sessions_app.runtime.statements.update", away)
        assert desk.drive(session) == "lost"
    assert desk.fresh(session).status == Status.RUNNING
    session = after_death(desk, session)
    assert (session.phase, session.final_answer) == (Phase.DONE, "Refund handled.")
    assert effects.count("refund(A1,100)") == 1
    assert [each for each in effects if each.startswith("model")] == ["model(0)", "model(1)"]


def test_a_made_up_tool_may_have_any_schema(desk: Desk) -> None:
    strange = Tool(
        name="it", description="", parameters={"type": "object", "properties": {}}, function=lambda: 1
    )
    desk.agent(lambda: Agent(chat_generator=scripted([Call("it", {}, id="x1")], "Over."), tools=[strange]))
    assert desk.run(desk.start()).phase == Phase.DONE
