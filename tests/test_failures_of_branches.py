"""A session has failed for what happened on the branch that it is on, whatever has failed on others since."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.apps import apps
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.dataclasses import ToolCall as Call
from haystack.tools import Tool

from agentstate import ToolPolicy
from sessions_app import actions
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.causes import read_cause
from sessions_app.history.causes_again import name_causes_again
from sessions_app.history.failures import newest_failures, tool_that_failed
from sessions_app.models import Checkpoint, Phase, Session, Status
from tests.builders import SYSTEM
from tests.driving import Desk
from tests.sample_agents import effect, effects, fast

pytestmark = pytest.mark.usefixtures("no_effects")


def charging(*others: ChatMessage | Exception) -> Callable[[], Agent]:
    """An agent whose first reply asks for `charge`, which fails the first time; the next ones are the others."""
    first = [Call("fast", {"q": "a"}, id="c0"), Call("charge", {"n": 1}, id="c1")]
    replies = [ChatMessage.from_assistant(tool_calls=first), *others, ChatMessage.from_assistant("Over.")]

    def reply(messages: Any, tools: Any = None) -> ChatMessage:
        effect("model")
        said = replies.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def charge(n: int) -> str:
        effect(f"charge({n})")
        if effects.count(f"charge({n})") == 1:
            raise ConnectionError("the bank is away")
        return "charged"

    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tool = Tool(name="charge", description="Charges.", parameters=parameters, function=charge)
    return lambda: Agent(
        chat_generator=MockChatGenerator(response_fn=reply),
        tools=[fast, tool],
        raise_on_tool_invocation_failure=True,
    )


def failed_twice(desk: Desk, second: ChatMessage | Exception) -> Session:
    """A session whose call failed on its first branch, and that failed on the second, too, on which it is."""
    desk.agent(charging(second), policies={"charge": ToolPolicy(idempotent=True)})
    session = desk.run(desk.start())
    start = Checkpoint.objects.filter(branch=session.branch).earliest("position")
    actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="Again.", run=True)
    session = desk.run(desk.fresh(session))
    assert (session.current_branch.number, session.phase) == (2, Phase.ERROR)
    return session


SECOND = [
    pytest.param(
        ChatMessage.from_assistant(tool_calls=[Call("nosuch", {"n": 1}, id="c9")]), id="unknown tool"
    ),
    pytest.param(ValueError("The request was refused."), id="model"),
]


@pytest.mark.parametrize("second", SECOND)
def test_after_an_undo_a_resume_tries_the_call_again_that_failed_on_the_branch_to_which_the_session_returned(
    desk: Desk, second: ChatMessage | Exception
) -> None:
    session = failed_twice(desk, second)
    session = actions.undo(actor=SYSTEM, session_id=session.pk, reason="The first was right.")
    assert (session.current_branch.number, session.phase) == (1, Phase.ERROR)
    asked = effects.count("model")

    session = desk.run(desk.resume(session))

    assert (session.status, session.final_answer) == (Status.IDLE, "Over.")
    assert session.current_branch.number == 1
    assert Counter(effects)["charge(1)"] == 2
    assert effects.count("model") == asked + 1  # for the next step: the reply that was recorded is kept
    assert effects.count("fast(a)") == 1


@pytest.mark.parametrize("second", SECOND)
def test_after_an_undo_the_cause_of_a_failure_is_that_of_the_branch_to_which_the_session_returned(
    desk: Desk, second: ChatMessage | Exception
) -> None:
    desk.agent(charging(second), policies={"charge": ToolPolicy(idempotent=True)})
    session = desk.run(desk.start())
    cause = session.failure
    assert tool_that_failed(session) == "charge"
    start = Checkpoint.objects.filter(branch=session.branch).earliest("position")
    actions.rewind(actor=SYSTEM, session_id=session.pk, checkpoint_id=start.pk, reason="Again.", run=True)
    session = desk.run(desk.fresh(session))
    assert session.failure not in (None, cause)
    assert tool_that_failed(session) == ""

    actions.undo(actor=SYSTEM, session_id=session.pk, reason="The first was right.")

    session = desk.fresh(session)
    assert session.failure == cause
    assert tool_that_failed(session) == "charge"
    assert newest_failures([session.pk])[session.pk]["tool"] == "charge"
    assert "charge" in read_cause(str(cause), Mask.configured()).name.lower()
    name_causes_again(partial(apps.get_model, "sessions_app"))
    assert desk.fresh(session).failure == cause
