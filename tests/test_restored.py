"""A restored database: the documented commands hold back the sessions that would go on by themselves."""

import re
import textwrap

import pytest

from sessions_app.models import Session, Status
from tests import builders
from tools.processes import PROJECT

pytestmark = pytest.mark.django_db


def test_after_a_restore_the_documented_commands_pause_what_was_queued_or_running() -> None:
    waits = builders.waiting_for_approval()
    on_their_way = [builders.queued(), builders.running()]
    page = (PROJECT / "docs" / "operations.md").read_text()
    (commands,) = re.findall(r"^    manage\.py shell -c '\n(.*?)^    '$", page, re.M | re.S)
    exec(textwrap.dedent(commands), {})
    for session in on_their_way:
        session.refresh_from_db()
        assert (session.status, session.why) == (Status.PAUSED, "Restored from a back-up.")
    assert Session.objects.get(status=Status.WAITING) == waits
