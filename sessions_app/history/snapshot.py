"""A session of the desk as it is, for code that reads it as a value: ``AgentState.of(session)``.

It claims no session, locks nothing and writes nothing, so a worker may be running the session meanwhile.
"""

from django.db import transaction

from agentstate.domain.reading import readable
from agentstate.durable.records import Progress, Snapshot, UnreadMessage
from sessions_app.history import restore
from sessions_app.models import Session


@readable.register(Session)
class StoredSession:
    """Reads like a journal, and has nothing to write with."""

    def __init__(self, session: Session) -> None:
        self.session_id = str(session.pk)
        self.error = session.error

    def load(self) -> Snapshot:
        """The last checkpoint of the session's current branch, what was recorded since, and the unread messages.

        :raises Session.DoesNotExist: if it was deleted meanwhile.
        """
        with transaction.atomic():
            session = Session.objects.select_related("branch").get(pk=self.session_id)
            self.error = session.error
            restored = restore.read(session.branch) if session.branch else restore.Restored()
            unread = [(row.pk, row.whole) for row in session.inbox.all()]
        return Snapshot(
            inputs=session.inputs,
            progress=Progress(session.phase, session.previous_phase, session.phase_since, session.totals),
            definition=session.definition,
            checkpoint=restored.checkpoint,
            unread=tuple(UnreadMessage(pk, body) for pk, body in unread),
            replies=restored.replies,
            calls=restored.calls,
        )
