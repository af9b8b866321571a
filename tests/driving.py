"""Agents made for one test, whose sessions are driven by the product's own actions and worker in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from django.test import override_settings
from django.utils import timezone
from haystack.components.agents import Agent

from agentstate import agent
from agentstate.durable.registry import registry
from sessions_app import actions
from sessions_app.history.message_rows import fill_texts
from sessions_app.models import CallStatus, Event, Message, ModelCall, Session, Status, ToolCall
from sessions_app.runtime.agents import publish_agents
from sessions_app.runtime.worker import drive
from tests import sample_agents
from tests.builders import SYSTEM, branch_of

KEY = "made-for-a-test"


def unregister(key: str) -> None:
    """Remove an agent from the registry, if it is there."""
    registry._by_key.pop(key, None)


class Desk:
    """One agent, and what people and workers do with its sessions."""

    def agent(self, build: Callable[[], Agent], **options: Any) -> None:
        """Register the agent, in place of the one before it, and publish it and no other."""
        unregister(KEY)
        agent(KEY, **options)(build)
        # Building and publishing all sample agents takes longer than most tests.
        with mock.patch.object(registry, "all", return_value=[registry.get(KEY)]):
            publish_agents()

    def start(self, message: str = "hi", **how: Any) -> Session:
        return actions.start(actor=SYSTEM, agent=KEY, message=message, **how)

    def fresh(self, session: Session) -> Session:
        return Session.objects.select_related("branch").get(pk=session.pk)

    def drive(self, session: Session, **how: Any) -> str:
        return drive(session.pk, worker="w1", **how)

    def due(self, session: Session) -> Session:
        """Let the time pass until the session is due."""
        Session.objects.filter(pk=session.pk, status=Status.QUEUED).update(next_run_at=timezone.now())
        return self.fresh(session)

    def run(self, session: Session) -> Session:
        """Drive the session until it is at rest."""
        while (became := self.drive(session)) == "queued":
            self.due(session)
        assert became not in ("busy", "lost")
        return self.fresh(session)

    def resume(self, session: Session) -> Session:
        return actions.resume(actor=SYSTEM, session_id=session.pk, reason="go on")

    def say(self, session: Session, text: str) -> Session:
        return actions.send_message(actor=SYSTEM, session_id=session.pk, text=text)

    def calls(self, session: Session) -> list[ToolCall]:
        return list(ToolCall.objects.visible_on(branch_of(self.fresh(session))).order_by("position"))

    def doubts(self, session: Session) -> list[ToolCall]:
        return [call for call in self.calls(session) if call.status == CallStatus.DOUBT]

    def model_calls(self, session: Session) -> list[ModelCall]:
        return list(ModelCall.objects.visible_on(branch_of(self.fresh(session))).order_by("position"))

    def texts(self, session: Session) -> list[tuple[str, str]]:
        """The role and the text of each message in the current history."""
        branch = branch_of(self.fresh(session))
        messages = list(Message.objects.visible_on(branch).order_by("position"))
        return [(message.role, message.text) for message in fill_texts(branch, messages)]

    def events(self, session: Session) -> list[str]:
        return list(Event.objects.filter(session=session).values_list("kind", flat=True))

    def last_event(self, session: Session) -> Event:
        return Event.objects.filter(session=session).latest("position")


@contextmanager
def desk(**settings: Any) -> Iterator[Desk]:
    """A `Desk` with the sample agents registered. Needs a test's database."""
    sample_agents.effects.clear()
    try:
        with override_settings(AGENTSTATE_AGENTS=["tests.sample_registry"], **settings):
            yield Desk()
    finally:
        unregister(KEY)
        sample_agents.effects.clear()
