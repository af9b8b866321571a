"""A worker that stood still after it recorded a call as started looks whether the session is still its own."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agentstate import ToolPolicy
from sessions_app.models import CallStatus, Session
from sessions_app.runtime import leases
from sessions_app.runtime.journal import OrmJournal
from tests import sample_agents
from tests.driving import Desk

pytestmark = pytest.mark.django_db(transaction=True)

# With a policy for its cache, a call starts by a commit of its own; without one, by the commit of the reply.
STARTS = {"reply": {}, "start_call": {"it": ToolPolicy(cache_ttl=60)}}


@pytest.fixture(params=STARTS)
def started(request: pytest.FixtureRequest, desk: Desk) -> Session:
    """A session whose one call pays, and is started by the write that the parameter names."""
    desk.agent(
        lambda: sample_agents.one_tool(lambda: sample_agents.effect("paid")), policies=STARTS[request.param]
    )
    return desk.start()


@pytest.fixture
def stands_still(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the first worker a lease that has ended when its call has started, and calls a function then."""
    name = request.node.callspec.params["started"]
    write = getattr(OrmJournal, name)

    def until(meanwhile: Any) -> None:
        def late(journal: OrmJournal, *args: Any, **kwargs: Any) -> Any:
            answer = write(journal, *args, **kwargs)
            if not journal.claim.lost.is_set():
                monkeypatch.setattr(OrmJournal, name, write)
                ended = timezone.now() - timedelta(seconds=1)
                journal.claim.lease_end = ended
                Session.objects.filter(pk=journal.claim.session_id).update(lease_expires_at=ended)
                meanwhile()
            return answer

        monkeypatch.setattr(OrmJournal, name, late)

    return until


def test_a_late_worker_enters_no_tool_of_a_session_that_was_taken_over(
    desk: Desk, started: Session, stands_still: Any
) -> None:
    stands_still(lambda: leases.claim(started.pk, "w2"))
    assert desk.drive(started) == "lost"
    assert "paid" not in sample_agents.effects
    assert [call.status for call in desk.calls(started)] == [CallStatus.STARTED]


def test_a_late_worker_whose_session_nobody_has_taken_over_goes_on(
    desk: Desk, started: Session, stands_still: Any
) -> None:
    stands_still(lambda: None)
    assert desk.run(started).final_answer == "Over."
    assert sample_agents.effects.count("paid") == 1
