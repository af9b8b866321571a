"""Releasing a session from its worker, and adding a note to it."""

import pytest

from sessions_app import actions
from sessions_app.access.errors import Forbidden, Invalid, Moved, Refused
from sessions_app.models import Session
from sessions_app.runtime import leases
from tests import builders

pytestmark = pytest.mark.django_db


def release(session: Session, **how) -> Session:
    how = {"actor": builders.SYSTEM, "reason": "It hangs", **how}
    return actions.release(session_id=session.pk, **how)


@pytest.mark.parametrize(
    "state, then", [("running", "queued"), ("pausing", "paused"), ("cancelling", "cancelled")]
)
def test_a_released_session_goes_on_as_was_asked_and_its_worker_holds_it_no_more(state, then):
    session = builders.STATES[state]()
    lease_end = session.lease_expires_at
    assert lease_end is not None
    held = leases.Claim(session.pk, session.epoch, session.worker, session.attempt, lease_end, session.agent)
    assert leases.renew([held]) == {held}
    released = release(session)
    assert (released.status, released.worker, released.lease_expires_at) == (then, "", None)
    assert leases.renew([held]) == set()
    event = released.events.latest("position")
    assert (event.kind, event.reason, event.data["worker"]) == ("released", "It hangs", "host:1")


def test_a_released_session_may_be_taken_by_another_worker():
    session = builders.running()
    release(session)
    assert leases.claim(session.pk, "host:2") is not None


@pytest.mark.slow
@pytest.mark.parametrize("state", ["queued", "paused", "waiting_for_approval", "done", "cancelled"])
def test_what_no_worker_holds_is_not_released(state):
    with pytest.raises(Refused, match="No worker is running it"):
        release(builders.STATES[state]())


def test_only_supervisors_release_with_a_reason_and_what_they_have_seen():
    session = builders.running()
    for role in ("viewer", "operator"):
        with pytest.raises(Forbidden):
            release(session, actor=builders.actor(role))
    with pytest.raises(Invalid):
        release(session, reason=" ")
    with pytest.raises(Moved):
        release(session, expected_version=session.version - 1)
    assert release(session, actor=builders.actor("supervisor")).status == "queued"


def test_a_note_is_kept_and_disturbs_nobody():
    session = builders.running()
    noted = actions.note(actor=builders.actor("operator"), session_id=session.pk, text=" She called ")
    assert (noted.version, noted.status) == (session.version, "running")
    assert noted.change == session.change + 1
    event = noted.events.latest("position")
    assert (event.kind, event.reason, event.position) == ("noted", "She called", noted.position)
    with pytest.raises(Invalid):
        actions.note(actor=builders.SYSTEM, session_id=session.pk, text=" ")
    with pytest.raises(Forbidden):
        actions.note(actor=builders.actor("viewer"), session_id=session.pk, text="Hello")
