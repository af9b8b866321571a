"""A tool that is pre-approved for the rest of a session needs approval again once a person has withdrawn that."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall
from haystack.hooks.human_in_the_loop import AlwaysAskPolicy, BlockingConfirmationStrategy, ConfirmationHook
from haystack.tools import Tool

from agentstate import ToolPolicy
from sessions_app import actions
from sessions_app.models import Approval, Session, Status, WaitingFor
from tests import driving
from tests.builders import SYSTEM
from tests.driving import Desk
from tests.sample_agents import scripted

# A run opens and commits transactions of its own, also in threads.
pytestmark = pytest.mark.django_db(transaction=True)

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
POLICY = {"pay": ToolPolicy(approval=True)}


@pytest.fixture
def desk() -> Iterator[Desk]:
    with driving.desk() as made:
        yield made


class NoConsole:
    def get_user_confirmation(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a durable run never asks on a console")


def paying(paid: list[int], at: Callable[[int], object], **options: Any) -> Agent:
    """An agent that pays five times, one after the other.

    :param at: Called by the tool with the number of the payment.
    """

    def pay(n: int) -> str:
        paid.append(n)
        at(n)
        return "paid"

    steps = [[ToolCall("pay", {"n": n}, id=f"c{n}")] for n in range(1, 6)]
    tool = Tool(name="pay", description="Pays.", parameters=NUMBER, function=pay)
    return Agent(chat_generator=scripted(*steps, "Done."), tools=[tool], **options)


def allowed_for_the_session(desk: Desk) -> Session:
    """A session whose first payment has been approved, and with it all others."""
    session = desk.run(desk.start())
    approval = Approval.objects.get(session=session)
    actions.approve(actor=SYSTEM, session_id=session.pk, call_id=approval.call_id, for_session=True)
    return session


def withdraw(number: int) -> None:
    if number == 2:
        session = Session.objects.get()
        assert session.status == Status.RUNNING
        actions.withdraw(actor=SYSTEM, session_id=session.pk, tool="pay", reason="Stop that")


@pytest.mark.parametrize("run_async", [False, True], ids=["run", "run_async"])
@pytest.mark.parametrize("asks", ["the policy", "a hook of Haystack"])
def test_what_is_withdrawn_while_the_session_runs_needs_approval_from_the_next_step(
    desk: Desk, asks: str, run_async: bool
) -> None:
    paid: list[int] = []

    def build() -> Agent:
        if asks == "the policy":
            return paying(paid, withdraw)
        console: Any = NoConsole()
        strategy = BlockingConfirmationStrategy(
            confirmation_policy=AlwaysAskPolicy(), confirmation_ui=console
        )
        return paying(paid, withdraw, hooks={"before_tool": [ConfirmationHook({"pay": strategy})]})

    desk.agent(build, policies=POLICY if asks == "the policy" else {}, run_async=run_async)
    session = desk.run(allowed_for_the_session(desk))
    assert paid == [1, 2]
    assert (session.status, session.waiting_for) == (Status.WAITING, WaitingFor.APPROVAL)
    [request] = Approval.objects.filter(session=session, decision="")
    assert (request.call.tool, request.call.arguments) == ("pay", {"n": 3})


def test_what_is_not_withdrawn_is_asked_of_the_database_once_for_each_call(desk: Desk) -> None:
    paid: list[int] = []
    desk.agent(lambda: paying(paid, lambda number: None), policies=POLICY)
    session = allowed_for_the_session(desk)
    with CaptureQueriesContext(connection) as sent:
        session = desk.run(session)
    assert (session.status, session.final_answer, paid) == (Status.IDLE, "Done.", [1, 2, 3, 4, 5])
    reads = sum("sessions_app_allowance" in query["sql"] for query in sent.captured_queries)
    # Of the five calls the first has a decision of its own; the claim reads the allowances once.
    assert reads == 1 + 4
